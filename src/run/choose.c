#include "run/choose.h"

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "conf/relate.h"

#include <math.h>
#include <string.h>

/* ---- precision ---------------------------------------------------------------------------------------- */

/* Volta and Turing have matrix units for fp16 alone. */
static void choose_auto(Choice *c, const ChooseFor *w, int has_bf16)
{
    int k      = w->capability;
    c->compute = !has_bf16 ? DT_F32 : k >= 80 ? DT_BF16 : k >= 70 ? DT_F16 : DT_F32;
    if (!has_bf16) {
        snprintf(c->why, sizeof c->why, "fp32: the CPU backend computes in fp32");
    } else if (k >= 80) {
        snprintf(c->why, sizeof c->why, "bf16: compute capability %d.%d has bf16 matrix units", k / 10,
                 k % 10);
    } else {
        snprintf(c->why, sizeof c->why, "%s: compute capability %d.%d has %s", k >= 70 ? "fp16" : "fp32",
                 k / 10, k % 10, k >= 70 ? "fp16 matrix units, but none for bf16" : "no matrix units");
    }
}

/* The CPU multiplies fp8 numbers in fp32: the definition, and slow. */
static int choose_fp8(Choice *c, const ChooseFor *w)
{
    int k      = w->capability;
    c->compute = w->vt->hints->dtypes & (1u << DT_BF16) ? DT_BF16 : DT_F32;
    c->fp8     = 1;
    if (k > 0 && k < 89) {
        return recipe_blame(w->recipe, "precision",
                            "compute capability %d.%d has no fp8 (8.9 and up have it)", k / 10, k % 10);
    }
    snprintf(c->why, sizeof c->why, "fp8, as asked; %s between products",
             c->compute == DT_BF16 ? "bf16" : "the CPU computes in fp32");
    return 0;
}

static int choose_dtype(Choice *c, const ChooseFor *w)
{
    const Recipe *r        = w->recipe;
    int           has_bf16 = (w->vt->hints->dtypes & (1u << DT_BF16)) != 0, k = w->capability;
    switch (r->precision) {
    case PRECISION_FP32:
        c->compute = DT_F32;
        snprintf(c->why, sizeof c->why, "fp32, as asked");
        return 0;
    case PRECISION_TF32:
        c->compute = DT_F32;
        snprintf(c->why, sizeof c->why, "tf32, as asked");
        break;
    case PRECISION_BF16:
        c->compute = DT_BF16;
        snprintf(c->why, sizeof c->why, "bf16, as asked");
        break;
    case PRECISION_FP16:
        c->compute = DT_F16;
        snprintf(c->why, sizeof c->why, "fp16, as asked");
        if (w->vt->hints->dtypes & (1u << DT_F16)) return 0;
        return recipe_blame(r, "precision", "fp16 needs a GPU; the CPU backend computes in fp32");
    case PRECISION_FP8: return choose_fp8(c, w);
    default: choose_auto(c, w, has_bf16); return 0;
    }
    if (!has_bf16) {
        return recipe_blame(r, "precision", "%s needs a GPU; the CPU backend computes in fp32",
                            r->precision == PRECISION_BF16 ? "bf16" : "tf32");
    }
    if (k > 0 && k < 80) {
        return recipe_blame(r, "precision", "compute capability %d.%d has neither bf16 nor tf32", k / 10,
                            k % 10);
    }
    return 0;
}

/* What a recipe may say and no plan can give is refused: ignoring it would train something else. */
static int check_available(const ChooseFor *w)
{
    const Recipe *r = w->recipe;
    if (r->give_way[0] && r->optim.kind == OPTIM_MUON)
        return recipe_blame(r, "give_way", "is for AdamW: what Muon keeps stays in fp32");
    return w->task->check ? w->task->check(r) : 0;
}

/* ---- candidates --------------------------------------------------------------------------------------- */

