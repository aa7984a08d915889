#include "task/job.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/signals.h"
#include "base/str.h"
#include "prog/buckets.h"
#include "tensor/number.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- declaring ---------------------------------------------------------------------------------------- */

void job_add_table(Job *j, ParamTable *t)
{
    CHECK(j->n_table < JOB_TABLES, "raise JOB_TABLES");
    for (int i = 0; i < j->n_table; i++) {
        CHECK(strcmp(j->table[i]->prefix, t->prefix) != 0 && j->table[i]->site0 != t->site0,
              "two nets with the prefix '%s' or the same random sites", t->prefix);
    }
    j->table[j->n_table++] = t;
    Tensor *sites[]        = { t->sites, t->grad_sites };
    for (int i = 0; i < ARRAY_LEN(sites) && sites[i]; i++) {
        CHECK(j->n_kept < JOB_KEPT, "raise JOB_KEPT");
        j->kept[j->n_kept++] = sites[i];
    }
}

/* What Muon's learning rate is of optim.lr; 0: there is no Muon. */
static float muon_rate(const RecipeOptim *o)
{
    return o->kind != OPTIM_MUON ? 0.0f : o->muon_lr > 0 ? (float)(o->muon_lr / o->lr) : 1.0f;
}

ParamOptions job_param_options(const Job *j)
{
    return (ParamOptions){ .compute  = j->choice.compute,
                           .trains   = job_trains(j),
                           .decay    = (float)j->recipe.optim.weight_decay,
                           .muon     = muon_rate(&j->recipe.optim),
                           .gives    = j->choice.gives,
                           .freeze   = j->recipe.freeze,
                           .fp8      = j->choice.fp8,
                           .fp8_head = j->recipe.fp8.head,
                           .wide     = j->recipe.fp8.wide };
}

const char *job_precision(const Job *j)
{
    if (j->choice.fp8) return "fp8";
    if (j->choice.compute == DT_BF16) return "bf16";
    if (j->choice.compute == DT_F16) return "fp16";
    return j->recipe.precision == PRECISION_TF32 ? "tf32" : "fp32";
}

MachineArith job_arith(const Job *j)
{
    if (j->choice.compute != DT_F32) return MACHINE_HALF;
    return j->recipe.precision == PRECISION_TF32 ? MACHINE_TF32 : MACHINE_F32;
}

const char *job_optimizer(const Job *j)
{
    int n_muon = 0;
    for (int i = 0; i < j->n_table; i++) n_muon += j->table[i]->n_muon;
    if (n_muon > 0) return "Muon and AdamW";
    return j->recipe.optim.kind == OPTIM_MUON ? "AdamW (Muon finds no hidden matrix to train)" : "AdamW";
}

int64_t job_frozen_count(const Job *j)
{
    int64_t n = 0;
    for (int i = 0; i < j->n_table; i++) {
        for (int k = 0; k < j->table[i]->n_param; k++) {
            const Param *p = &j->table[i]->param[k];
            if (p->frozen) n += p->rows * p->cols;
        }
    }
    return n;
}

static int any_trained(const Job *j)
{
    for (int i = 0; i < j->n_table; i++) {
        for (int k = 0; k < j->table[i]->n_param; k++) {
            if (!j->table[i]->param[k].frozen) return 1;
        }
    }
    return 0;
}

/* The name of a weight, or the beginning of one, that is near to `item`, into best; NULL: none is. */
static const char *nearest_name(const Job *j, const char *item, char best[PARAM_NAME])
{
    int least = INT_MAX;
    for (int i = 0; i < j->n_table; i++) {
        for (int k = 0; k < j->table[i]->n_param; k++) {
            char name[PARAM_NAME];
            str_copy(name, sizeof name, j->table[i]->param[k].name);
            for (char *dot = name; dot; dot = strrchr(name, '.')) {
                if (dot != name) *dot = '\0';
                StrNearest near = str_nearest_begin(item);
                str_nearest_offer(&near, name);
                if (near.best && near.distance < least) {
                    least = near.distance;
                    str_copy(best, PARAM_NAME, name);
                }
            }
        }
    }
    return least < INT_MAX ? best : NULL;
}

/* "block.9" of "block.0-9": a range that goes beyond the blocks is a slip. Without a range: item itself. */
static const char *range_end(const char *item, char out[PARAM_NAME])
{
    size_t dash = strcspn(item, "-"), first = dash;
    while (first > 0 && item[first - 1] >= '0' && item[first - 1] <= '9') first--;
    if (!item[dash] || first == dash) return item;
    snprintf(out, PARAM_NAME, "%.*s%s", (int)first, item, item + dash + 1);
    return out;
}

