/* Every op and fused variant on CUDA against the same cases and double-precision references as the CPU
 * (tests/op_cases.h): odd shapes, row strides, guard bands, poisoned outputs, all masks; in f32, in bf16 and,
 * for the ops of language models, in f16.
 *
 * Bounds. f32: the reference's own tolerance (op_ref_base.h, derived per op), twice, because sums run in
 * another order and exp, log and tanh are the device's. bf16: inputs are rounded to bf16 first and the
 * reference computed from them; rounding its result to bf16 is the least any bf16 implementation must do, and
 * twice that error (in norm) is allowed. f16: the same. Attention also rounds probabilities (forward) and P,
 * dS, dP and dQ (backward) on the way, each as large as the last rounding; errors of independent roundings
 * add in squares.
 *
 * Usage: test_gpu_ops [OP [PART [own]]]. Only OP; only its cases with PART in their name; with "own" no
 * library where there is a choice. */
#include "check.h"

#include "op_harness.h"
#include "tensor/number.h"

typedef struct {
    Dev   *dev;
    OpArgs args;
    Tensor tensor[OP_MAX_TENSOR];
    void  *mem[OP_MAX_TENSOR];
    size_t bytes[OP_MAX_TENSOR];
} Mirror;

#ifndef EMULATED
#define EMULATED 0 /* 1: kernels on the CPU, one of each kind (tests/test_plain_kernels.c) */
#endif

/* Narrow numbers: bf16 or f16. */
static uint16_t to_narrow(float x, DType as) { return as == DT_F16 ? f16_from_f32(x) : bf16_from_f32(x); }

static float from_narrow(uint16_t h, DType as) { return as == DT_F16 ? f32_from_f16(h) : f32_from_bf16(h); }

/* Half of the distance between two numbers at 1, and between the smallest ones. */
static double narrow_unit(DType as) { return as == DT_F16 ? 0x1p-12 : 0x1p-9; }
static double narrow_least(DType as) { return as == DT_F16 ? 0x1p-25 : 0; }

/* Rounds what the device will see in a narrow type, so that both sides start from the same numbers. */
static void round_inputs(OpCase *c, DType as)
{
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!c->args.t[i] || !c->act[i] || !(op_table[c->kind].arg[i].access & ARG_READ)) continue;
        for (int64_t e = 0; e < tensor_numel(c->args.t[i]); e++)
            *case_at(c->args.t[i], e) = from_narrow(to_narrow(*case_at(c->args.t[i], e), as), as);
    }
}

/* A block with every f32 word (guards and NaNs too) in a narrow type: same elements, half the bytes. */
static char *half_block(const char *block, size_t n, DType as)
{
    uint16_t *h = malloc(n / 2 + 2);
    for (size_t k = 0; k < n / 4; k++) {
        float f;
        memcpy(&f, block + 4 * k, 4);
        uint32_t u;
        memcpy(&u, &f, 4);
        h[k] = u == CASE_GUARD ? 0x7FA5 : isnan(f) ? (as == DT_F16 ? 0x7E00 : 0x7FC0) : to_narrow(f, as);
    }
    return (char *)h;
}

static void widen_block(char *block, const char *half, size_t n, DType as)
{
    for (size_t k = 0; k < n / 4; k++) {
        uint16_t h;
        uint32_t u;
        memcpy(&h, half + 2 * k, 2);
        float f = from_narrow(h, as);
        memcpy(&u, &f, 4);
        if (h == 0x7FA5) u = CASE_GUARD;
        memcpy(block + 4 * k, &u, 4);
    }
}

static int mirror_create(Mirror *m, const OpCase *c, Dev *dev, DType as)
{
    memset(m, 0, sizeof *m);
    m->dev  = dev;
    m->args = c->args;
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!c->args.t[i]) continue;
        int   half         = as != DT_F32 && c->act[i];
        char *src          = half ? half_block(c->block[i], c->block_bytes[i], as) : c->block[i];
        m->bytes[i]        = c->block_bytes[i] / (half ? 2 : 1);
        m->mem[i]          = dev->vt->alloc(dev, m->bytes[i]);
        m->tensor[i]       = c->tensor[i];
        m->tensor[i].root  = &m->tensor[i];
        m->tensor[i].data  = (char *)m->mem[i] + CASE_GUARD_BYTES / (half ? 2 : 1);
        m->tensor[i].dtype = half ? as : c->tensor[i].dtype;
        m->args.t[i]       = &m->tensor[i];
        if (!m->mem[i] || dev->vt->upload(dev, LANE_COMPUTE, m->mem[i], src, m->bytes[i]) < 0 ||
            dev->vt->sync(dev) < 0) {
            return -1;
        }
        if (half) free(src);
    }
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!(op_table[c->kind].arg[i].access & ARG_WS)) continue;
        int64_t n = (int64_t)op_workspace_bytes(c->kind, &m->args);
        if (n == 0) continue;
        tensor_init(&m->tensor[i], "ws", DT_U8, 1, &n);
        m->mem[i] = m->tensor[i].data = dev->vt->alloc(dev, (size_t)n);
        m->args.t[i]                  = &m->tensor[i];
        if (!m->mem[i]) return -1;
    }
    return 0;
}