/* What every candidate begins with; try_larger_chunks() comes after. */
static int64_t head_rows(const ChooseFor *w, DType compute, int64_t samples)
{
    int64_t rows = samples * w->task->rows(w->recipe);
    if (!w->task->chunk_rows) return 0;
    if (!w->recipe->opt.chunk_head) return rows;
    return w->task->chunk_rows(w->recipe, compute, rows, w->vt->hints->chunk_bytes);
}

typedef struct {
    const Job     *job;
    const Machine *machine;
    StepCost       cost;
} CostWalk;

static void add_cost(void *ctx, const ScheduleRow *row, double times)
{
    CostWalk      *w     = ctx;
    StepCost      *c     = &w->cost;
    const Prog    *p     = w->job->prog[row->prog];
    const Machine *m     = w->machine;
    MachineArith   arith = job_arith(w->job);
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op   *op = prog_op(p, i);
        MachineWork x  = op_work(op->kind, &op->args, arith);
        c->flops += times * x.flops;
        c->bytes += times * x.bytes;
        c->bytes_s += times * machine_bytes_time(m, &x);
        c->flops_s += times * machine_flops_time(m, &x);
        c->step_s += times * machine_op_time(m, &x);
    }
}

StepCost choose_step_cost(const Job *j, const Machine *m)
{
    CostWalk w = { .job = j, .machine = m };
    schedule_each(&j->step, add_cost, &w);
    return w.cost;
}

/* Seconds for the samples of a step, for ranking: a job that only evaluates walks its eval schedule for
 * them. */
static double rank_s(const Job *j, const Machine *m)
{
    CostWalk w = { .job = j, .machine = m };
    if (job_trains(j)) return choose_step_cost(j, m).step_s;
    schedule_each(&j->eval, add_cost, &w);
    return w.cost.step_s * (double)job_micro_per_step(j);
}

typedef struct {
    const Job *job;
    double     flops;
} FlopWalk;

static void add_flops(void *ctx, const ScheduleRow *row, double times)
{
    FlopWalk *w = ctx;
    w->flops += times * prog_stats(w->job->prog[row->prog]).flops;
}

double choose_step_flops(const Job *j)
{
    FlopWalk w = { .job = j };
    schedule_each(&j->step, add_flops, &w);
    return w.flops * MAX(j->choice.world, 1);
}

static int try_candidate(Choice *c, const ChooseFor *w, const JobChoice *choice, const Machine *m)
{
    Job *j = NULL;
    TRY(build_create(&j, w->task, w->recipe, choice, w->parts, w->vt));
    Candidate *row     = &c->row[c->n++];
    row->choice        = *choice;
    row->total_bytes   = store_total_bytes(&j->store);
    row->act_bytes     = j->store.slab_bytes[SLAB_ACT];
    row->scratch_bytes = j->store.slab_bytes[SLAB_SCRATCH];
    row->step_s        = rank_s(j, m);
    row->fits          = row->total_bytes <= c->budget_bytes;
    build_destroy(j);
    return 0;
}

static int64_t divisor_up_to(int64_t n, int64_t most)
{
    while (n % most != 0) most--;
    return most;
}

/* Divisors of the step's samples, each about twice the one before, and the step itself; all multiples of what
 * must stay together. */
static int micro_candidates(const ChooseFor *w, int64_t *out, int cap)
{
    const Recipe *r    = w->recipe;
    int64_t       unit = w->task->together ? w->task->together(r) : 1;
    int64_t       seqs = (w->task->update_samples ? w->task->update_samples(r) : r->step_samples) / unit;
    int64_t       most = w->vt->hints->most_rows / w->task->rows(r) / unit;
    int           n    = 0;
    if (r->micro_batch > 0) {
        out[n++] = r->micro_batch;
        return n;
    }
    for (int64_t b = 1; b == 1 || (b <= MIN(most, seqs) && n < cap - 1); b *= 2) {
        int64_t divisor = divisor_up_to(seqs, b);
        if (n == 0 || divisor * unit != out[n - 1]) out[n++] = divisor * unit;
    }
    if (seqs <= most && seqs * unit != out[n - 1]) out[n++] = seqs * unit;
    return n;
}

