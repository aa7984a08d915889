/* A kernel that fails, so that tests can see how the program reacts to a failing GPU (BRIM_FAULT=device:N:
 * the N-th list run fails). */
#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_exec.h"

__global__ void trap_kernel() { __trap(); }

extern "C" int cuda_trap(Dev *dev)
{
    trap_kernel<<<1, 1, 0, cuda_stream(dev)>>>();
    CUDA_TRY(cudaGetLastError());
    return 0;
}
