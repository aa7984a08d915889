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

/* The low half of a descriptor of a 128-byte-swizzled operand: its address and leading byte offset, in units
 * of 16 (PTX ISA, matrix descriptor). Small steps of the address are added to it. */
__device__ __forceinline__ uint32_t wgmma_low(uint32_t smem, uint32_t lead)
{
    return (smem & 0x3ffff) >> 4 | (lead >> 4) << 16;
}

/* A rows operand: eight rows are one atom. */
__device__ __forceinline__ uint32_t wgmma_low_rows(uint32_t smem) { return wgmma_low(smem, 16); }

/* A columns operand of blocks of 64 columns, `block` bytes apart. */
__device__ __forceinline__ uint32_t wgmma_low_cols(uint32_t smem, uint32_t block)
{
    return wgmma_low(smem, block);
}

/* The whole: atoms follow one another. */
__device__ __forceinline__ uint64_t wgmma_desc(uint32_t low)
{
    return (uint64_t)(1 << 30 | SWIZZLE_ATOM >> 4) << 32 | low;
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

/* Accumulators d[i] and on as operands. */
#define D8(how, i)                                                                                           \
    how(d[i]), how(d[i + 1]), how(d[i + 2]), how(d[i + 3]), how(d[i + 4]), how(d[i + 5]), how(d[i + 6]),     \
        how(d[i + 7])
#define D32(how, i) D8(how, i), D8(how, i + 8), D8(how, i + 16), D8(how, i + 24)

/* Operands i to i + 31 in the text of an instruction. */
#define R32_0                                                                                                \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define R32_32                                                                                               \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define R32_64                                                                                               \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                       \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

/* n: columns; regs: the accumulators' operands; a, b, add, ta, tb: of the two descriptors and three
 * constants. */
#define WGMMA_SHARED(n, regs, a, b, add, ta, tb)                                                             \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned.m64n" n                      \
    "k16.f32.bf16.bf16 {" regs "}, " a ", " b ", p, 1, 1, " ta ", " tb ";\n}\n"
#define R96              R32_0 ", " R32_32 ", " R32_64
#define WGMMA_192        WGMMA_SHARED("192", R96, "%96", "%97", "%98", "%99", "%100")
#define WGMMA_128_SHARED WGMMA_SHARED("128", R32_0 ", " R32_32, "%64", "%65", "%66", "%67", "%68")
#define WGMMA_64_SHARED  WGMMA_SHARED("64", R32_0, "%32", "%33", "%34", "%35", "%36")

/* d[64 x N] = a b, or += if ADD, for N of 64, 128 or 192; both operands in shared memory. TA, TB: 1 for a
 * columns operand. The two forms differ in how they declare d: registers that are only written need no values
 * before. */
template <int TA, int TB, int ADD, int H>
__device__ __forceinline__ void wgmma_shared(float (&d)[H], uint64_t a, uint64_t b)
{
    constexpr int N = 2 * H;
    static_assert(N == 64 || N == 128 || N == 192, "columns");
    if constexpr (N == 192 && ADD) {
        HOPPER_ASM(WGMMA_192
                   : D32("+f", 0), D32("+f", 32), D32("+f", 64)
                   : "l"(a), "l"(b), "n"(1), "n"(TA), "n"(TB));
    } else if constexpr (N == 192) {
        HOPPER_ASM(WGMMA_192
                   : D32("=f", 0), D32("=f", 32), D32("=f", 64)
                   : "l"(a), "l"(b), "n"(0), "n"(TA), "n"(TB));
    } else if constexpr (N == 128 && ADD) {
        HOPPER_ASM(WGMMA_128_SHARED : D32("+f", 0), D32("+f", 32) : "l"(a), "l"(b), "n"(1), "n"(TA), "n"(TB));
    } else if constexpr (N == 128) {
        HOPPER_ASM(WGMMA_128_SHARED : D32("=f", 0), D32("=f", 32) : "l"(a), "l"(b), "n"(0), "n"(TA), "n"(TB));
    } else if constexpr (ADD) {
        HOPPER_ASM(WGMMA_64_SHARED : D32("+f", 0) : "l"(a), "l"(b), "n"(1), "n"(TA), "n"(TB));
    } else {
        HOPPER_ASM(WGMMA_64_SHARED : D32("=f", 0) : "l"(a), "l"(b), "n"(0), "n"(TA), "n"(TB));
    }
}

#define WGMMA_64                                                                                             \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                             \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" R32_0                                           \
    "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"

/* d[64 x 64] = a b, or += if ADD, with a in registers: a fragment as smem_load_frags() reads it, four words
 * for 16 columns. */
template <int TB, int ADD>
__device__ __forceinline__ void wgmma_64(float (&d)[32], const uint32_t *a, uint64_t b)
{
    if constexpr (ADD) {
        HOPPER_ASM(WGMMA_64
                   : D32("+f", 0)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1), "n"(TB));
    } else {
        HOPPER_ASM(WGMMA_64
                   : D32("=f", 0)
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(0), "n"(TB));
    }
}

