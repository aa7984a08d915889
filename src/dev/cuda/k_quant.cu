/* QUANT: to fp8, as it is and transposed, with the largest magnitude, in one read; FP8_SCALE.
 *
 * Maths    v = x, act(x), act(gate)*up, a gradient of these or of cross-entropy, rounded to the dtype of x;
 *          q = saturate(v*scale) in e4m3 or e5m2;  qt[c][r] = q[r][c];  amax = max(amax, max |v|);
 *          db[c] += sum over r of v[r][c].
 * Layout   x, dy, q rows x cols with a row stride; a gate and its value are cols apart in a row; qt [cols,
 *          rows] with a row stride; site f32[FP8_SITE].
 * Grid     a block a tile of 128 rows x 64 columns. A thread converts 4 rows x 8 columns; for each of the 8
 *          columns its four bytes make one word of the transposed tile in shared memory, [64 columns][32
 *          words], which the warps then write out, one column (128 bytes of a row of qt) a warp at a time.
 *          The gradient of a gate has two such tiles, of the gate and of its value.
 * Scale    A kernel before it looks whether the site has a scale. If not, the kernel takes amax, and every
 *          block derives the same scale from amax. Block 0 stores the scale; a block that reads the stored
 *          scale instead reads the same number.
 * Order    amax goes through an atomic maximum on the bits of a non-negative float: the order does not
 *          matter. db: a tile's rows are added in a fixed order, then the tiles (colsum_finish).
 * Bytes    what v is made of, + 1 (+ 1 with qt) an element. */
#include "dev/cuda/k_actmath.cuh"
#include "dev/cuda/k_colsum.cuh"
#include "dev/cuda/k_xentmath.cuh"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

#include <cuda_fp8.h>

enum { Q_ROWS = QUANT_ROWS, Q_COLS = 64, Q_THREADS = 256, Q_WORDS = Q_ROWS / 4 };

template <typename T> struct QuantP {
    uint8_t *q, *qt;
    float   *site, *part; /* part [row tiles][cols of q]: column sums; NULL: none */
    const T *x, *dy;
    int64_t  ld_q, ld_qt, ld_x, ld_dy, rows, cols; /* cols: of a tile's plane */
    int64_t  apart;                                /* from a gate to its value, in x and in q */
    Act      act;
    int      dynamic;
    /* cross-entropy */
    const float     *lse;
    const int32_t   *target;
    const StepState *state;
    int64_t          n_class;
    int              slot;
};

/* Planes that a place gives: the gradient of a gate and of its value. */
template <QuantFrom FROM> static constexpr int Q_PLANES = FROM == QUANT_GLU_DX ? 2 : 1;

/* ---- values -------------------------------------------------------------------------------------------- */

/* Eight elements of a row of each input, as they lie in memory; those outside are 0. All loads of a thread
 * are issued before the first is used. */
template <typename T, QuantFrom FROM> struct QuantIn {
    static constexpr int N = 8 / Pack<T>::N;
    Pack<T>              x[N], up[N], dy[N];
};

template <typename T, bool AL> __device__ __forceinline__ void quant_load(const T *p, int64_t n, Pack<T> *out)
{
#pragma unroll
    for (int i = 0; i < 8 / Pack<T>::N; i++) out[i] = vec_load<T, AL>(p + i * Pack<T>::N, n - i * Pack<T>::N);
}

template <typename T, bool AL, QuantFrom FROM>
__device__ __forceinline__ void quant_fetch(const QuantP<T> &p, int64_t row, int64_t col, int64_t n,
                                            QuantIn<T, FROM> &in)
{
    quant_load<T, AL>(p.x + row * p.ld_x + col, n, in.x);
    if (FROM == QUANT_GLU || FROM == QUANT_GLU_DX)
        quant_load<T, AL>(p.x + row * p.ld_x + p.apart + col, n, in.up);
    if (FROM == QUANT_ACT_DX || FROM == QUANT_GLU_DX) quant_load<T, AL>(p.dy + row * p.ld_dy + col, n, in.dy);
}

