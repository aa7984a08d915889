/* The part of the CUDA backend that kernels without tensor cores use, on the CPU and in f32. Thread blocks
 * run one after the other, each with all of its threads at once (machine.h). The headers cuda_dev.h,
 * cuda_check.h and cuda_types.cuh here replace those in src. */
#ifndef TESTS_EMULATE_SERIAL_H
#define TESTS_EMULATE_SERIAL_H

#include "dev/dev.h"
#include "hopper.h"

#include <string.h>
#include <type_traits>

struct Place {
    unsigned x, y, z;
};
inline Place serial_block;
#define blockIdx serial_block
inline float4 smem4[SHARED_BYTES / sizeof(float4)]; /* of the block that runs */

typedef void            CudaDev;
inline cudaStream_t     cuda_stream(Dev *) { return 0; }
inline int              cuda_sm_count(Dev *) { return 8; }
inline float            to_f32(float x) { return x; }
template <typename T> T from_f32(float x) { return x; }

template <typename T> struct alignas(16) Pack {
    static constexpr int N = 16 / (int)sizeof(T);
    T                    v[N];
};
template <typename T> Pack<T> pack_load(const T *p)
{
    if ((uintptr_t)p % 16 != 0) give_up("a pack that is not aligned");
    return *(const Pack<T> *)p;
}

inline int cuda_packable(const Tensor *t)
{
    return (uintptr_t)t->data % 16 == 0 && tensor_cols(t) % 4 == 0 && tensor_ld(t) % 4 == 0;
}

template <typename F> int cuda_dispatch(DType, const char *, F f) { return f(float()); }
template <typename F> int k_flag(int flag, F f) { return flag ? f(std::true_type()) : f(std::false_type()); }

/* Shared memory holds NaN when a block begins. */
template <typename... P, typename... A>
int k_launch(const char *op, void (*kernel)(P...), dim3 grid, int threads, size_t smem, cudaStream_t, A... a)
{
    cudaLaunchConfig_t cfg = {};
    cfg.blockDim           = dim3((unsigned)threads);
    if (smem > SHARED_BYTES) return err_set("%s: %zu bytes of shared memory", op, smem);
    for (unsigned i = 0; i < grid.x * grid.y * grid.z; i++) {
        serial_block = { i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y };
        memset(smem4, 0xff, smem);
        if (cudaLaunchKernelEx(&cfg, kernel, a...) < 0) return err_set("%s: the launch failed", op);
    }
    return 0;
}

#endif
