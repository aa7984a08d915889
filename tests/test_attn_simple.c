/* The CUDA kernels of attention that need no tensor cores (src/dev/cuda/k_attn.cu, k_attn_decode.cu), in f32
 * on emulated thread blocks (emulate/serial.h), on the small cases of op_cases_attn.h: every mask,
 * cross-attention, new tokens with their caches. */
#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* dev/cuda/cuda_attn.h, which needs CUDA's headers. */
int cuda_flash_fwd(Dev *dev, const AttnFwd *a);
int cuda_flash_bwd(Dev *dev, const AttnBwd *a);
int cuda_flash_cross_fwd(Dev *dev, const CrossAttnFwd *a);
int cuda_flash_cross_bwd(Dev *dev, const CrossAttnBwd *a);
int cuda_attn_decode(Dev *dev, const AttnDecode *a);

static int run(OpKind kind, const OpArgs *a)
{
    switch (kind) {
    case OP_ATTN_FWD: return cuda_flash_fwd(NULL, &a->attn_fwd);
    case OP_ATTN_BWD: return cuda_flash_bwd(NULL, &a->attn_bwd);
    case OP_CROSS_ATTN_FWD: return cuda_flash_cross_fwd(NULL, &a->cross_attn_fwd);
    case OP_CROSS_ATTN_BWD: return cuda_flash_cross_bwd(NULL, &a->cross_attn_bwd);
    default: return cuda_attn_decode(NULL, &a->attn_decode);
    }
}

/* Tiles of 64 x 64 that a case visits, or what costs as much. */
static int64_t tiles(const OpCase *c)
{
    if (c->kind == OP_ATTN_DECODE) {
        const AttnDecode *a = &c->args.attn_decode;
        return tensor_rows(a->qkv) / 64 * a->shape.heads * (a->kcache->dim[1] / 64 + 1) +
               a->kcache->dim[0] * a->shape.heads * (a->kcache->dim[1] / 512 + 1);
    }
    int      cross = c->kind == OP_CROSS_ATTN_FWD || c->kind == OP_CROSS_ATTN_BWD;
    MathAttn s     = cross ? case_cross_shape(c) : case_attn_shape(c);
    return s.B * s.H * ((s.T + 63) / 64) * ((s.S + 63) / 64);
}

static int skipped(const OpCase *c)
{
    if (c->kind == OP_ATTN_FWD && c->args.attn_fwd.p) return 1; /* stored weights are another kernel's */
    if (c->kind == OP_ATTN_BWD && (c->args.attn_bwd.p || c->args.attn_bwd.table)) return 1;
    return tiles(c) > (c->kind == OP_ATTN_DECODE ? 20 : 5);
}

/* Twice the reference's tolerance: sums run in another order. */
static void compare(const OpCase *c, const OpRef *r, int i)
{
    const Tensor *t = c->args.t[i];
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        double got = *case_at(t, e), want = r->want[i][e], tol = 2 * op_ref_tolerance(r, i, e);
        if (fabs(got - want) <= tol) continue;
        fail_msg("%s %s: %s element %lld is %.9g, not %.9g (allowed %.2e)", op_table[c->kind].name, c->name,
                 t->name, (long long)e, got, want, tol);
    }
}

static void check(OpCase *c)
{
    OpRef   r;
    OpImage before;
    Tensor  ws;
    char    buf[WHY];
    int64_t n = (int64_t)op_workspace_bytes(c->kind, &c->args), room = MAX(n, 1);
    op_ref_create(&r, c);
    op_image_take(&before, c);
    OpArgs args = c->args;
    tensor_init(&ws, "ws", DT_U8, 1, &room);
    ws.data = malloc((size_t)room);
    assert_non_null(ws.data);
    memset(ws.data, 0xff, (size_t)room);
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if ((op_table[c->kind].arg[i].access & ARG_WS) && n > 0) args.t[i] = &ws;
    }
    if (run(c->kind, &args) < 0) fail_msg("%s: %s", c->name, err_get());
    const char *bad = op_check_inputs(c, &before, buf);
    if (bad) fail_msg("%s", bad);
    for (int i = 0; i < op_table[c->kind].n_tensor; i++) {
        if (c->args.t[i] && op_writes(c->kind, i)) compare(c, &r, i);
    }
    free(ws.data);
    op_image_free(&before);
    op_ref_destroy(&r);
}

static void test_kind(void **state)
{
    OpKind kind = *(const OpKind *)*state;
    OpCase c;
    int    n = 0;
    for (int i = 0; op_case_create(&c, kind, i); i++) {
        if (!skipped(&c)) {
            check(&c);
            n++;
        }
        op_case_destroy(&c);
    }
    assert_true(n >= 7);
}

int main(void)
{
    static OpKind kind[] = { OP_ATTN_FWD, OP_ATTN_BWD, OP_ATTN_DECODE, OP_CROSS_ATTN_FWD, OP_CROSS_ATTN_BWD };
    const struct CMUnitTest tests[] = {
        { "attn_fwd", test_kind, NULL, NULL, &kind[0] },
        { "attn_bwd", test_kind, NULL, NULL, &kind[1] },
        { "attn_decode", test_kind, NULL, NULL, &kind[2] },
        { "cross_attn_fwd", test_kind, NULL, NULL, &kind[3] },
        { "cross_attn_bwd", test_kind, NULL, NULL, &kind[4] },
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
