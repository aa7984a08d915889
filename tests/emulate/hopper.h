/* Hopper's tensor cores, copy engine and barriers on the CPU, to test the logic of kernels that use them. It
 * has the functions of dev/cuda/k_wgmma.cuh and k_ptx.cuh, but is slow. The headers in tests/emulate/dev/cuda
 * replace the headers of the same names in src.
 *
 *   machine.h   threads, warps, blocks, clusters and launches
 *   memory.h    shared memory, barriers, loads and stores
 *   hopper.h    products, and small words
 *
 * 1. Everything asynchronous happens as late as possible: a product some time after the first wait that
 *    covers it has begun, a load at a random time after the request, a store when the thread waits for it.
 *    Until then the destination is NaN. So a tile given back too early, an operand overwritten too early or a
 *    result read too early gives wrong numbers here, nearly every time.
 * 2. Some products and stores read their operands as early as possible instead: the operands must be ready by
 *    then.
 * 3. A launch in which no thread can go on is a deadlock: a message says so, and the launch fails. An access
 *    to a block that has ended fails in the same way.
 * 4. The emulation does not model speed, memory ordering between threads (fences do nothing), or how the
 *    compiler uses registers. */
#ifndef TESTS_EMULATE_HOPPER_H
#define TESTS_EMULATE_HOPPER_H

#include "base/err.h"
#include "memory.h"
#include "tensor/tensor.h"

#include <math.h>
#include <type_traits>

/* ---- small words --------------------------------------------------------------------------------------- */

#define FULL_WARP 0xffffffffu
enum { WARP = 32, WG_THREADS = 128, TILE_ROW_BYTES = 128, SWIZZLE_ATOM = 1024 };

struct bf16 {
    uint16_t bits;
};

struct int2 {
    int x, y;
};
struct int4 {
    int x, y, z, w;
};
inline float2            make_float2(float x, float y) { return { x, y }; }
inline int2              make_int2(int x, int y) { return { x, y }; }
inline int               min(int a, int b) { return a < b ? a : b; }
inline int               max(int a, int b) { return a > b ? a : b; }
constexpr inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline unsigned atomicInc(unsigned *p, unsigned most)
{
    unsigned v = *p;
    *p         = v >= most ? 0 : v + 1;
    return v;
}
template <typename T> T atomicAdd(T *p, T x)
{
    T v = *p;
    *p  = v + x;
    return v;
}
template <typename T> T __ldg(const T *p) { return *p; }
inline float            ptx_ex2(float x) { return exp2f(x); }
inline float            ptx_rcp(float x) { return 1 / x; }
inline float            __fmul_rn(float x, float y) { return x * y; }
inline float            __fadd_rn(float x, float y) { return x + y; }
inline float            __uint_as_float(uint32_t u) { return bits_float(u); }
template <int N> void   regs_grow() {}
template <int N> void   regs_shrink() {}

/* ---- operands ------------------------------------------------------------------------------------------ */

enum { WGMMA_STEP_ROWS = 2, WGMMA_STEP_COLS = 128 };

inline uint32_t wgmma_low(uint32_t smem, uint32_t lead) { return smem >> 4 | (lead >> 4) << 16; }
inline uint32_t wgmma_low_rows(uint32_t smem) { return wgmma_low(smem, 16); }
inline uint32_t wgmma_low_cols(uint32_t smem, uint32_t block) { return wgmma_low(smem, block); }
inline uint64_t wgmma_desc(uint32_t low) { return low; }

/* A matrix in shared memory, as a columns operand or a rows operand. */
struct Operand {
    uint64_t desc;
    int      cols;
    bool     operator==(const Operand &o) const { return desc == o.desc && cols == o.cols; }
};

/* d[64 x n] (+)= a b over 16 of k: one for the whole warpgroup, which asks for it thread by thread. */
struct Product {
    int                n;
    Operand            a, b;
    const uint32_t    *regs[WG_THREADS]; /* a in registers instead, or NULL */
    int                n_asked;
    bool               waited;
    uint32_t           ready, done; /* 1: all threads have asked for it; it is computed */
    std::vector<float> sum;         /* [64][n] */
};

/* Element (i, k), i of M or N. */
inline float operand_at(const Operand &o, int i, int k)
{
    uint32_t base = (uint32_t)(o.desc & 0x3fff) << 4, lead = (uint32_t)(o.desc >> 16 & 0x3fff) << 4;
    uint32_t n = (uint32_t)i, addr = o.cols ? base + n / 64 * lead + (uint32_t)k * 128 + n % 64 * 2
                                            : base + n * 128 + (uint32_t)k * 2;
    return from_bf16(smem_get<uint16_t>(swizzled(addr)));
}

/* The same of a in the registers of a warpgroup. */
inline float operand_regs(const Product &p, int row, int k)
{
    uint32_t w = p.regs[row / 16 * 32 + row % 8 * 4 + k % 8 / 2][row % 16 / 8 + k / 8 * 2];
    return k % 2 ? bf16_high(w) : bf16_low(w);
}

