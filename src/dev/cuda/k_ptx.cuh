/* Machine instructions that CUDA C++ has no function for. In dev/cuda only this file and k_wgmma.cuh
 * (Hopper's tensor cores) contain assembly.
 *
 * 1. ptx_ex2 and ptx_rcp flush denormals; relative error about 2^-22 and 1 ulp (PTX ISA).
 * 2. ptx_bar_sync counts threads of one block on barriers 1..15; barrier 0 is __syncthreads().
 * 3. The bulk copies, their barriers and the clusters need compute capability 9.0. On older targets they
 *    compile to a trap; the host chooses another kernel there (CudaDev.capability). */
#ifndef DEV_CUDA_K_PTX_CUH
#define DEV_CUDA_K_PTX_CUH

#include <stdint.h>

/* 2^x */
__device__ __forceinline__ float ptx_ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1/x */
__device__ __forceinline__ float ptx_rcp(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* a*b in one instruction; the compiler widens both first and multiplies in four. */
__device__ __forceinline__ int64_t ptx_mul_wide(int a, int b)
{
    int64_t c;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(c) : "r"(a), "r"(b));
    return c;
}

/* 16 bytes, evict first; zero without an access unless ok. No branch, so that loads in a row stay
 * together. */
__device__ __forceinline__ uint4 ptx_load_stream(const void *p, bool ok)
{
    uint4 v;
    asm volatile("{\n"
                 ".reg .pred q;\n"
                 "setp.ne.s32 q, %5, 0;\n"
                 "mov.b32 %0, 0;\n"
                 "mov.b32 %1, 0;\n"
                 "mov.b32 %2, 0;\n"
                 "mov.b32 %3, 0;\n"
                 "@q ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(__cvta_generic_to_global(p)), "r"((int)ok)
                 : "memory");
    return v;
}

/* The 128 bytes around p, into L2 only. */
__device__ __forceinline__ void ptx_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

/* 16 bytes in one access. An assignment of a uint4 may become four (seen in PTX of unrolled loops, CUDA
 * 13.0). */
__device__ __forceinline__ void ptx_store(void *p, uint4 v)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(p)), "r"(v.x),
                 "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Reads 16 bytes of a table that no kernel writes meanwhile, at exactly this place. The compiler may neither
 * keep the value from an earlier read nor move the read out of a loop: both cost registers. */
__device__ __forceinline__ float4 ptx_table_load(const float *p)
{
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p));
    return v;
}

/* Makes the value new to the compiler, so that what was computed from it before is computed again, not
 * kept. */
__device__ __forceinline__ void ptx_forget(uint4 *v)
{
    asm volatile("" : "+r"(v->x), "+r"(v->y), "+r"(v->z), "+r"(v->w));
}

/* Waits for n_threads threads (whole warps) at barrier id. */
__device__ __forceinline__ void ptx_bar_sync(int id, int n_threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

__device__ __forceinline__ uint32_t ptx_smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

__device__ __forceinline__ void ptx_mbar_init(uint64_t *bar, uint32_t n_arrive)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx_smem_addr(bar)), "r"(n_arrive)
                 : "memory");
}

/* Makes the initialised barriers visible to the copy engine and to the other blocks of the cluster. */
__device__ __forceinline__ void ptx_mbar_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Orders this thread's earlier shared-memory accesses before the copy engine's later ones. */
__device__ __forceinline__ void ptx_fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Arrives and announces n_bytes that the copy engine will deliver. At most 2^20 - 1 bytes are pending at a
 * time. */
__device__ __forceinline__ void ptx_mbar_expect(uint64_t *bar, uint32_t n_bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx_smem_addr(bar)),
                 "r"(n_bytes)
                 : "memory");
}

__device__ __forceinline__ void ptx_mbar_wait(uint64_t *bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(ptx_smem_addr(bar)), "r"(parity)
                     : "memory");
    }
}

/* Arrives. */
__device__ __forceinline__ void ptx_mbar_tell(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx_smem_addr(bar)) : "memory");
}

/* Waits for what other blocks of the cluster have sent. */
__device__ __forceinline__ void ptx_mbar_wait_cluster(uint64_t *bar, uint32_t parity)
{
    uint32_t done = 0;
    while (!done) {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(ptx_smem_addr(bar)), "r"(parity)
                     : "memory");
    }
}

/* Writes v to the place of p in block `rank` of the cluster; that block's bar counts the 8 bytes. */
__device__ __forceinline__ void ptx_cluster_send(float2 *p, float2 v, uint64_t *bar, int rank)
{
    asm volatile("{\n"
                 ".reg .b32 to, b;\n"
                 "mapa.shared::cluster.u32 to, %0, %4;\n"
                 "mapa.shared::cluster.u32 b, %1, %4;\n"
                 "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%2, %3}, [b];\n"
                 "}\n" ::"r"(ptx_smem_addr(p)),
                 "r"(ptx_smem_addr(bar)), "f"(v.x), "f"(v.y), "r"(rank)
                 : "memory");
}

/* Global to shared memory by the copy engine; addresses and n_bytes are multiples of 16. */
__device__ __forceinline__ void ptx_bulk_load(void *dst, const void *src, uint32_t n_bytes, uint64_t *bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            ptx_smem_addr(dst)),
        "l"(__cvta_generic_to_global(src)), "r"(n_bytes), "r"(ptx_smem_addr(bar))
        : "memory");
}

/* True in one thread of a whole warp. If the compiler knows that only one thread runs, a bulk copy is one
 * instruction. After a comparison of thread numbers it is a loop over the warp (seen in SASS, CUDA 13.0). */
__device__ __forceinline__ bool ptx_elect()
{
    uint32_t e;
    asm volatile("{\n"
                 ".reg .pred q;\n"
                 "elect.sync _|q, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, q;\n"
                 "}\n"
                 : "=r"(e));
    return e != 0;
}

__device__ __forceinline__ int ptx_cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}

/* Every thread of every block of the cluster; shared-memory writes before it are seen after it. */
__device__ __forceinline__ void ptx_cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

#else

__device__ __forceinline__ void ptx_mbar_init(uint64_t *, uint32_t) { __trap(); }
__device__ __forceinline__ void ptx_mbar_init_fence() { __trap(); }
__device__ __forceinline__ void ptx_fence_async() { __trap(); }
__device__ __forceinline__ void ptx_mbar_expect(uint64_t *, uint32_t) { __trap(); }
__device__ __forceinline__ void ptx_mbar_wait(uint64_t *, uint32_t) { __trap(); }
__device__ __forceinline__ void ptx_mbar_tell(uint64_t *) { __trap(); }
__device__ __forceinline__ void ptx_mbar_wait_cluster(uint64_t *, uint32_t) { __trap(); }
__device__ __forceinline__ void ptx_cluster_send(float2 *, float2, uint64_t *, int) { __trap(); }
__device__ __forceinline__ void ptx_bulk_load(void *, const void *, uint32_t, uint64_t *) { __trap(); }
__device__ __forceinline__ bool ptx_elect() { return false; }
__device__ __forceinline__ int  ptx_cluster_rank() { return 0; }
__device__ __forceinline__ void ptx_cluster_sync() { __trap(); }

#endif
#endif
