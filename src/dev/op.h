/* Op: THE contract between what is recorded and what runs.
 *
 * 1. OP_LIST is the only list of op kinds. It generates the enum, the names, the argument union, the
 *    recorders (prog/record.h), the backend slots (dev/dev.h) and the rows of the op tests.
 * 2. An argument struct begins with its tensors, in the order of its row in op_table.c, outputs first;
 *    scalars follow. A NULL tensor is an absent optional argument.
 * 3. An op never allocates, never synchronises, and takes nothing by value that changes from step to step:
 *    such numbers are tensors (StepState, sample index, KV length).
 * 4. `_dx` ops overwrite their output; `_dw` ops accumulate into it (access READ|WRITE).
 * 5. The CPU version (dev/cpu) is the definition. Shapes are in the comment beside each struct: B batch, T
 *    time, N = B*T rows, C width, F feed-forward width, H query heads, K key/value heads, D head size, V
 *    classes. Activations have the run's compute dtype, statistics and losses f32, indices i32.
 * 6. All activations are rows x cols with a row stride (tensor_ld); leading dimensions only matter where B
 *    and T are named.
 * 7. `ws` is scratch (u8) of op_workspace_bytes(); prog adds it, absent when the backend needs none. */
#ifndef DEV_OP_H
#define DEV_OP_H

#include "plan/machine.h"
#include "tensor/tensor.h"

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The list: X(ENUM suffix, field and slot name, argument struct) ------------------------------------ */

#define OP_LIST(X)                                                                                           \
    X(EMBED_FWD, embed_fwd, EmbedFwd)                                                                        \
    X(EMBED_DW, embed_dw, EmbedDw)                                                                           \
    X(POS_DW, pos_dw, PosDw)                                                                                 \
    X(PATCHES, patches, Patches)                                                                             \
    X(NORM_FWD, norm_fwd, NormFwd)                                                                           \
    X(NORM_DX, norm_dx, NormDx)                                                                              \
    X(NORM_DW, norm_dw, NormDw)                                                                              \
    X(ADD_NORM_FWD, add_norm_fwd, AddNormFwd)                                                                \
    X(NORM_BWD, norm_bwd, NormBwd)                                                                           \
    X(LINEAR_FWD, linear_fwd, LinearFwd)                                                                     \
    X(LINEAR_DX, linear_dx, LinearDx)                                                                        \
    X(LINEAR_DW, linear_dw, LinearDw)                                                                        \
    X(BIAS_DW, bias_dw, BiasDw)                                                                              \
    X(LINEAR_ACT_FWD, linear_act_fwd, LinearActFwd)                                                          \
    X(LINEAR_ACT_BWD, linear_act_bwd, LinearActBwd)                                                          \
    X(LINEAR_GLU_FWD, linear_glu_fwd, LinearGluFwd)                                                          \
    X(LINEAR_GLU_BWD, linear_glu_bwd, LinearGluBwd)                                                          \
    X(ACT_FWD, act_fwd, ActFwd)                                                                              \
    X(ACT_DX, act_dx, ActDx)                                                                                 \
    X(ACT_BIAS_BWD, act_bias_bwd, ActBiasBwd)                                                                \
    X(GLU_FWD, glu_fwd, GluFwd)                                                                              \
    X(GLU_DX, glu_dx, GluDx)                                                                                 \
    X(ADD, add, Add)                                                                                         \
    X(MUL, mul, Mul)                                                                                         \
    X(SCALE, scale, Scale)                                                                                   \
    X(SCALE_DW, scale_dw, ScaleDw)                                                                           \
    X(ROWS_FWD, rows_fwd, RowsFwd)                                                                           \
    X(ROWS_DX, rows_dx, RowsDx)                                                                              \
    X(MEAN_ROWS_FWD, mean_rows_fwd, MeanRowsFwd)                                                             \
    X(MEAN_ROWS_DX, mean_rows_dx, MeanRowsDx)                                                                \
    X(ADD_POS, add_pos, AddPos)                                                                              \
    X(ROPE, rope, Rope)                                                                                      \
    X(QKNORM_FWD, qknorm_fwd, QkNormFwd)                                                                     \
    X(QKNORM_DX, qknorm_dx, QkNormDx)                                                                        \
    X(QKNORM_DW, qknorm_dw, QkNormDw)                                                                        \
    X(ATTN_FWD, attn_fwd, AttnFwd)                                                                           \
    X(ATTN_BWD, attn_bwd, AttnBwd)                                                                           \
    X(ATTN_DECODE, attn_decode, AttnDecode)                                                                  \
    X(CROSS_ATTN_FWD, cross_attn_fwd, CrossAttnFwd)                                                          \
    X(CROSS_ATTN_BWD, cross_attn_bwd, CrossAttnBwd)                                                          \
    X(DROPOUT, dropout, Dropout)                                                                             \
    X(XENT_FWD, xent_fwd, XentFwd)                                                                           \
    X(XENT_DX, xent_dx, XentDx)                                                                              \
    X(XENT, xent, Xent)                                                                                      \
    X(MSE_FWD, mse_fwd, MseFwd)                                                                              \
    X(MSE_DX, mse_dx, MseDx)                                                                                 \
    X(KL_FWD, kl_fwd, KlFwd)                                                                                 \
    X(KL_DX, kl_dx, KlDx)                                                                                    \
    X(KL_TEACHER, kl_teacher, KlTeacher)                                                                     \
    X(SAMPLE_CAT, sample_cat, SampleCat)                                                                     \
    X(SAMPLE_GAUSS, sample_gauss, SampleGauss)                                                               \
    X(PPO_CAT_FWD, ppo_cat_fwd, PpoCatFwd)                                                                   \
    X(PPO_CAT_DX, ppo_cat_dx, PpoCatDx)                                                                      \
    X(PPO_GAUSS_FWD, ppo_gauss_fwd, PpoGaussFwd)                                                             \
    X(PPO_GAUSS_DX, ppo_gauss_dx, PpoGaussDx)                                                                \
    X(GAE, gae, Gae)                                                                                         \
    X(STATS, stats, Stats)                                                                                   \
    X(OBS_STATS, obs_stats, ObsStats)                                                                        \
    X(OBS_NORM, obs_norm, ObsNorm)                                                                           \
    X(PUT, put, Put)                                                                                         \
    X(TICK, tick, Tick)                                                                                      \
    X(PERM, perm, Perm)                                                                                      \
    X(PACK_ROWS, pack_rows, PackRows)                                                                        \
    X(CALL, call, CallFn)                                                                                    \
    X(LOSS_ADD, loss_add, LossAdd)                                                                           \
    X(HALT, halt, Halt)                                                                                      \
    X(FILL, fill, Fill)                                                                                      \
    X(COPY, copy, Copy)                                                                                      \
    X(CAST, cast, Cast)                                                                                      \
    X(QUANT, quant, Quant)                                                                                   \
    X(FP8_SCALE, fp8_scale, Fp8Scale)                                                                        \
    X(FP8_LINEAR, fp8_linear, Fp8Linear)                                                                     \
    X(FP8_LINEAR_DW, fp8_linear_dw, Fp8LinearDw)                                                             \
    X(SUMSQ, sumsq, Sumsq)                                                                                   \
    X(CLIP, clip, Clip)                                                                                      \
    X(ADAMW, adamw, AdamW)                                                                                   \
    X(EMA, ema, Ema)                                                                                         \
    X(MOMENTUM, momentum, Momentum)                                                                          \
    X(ORTHO, ortho, Ortho)                                                                                   \
    X(MUON, muon, Muon)                                                                                      \
    X(ALL_REDUCE, all_reduce, AllReduce)                                                                     \
    X(REDUCE_SCATTER, reduce_scatter, ReduceScatter)                                                         \
    X(ALL_GATHER, all_gather, AllGather)

