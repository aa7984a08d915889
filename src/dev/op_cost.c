/* The cost of an op, from shapes alone: FLOPs, bytes, workspace. plan, MFU and limit_share read these
 * numbers. No device is needed. */
#include "dev/op.h"

#include "base/err.h"
#include "dev/glu.h"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

/* Keys that a query sees on average, of S in its sequence. */
static double mean_keys(const AttnShape *s, int64_t S)
{
    if (s->mask == MASK_RANGE && s->mean_keys) return s->mean_keys;
    return s->mask == MASK_FULL ? (double)S : (double)S / 2;
}

/* FLOPs of forward attention of T queries and S keys in each of B sequences. */
static double attn_flops(const AttnShape *s, int64_t B, int64_t T, int64_t S)
{
    return 4.0 * ((double)B * (double)T * mean_keys(s, S)) * s->heads * s->head_dim;
}

static double self_flops(const AttnShape *s, const Tensor *qkv)
{
    return attn_flops(s, qkv->dim[0], qkv->dim[1], qkv->dim[1]);
}

static double cross_flops(const AttnShape *s, const Tensor *q, const Tensor *kv)
{
    return attn_flops(s, q->dim[0], q->dim[1], kv->dim[1]);
}

/* Three products a step, two of them with the long side. */
static double ortho_flops(const Tensor *x)
{
    double n = (double)x->dim[0], R = (double)x->dim[1], C = (double)x->dim[2], side = MIN(R, C);
    return ORTHO_STEPS * n * (4.0 * R * C * side + 2.0 * side * side * side);
}

double op_flops(OpKind kind, const OpArgs *a)
{
    switch (kind) {
    case OP_LINEAR_FWD:
        return 2.0 * (double)tensor_numel(a->linear_fwd.x) * (double)tensor_rows(a->linear_fwd.w);
    case OP_LINEAR_ACT_FWD:
        return 2.0 * (double)tensor_numel(a->linear_act_fwd.x) * (double)tensor_rows(a->linear_act_fwd.w);
    case OP_LINEAR_ACT_BWD:
        return 2.0 * (double)tensor_numel(a->linear_act_bwd.dy) * (double)tensor_cols(a->linear_act_bwd.w);
    case OP_LINEAR_GLU_FWD:
        return 2.0 * (double)tensor_numel(a->linear_glu_fwd.x) * (double)tensor_rows(a->linear_glu_fwd.w);
    case OP_LINEAR_GLU_BWD:
        return 2.0 * (double)tensor_numel(a->linear_glu_bwd.dy) * (double)tensor_cols(a->linear_glu_bwd.w);
    case OP_LINEAR_DX:
        return 2.0 * (double)tensor_numel(a->linear_dx.dx) * (double)tensor_rows(a->linear_dx.w);
    case OP_LINEAR_DW:
        return 2.0 * (double)tensor_numel(a->linear_dw.x) * (double)tensor_rows(a->linear_dw.dw);
    case OP_FP8_LINEAR:
        return 2.0 * (double)tensor_numel(a->fp8_linear.a) * (double)tensor_rows(a->fp8_linear.b);
    case OP_FP8_LINEAR_DW:
        return 2.0 * (double)tensor_numel(a->fp8_linear_dw.a) * (double)tensor_rows(a->fp8_linear_dw.b);
    case OP_ATTN_FWD: return self_flops(&a->attn_fwd.shape, a->attn_fwd.qkv);
    case OP_ATTN_BWD: return 2.0 * self_flops(&a->attn_bwd.shape, a->attn_bwd.qkv);
    case OP_CROSS_ATTN_FWD:
        return cross_flops(&a->cross_attn_fwd.shape, a->cross_attn_fwd.q, a->cross_attn_fwd.kv);
    case OP_CROSS_ATTN_BWD:
        return 2.0 * cross_flops(&a->cross_attn_bwd.shape, a->cross_attn_bwd.q, a->cross_attn_bwd.kv);
    case OP_ORTHO: return ortho_flops(a->ortho.x);
    default: return 0.0;
    }
}

double op_bytes(OpKind kind, const OpArgs *a)
{
    const OpRow *row = &op_table[kind];
    double       sum = 0;
    for (int i = 0; i < row->n_tensor; i++) {
        const Tensor *t = a->t[i];
        if (!t || (row->arg[i].access & ARG_WS)) continue;
        double n = (double)tensor_bytes(t);
        /* A gather touches one row per token, not the whole table. */
        if (kind == OP_EMBED_FWD && t == a->embed_fwd.wte) n = (double)tensor_bytes(a->embed_fwd.y);
        if (kind == OP_EMBED_DW && t == a->embed_dw.dwte) {
            n = (double)tensor_numel(a->embed_dw.dy) * (double)dtype_bytes(t->dtype);
        }
        if (kind == OP_LINEAR_GLU_FWD && i == 1 && a->linear_glu_fwd.slope == GLU_UNREAD) n = 0;
        if (kind == OP_ROWS_FWD && t == a->rows_fwd.x) n = (double)tensor_bytes(a->rows_fwd.y);
        if (kind == OP_KL_TEACHER && i == 0) n *= 4; /* written, read, read and written */
        if (kind == OP_PUT && i < PUT_PAIRS) n = (double)tensor_bytes(a->put.x[i]) / 2; /* one row, written */
        /* Of a flat range a batch of matrices touches its own. */
        if (kind == OP_MOMENTUM && i < 3)
            n = (double)tensor_numel(a->momentum.x) * (double)dtype_bytes(t->dtype);
        if (kind == OP_MUON && i < 2) n = (double)tensor_numel(a->muon.y) * (double)dtype_bytes(t->dtype);
        int times = (row->arg[i].access & ARG_RW) == ARG_RW ? 2 : 1;
        sum += n * times;
    }
    return sum;
}