/* Of those as fast as the fastest, give or take CHOOSE_TIE: least recomputation, then fewest bytes. */
static int pick(const Choice *c)
{
    double fastest = INFINITY;
    int    best    = -1;
    for (int i = 0; i < c->n; i++) {
        if (c->row[i].fits) fastest = MIN(fastest, c->row[i].step_s);
    }
    for (int i = 0; i < c->n; i++) {
        const Candidate *a = &c->row[i], *b = &c->row[MAX(best, 0)];
        if (!a->fits || a->step_s > CHOOSE_TIE * fastest) continue;
        int is_less = a->choice.level != b->choice.level ? a->choice.level < b->choice.level
                                                         : a->total_bytes < b->total_bytes;
        if (best < 0 || is_less) best = i;
    }
    return best;
}

/* Bytes of logits where memory is left: 10 GB hold those of 32,768 rows of 151,936 classes whole; a twelfth
 * of the budget leaves a small card most of its memory; half of what is left, because products are timed on
 * scratch of their own size beside the plan. */
static double larger_logits_bytes(const Choice *c)
{
    size_t left = c->budget_bytes - c->row[c->best].total_bytes;
    return MIN(10e9, MIN((double)c->budget_bytes / 12, (double)left / 2));
}

/* The picked candidate once more with larger chunks of the head, taken if it is faster: each chunk reads and
 * writes the whole f32 gradient of the head's weight, and larger products run at a higher rate
 * (docs/log.md). After pick(), so that no logits ever cost a larger micro-batch or bring
 * recomputation. On a CPU chunks stay in cache. */
static int try_larger_chunks(Choice *c, const ChooseFor *w, const Machine *m)
{
    const Recipe *r      = w->recipe;
    JobChoice     choice = c->row[c->best].choice;
    int64_t       rows = choice.micro_batch * w->task->rows(r), before = choice.head_rows;
    if (!w->vt->hints->grows_chunks || !r->opt.chunk_head || !w->task->chunk_rows || c->n >= CHOOSE_MAX)
        return 0;
    choice.head_rows = w->task->chunk_rows(r, c->compute, rows, larger_logits_bytes(c));
    if (choice.head_rows <= before) return 0;
    TRY(try_candidate(c, w, &choice, m));
    const Candidate *larger = &c->row[c->n - 1];
    if (larger->fits && larger->step_s < c->row[c->best].step_s) c->best = c->n - 1;
    return 0;
}

/* ---- nothing fits ------------------------------------------------------------------------------------- */

typedef struct {
    Slab        slab; /* the largest */
    size_t      slab_bytes;
    const char *half; /* the first key of the task's whose half is enough, or NULL */
} Lack;

/* The slabs of one candidate, one line each. */
static int list_slabs(const ChooseFor *w, const Candidate *k, char *buf, size_t n, Lack *out)
{
    Job *j = NULL;
    char bytes[32];
    TRY(build_create(&j, w->task, w->recipe, &k->choice, w->parts, w->vt));
    for (int i = 0; i < SLAB_COUNT; i++) {
        size_t size = j->store.slab_bytes[i];
        if (size > out->slab_bytes) {
            out->slab       = (Slab)i;
            out->slab_bytes = size;
        }
        if (size > 0)
            str_append(buf, n, "  %-16s %16zu  %s\n", slab_name((Slab)i), size,
                       str_bytes(bytes, sizeof bytes, (double)size));
    }
    build_destroy(j);
    return 0;
}

