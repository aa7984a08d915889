#include "run/choose.h"

#include "base/err.h"
#include "base/str.h"
#include "run/limit.h"

#include <math.h>
#include <string.h>

const char *recompute_name(RecomputeLevel level)
{
    static const char *const names[] = {
        [LEVEL_NONE] = "none", [LEVEL_CHEAP] = "cheap", [LEVEL_BLOCK] = "block"
    };
    return names[level];
}

/* ---- precision --------------------------------------------------------------------------------------------- */

static int choose_dtype(Choice *c, const Recipe *r, const DevVt *vt, int capability)
{
    int cuda = vt->kind == DEV_CUDA;
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
    case PRECISION_FP8:
        return recipe_blame(r, "precision", "%s is not available yet (use bf16)",
                            r->precision == PRECISION_FP16 ? "fp16" : "fp8");
    default:
        c->compute = cuda && capability >= 80 ? DT_BF16 : DT_F32;
        if (!cuda) {
            snprintf(c->why, sizeof c->why, "fp32: the CPU backend computes in fp32");
        } else if (capability >= 80) {
            snprintf(c->why, sizeof c->why, "bf16: compute capability %d.%d has bf16 matrix units",
                     capability / 10, capability % 10);
        } else {
            snprintf(c->why, sizeof c->why, "fp32: compute capability %d.%d has no bf16 matrix units",
                     capability / 10, capability % 10);
        }
        return 0;
    }
    if (!cuda && vt->kind != DEV_NULL) {
        return recipe_blame(r, "precision", "%s needs a GPU; the CPU backend computes in fp32",
                            r->precision == PRECISION_BF16 ? "bf16" : "tf32");
    }
    if (cuda && capability < 80) {
        return recipe_blame(r, "precision", "compute capability %d.%d has neither bf16 nor tf32",
                            capability / 10, capability % 10);
    }
    return 0;
}

/* What a recipe may say and no plan can give is refused: ignoring it would train something else. */
static int check_available(const Recipe *r)
{
    if (r->model.mask == MASKING_PREFIX) {
        return recipe_blame(r, "model.mask",
                            "prefix is not available yet: no kind of data says where a prefix ends");
    }
    if (r->give_way[0])
        return recipe_blame(r, "give_way", "is not available yet: moments and gradients are kept in fp32");
    return 0;
}

/* ---- candidates -------------------------------------------------------------------------------------------- */

/* Rows of a chunk whose logits take at most so many bytes: as few chunks as that allows, all about equal, in multiples of
 * 128 rows. Each chunk is some ops in the list: more than MOST_CHUNKS would make it long for nothing. */
enum { MOST_CHUNKS = 256 };
static int64_t chunk_rows(const Recipe *r, DType compute, int64_t rows, double bytes)
{
    int64_t n      = (int64_t)(bytes / ((double)net_vocab_stored(&r->model) * (double)dtype_bytes(compute)));
    n              = MAX(MAX(n / 128 * 128, 128), rows / MOST_CHUNKS);
    int64_t chunks = (rows + n - 1) / n;
    return MIN(rows, ((rows + chunks - 1) / chunks + 127) / 128 * 128);
}

/* What every candidate begins with: on a GPU about a gigabyte of logits keeps the product near its full rate while the rest
 * of the memory stays free for the micro-batch (try_larger_chunks() comes after); on a CPU the chunk should stay in cache. */
static int64_t head_rows(const Recipe *r, DevKind kind, DType compute, int64_t rows)
{
    if (!r->opt.chunk_head) return rows;
    return chunk_rows(r, compute, rows, kind == DEV_CPU ? 4e6 : 1.1e9);
}

static void add_cost(StepCost *c, const Prog *p, double times, const Machine *m, int f32)
{
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op   *op    = prog_op(p, i);
        double      flops = op_flops(op->kind, &op->args), bytes = op_bytes(op->kind, &op->args);
        MachineUnit unit = flops > 0 ? limit_unit(op->kind) : UNIT_MEMORY;
        c->flops += times * flops;
        c->bytes += times * bytes;
        c->bytes_s += times * bytes / m->rate[UNIT_MEMORY];
        if (flops > 0) c->flops_s += times * flops / (m->rate[unit] * (f32 ? m->f32_share : 1.0));
        c->step_s += times * machine_op_time(m, unit, f32, flops, bytes);
    }
}

StepCost choose_step_cost(const Build *b, const Machine *m)
{
    StepCost c   = { 0 };
    int      f32 = b->choice.compute == DT_F32;
    add_cost(&c, b->micro, (double)build_micro_per_step(b, 1), m, f32);
    add_cost(&c, b->update, 1, m, f32);
    return c;
}

