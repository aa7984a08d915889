/* What the passes of this folder share. Not for other folders. */
#ifndef PROG_PROG_IMPL_H
#define PROG_PROG_IMPL_H

#include "prog/prog.h"

struct Prog {
    Arena       arena;
    const char *name;
    Store      *store;

    Op *op;
    int n_op, cap_op;
    int recorded[OP_COUNT]; /* ops of each kind that prog_lower() met */

    Tensor **tensor; /* of SLAB_ACT, views included; tensor[i]->id == store->n_tensor + i */
    int      n_tensor, cap_tensor;

    /* where the next recorded op belongs */
    int         block, chunk, backward, recompute;
    Lane        lane;
    const char *label;

    size_t   act_bytes, act_lower_bound; /* set by prog_plan */
    DevExec *exec;
};

/* Rebuilds the list from the given ops (copied into the arena). */
void prog_replace_ops(Prog *p, const Op *ops, int n);

static inline int prog_id_count(const Prog *p) { return p->store->n_tensor + p->n_tensor; }

#endif
