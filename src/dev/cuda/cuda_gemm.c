/* Matrix products through cuBLASLt.
 *
 * A row-major [R,C] matrix is cuBLASLt's column-major C x R one with the same leading dimension, so
 *     y[N,M]  = x w^T      is  D(MxN) = A^T B,  A = w, B = x      "TN"
 *     dx[N,K] = dy w       is  D(KxN) = A   B,  A = w, B = dy     "NN"
 *     dw[M,K] += dy^T x    is  D(KxM) = A B^T,  A = x, B = dy     "NT", D f32, beta 1
 * Products of fp8 are "TN" alone, so their factors come transposed where need be (FP8_LINEAR).
 *
 * 1. The GELU epilogue applies GELU to the f32 accumulator, while ACT_FWD applies it to `pre` as stored: the
 *    two differ by the rounding of pre. Measured on an H200 (3072x32768x768, bf16): epilogue 591 TFLOP/s,
 *    plain 821.
 * 2. If cuBLASLt has no such epilogue (other activations, f32, odd strides), LINEAR_ACT_FWD runs LINEAR_FWD
 *    and ACT_FWD. */
#include "dev/cuda/cuda_gemm.h"

#include "base/err.h"
#include "dev/cuda/cuda_gemm_plan.h"
#include "dev/cuda/cuda_linear.h"
#include "dev/cuda/kernels.h"
#include "dev/op_scratch.h"

#include <string.h>

/* ---- keys and calls ------------------------------------------------------------------------------------ */

static int32_t alignment(const void *p)
{
    int32_t a = 256;
    while ((uintptr_t)p % (uintptr_t)a) a /= 2;
    return a;
}

static void call_init(GemmCall *c, int ta, int tb, const Tensor *a, const Tensor *b, const Tensor *d,
                      const Tensor *ws)
{
    memset(c, 0, sizeof *c);
    c->a       = a->data;
    c->b       = b->data;
    c->d       = d->data;
    c->ws      = ws ? ws->data : NULL;
    c->key.ta  = ta;
    c->key.tb  = tb;
    c->key.a   = (int32_t)a->dtype;
    c->key.b   = (int32_t)b->dtype;
    c->key.d   = (int32_t)d->dtype;
    c->key.m   = tensor_cols(d);
    c->key.n   = tensor_rows(d);
    c->key.k   = ta ? tensor_cols(a) : tensor_rows(a);
    c->key.lda = tensor_ld(a);
    c->key.ldb = tensor_ld(b);
    c->key.ldd = tensor_ld(d);
    /* A fused op's workspace is larger; the plan is that of the same product alone. */
    c->key.ws_bytes = ws ? MIN((int64_t)tensor_bytes(ws), GEMM_WS_BYTES) : 0;
    c->key.align_a  = alignment(c->a);
    c->key.align_b  = alignment(c->b);
    c->key.align_d  = alignment(c->d);
}

static void call_add_bias(GemmCall *c, const Tensor *bias)
{
    if (!bias) return;
    c->bias     = bias->data;
    c->key.bias = (int32_t)bias->dtype;
    c->key.epi  = c->key.epi == EPI_GELU ? EPI_GELU_BIAS : EPI_BIAS;
}

static void call_fwd(GemmCall *c, const LinearFwd *a)
{
    call_init(c, 1, 0, a->w, a->x, a->y, a->ws);
    call_add_bias(c, a->bias);
}

static void call_dx(GemmCall *c, const LinearDx *a) { call_init(c, 0, 0, a->w, a->dy, a->dx, a->ws); }

static void call_dw(GemmCall *c, const LinearDw *a)
{
    call_init(c, 0, 1, a->x, a->dy, a->dw, a->ws);
    c->key.beta = 1;
}

static const void *inv_of(const Tensor *site) { return (const float *)site->data + FP8_SITE_INV; }

/* y[N,M] = a[N,K] b[M,K]^T: cuBLASLt's A is b. */
static void call_fp8(GemmCall *c, const Fp8Linear *a)
{
    call_init(c, 1, 0, a->b, a->a, a->y, a->ws);
    c->a_inv    = inv_of(a->b_site);
    c->b_inv    = inv_of(a->a_site);
    c->key.fast = a->fast;
    call_add_bias(c, a->bias);
}

static void call_fp8_dw(GemmCall *c, const Fp8LinearDw *a)
{
    call_init(c, 1, 0, a->b, a->a, a->dw, a->ws);
    c->a_inv    = inv_of(a->b_site);
    c->b_inv    = inv_of(a->a_site);
    c->key.fast = a->fast;
    c->key.beta = 1;
}