static int check_names(const Job *j, const char *key, const char *list)
{
    char item[PARAM_NAME], last[PARAM_NAME];
    if (!list[0]) return 0;
    if (j->n_table == 0) return recipe_blame(&j->recipe, key, "this task has no weights");
    while (str_list_next(&list, item, sizeof item) > 0) {
        int found = 0;
        for (int i = 0; i < j->n_table && !found; i++) {
            char buf[PARAM_NAME];
            found = param_unmatched(j->table[i], item, buf, sizeof buf) == NULL &&
                    param_unmatched(j->table[i], range_end(item, last), buf, sizeof buf) == NULL;
        }
        char        best[PARAM_NAME];
        const char *near = found ? NULL : nearest_name(j, item, best);
        if (near)
            return recipe_blame(&j->recipe, key, "no weight is named %s (did you mean %s?)", item, near);
        if (!found)
            return recipe_blame(&j->recipe, key, "no weight is named %s (names begin like %s)", item,
                                j->table[0]->param[0].name);
    }
    return 0;
}

int job_check_names(const Job *j)
{
    TRY(check_names(j, "fp8.wide", j->recipe.fp8.wide));
    TRY(check_names(j, "freeze", j->recipe.freeze));
    if (j->recipe.freeze[0] && job_trains(j) && !any_trained(j))
        return recipe_blame(&j->recipe, "freeze", "every weight is frozen: nothing is left to train");
    return 0;
}

/* Views of one block: what is uploaded whole. */
void job_declare_fields(Job *j, const FieldRow *row, int n)
{
    int64_t one = 1;
    fields_init(&j->fields, row, n, j->choice.micro_batch);
    int64_t bytes = (int64_t)j->fields.block_bytes;
    if (j->vt->hints->is_late) j->landing = store_tensor(&j->store, SLAB_IO, "landing", DT_U8, 1, &bytes);
    j->block   = store_tensor(&j->store, SLAB_IO, "batch", DT_U8, 1, &bytes);
    j->sample0 = store_view_as(&j->store, j->block, "sample0", 0, DT_I64, 1, &one);
    for (int i = 0; i < n; i++) {
        int64_t dim[4] = { j->fields.B };
        for (int k = 0; k < row[i].ndim; k++) dim[k + 1] = row[i].dim[k];
        j->field[i] = store_view_as(&j->store, j->block, row[i].name, j->fields.offset[i], row[i].dtype,
                                    row[i].ndim + 1, dim);
    }
}

Tensor *job_declare_state(Job *j, const char *name, DType dtype, int ndim, const int64_t *dim, int is_kept)
{
    Tensor *t = store_tensor(&j->store, SLAB_STATE, name, dtype, ndim, dim);
    if (is_kept) {
        CHECK(j->n_kept < JOB_KEPT, "raise JOB_KEPT");
        j->kept_in_model[j->n_kept] = is_kept == 2;
        j->kept[j->n_kept++]        = t;
    }
    return t;
}

/* ---- recording ---------------------------------------------------------------------------------------- */

/* cuBLASLt's GELU epilogue works on the unrounded product, and a slope that is kept is rounded. So on a
 * backend that picks by time these two fusions change bits, and a deterministic run does without them: its
 * recomputation levels must agree. */
RecipeOpt job_lower_options(const Recipe *r, const DevVt *vt)
{
    RecipeOpt opt = r->opt;
    if (r->deterministic && vt->hints->times) opt.linear_act = opt.act_slope = 0;
    return opt;
}

int job_first_scale(const Job *j)
{
    double given = j->recipe.optim.loss_scale;
    if (given == 0) given = j->choice.compute == DT_F16 ? 65536 : 1;
    return MIN((int)lround(log2(given)), SCALE_EXP_MAX);
}

OptimOptions job_optim_options(const Job *j)
{
    double spike_factor = j->task->spikes ? j->recipe.spike_factor : 0;
    return (OptimOptions){ .optim        = &j->recipe.optim,
                           .spike_factor = spike_factor,
                           .compute      = j->choice.compute,
                           .scales       = job_first_scale(j) > 0,
                           .rank         = j->choice.rank,
                           .world        = j->choice.world,
                           .dynamic      = j->recipe.fp8.scaling == FP8_DYNAMIC };
}

