/* Lists: build, capture, replay, time. */
#ifndef DEV_CUDA_CUDA_EXEC_H
#define DEV_CUDA_CUDA_EXEC_H

#include "dev/cuda/cuda_dev.h"

#ifdef __cplusplus
extern "C" {
#endif

DevExec *cuda_exec_create(Dev *dev, const Op *ops, int n_op);
void     cuda_exec_destroy(Dev *dev, DevExec *exec);
int      cuda_exec_run(Dev *dev, DevExec *exec);
int      cuda_trap(Dev *dev); /* launches a kernel that fails, for tests */
int      cuda_exec_time(Dev *dev, DevExec *exec, DevOpTime *out);

#ifdef __cplusplus
}
#endif
#endif