/* Bytes that the candidate needs with half of a key; 0 when half of it does not go with the other keys. */
static size_t bytes_with_half(const ChooseFor *w, const Candidate *k, const char *key)
{
    Recipe           half  = *w->recipe;
    Job             *j     = NULL;
    const SchemaRow *row   = schema_row(&half, schema_find(&half, key));
    int64_t         *x     = (int64_t *)((char *)&half + row->offset);
    size_t           total = 0;
    *x /= 2;
    int rc = *x > 0 ? relate_resolve(&half, ".", 0) : -1;
    if (rc == 0) rc = build_create(&j, w->task, &half, &k->choice, w->parts, w->vt);
    if (rc == 0) total = store_total_bytes(&j->store);
    if (rc < 0) err_clear();
    build_destroy(j);
    return total;
}

/* What else could give way, in the task's order, one line each; the first key whose half is enough, or
 * NULL. */
static const char *list_halves(const ChooseFor *w, const Candidate *k, const Choice *c, char *buf, size_t n)
{
    const char *enough = NULL;
    char        bytes[32];
    for (const char *const *key = w->task->halves; key && *key; key++) {
        size_t total = bytes_with_half(w, k, *key);
        if (total == 0 || total >= k->total_bytes) continue;
        str_append(buf, n, "half of %s saves %s\n", *key,
                   str_bytes(bytes, sizeof bytes, (double)(k->total_bytes - total)));
        if (!enough && total <= c->budget_bytes) enough = *key;
    }
    return enough;
}

/* What would really help, in keys of the recipe. limited: there is room enough, but for memory_limit. */
static void advise(const ChooseFor *w, const Candidate *k, const Choice *c, int limited, const char *half,
                   char *buf, size_t n)
{
    const Recipe *r    = w->recipe;
    const char   *what = r->micro_batch > 1 ? "a smaller micro_batch" : w->task->lighter_sample;
    if (r->recompute != RECOMPUTE_AUTO && r->recompute != RECOMPUTE_BLOCK) what = "recompute: auto";
    if (k->total_bytes - k->act_bytes > c->budget_bytes) what = w->task->lighter_net;
    if (limited) what = "a larger memory_limit";
    if (k->total_bytes - k->scratch_bytes <= c->budget_bytes) { /* each thread has scratch of its own */
        str_copy(buf, n, limited ? "fewer threads or a larger memory_limit" : "fewer threads");
    } else if (half) {
        snprintf(buf, n, "%s%shalf of %s", limited ? what : "", limited ? " or " : "", half);
    } else {
        str_copy(buf, n, what);
    }
}

/* The rest of what is known when nothing fits, for `brim plan`. */
static int explain(Choice *c, const ChooseFor *w, const Candidate *k, int by_limit, Lack *out)
{
    char *text = c->refusal, have[32], need[32], cards[64];
    snprintf(text, sizeof c->refusal, "smallest    micro-batch %lld, recompute %s: %s of %s%s\n",
             (long long)k->choice.micro_batch, recompute_level_name(k->choice.level),
             str_bytes(need, sizeof need, (double)k->total_bytes),
             str_bytes(have, sizeof have, (double)c->budget_bytes), by_limit ? " (memory_limit)" : "");
    TRY(list_slabs(w, k, text, sizeof c->refusal, out));
    out->half = list_halves(w, k, c, text, sizeof c->refusal);
    if (w->vt->hints->is_late && !by_limit && machine_list_fitting(cards, sizeof cards, k->total_bytes) > 0)
        str_append(text, sizeof c->refusal, "cards on which it fits: %s\n", cards);
    return 0;
}

/* One line: the largest part, and the one change that would help. */
static int refuse_all(Choice *c, const ChooseFor *w, ChooseRoom room)
{
    const Candidate *k        = &c->row[0];
    int              by_limit = room.limit_bytes < room.room_bytes;
    Lack             lack     = { 0 };
    char             have[32], need[32], most[32], help[160];
    for (int i = 1; i < c->n; i++) {
        if (c->row[i].total_bytes < k->total_bytes) k = &c->row[i];
    }
    TRY(explain(c, w, k, by_limit, &lack));
    advise(w, k, c, k->total_bytes <= room.room_bytes, lack.half, help, sizeof help);
    return err_user("this model does not fit: it needs %s (%s %s) and %s are available%s; %s would help "
                    "(brim plan shows all)",
                    str_bytes(need, sizeof need, (double)k->total_bytes), slab_name(lack.slab),
                    str_bytes(most, sizeof most, (double)lack.slab_bytes),
                    str_bytes(have, sizeof have, (double)c->budget_bytes), by_limit ? " (memory_limit)" : "",
                    help);
}