Prog *job_begin(Job *j, const char *name)
{
    CHECK(j->n_prog < JOB_PROGS, "raise JOB_PROGS");
    Prog *p              = prog_begin(name, &j->store);
    j->prog[j->n_prog++] = p; /* from now on the job frees it */
    return p;
}

void job_differentiate(Job *j, Prog *p)
{
    RecomputeLevel *level = ARENA_ARRAY(&j->store.arena, RecomputeLevel, MAX(j->n_block, 1));
    for (int i = 0; i < j->n_block; i++) level[i] = j->choice.level;
    prog_differentiate(p, level, j->n_block, j->state);
    prog_hoist_chunks(p);
    const RecipeFp8 *f = &j->recipe.fp8;
    if (j->choice.fp8)
        prog_quantise(p, &(Fp8Option){ .dynamic       = f->scaling == FP8_DYNAMIC,
                                       .fast_forward  = f->fast != FP8_FAST_NONE,
                                       .fast_backward = f->fast == FP8_FAST_ALL });
}

static void add_reductions(Job *j, Prog *p)
{
    for (int k = 0; k < j->n_table; k++) {
        for (int r = 0; r < REGION_TRAINED; r++) {
            Tensor *grad = j->table[k]->flat[COL_GRAD][r];
            if (grad) prog_add_reductions(p, grad, BUCKET_BYTES);
        }
    }
    prog_add_reductions(p, j->sums, BUCKET_BYTES);
}

int job_end(Job *j, Prog *p, int sums)
{
    RecipeOpt opt = job_lower_options(&j->recipe, j->vt);
    CHECK(j->prog[j->n_prog - 1] == p, "programs are recorded one after the other");
    prog_lower(p, &opt, j->vt);
    if (sums && j->choice.world > 1) add_reductions(j, p);
    prog_plan(p);
    store_fit_act(&j->store, prog_stats(p).act_bytes);
    if (j->vt->scratch_bytes && prog_n_op(p) > 0)
        store_fit_scratch(&j->store,
                          j->vt->scratch_bytes(prog_op(p, 0), prog_n_op(p), (int)j->recipe.threads));
    return j->n_prog - 1;
}

/* ---- schedules ---------------------------------------------------------------------------------------- */

void schedule_add(Schedule *s, ScheduleRow row)
{
    CHECK(s->n < SCHEDULE_ROWS && row.depth >= 0 && row.depth < SCHEDULE_DEPTH, "row %s", row.name);
    CHECK(s->n == 0 ? row.depth == 0 : row.depth <= s->row[s->n - 1].depth + 1, "%s belongs to no row",
          row.name);
    s->row[s->n++] = row;
}

void job_schedule_step(Job *j, int micro, int micro_last, int update)
{
    int64_t n = job_micro_per_step(j);
    if (micro_last < 0) {
        schedule_add(&j->step, (ScheduleRow){ .name = "micro", .times = n, .prog = micro, .feeds = 1 });
    } else {
        schedule_add(&j->step, (ScheduleRow){ .name = "micro", .times = n - 1, .prog = micro, .feeds = 1 });
        schedule_add(
            &j->step,
            (ScheduleRow){ .name = "last micro", .times = 1, .prog = micro_last, .feeds = 1, .sums = 1 });
    }
    schedule_add(&j->step, (ScheduleRow){ .name = "update", .times = 1, .prog = update });
}

void schedule_each(const Schedule *s, void (*f)(void *ctx, const ScheduleRow *row, double times), void *ctx)
{
    double times[SCHEDULE_DEPTH + 1] = { 1 }; /* of the row at each depth, over the whole schedule */
    for (int i = 0; i < s->n; i++) {
        const ScheduleRow *row = &s->row[i];
        times[row->depth + 1]  = times[row->depth] * (double)row->times;
        if (row->prog >= 0) f(ctx, row, times[row->depth + 1]);
    }
}

/* ---- facts -------------------------------------------------------------------------------------------- */

int64_t job_micro_per_step(const Job *j)
{
    int64_t per_rank = j->recipe.step_samples / MAX(j->choice.world, 1);
    return MAX(1, per_rank / j->choice.micro_batch);
}

int64_t job_units_per_step(const Job *j) { return j->recipe.step_samples * j->task->units(&j->recipe); }

const char *job_unit_in_full(const Job *j)
{
    return j->task->unit_in_full ? j->task->unit_in_full : j->task->unit;
}