typedef enum {
#define X(KIND, field, Type) OP_##KIND,
    OP_LIST(X)
#undef X
        OP_COUNT
} OpKind;

/* ---- State shared by host and device ------------------------------------------------------------------- */

/* Everything that changes from step to step, in SLAB_STATE.
 *
 * Before the first micro-step the host writes StepIn and clears the sums of StepOut, with one copy of
 * STEP_UPLOAD_BYTES. The device writes StepOut; the host reads StepOut one step late. Everything that decides
 * about an update (skips, bias correction, the running loss) lives on the device. So a resumed run repeats an
 * update bit for bit, however late the host reads.
 *
 * A step may have several losses. Each loss has a slot: sum[slot] adds up its rows, inv[slot] is its weight
 * divided by its targets. The loss of an update is the sum over slots of sum[slot] * inv[slot]. A slot may
 * also hold a measure, which is reported and is no part of the loss. */
enum { LOSS_SLOTS = 8, SCALE_EXP_MAX = 24 };

/* Why an update only clears gradients. */
typedef enum {
    SKIP_NONE,       /* it does not: it is an update */
    SKIP_NOT_FINITE, /* loss or gradient */
    SKIP_SPIKE,      /* of the loss */
    SKIP_HALTED,     /* HALT ended the updates of this step */
    SKIP_OVERFLOW,   /* of the scaled gradient */
} SkipReason;

typedef struct {
    int64_t  step;            /* 0 for the first update */
    uint64_t seed;            /* RNG key, low part */
    float    lr;              /* learning rate of this step, before a segment's multiplier */
    float    inv[LOSS_SLOTS]; /* weight / valid targets of the whole update, over all ranks and micro-steps */
    float    loss_scale;      /* multiplies gradients of the loss, beside 2^out.scale_exp; 1 but in tests */
    int32_t  measures;        /* bit k: slot k is only reported and is no part of the loss */
    int32_t  reserved;        /* 0; StepOut begins at a multiple of 8 bytes */
} StepIn;

typedef struct {
    double  sum[LOSS_SLOTS];    /* sums of per-row losses since the last CLIP; LOSS_ADD adds */
    double  report[LOSS_SLOTS]; /* sum * inv of each update of this step, added up by CLIP */
    int32_t n_report;           /* updates of this step so far, skipped ones included */
    int32_t stop;               /* 1: HALT ended the updates of this step; CLIP skips those that follow */
    double  grad_sumsq;         /* SUMSQ adds, CLIP consumes and clears */
    double  loss_ema;           /* running mean of the loss over updates that were not skipped */
    float   loss;               /* of the last update, written by CLIP */
    float   grad_norm;          /* before clipping, written by CLIP */
    float   clip;               /* factor applied to gradients by the optimizer, undoes the loss scale */
    float   bias1;              /* 1 / (1 - beta1^n_update) */
    float   bias2;              /* 1 / (1 - beta2^n_update) */
    int32_t skip;               /* SkipReason */
    int32_t n_update;           /* updates done, this one included */
    int32_t n_skipped;          /* skips over the run, those after HALT and overflows not counted */
    int32_t n_skip_row;         /* skips in a row up to now, likewise */
    int32_t scale_exp;          /* gradients are computed times 2^scale_exp; CLIP adapts it. 0: not scaled */
    int32_t n_scaled;           /* updates since it last changed */
    int32_t n_overflow;         /* updates skipped on its account, over the run */
} StepOut;

typedef struct {
    StepIn  in;
    StepOut out;
} StepState;

enum { STEP_UPLOAD_BYTES = sizeof(StepIn) + 2 * LOSS_SLOTS * sizeof(double) + 2 * sizeof(int32_t) };

/* One row of the optimizer's segment table (u8 tensor of Segment, sorted by begin). A gap between segments is
 * padding and is left alone. */
typedef struct {
    int64_t begin; /* first element, in the flat range */
    int64_t end;   /* one past the last */
    float   decay; /* weight decay */
    float   lr_mul;
} Segment;

