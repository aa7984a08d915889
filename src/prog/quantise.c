/* Products in fp8: a pass over the list between differentiation and lowering.
 *
 * 1. A product is rewritten if its weight has fp8 copies (store_fp8) and every side is a multiple of 16,
 *    which the libraries ask for. Other products stay as they are.
 * 2. All three products have the form a[N,K] b[M,K]^T, because GPUs multiply fp8 only so:
 *      LINEAR_FWD  x   w        LINEAR_DX  dy  w^T        LINEAR_DW  dy^T  x^T
 *    So x and dy are needed as they are, or transposed, or both. One QUANT writes what is needed, right
 *    before the first product that needs it.
 * 3. A tensor is quantised once, even if several products read it; the weight of the first names the site.
 *    x is kept for the backward half as x^T in fp8, dy never outlives its two products. */
#include "prog/prog.h"

#include "base/err.h"
#include "prog/prog_impl.h"

#include <string.h>

/* What becomes of one tensor, by its id. */
typedef struct {
    int     plain, turned; /* products that need it as it is, and transposed */
    Tensor *q, *qt, *site;
} Narrow;

typedef struct {
    Prog            *p;
    const Fp8Option *opt;
    Narrow          *narrow; /* by tensor id */
    int             *weight; /* by tensor id of a gradient: its weight's id + 1 */
    Op              *out;
    int              n, cap;
} Pass;

static int fits(int64_t a, int64_t b, int64_t c)
{
    return a % FP8_SIDE == 0 && b % FP8_SIDE == 0 && c % FP8_SIDE == 0;
}

/* The copies that a product uses, or NULL: it stays as it is. *in and *dy: what it reads. */
static const StoreFp8 *copies_of(const Pass *s, const Op *op, Tensor **in, Tensor **dy)
{
    const Store  *store = s->p->store;
    const Tensor *w     = NULL;
    *in = *dy = NULL;
    switch (op->kind) {
    case OP_LINEAR_FWD:
        w   = op->args.linear_fwd.w;
        *in = op->args.linear_fwd.x;
        break;
    case OP_LINEAR_DX:
        w   = op->args.linear_dx.w;
        *dy = op->args.linear_dx.dy;
        break;
    case OP_LINEAR_DW: {
        int id = op->args.linear_dw.dw->id;
        *in    = op->args.linear_dw.x;
        *dy    = op->args.linear_dw.dy;
        w      = id < store->n_tensor && s->weight[id] ? store->tensor[s->weight[id] - 1] : NULL;
        break;
    }
    default: return NULL;
    }
    const StoreFp8 *f = w ? store_fp8(store, w) : NULL;
    if (!f || !fits(tensor_rows(w), tensor_cols(w), tensor_rows(*in ? *in : *dy))) return NULL;
    if (op->kind == OP_LINEAR_DW && op->args.linear_dw.db) return NULL;
    return f;
}

static void count_needs(Pass *s)
{
    Tensor *in, *dy;
    for (int i = 0; i < s->p->n_op; i++) {
        const Op *op = &s->p->op[i];
        if (!copies_of(s, op, &in, &dy)) continue;
        int turned = op->kind == OP_LINEAR_DW;
        for (int k = 0; k < 2; k++) {
            Tensor *t = k ? dy : in;
            if (!t) continue;
            s->narrow[t->id].turned |= turned;
            s->narrow[t->id].plain |= !turned;
        }
    }
}

static void emit(Pass *s, const Op *op)
{
    char        buf[256];
    const char *bad = op_validate(op->kind, &op->args, buf, sizeof buf);
    CHECK(!bad, "%s, %s: %s", s->p->name, op->label, bad);
    CHECK(s->n < s->cap, "more ops than counted");
    s->out[s->n++] = *op;
}

