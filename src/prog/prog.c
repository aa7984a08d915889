#include "prog/prog.h"

#include "base/err.h"
#include "prog/prog_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *recompute_level_name(RecomputeLevel level)
{
    static const char *const names[] = {
        [LEVEL_NONE] = "none", [LEVEL_CHEAP] = "cheap", [LEVEL_BLOCK] = "block"
    };
    return names[level];
}

Prog *prog_begin(const char *name, Store *store)
{
    CHECK(store->sealed, "seal the store before the first program");
    Prog *p = calloc(1, sizeof *p);
    CHECK(p, "out of host memory");
    arena_init(&p->arena);
    p->name  = arena_strdup(&p->arena, name);
    p->store = store;
    p->block = -1;
    p->chunk = -1;
    p->label = "";
    return p;
}

void prog_destroy(Prog *p, Dev *dev)
{
    if (!p) return;
    if (p->exec) dev->vt->exec_destroy(dev, p->exec);
    arena_deinit(&p->arena);
    free(p);
}

/* ---- recording ----------------------------------------------------------------------------------------- */

static Tensor *prog_new_tensor(Prog *p)
{
    if (p->n_tensor == p->cap_tensor) {
        int      cap = p->cap_tensor ? 2 * p->cap_tensor : 512;
        Tensor **t   = ARENA_ARRAY(&p->arena, Tensor *, cap);
        if (p->n_tensor) memcpy(t, p->tensor, sizeof *t * (size_t)p->n_tensor);
        p->tensor     = t;
        p->cap_tensor = cap;
    }
    Tensor *t              = ARENA_NEW(&p->arena, Tensor);
    p->tensor[p->n_tensor] = t;
    return t;
}

static Tensor *prog_number(Prog *p, Tensor *t)
{
    t->id = p->store->n_tensor + p->n_tensor++;
    return t;
}

Tensor *prog_tensor(Prog *p, const char *name, DType dtype, int ndim, const int64_t *dim)
{
    Tensor *t = prog_new_tensor(p);
    tensor_init(t, arena_strdup(&p->arena, name), dtype, ndim, dim);
    return prog_number(p, t);
}

Tensor *prog_like(Prog *p, const char *name, const Tensor *like)
{
    return prog_tensor(p, name, like->dtype, like->ndim, like->dim);
}

Tensor *prog_rows(Prog *p, Tensor *t, int64_t row0, int64_t n_rows)
{
    Tensor *v = prog_new_tensor(p);
    tensor_init_rows(v, t, row0, n_rows);
    return prog_number(p, v);
}

Tensor *prog_part(Prog *p, Tensor *t, int64_t first, int ndim, const int64_t *dim)
{
    Tensor *v = prog_new_tensor(p);
    tensor_init(v, t->name, t->dtype, ndim, dim);
    CHECK(tensor_is_contiguous(t) && first >= 0 && first + tensor_numel(v) <= tensor_numel(t), "%s: a part",
          t->name);
    v->root         = t->root;
    v->slab         = t->root->slab;
    v->offset_bytes = t->offset_bytes + (size_t)first * dtype_bytes(t->dtype);
    return prog_number(p, v);
}

static Op *prog_push(Prog *p)
{
    if (p->n_op == p->cap_op) {
        int cap = p->cap_op ? 2 * p->cap_op : 512;
        Op *op  = ARENA_ARRAY(&p->arena, Op, cap);
        if (p->n_op) memcpy(op, p->op, sizeof *op * (size_t)p->n_op);
        p->op     = op;
        p->cap_op = cap;
    }
    return &p->op[p->n_op++];
}

void prog_record(Prog *p, OpKind kind, const void *args, size_t args_bytes)
{
    Op *op = prog_push(p);
    memset(op, 0, sizeof *op);
    op->kind      = kind;
    op->lane      = p->lane;
    op->block     = p->block;
    op->chunk     = p->chunk;
    op->backward  = p->backward;
    op->recompute = p->recompute;
    op->label     = p->label;
    memcpy(&op->args, args, args_bytes);
    char        buf[256];
    const char *bad = op_validate(kind, &op->args, buf, sizeof buf);
    CHECK(!bad, "%s, %s: %s", p->name, p->label, bad);
}

void prog_at(Prog *p, int block, int chunk, const char *label)
{
    p->block = block;
    p->chunk = chunk;
    p->label = arena_strdup(&p->arena, label);
}

void prog_lane(Prog *p, Lane lane) { p->lane = lane; }

void prog_replace_ops(Prog *p, const Op *ops, int n)
{
    p->op = ARENA_ARRAY(&p->arena, Op, n + 1);
    memcpy(p->op, ops, sizeof *ops * (size_t)n);
    p->n_op   = n;
    p->cap_op = n + 1;
}

/* A chunk of the head needs its logits in forward and backward. Nothing between them depends on other chunks.
 * So the backward ops of chunk c move right behind its forward ops, and only one chunk's logits are alive at
 * a time. */