/* ACT_GELU is the tanh form, ACT_GELU_ERF the exact one. ACT_SLOPE is for gradients only: the argument pre
 * then holds the stored slopes instead of the activation's input: act'(pre), or for a gate [act'(gate) * up |
 * act(gate)]. Own CUDA products fuse the first ACT_FUSED activations; the others run after the product. */
typedef enum {
    ACT_GELU,
    ACT_RELU2,
    ACT_SILU,
    ACT_RELU,
    ACT_FUSED,
    ACT_TANH = ACT_FUSED,
    ACT_SIGMOID,
    ACT_GELU_ERF,
    ACT_COUNT,
    ACT_SLOPE = ACT_COUNT
} Act;

/* What QUANT makes of x before it rounds. */
typedef enum {
    QUANT_PLAIN,
    QUANT_ACT,
    QUANT_GLU,
    QUANT_ACT_DX,
    QUANT_GLU_DX,
    QUANT_XENT_DX,
    QUANT_FROM_COUNT
} QuantFrom;

/* Libraries ask that the sides of a product in fp8 are multiples of this. */
enum { FP8_SIDE = 16 };

/* A site: what is known of a tensor in fp8, f32[FP8_SITE] in SLAB_STATE. scale multiplies, inv = 1/scale
 * restores; amax: largest magnitude since the last FP8_SCALE; cursor: next place in the history of amax. The
 * first three stand 16 bytes apart, because a library reads inv by address. */
enum {
    FP8_SITE_SCALE   = 0,
    FP8_SITE_INV     = 4,
    FP8_SITE_AMAX    = 8,
    FP8_SITE_CURSOR  = 12,
    FP8_SITE_HISTORY = 16,
    FP8_SITE         = 32,
    FP8_HISTORY      = FP8_SITE - FP8_SITE_HISTORY
};

/* Rows of PPO's parts: the losses before their weights; the entropy; log(1/r) and (r - 1) - log r, which
 * measure how far the policy has moved; and 1 where r is outside of 1 -+ clip. */
enum { PPO_POLICY, PPO_VALUE, PPO_ENTROPY, PPO_OLD_KL, PPO_KL, PPO_CLIPPED, PPO_PARTS };

typedef enum {
    MASK_CAUSAL,   /* key <= query */
    MASK_FULL,     /* every key */
    MASK_PREFIX,   /* key <= query, or key < prefix[b] */
    MASK_DOCUMENT, /* key <= query and key >= doc[b,t]: the row of its document's first token */
    MASK_RANGE,    /* first[b,t] <= key <= last[b,t]; last < first: the query sees no key */
    MASK_COUNT
} Mask;

/* What all attention ops know of a problem besides its tensors. Query head h reads key/value head h /
 * (heads/kv_heads). */
typedef struct {
    int   heads, kv_heads, head_dim;
    Mask  mask;
    float scale;
    int   deterministic; /* the gradient must give the same bits each time */
    int   mean_keys;     /* MASK_RANGE: keys a query sees on average, for FLOPs alone; 0: half of all */
    int   window;        /* attn_decode: the newest keys that a query sees, its own included; 0: all */
} AttnShape;

/* ---- Arguments: tensors first, outputs first ----------------------------------------------------------- */
/* One line an op. */
/* clang-format off */

/* y[N,C] = wte[tok[n]] + wpe[pos0 + n mod T];  tok i32[B,T], wte [V,C], wpe [T,C]?, pos0 i32[1] or i32[B]? (0
 * if absent) */
typedef struct { Tensor *y, *tok, *wte, *wpe, *pos0; } EmbedFwd;
/* dwte f32[V,C] += sum over n with tok[n]==v of dy[n]; in increasing n; rows with tok -1 are left out */
typedef struct { Tensor *dwte, *ws, *dy, *tok; } EmbedDw;
/* dwpe f32[T,C] += sum over b of dy[b,t] */
typedef struct { Tensor *dwpe, *dy; } PosDw;

/* Images as bytes, u8[B, frames, src_height, src_width, 3] (contiguous, any ndim), to rows of patches.
 *   y [B*n_patch, tubelet*P*P*3], n_patch = frames/tubelet * height/P * width/P; P is patch.
 *   Rows of y go by (sample, time, patch row, patch column), its columns by (frame, row, column, channel).
 *   y = (v/255 - mean[c])/std[c], where v is the pixel of sample b, or a mix with its partner's.
 * crop i32[B,3]?: top, left, and 1 if mirrored, of each sample's height x width window (all 0 if absent).
 * partner i32[B]?: the partner of sample b is sample b + partner[b], so a source need not know the place of a
 * sample. v = lambda[b] * own + (1 - lambda[b]) * partner's; lambda f32[B]? (1 if absent).
 * box i32[B,4]?: first row, end row, first column, end column in the window; v inside is the partner's.
 * There is no gradient. */
typedef struct {
    Tensor *y, *img, *crop, *partner, *lambda, *box;
    int     frames, src_height, src_width, height, width, tubelet, patch;
    float   mean[3], std[3];
} Patches;

/* y = (x - mean) * rstd * gamma + beta per row. mean NULL: RMSNorm (no mean, no beta). gamma, beta f32[C];
 * mean, rstd f32[N]. */
typedef struct { Tensor *y, *mean, *rstd, *x, *gamma, *beta; float eps; } NormFwd;
/* dx of the norm alone; dx may alias dy */
typedef struct { Tensor *dx, *dy, *x, *gamma, *mean, *rstd; } NormDx;
/* dgamma f32[C] += sum dy*xhat, dbeta f32[C]? += sum dy */
typedef struct { Tensor *dgamma, *dbeta, *ws, *dy, *x, *mean, *rstd; } NormDw;
/* fused ADD + NORM_FWD: sum = a + b (rounded to its dtype), y = norm(sum); sum may alias a or b */
typedef struct { Tensor *y, *sum, *mean, *rstd, *a, *b, *gamma, *beta; float eps; } AddNormFwd;
/* fused NORM_DX (+ NORM_DW) (+ ADD) (+ BIAS_DW): dx = dres? + norm_dx(dy); dbias f32[C]? += sum over rows of
 * dx as stored. dx is the gradient of the output of the linear layer before, so dbias is that layer's bias
 * gradient. dgamma f32[C]?: a frozen norm has none. dx may alias dy or dres */