template <typename T> __device__ __forceinline__ void quant_unpack(const Pack<T> *in, float *f)
{
#pragma unroll
    for (int i = 0; i < 8 / Pack<T>::N; i++) vec_unpack(in[i], f + i * Pack<T>::N);
}

/* As an op that stores v would leave it. */
__device__ __forceinline__ float quant_stored(float v, float) { return v; }
__device__ __forceinline__ float quant_stored(float v, bf16) { return to_f32(from_f32<bf16>(v)); }

template <typename T, QuantFrom FROM, Act ACT>
__device__ __forceinline__ void quant_make(const float *a, const float *b, const float *d, float (*v)[8])
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (FROM == QUANT_ACT) v[0][k] = quant_stored(act_value<ACT>(a[k]), T());
        if (FROM == QUANT_GLU) v[0][k] = quant_stored(__fmul_rn(act_value<ACT>(a[k]), b[k]), T());
        if (FROM == QUANT_ACT_DX) v[0][k] = quant_stored(__fmul_rn(d[k], act_slope<ACT>(a[k])), T());
        if (FROM == QUANT_GLU_DX) {
            GluGrad g                = glu_grad<ACT>(d[k], a[k], b[k]);
            v[0][k]                  = quant_stored(g.gate, T());
            v[Q_PLANES<FROM> - 1][k] = quant_stored(g.up, T());
        }
    }
}

/* v of an activation or gate. The activation is the same for all threads, so the branch costs little. */
template <typename T, QuantFrom FROM>
__device__ __forceinline__ void quant_values(const QuantIn<T, FROM> &in, Act act, float (*v)[8])
{
    if (FROM == QUANT_PLAIN) {
        quant_unpack<T>(in.x, v[0]);
        return;
    }
    float a[8], b[8], d[8];
    quant_unpack<T>(in.x, a);
    if (FROM == QUANT_GLU || FROM == QUANT_GLU_DX) quant_unpack<T>(in.up, b);
    if (FROM == QUANT_ACT_DX || FROM == QUANT_GLU_DX) quant_unpack<T>(in.dy, d);
    switch (act) {
    case ACT_GELU: quant_make<T, FROM, ACT_GELU>(a, b, d, v); break;
    case ACT_RELU2: quant_make<T, FROM, ACT_RELU2>(a, b, d, v); break;
    case ACT_SILU: quant_make<T, FROM, ACT_SILU>(a, b, d, v); break;
    default: quant_make<T, FROM, ACT_RELU>(a, b, d, v);
    }
}

/* What a row of cross-entropy's gradient has besides its logits. */
struct QuantRow {
    float   lse, shift;
    int64_t target; /* -1: the row has no gradient */
};

template <typename T> __device__ __forceinline__ QuantRow quant_row(const QuantP<T> &p, int64_t row)
{
    bool     inside = row < p.rows;
    QuantRow r      = { inside ? p.lse[row] : 0.0f, 0.0f, inside ? p.target[row] : -1 };
    r.shift         = xent_shift(r.lse, log2f(step_scale(p.state, p.slot)));
    return r;
}

template <typename T>
__device__ __forceinline__ void quant_loss(const QuantP<T> &p, const QuantIn<T, QUANT_XENT_DX> &in,
                                           const QuantRow &r, int64_t col, float (*v)[8])
{
    float x[8];
    quant_unpack<T>(in.x, x);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        bool is_class = r.target >= 0 && col + k < p.n_class;
        v[0][k]       = is_class ? quant_stored(ptx_ex2(fmaf(x[k], LOG2E, r.shift)), T()) : 0.0f;
        if (is_class && col + k == r.target)
            v[0][k] = quant_stored(xent_hit_dx(x[k], r.lse, step_scale(p.state, p.slot)), T());
    }
}