int64_t job_param_count(const Job *j)
{
    int64_t n = 0;
    for (int i = 0; i < j->n_table; i++) n += param_count(j->table[i]);
    return n;
}

int job_trains(const Job *j) { return (j->parts & JOB_TRAIN) != 0; }

int job_leaves(const Job *j) { return j->may_leave && signals_pending(); }

int job_has_host_rows(const Job *j)
{
    for (int i = 0; i < j->step.n; i++)
        if (j->step.row[i].host) return 1;
    return 0;
}

/* ---- host access -------------------------------------------------------------------------------------- */

int job_upload(Job *j, const Tensor *t, const void *src, size_t size_bytes)
{
    TRY(j->dev->vt->upload(j->dev, LANE_COMPUTE, t->data, src, size_bytes));
    return j->dev->vt->sync(j->dev);
}

int job_upload_rope(Job *j, const Net *net)
{
    if (!net->rope_table) return 0;
    size_t n    = tensor_bytes(net->rope_table);
    float *rope = mem_alloc(n);
    if (!rope) return err_sys("memory for the rope table");
    net_fill_rope(net, rope);
    int rc = job_upload(j, net->rope_table, rope, n);
    free(rope);
    return rc;
}

int job_download(Job *j, const Tensor *t, void *dst, size_t size_bytes)
{
    TRY(j->dev->vt->download(j->dev, LANE_COMPUTE, dst, t->data, size_bytes));
    return j->dev->vt->sync(j->dev);
}

/* Frozen weights are kept in a narrow type. Blocks stay in the caches from conversion to upload, and their
 * pages are new once. */
static int write_narrow(Job *j, const Tensor *t, const float *in, int64_t n)
{
    enum { BLOCK = 1 << 22 };
    uint16_t *half = mem_alloc(sizeof *half * (size_t)MIN(n, BLOCK));
    int       rc   = half ? 0 : err_sys("memory for weights");
    for (int64_t at = 0; at < n && rc == 0; at += BLOCK) {
        int64_t m    = MIN(BLOCK, n - at);
        Tensor  part = *t;
        part.data    = (uint16_t *)t->data + at;
#pragma omp parallel for
        for (int64_t i = 0; i < m; i++) number_put(half, t->dtype, i, in[at + i]);
        rc = job_upload(j, &part, half, sizeof *half * (size_t)m);
    }
    free(half);
    return rc;
}

static int read_narrow(Job *j, const Tensor *t, float *out, int64_t n)
{
    uint16_t *half = mem_alloc(sizeof *half * (size_t)n);
    if (!half) return err_sys("memory for weights");
    int rc = job_download(j, t, half, sizeof *half * (size_t)n);
    if (rc < 0) n = 0;
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) out[i] = number_get(half, t->dtype, i);
    free(half);
    return rc;
}

int job_write_param(Job *j, const Param *p, Column c, const float *in)
{
    int64_t n = p->rows * p->cols;
    if (p->col[c]->dtype != DT_F32) return write_narrow(j, p->col[c], in, n);
    return job_upload(j, p->col[c], in, sizeof *in * (size_t)n);
}

int job_read_param(Job *j, const Param *p, Column c, float *out)
{
    int64_t n = p->rows * p->cols;
    if (p->col[c]->dtype != DT_F32) return read_narrow(j, p->col[c], out, n);
    return job_download(j, p->col[c], out, sizeof *out * (size_t)n);
}

static int write_zeros(Job *j, const Tensor *t)
{
    char *zero = mem_zeroed(1, tensor_bytes(t));
    if (!zero) return err_sys("memory for %s", t->name);
    int rc = job_upload(j, t, zero, tensor_bytes(t));
    free(zero);
    return rc;
}

int job_forget_scales(Job *j)
{
    for (int k = 0; k < j->n_table; k++) {
        const ParamTable *t = j->table[k];
        if (t->sites) TRY(write_zeros(j, t->sites));
        if (t->grad_sites) TRY(write_zeros(j, t->grad_sites));
    }
    return 0;
}

int job_refresh_copies(Job *j)
{
    TRY(prog_run(j->prog[j->copies], j->dev));
    return j->dev->vt->sync(j->dev);
}

int job_write_state(Job *j, const StepState *s) { return job_upload(j, j->state, s, sizeof *s); }

int job_read_state(Job *j, StepState *s) { return job_download(j, j->state, s, sizeof *s); }
