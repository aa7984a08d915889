/* What k_common.cuh gives kernels that need nothing of Hopper, on the CPU: packs, sums across threads,
 * launches.
 *
 * 1. Blocks run one after another. The threads of a block are coroutines that take turns at barriers and
 *    shuffles. A kernel that misses one hangs its block: said, and the program ends.
 * 2. Shared memory is static memory: a block finds there what the one before left.
 * 3. bf16 is rounded to nearest even, as on the card. exp and log are the host's. */
#ifndef TESTS_EMULATE_PLAIN_K_COMMON_CUH
#define TESTS_EMULATE_PLAIN_K_COMMON_CUH

#include "base/err.h"
#include "dev/cuda/kernels.h"

#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#define __device__
#define __host__
#define __global__
#define __shared__      static
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define FULL_WARP 0xffffffffu
enum { WARP = 32 };

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

typedef void              *cudaStream_t;
static inline cudaStream_t cuda_stream(Dev *) { return nullptr; }

/* Runs `body` as every thread of every block. */
void emulate_launch(dim3 grid, int threads, const std::function<void()> &body);
void __syncthreads();
/* What lane `from` of this thread's warp brings; every lane must call. */
double warp_take(double v, int from);

/* A bit for each lane; every lane must call. */
uint32_t          __ballot_sync(unsigned, bool yes);
static inline int __shfl_sync(unsigned, int v, int lane) { return (int)warp_take(v, lane); }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }

#define CUDA_TRY(call)                                                                                       \
    do {                                                                                                     \
        if ((call) != 0) return -1;                                                                          \
    } while (0)
static inline int cuda_sm_count(Dev *) { return 4; }

struct int2 {
    int x, y;
};
static inline int2 make_int2(int x, int y) { return int2{ x, y }; }

struct uint2 {
    uint32_t x, y;
};
static inline uint2 make_uint2(uint32_t x, uint32_t y) { return uint2{ x, y }; }
struct float2 {
    float x, y;
};
static inline float2 make_float2(float x, float y) { return float2{ x, y }; }

struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

/* ---- Numbers ----------------------------------------------------------------------------------------- */

struct bf16 {
    uint16_t bits;
};
static inline float to_f32(float v) { return v; }
static inline float to_f32(bf16 v)
{
    uint32_t u = (uint32_t)v.bits << 16;
    float    f;
    memcpy(&f, &u, 4);
    return f;
}
template <typename T> static inline T from_f32(float v);
template <> inline float              from_f32<float>(float v) { return v; }
template <> inline bf16               from_f32<bf16>(float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u) return bf16{ (uint16_t)(u >> 16 | 0x40u) };
    return bf16{ (uint16_t)((u + 0x7FFFu + (u >> 16 & 1u)) >> 16) };
}

/* tensor/number.h is C alone. */
struct __half {
    uint16_t bits;
};
static inline float to_f32(__half v)
{
    int    e = v.bits >> 10 & 31, m = v.bits & 1023;
    double x = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexp(1024 + m, e - 25);
    return (float)(v.bits & 0x8000 ? -x : x);
}
template <> inline __half from_f32<__half>(float v)
{
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double   x    = fabs((double)v);
    if (isnan(v)) return __half{ 0x7E00 };
    int e = x == 0 ? -14 : ilogb(x) < -14 ? -14 : ilogb(x);
    /* In units of the last place; a carry into the next exponent is right as it is. */
    double n = nearbyint(ldexp(x, 10 - e));
    if (isinf(v) || ldexp(n, e - 10) > 65504) return __half{ (uint16_t)(sign | 0x7C00) };
    return __half{ (uint16_t)(sign + (uint16_t)((e + 14) * 1024 + (int)n)) };
}

static inline float   __fadd_rn(float a, float b) { return a + b; }
static inline float   __fmul_rn(float a, float b) { return a * b; }
static inline float   __fsub_rn(float a, float b) { return a - b; }
static inline float   ptx_ex2(float x) { return exp2f(x); }
static inline float   ptx_rcp(float x) { return 1.0f / x; }
static inline float   cospif(float x) { return (float)cos(M_PI * (double)x); }
static inline int32_t atomicAdd(int32_t *p, int32_t v) { return (*p += v) - v; }
static inline float   atomicAdd(float *p, float v) { return (*p += v) - v; }
static inline int32_t atomicMax(int32_t *p, int32_t v)
{
    int32_t was = *p;
    *p          = MAX(was, v);
    return was;
}
static inline int32_t __float_as_int(float v)
{
    int32_t i;
    memcpy(&i, &v, 4);
    return i;
}
static inline int min(int a, int b) { return MIN(a, b); }
/* Byte k of the result is the byte that digit k of the selector names: 0 to 3 of a, 4 to 7 of b. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t out  = 0;
    for (int k = 0; k < 4; k++) out |= (uint32_t)(both >> ((selector >> 4 * k & 7) * 8) & 0xFF) << 8 * k;
    return out;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The position of row (b, t) of rows [B,T]: t behind pos0[b], or behind pos0[0] if it is every sequence's. */