/* v of eight columns of a row. */
template <typename T, QuantFrom FROM>
__device__ __forceinline__ void quant_eight(const QuantP<T> &p, const QuantIn<T, FROM> &in, int64_t row,
                                            int64_t col, float (*v)[8])
{
    if constexpr (FROM == QUANT_XENT_DX) {
        quant_loss<T>(p, in, quant_row(p, row), col, v);
    } else {
        quant_values<T, FROM>(in, p.act, v);
    }
}

/* ---- scales -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void amax_offer(float *site, float top)
{
    float *amax = site + FP8_SITE_AMAX;
    if (top > *(volatile float *)amax) atomicMax(reinterpret_cast<int *>(amax), __float_as_int(top));
}

/* The largest of a block, in thread 0. */
__device__ __forceinline__ float block_max(float top, float *slot)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    top = warp_max(top);
    if (lane == 0) slot[warp] = top;
    __syncthreads();
    return warp == 0 ? warp_max(lane < Q_THREADS / WARP ? slot[lane] : 0.0f) : 0.0f;
}

/* Takes amax of a tensor whose site has no scale. Blocks walk the places in turn. */
template <typename T, bool AL, QuantFrom FROM>
__global__ void __launch_bounds__(Q_THREADS) quant_amax(QuantP<T> p)
{
    __shared__ float slot[Q_THREADS / WARP];
    if (!p.dynamic && p.site[FP8_SITE_SCALE] != 0.0f) return;
    int64_t packs = ceil_div(p.cols, 8), n_place = p.rows * packs;
    float   top = 0.0f;
    for (int64_t i = (int64_t)blockIdx.x * Q_THREADS + threadIdx.x; i < n_place;
         i += (int64_t)gridDim.x * Q_THREADS) {
        int64_t          row = i / packs, col = (i - row * packs) * 8;
        float            v[Q_PLANES<FROM>][8];
        QuantIn<T, FROM> in;
        quant_fetch<T, AL, FROM>(p, row, col, p.cols - col, in);
        quant_eight<T, FROM>(p, in, row, col, v);
#pragma unroll
        for (int k = 0; k < 8 * Q_PLANES<FROM>; k++) top = fmaxf(top, fabsf(v[k / 8][k % 8]));
    }
    top = block_max(top, slot);
    if (threadIdx.x == 0) amax_offer(p.site, top);
}

__device__ __forceinline__ float quant_scale(float *site, DType t, int dynamic, bool is_first)
{
    float scale = *(volatile float *)(site + FP8_SITE_SCALE);
    if (scale != 0.0f && !dynamic) return scale;
    scale = fp8_scale_for(*(volatile float *)(site + FP8_SITE_AMAX), t);
    if (is_first) {
        site[FP8_SITE_SCALE] = scale;
        site[FP8_SITE_INV]   = scale != 0.0f ? fp8_inv(scale) : 1.0f;
    }
    return scale != 0.0f ? scale : 1.0f;
}

__global__ void amax_clear(float *site) { site[FP8_SITE_AMAX] = 0.0f; }

/* all: the n sites of each rank, ld_all apart. */
__global__ void fp8_scale_kernel(float *sites, int64_t ld, const float *all, int64_t ld_all, int n, int ranks,
                                 DType t)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) fp8_site_update(sites + i * ld, fp8_site_amax(all + i * ld_all, n * ld_all, ranks), t);
}

/* ---- tiles --------------------------------------------------------------------------------------------- */

template <__nv_fp8_interpretation_t FP8>
__device__ __forceinline__ uint2 quant_round(const float *f, float scale)
{
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 v = make_float2(__fmul_rn(f[2 * i], scale), __fmul_rn(f[2 * i + 1], scale));
        w[i]     = __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, FP8);
    }
    return make_uint2(w[0] | w[1] << 16, w[2] | w[3] << 16);
}

