/* Hopper's tensor cores and tensor copies: wgmma, TMA, and what goes with them.
 *
 * 1. Operands in shared memory are tiles of 64 bf16 (128 bytes) a row, swizzled in 128-byte atoms as TMA
 *    writes them: 16-byte chunk c of row r lies at chunk c ^ (r & 7). Tiles start at multiples of 1024 bytes.
 * 2. "Rows" operand: a row is one index of M or N, its 64 columns are K. Step of 16 in K: 32 bytes.
 *    "Columns" operand: a row is one index of K, its 64 columns are M or N; wider tiles are several such
 *    blocks of 64 x 64 after one another. Step of 16 in K: 16 rows.
 * 3. An accumulator of 64 x N: thread t of the warpgroup has, for each block of 8 columns b, the values
 *    acc[4b + 2j + e] at row 16*(t/32) + 8j + (t%32)/4, column 8b + 2*(t%4) + e.
 * 4. Needs sm_90a. Elsewhere its instructions are a trap; the host does not launch it there. */
#ifndef DEV_CUDA_K_WGMMA_CUH
#define DEV_CUDA_K_WGMMA_CUH

#include "dev/cuda/k_ptx.cuh"

#include <cuda.h>
#include <cuda_bf16.h>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#else
#define HOPPER_ASM(...) __trap()
#endif

enum { WG_THREADS = 128, TILE_ROW_BYTES = 128, SWIZZLE_ATOM = 1024 };

/* ---- wgmma --------------------------------------------------------------------------------------------- */

/* Start, leading and stride byte offsets of a 128-byte-swizzled operand (PTX ISA, matrix descriptor). */
__device__ __forceinline__ uint64_t wgmma_desc(uint32_t smem, uint32_t lead, uint32_t stride)
{
    return (uint64_t)((smem & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* A rows operand: eight rows are one atom. */
__device__ __forceinline__ uint64_t wgmma_desc_rows(uint32_t smem)
{
    return wgmma_desc(smem, 16, SWIZZLE_ATOM);
}

/* A columns operand of blocks of 64 columns, `block` bytes apart. */
__device__ __forceinline__ uint64_t wgmma_desc_cols(uint32_t smem, uint32_t block)
{
    return wgmma_desc(smem, block, SWIZZLE_ATOM);
}

/* Steps of 16 in K, in units of the descriptor's address field. */
enum { WGMMA_STEP_ROWS = 32 >> 4, WGMMA_STEP_COLS = (16 * TILE_ROW_BYTES) >> 4 };

/* Orders earlier register and shared-memory writes before the products that follow. */
__device__ __forceinline__ void wgmma_begin() { HOPPER_ASM("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit()
{
    HOPPER_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits until at most N committed groups are unfinished. */
template <int N> __device__ __forceinline__ void wgmma_wait()
{
    HOPPER_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* d[64 x 192] (+)= a b, both operands in shared memory. TA, TB: 1 for a columns operand. */
template <int TA, int TB>
__device__ __forceinline__ void wgmma_192(float (&d)[96], uint64_t a, uint64_t b, int add)
{
    HOPPER_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
               "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
               "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
               "%96, %97, p, 1, 1, %99, %100;\n}\n"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
                 "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
                 "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
                 "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
                 "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                 "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
                 "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
                 "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]),
                 "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]),
                 "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
                 "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]),
                 "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
               : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}

/* After wgmma_wait<0>(): says that the accumulators were written until then, so that nothing that reads them moves up. */
template <int N> __device__ __forceinline__ void wgmma_settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Moves registers between the warpgroups of a block; N is a multiple of 8. */
template <int N> __device__ __forceinline__ void regs_grow()
{
    HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void regs_shrink()
{
    HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- tensor copies ------------------------------------------------------------------------------------- */

/* The box at column x, row y into this block's shared memory; bar counts its bytes. */
__device__ __forceinline__ void tma_load(uint32_t smem, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(smem),
        "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}

/* The same into every block of the cluster named in the mask, at the same addresses, counted by each one's own
 * barrier. */
__device__ __forceinline__ void tma_load_all(uint32_t smem, const CUtensorMap *map, int x, int y,
                                             uint32_t bar, uint16_t mask)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem),
        "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask)
        : "memory");
}

/* ---- barriers of a cluster ----------------------------------------------------------------------------- */

/* The address that `smem` of this block has in block `rank` of the cluster. */
__device__ __forceinline__ uint32_t cluster_addr(uint32_t smem, int rank)
{
    uint32_t addr = 0;
    HOPPER_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(addr) : "r"(smem), "r"(rank));
    return addr;
}

/* Arrives at a barrier of this block. */
__device__ __forceinline__ void ptx_mbar_arrive(uint64_t *bar)
{
    HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ptx_smem_addr(bar)) : "memory");
}

/* Releases nothing wider than the block: a release at cluster scope is a MEMBAR.GPU in every step of a loop (seen in SASS; it
 * cost a product 35 % of its speed), and readers of shared memory have nothing to release. */
__device__ __forceinline__ void cluster_arrive(uint32_t bar)
{
    HOPPER_ASM("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* ---- fragments and shared memory ----------------------------------------------------------------------- */

/* Four 8 x 8 matrices of bf16; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void smem_store_frags(uint32_t addr, const uint32_t (&v)[4])
{
    HOPPER_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/* 16 bytes. */
__device__ __forceinline__ uint4 smem_load(uint32_t addr)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}
/* Two values as bf16, the first in the low half. */
__device__ __forceinline__ uint32_t bf16_pair(float lo, float hi)
{
    uint32_t v;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
    return v;
}
__device__ __forceinline__ float bf16_low(uint32_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float bf16_high(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }

#endif
