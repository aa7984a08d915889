/* DROPOUT and LOSS_ADD.
 *
 * Maths    DROPOUT  y = draw < p*2^32 ? 0 : x/(1 - p), draw = word of philox(key (seed, site), counter (step,
 *          sample, element)), per sample that of element 0; LOSS_ADD  state.out.sum[slot] += sum of loss.
 * Layout   rows x cols with a row stride; sample = sample0 + row / rows_per_sample, elements count within the
 *          sample.
 * Grid     DROPOUT a warp a row, four draws from one call where four neighbours share one; LOSS_ADD one
 *          block, thread t adds elements t, t + 1024, ...: one order for any device.
 * Bytes    DROPOUT 2*cols*size a row; LOSS_ADD 4 bytes a row. */
#include "base/rng.h"
#include "dev/cuda/k_common.cuh"

enum { DROPOUT_THREADS = 256, LOSS_THREADS = 1024 };

template <typename T> struct DropoutP {
    T               *y;
    const T         *x;
    const StepState *state;
    const int64_t   *sample0;
    int64_t          ld_y, ld_x, rows, rows_per_sample;
    int              cols;
    uint32_t         site, threshold;
    float            scale;
    int              per_sample;
};

/* AL implies that a pack starts at a multiple of four elements of the sample. */
template <typename T, bool AL>
__global__ void __launch_bounds__(DROPOUT_THREADS) dropout_kernel(DropoutP<T> p)
{
    constexpr int N   = Pack<T>::N;
    int64_t       row = (int64_t)blockIdx.x * (DROPOUT_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    int64_t step = p.state->in.step, index = row / p.rows_per_sample, sample = *p.sample0 + index;
    int64_t first = (row - index * p.rows_per_sample) * p.cols; /* element of the sample at the row's start */
    uint64_t seed = p.state->in.seed;
    for (int col = (int)(threadIdx.x % WARP) * N; col < p.cols; col += WARP * N) {
        int      n = p.cols - col;
        float    f[N];
        uint32_t draw[N];
        vec_unpack(vec_load<T, AL>(p.x + row * p.ld_x + col, n), f);
        if (p.per_sample) {
            uint32_t one = rng_draw(seed, p.site, step, sample, 0);
#pragma unroll
            for (int i = 0; i < N; i++) draw[i] = one;
        } else if (AL) {
#pragma unroll
            for (int i = 0; i < N; i += 4) rng_draw4(draw + i, seed, p.site, step, sample, first + col + i);
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) draw[i] = rng_draw(seed, p.site, step, sample, first + col + i);
        }
#pragma unroll
        for (int i = 0; i < N; i++) f[i] = draw[i] < p.threshold ? 0.0f : __fmul_rn(f[i], p.scale);
        vec_store<T, AL>(p.y + row * p.ld_y + col, vec_pack<T>(f), n);
    }
}

extern "C" int cuda_dropout(Dev *dev, const Dropout *a)
{
    const char *op = "dropout";
    TRY(k_need_dtype(op, a->y, a->x->dtype));
    TRY(k_need_dtype(op, a->sample0, DT_I64));
    return k_dispatch_half(a->x->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        DropoutP<T> p;
        p.y               = t_data<T>(a->y);
        p.x               = t_data<T>(a->x);
        p.state           = t_data<StepState>(a->state);
        p.sample0         = t_data<int64_t>(a->sample0);
        p.ld_y            = t_ld(a->y);
        p.ld_x            = t_ld(a->x);
        p.rows            = tensor_rows(a->x);
        p.rows_per_sample = a->rows_per_sample;
        p.cols            = (int)tensor_cols(a->x);
        p.site            = (uint32_t)a->site;
        p.threshold       = rng_threshold(a->p);
        p.scale           = 1.0f / (1.0f - a->p);
        p.per_sample      = a->per_sample;
        unsigned grid     = (unsigned)ceil_div(p.rows, DROPOUT_THREADS / WARP);
        return k_flag(cuda_packable(a->x) && cuda_packable(a->y), [&](auto al) {
            return k_launch(op, dropout_kernel<T, decltype(al)::value>, dim3(grid), DROPOUT_THREADS, 0,
                            cuda_stream(dev), p);
        });
    });
}

static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_add_kernel(StepState *state, const float *loss, int64_t n, int loss_slot)
{
    __shared__ double slot[LOSS_THREADS / WARP];
    double            sum = 0.0;
    const float      *row = loss + blockIdx.x * n;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < n; i += LOSS_THREADS) sum += (double)row[i];
    sum = block_sum(sum, slot);
    if (threadIdx.x == 0) state->out.sum[loss_slot + blockIdx.x] += sum;
}

extern "C" int cuda_call(Dev *dev, const CallFn *a) { return a->fn(a, cuda_stream(dev)); }

extern "C" int cuda_loss_add(Dev *dev, const LossAdd *a)
{
    TRY(k_need_dtype("loss_add", a->loss, DT_F32));
    int n_slot = a->n_slot > 1 ? a->n_slot : 1;
    return k_launch("loss_add", loss_add_kernel, dim3((unsigned)n_slot), LOSS_THREADS, 0, cuda_stream(dev),
                    t_data<StepState>(a->state), t_data<float>(a->loss), tensor_numel(a->loss) / n_slot,
                    a->slot);
}