static int try_candidate(Choice *c, const Recipe *r, const BuildChoice *choice, const DevVt *vt,
                         const Machine *m, unsigned parts)
{
    Build *b = NULL;
    TRY(build_create(&b, r, choice, parts, vt));
    Candidate *row     = &c->row[c->n++];
    row->choice        = *choice;
    row->total_bytes   = store_total_bytes(&b->store);
    row->act_bytes     = b->store.slab_bytes[SLAB_ACT];
    row->scratch_bytes = b->store.slab_bytes[SLAB_SCRATCH];
    row->step_s        = parts & BUILD_TRAIN ? choose_step_cost(b, m).step_s : 0;
    row->fits          = row->total_bytes <= c->budget_bytes;
    build_destroy(b);
    return 0;
}

/* On a CPU a step of a few thousand tokens at a time already fills every core; larger ones only leave the caches. */
static int64_t tokens_worth_trying(DevKind kind) { return kind == DEV_CPU ? 8192 : 262144; }

static int64_t divisor_up_to(int64_t n, int64_t most)
{
    while (n % most != 0) most--;
    return most;
}

/* Divisors of the step's sequences, each about twice the one before, and the step itself. */
static int micro_candidates(const Recipe *r, DevKind kind, int64_t *out, int cap)
{
    int64_t seqs = r->step_tokens / r->model.context, most = tokens_worth_trying(kind) / r->model.context;
    int     n = 0;
    if (r->micro_batch > 0) {
        out[n++] = r->micro_batch;
        return n;
    }
    for (int64_t b = 1; b == 1 || (b <= MIN(most, seqs) && n < cap - 1); b *= 2) {
        int64_t divisor = divisor_up_to(seqs, b);
        if (n == 0 || divisor != out[n - 1]) out[n++] = divisor;
    }
    if (seqs <= most && seqs != out[n - 1]) out[n++] = seqs;
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

/* Bytes of logits where memory is left: 10 GB hold those of 32 x 1024 tokens of 151,936 kinds whole; a twelfth of the budget
 * leaves a small card most of its memory; half of what is left, because products are timed on scratch of their own size beside
 * the plan. */
static double larger_logits_bytes(const Choice *c)
{
    size_t left = c->budget_bytes - c->row[c->best].total_bytes;
    return MIN(10e9, MIN((double)c->budget_bytes / 12, (double)left / 2));
}

/* The picked candidate once more with larger chunks of the head, taken if it is faster: each chunk reads and writes the whole
 * f32 gradient of the head's weight, and larger products run at a higher rate (docs/performance.md). After pick(), so that no
 * logits ever cost a larger micro-batch or bring recomputation. On a CPU chunks stay in cache. */
static int try_larger_chunks(Choice *c, const Recipe *r, const DevVt *vt, const Machine *m, unsigned parts)
{
    BuildChoice choice = c->row[c->best].choice;
    int64_t     rows = choice.micro_batch * r->model.context, before = choice.head_rows;
    if (vt->kind != DEV_CUDA || !r->opt.chunk_head || c->n >= CHOOSE_MAX) return 0;
    choice.head_rows = chunk_rows(r, c->compute, rows, larger_logits_bytes(c));
    if (choice.head_rows <= before) return 0;
    TRY(try_candidate(c, r, &choice, vt, m, parts));
    const Candidate *larger = &c->row[c->n - 1];
    if (larger->fits && larger->step_s < c->row[c->best].step_s) c->best = c->n - 1;
    return 0;
}

/* ---- nothing fits ------------------------------------------------------------------------------------------ */

/* The slabs of one candidate, "activations 4.1 GiB, gradients ...". */
static int list_slabs(const Recipe *r, const Candidate *k, unsigned parts, const DevVt *vt, char *buf,
                      size_t n)
{
    Build *b = NULL;
    char   bytes[32];
    TRY(build_create(&b, r, &k->choice, parts, vt));
    buf[0] = '\0';
    for (int i = 0; i < SLAB_COUNT; i++) {
        if (b->store.slab_bytes[i] < k->total_bytes / 1000) continue;
        str_append(buf, n, "%s%s %s", buf[0] ? ", " : "", slab_name((Slab)i),
                   str_bytes(bytes, sizeof bytes, (double)b->store.slab_bytes[i]));
    }
    build_destroy(b);
    return 0;
}

/* Only what would really help. */
static void advise(const Recipe *r, const Candidate *k, ChooseRoom room, const DevVt *vt, char *buf, size_t n)
{
    char cards[64];
    int  limited = k->total_bytes <= room.room_bytes;
    if (k->total_bytes - k->scratch_bytes <= MIN(room.room_bytes, room.limit_bytes)) {
        str_copy(buf, n,
                 limited ? "fewer threads, which have scratch each, or a larger memory_limit would help"
                         : "fewer threads would help, each has scratch of its own");
        return;
    }
    if (limited) {
        str_copy(buf, n, "a larger memory_limit would help");
        return;
    }
    if (k->total_bytes - k->act_bytes > MIN(room.room_bytes, room.limit_bytes)) {
        str_copy(buf, n, "a smaller model.layers or model.width would help, activations are not the cause");
    } else if (r->recompute != RECOMPUTE_AUTO && r->recompute != RECOMPUTE_BLOCK) {
        str_copy(buf, n, "recompute: auto may help");
    } else if (r->micro_batch > 1) {
        str_copy(buf, n, "a smaller micro_batch would help");
    } else {
        str_copy(buf, n, "a smaller model.context would help, it is the activations that do not fit");
    }
    if (vt->kind != DEV_CUDA || room.limit_bytes < room.room_bytes) return;
    if (machine_list_fitting(cards, sizeof cards, k->total_bytes) > 0)
        str_append(buf, n, "; cards on which it fits: %s", cards);
}

static int refuse_all(const Choice *c, const Recipe *r, const DevVt *vt, ChooseRoom room, unsigned parts)
{
    const Candidate *k = &c->row[0];
    char             have[32], need[32], slabs[400], what[300];
    for (int i = 1; i < c->n; i++) {
        if (c->row[i].total_bytes < k->total_bytes) k = &c->row[i];
    }
    TRY(list_slabs(r, k, parts, vt, slabs, sizeof slabs));
    advise(r, k, room, vt, what, sizeof what);
    return err_user(
        "this model does not fit: the smallest plan (micro-batch %lld, recompute %s) needs %s and %s "
        "are available%s: %s (%s)",
        (long long)k->choice.micro_batch, recompute_name(k->choice.level),
        str_bytes(need, sizeof need, (double)k->total_bytes),
        str_bytes(have, sizeof have, (double)c->budget_bytes),
        room.limit_bytes < room.room_bytes ? " (memory_limit)" : "", slabs, what);
}

/* ---- the choice -------------------------------------------------------------------------------------------- */

int choose_plan(Choice *c, const Recipe *r, const DevVt *vt, const Machine *m, int capability,
                ChooseRoom room, unsigned parts)
{
    memset(c, 0, sizeof *c);
    c->budget_bytes = MIN(room.room_bytes, room.limit_bytes);
    c->best         = -1;
    TRY(check_available(r));
    TRY(choose_dtype(c, r, vt, capability));
    int64_t micro[24];
    int     n_micro = micro_candidates(r, vt->kind, micro, ARRAY_LEN(micro));
    for (int level = LEVEL_NONE; level <= LEVEL_BLOCK; level++) {
        if (r->recompute != RECOMPUTE_AUTO && level != (int)r->recompute - RECOMPUTE_NONE) continue;
        for (int i = 0; i < n_micro; i++) {
            if (c->n >= CHOOSE_MAX) continue;
            BuildChoice choice = { .micro_batch = micro[i],
                                   .level       = (RecomputeLevel)level,
                                   .compute     = c->compute };
            choice.head_rows   = head_rows(r, vt->kind, c->compute, micro[i] * r->model.context);
            TRY(try_candidate(c, r, &choice, vt, m, parts));
            if (!c->row[c->n - 1].fits) break; /* a larger micro-batch needs more */
        }
        /* Recomputation only ever costs time: no need to look further once every micro-batch fits without it. */
        int all_fit = 1;
        for (int i = 0; i < c->n; i++) all_fit &= c->row[i].fits;
        if (all_fit) break;
    }
    c->best = pick(c);
    return c->best >= 0 ? try_larger_chunks(c, r, vt, m, parts) : refuse_all(c, r, vt, room, parts);
}

void choose_print(const Choice *c, const Recipe *r, FILE *out)
{
    char bytes[32], rate[32];
    fprintf(out, "precision   %s\n", c->why);
    fprintf(out, "budget      %s\n", str_bytes(bytes, sizeof bytes, (double)c->budget_bytes));
    fprintf(out, "\n  micro-batch  recompute  head rows       bytes    predicted\n");
    for (int i = 0; i < c->n; i++) {
        const Candidate *k = &c->row[i];
        fprintf(out, "%s %11lld  %-9s %10lld %11s  %7s/s%s\n", i == c->best ? "->" : "  ",
                (long long)k->choice.micro_batch, recompute_name(k->choice.level),
                (long long)k->choice.head_rows, str_bytes(bytes, sizeof bytes, (double)k->total_bytes),
                str_count(rate, sizeof rate, (double)r->step_tokens / k->step_s),
                k->fits ? "" : "  does not fit");
    }
}

void choose_print_cost(const Build *b, const Machine *m, FILE *out)
{
    StepCost c = choose_step_cost(b, m);
    char     rate[32];
    fprintf(out, "a step      %.4g TFLOP, %.1f ms of arithmetic; %.4g GB moved, %.1f ms of traffic\n",
            c.flops * 1e-12, c.flops_s * 1e3, c.bytes * 1e-9, c.bytes_s * 1e3);
    fprintf(out, "predicted   %.1f ms a step, %s tokens/s", c.step_s * 1e3,
            str_count(rate, sizeof rate, (double)b->recipe.step_tokens / c.step_s));
    if (m->peak_flops > 0)
        fprintf(out, ", MFU %.1f %%",
                100 * (double)build_micro_per_step(b, 1) * prog_stats(b->micro).flops / c.step_s /
                    m->peak_flops);
    fprintf(out, "%s\n", m->peak_flops <= 0 ? " (roughly: this device's rates were not measured)" : "");
}