/* What the recipe allows to give way and this precision has, as GIVE_* bits: weights are alone in bf16 only
 * where products read bf16. */
static unsigned may_give(const Recipe *r, DType compute)
{
    char        item[32];
    unsigned    gives = 0;
    const char *list  = r->give_way;
    while (str_list_next(&list, item, sizeof item) > 0)
        gives |= strcmp(item, "moments") == 0 ? GIVE_MOMENTS : GIVE_WEIGHTS;
    return compute == DT_BF16 ? gives : gives & ~(unsigned)GIVE_WEIGHTS;
}

const char *choose_gives(unsigned gives)
{
    return gives == GIVE_MOMENTS ? "moments" : gives == GIVE_WEIGHTS ? "weights" : "moments, weights";
}

/* ---- the choice --------------------------------------------------------------------------------------- */

/* The least recomputation that the recipe allows. */
static RecomputeLevel least_level(const Recipe *r)
{
    return r->recompute == RECOMPUTE_AUTO ? LEVEL_NONE : (RecomputeLevel)(r->recompute - RECOMPUTE_NONE);
}

/* Micro-batches from small to large at each level of recomputation. */
static int try_candidates(Choice *c, const ChooseFor *what, const Machine *m, unsigned gives)
{
    const Recipe *r = what->recipe;
    int64_t       micro[24];
    int           n_micro = micro_candidates(what, micro, ARRAY_LEN(micro)), n_fit = 0;
    for (int level = LEVEL_NONE; level <= LEVEL_BLOCK; level++) {
        if (r->recompute != RECOMPUTE_AUTO && level != (int)r->recompute - RECOMPUTE_NONE) continue;
        /* Recomputation only ever costs time: a micro-batch that fits with less is not looked at again. */
        for (int i = n_fit; i < n_micro && c->n < CHOOSE_MAX; i++) {
            JobChoice choice = { .micro_batch = micro[i],
                                 .level       = (RecomputeLevel)level,
                                 .compute     = c->compute,
                                 .gives       = gives,
                                 .fp8         = c->fp8 };
            choice.head_rows = head_rows(what, c->compute, micro[i]);
            TRY(try_candidate(c, what, &choice, m));
            if (!c->row[c->n - 1].fits) break; /* a larger micro-batch needs more */
            n_fit = i + 1;
        }
    }
    return 0;
}

int choose_plan(Choice *c, const ChooseFor *what, const Machine *m, ChooseRoom room)
{
    const Recipe *r = what->recipe;
    memset(c, 0, sizeof *c);
    c->budget_bytes = MIN(room.room_bytes, room.limit_bytes);
    c->best         = -1;
    TRY(check_available(what));
    TRY(choose_dtype(c, what));
    unsigned gives = may_give(r, c->compute);
    TRY(try_candidates(c, what, m, 0));
    c->best = pick(c);
    /* Nothing fits, or only because activations are computed again: now all that may give way does. */
    if (gives && (c->best < 0 || c->row[c->best].choice.level > least_level(r))) {
        TRY(try_candidates(c, what, m, gives));
        c->best = pick(c);
    }
    return c->best >= 0 ? try_larger_chunks(c, what, m) : refuse_all(c, what, room);
}