typedef struct { Tensor *dx, *dgamma, *dbeta, *dbias, *ws, *dy, *x, *gamma, *mean, *rstd, *dres; } NormBwd;

/* y[N,M] = x[N,K] w[M,K]^T + bias[M]? */
typedef struct { Tensor *y, *ws, *x, *w, *bias; } LinearFwd;
/* dx[N,K] = dy[N,M] w[M,K] */
typedef struct { Tensor *dx, *ws, *dy, *w; } LinearDx;
/* dw f32[M,K] += dy[N,M]^T x[N,K]; db f32[M]? += sum over rows of dy: fused LINEAR_DW + BIAS_DW */
typedef struct { Tensor *dw, *db, *ws, *dy, *x; } LinearDw;
/* db f32[M] += sum over rows of dy[N,M] */
typedef struct { Tensor *db, *ws, *dy; } BiasDw;
/* In the products fused with an activation or a gate x, pre and y (backward: dy, pre and dpre) have one
 * dtype; "rounded" is to it.
 *
 * fused LINEAR_FWD + ACT_FWD: pre = x w^T + bias, y = act(pre); with slope, act'(pre) is written in pre's
 * place, for a LINEAR_ACT_BWD with ACT_SLOPE */
typedef struct { Tensor *y, *pre, *ws, *x, *w, *bias; Act act; int slope; } LinearActFwd;
/* fused LINEAR_DX + ACT_DX (+ BIAS_DW): d[N,F] = dy[N,M] w[M,F] (rounded), dpre = d * act'(pre[N,F]);
 * db f32[F]? += sum over rows of dpre as stored. dpre may alias pre */
typedef struct { Tensor *dpre, *db, *ws, *dy, *w, *pre; Act act; } LinearActBwd;
/* fused LINEAR_FWD + GLU_FWD: pre[N,2F] = x[N,K] w[2F,K]^T = [gate | up] (rounded), y[N,F] = act(gate) * up.
 * slope (dev/glu.h): with GLU_SLOPE pre gets [act'(gate) * up | act(gate)] of the rounded gate and up, for a
 * LINEAR_GLU_BWD with ACT_SLOPE; with GLU_UNREAD pre may hold anything */
typedef struct { Tensor *y, *pre, *ws, *x, *w; Act act; int slope; } LinearGluFwd;
/* fused LINEAR_DX + GLU_DX: d[N,F] = dy[N,M] w[M,F] (rounded), dpre[N,2F] = glu_dx(d, pre[N,2F]);
 * dpre may alias pre */
typedef struct { Tensor *dpre, *ws, *dy, *w, *pre; Act act; } LinearGluBwd;

typedef struct { Tensor *y, *x; Act act; } ActFwd;      /* y = act(x); y may alias x */
typedef struct { Tensor *dx, *dy, *x; Act act; } ActDx; /* dx = dy * act'(x); dx may alias dy or x */
/* fused ACT_DX + BIAS_DW: dx = dy * act'(x), db f32[M] += sum over rows of dx */
typedef struct { Tensor *dx, *db, *ws, *dy, *x; Act act; } ActBiasBwd;
/* x[N,2F] = [gate | up], y[N,F] = act(gate) * up */
typedef struct { Tensor *y, *x; Act act; } GluFwd;
typedef struct { Tensor *dx, *dy, *x; Act act; } GluDx; /* dx[N,2F]; dx may alias x */
typedef struct { Tensor *y, *a, *b; } Add;              /* y = a + b; y may alias a or b */
typedef struct { Tensor *y, *a, *b; } Mul;              /* y = a * b; y may alias a or b */
/* y = x * gamma, one factor a column: gamma f32[C]; y may alias x. The same op gives the gradient of x. */
typedef struct { Tensor *y, *x, *gamma; } Scale;
typedef struct { Tensor *dgamma, *ws, *dy, *x; } ScaleDw; /* dgamma f32[C] += sum over rows of dy*x */

/* y[N,C] = x[index[at*N + n]] of x[M,C], any dtype; index -1 gives a row of zeros.
 * index i32[N], or longer with at i32[1]? */
typedef struct { Tensor *y, *x, *index, *at; } RowsFwd;
/* dx[M,C] = sum over n with index[n]==m of dy[n], in increasing n and f32; 0 where there is none */
typedef struct { Tensor *dx, *ws, *dy, *index; } RowsDx;
/* y[B,C] = mean over t < len[b] of x[B,T,C], 0 where len[b] is 0; len i32[B]? (T if absent) */
typedef struct { Tensor *y, *x, *len; } MeanRowsFwd;
typedef struct { Tensor *dx, *dy, *len; } MeanRowsDx; /* dx[B,T,C] = dy[b]/len[b], 0 from t = len[b] on */
/* y[b,t] = x[b,t] + pos[t] of x[B,T,C] and pos[T or more,C]; y may alias x. The gradient of pos is POS_DW. */
typedef struct { Tensor *y, *x, *pos; } AddPos;

/* Rotary embedding on the first n_head heads of each packed row x[B,T,W], W >= n_head*D; halves (i, i + D/2)
 * are rotated by table f32[T, D] = [cos(D/2) | sin(D/2)] at position pos0 + t; pos0 i32[1] or i32[B]? (0 if
 * absent). The rest of the row is copied. inverse: rotate back (the gradient). y may alias x. */
typedef struct { Tensor *y, *x, *table, *pos0; int n_head, head_dim, inverse; } Rope;

/* RMS norm of each query and key head of packed x[N,(H+2K)*D]; values are copied. gq, gk f32[D]; rstd
 * f32[N,H+K]. y may alias x in FWD only if no gradient is needed; dx may alias dy. */
