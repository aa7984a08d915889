/* Fill, copy, cast: y[r][c] = value | x[r][c] | (type of y) x[r][c].
 *
 * Layout: rows x cols with a row stride; contiguous tensors are one long row, so that the inner loop is never
 *     short.
 * Grid: a grid-stride loop over the elements (cast: over groups of four where that is aligned). Contiguous
 *     copies on the compute and comm lanes: COPY_UNROLL loads of 16 bytes a thread, then as many stores;
 *     eight blocks keep 128 KB of a multiprocessor in flight. The driver's own copy reached 2.77 TB/s inside
 *     a graph (H200, 2026-11-15), elementwise kernels of this shape 4.2.
 * Bytes: each element read once and written once. */
#include "dev/cuda/cuda_move.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_types.cuh"

enum { BLOCK = 256, BLOCKS_PER_SM = 16, COPY_UNROLL = 4 };

static unsigned grid_for(Dev *dev, int64_t n_work)
{
    int64_t want = (n_work + BLOCK - 1) / BLOCK, most = (int64_t)cuda_sm_count(dev) * BLOCKS_PER_SM;
    return (unsigned)(want < most ? want : most);
}

/* A contiguous tensor is one row; a strided one keeps its rows. */
static CudaMat mat_of(const Tensor *t)
{
    CudaMat m = { t->data, t->dtype, tensor_rows(t), tensor_cols(t), tensor_ld(t) };
    if (tensor_is_contiguous(t)) {
        m.cols = m.rows * m.cols;
        m.rows = 1;
        m.ld   = m.cols;
    }
    return m;
}

/* ---- fill ---------------------------------------------------------------------------------------------- */

template <typename T> __global__ void fill_kernel(T *y, T value, int64_t rows, int64_t cols, int64_t ld)
{
    int64_t n = rows * cols, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        y[i / cols * ld + i % cols] = value;
    }
}

template <typename T> static int fill_launch(Dev *dev, const CudaMat *y, T value)
{
    fill_kernel<T><<<grid_for(dev, y->rows * y->cols), BLOCK, 0, cuda_stream(dev)>>>((T *)y->data, value,
                                                                                     y->rows, y->cols, y->ld);
    return cuda_launched("fill");
}

int cuda_fill(Dev *dev, const Fill *a)
{
    CudaMat y    = mat_of(a->y);
    size_t  size = dtype_bytes(y.dtype);
    if (a->value == 0.0f && y.rows == 1) { /* zero has all bits clear in every dtype */
        CUDA_TRY(cudaMemsetAsync(y.data, 0, (size_t)y.cols * size, cuda_stream(dev)));
        return 0;
    }
    if (a->value == 0.0f) {
        CUDA_TRY(cudaMemset2DAsync(y.data, (size_t)y.ld * size, 0, (size_t)y.cols * size, (size_t)y.rows,
                                   cuda_stream(dev)));
        return 0;
    }
    switch (y.dtype) {
    case DT_F32: return fill_launch<float>(dev, &y, a->value);
    case DT_BF16: return fill_launch<__nv_bfloat16>(dev, &y, __float2bfloat16_rn(a->value));
    case DT_F16: return fill_launch<__half>(dev, &y, __float2half_rn(a->value));
    case DT_I32: return fill_launch<int32_t>(dev, &y, (int32_t)a->value);
    case DT_I64: return fill_launch<int64_t>(dev, &y, (int64_t)a->value);
    case DT_U8: return fill_launch<uint8_t>(dev, &y, (uint8_t)a->value);
    default: return err_set("fill: no CUDA kernel for %s", dtype_name(y.dtype));
    }
}

/* ---- copy ---------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(BLOCK) copy_kernel(uint4 *y, const uint4 *x, int64_t n)
{
    int64_t at = (int64_t)blockIdx.x * (BLOCK * COPY_UNROLL) + threadIdx.x;
    uint4   v[COPY_UNROLL];
#pragma unroll
    for (int u = 0; u < COPY_UNROLL; u++) {
        if (at + u * BLOCK < n) v[u] = __ldcs(x + at + u * BLOCK);
    }
#pragma unroll
    for (int u = 0; u < COPY_UNROLL; u++) {
        if (at + u * BLOCK < n) y[at + u * BLOCK] = v[u];
    }
}

/* Whether copy_kernel can do it. On the other lanes one side is pinned host memory, which copy engines move
 * without taking multiprocessors from anybody. */
static int copy_by_kernel(Dev *dev, const void *y, const void *x, size_t n_bytes)
{
    Lane lane = ((CudaDev *)dev)->lane;
    return (lane == LANE_COMPUTE || lane == LANE_COMM) && n_bytes > 0 &&
           ((uintptr_t)y | (uintptr_t)x | n_bytes) % sizeof(uint4) == 0;
}