void prog_hoist_chunks(Prog *p)
{
    int n_chunk = 0;
    for (int i = 0; i < p->n_op; i++) n_chunk = MAX(n_chunk, p->op[i].chunk + 1);
    if (n_chunk == 0) return;
    Op *out = ARENA_ARRAY(&p->arena, Op, p->n_op);
    int n = 0, first = -1, last = -1;
    for (int i = 0; i < p->n_op; i++) {
        if (p->op[i].chunk < 0 || p->op[i].backward) continue;
        if (first < 0) first = i;
        last = i;
    }
    for (int i = 0; i < first; i++) out[n++] = p->op[i];
    for (int c = 0; c < n_chunk; c++) {
        for (int half = 0; half < 2; half++) {
            for (int i = first; i < p->n_op; i++) {
                if (p->op[i].chunk == c && p->op[i].backward == half) out[n++] = p->op[i];
            }
        }
    }
    for (int i = first; i < p->n_op; i++) {
        CHECK(p->op[i].chunk >= 0 || i > last, "an op outside the chunks stands between them");
        if (p->op[i].chunk < 0) out[n++] = p->op[i];
    }
    CHECK(n == p->n_op, "hoisting lost ops: %d of %d", n, p->n_op);
    p->op     = out;
    p->cap_op = n;
}

/* ---- running ------------------------------------------------------------------------------------------- */

int prog_check_backend(const Prog *p, const DevVt *vt)
{
    for (int i = 0; i < p->n_op; i++) {
        const Op *op = &p->op[i];
        if (dev_has(vt, op->kind)) continue;
        char buf[128] = "";
        if (op->args.t[0]) tensor_describe(op->args.t[0], buf, sizeof buf);
        return err_set("%s: %s (%s -> %s) has no implementation on %s", p->name, op_table[op->kind].name,
                       op->label, buf, vt->name);
    }
    return 0;
}

int prog_bind(Prog *p, Dev *dev)
{
    TRY(prog_check_backend(p, dev->vt));
    char *base = p->store->base[SLAB_ACT];
    CHECK(base || p->act_bytes == 0, "%s: allocate the slabs before binding", p->name);
    CHECK(p->act_bytes <= p->store->slab_bytes[SLAB_ACT], "%s: the activation slab is too small", p->name);
    for (int i = 0; i < p->n_tensor; i++) {
        Tensor *t = p->tensor[i];
        t->data   = base ? base + t->root->slab_offset + t->offset_bytes : NULL;
        /* Views of store tensors made by this program follow their root's slab. */
        if (t->root->slab != SLAB_ACT) t->data = (char *)t->root->data + t->offset_bytes;
    }
    p->exec = dev->vt->exec_create(dev, p->op, p->n_op);
    return p->exec ? 0 : -1;
}

int prog_run(Prog *p, Dev *dev) { return dev->vt->exec_run(dev, p->exec); }

int prog_time(Prog *p, Dev *dev, DevOpTime *out) { return dev->vt->exec_time(dev, p->exec, out); }

/* ---- queries ------------------------------------------------------------------------------------------- */

const char *prog_name(const Prog *p) { return p->name; }

int prog_n_op(const Prog *p) { return p->n_op; }

const Op *prog_op(const Prog *p, int i) { return &p->op[i]; }

int prog_n_recorded(const Prog *p, OpKind kind) { return kind < OP_COUNT ? p->recorded[kind] : 0; }

ProgStats prog_stats(const Prog *p)
{
    ProgStats s = { .n_op = p->n_op, .n_tensor = p->n_tensor };
    for (int i = 0; i < p->n_op; i++) {
        const Op *op = &p->op[i];
        double    f  = op_table[op->kind].aside ? 0 : op_flops(op->kind, &op->args);
        *(op->recompute ? &s.flops_repeated : &s.flops) += f;
        s.bytes += op_bytes(op->kind, &op->args);
    }
    s.act_bytes       = p->act_bytes;
    s.act_lower_bound = p->act_lower_bound;
    return s;
}

void prog_print(const Prog *p, int with_tensors)
{
    printf("%s: %d ops\n", p->name, p->n_op);
    for (int i = 0; i < p->n_op; i++) {
        const Op *op = &p->op[i];
        printf("%5d %-14s %-24s %s%s\n", i, op_table[op->kind].name, op->label, op->backward ? "bwd" : "fwd",
               op->recompute ? " again" : "");
        for (int a = 0; with_tensors && a < op_table[op->kind].n_tensor; a++) {
            char buf[128];
            if (op->args.t[a]) {
                printf("          %-8s %s @%zu\n", op_table[op->kind].arg[a].name,
                       tensor_describe(op->args.t[a], buf, sizeof buf), op->args.t[a]->root->slab_offset);
            }
        }
    }
}