static inline int64_t k_position(const int32_t *pos0, int one_pos, int64_t row, int T_len)
{
    return (pos0 ? pos0[one_pos ? 0 : row / T_len] : 0) + row % T_len;
}

template <typename S> static inline S warp_sum(S v)
{
    for (int d = WARP / 2; d > 0; d /= 2) v += (S)warp_take((double)v, (int)(threadIdx.x % WARP) ^ d);
    return v;
}
static inline float warp_max(float v)
{
    for (int d = WARP / 2; d > 0; d /= 2) v = fmaxf(v, (float)warp_take(v, (int)(threadIdx.x % WARP) ^ d));
    return v;
}
template <typename S> static inline S block_sum(S v, S *slot)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warp = blockDim.x / WARP;
    v = warp_sum(v);
    if (lane == 0) slot[warp] = v;
    __syncthreads();
    v = (int)threadIdx.x < n_warp ? slot[lane] : S(0);
    return warp == 0 ? warp_sum(v) : S(0);
}

/* ---- Packs: an aligned access must be aligned, and inside its row ------------------------------------ */

template <typename T> struct alignas(16) Pack {
    static constexpr int N = 16 / (int)sizeof(T);
    T                    v[N];
};

template <typename T> static inline void pack_check(const T *p)
{
    CHECK((uintptr_t)p % 16 == 0, "a pack at an odd address");
}

template <typename T, bool AL> static inline Pack<T> vec_load(const T *p, int64_t n)
{
    Pack<T> v = {};
    if (AL && n > 0) pack_check(p);
    for (int i = 0; i < Pack<T>::N; i++) {
        if (AL ? n > 0 : i < n) v.v[i] = p[i];
    }
    return v;
}
template <typename T> static inline Pack<T> pack_load(const T *p) { return vec_load<T, true>(p, Pack<T>::N); }
template <typename T, bool AL> static inline void vec_store(T *p, const Pack<T> &v, int64_t n)
{
    if (AL && n > 0) pack_check(p);
    for (int i = 0; i < Pack<T>::N; i++) {
        if (AL ? n > 0 : i < n) p[i] = v.v[i];
    }
}
template <typename T> static inline void vec_unpack(const Pack<T> &v, float *f)
{
    for (int i = 0; i < Pack<T>::N; i++) f[i] = to_f32(v.v[i]);
}
template <typename T> static inline Pack<T> vec_pack(const float *f)
{
    Pack<T> v;
    for (int i = 0; i < Pack<T>::N; i++) v.v[i] = from_f32<T>(f[i]);
    return v;
}

static inline int cuda_packable(const Tensor *t)
{
    if (!t) return 1;
    size_t size = dtype_bytes(t->dtype);
    return (uintptr_t)t->data % 16 == 0 && (size_t)tensor_cols(t) * size % 16 == 0 &&
           (tensor_rows(t) == 1 || (size_t)tensor_ld(t) * size % 16 == 0);
}

/* ---- Launching --------------------------------------------------------------------------------------- */

template <typename... P, typename... A>
static int k_launch(const char *, void (*kernel)(P...), dim3 grid, int threads, size_t, cudaStream_t, A... a)
{
    emulate_launch(grid, threads, [&] { kernel(static_cast<P>(a)...); });
    return 0;
}

template <typename F> static int k_dispatch(DType dtype, const char *op, F f)
{
    if (dtype == DT_F32) return f(float());
    if (dtype == DT_BF16) return f(bf16());
    return err_set("%s: no kernel for %s", op, dtype_name(dtype));
}
template <typename F> static int k_dispatch_half(DType dtype, const char *op, F f)
{
    return dtype == DT_F16 ? f(__half()) : k_dispatch(dtype, op, f);
}
template <typename F> static int k_flag(int flag, F f)
{
    return flag ? f(std::true_type()) : f(std::false_type());
}

template <typename F> static int k_count(int n, F f)
{
    switch (n) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
    default: return f(std::integral_constant<int, 4>());
    }
}

template <typename T> static T *t_data(const Tensor *t) { return t ? static_cast<T *>(t->data) : nullptr; }
static inline int64_t           t_ld(const Tensor *t) { return t ? tensor_ld(t) : 0; }

static inline int k_need_dtype(const char *op, const Tensor *t, DType dtype)
{
    return !t || t->dtype == dtype ? 0 : err_set("%s: %s is %s", op, t->name, dtype_name(t->dtype));
}
static inline int k_need_ws(const char *op, const Tensor *ws, size_t n)
{
    return n == 0 || (ws && tensor_bytes(ws) >= n) ? 0 : err_set("%s: workspace too small", op);
}

#endif
