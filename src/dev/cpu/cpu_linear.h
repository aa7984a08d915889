/* Bytes of scratch that the linear ops need: packed weights, packed rows for dw, blocks of dx. */
#ifndef DEV_CPU_LINEAR_H
#define DEV_CPU_LINEAR_H

#include "dev/op.h"

size_t cpu_linear_fwd_scratch(const Tensor *y, const Tensor *x, const Tensor *w);
size_t cpu_linear_dx_scratch(const Tensor *dx, const Tensor *dy, const Tensor *w);
size_t cpu_linear_dw_scratch(const Tensor *dw, const Tensor *dy, const Tensor *x);
size_t cpu_linear_grad_scratch(const Tensor *dy, const Tensor *w, int threads); /* fused with an activation */

#endif
