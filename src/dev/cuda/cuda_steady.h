/* Which of two ways is faster once the card runs at the clock that its power limit allows. */
#ifndef DEV_CUDA_CUDA_STEADY_H
#define DEV_CUDA_CUDA_STEADY_H

#include "dev/cuda/cuda_dev.h"

/* Queues way 0 or 1 so many times; negative with the error set. */
typedef int (*CudaRunWay)(CudaDev *d, void *what, int way, int runs);

/* The slower burst takes at most `within` times the faster one, of work long enough to heat the card. */
int cuda_steady_is_close(const float us[2], float within);

/* us[]: burst times in, steady ones out. Takes half a second. */
int cuda_steady_time(CudaDev *d, CudaRunWay run, void *what, float us[2]);

#endif