static double attn_keys(OpKind kind, const OpArgs *a)
{
    switch (kind) {
    case OP_ATTN_FWD: return mean_keys(&a->attn_fwd.shape, a->attn_fwd.qkv->dim[1]);
    case OP_ATTN_BWD: return mean_keys(&a->attn_bwd.shape, a->attn_bwd.qkv->dim[1]);
    case OP_CROSS_ATTN_FWD: return mean_keys(&a->cross_attn_fwd.shape, a->cross_attn_fwd.kv->dim[1]);
    case OP_CROSS_ATTN_BWD: return mean_keys(&a->cross_attn_bwd.shape, a->cross_attn_bwd.kv->dim[1]);
    default: return 0;
    }
}

MachineWork op_work(OpKind kind, const OpArgs *args, MachineArith arith)
{
    double flops = op_flops(kind, args);
    return (MachineWork){ .unit  = flops > 0 ? op_table[kind].unit : UNIT_MEMORY,
                          .flops = flops,
                          .bytes = op_bytes(kind, args),
                          .keys  = attn_keys(kind, args),
                          .arith = arith };
}

static size_t colsum_ws(int64_t cols, int n_sum)
{
    return (size_t)COLSUM_BLOCKS * (size_t)cols * (size_t)n_sum * 4;
}

/* A product and then, in the same bytes, the column sums for db (NULL: none). */
static size_t gemm_sums_ws(const Tensor *db)
{
    return db ? MAX((size_t)GEMM_WS_BYTES, tensor_align_up(colsum_ws(tensor_numel(db), 1))) : GEMM_WS_BYTES;
}

/* dy w, behind the rest: dpre may be pre, so the parts of a fused gradient have nowhere else to put it. */
static size_t product_ws(const Tensor *dy, const Tensor *w)
{
    return tensor_align_up((size_t)(tensor_rows(dy) * tensor_cols(w)) * dtype_bytes(dy->dtype));
}

/* Attention in tiles keeps counters and, unless the mask is causal or full, what each tile of 64 queries sees
 * (16 bytes) and who sees each tile of 64 keys (8 bytes). */
static size_t attn_tables_ws(const Tensor *q, const Tensor *kv)
{
    size_t B = (size_t)q->dim[0], q_tiles = (size_t)(q->dim[1] + 63) / 64,
           k_tiles = (size_t)(kv->dim[1] + 63) / 64;
    return tensor_align_up(ATTN_COUNTER_BYTES + B * (q_tiles * 16 + k_tiles * 8));
}

/* Backward it also keeps lse and the sum of dout * o of each query, f32, of whole tiles. */
static size_t attn_tiles_bwd_ws(const Tensor *q, const Tensor *kv, int heads)
{
    size_t rows = (size_t)q->dim[0] * (size_t)heads * (size_t)((q->dim[1] + 63) / 64 * 64);
    return 2 * sizeof(float) * rows + attn_tables_ws(q, kv);
}

static size_t attn_fwd_ws(const AttnFwd *a) { return MAX((size_t)1 << 20, attn_tables_ws(a->qkv, a->qkv)); }

/* Parts of long rows: for each query head and part the sum of weighted values, the maximum and the sum of
 * weights, f32. */
static size_t attn_decode_ws(const AttnDecode *a)
{
    size_t n_row = (size_t)tensor_rows(a->qkv) * (size_t)a->shape.heads;
    if (tensor_rows(a->qkv) != a->kcache->dim[0]) return 0;
    return tensor_align_up(n_row * ATTN_DECODE_PARTS * (size_t)(a->shape.head_dim + 2) * 4);
}

static size_t attn_bwd_ws(const AttnBwd *a)
{
    /* cuDNN: row sums f32[B,H,T] and the dQ accumulator f32[B,H,T,D]; with grouped heads also full-head dK
     * and dV (2 x B*H*T*D bf16); deterministic instead B*H*T*T bf16. Measured on cuDNN 9.14 and 9.19. */
    size_t B = (size_t)a->qkv->dim[0], T = (size_t)a->qkv->dim[1];
    size_t H = (size_t)a->shape.heads, D = (size_t)a->shape.head_dim;
    size_t n = B * H * T * 4 + TENSOR_ALIGN;
    n += a->shape.deterministic ? B * H * T * T * 2 + B * H * T * D * 4 : B * H * T * D * 4;
    n += TENSOR_ALIGN;
    if (a->shape.kv_heads != a->shape.heads) n += 2 * B * H * T * D * 2 + TENSOR_ALIGN;
    return MAX(n + (1u << 20), attn_tiles_bwd_ws(a->qkv, a->qkv, a->shape.heads));
}

