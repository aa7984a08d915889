/* Trace: which op kept the card busy, and when, measured by CUPTI. CUPTI is opened when a trace begins. */
#ifndef DEV_CUDA_CUDA_TRACE_H
#define DEV_CUDA_CUDA_TRACE_H

#include "dev/dev.h"

/* What a captured list launches: the op of each kernel and copy, in the order in which they were captured. */
typedef struct {
    const Op *ops; /* borrowed */
    int      *work;
    int       n_work;
    int       one_lane; /* 1: they also begin in that order */
} CudaWork;

/* -1 after err_set(): no CUPTI here, or it refuses. */
int cuda_trace_begin(Dev *dev);
int cuda_trace_end(Dev *dev, DevTrace *out);

/* 1 between the two. */
int cuda_trace_is_on(void);
/* A graph of this work is launched next. */
void cuda_trace_graph(const CudaWork *w);
/* What is launched in between, one by one, belongs to op. */
void cuda_trace_op_begin(const Op *op);
void cuda_trace_op_end(void);

#endif