#define WGMMA_128                                                                                            \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"                                                             \
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" R32_0 ", " R32_32                              \
    "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"

/* d[64 x 128] += a b with a in registers. */
template <int TB> __device__ __forceinline__ void wgmma_128(float (&d)[64], const uint32_t *a, uint64_t b)
{
    HOPPER_ASM(WGMMA_128
               : D32("+f", 0), D32("+f", 32)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1), "n"(TB));
}

/* The same with a, a rows operand, in shared memory. */
template <int TB, int ADD> __device__ __forceinline__ void wgmma_64(float (&d)[32], uint64_t a, uint64_t b)
{
    wgmma_shared<0, TB, ADD>(d, a, b);
}

#define WGMMA_8                                                                                              \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"                                                              \
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, %7, 0;\n}\n"

/* d[64 x 8] = a b, or += if ADD; b: the first 8 rows of a rows operand. If they are all ones, in whatever
 * order, each column is the sums of a's rows over K. */
template <int TA, int ADD> __device__ __forceinline__ void wgmma_8(float (&d)[4], uint64_t a, uint64_t b)
{
    if constexpr (ADD) {
        HOPPER_ASM(WGMMA_8
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "l"(a), "l"(b), "n"(1), "n"(TA));
    } else {
        HOPPER_ASM(WGMMA_8
                   : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                   : "l"(a), "l"(b), "n"(0), "n"(TA));
    }
}

#define WGMMA_8_REGS                                                                                         \
    "{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"                                                              \
    "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, "  \
    "0;\n}\n"

/* The same with a in registers. */
template <int ADD> __device__ __forceinline__ void wgmma_8_regs(float (&d)[4], const uint32_t *a, uint64_t b)
{
    if constexpr (ADD) {
        HOPPER_ASM(WGMMA_8_REGS
                   : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1));
    } else {
        HOPPER_ASM(WGMMA_8_REGS
                   : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(0));
    }
}

/* After a wait for their product, or after they were set: tells the compiler that these accumulators were
 * written until here. So no read of them moves up, and no write moves down. */
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

/* L2 gives these lines up first (the policy that createpolicy makes of evict_first for whole accesses). */
#define L2_EVICT_FIRST 0x12F0000000000000ull

/* The box at column x, row y into this block's shared memory; bar counts its bytes. */
__device__ __forceinline__ void tma_load(uint32_t smem, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
        "[%4];" ::"r"(smem),
        "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}

/* A box of a head (tma_map_heads()). */
typedef struct {
    int head, row, batch;
} HeadBox;
__device__ __forceinline__ void tma_load_head(uint32_t smem, const CUtensorMap *map, int col, HeadBox at,
                                              uint32_t bar)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], [%6];" ::"r"(smem),
        "l"(map), "r"(col), "r"(at.head), "r"(at.row), "r"(at.batch), "r"(bar)
        : "memory");
}

/* n_bytes in a row; a multiple of 16, as both addresses are. */
__device__ __forceinline__ void tma_load_bytes(uint32_t smem, const void *src, uint32_t n_bytes, uint32_t bar)
{
    HOPPER_ASM(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
        "l"(src), "r"(n_bytes), "r"(bar)
        : "memory");
}

/* The same into every block of the cluster named in the mask, at the same addresses, counted by each one's
 * own barrier. */
__device__ __forceinline__ void tma_load_all(uint32_t smem, const CUtensorMap *map, int x, int y,
                                             uint32_t bar, uint16_t mask)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(smem),
        "l"(map), "r"(x), "r"(y), "r"(bar), "h"(mask)
        : "memory");
}

