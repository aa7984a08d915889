/* Trace: when the card was busy, measured by CUPTI. CUPTI is opened when a trace is asked for. */
#ifndef DEV_CUDA_CUDA_TRACE_H
#define DEV_CUDA_CUDA_TRACE_H

#include "dev/dev.h"

/* -1 after err_set(): no CUPTI here, or it refuses. */
int cuda_trace_begin(Dev *dev);
int cuda_trace_end(Dev *dev, DevTrace *out);

#endif
