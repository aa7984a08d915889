/* Bytes of scratch of the optimizer ops. */
#ifndef DEV_CPU_OPTIM_H
#define DEV_CPU_OPTIM_H

#include <stddef.h>
#include <stdint.h>

size_t cpu_sumsq_scratch(int64_t n);

#endif