template <bool AL> __device__ __forceinline__ void quant_store(uint8_t *q, uint2 v, int64_t n)
{
    if (AL) {
        if (n > 0) *reinterpret_cast<uint2 *>(q) = v;
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (k < n) q[k] = (uint8_t)((k < 4 ? v.x : v.y) >> (k % 4 * 8));
        }
    }
}

/* A 4 x 4 block of bytes, one row a word, turned: word k gets byte k of each row. */
__device__ __forceinline__ void turn4(const uint32_t *row, uint32_t *col)
{
    uint32_t ab = __byte_perm(row[0], row[1], 0x5140), cd = __byte_perm(row[2], row[3], 0x5140);
    uint32_t ef = __byte_perm(row[0], row[1], 0x7362), gh = __byte_perm(row[2], row[3], 0x7362);
    col[0] = __byte_perm(ab, cd, 0x5410);
    col[1] = __byte_perm(ab, cd, 0x7632);
    col[2] = __byte_perm(ef, gh, 0x5410);
    col[3] = __byte_perm(ef, gh, 0x7632);
}

/* One plane's tile of qt, from shared memory. */
template <typename T, bool AL>
__device__ __forceinline__ void quant_store_turned(const QuantP<T> &p, const uint32_t (*tile)[Q_WORDS + 1],
                                                   int64_t row0, int64_t col0, int64_t apart)
{
    int     lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t r = row0 + lane * 4;
    for (int c = warp; c < Q_COLS && col0 + c < p.cols; c += Q_THREADS / WARP) {
        uint32_t w  = tile[c][lane];
        uint8_t *qt = p.qt + (apart + col0 + c) * p.ld_qt + r;
        if (AL) {
            if (r < p.rows) *reinterpret_cast<uint32_t *>(qt) = w;
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                if (r + k < p.rows) qt[k] = (uint8_t)(w >> (k * 8));
            }
        }
    }
}

/* Sums over the rows of a tile: the four rows of a thread, then the threads of a column in order. */
template <typename T>
__device__ __forceinline__ void quant_sum(const QuantP<T> &p, float (*sum)[8], int planes, int64_t col0)
{
    __shared__ float all[Q_ROWS / 4][Q_COLS + 1];
    int64_t          width = planes == 2 ? 2 * p.apart : p.cols;
    for (int h = 0; h < planes; h++) {
        __syncthreads();
        for (int k = 0; k < 8; k++) all[threadIdx.x / 8][threadIdx.x % 8 * 8 + k] = sum[h][k];
        __syncthreads();
        if (threadIdx.x < Q_COLS && col0 + threadIdx.x < p.cols) {
            float s = 0.0f;
            for (int t = 0; t < Q_ROWS / 4; t++) s = __fadd_rn(s, all[t][threadIdx.x]);
            p.part[(int64_t)blockIdx.y * width + h * p.apart + col0 + threadIdx.x] = s;
        }
    }
}

