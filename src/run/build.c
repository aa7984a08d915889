#include "run/build.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "net/rope.h"
#include "optim/optim.h"
#include "prog/record.h"

#include <stdlib.h>

/* ---- creating ----------------------------------------------------------------------------------------- */

static int declare(Job *j)
{
    int64_t bytes = sizeof(StepState), slots = LOSS_SLOTS;
    store_init(&j->store);
    j->state = store_tensor(&j->store, SLAB_STATE, "step state", DT_U8, 1, &bytes);
    j->sums  = store_view_as(&j->store, j->state, "loss", offsetof(StepState, out.sum), DT_F64, 1, &slots);
    if (j->task->own_state_bytes) j->own_state = arena_alloc(&j->store.arena, j->task->own_state_bytes);
    TRY(j->task->declare(j));
    TRY(job_check_names(j));
    store_seal(&j->store);
    return 0;
}

static int record(Job *j)
{
    Prog *p = job_begin(j, "copies");
    optim_record_copies(j->table, j->n_table, p, j->recipe.fp8.scaling == FP8_DYNAMIC);
    j->copies = job_end(j, p, 0);
    j->unpack = -1;
    if (j->landing) {
        p = job_begin(j, "unpack");
        prog_at(p, -1, -1, "unpack");
        rec_copy(p, (Copy){ .y = j->block, .x = j->landing });
        j->unpack = job_end(j, p, 0);
    }
    return j->task->record(j);
}

int build_create(Job **out, const Task *task, const Recipe *r, const JobChoice *c, unsigned parts,
                 const DevVt *vt)
{
    if (!(vt->hints->dtypes & (1u << c->compute)))
        return err_set("the %s backend does not compute in %s", vt->name, dtype_name(c->compute));
    Job *j = mem_zeroed(1, sizeof *j);
    if (!j) return err_sys("memory for the programs");
    j->task   = task;
    j->vt     = vt;
    j->recipe = *r;
    j->choice = *c;
    j->parts  = parts;
    int rc    = declare(j);
    if (rc == 0) rc = record(j);
    for (int i = 0; i < j->n_prog && rc == 0; i++) rc = prog_check_backend(j->prog[i], vt);
    if (rc < 0) {
        build_destroy(j);
        return -1;
    }
    *out = j;
    return 0;
}

void build_destroy(Job *j)
{
    if (!j) return;
    for (int i = 0; i < j->n_prog; i++) prog_destroy(j->prog[i], j->dev);
    if (j->dev) store_free_slabs(&j->store, j->dev);
    if (j->task->release && j->own) j->task->release(j);
    store_deinit(&j->store);
    free(j);
}

int build_verify(const Job *j) { return prog_verify_all((const Prog *const *)j->prog, j->n_prog); }

/* ---- binding ------------------------------------------------------------------------------------------ */

int build_bind(Job *j, Dev *dev)
{
    TRY(store_alloc_slabs(&j->store, dev));
    j->dev = dev;
    int rc = 0;
    if (dev->vt->lend) dev->vt->lend(dev, j->store.base[SLAB_ACT], j->store.slab_bytes[SLAB_ACT]);
    for (int i = 0; i < j->n_prog && rc == 0; i++) rc = prog_bind(j->prog[i], dev);
    if (dev->vt->lend) dev->vt->lend(dev, NULL, 0);
    return rc;
}

static int init_weights(Job *j, const ParamTable *t)
{
    int64_t most = 0;
    for (int i = 0; i < t->n_param; i++) most = MAX(most, t->param[i].rows_stored * t->param[i].cols);
    float *buf = mem_alloc(sizeof *buf * (size_t)most);
    if (!buf) return err_sys("memory for initial weights");
    int rc = 0;
    for (int i = 0; i < t->n_param && rc == 0; i++) {
        param_init_values(&t->param[i], (uint64_t)j->recipe.seed, buf);
        rc = job_write_param(j, &t->param[i], COL_WEIGHT, buf);
    }
    free(buf);
    return rc;
}