static void call_act(GemmCall *c, const LinearActFwd *a)
{
    call_init(c, 1, 0, a->w, a->x, a->y, a->ws);
    c->aux         = a->pre->data;
    c->key.epi     = EPI_GELU;
    c->key.ld_aux  = tensor_ld(a->pre);
    c->key.align_d = MIN(c->key.align_d, alignment(c->aux));
    call_add_bias(c, a->bias);
}

/* ---- running ------------------------------------------------------------------------------------------- */

static int run_call(CudaDev *d, const GemmCall *c)
{
    GemmPlan *p = NULL;
    TRY(gemm_plan_get(d, &c->key, &p));
    return gemm_plan_launch(d, p, c);
}

static int run_fwd(CudaDev *d, const LinearFwd *a)
{
    GemmCall c;
    call_fwd(&c, a);
    return run_call(d, &c);
}

static int run_dx(CudaDev *d, const LinearDx *a)
{
    GemmCall c;
    call_dx(&c, a);
    return run_call(d, &c);
}

static int run_dw(CudaDev *d, const LinearDw *a)
{
    GemmCall c;
    call_dw(&c, a);
    return run_call(d, &c);
}

/* The plan with the GELU epilogue, or NULL in *out when the product and the activation must run apart. */
static int act_plan(CudaDev *d, const LinearActFwd *a, GemmCall *c, GemmPlan **out)
{
    *out     = NULL;
    int wide = a->y->dtype == DT_F32 || a->pre->dtype != a->y->dtype;
    if (a->act != ACT_GELU || a->slope || wide || tensor_ld(a->pre) % 8 != 0)
        return 0; /* aux rows are multiples of 8 */
    call_act(c, a);
    TRY(gemm_plan_get(d, &c->key, out));
    if ((*out)->unsupported) *out = NULL;
    return 0;
}

static LinearFwd act_linear(const LinearActFwd *a)
{
    return (LinearFwd){ .y = a->pre, .ws = a->ws, .x = a->x, .w = a->w, .bias = a->bias };
}

static int run_act(CudaDev *d, const LinearActFwd *a)
{
    GemmCall  c;
    GemmPlan *p = NULL;
    TRY(act_plan(d, a, &c, &p));
    if (p) return gemm_plan_launch(d, p, &c);
    LinearFwd linear = act_linear(a);
    TRY(run_fwd(d, &linear));
    if (a->slope) return cuda_act_both(&d->base, a->y, a->pre, a->act);
    return cuda_act_fwd(&d->base, &(ActFwd){ .y = a->y, .x = a->pre, .act = a->act });
}

int cuda_fp8_linear(Dev *dev, const Fp8Linear *a)
{
    GemmCall c;
    call_fp8(&c, a);
    return run_call((CudaDev *)dev, &c);
}

int cuda_fp8_linear_dw(Dev *dev, const Fp8LinearDw *a)
{
    GemmCall c;
    call_fp8_dw(&c, a);
    return run_call((CudaDev *)dev, &c);
}

int cuda_gemm_run(CudaDev *d, OpKind kind, const OpArgs *args)
{
    switch (kind) {
    case OP_LINEAR_FWD: return run_fwd(d, &args->linear_fwd);
    case OP_LINEAR_DX: return run_dx(d, &args->linear_dx);
    case OP_LINEAR_DW: return run_dw(d, &args->linear_dw);
    case OP_LINEAR_ACT_FWD: return run_act(d, &args->linear_act_fwd);
    default: return err_set("%s is no product of the library", op_table[kind].name);
    }
}

int cuda_gemm_prepare(CudaDev *d, const Op *op)
{
    GemmCall  c;
    GemmPlan *p = NULL;
    Op        product;
    Tensor    dx;
    int       fused = cuda_fused_product(op, &product, &dx);
    if (fused < 0) return -1;
    if (fused) op = &product;
    switch (op->kind) {
    case OP_LINEAR_FWD: call_fwd(&c, &op->args.linear_fwd); break;
    case OP_LINEAR_DX: call_dx(&c, &op->args.linear_dx); break;
    case OP_LINEAR_DW: call_dw(&c, &op->args.linear_dw); break;
    case OP_FP8_LINEAR: call_fp8(&c, &op->args.fp8_linear); break;
    case OP_FP8_LINEAR_DW: call_fp8_dw(&c, &op->args.fp8_linear_dw); break;
    case OP_LINEAR_ACT_FWD: {
        TRY(act_plan(d, &op->args.linear_act_fwd, &c, &p));
        if (p) return 0;
        LinearFwd linear = act_linear(&op->args.linear_act_fwd);
        call_fwd(&c, &linear);
        break;
    }
    default: return 0;
    }
    TRY(gemm_plan_get(d, &c.key, &p));
    if (!p->split_bias) return 0;
    GemmKey plain = gemm_plain_key(&p->key);
    return gemm_plan_get(d, &plain, &p);
}
