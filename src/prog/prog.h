/* Prog: a flat list of ops over tensors that have no address yet.
 *
 * The life of a program, one function each, in this order:
 *     prog_begin        empty list over a sealed store
 *     rec_NAME(...)     record (prog/record.h): the forward half, in execution order
 *     prog_differentiate  appends the backward half, repeating forward ops where recomputation asks for it
 *     prog_hoist_chunks   brings each head chunk's backward next to its forward
 *     prog_quantise     products in fp8, if the run asks for them
 *     prog_lower        replaces runs of ops by fused ones, adds workspaces
 *     prog_plan         lifetimes -> offsets: exact bytes; needs no device
 *     prog_bind         addresses, then a DevExec
 *     prog_run          replays
 *
 * Invariants
 * 1. Every tensor of SLAB_ACT has one writing op (or several that write disjoint views of it), and that op
 *    comes before every reader. Accumulators (READ|WRITE arguments) live in the store.
 * 2. After prog_plan two tensors share bytes only if their lifetimes are disjoint or the op row allows the
 *    pair to alias.
 * 3. Nothing after prog_bind changes the list. */
#ifndef PROG_PROG_H
#define PROG_PROG_H

#include "base/arena.h"
#include "conf/recipe.h"
#include "dev/dev.h"
#include "prog/store.h"
#include "tensor/tensor.h"

typedef struct Prog Prog;

typedef enum { LEVEL_NONE, LEVEL_CHEAP, LEVEL_BLOCK } RecomputeLevel;

const char *recompute_level_name(RecomputeLevel level); /* "none", "cheap", "block" */

typedef struct {
    double flops;           /* MFU count: products and attention, without repeats */
    double flops_repeated;  /* the same for recomputed ops */
    double bytes;           /* moved by all ops */
    size_t act_bytes;       /* after prog_plan: size of the activation range */
    size_t act_lower_bound; /* no plan can need less */
    int    n_op, n_tensor;
} ProgStats;

Prog *prog_begin(const char *name, Store *store); /* borrows the store */
void  prog_destroy(Prog *p, Dev *dev);            /* dev may be NULL if never bound */

/* ---- recording ---- */
Tensor *prog_tensor(Prog *p, const char *name, DType dtype, int ndim, const int64_t *dim);
Tensor *prog_like(Prog *p, const char *name, const Tensor *t);       /* same shape and dtype, contiguous */
Tensor *prog_rows(Prog *p, Tensor *t, int64_t row0, int64_t n_rows); /* view */
/* View: contiguous, from element `first` of a tensor without gaps on. */
Tensor *prog_part(Prog *p, Tensor *t, int64_t first, int ndim, const int64_t *dim);
void    prog_record(Prog *p, OpKind kind, const void *args, size_t args_bytes); /* CHECKs op_validate */
void    prog_at(Prog *p, int block, int chunk, const char *label); /* where the next ops belong */
void    prog_lane(Prog *p, Lane lane);                             /* lane of the next ops */

/* ---- passes ---- */
/* level: one RecomputeLevel per block 0..n_block-1. state: the StepState tensor that loss gradients read. */
void prog_differentiate(Prog *p, const RecomputeLevel *level, int n_block, Tensor *state);
void prog_hoist_chunks(Prog *p);
/* Products of weights with fp8 copies read fp8 (prog/quantise.c). */
typedef struct {
    int dynamic;                     /* scales come from the tensor itself, not from earlier steps */
    int fast_forward, fast_backward; /* sums with fewer bits */
} Fp8Option;
void prog_quantise(Prog *p, const Fp8Option *opt);
void prog_lower(Prog *p, const RecipeOpt *opt, const DevVt *vt); /* opt: what may be fused */
void prog_plan(Prog *p);

/* Checks the plan: negative after err_set() naming program and tensors if two live tensors overlap. The check
 * takes n log n in the tensors, so every start can afford it. */
int prog_verify(const Prog *p);
int prog_verify_all(const Prog *const *list, int n); /* of one build; NULL entries are passed over */
/* Negative after err_set() naming op, shape and backend if the backend has no such op. */
int prog_check_backend(const Prog *p, const DevVt *vt);

/* ---- running ---- */
int prog_bind(Prog *p, Dev *dev); /* the store's slabs must be allocated */
int prog_run(Prog *p, Dev *dev);
int prog_time(Prog *p, Dev *dev, DevOpTime *out); /* one entry per op */

/* ---- queries ---- */
const char *prog_name(const Prog *p);
int         prog_n_op(const Prog *p);
const Op   *prog_op(const Prog *p, int i);
int         prog_n_recorded(const Prog *p, OpKind kind); /* so many there were before lowering; OP_COUNT: 0 */
ProgStats   prog_stats(const Prog *p);
/* Bytes of activations that are alive during each op, by plan: out has an entry for each of prog_n_op(). */
void prog_live_bytes(const Prog *p, size_t *out);
void prog_print(const Prog *p, int with_tensors);

#endif
