/* Mlp: hidden layers and heads as rows of a parameter table, and the functions that record them.
 *
 * 1. Hidden layer l of the body NAME is NAME.l.{weight,bias}; a head is NAME.{weight,bias}. Matrices begin
 *    orthogonal, biases at 0.
 * 2. A body computes in the run's dtype. A head computes in f32 and reads f32 weights: probabilities and
 *    values keep their last bits. */
#ifndef NET_MLP_H
#define NET_MLP_H

#include "net/param.h"
#include "prog/prog.h"

typedef struct {
    const char *name; /* of the body */
    int64_t     in, width;
    int         layers;
    Act         act;
} Mlp;

void mlp_declare(ParamTable *t, const Mlp *m);
typedef struct {
    const char *name;
    int64_t     in, out;
    float       gain, bias; /* initial length of its rows, initial bias */
} MlpHead;

void mlp_declare_head(ParamTable *t, const MlpHead *h);

/* x [N,in] -> [N,width], in the dtype of x. */
Tensor *mlp_record(const ParamTable *t, Prog *p, const Mlp *m, Tensor *x);
/* The first layer without its activation. */
Tensor *mlp_record_linear(const ParamTable *t, Prog *p, const Mlp *m, Tensor *x);
/* h in f32, which heads read. */
Tensor *mlp_record_wide(Prog *p, Tensor *h);
/* h f32 [N,in] -> f32 [N,out]. */
Tensor *mlp_record_head(const ParamTable *t, Prog *p, const char *name, Tensor *h);

#endif