/* Brings everything back into the case's own blocks. */
static int mirror_read(Mirror *m, OpCase *c)
{
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (!c->args.t[i]) continue;
        DType as   = m->tensor[i].dtype;
        int   half = as != c->tensor[i].dtype;
        char *dst  = half ? malloc(m->bytes[i]) : c->block[i];
        TRY(m->dev->vt->download(m->dev, LANE_COMPUTE, dst, m->mem[i], m->bytes[i]));
        TRY(m->dev->vt->sync(m->dev));
        if (half) {
            widen_block(c->block[i], dst, c->block_bytes[i], as);
            free(dst);
        }
    }
    return 0;
}

static void mirror_destroy(Mirror *m)
{
    for (int i = 0; i < OP_MAX_TENSOR; i++) {
        if (m->mem[i]) m->dev->vt->free(m->dev, m->mem[i]);
    }
}

/* Roundings to the narrow type on the way to a result, the last one included. */
static double roundings(OpKind kind)
{
    switch (kind) {
    case OP_ATTN_FWD:
    case OP_CROSS_ATTN_FWD:
    case OP_LINEAR_ACT_FWD:
    case OP_LINEAR_ACT_BWD:
    case OP_LINEAR_GLU_BWD: return 2;
    case OP_LINEAR_GLU_FWD: return 3; /* gate, up, y */
    case OP_CROSS_ATTN_BWD:
    case OP_ATTN_BWD: return 5;
    default: return 1;
    }
}

/* AdamW walks the flat range whole: between segments it may clear the gradient, which is padding (op.h). */
static int in_gap(const OpCase *c, int i, int64_t e)
{
    if (c->kind != OP_ADAMW || c->args.t[i] != c->args.adamw.grad) return 0;
    const Segment *seg = c->args.adamw.seg->data;
    for (int64_t k = 0; k < (int64_t)(tensor_bytes(c->args.adamw.seg) / sizeof *seg); k++) {
        if (e >= seg[k].begin && e < seg[k].end) return 0;
    }
    return 1;
}

/* The mean of a row of rounded numbers: near zero the numbers' own size counts, not the mean's. */
static double mean_price(const OpCase *c, const OpRef *r, int64_t row, DType as)
{
    if (c->kind != OP_ADD_NORM_FWD) return 0;
    int64_t cols = tensor_cols(c->args.add_norm_fwd.sum);
    double  size = 0;
    for (int64_t k = 0; k < cols; k++) size += r->want[1][row * cols + k] * r->want[1][row * cols + k];
    return size * pow(narrow_unit(as), 2) / 3 / ((double)cols * (double)cols);
}

/* Error in norm against the reference, and what is allowed. */
static const char *check_norm(const OpCase *c, const OpRef *r, int i, DType as, char *buf)
{
    const Tensor *t   = c->args.t[i];
    double        err = 0, price = 0, size = 0, exact = 0;
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        double want = r->want[i][e], got = case_value(t, e),
               rounded = from_narrow(to_narrow((float)want, as), as);
        double tol = op_ref_tolerance(r, i, e), typical = fabs(want) * narrow_unit(as) + narrow_least(as);
        if (in_gap(c, i, e)) continue;
        err += (got - want) * (got - want);
        /* A lucky number may need no rounding: at least the mean square of a rounding, unit^2 / 3, is
         * counted. */
        price += MAX((rounded - want) * (rounded - want), typical * typical / 3);
        if (t == c->args.t[2] && c->kind == OP_ADD_NORM_FWD) price += mean_price(c, r, e, as);
        size += want * want;
        exact += tol * tol;
    }
    if (c->kind == OP_ORTHO) price = ref_ortho_price(c, r); /* three roundings in each of its steps */
    /* f32 outputs of bf16 inputs are sums of exact products, except where the op itself sums what it
     * rounded. */
    int sums_rounded = c->kind == OP_ACT_BIAS_BWD || c->kind == OP_ADD_NORM_FWD || c->kind == OP_NORM_BWD ||
                       c->kind == OP_LINEAR_ACT_BWD;
    /* In a few elements nothing averages out: one rounding may be sqrt(3) times its root mean square. */
    double few     = tensor_numel(t) < 16 ? sqrt(3) : 1;
    double allowed = c->act[i] || sums_rounded ? 2 * few * sqrt(roundings(c->kind) * price) : 0;
    allowed += 2 * sqrt(exact) + 1e-5 * sqrt(size);
    if (sqrt(err) <= allowed) return NULL;
    snprintf(buf, WHY, "%s: %s is off by %.3e of its norm, allowed %.3e", c->name, t->name,
             sqrt(err / (size + 1e-30)), allowed / sqrt(size + 1e-30));
    return buf;
}