int build_init(Job *j)
{
    /* Slabs come zeroed: gradients, moments and padding need no more. */
    for (int k = 0; k < j->n_table; k++) {
        const ParamTable *t = j->table[k];
        for (int r = 0; r < REGION_TRAINED; r++) {
            if (t->seg[r])
                TRY(job_upload(j, t->seg[r], t->segments[r], sizeof(Segment) * (size_t)t->n_segment[r]));
        }
        /* Weights that come from a folder are not drawn: 8e9 of them would take half a minute. */
        if (!(j->parts & JOB_LOADED) && !t->origin[0]) TRY(init_weights(j, t));
    }
    StepState state = { .out.scale_exp = job_trains(j) ? job_first_scale(j) : 0 };
    TRY(job_write_state(j, &state));
    if (j->task->init_constants) TRY(j->task->init_constants(j));
    return job_refresh_copies(j);
}

/* ---- plan.txt ----------------------------------------------------------------------------------------- */

static void print_prog(const Prog *p, FILE *out)
{
    ProgStats s = prog_stats(p);
    char      a[32], low[32];
    if (s.n_op == 0) return;
    fprintf(out,
            "  %-11s %5d ops  %9.3f TFLOP  %8.3f again  %9.2f GB moved  "
            "activations %s (lower bound %s)\n",
            prog_name(p), s.n_op, s.flops * 1e-12, s.flops_repeated * 1e-12, s.bytes * 1e-9,
            str_bytes(a, sizeof a, (double)s.act_bytes),
            str_bytes(low, sizeof low, (double)s.act_lower_bound));
}

static void print_step(const Job *j, FILE *out)
{
    int64_t n = j->recipe.step_samples / j->choice.micro_batch, units = j->task->units(&j->recipe);
    fprintf(out, "step        %lld %s = %lld micro-batch%s of %lld", (long long)job_units_per_step(j),
            job_unit_in_full(j), (long long)n, n == 1 ? "" : "es", (long long)j->choice.micro_batch);
    if (units > 1) fprintf(out, " x %lld", (long long)units);
    fprintf(out, "\n");
    if (j->choice.world > 1) fprintf(out, "ranks       %d, the micro-batches in turn\n", j->choice.world);
}

static void print_rope(const RecipeModel *m, FILE *out)
{
    char buf[128];
    if (rope_describe(m, buf, sizeof buf)[0]) fprintf(out, "positions   %s\n", buf);
}

void build_print_plan(const Job *j, FILE *out)
{
    char buf[32];
    int  n_param = 0;
    for (int i = 0; i < j->n_table; i++) n_param += j->table[i]->n_param;
    fprintf(out, "model       %lld parameters in %d tensors\n", (long long)job_param_count(j), n_param);
    print_rope(&j->recipe.model, out);
    print_step(j, out);
    fprintf(out, "\nslabs\n");
    for (int i = 0; i < SLAB_COUNT; i++) {
        if (j->store.slab_bytes[i] == 0) continue;
        fprintf(out, "  %-16s %16zu  %s\n", slab_name((Slab)i), j->store.slab_bytes[i],
                str_bytes(buf, sizeof buf, (double)j->store.slab_bytes[i]));
    }
    fprintf(out, "  %-16s %16zu  %s\n", "total", store_total_bytes(&j->store),
            str_bytes(buf, sizeof buf, (double)store_total_bytes(&j->store)));
    fprintf(out, "\nprograms\n");
    for (int i = 0; i < j->n_prog; i++) {
        if (i != j->copies && i != j->unpack) print_prog(j->prog[i], out);
    }
}

static void print_list(void *ctx, const ScheduleRow *row, double times)
{
    prog_print(((const Job *)ctx)->prog[row->prog], 1);
}

void build_print_lists(const Job *j) { schedule_each(&j->step, print_list, (void *)j); }