typedef struct { Tensor *y, *rstd, *x, *gq, *gk; int heads, kv_heads, head_dim; float eps; } QkNormFwd;
typedef struct { Tensor *dx, *dy, *x, *gq, *gk, *rstd; int heads, kv_heads, head_dim; } QkNormDx;
typedef struct { Tensor *dgq, *dgk, *ws, *dy, *x, *rstd; int heads, kv_heads, head_dim; } QkNormDw;

/* o[B,T,H*D] = softmax(scale q k^T + mask) v from packed qkv[B,T,(H+2K)*D] = [q heads | k heads | v heads].
 * lse f32[B,H,T] = log sum exp of the scaled, masked scores. A query that sees no key has o = 0, lse = 0 and
 * no gradient. doc i32[B,T]? for MASK_DOCUMENT, prefix i32[B]? for MASK_PREFIX, first and last i32[B,T]? for
 * MASK_RANGE; keys outside 0..T-1 do not exist. p [B,H,T,T]? in the dtype of qkv gets the weights (0 where
 * the mask hides a key): the form that stores them instead of computing them again, for comparison. */
typedef struct { Tensor *o, *lse, *p, *ws, *qkv, *doc, *prefix, *first, *last; AttnShape shape; } AttnFwd;
/* dqkv is packed like qkv; p?: the weights that the forward op stored. table f32[T, D]?: q and k had been
 * rotated by it from position 0 on (Rope), and their gradients are rotated back. */
typedef struct {
    Tensor   *dqkv, *ws, *dout, *o, *lse, *qkv, *doc, *prefix, *first, *last, *p, *table;
    AttnShape shape;
} AttnBwd;
/* T >= 1 new tokens a sequence: token t of sequence b is at position n = len[b] + t (len i32[1]: one length
 * for all). Its k and v in qkv[B,T,(H+2K)*D] go to row n of the caches [B,Tmax,K,D], and its query sees rows
 * 0..n, or the last shape.window of them. All positions are below Tmax. The mask is causal, whatever the
 * shape.mask says. With T = 1 qkv may be [B,(H+2K)*D]. */
typedef struct { Tensor *o, *kcache, *vcache, *ws, *qkv, *len; AttnShape shape; } AttnDecode;
/* o[B,T,H*D] = softmax(scale q k^T + mask) v with q[B,T,H*D] and kv[B,S,2*K*D] = [k heads | v heads] of
 * another sequence; lse f32[B,H,T]. Masks: MASK_FULL, or MASK_RANGE with first and last i32[B,T]. len
 * i32[B]?: the keys from len[b] on do not exist. A query that sees no key has o = 0, lse = 0 and no gradient.
 * */
typedef struct { Tensor *o, *lse, *ws, *q, *kv, *first, *last, *len; AttnShape shape; } CrossAttnFwd;
typedef struct {
    Tensor   *dq, *dkv, *ws, *dout, *o, *lse, *q, *kv, *first, *last, *len;
    AttnShape shape;
} CrossAttnBwd;

/* y = keep ? x/(1-p) : 0. The draw for element e of a sample is philox(key (seed, site), counter (step,
 * sample0 + b, e)), where e counts within one sample; sample0 i64[1]. per_sample: one draw, that of e = 0,
 * for a whole sample (drop path). The same op is its own gradient. y may alias x. */
typedef struct {
    Tensor *y, *x, *state, *sample0;
    float   p;
    int     site;
    int64_t rows_per_sample;
    int     per_sample;
} Dropout;

/* Losses give one number a row. Their gradients are multiplied by step_scale(state, slot) (dev/op_math.h).
 *
 * Cross-entropy: loss f32[N] = lse - sum of q logit, lse f32[N]; 0 where target is -1. Classes >= n_class are
 * padding. A hard target has q = [c = target]. Soft targets have
 *   q = (1 - smooth) (lambda [c = target] + (1 - lambda) [c = target2]) + smooth/n_class.
 * target, target2 i32[N], lambda f32[N]; target2 and lambda come together, and target2 is a class even where
 * target is -1. hits f32[2]? += rows whose target has the largest logit, and one of the 5 largest; of equal
 * logits the lower class comes first. */
typedef struct {
    Tensor *loss, *lse, *hits, *logits, *target, *target2, *lambda;
    int64_t n_class;
    float   smooth;
    int     slot;
} XentFwd;
/* dlogits = (softmax - q) * step_scale, 0 where target is -1 and in padding; may alias logits */
typedef struct {
    Tensor *dlogits, *logits, *lse, *target, *target2, *lambda, *state;
    int64_t n_class;
    float   smooth;
    int     slot;
} XentDx;
/* fused XENT_FWD + XENT_DX of hard targets; dlogits may alias logits */
typedef struct { Tensor *loss, *dlogits, *logits, *target, *state; int64_t n_class; int slot; } Xent;
/* loss f32[N] = sum over columns of (x - target)^2/2; x [N,C], target f32[N,C]. With old f32[N,C]? and clip
 * f32[1]?, column by column the larger of that and (old + clamp(x - old, -clip, clip) - target)^2/2: PPO's
 * value loss. */
typedef struct { Tensor *loss, *x, *target, *old, *clip; int slot; } MseFwd;
typedef struct { Tensor *dx, *x, *target, *old, *clip, *state; int slot; } MseDx; /* dx may alias x */
/* loss f32[N] = tau^2 * sum over c < n_class of p log(p/q); 0 where target i32[N]? is -1.
 * p = softmax(teacher/tau), q = softmax(logits/tau); lse, tlse f32[N]: log sum exp of logits/tau and of
 * teacher/tau. The teacher gets no gradient. */
