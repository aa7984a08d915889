/* Bytes of scratch of the optimizer ops. */
#ifndef DEV_CPU_OPTIM_H
#define DEV_CPU_OPTIM_H

#include "tensor/tensor.h"

#include <stddef.h>
#include <stdint.h>

size_t cpu_sumsq_scratch(int64_t n);
size_t cpu_ortho_scratch(const Tensor *x);

#endif