int cuda_copy(Dev *dev, const Copy *a)
{
    CudaMat y = mat_of(a->y), x = mat_of(a->x);
    size_t  size = dtype_bytes(y.dtype);
    if (y.rows == 1 && x.rows == 1) {
        int64_t n = (int64_t)(tensor_bytes(a->y) / sizeof(uint4)), turn = BLOCK * COPY_UNROLL;
        if (copy_by_kernel(dev, y.data, x.data, tensor_bytes(a->y))) {
            copy_kernel<<<(unsigned)((n + turn - 1) / turn), BLOCK, 0, cuda_stream(dev)>>>(
                (uint4 *)y.data, (const uint4 *)x.data, n);
            return cuda_launched("copy");
        }
        CUDA_TRY(cudaMemcpyAsync(y.data, x.data, tensor_bytes(a->y), cudaMemcpyDefault, cuda_stream(dev)));
        return 0;
    }
    /* One side may be one long row: both are seen as the tensors' own rows then. */
    if (!tensor_same_shape(a->y, a->x)) {
        return err_set("copy: strided %s and %s differ in shape", a->y->name, a->x->name);
    }
    CUDA_TRY(cudaMemcpy2DAsync(y.data, (size_t)tensor_ld(a->y) * size, x.data, (size_t)tensor_ld(a->x) * size,
                               (size_t)tensor_cols(a->y) * size, (size_t)tensor_rows(a->y), cudaMemcpyDefault,
                               cuda_stream(dev)));
    return 0;
}

/* ---- cast ---------------------------------------------------------------------------------------------- */

template <typename TY, typename TX>
__global__ void cast_kernel(TY *y, const TX *x, int64_t cols, int64_t n, int64_t ld_y, int64_t ld_x)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        int64_t r = i / cols, c = i % cols;
        y[r * ld_y + c] = from_f32<TY>(to_f32(x[r * ld_x + c]));
    }
}

/* Four elements a thread: 16 bytes on the f32 side, 8 on the other. n is a multiple of 4. */
template <typename T> struct alignas(4 * sizeof(T)) Four {
    T v[4];
};

template <typename TY, typename TX>
__global__ void cast_four_kernel(Four<TY> *y, const Four<TX> *x, int64_t n_four)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_four; i += step) {
        Four<TX> in = x[i];
        Four<TY> out;
#pragma unroll
        for (int k = 0; k < 4; k++) out.v[k] = from_f32<TY>(to_f32(in.v[k]));
        y[i] = out;
    }
}

template <typename TY, typename TX> static int cast_launch(Dev *dev, const Cast *a)
{
    int64_t n    = tensor_numel(a->x);
    TY     *y    = (TY *)a->y->data;
    TX     *x    = (TX *)a->x->data;
    int     flat = tensor_is_contiguous(a->x) && tensor_is_contiguous(a->y);
    if (flat && n % 4 == 0 && (uintptr_t)y % (4 * sizeof(TY)) == 0 && (uintptr_t)x % (4 * sizeof(TX)) == 0) {
        cast_four_kernel<TY, TX>
            <<<grid_for(dev, n / 4), BLOCK, 0, cuda_stream(dev)>>>((Four<TY> *)y, (Four<TX> *)x, n / 4);
        return cuda_launched("cast");
    }
    if (!flat && !tensor_same_shape(a->y, a->x)) {
        return err_set("cast: strided %s and %s differ in shape", a->y->name, a->x->name);
    }
    int64_t cols = flat ? n : tensor_cols(a->x);
    int64_t ld_y = flat ? n : tensor_ld(a->y), ld_x = flat ? n : tensor_ld(a->x);
    cast_kernel<TY, TX><<<grid_for(dev, n), BLOCK, 0, cuda_stream(dev)>>>(y, x, cols, n, ld_y, ld_x);
    return cuda_launched("cast");
}

int cuda_cast(Dev *dev, const Cast *a)
{
    return cuda_dispatch(a->y->dtype, "cast", [&](auto zero_y) {
        using TY = decltype(zero_y);
        return cuda_dispatch(a->x->dtype, "cast", [&](auto zero_x) {
            using TX = decltype(zero_x);
            return cast_launch<TY, TX>(dev, a);
        });
    });
}

/* ---- bias ---------------------------------------------------------------------------------------------- */