/* ---- products ------------------------------------------------------------------------------------------ */

inline void product_compute(Product &p)
{
    static float a[64][16], b[16][256];
    for (int i = 0; i < 64 * 16; i++)
        a[i / 16][i % 16] = p.regs[0] ? operand_regs(p, i / 16, i % 16) : operand_at(p.a, i / 16, i % 16);
    for (int i = 0; i < p.n * 16; i++) b[i % 16][i / 16] = operand_at(p.b, i / 16, i % 16);
    p.sum.assign((size_t)p.n * 64, 0.0f);
    for (int row = 0; row < 64; row++) {
        float *__restrict to = &p.sum[(size_t)(row * p.n)];
        for (int k = 0; k < 16; k++) {
            float x = a[row][k];
            for (int c = 0; c < p.n; c++) to[c] += x * b[k][c];
        }
    }
    p.done = 1;
}

/* What a product is added to, unless that is still being computed. */
inline std::vector<float> product_base(const float *d, bool add, int n)
{
    if (!add) return std::vector<float>((size_t)n, 0.0f);
    for (const std::vector<Pending> &group : me().products) {
        for (const Pending &w : group) {
            if (w.d == d) return {};
        }
    }
    return std::vector<float>(d, d + n);
}

/* Now the result is nobody's to read or write; at the wait it is set. */
inline void product_later(float *d, bool add, int n, const uint32_t *regs, Operand a, Operand b)
{
    unsigned                               seat = my_place() % WG_THREADS;
    std::vector<std::shared_ptr<Product>> &all  = my_block().product[(int)my_place() / WG_THREADS];
    if (me().n_product == all.size()) {
        all.push_back(std::make_shared<Product>());
        all.back()->n = n;
        all.back()->a = a;
        all.back()->b = b;
    }
    std::shared_ptr<Product> p = all[me().n_product++];
    if (p->n != n || !(p->a == a && p->b == b)) give_up("threads of a warpgroup ask for different products");
    p->regs[seat]           = regs;
    std::vector<float> base = product_base(d, add, n / 2);
    for (size_t i = 0; i < base.size(); i++) d[i] = NAN;
    me().products.back().push_back({ p, d, base });
    if (++p->n_asked < WG_THREADS) return;
    p->ready = 1;
    if (rand() % 4 == 0) product_compute(*p); /* its operands must be there */
    all[me().n_product - 1] = NULL;           /* those who wait for it have it */
}

template <int TB, int ADD> void wgmma_64(float (&d)[32], const uint32_t *a, uint64_t b)
{
    product_later(d, ADD, 64, a, {}, { b, TB });
}
template <int TB, int ADD> void wgmma_64(float (&d)[32], uint64_t a, uint64_t b)
{
    product_later(d, ADD, 64, NULL, { a, 0 }, { b, TB });
}
template <int TB> void wgmma_128(float (&d)[64], const uint32_t *a, uint64_t b)
{
    product_later(d, true, 128, a, {}, { b, TB });
}
template <int TA, int TB, int ADD, int H> void wgmma_shared(float (&d)[H], uint64_t a, uint64_t b)
{
    product_later(d, ADD, 2 * H, NULL, { a, TA }, { b, TB });
}
template <int TA, int ADD> void wgmma_8(float (&d)[4], uint64_t a, uint64_t b)
{
    product_later(d, ADD, 8, NULL, { a, TA }, { b, 0 });
}

template <int ADD> void wgmma_8_regs(float (&d)[4], const uint32_t *a, uint64_t b)
{
    product_later(d, ADD, 8, a, {}, { b, 0 });
}

/* This thread's part of a product. */
inline void product_take(const Pending &w)
{
    const Product &p = *w.product;
    wait_while(&p.done, 0);
    int t = (int)my_place() % WG_THREADS;
    for (int i = 0; i < p.n / 2; i++) {
        int row = t / 32 * 16 + i % 4 / 2 * 8 + t % 32 / 4, col = i / 4 * 8 + t % 4 * 2 + i % 2;
        w.d[i] = (w.before.empty() ? w.d[i] : w.before[(size_t)i]) + p.sum[(size_t)(row * p.n + col)];
    }
}

/* Somebody waits for it: now it must come to an end. */
inline void product_end(const std::shared_ptr<Product> &p, long due)
{
    wait_while(&p->ready, 0);
    if (!p->waited && !p->done) my_block().later.push_back({ due, [p] { product_compute(*p); } });
    p->waited = true;
}

inline void           wgmma_begin() {}
inline void           wgmma_commit() { me().products.push_back({}); }
template <int N> void wgmma_wait()
{
    long due = some_time();
    for (; me().products.size() > N + 1; me().products.erase(me().products.begin())) {
        for (const Pending &w : me().products[0]) product_end(w.product, due);
        for (const Pending &w : me().products[0]) product_take(w);
    }
    __syncwarp(); /* it is an instruction of the warp */
}
template <int N> void wgmma_settle(float (&)[N]) {}

#endif