static Tensor *narrow_tensor(Pass *s, const Tensor *t, DType dtype, int turned)
{
    int64_t     rows = tensor_rows(t), cols = tensor_cols(t);
    int64_t     dim[2] = { turned ? cols : rows, turned ? rows : cols };
    const char *name = arena_printf(&s->p->arena, "%s %s%s", t->name, dtype_name(dtype), turned ? "^T" : "");
    return prog_tensor(s->p, name, dtype, 2, dim);
}

/* The tensor in fp8; the QUANT that makes it stands before the op that asks first. */
static const Narrow *quantised(Pass *s, const Op *op, Tensor *t, Tensor *site, DType dtype)
{
    Narrow *n = &s->narrow[t->id];
    if (n->site) return n;
    Op quant = *op;
    n->site  = site;
    if (n->plain) n->q = narrow_tensor(s, t, dtype, 0);
    if (n->turned) n->qt = narrow_tensor(s, t, dtype, 1);
    quant.kind = OP_QUANT;
    memset(&quant.args, 0, sizeof quant.args);
    quant.args.quant =
        (Quant){ .q = n->q, .qt = n->qt, .site = site, .x = t, .q_dtype = dtype, .dynamic = s->opt->dynamic };
    emit(s, &quant);
    return n;
}

static void rewrite(Pass *s, const Op *op, const StoreFp8 *f, Tensor *in, Tensor *dy)
{
    Op            product = *op;
    const Narrow *x       = in ? quantised(s, op, in, f->x_site, DT_E4M3) : NULL;
    const Narrow *d       = dy ? quantised(s, op, dy, f->dy_site, DT_E5M2) : NULL;
    memset(&product.args, 0, sizeof product.args);
    product.kind = OP_FP8_LINEAR;
    if (op->kind == OP_LINEAR_FWD) {
        const LinearFwd *a      = &op->args.linear_fwd;
        product.args.fp8_linear = (Fp8Linear){ .y      = a->y,
                                               .a      = x->q,
                                               .b      = f->q,
                                               .a_site = x->site,
                                               .b_site = f->w_site,
                                               .bias   = a->bias,
                                               .fast   = s->opt->fast_forward };
    } else if (op->kind == OP_LINEAR_DX) {
        product.args.fp8_linear = (Fp8Linear){ .y      = op->args.linear_dx.dx,
                                               .a      = d->q,
                                               .b      = f->qt,
                                               .a_site = d->site,
                                               .b_site = f->w_site,
                                               .fast   = s->opt->fast_backward };
    } else {
        product.kind               = OP_FP8_LINEAR_DW;
        product.args.fp8_linear_dw = (Fp8LinearDw){ .dw     = op->args.linear_dw.dw,
                                                    .a      = d->qt,
                                                    .b      = x->qt,
                                                    .a_site = d->site,
                                                    .b_site = x->site,
                                                    .fast   = s->opt->fast_backward };
    }
    emit(s, &product);
}

void prog_quantise(Prog *p, const Fp8Option *opt)
{
    int  n_id = prog_id_count(p);
    Pass s    = { .p = p, .opt = opt, .cap = 3 * p->n_op };
    s.narrow  = ARENA_ARRAY(&p->arena, Narrow, n_id);
    s.weight  = ARENA_ARRAY(&p->arena, int, p->store->n_tensor);
    s.out     = ARENA_ARRAY(&p->arena, Op, MAX(s.cap, 1));
    for (int i = 0; i < p->store->n_tensor; i++) {
        if (p->store->grad[i]) s.weight[p->store->grad[i]->id] = i + 1;
    }
    count_needs(&s);
    int n_op = p->n_op;
    for (int i = 0; i < n_op; i++) {
        Tensor         *in, *dy;
        const StoreFp8 *f = copies_of(&s, &p->op[i], &in, &dy);
        if (f) {
            rewrite(&s, &p->op[i], f, in, dy);
        } else {
            emit(&s, &p->op[i]);
        }
    }
    prog_replace_ops(p, s.out, s.n);
}