template <typename T, bool AL, __nv_fp8_interpretation_t FP8, QuantFrom FROM, bool SUMS>
__global__ void __launch_bounds__(Q_THREADS) quant_kernel(QuantP<T> p)
{
    constexpr int PLANES = Q_PLANES<FROM>;
    __shared__ uint32_t
                     tile[PLANES][Q_COLS][Q_WORDS + 1]; /* [column][four rows a word], one word of padding */
    __shared__ float slot[Q_THREADS / WARP];
    int              tx = threadIdx.x % 8, ty = threadIdx.x / 8;
    int64_t          row0 = (int64_t)blockIdx.y * Q_ROWS, col0 = (int64_t)blockIdx.x * Q_COLS;
    int64_t          row = row0 + ty * 4, col = col0 + tx * 8, n = p.cols - col;
    DType            dtype = FP8 == __NV_E4M3 ? DT_E4M3 : DT_E5M2;
    bool             first = blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0;
    float            v[4][PLANES][8], top = 0.0f, sum[PLANES][8];
    uint32_t         word[PLANES][2][4]; /* [left or right four columns][row] */
    QuantIn<T, FROM> in[4];
#pragma unroll
    for (int i = 0; i < 4; i++) quant_fetch<T, AL, FROM>(p, row + i, col, row + i < p.rows ? n : 0, in[i]);
    float scale = quant_scale(p.site, dtype, p.dynamic, first);
#pragma unroll
    for (int i = 0; i < 4; i++) quant_eight<T, FROM>(p, in[i], row + i, col, v[i]);
#pragma unroll
    for (int h = 0; h < PLANES; h++) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            sum[h][k] = 0.0f;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                top = fmaxf(top, fabsf(v[i][h][k]));
                if (SUMS) sum[h][k] = __fadd_rn(sum[h][k], v[i][h][k]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint2 w       = quant_round<FP8>(v[i][h], scale);
            word[h][0][i] = w.x;
            word[h][1][i] = w.y;
            if (p.q && row + i < p.rows) quant_store<AL>(p.q + (row + i) * p.ld_q + h * p.apart + col, w, n);
        }
        if (p.qt) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t turned[4];
                turn4(word[h][s], turned);
#pragma unroll
                for (int k = 0; k < 4; k++) tile[h][tx * 8 + s * 4 + k][ty] = turned[k];
            }
        }
    }
    top = block_max(top, slot); /* has a barrier: the tile is complete */
    if (threadIdx.x == 0) amax_offer(p.site, top);
    if (p.qt) {
#pragma unroll
        for (int h = 0; h < PLANES; h++) quant_store_turned<T, AL>(p, tile[h], row0, col0, h * p.apart);
    }
    if (SUMS) quant_sum(p, sum, PLANES, col0);
}

/* ---- launching ----------------------------------------------------------------------------------------- */

/* 8-byte stores of q, 4-byte stores of qt, 16-byte loads of x and dy. */
static int quant_aligned(const Quant *a)
{
    int gated = a->from == QUANT_GLU || a->from == QUANT_GLU_DX;
    int al    = cuda_packable(a->x) && cuda_packable(a->dy) && tensor_cols(a->x) % (gated ? 16 : 8) == 0;
    if (a->q) al = al && (uintptr_t)a->q->data % 8 == 0 && tensor_ld(a->q) % 8 == 0;
    if (a->qt) {
        al = al && (uintptr_t)a->qt->data % 4 == 0 && tensor_ld(a->qt) % 4 == 0 && tensor_rows(a->x) % 4 == 0;
    }
    return al;
}

template <typename T> static QuantP<T> quant_problem(const Quant *a)
{
    QuantP<T> p;
    int       gated = a->from == QUANT_GLU || a->from == QUANT_GLU_DX;
    p.q             = t_data<uint8_t>(a->q);
    p.qt            = t_data<uint8_t>(a->qt);
    p.site          = t_data<float>(a->site);
    p.part          = a->db ? t_data<float>(a->ws) : nullptr;
    p.x             = t_data<T>(a->x);
    p.dy            = t_data<T>(a->dy);
    p.ld_q          = t_ld(a->q);
    p.ld_qt         = t_ld(a->qt);
    p.ld_x          = t_ld(a->x);
    p.ld_dy         = t_ld(a->dy);
    p.rows          = tensor_rows(a->x);
    p.cols          = gated ? tensor_cols(a->x) / 2 : tensor_cols(a->x);
    p.apart         = gated ? p.cols : 0;
    p.act           = a->act;
    p.dynamic       = a->dynamic;
    p.lse           = t_data<float>(a->lse);
    p.target        = t_data<int32_t>(a->target);
    p.state         = t_data<StepState>(a->state);
    p.n_class       = a->n_class;
    p.slot          = a->slot;
    return p;
}