typedef struct {
    Tensor *loss, *lse, *tlse, *logits, *teacher, *target;
    int64_t n_class;
    float   tau;
    int     slot;
} KlFwd;
/* dlogits = tau (q - p) * step_scale, 0 where target is -1 and in padding; may alias logits */
typedef struct {
    Tensor *dlogits, *logits, *teacher, *lse, *tlse, *target, *state;
    int64_t n_class;
    float   tau;
    int     slot;
} KlDx;
/* The teacher of KL from a few of its logits: y f32[N,V] has x f32[N,K] in the columns id i32[N,K], and the
 * logits plus a number in the others, so that these have their share: the log of their sum of exp(y/tau) is
 * rest f32[N]. So KL compares the few classes and the others as a whole. 0 from n_class on. The ids of a row
 * are different ones; -1 is none. */
typedef struct {
    Tensor *y, *logits, *x, *id, *rest;
    int64_t n_class;
    float   tau;
} KlTeacher;

/* Reinforcement learning: N samples, T steps of a rollout, A logits or dimensions of an action.
 *
 * Categorical policies: logits [N,A] are S segments; action i32[N,S] has one class of each, counted from the
 *   segment's first column. seg i32[S+1]?: borders of the segments (absent: one segment of A columns).
 *   mask u8[N,A]?: 0 hides a class. If a segment's classes are all hidden, none is.
 * Normal policies: action f32[N,A], mean [N,A]; log_std is f32[A], or [N,A] in the dtype of mean.
 * logp, entropy f32[N]: sums over segments or dimensions.
 *
 * Sampling: element e of sample sample0 + n is drawn as in Dropout; e = t*S + s for a segment, and block
 * 4*(t*A + a) for a dimension. sample0 i64[1], t i32[1]? (0 if absent). A segment gives the first class whose
 * running sum of probabilities exceeds the draw. greedy: the most likely action instead. */
typedef struct {
    Tensor *action, *logp, *entropy, *logits, *mask, *seg, *state, *sample0, *t;
    int     site, greedy;
} SampleCat;
typedef struct {
    Tensor *action, *logp, *entropy, *mean, *log_std, *state, *sample0, *t;
    int     site, greedy;
} SampleGauss;
/* PPO: loss f32[N] = policy - entropy_weight * entropy + value_weight * v.
 *   policy = max(-g r, -g clamp(r, 1 - clip, 1 + clip)), r = exp(logp - old_logp)
 *   g      = (adv - norm[0])/(norm[1] + 1e-8), norm f32[2 or more]? as STATS gives it; adv if absent
 *   v      = the loss of MSE_FWD for value [N,1] and ret, with old_value if clip_value > 0
 * coef f32[4] = clip, clip_value, entropy_weight, value_weight. old_logp, adv, ret, old_value f32[N]; value,
 * ret and old_value come together or not at all. Rows with valid i32[N]? 0 give 0 everywhere.
 * parts f32[PPO_PARTS,N]?: one row for each number of the enum above. */
typedef struct {
    Tensor *loss, *parts, *logits, *value, *action, *old_logp, *adv, *ret, *old_value, *norm, *mask, *seg,
        *valid, *coef;
    int slot;
} PpoCatFwd;
/* Gradients times step_scale; dlogits?, dvalue?; dlogits may alias logits. */
typedef struct {
    Tensor *dlogits, *dvalue, *logits, *value, *action, *old_logp, *adv, *ret, *old_value, *norm, *mask,
        *seg, *valid, *coef, *state;
    int slot;
} PpoCatDx;
typedef struct {
    Tensor *loss, *parts, *mean, *log_std, *value, *action, *old_logp, *adv, *ret, *old_value, *norm, *valid,
        *coef;
    int slot;
} PpoGaussFwd;
/* dmean?, dvalue?. dlog_std [N,A]? has one row a sample even if log_std is f32[A]: BIAS_DW adds the rows. */
typedef struct {
    Tensor *dmean, *dlog_std, *dvalue, *mean, *log_std, *value, *action, *old_logp, *adv, *ret, *old_value,
        *norm, *valid, *coef, *state;
    int slot;
} PpoGaussDx;
/* Generalised advantage estimates over [T,N], f32; terminated, truncated u8[T,N] say how step t ended.
 *   next = 0 if terminated, else final_value[t,n] if truncated, else value[t+1,n], at the end last_value[n]
 *   adv  = reward + gamma*next - value + (ended ? 0 : gamma*lambda*adv[t+1]);  ret = adv + value
 * Without final_value f32[T,N]? a truncation counts as a termination. */
typedef struct {
    Tensor *adv, *ret, *reward, *value, *last_value, *terminated, *truncated, *final_value;
    float   gamma, lambda;
} Gae;
/* out f32[3] = mean, standard deviation and number of the elements of x f32 whose valid i32? is not 0. The
 * deviation is over n - 1 if unbiased; it is 0 for n < 2. */
typedef struct { Tensor *out, *ws, *x, *valid; int unbiased; } Stats;
/* Running mean and variance: run f64[1 + 2D] = n, D means, D sums of squared deviations. run takes in the
 * rows of x f32[N,D] whose valid i32[N]? is not 0. */
typedef struct { Tensor *run, *x, *valid; } ObsStats;
/* y [N,D] = clamp((x - mean)/sqrt(variance + eps), -clip, clip); mean 0 and variance 1 while run has n = 0 */
typedef struct { Tensor *y, *x, *run; float eps, clip; } ObsNorm;
/* Row t i32[1] of y[k] [T,...] = x[k] [...] for each pair, any dtype, contiguous. Pairs after the first may
 * be absent. A t outside y is a bug that the CPU reports. One op stores all: a launch costs as much as some
 * small rows. */