static const char *check_f32(const OpCase *c, const OpRef *r, int i, char *buf)
{
    const Tensor *t = c->args.t[i];
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        double got = case_value(t, e), want = r->want[i][e], tol = 2 * op_ref_tolerance(r, i, e);
        if (fabs(got - want) <= tol || in_gap(c, i, e)) continue;
        snprintf(buf, WHY, "%s: %s element %lld is %.9g, not %.9g (allowed %.2e)", c->name, t->name,
                 (long long)e, got, want, tol);
        return buf;
    }
    return NULL;
}

static const char *check_outputs(const OpCase *c, const OpRef *r, DType as, char *buf)
{
    const char *bad = NULL;
    /* A bf16 activation lies on the other side of a tie too often. test_gpu_fused.c compares its codes. */
    if (c->kind == OP_QUANT && as != DT_F32 && c->args.quant.from != QUANT_PLAIN) return NULL;
    for (int i = 0; i < op_table[c->kind].n_tensor && !bad; i++) {
        if (!c->args.t[i] || !op_writes(c->kind, i)) continue;
        if (op_is_drawn(c, i)) {
            bad = op_check_drawn(c, r, i, buf);
        } else if (r->bytes[i] && c->kind == OP_QUANT) {
            bad = ref_check_codes(c, r, i, buf, WHY);
        } else if (r->want[i]) {
            bad = as != DT_F32 ? check_norm(c, r, i, as, buf) : check_f32(c, r, i, buf);
        } else if (r->bytes[i]) {
            bad = as != DT_F32 && c->act[i] ? NULL : op_check_bytes(c, r, i, buf);
        } else if (r->has_state) {
            bad = op_check_state(c, r, c->args.t[i]->data, buf);
        } else {
            bad = op_check_copy(c, buf);
        }
    }
    return bad;
}

/* Runs the case on the device and brings everything back. */
static const char *run_there(OpCase *c, Dev *dev, DType as, char *buf)
{
    Mirror m;
    Op     op = { .kind = c->kind, .label = c->name, .block = -1, .chunk = -1 };
    int    rc = mirror_create(&m, c, dev, as);
    op.args   = m.args;
    if (rc == 0) rc = dev_run_op(dev, &op);
    if (rc == 0) rc = dev->vt->sync(dev);
    if (rc == 0) rc = mirror_read(&m, c);
    mirror_destroy(&m);
    if (rc == 0) return NULL;
    snprintf(buf, WHY, "%s: %s", c->name, err_get());
    err_clear();
    return buf;
}

/* A second run from the same bytes gives the same bits. Of products and attention, which have several kernels
 * to choose from, test_gpu_fused.c and the option `deterministic` say when. */
static const char *check_again(OpCase *c, const OpImage *before, Dev *dev, DType as, char *buf)
{
    OpImage first;
    op_image_take(&first, c);
    op_image_restore(before, c);
    const char *bad = run_there(c, dev, as, buf);
    if (!bad) bad = op_check_same(c, &first, "in a second run", buf);
    op_image_free(&first);
    return bad;
}

static const char *run_case(OpCase *c, Dev *dev, DType as, int again, char *buf)
{
    OpRef   r;
    OpImage before;
    if (as != DT_F32) round_inputs(c, as);
    op_ref_create(&r, c);
    op_image_take(&before, c);
    const char *bad = run_there(c, dev, as, buf);
    if (!bad) bad = op_check_inputs(c, &before, buf);
    if (!bad) bad = check_outputs(c, &r, as, buf);
    if (!bad && again) bad = check_again(c, &before, dev, as, buf);
    op_image_free(&before);
    op_ref_destroy(&r);
    return bad;
}