template <typename T, __nv_fp8_interpretation_t FP8, QuantFrom FROM>
static int quant_launch(Dev *dev, const Quant *a)
{
    QuantP<T>    p      = quant_problem<T>(a);
    cudaStream_t stream = cuda_stream(dev);
    int64_t      tiles = ceil_div(p.rows, Q_ROWS), width = a->db ? tensor_numel(a->db) : 0;
    if (tiles > 65535) return err_set("quant: %lld rows, at most %d", (long long)p.rows, 65535 * Q_ROWS);
    TRY(k_need_ws("quant", a->ws, (size_t)(tiles * width) * sizeof(float)));
    if (a->dynamic) TRY(k_launch("quant", amax_clear, 1, 1, 0, stream, p.site));
    dim3 grid((unsigned)ceil_div(p.cols, Q_COLS), (unsigned)tiles);
    TRY(k_flag(quant_aligned(a), [&](auto al) {
        constexpr bool AL   = decltype(al)::value;
        unsigned       some = (unsigned)(cuda_sm_count(dev) * (a->dynamic ? 8 : 1));
        TRY(k_launch("quant", quant_amax<T, AL, FROM>, some, Q_THREADS, 0, stream, p));
        if (!a->db)
            return k_launch("quant", quant_kernel<T, AL, FP8, FROM, false>, grid, Q_THREADS, 0, stream, p);
        constexpr bool SUMS = FP8 == __NV_E5M2 && FROM != QUANT_XENT_DX;
        return k_launch("quant", quant_kernel<T, AL, FP8, FROM, SUMS>, grid, Q_THREADS, 0, stream, p);
    }));
    return a->db ? colsum_finish_launch("quant", stream, p.part, (int)tiles, 1, width,
                                        ColDst{ { t_data<float>(a->db) } })
                 : 0;
}

extern "C" int cuda_quant(Dev *dev, const Quant *a)
{
    const char *op = "quant";
    int         e4 = a->q_dtype == DT_E4M3;
    TRY(k_need_dtype(op, a->q, a->q_dtype));
    TRY(k_need_dtype(op, a->qt, a->q_dtype));
    int forward = a->from == QUANT_ACT || a->from == QUANT_GLU, backward = a->from > QUANT_GLU;
    if ((forward || a->dy) && a->act >= ACT_FUSED)
        return err_set("quant: no CUDA kernel for activation %d", (int)a->act);
    if ((forward && !e4) || (backward && e4) || (e4 && a->db))
        return err_set("quant: no CUDA kernel for form %d in %s", (int)a->from, dtype_name(a->q_dtype));
    return k_dispatch(a->x->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        switch (a->from) {
        case QUANT_ACT: return quant_launch<T, __NV_E4M3, QUANT_ACT>(dev, a);
        case QUANT_GLU: return quant_launch<T, __NV_E4M3, QUANT_GLU>(dev, a);
        case QUANT_ACT_DX: return quant_launch<T, __NV_E5M2, QUANT_ACT_DX>(dev, a);
        case QUANT_GLU_DX: return quant_launch<T, __NV_E5M2, QUANT_GLU_DX>(dev, a);
        case QUANT_XENT_DX: return quant_launch<T, __NV_E5M2, QUANT_XENT_DX>(dev, a);
        default:
            return e4 ? quant_launch<T, __NV_E4M3, QUANT_PLAIN>(dev, a)
                      : quant_launch<T, __NV_E5M2, QUANT_PLAIN>(dev, a);
        }
    });
}

extern "C" int cuda_fp8_scale(Dev *dev, const Fp8Scale *a)
{
    const Tensor *all = a->all ? a->all : a->sites;
    int           n = (int)tensor_rows(a->sites), ranks = (int)(tensor_rows(all) / n);
    TRY(k_need_dtype("fp8_scale", a->sites, DT_F32));
    return k_launch("fp8_scale", fp8_scale_kernel, (unsigned)ceil_div(n, 128), 128, 0, cuda_stream(dev),
                    t_data<float>(a->sites), tensor_ld(a->sites), t_data<float>(all), tensor_ld(all), n,
                    ranks, a->q_dtype);
}
