/* The rows of OP_LIST: argument names, access, which pairs may share storage. One fact, one place: the planner, the
 * recorder, differentiation, null and the op tests read these rows. */
#include "dev/op.h"

/* clang-format off */
#define R(n)   { n, ARG_READ }
#define RO(n)  { n, ARG_READ | ARG_OPTIONAL }
#define W(n)   { n, ARG_WRITE }
#define WO(n)  { n, ARG_WRITE | ARG_OPTIONAL }
#define RW(n)  { n, ARG_RW }
#define RWO(n) { n, ARG_RW | ARG_OPTIONAL }
#define WS     { "ws", ARG_WRITE | ARG_OPTIONAL | ARG_WS }

const OpRow op_table[OP_COUNT] = {
    [OP_EMBED_FWD]    = { "embed_fwd", 5, { W("y"), R("tok"), R("wte"), RO("wpe"), RO("pos0") } },
    [OP_EMBED_DW]     = { "embed_dw", 4, { RW("dwte"), WS, R("dy"), R("tok") } },
    [OP_POS_DW]       = { "pos_dw", 2, { RW("dwpe"), R("dy") } },
    [OP_NORM_FWD]     = { "norm_fwd", 6, { W("y"), WO("mean"), W("rstd"), R("x"), R("gamma"), RO("beta") }, .cheap = 1 },
    [OP_NORM_DX]      = { "norm_dx", 6, { W("dx"), R("dy"), R("x"), R("gamma"), RO("mean"), R("rstd") }, .alias = { { 0, 1 } } },
    [OP_NORM_DW]      = { "norm_dw", 7, { RW("dgamma"), RWO("dbeta"), WS, R("dy"), R("x"), RO("mean"), R("rstd") } },
    [OP_ADD_NORM_FWD] = { "add_norm_fwd", 8, { W("y"), W("sum"), WO("mean"), W("rstd"), R("a"), R("b"), R("gamma"), RO("beta") },
                          .alias = { { 1, 4 }, { 1, 5 } }, .cheap = 1 },
    [OP_NORM_BWD]     = { "norm_bwd", 11, { W("dx"), RW("dgamma"), RWO("dbeta"), RWO("dbias"), WS, R("dy"), R("x"), R("gamma"), RO("mean"), R("rstd"), RO("dres") },
                          .alias = { { 0, 5 }, { 0, 10 } } },
    [OP_LINEAR_FWD]   = { "linear_fwd", 5, { W("y"), WS, R("x"), R("w"), RO("bias") } },
    [OP_LINEAR_DX]    = { "linear_dx", 4, { W("dx"), WS, R("dy"), R("w") } },
    [OP_LINEAR_DW]    = { "linear_dw", 5, { RW("dw"), RWO("db"), WS, R("dy"), R("x") } },
    [OP_BIAS_DW]      = { "bias_dw", 3, { RW("db"), WS, R("dy") } },
    [OP_LINEAR_ACT_FWD] = { "linear_act_fwd", 6, { W("y"), W("pre"), WS, R("x"), R("w"), RO("bias") } },
    [OP_LINEAR_ACT_BWD] = { "linear_act_bwd", 6, { W("dpre"), RWO("db"), WS, R("dy"), R("w"), R("pre") }, .alias = { { 0, 5 } } },
    [OP_LINEAR_GLU_FWD] = { "linear_glu_fwd", 5, { W("y"), W("pre"), WS, R("x"), R("w") } },
    [OP_LINEAR_GLU_BWD] = { "linear_glu_bwd", 5, { W("dpre"), WS, R("dy"), R("w"), R("pre") }, .alias = { { 0, 4 } } },
    [OP_ACT_FWD]      = { "act_fwd", 2, { W("y"), R("x") }, .alias = { { 0, 1 } }, .cheap = 1 },
    [OP_ACT_DX]       = { "act_dx", 3, { W("dx"), R("dy"), R("x") }, .alias = { { 0, 1 }, { 0, 2 } } },
    [OP_ACT_BIAS_BWD] = { "act_bias_bwd", 5, { W("dx"), RW("db"), WS, R("dy"), R("x") }, .alias = { { 0, 3 }, { 0, 4 } } },
    [OP_GLU_FWD]      = { "glu_fwd", 2, { W("y"), R("x") }, .cheap = 1 },
    [OP_GLU_DX]       = { "glu_dx", 3, { W("dx"), R("dy"), R("x") }, .alias = { { 0, 2 } } },
    [OP_ADD]          = { "add", 3, { W("y"), R("a"), R("b") }, .alias = { { 0, 1 }, { 0, 2 } } },
    [OP_ROPE]         = { "rope", 4, { W("y"), R("x"), R("table"), RO("pos0") }, .alias = { { 0, 1 } } },
    [OP_QKNORM_FWD]   = { "qknorm_fwd", 5, { W("y"), W("rstd"), R("x"), R("gq"), R("gk") }, .alias = { { 0, 2 } } },
    [OP_QKNORM_DX]    = { "qknorm_dx", 6, { W("dx"), R("dy"), R("x"), R("gq"), R("gk"), R("rstd") }, .alias = { { 0, 1 } } },
    [OP_QKNORM_DW]    = { "qknorm_dw", 6, { RW("dgq"), RW("dgk"), WS, R("dy"), R("x"), R("rstd") } },
    [OP_ATTN_FWD]     = { "attn_fwd", 9, { W("o"), W("lse"), WO("p"), WS, R("qkv"), RO("doc"), RO("prefix"), RO("first"), RO("last") } },
    [OP_ATTN_BWD]     = { "attn_bwd", 12, { W("dqkv"), WS, R("dout"), R("o"), R("lse"), R("qkv"), RO("doc"), RO("prefix"), RO("first"), RO("last"), RO("p"), RO("table") } },
    [OP_ATTN_DECODE]  = { "attn_decode", 6, { W("o"), RW("kcache"), RW("vcache"), WS, R("qkv"), R("len") } },
    [OP_CROSS_ATTN_FWD] = { "cross_attn_fwd", 8, { W("o"), W("lse"), WS, R("q"), R("kv"), RO("first"), RO("last"), RO("len") } },
    [OP_CROSS_ATTN_BWD] = { "cross_attn_bwd", 11, { W("dq"), W("dkv"), WS, R("dout"), R("o"), R("lse"), R("q"), R("kv"), RO("first"), RO("last"), RO("len") } },
    [OP_DROPOUT]      = { "dropout", 4, { W("y"), R("x"), R("state"), R("sample0") }, .alias = { { 0, 1 } }, .cheap = 1 },
    [OP_XENT_FWD]     = { "xent_fwd", 4, { W("loss"), W("lse"), R("logits"), R("target") } },
    [OP_XENT_DX]      = { "xent_dx", 5, { W("dlogits"), R("logits"), R("lse"), R("target"), R("state") }, .alias = { { 0, 1 } } },
    [OP_XENT]         = { "xent", 5, { W("loss"), W("dlogits"), R("logits"), R("target"), R("state") }, .alias = { { 1, 2 } } },
    [OP_LOSS_ADD]     = { "loss_add", 2, { RW("state"), R("loss") } },
    [OP_FILL]         = { "fill", 1, { W("y") } },
    [OP_COPY]         = { "copy", 2, { W("y"), R("x") } },
    [OP_CAST]         = { "cast", 2, { W("y"), R("x") } },
    [OP_QUANT]        = { "quant", 5, { W("q"), WO("qt"), RWO("amax"), R("x"), R("scale") } },
    [OP_SUMSQ]        = { "sumsq", 3, { RW("state"), WS, R("x") } },
    [OP_CLIP]         = { "clip", 1, { RW("state") } },
    [OP_ADAMW]        = { "adamw", 7, { RW("master"), RW("m"), RW("v"), RW("grad"), WO("copy"), R("state"), R("seg") } },
    [OP_ALL_REDUCE]   = { "all_reduce", 2, { W("y"), R("x") }, .alias = { { 0, 1 } } },
    [OP_REDUCE_SCATTER] = { "reduce_scatter", 2, { W("y"), R("x") }, .alias = { { 0, 1 } } },
    [OP_ALL_GATHER]   = { "all_gather", 2, { W("y"), R("x") }, .alias = { { 0, 1 } } },
};
/* clang-format on */
