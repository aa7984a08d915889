/* Environments: one thread steps one environment (env_lane.h has the work), 128 threads a block.
 * Bytes moved per step and environment: its lane twice (56 to 150 bytes), its rows once. */
#include "env/cuda/env_lane.h"

#include "base/err.h"

#include <string.h>

enum { THREADS = 128 };

template <int KIND> static __global__ void step_kernel(EnvCuda e)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < e.n_env) env_lane_step<KIND>(&e, i);
}

template <int KIND> static __global__ void reset_kernel(EnvCuda e)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < e.n_env) env_lane_begin<KIND>(&e, i, 0);
}

static const char *const env_name[ENV_LANE_KINDS] = {
    "cartpole", "acrobot", "mountaincar", "mountaincar-continuous", "pendulum", "tmaze", "meteor"
};

static int launched(const char *what)
{
    cudaError_t rc = cudaGetLastError();
    return rc == cudaSuccess ? 0 : err_set("%s: %s", what, cudaGetErrorString(rc));
}

extern "C" int env_cuda_find(const char *name)
{
    for (int i = 0; i < ENV_LANE_KINDS; i++)
        if (strcmp(name, env_name[i]) == 0) return i;
    return -1;
}

extern "C" int64_t env_cuda_bytes(int kind, int n_env)
{
    int64_t one = 0;
    switch (kind) {
#define X(KIND, ...)                                                                                         \
    case KIND: one = sizeof(EnvLane<KIND>); break;
        ENV_LANE_LIST(X)
#undef X
    default: CHECK(0, "environment kind %d", kind);
    }
    return (one * n_env + 255) / 256 * 256;
}

extern "C" int env_cuda_reset(const EnvCuda *e, void *stream)
{
    int blocks = (e->n_env + THREADS - 1) / THREADS;
    switch (e->kind) {
#define X(KIND, ...)                                                                                         \
    case KIND: reset_kernel<KIND><<<blocks, THREADS, 0, (cudaStream_t)stream>>>(*e); break;
        ENV_LANE_LIST(X)
#undef X
    default: CHECK(0, "environment kind %d", e->kind);
    }
    return launched("reset of environments");
}

extern "C" int env_cuda_step(const EnvCuda *e, void *stream)
{
    int blocks = (e->n_env + THREADS - 1) / THREADS;
    switch (e->kind) {
#define X(KIND, ...)                                                                                         \
    case KIND: step_kernel<KIND><<<blocks, THREADS, 0, (cudaStream_t)stream>>>(*e); break;
        ENV_LANE_LIST(X)
#undef X
    default: CHECK(0, "environment kind %d", e->kind);
    }
    return launched("step of environments");
}

extern "C" int env_cuda_wait(void *stream)
{
    cudaError_t rc = cudaStreamSynchronize((cudaStream_t)stream);
    return rc == cudaSuccess ? 0 : err_set("environments: %s", cudaGetErrorString(rc));
}