/* Attention that stores its weights: f32 scores of one head (backward: their gradient, and that rounded to
 * the dtype), and room for the library. */
static size_t attn_stored_ws(const Tensor *qkv, int backward)
{
    size_t n = (size_t)(qkv->dim[0] * qkv->dim[1] * qkv->dim[1]);
    return n * 4 + (backward ? n * dtype_bytes(qkv->dtype) : 0) + 2 * TENSOR_ALIGN + GEMM_WS_BYTES;
}

/* The matrices between two steps, A and B, partial sums of squares, and room for the library. */
static size_t ortho_ws(const Tensor *x)
{
    size_t n = (size_t)x->dim[0], side = (size_t)MIN(x->dim[1], x->dim[2]);
    size_t square = tensor_align_up(n * side * side * dtype_bytes(x->dtype));
    return tensor_align_up(tensor_bytes(x)) + 2 * square + tensor_align_up(n * ORTHO_PARTS * sizeof(double)) +
           GEMM_WS_BYTES;
}

/* Column sums for db: one f32 row for each tile of QUANT_ROWS rows. */
static size_t quant_sums_ws(const Quant *a)
{
    int64_t tiles = (tensor_rows(a->x) + QUANT_ROWS - 1) / QUANT_ROWS;
    return tensor_align_up((size_t)(tiles * tensor_numel(a->db)) * 4);
}

size_t op_workspace_bytes(OpKind kind, const OpArgs *a)
{
    switch (kind) {
    case OP_LINEAR_FWD:
    case OP_LINEAR_DX:
    case OP_FP8_LINEAR:
    case OP_FP8_LINEAR_DW:
    case OP_LINEAR_ACT_FWD:
    case OP_LINEAR_GLU_FWD: return GEMM_WS_BYTES;
    case OP_LINEAR_DW: return gemm_sums_ws(a->linear_dw.db);
    case OP_LINEAR_ACT_BWD:
        return gemm_sums_ws(a->linear_act_bwd.db) + product_ws(a->linear_act_bwd.dy, a->linear_act_bwd.w);
    case OP_LINEAR_GLU_BWD: return GEMM_WS_BYTES + product_ws(a->linear_glu_bwd.dy, a->linear_glu_bwd.w);
    case OP_NORM_DW: return colsum_ws(tensor_cols(a->norm_dw.dy), 2);
    case OP_NORM_BWD: return colsum_ws(tensor_cols(a->norm_bwd.dy), a->norm_bwd.dbias ? 3 : 2);
    case OP_SCALE_DW: return colsum_ws(tensor_cols(a->scale_dw.dy), 1);
    case OP_BIAS_DW: return colsum_ws(tensor_cols(a->bias_dw.dy), 1);
    case OP_ACT_BIAS_BWD: return colsum_ws(tensor_cols(a->act_bias_bwd.dy), 1);
    case OP_QKNORM_DW: return colsum_ws(2 * a->qknorm_dw.head_dim, 1);
    case OP_QUANT: return a->quant.db ? quant_sums_ws(&a->quant) : 0;
    case OP_STATS: return STATS_BLOCKS * 3 * sizeof(double);
    case OP_ORTHO: return ortho_ws(a->ortho.x);
    case OP_SUMSQ: return SUMSQ_BLOCKS * sizeof(double);
    /* Stable order of rows by token: keys and values, twice, plus the sort's own table. */
    case OP_EMBED_DW: return (size_t)tensor_rows(a->embed_dw.dy) * 16 + (4u << 20);
    case OP_ROWS_DX: return (size_t)tensor_rows(a->rows_dx.dy) * 16 + (4u << 20);
    /* cuDNN's Hopper kernel wants a few kilobytes; without them it falls back to one for older cards, 1.5x
     * slower. */
    case OP_ATTN_FWD: return a->attn_fwd.p ? attn_stored_ws(a->attn_fwd.qkv, 0) : attn_fwd_ws(&a->attn_fwd);
    case OP_ATTN_BWD: return a->attn_bwd.p ? attn_stored_ws(a->attn_bwd.qkv, 1) : attn_bwd_ws(&a->attn_bwd);
    case OP_ATTN_DECODE: return attn_decode_ws(&a->attn_decode);
    case OP_CROSS_ATTN_FWD: return attn_tables_ws(a->cross_attn_fwd.q, a->cross_attn_fwd.kv);
    case OP_CROSS_ATTN_BWD:
        return attn_tiles_bwd_ws(a->cross_attn_bwd.q, a->cross_attn_bwd.kv, a->cross_attn_bwd.shape.heads);
    default: return 0;
    }
}
