/* The slots of products, plain and fused with the op that follows. A slot runs the own kernel (cuda_own.c),
 * or the parts: the cuBLASLt product (cuda_gemm.c), then the elementwise kernel.
 *
 * 1. The parts put the gradient's product d = dy w behind the rest of the workspace (op_cost.c). d cannot be
 *    written to dpre: dpre may be pre, and the elementwise kernel reads pre after d is written.
 * 2. The parts cost as much as the unfused ops. Where timing is allowed, the own kernel is taken only if it
 *    is faster. So lowering into these ops never loses time, with one exception: a slope (LinearActFwd,
 *    LinearGluFwd) on a card without the own kernel. There one more plane is written, for a gate two. */
#include "dev/cuda/cuda_linear.h"

#include "base/err.h"
#include "dev/cuda/cuda_few.h"
#include "dev/cuda/cuda_gemm.h"
#include "dev/cuda/cuda_own.h"
#include "dev/cuda/kernels.h"
#include "dev/glu.h"
#include "dev/op_scratch.h"

/* The product d = dy w into the end of the workspace; fills *d. */
static int grad_product(LinearDx *out, Tensor *d, Tensor *ws, Tensor *dy, Tensor *w)
{
    int64_t dim[2] = { tensor_rows(dy), tensor_cols(w) };
    tensor_init(d, "product", dy->dtype, 2, dim);
    size_t have = ws ? tensor_bytes(ws) : 0, size = tensor_root_bytes(d);
    if (have < size + GEMM_WS_BYTES) {
        return err_set("product before an activation: workspace of %zu bytes, needs %zu", have,
                       size + GEMM_WS_BYTES);
    }
    d->data = (char *)ws->data + (have - size);
    *out    = (LinearDx){ .dx = d, .ws = ws, .dy = dy, .w = w };
    return 0;
}

static LinearFwd glu_product(const LinearGluFwd *a)
{
    return (LinearFwd){ .y = a->pre, .ws = a->ws, .x = a->x, .w = a->w };
}

int cuda_fused_product(const Op *op, Op *out, Tensor *d)
{
    const LinearActBwd *act = &op->args.linear_act_bwd;
    const LinearGluBwd *glu = &op->args.linear_glu_bwd;
    *out                    = *op;
    switch (op->kind) {
    case OP_LINEAR_ACT_BWD:
        out->kind = OP_LINEAR_DX;
        TRY(grad_product(&out->args.linear_dx, d, act->ws, act->dy, act->w));
        return 1;
    case OP_LINEAR_GLU_BWD:
        out->kind = OP_LINEAR_DX;
        TRY(grad_product(&out->args.linear_dx, d, glu->ws, glu->dy, glu->w));
        return 1;
    case OP_LINEAR_GLU_FWD:
        out->kind            = OP_LINEAR_FWD;
        out->args.linear_fwd = glu_product(&op->args.linear_glu_fwd);
        return 1;
    default: return 0;
    }
}

/* ---- parts --------------------------------------------------------------------------------------------- */

static int act_bwd_parts(Dev *dev, const LinearActBwd *a)
{
    Tensor   d;
    LinearDx product;
    TRY(grad_product(&product, &d, a->ws, a->dy, a->w));
    TRY(cuda_linear_dx(dev, &product));
    if (!a->db) return cuda_act_dx(dev, &(ActDx){ .dx = a->dpre, .dy = &d, .x = a->pre, .act = a->act });
    return cuda_act_bias_bwd(
        dev, &(ActBiasBwd){ .dx = a->dpre, .db = a->db, .ws = a->ws, .dy = &d, .x = a->pre, .act = a->act });
}

static int glu_fwd_parts(Dev *dev, const LinearGluFwd *a)
{
    LinearFwd product = glu_product(a);
    TRY(cuda_linear_fwd(dev, &product));
    if (a->slope == GLU_SLOPE) return cuda_glu_both(dev, a->y, a->pre, a->act);
    return cuda_glu_fwd(dev, &(GluFwd){ .y = a->y, .x = a->pre, .act = a->act });
}

static int glu_bwd_parts(Dev *dev, const LinearGluBwd *a)
{
    Tensor   d;
    LinearDx product;
    TRY(grad_product(&product, &d, a->ws, a->dy, a->w));
    TRY(cuda_linear_dx(dev, &product));
    return cuda_glu_dx(dev, &(GluDx){ .dx = a->dpre, .dy = &d, .x = a->pre, .act = a->act });
}

static int dw_parts(Dev *dev, const OpArgs *args)
{
    const LinearDw *a = &args->linear_dw;
    TRY(cuda_gemm_run((CudaDev *)dev, OP_LINEAR_DW, args));
    return a->db ? cuda_bias_dw(dev, &(BiasDw){ .db = a->db, .ws = a->ws, .dy = a->dy }) : 0;
}

int cuda_linear_parts(Dev *dev, OpKind kind, const OpArgs *args)
{
    switch (kind) {
    case OP_LINEAR_ACT_BWD: return act_bwd_parts(dev, &args->linear_act_bwd);
    case OP_LINEAR_GLU_FWD: return glu_fwd_parts(dev, &args->linear_glu_fwd);
    case OP_LINEAR_GLU_BWD: return glu_bwd_parts(dev, &args->linear_glu_bwd);
    case OP_LINEAR_DW: return dw_parts(dev, args);
    default: return cuda_gemm_run((CudaDev *)dev, kind, args);
    }
}

/* ---- slots --------------------------------------------------------------------------------------------- */

static int run(Dev *dev, OpKind kind, const OpArgs *args)
{
    CudaDev *d = (CudaDev *)dev;
    OwnGemm  g;
    if (cuda_few_takes(kind, args)) return cuda_few_run(dev, kind, args);
    return cuda_own_takes(d, kind, args, &g) ? cuda_own_run(d, &g) : cuda_linear_parts(dev, kind, args);
}

int cuda_linear_fwd(Dev *dev, const LinearFwd *a)
{
    return run(dev, OP_LINEAR_FWD, &(OpArgs){ .linear_fwd = *a });
}

int cuda_linear_dx(Dev *dev, const LinearDx *a)
{
    return run(dev, OP_LINEAR_DX, &(OpArgs){ .linear_dx = *a });
}

int cuda_linear_act_fwd(Dev *dev, const LinearActFwd *a)
{
    return run(dev, OP_LINEAR_ACT_FWD, &(OpArgs){ .linear_act_fwd = *a });
}

int cuda_linear_act_bwd(Dev *dev, const LinearActBwd *a)
{
    return run(dev, OP_LINEAR_ACT_BWD, &(OpArgs){ .linear_act_bwd = *a });
}

int cuda_linear_glu_fwd(Dev *dev, const LinearGluFwd *a)
{
    return run(dev, OP_LINEAR_GLU_FWD, &(OpArgs){ .linear_glu_fwd = *a });
}

int cuda_linear_glu_bwd(Dev *dev, const LinearGluBwd *a)
{
    return run(dev, OP_LINEAR_GLU_BWD, &(OpArgs){ .linear_glu_bwd = *a });
}

int cuda_linear_dw(Dev *dev, const LinearDw *a)
{
    return run(dev, OP_LINEAR_DW, &(OpArgs){ .linear_dw = *a });
}
