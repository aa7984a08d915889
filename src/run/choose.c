#include "run/choose.h"

#include "base/err.h"
#include "base/str.h"
#include "run/limit.h"

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
        return err_user("precision: %s is not available yet (use bf16)",
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
        return err_user("precision: %s needs a GPU; the CPU backend computes in fp32",
                        r->precision == PRECISION_BF16 ? "bf16" : "tf32");
    }
    if (cuda && capability < 80) {
        return err_user("precision: compute capability %d.%d has neither bf16 nor tf32", capability / 10,
                        capability % 10);
    }
    return 0;
}

/* What a recipe may say and no plan can give is refused: ignoring it would train something else. */
static int check_available(const Recipe *r)
{
    if (r->model.mask == MASKING_PREFIX) {
        return err_user("model.mask: prefix is not available yet: no kind of data says where a prefix ends");
    }
    if (r->give_way[0])
        return err_user("give_way: is not available yet: moments and gradients are kept in fp32");
    return 0;
}

/* ---- candidates -------------------------------------------------------------------------------------------- */

/* Logits of one chunk: on a GPU about a gigabyte keeps the product large enough for its full rate while the rest of the
 * memory stays free; on a CPU the chunk should stay in cache. Rows come in multiples of 128. */
static int64_t head_rows(const Recipe *r, DevKind kind, DType compute, int64_t rows)
{
    if (!r->opt.chunk_head) return rows;
    double  bytes  = kind == DEV_CPU ? 4e6 : 1.1e9;
    int64_t n      = (int64_t)(bytes / ((double)net_vocab_stored(&r->model) * (double)dtype_bytes(compute)));
    n              = MAX(n / 128 * 128, 128);
    int64_t chunks = (rows + n - 1) / n; /* as few as that allows, all about equal */
    return MIN(rows, ((rows + chunks - 1) / chunks + 127) / 128 * 128);
}

static double prog_time_model(const Prog *p, const Machine *m, int f32)
{
    double sum = 0;
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op *op    = prog_op(p, i);
        double    flops = op_flops(op->kind, &op->args), bytes = op_bytes(op->kind, &op->args);
        sum += machine_op_time(m, flops > 0 ? limit_unit(op->kind) : UNIT_MEMORY, f32, flops, bytes);
    }
    return sum;
}

double choose_step_time(const Build *b, const Machine *m)
{
    int f32 = b->choice.compute == DT_F32;
    return (double)build_micro_per_step(b, 1) * prog_time_model(b->micro, m, f32) +
           prog_time_model(b->update, m, f32);
}

static int try_candidate(Choice *c, const Recipe *r, const BuildChoice *choice, const DevVt *vt,
                         const Machine *m, unsigned parts)
{
    Build *b = NULL;
    TRY(build_create(&b, r, choice, parts, vt));
    Candidate *row   = &c->row[c->n++];
    row->choice      = *choice;
    row->total_bytes = store_total_bytes(&b->store);
    row->step_s      = parts & BUILD_TRAIN ? choose_step_time(b, m) : 0;
    row->fits        = row->total_bytes <= c->budget_bytes;
    build_destroy(b);
    return 0;
}

/* Divisors of the step's sequences: powers of two, and the step itself. */
static int micro_candidates(const Recipe *r, int64_t *out, int cap)
{
    int64_t seqs = r->step_tokens / r->model.context;
    int     n    = 0;
    if (r->micro_batch > 0) {
        out[n++] = r->micro_batch;
        return n;
    }
    for (int64_t b = 1; b <= seqs && n < cap - 1; b *= 2) {
        if (seqs % b == 0) out[n++] = b;
    }
    if ((seqs & (seqs - 1)) != 0) out[n++] = seqs;
    return n;
}

/* On a CPU a step of a few thousand tokens at a time already fills every core; larger ones only leave the caches. */
static int worth_trying(const Recipe *r, DevKind kind, int64_t micro)
{
    int64_t tokens = micro * r->model.context, cap = kind == DEV_CPU ? 8192 : 262144;
    return tokens <= cap || micro == 1 || r->micro_batch > 0;
}

static int better(const Candidate *a, const Candidate *b)
{
    if (a->step_s < 0.995 * b->step_s) return 1;
    return a->step_s < 1.005 * b->step_s && a->total_bytes < b->total_bytes &&
           a->choice.level <= b->choice.level;
}

int choose_plan(Choice *c, const Recipe *r, const DevVt *vt, const Machine *m, int capability,
                size_t budget_bytes, unsigned parts)
{
    memset(c, 0, sizeof *c);
    c->budget_bytes = budget_bytes;
    c->best         = -1;
    TRY(check_available(r));
    TRY(choose_dtype(c, r, vt, capability));
    int64_t micro[24];
    int     n_micro = micro_candidates(r, micro, ARRAY_LEN(micro));
    for (int level = LEVEL_NONE; level <= LEVEL_BLOCK; level++) {
        if (r->recompute != RECOMPUTE_AUTO && level != (int)r->recompute - RECOMPUTE_NONE) continue;
        for (int i = 0; i < n_micro; i++) {
            if (!worth_trying(r, vt->kind, micro[i]) || c->n >= CHOOSE_MAX) continue;
            BuildChoice choice = { .micro_batch = micro[i],
                                   .level       = (RecomputeLevel)level,
                                   .compute     = c->compute };
            choice.head_rows   = head_rows(r, vt->kind, c->compute, micro[i] * r->model.context);
            TRY(try_candidate(c, r, &choice, vt, m, parts));
        }
        /* Recomputation only ever costs time: no need to look further once every micro-batch fits without it. */
        int all_fit = 1;
        for (int i = 0; i < c->n; i++) all_fit &= c->row[i].fits;
        if (all_fit) break;
    }
    size_t least = (size_t)-1;
    for (int i = 0; i < c->n; i++) {
        least = MIN(least, c->row[i].total_bytes);
        if (c->row[i].fits && (c->best < 0 || better(&c->row[i], &c->row[c->best]))) c->best = i;
    }
    if (c->best >= 0) return 0;
    char have[32], need[32];
    return err_user(
        "this model does not fit: the smallest plan needs %s and %s are available "
        "(a smaller model.context, model.layers or model.width, or a larger memory_limit, would help)",
        str_bytes(need, sizeof need, (double)least), str_bytes(have, sizeof have, (double)budget_bytes));
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
