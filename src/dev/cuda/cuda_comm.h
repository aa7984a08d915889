/* Collectives through NCCL. NCCL is opened at run time, so a single GPU needs no such library.
 *
 * 1. A device without a communicator is a single rank: its collectives are copies.
 * 2. A collective goes to the stream of its op's lane like any kernel, also in a capture. NCCL makes every
 *    connection and allocates every buffer when the communicator is opened, never during capture or replay.
 * 3. Ranks issue their collectives in the same order because they run the same list (prog/buckets.h). */
#ifndef DEV_CUDA_CUDA_COMM_H
#define DEV_CUDA_CUDA_COMM_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

int  cuda_comm_id(unsigned char id[COMM_ID_BYTES]); /* a new one; negative after err_set() */
int  cuda_comm_open(Dev           *dev,
                    const DevComm *c); /* returns when all ranks have called; negative after err_set() */
void cuda_comm_close(CudaDev *d);      /* nothing for a single rank */

int cuda_all_reduce(Dev *dev, const AllReduce *a);
int cuda_reduce_scatter(Dev *dev, const ReduceScatter *a);
int cuda_all_gather(Dev *dev, const AllGather *a);

#ifdef __cplusplus
}
#endif
#endif