enum { PUT_PAIRS = 10 };
typedef struct { Tensor *y[PUT_PAIRS], *x[PUT_PAIRS], *t; } Put;
typedef struct { Tensor *t; int modulo; } Tick; /* t i32[1] = (t + 1) mod modulo */
/* index i32[n] = a permutation of 0..n-1 by (seed, site, step, epoch i32[1]?), the same on every device */
typedef struct { Tensor *index, *state, *epoch; int site; } Perm;
/* Sequences of different lengths, side by side. Sequence b has len i32[B] rows of a padded [B,stride]. In the
 * packed form of R rows sequence 0 begins at row 0; each other one begins behind the one before, at a
 * multiple of align.
 *   index i32[R]        row of the padded form; -1 in rows of no sequence
 *   first, last i32[R]  rows of the same sequence that a row may see, up to itself if causal; 0, -1 for none
 *   tail i32[B*n_tail]? the last n_tail packed rows of each sequence; -1 where a sequence is shorter
 *   low, high i32[B*n_each]?  first and last packed row of each sequence, n_each times; 0, -1 if it is empty
 * Sequences that do not fit into R rows are a bug that the CPU reports. */
typedef struct {
    Tensor *index, *first, *last, *tail, *low, *high, *len;
    int64_t stride;
    int     align, causal, n_tail, n_each;
} PackRows;

/* A function of the task, for what no other op can say: environments that step on the device. The function
 * reads and writes its tensors; some may be absent. It queues its work on stream; on the CPU stream is NULL,
 * and the work is done at once. It keeps the contract of every op. Negative after err_set(). ctx is the
 * task's own, constant while the program lives. */
enum { CALL_TENSORS = 14 };
typedef struct CallFn CallFn;
struct CallFn {
    Tensor *t[CALL_TENSORS];
    int (*fn)(const CallFn *a, void *stream);
    const void *ctx;
};

/* state.out.sum[slot + k] += sum of row k of loss f32[n_slot,N] in a fixed order; n_slot 0 counts as 1 */
typedef struct { Tensor *state, *loss; int slot, n_slot; } LossAdd;
/* state.out.stop = 1 if sum[slot] * inv[slot] > limit. Stands before CLIP, which then skips this update and
 * all others of the step. */
typedef struct { Tensor *state; int slot; float limit; } Halt;

typedef struct { Tensor *y; float value; } Fill;
typedef struct { Tensor *y, *x; } Copy; /* same dtype and size in bytes */
typedef struct { Tensor *y, *x; } Cast; /* any of f32, bf16, f16 to any */
/* To fp8 (E4M3 or E5M2). v [N,C] is x, or what `from` makes of x, rounded to the dtype of x.
 *   q [N,C]? = saturate(v * scale), qt [C,N]? its transpose; site.amax = max(amax, max |v|).
 * site f32[FP8_SITE]. If its scale is 0, or with `dynamic`, max |v| gives the scale first (fp8_scale_for);
 * dynamic also starts amax anew. QUANT_GLU: x [N,2C]. QUANT_ACT_DX: dy [N,C], QUANT_GLU_DX: dy [N,C/2].
 * QUANT_XENT_DX is XENT_DX of hard targets: x are logits, lse f32[N], target i32[N].
 * db f32[C]? += sum over rows of v: a bias gradient; not with QUANT_XENT_DX. */
typedef struct {
    Tensor   *q, *qt, *site, *db, *ws, *x, *dy, *lse, *target, *state;
    DType     q_dtype;
    QuantFrom from;
    Act       act;
    int       dynamic;
    int64_t   n_class;
    int       slot;
} Quant;
/* Delayed scaling, for all rows of sites f32[S,FP8_SITE] of tensors in q_dtype. If amax is finite and not 0,
 * amax goes to the history, and the largest number there gives the scale. amax = 0 always. all
 * f32[R*S,FP8_SITE]?: the sites of R ranks, one after the other. A site's amax is the largest of them. */
typedef struct { Tensor *sites, *all; DType q_dtype; } Fp8Scale;
/* y[N,M] = a[N,K] b[M,K]^T * (a_site.inv * b_site.inv) + bias[M]?; a and b are fp8, sums f32. fast: a GPU
 * may add up with fewer bits. LINEAR_FWD has a = x, b = w; LINEAR_DX a = dy, b = w^T. */
typedef struct { Tensor *y, *ws, *a, *b, *a_site, *b_site, *bias; int fast; } Fp8Linear;
/* dw f32[M,K] += a[M,N] b[K,N]^T * (a_site.inv * b_site.inv), a = dy^T, b = x^T */
typedef struct { Tensor *dw, *ws, *a, *b, *a_site, *b_site; int fast; } Fp8LinearDw;

/* state.out.grad_sumsq += sum of squares of x, in a fixed order */
typedef struct { Tensor *state, *ws, *x; } Sumsq;
/* Decides about this update. loss = sum over slots of sum*inv, measures left out;
 * grad_norm = sqrt(grad_sumsq)/S, where S is loss_scale * 2^scale_exp.
 * report += sum*inv, sum = 0 for each slot, n_report += 1.
 * stop: skip = SKIP_HALTED, clip = 0, and nothing else changes. Otherwise
 * skip = SKIP_OVERFLOW if scale_every > 0, scale_exp > 1, loss is finite and grad_norm is not: then
 * n_overflow += 1, scale_exp -= 1, n_scaled = 0, clip = 0, and nothing else changes. Otherwise
 * skip = SKIP_NOT_FINITE if grad_norm or loss is not finite; else SKIP_SPIKE if spike_factor > 0,
 * n_update >= 20 and loss > spike_factor*loss_ema; else SKIP_NONE.
 * skip: n_skipped += 1, n_skip_row += 1, clip = 0. Not: n_skip_row = 0, n_update += 1,
 * clip = (max_norm > 0 ? min(1, max_norm/(grad_norm + 1e-6)) : 1)/S, bias1, bias2 from n_update, and
 * loss_ema = n_update == 1 ? loss : 0.95*loss_ema + 0.05*loss. Every scale_every such updates scale_exp += 1,
 * up to SCALE_EXP_MAX. grad_sumsq = 0 always. */
