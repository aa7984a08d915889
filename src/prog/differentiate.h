/* What a gradient rule may use. Only differentiate.c and grad_rules.c include this. */
#ifndef PROG_DIFFERENTIATE_H
#define PROG_DIFFERENTIATE_H

#include "prog/prog_impl.h"

enum { NEEDS_GRADIENT = 1, NEEDS_BY_VIEWS = 2 /* its gradient is written view by view */ };

typedef struct {
    Prog                 *p;
    Tensor               *state;
    const RecomputeLevel *level;
    int                   n_block, n_fwd;
    Tensor              **grad; /* by tensor id: gradient so far, NULL when none */
    /* By tensor id (of the root): NEEDS_* flags; set if a trainable weight contributed to it. */
    unsigned char *needs;
    int           *producer; /* by tensor id: forward op that writes it, -1 for inputs and store tensors */
    Tensor       **again;    /* by tensor id: its recomputed twin, NULL when not (yet) repeated */
    int            cap;      /* length of the arrays above */
} Diff;

/* One rule per op kind: records the gradient ops of a forward op whose output has a gradient. */
typedef void (*GradRule)(Diff *d, const Op *op);
extern const GradRule grad_rules[OP_COUNT];

Tensor *diff_out(Diff *d, Tensor *t);    /* gradient of an output; NULL when nothing depends on it */
Tensor *diff_saved(Diff *d, Tensor *t);  /* the forward value, repeated first if its block recomputes it */
Tensor *diff_weight(Diff *d, Tensor *w); /* gradient accumulator of a weight; NULL when frozen or absent */

/* The tensor a `_dx` op must write for input t, or NULL if t needs no gradient; diff_end() after recording
 * the op. If t already has a gradient, an explicit ADD adds the two; lowering folds the ADD. */
Tensor *diff_begin(Diff *d, Tensor *t);
void    diff_end(Diff *d, Tensor *t, Tensor *g);
/* The gradient of t is, or grows by, an existing tensor: nothing to compute. */
void diff_pass(Diff *d, Tensor *t, Tensor *g);

#endif