/* What a language model in f16 needs. */
static int runs_in_f16(OpKind kind)
{
    static const OpKind kinds[] = { OP_EMBED_FWD,      OP_EMBED_DW,
                                    OP_POS_DW,         OP_NORM_FWD,
                                    OP_NORM_DX,        OP_NORM_DW,
                                    OP_NORM_BWD,       OP_ADD_NORM_FWD,
                                    OP_LINEAR_FWD,     OP_LINEAR_DX,
                                    OP_LINEAR_DW,      OP_LINEAR_ACT_FWD,
                                    OP_LINEAR_ACT_BWD, OP_LINEAR_GLU_FWD,
                                    OP_BIAS_DW,        OP_LINEAR_GLU_BWD,
                                    OP_ACT_FWD,        OP_ACT_DX,
                                    OP_GLU_FWD,        OP_ACT_BIAS_BWD,
                                    OP_GLU_DX,         OP_ADD,
                                    OP_ROPE,           OP_QKNORM_FWD,
                                    OP_QKNORM_DX,      OP_QKNORM_DW,
                                    OP_ATTN_FWD,       OP_ATTN_BWD,
                                    OP_ATTN_DECODE,    OP_DROPOUT,
                                    OP_XENT,           OP_XENT_FWD,
                                    OP_XENT_DX };
    for (int i = 0; i < ARRAY_LEN(kinds); i++) {
        if (kinds[i] == kind) return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    Tally       t   = { 0, 0 };
    const char *why = "", *only = argc > 1 ? argv[1] : NULL, *part = argc > 2 ? argv[2] : "";
    int         own_only = argc > 3;
    DevOptions  opt      = { .capture = 0, .tune = 0 };
    Dev        *dev      = dev_open("cuda", &opt, &why);
    tally(&t, dev != NULL, "device opens");
    for (int kind = 0; dev && kind < OP_COUNT; kind++) {
        if (only && strcmp(only, op_table[kind].name) != 0) continue;
        /* Collectives sum in f32 only. */
        if (kind == OP_CALL) continue; /* its function is the task's: tests/gpu/test_gpu_env.c */
        int collective = kind == OP_ALL_REDUCE || kind == OP_REDUCE_SCATTER || kind == OP_ALL_GATHER;
        /* Products run on both kernels that there are. */
        int is_linear = strncmp(op_table[kind].name, "linear", 6) == 0;
        int choice    = !EMULATED && (is_linear || kind == OP_ATTN_FWD || kind == OP_ATTN_BWD);
        int ways      = choice ? 4 : 2 - collective;
        int f16       = runs_in_f16((OpKind)kind) && !(EMULATED && is_linear); /* the library's */
        for (int way = 0; way < ways + f16; way++) {
            DType  as = way == 0 ? DT_F32 : way == ways ? DT_F16 : DT_BF16;
            OpCase c;
            char   buf[WHY];
            int    n = 0, n_bad = 0;
            dev->opt.own = as == DT_F16 ? 0 : way == 2 ? 1 : way == 3 ? -1 : 0;
            if (own_only && choice && (as == DT_F16 || way % 2 == 1 || (way == 0 && is_linear)))
                continue; /* f32 products are the library's */
            /* Emulated, every third case of a long list is enough for make test. */
            int by = EMULATED && !getenv("OPS_LONG") ? 3 : 1;
            for (int i = 0; op_case_create(&c, (OpKind)kind, i); i += i < 12 ? 1 : by) {
                const char *bad = NULL;
                /* On the CPU a large product takes seconds; its tail is a small one's. */
                int too_large = EMULATED && is_linear && op_flops((OpKind)kind, &c.args) > 2e6;
                if (strstr(c.name, part) && !too_large) {
                    n++;
                    bad = run_case(&c, dev, as, !choice && !is_linear, buf);
                }
                if (bad && n_bad++ < 4) printf("    %s\n", bad);
                op_case_destroy(&c);
            }
            tally(&t, n > 0 && n_bad == 0, "%s %s%s: %d cases, %d bad", op_table[kind].name, dtype_name(as),
                  as == DT_F16 ? ""
                  : way == 2   ? " own"
                  : way == 3   ? " library"
                               : "",
                  n, n_bad);
        }
    }
    if (dev) dev_close(dev);
    return tally_end(&t);
}
