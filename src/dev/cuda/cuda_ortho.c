/* Newton-Schulz steps of a batch of matrices: three batched cuBLASLt products a step, no other pass.
 *
 *     A = X X^T,  B = c A A + b A,  X' = B X + a X          R <= C
 *     A = X^T X,  B = c A A + b A,  X' = X B + a X          R > C
 *
 * 1. The sums b A and a X are the product's own C operand, in another place than its output.
 * 2. A and B are symmetric, so row-major and column-major are the same; X is cuBLASLt's column-major C x R.
 * 3. Workspace: X between steps, A, B, partial sums, the library's own. The last step writes y.
 * 4. The algorithms are not timed (cuda_batched.h): the steps take less than 1 % of a training step. */
#include "dev/cuda/cuda_ortho.h"

#include "base/err.h"
#include "dev/cuda/cuda_batched.h"
#include "dev/cuda/kernels.h"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

#include <string.h>

/* Products of a step. */
typedef enum { GRAM, SQUARE, STEP } Which;

/* A batch of column-major rows x cols matrices, one behind the other. */
static void set_matrix(BatchedKey *k, int i, int64_t rows, int64_t cols)
{
    k->rows[i] = k->ld[i] = rows;
    k->cols[i]            = cols;
    k->stride[i]          = rows * cols;
}

/* The largest power of two up to 16 that divides the address of every matrix. */
static int32_t matrix_align(const Tensor *x)
{
    int64_t side = MIN(x->dim[1], x->dim[2]);
    size_t  all  = ((size_t)(x->dim[1] * x->dim[2]) | (size_t)(side * side)) * dtype_bytes(x->dtype) | 16;
    return (int32_t)(all & -all);
}

/* In columns: GRAM is X^T X of the C x R matrix (tall: X X^T), STEP is X B (tall: B X). */
static BatchedKey product_key(const Tensor *x, Which which)
{
    BatchedKey k;
    memset(&k, 0, sizeof k);
    int64_t R = x->dim[1], C = x->dim[2], side = MIN(R, C);
    int     tall   = R > C;
    int     a_is_x = which == GRAM || (which == STEP && !tall);
    int     b_is_x = which == GRAM || (which == STEP && tall);
    k.n_batch      = x->dim[0];
    k.ws_bytes     = GEMM_WS_BYTES;
    k.align        = matrix_align(x);
    k.ta           = which == GRAM && !tall;
    k.tb           = which == GRAM && tall;
    for (int i = 0; i < 3; i++) k.dtype[i] = (int32_t)x->dtype;
    set_matrix(&k, BATCHED_A, a_is_x ? C : side, a_is_x ? R : side);
    set_matrix(&k, BATCHED_B, b_is_x ? C : side, b_is_x ? R : side);
    set_matrix(&k, BATCHED_D, which == STEP ? C : side, which == STEP ? R : side);
    return k;
}

/* Where things are in the workspace. */
typedef struct {
    char   *X, *A, *B, *lt;
    double *sums;
} Space;

static int space_of(const Ortho *a, Space *out)
{
    const Tensor *x = a->x;
    size_t        n = (size_t)x->dim[0], side = (size_t)MIN(x->dim[1], x->dim[2]);
    size_t        square = tensor_align_up(n * side * side * dtype_bytes(x->dtype));
    size_t        sums   = tensor_align_up(n * ORTHO_PARTS * sizeof(double));
    size_t        all    = tensor_align_up(tensor_bytes(x)) + 2 * square + sums + GEMM_WS_BYTES;
    if (!a->ws || tensor_bytes(a->ws) < all)
        return err_set("ortho: workspace of %zu bytes, needs %zu", a->ws ? tensor_bytes(a->ws) : (size_t)0,
                       all);
    out->X    = a->ws->data;
    out->A    = out->X + tensor_align_up(tensor_bytes(x));
    out->B    = out->A + square;
    out->sums = (double *)(out->B + square);
    out->lt   = (char *)out->sums + sums;
    return 0;
}

static int take_step(CudaDev *d, const Tensor *x, const Space *w, const void *from, void *to, OrthoStep s)
{
    int         tall    = x->dim[1] > x->dim[2];
    BatchedCall call[3] = {
        [GRAM]   = { from, from, w->A, w->A, w->lt, 1.0f, 0.0f },
        [SQUARE] = { w->A, w->A, w->A, w->B, w->lt, s.c, s.b },
        [STEP]   = { tall ? w->B : from, tall ? from : w->B, from, to, w->lt, 1.0f, s.a },
    };
    for (int which = GRAM; which <= STEP; which++) {
        BatchedKey key = product_key(x, (Which)which);
        TRY(cuda_batched_run(d, &key, &call[which]));
    }
    return 0;
}

int cuda_ortho(Dev *dev, const Ortho *a)
{
    CudaDev *d = (CudaDev *)dev;
    Space    w = { 0 };
    TRY(space_of(a, &w));
    void *at[2] = { a->y->data, w.X }; /* the last step writes y */
    TRY(cuda_ortho_start(dev, at[ORTHO_STEPS % 2], a->x, w.sums));
    for (int i = 0; i < ORTHO_STEPS; i++) {
        int which = (ORTHO_STEPS - i) % 2;
        TRY(take_step(d, a->x, &w, at[which], at[1 - which], ortho_step(i)));
    }
    return 0;
}

int cuda_ortho_prepare(CudaDev *d, const Op *op)
{
    if (op->kind != OP_ORTHO) return 0;
    for (int which = GRAM; which <= STEP; which++) {
        BatchedKey key = product_key(op->args.ortho.x, (Which)which);
        TRY(cuda_batched_prepare(d, &key));
    }
    return 0;
}