void choose_print(const Choice *c, const Job *j, FILE *out)
{
    char   bytes[32], rate[32];
    double units = (double)job_units_per_step(j) / MAX(j->choice.world, 1);
    fprintf(out, "precision   %s\n", c->why);
    if (j->choice.gives)
        fprintf(out, "gives way   %s: kept in bf16 alone, rounded at random\n",
                choose_gives(j->choice.gives));
    fprintf(out, "budget      %s\n", str_bytes(bytes, sizeof bytes, (double)c->budget_bytes));
    fprintf(out, "\n  micro-batch  recompute  head rows       bytes    predicted\n");
    for (int i = 0; i < c->n; i++) {
        const Candidate *k = &c->row[i];
        fprintf(out, "%s %11lld  %-9s %10lld %11s  %7s/s%s\n", i == c->best ? "->" : "  ",
                (long long)k->choice.micro_batch, recompute_level_name(k->choice.level),
                (long long)k->choice.head_rows, str_bytes(bytes, sizeof bytes, (double)k->total_bytes),
                str_count(rate, sizeof rate, units / k->step_s), k->fits ? "" : "  does not fit");
    }
}

void choose_print_cost(const Job *j, const Machine *m, FILE *out)
{
    StepCost c = choose_step_cost(j, m);
    int      n = MAX(j->choice.world, 1);
    char     rate[32];
    fprintf(out, "a step      %.4g TFLOP, %.1f ms of arithmetic; %.4g GB moved, %.1f ms of traffic\n",
            c.flops * 1e-12, c.flops_s * 1e3, c.bytes * 1e-9, c.bytes_s * 1e3);
    fprintf(out, "predicted   %.1f ms a step, %s %s/s", c.step_s * 1e3,
            str_count(rate, sizeof rate, (double)job_units_per_step(j) / c.step_s), j->task->unit);
    if (m->peak_flops > 0)
        fprintf(out, ", MFU %.1f %%", 100 * choose_step_flops(j) / n / c.step_s / m->peak_flops);
    fprintf(out, "%s\n", m->peak_flops <= 0 ? " (roughly: this device's rates were not measured)" : "");
    fprintf(out, "the run     %lld step%s, about %s, evaluations and checkpoints not counted",
            (long long)j->recipe.steps, str_plural(j->recipe.steps),
            str_duration(rate, sizeof rate, (double)j->recipe.steps * c.step_s));
    if (j->recipe.budget_s > 0)
        fprintf(out, "; budget_s ends it after %s", str_duration(rate, sizeof rate, j->recipe.budget_s));
    fprintf(out, "\n");
}

void choose_print_json(const Choice *c, const Job *j, const Machine *m, const char *machine, FILE *out)
{
    StepCost cost = choose_step_cost(j, m);
    int      n    = MAX(j->choice.world, 1);
    JsonOut  o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "recipe", j->recipe.run);
    json_out_str(&o, "device", machine);
    json_out_int(&o, "parameters", job_param_count(j));
    json_out_str(&o, "unit", j->task->unit);
    json_out_int(&o, "step_units", job_units_per_step(j));
    json_out_int(&o, "micro_batch", j->choice.micro_batch);
    json_out_str(&o, "recompute", recompute_level_name(j->choice.level));
    json_out_str(&o, "precision", c->why);
    json_out_int(&o, "planned_bytes", (int64_t)store_total_bytes(&j->store));
    json_out_int(&o, "budget_bytes", (int64_t)c->budget_bytes);
    json_out_num(&o, "step_flops", cost.flops);
    json_out_num(&o, "step_bytes", cost.bytes);
    json_out_num(&o, "step_ms", cost.step_s * 1e3);
    json_out_num(&o, "per_s", (double)job_units_per_step(j) / cost.step_s);
    json_out_num(&o, "mfu", m->peak_flops > 0 ? choose_step_flops(j) / n / cost.step_s / m->peak_flops : NAN);
    json_out_int(&o, "steps", j->recipe.steps);
    json_out_num(&o, "run_s", (double)j->recipe.steps * cost.step_s);
    json_out_end(&o);
}