/* grid.x over packs of a row, grid.y strides over rows; a thread keeps its bias values for all its rows. */
template <typename T, typename TB, int N>
__global__ void bias_add_kernel(T *y, const TB *bias, int64_t rows, int64_t cols, int64_t ld)
{
    struct alignas(N * sizeof(T)) Chunk {
        T v[N];
    };
    int64_t c = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (c >= cols) return;
    float b[N];
#pragma unroll
    for (int k = 0; k < N; k++) b[k] = to_f32(bias[c + k]);
    for (int64_t r = blockIdx.y; r < rows; r += gridDim.y) {
        Chunk *p = reinterpret_cast<Chunk *>(y + r * ld + c);
        Chunk  v = *p;
#pragma unroll
        for (int k = 0; k < N; k++) v.v[k] = from_f32<T>(to_f32(v.v[k]) + b[k]);
        *p = v;
    }
}

template <typename T, typename TB> static int bias_add_launch(Dev *dev, const CudaMat *y, const TB *bias)
{
    constexpr int N    = Pack<T>::N;
    int           wide = y->cols % N == 0 && y->ld % N == 0 && (uintptr_t)y->data % 16 == 0;
    int64_t       n    = wide ? y->cols / N : y->cols;
    dim3          grid((unsigned)((n + BLOCK - 1) / BLOCK), 1);
    int64_t       most = (int64_t)cuda_sm_count(dev) * 8 / grid.x + 1;
    grid.y             = (unsigned)MIN(MIN(y->rows, most), (int64_t)65535);
    if (wide) {
        bias_add_kernel<T, TB, N>
            <<<grid, BLOCK, 0, cuda_stream(dev)>>>((T *)y->data, bias, y->rows, y->cols, y->ld);
    } else {
        bias_add_kernel<T, TB, 1>
            <<<grid, BLOCK, 0, cuda_stream(dev)>>>((T *)y->data, bias, y->rows, y->cols, y->ld);
    }
    return cuda_launched("bias add");
}

int cuda_bias_add(Dev *dev, const CudaMat *y, const void *bias, DType bias_dtype)
{
    return cuda_dispatch(y->dtype, "bias add", [&](auto zero_y) {
        using T = decltype(zero_y);
        return cuda_dispatch(bias_dtype, "bias add", [&](auto zero_b) {
            using TB = decltype(zero_b);
            return bias_add_launch<T, TB>(dev, y, (const TB *)bias);
        });
    });
}

/* ---- helpers of timing --------------------------------------------------------------------------------- */

template <typename T> __global__ void random_kernel(T *p, int64_t n, uint32_t seed)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t z = ((uint64_t)seed << 32) + (uint64_t)i * 0x9E3779B97F4A7C15ull; /* splitmix64 */
        z          = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z          = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        p[i]       = from_f32<T>((float)(uint32_t)(z >> 40) * (2.0f / 16777216.0f) - 1.0f);
    }
}

/* fp8: any sign and mantissa, exponents of about 2^-4 to 2^3. */
__global__ void random_fp8_kernel(uint8_t *p, int64_t n, uint32_t seed, uint8_t low, uint8_t range)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t z = ((uint64_t)seed << 32) + (uint64_t)i * 0x9E3779B97F4A7C15ull;
        z          = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z          = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        p[i]       = (uint8_t)((z >> 63 << 7) | (low + (uint32_t)(z >> 40 & 0xFFFF) % range));
    }
}

int cuda_fill_random(Dev *dev, void *p, DType dtype, int64_t n_elem, uint32_t seed)
{
    if (dtype == DT_E4M3 || dtype == DT_E5M2) {
        int mantissa = dtype == DT_E4M3 ? 3 : 2, bias = dtype == DT_E4M3 ? 7 : 15;
        random_fp8_kernel<<<grid_for(dev, n_elem), BLOCK, 0, cuda_stream(dev)>>>(
            (uint8_t *)p, n_elem, seed, (uint8_t)((bias - 4) << mantissa), (uint8_t)(7 << mantissa));
        return cuda_launched("random");
    }
    return cuda_dispatch(dtype, "random", [&](auto zero) {
        using T = decltype(zero);
        random_kernel<T><<<grid_for(dev, n_elem), BLOCK, 0, cuda_stream(dev)>>>((T *)p, n_elem, seed);
        return cuda_launched("random");
    });
}

__global__ void spin_kernel(int64_t time_ns)
{
    int64_t begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < time_ns);
}

int cuda_spin(Dev *dev, int time_us)
{
    spin_kernel<<<1, 1, 0, cuda_stream(dev)>>>((int64_t)time_us * 1000);
    return cuda_launched("spin");
}

int cuda_probe_image(void)
{
    cudaFuncAttributes attr;
    CUDA_TRY(cudaFuncGetAttributes(&attr, (const void *)spin_kernel));
    return 0;
}