typedef struct { Tensor *state; float max_norm, beta1, beta2, spike_factor; int scale_every; } Clip;
/* One pass over a flat range: g *= out.clip; m, v; w -= lr*lr_mul*(mhat/(sqrt(vhat)+eps) + decay*w); copy = w
 * rounded; g = 0. skip: only g = 0. Between segments nothing changes but g, which may be cleared. master, m,
 * v, grad f32[n], copy bf16[n] or f16[n]?, seg u8 (Segment rows). master may be bf16, and so may m and v
 * together. They are rounded up or down with the probability that makes the mean right (adam_round in
 * dev/op_math.h): what is smaller than a rounding still adds up over steps. */
typedef struct {
    Tensor *master, *m, *v, *grad, *copy, *state, *seg;
    float   beta1, beta2, eps;
    int     site; /* of the draws */
} AdamW;
/* Running mean of weights: e = d e + (1 - d) w over flat f32[n]; nothing where state.out.skip. d is decay,
 * with warmup the smaller of decay and (1 + n_update)/(10 + n_update). */
typedef struct { Tensor *e, *w, *state; float decay; int warmup; } Ema;

/* Muon is three ops over a batch of matrices of one shape R x C. seg (u8, Segment rows) says where each lies
 * in the flat ranges; S of them, S <= n.
 *
 * m = momentum*m + (1 - momentum)*g with g = grad*out.clip, grad = 0; x [n,R,C] of matrix s < S is m, with
 * nesterov momentum*m + (1 - momentum)*g. Other matrices of x are 0. skip: grad = 0, m stays, x = 0. m, grad
 * f32[E]; outside of segments nothing changes. */
typedef struct { Tensor *x, *m, *grad, *state, *seg; float momentum; int nesterov; } Momentum;
/* y [n,R,C]: each matrix of x made nearly orthogonal, by the steps of ortho_step() (dev/op_math.h):
 *   X = x/(ORTHO_MARGIN*|x| + ORTHO_EPS), |x| the Frobenius norm; then ORTHO_STEPS times
 *   A = X X^T, or X^T X if R > C;  B = b A + c A A;  X = a X + B X, or a X + X B.  y = X.
 * All singular values that were above 0.001 |x| end between 0.8 and 1.2. */
typedef struct { Tensor *y, *ws, *x; } Ortho;
/* w -= lr*lr_mul*(scale*y[s] + decay*w) for matrix s; copy = w rounded. skip: nothing. master f32[E], copy
 * bf16[E] or f16[E]?, y [n,R,C]. */
typedef struct { Tensor *master, *copy, *y, *state, *seg; float scale; } Muon;

/* Collectives over all ranks; sums in f32. y may alias x. */
typedef struct { Tensor *y, *x; } AllReduce;
typedef struct { Tensor *y, *x; } ReduceScatter; /* y[n/ranks] = this rank's part of the sum of x[n] */
typedef struct { Tensor *y, *x; } AllGather;     /* y[n*ranks], any dtype */
/* clang-format on */

enum { OP_MAX_TENSOR = 2 * PUT_PAIRS + 1 };

typedef union {
    Tensor *t[OP_MAX_TENSOR]; /* the leading tensors of any argument struct */
#define X(KIND, field, Type) Type field;
    OP_LIST(X)
#undef X
} OpArgs;

/* ---- A recorded op ------------------------------------------------------------------------------------- */

typedef enum { LANE_COMPUTE, LANE_COMM, LANE_H2D, LANE_D2H, LANE_COUNT } Lane;

typedef struct {
    OpKind      kind;
    Lane        lane;
    int         block;     /* transformer block it belongs to, -1 outside */
    int         chunk;     /* chunk of the head it belongs to, -1 outside */
    int         recompute; /* 1: repeats a forward op in the backward half; not counted in MFU */
    int         backward;  /* 1: recorded by differentiation */
    const char *label;     /* "block 3 qkv"; for traces and messages, never NULL */
    OpArgs      args;
} Op;

/* "block 3 qkv" -> "qkv": the same part of every block. */
static inline const char *op_label_part(const char *label)
{
    static const char block[] = "block ";
    if (strncmp(label, block, sizeof block - 1) != 0) return label;
    const char *space = strchr(label + sizeof block - 1, ' ');
    return space ? space + 1 : label;
}

/* ---- The table ----------------------------------------------------------------------------------------- */

enum { ARG_READ = 1, ARG_WRITE = 2, ARG_RW = 3, ARG_OPTIONAL = 4, ARG_WS = 8 };

typedef struct {
    const char *name;
    unsigned    access; /* ARG_* flags */
} OpArg;

typedef struct {
    const char *name;
    int         n_tensor;
    OpArg       arg[OP_MAX_TENSOR];
    /* Pairs {output, input} that may share storage at the input's last use; {0,0} ends. */
    signed char alias[4][2];
    int         cheap; /* elementwise or norm: what recompute level "cheap" repeats */
    MachineUnit unit;  /* which of a machine's rates bounds its FLOPs; UNIT_MEMORY: it has none */
    int         aside; /* its FLOPs are the optimizer's, not the model's: MFU does not count them */
} OpRow;

extern const OpRow op_table[OP_COUNT];

/* Scratch bytes that a backend with workspaces (DevHints) may use for this op; from shapes alone. 0: no ws
 * argument. */
size_t op_workspace_bytes(OpKind kind, const OpArgs *args);

/* Matrix-product and attention FLOPs (2 per multiply-add; causal counted half; attention backward 2x forward,
 * as the MFU definition has it). 0 for everything else. */
double op_flops(OpKind kind, const OpArgs *args);

/* Bytes that must move: every tensor read once, written once, read-write twice; gathers count what they
 * touch. */
double op_bytes(OpKind kind, const OpArgs *args);

/* Both, and what else its time depends on. */
MachineWork op_work(OpKind kind, const OpArgs *args, MachineArith arith);

/* Verifies presence, dtypes and shapes; NULL when right, else one line kept in buf. */
const char *op_validate(OpKind kind, const OpArgs *args, char *buf, size_t n);

/* 1: every argument of the kind has a rule. */
int op_has_rule(OpKind kind);

#ifdef __cplusplus
}
#endif
#endif