/* A box from this block's shared memory to memory, or added to memory (f32). Stores are marked as streaming:
 * they should not drive operands out of L2 that are read again (1 to 3 % of a fused product). Stores of a
 * thread are counted in groups. */
__device__ __forceinline__ void tma_store(const CUtensorMap *map, int x, int y, uint32_t smem)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2}], [%3], %4;" ::
            "l"(map),
        "r"(x), "r"(y), "r"(smem), "l"(L2_EVICT_FIRST)
        : "memory");
}
__device__ __forceinline__ void tma_store_head(const CUtensorMap *map, int col, HeadBox at, uint32_t smem)
{
    HOPPER_ASM(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2, %3, %4}], [%5], "
        "%6;" ::"l"(map),
        "r"(col), "r"(at.head), "r"(at.row), "r"(at.batch), "r"(smem), "l"(L2_EVICT_FIRST)
        : "memory");
}
__device__ __forceinline__ void tma_add(const CUtensorMap *map, int x, int y, uint32_t smem)
{
    HOPPER_ASM(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map),
        "r"(x), "r"(y), "r"(smem)
        : "memory");
}
__device__ __forceinline__ void tma_store_commit() { HOPPER_ASM("cp.async.bulk.commit_group;" ::: "memory"); }
/* Waits until at most N groups have not been read from shared memory. */
template <int N> __device__ __forceinline__ void tma_store_wait_read()
{
    HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/* Waits until every group is in memory. */
__device__ __forceinline__ void tma_store_wait() { HOPPER_ASM("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* ---- barriers by their shared address ------------------------------------------------------------------ */

__device__ __forceinline__ void bar_init(uint32_t bar, uint32_t n_arrive)
{
    HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(n_arrive) : "memory");
}
__device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t n_bytes)
{
    HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(n_bytes) : "memory");
}
__device__ __forceinline__ void bar_arrive(uint32_t bar)
{
    HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* By the first lane of the warp, without a branch; by none if `except`. */
__device__ __forceinline__ void bar_arrive_first(uint32_t bar, bool except)
{
    HOPPER_ASM(
        "{\n.reg .pred p;\nsetp.eq.u32 p, %1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [%0];\n}\n" ::"r"(
            bar),
        "r"(threadIdx.x % 32 | except)
        : "memory");
}
__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity)
{
    HOPPER_ASM("{\n.reg .pred p;\nAGAIN_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra "
               "AGAIN_%=;\n}\n" ::"r"(bar),
               "r"(parity)
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

/* Releases nothing wider than the block: a release at cluster scope is a MEMBAR.GPU in every step of a loop
 * (seen in SASS; it cost a product 35 % of its speed), and readers of shared memory have nothing to
 * release. */
__device__ __forceinline__ void cluster_arrive(uint32_t bar)
{
    HOPPER_ASM("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* ---- fragments and shared memory ----------------------------------------------------------------------- */

/* Four 8 x 8 matrices of bf16; lane l gives the address of row l%8 of matrix l/8. */
__device__ __forceinline__ void smem_store_frags(uint32_t addr, const uint32_t *v)
{
    HOPPER_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

/* The same, read. */
__device__ __forceinline__ void smem_load_frags(uint32_t addr, uint32_t *v)
{
    HOPPER_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
               : "r"(addr)
               : "memory");
}
/* Where this lane's row of a fragment of 16 x 16 is in a buffer of 64 rows. The fragment 16*p columns on is
 * at that ^ 32*p: buffers begin at multiples of their swizzle's atom. */
template <int ROW> __device__ __forceinline__ uint32_t lane_part(int t)
{
    int lane = t % 32, row = t / 32 * 16 + lane % 16, swap = ROW == 128 ? lane % 8 : lane % 8 / 2;
    return row * ROW + ((lane / 16) ^ swap) * 16;
}

__device__ __forceinline__ void smem_store_pair(uint32_t addr, float x, float y)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(addr), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void smem_store_word(uint32_t addr, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(addr), "r"(v) : "memory");
}

__device__ __forceinline__ uint32_t smem_load_word(uint32_t addr)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(addr) : "memory");
    return v;
}

__device__ __forceinline__ float4 smem_load_four(uint32_t addr)
{
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(addr)
                 : "memory");
    return v;
}

__device__ __forceinline__ float smem_load_float(uint32_t addr)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(addr) : "memory");
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
