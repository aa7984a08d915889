/* Rollouts: GAE, STATS, OBS_STATS, OBS_NORM, PUT, TICK, PERM, PACK_ROWS.
 *
 * Maths    as in cpu/cpu_rollout.c.
 * Layout   [T,N] contiguous; observations rows x cols with a row stride; run f64[1 + 2D] = n, means, squares.
 * Order    GAE: a thread walks one column backwards in time. STATS: a block takes elements b*threads + t,
 *          then every STATS_BLOCKS*threads further; threads, then blocks are added in a fixed order, first
 *          for the mean, then for the squares about it. OBS_STATS: a block a column, in the same way. All in
 *          double.
 * Grid     GAE a thread a column; STATS at most STATS_BLOCKS blocks; OBS_NORM a thread an element; PUT a row
 *          of blocks for each pair, a thread for 16, 4 or 1 bytes.
 * Bytes    GAE 22 bytes an element; STATS 8 an element, the second 4 from the cache for what fits there. */
#include "dev/cuda/k_common.cuh"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

enum { ROLL_THREADS = 256, GAE_THREADS = 64, ROLL_WARPS = ROLL_THREADS / WARP };

/* ---- Advantages -------------------------------------------------------------------------------------- */

struct GaeP {
    float         *adv, *ret;
    const float   *reward, *value, *last, *final_value;
    const uint8_t *terminated, *truncated;
    int64_t        T, N;
    float          gamma, decay; /* decay = gamma*lambda */
};

static __global__ void __launch_bounds__(GAE_THREADS) gae_kernel(GaeP p)
{
    int64_t n = (int64_t)blockIdx.x * GAE_THREADS + threadIdx.x;
    if (n >= p.N) return;
    float later = 0.0f, after = p.last[n];
#pragma unroll 8
    for (int64_t t = p.T - 1; t >= 0; t--) {
        int64_t i = t * p.N + n;
        float   v = p.value[i], next = after;
        bool    term = p.terminated[i], trunc = p.truncated[i];
        if (trunc) next = p.final_value ? p.final_value[i] : 0.0f;
        if (term) next = 0.0f;
        if (term || trunc) later = 0.0f;
        later    = p.reward[i] + p.gamma * next - v + p.decay * later;
        p.adv[i] = later;
        p.ret[i] = later + v;
        after    = v;
    }
}

extern "C" int cuda_gae(Dev *dev, const Gae *a)
{
    const Tensor *f32[] = { a->adv, a->ret, a->reward, a->value, a->last_value, a->final_value };
    for (const Tensor *t : f32) TRY(k_need_dtype("gae", t, DT_F32));
    TRY(k_need_dtype("gae", a->terminated, DT_U8));
    TRY(k_need_dtype("gae", a->truncated, DT_U8));
    GaeP p = { t_data<float>(a->adv),
               t_data<float>(a->ret),
               t_data<float>(a->reward),
               t_data<float>(a->value),
               t_data<float>(a->last_value),
               t_data<float>(a->final_value),
               t_data<uint8_t>(a->terminated),
               t_data<uint8_t>(a->truncated),
               tensor_rows(a->reward),
               tensor_cols(a->reward),
               a->gamma,
               a->gamma * a->lambda };
    return k_launch("gae", gae_kernel, dim3((unsigned)ceil_div(p.N, GAE_THREADS)), GAE_THREADS, 0,
                    cuda_stream(dev), p);
}

/* ---- Statistics -------------------------------------------------------------------------------------- */

/* The sum over the block, the same bits in every thread. */
__device__ __forceinline__ double block_all(double v, double *slot)
{
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % WARP == 0) slot[threadIdx.x / WARP] = v;
    __syncthreads();
    double sum = slot[0];
    for (int w = 1; w < ROLL_WARPS; w++) sum += slot[w];
    return sum;
}

/* The sum of the blocks' numbers, by every block in the same order. */
__device__ __forceinline__ double sum_parts(const double *part, int blocks, double *slot)
{
    double v = 0.0;
    for (int b = threadIdx.x; b < blocks; b += ROLL_THREADS) v += part[b];
    return block_all(v, slot);
}

struct StatsP {
    float         *out;
    const float   *x;
    const int32_t *valid;
    double        *part; /* [3][STATS_BLOCKS]: sums, counts, squares */
    int64_t        n;
    int            blocks, unbiased;
};

static __global__ void __launch_bounds__(ROLL_THREADS) stats_sum_kernel(StatsP p)
{
    __shared__ double slot[ROLL_WARPS];
    double            sum = 0.0, count = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * ROLL_THREADS + threadIdx.x; i < p.n;
         i += (int64_t)p.blocks * ROLL_THREADS) {
        if (p.valid && !p.valid[i]) continue;
        sum += (double)p.x[i];
        count += 1.0;
    }
    sum   = block_all(sum, slot);
    count = block_all(count, slot);
    if (threadIdx.x != 0) return;
    p.part[blockIdx.x]                = sum;
    p.part[STATS_BLOCKS + blockIdx.x] = count;
}

static __global__ void __launch_bounds__(ROLL_THREADS) stats_square_kernel(StatsP p)
{
    __shared__ double slot[ROLL_WARPS];
    double sum = sum_parts(p.part, p.blocks, slot), count = sum_parts(p.part + STATS_BLOCKS, p.blocks, slot);
    double mean = count > 0.0 ? sum / count : 0.0, square = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * ROLL_THREADS + threadIdx.x; i < p.n;
         i += (int64_t)p.blocks * ROLL_THREADS) {
        if (p.valid && !p.valid[i]) continue;
        double d = (double)p.x[i] - mean;
        square += d * d;
    }
    square = block_all(square, slot);
    if (threadIdx.x == 0) p.part[2 * STATS_BLOCKS + blockIdx.x] = square;
}

static __global__ void __launch_bounds__(ROLL_THREADS) stats_end_kernel(StatsP p)
{
    __shared__ double slot[ROLL_WARPS];
    double sum = sum_parts(p.part, p.blocks, slot), count = sum_parts(p.part + STATS_BLOCKS, p.blocks, slot);
    double square = sum_parts(p.part + 2 * STATS_BLOCKS, p.blocks, slot);
    if (threadIdx.x != 0) return;
    p.out[0] = count > 0.0 ? (float)(sum / count) : 0.0f;
    p.out[1] = count < 2.0 ? 0.0f : (float)sqrt(square / (p.unbiased ? count - 1.0 : count));
    p.out[2] = (float)count;
}

extern "C" int cuda_stats(Dev *dev, const Stats *a)
{
    const char *op = "stats";
    TRY(k_need_dtype(op, a->x, DT_F32));
    TRY(k_need_dtype(op, a->valid, DT_I32));
    TRY(k_need_ws(op, a->ws, 3 * STATS_BLOCKS * sizeof(double)));
    StatsP p            = { t_data<float>(a->out),
                            t_data<float>(a->x),
                            t_data<int32_t>(a->valid),
                            t_data<double>(a->ws),
                            tensor_numel(a->x),
                            0,
                            a->unbiased };
    p.blocks            = (int)MIN(ceil_div(p.n, ROLL_THREADS), (int64_t)STATS_BLOCKS);
    cudaStream_t stream = cuda_stream(dev);
    TRY(k_launch(op, stats_sum_kernel, dim3((unsigned)p.blocks), ROLL_THREADS, 0, stream, p));
    TRY(k_launch(op, stats_square_kernel, dim3((unsigned)p.blocks), ROLL_THREADS, 0, stream, p));
    return k_launch(op, stats_end_kernel, dim3(1), ROLL_THREADS, 0, stream, p);
}

struct ObsP {
    double        *run;
    const float   *x;
    const int32_t *valid;
    int64_t        ld, rows;
    int            cols;
};

/* A block a column. The count is written by a kernel of its own: here other blocks still read it. */
static __global__ void __launch_bounds__(ROLL_THREADS) obs_stats_kernel(ObsP p)
{
    __shared__ double slot[ROLL_WARPS];
    int               c    = blockIdx.x;
    double            some = 0.0, mean = 0.0, square = 0.0, old = p.run[0];
    for (int64_t r = threadIdx.x; r < p.rows; r += ROLL_THREADS) {
        if (p.valid && !p.valid[r]) continue;
        some += 1.0;
        mean += (double)p.x[r * p.ld + c];
    }
    some = block_all(some, slot);
    mean = block_all(mean, slot) / some;
    for (int64_t r = threadIdx.x; r < p.rows; r += ROLL_THREADS) {
        double d = (double)p.x[r * p.ld + c] - mean;
        if (!p.valid || p.valid[r]) square += d * d;
    }
    square = block_all(square, slot);
    if (threadIdx.x != 0 || some == 0.0) return;
    double gap = mean - p.run[1 + c];
    p.run[1 + c] += gap * some / (old + some);
    p.run[1 + p.cols + c] += square + gap * gap * old * some / (old + some);
}

static __global__ void __launch_bounds__(ROLL_THREADS) obs_count_kernel(ObsP p)
{
    __shared__ double slot[ROLL_WARPS];
    double            some = 0.0;
    for (int64_t r = threadIdx.x; r < p.rows; r += ROLL_THREADS) some += !p.valid || p.valid[r] ? 1.0 : 0.0;
    some = block_all(some, slot);
    if (threadIdx.x == 0) p.run[0] += some;
}

extern "C" int cuda_obs_stats(Dev *dev, const ObsStats *a)
{
    const char *op = "obs_stats";
    TRY(k_need_dtype(op, a->run, DT_F64));
    TRY(k_need_dtype(op, a->x, DT_F32));
    TRY(k_need_dtype(op, a->valid, DT_I32));
    ObsP p = { t_data<double>(a->run), t_data<float>(a->x),   t_data<int32_t>(a->valid), t_ld(a->x),
               tensor_rows(a->x),      (int)tensor_cols(a->x) };
    TRY(k_launch(op, obs_stats_kernel, dim3((unsigned)p.cols), ROLL_THREADS, 0, cuda_stream(dev), p));
    return k_launch(op, obs_count_kernel, dim3(1), ROLL_THREADS, 0, cuda_stream(dev), p);
}

template <typename T>
__global__ void __launch_bounds__(ROLL_THREADS)
    obs_norm_kernel(ObsP p, T *y, int64_t ld_y, float eps, float clip)
{
    int64_t i = (int64_t)blockIdx.x * ROLL_THREADS + threadIdx.x, row = i / p.cols;
    if (row >= p.rows) return;
    int    c = (int)(i - row * p.cols);
    double n = p.run[0], variance = n > 0.0 ? p.run[1 + p.cols + c] / n : 1.0,
           mean       = n > 0.0 ? p.run[1 + c] : 0.0;
    float v           = (float)(((double)p.x[row * p.ld + c] - mean) / sqrt(variance + (double)eps));
    y[row * ld_y + c] = from_f32<T>(fminf(fmaxf(v, -clip), clip));
}

extern "C" int cuda_obs_norm(Dev *dev, const ObsNorm *a)
{
    const char *op = "obs_norm";
    TRY(k_need_dtype(op, a->run, DT_F64));
    TRY(k_need_dtype(op, a->x, DT_F32));
    ObsP p = { t_data<double>(a->run), t_data<float>(a->x),   nullptr, t_ld(a->x),
               tensor_rows(a->x),      (int)tensor_cols(a->x) };
    return k_dispatch(a->y->dtype, op, [&](auto zero) {
        using T       = decltype(zero);
        unsigned grid = (unsigned)ceil_div(p.rows * p.cols, ROLL_THREADS);
        return k_launch(op, obs_norm_kernel<T>, dim3(grid), ROLL_THREADS, 0, cuda_stream(dev), p,
                        t_data<T>(a->y), t_ld(a->y), a->eps, a->clip);
    });
}

/* ---- Rows, counters, permutations --------------------------------------------------------------------- */

/* Row t of y = x, in units of so many bytes: the largest that both are aligned to. n 0: no pair. */
struct PutP {
    char       *y;
    const char *x;
    int64_t     n, T;
    int         unit;
};
struct PutAll {
    PutP pair[PUT_PAIRS];
};

template <typename U> static __device__ __forceinline__ void put_unit(const PutP &p, int64_t row, int64_t i)
{
    ((U *)p.y)[row * p.n + i] = ((const U *)p.x)[i];
}

/* A row of blocks for each pair; a t outside the rollout writes nothing. */
static __global__ void __launch_bounds__(ROLL_THREADS)
    put_kernel(const __grid_constant__ PutAll all, const int32_t *t)
{
    const PutP &p = all.pair[blockIdx.y];
    int64_t     i = (int64_t)blockIdx.x * ROLL_THREADS + threadIdx.x, row = *t;
    if (i >= p.n || row < 0 || row >= p.T) return;
    if (p.unit == 16)
        put_unit<uint4>(p, row, i);
    else if (p.unit == 4)
        put_unit<uint32_t>(p, row, i);
    else
        put_unit<uint8_t>(p, row, i);
}

static PutP put_of(const Tensor *y, const Tensor *x)
{
    uintptr_t all = (uintptr_t)x->data | (uintptr_t)y->data | (uintptr_t)tensor_bytes(x);
    PutP      p   = {};
    p.y           = (char *)y->data;
    p.x           = (const char *)x->data;
    p.unit        = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
    p.n           = (int64_t)tensor_bytes(x) / p.unit;
    p.T           = tensor_numel(y) / tensor_numel(x);
    return p;
}

extern "C" int cuda_put(Dev *dev, const Put *a)
{
    PutAll  all  = {};
    int     n    = 0;
    int64_t most = 0;
    TRY(k_need_dtype("put", a->t, DT_I32));
    for (int i = 0; i < PUT_PAIRS; i++) {
        if (!a->y[i]) continue;
        TRY(k_need_dtype("put", a->x[i], a->y[i]->dtype));
        all.pair[n] = put_of(a->y[i], a->x[i]);
        most        = MAX(most, all.pair[n].n);
        n++;
    }
    return k_launch("put", put_kernel, dim3((unsigned)ceil_div(most, ROLL_THREADS), (unsigned)n),
                    ROLL_THREADS, 0, cuda_stream(dev), all, t_data<int32_t>(a->t));
}

static __global__ void tick_kernel(int32_t *t, int modulo) { *t = (*t + 1) % modulo; }

extern "C" int cuda_tick(Dev *dev, const Tick *a)
{
    TRY(k_need_dtype("tick", a->t, DT_I32));
    return k_launch("tick", tick_kernel, dim3(1), 1, 0, cuda_stream(dev), t_data<int32_t>(a->t), a->modulo);
}

static __global__ void __launch_bounds__(ROLL_THREADS)
    perm_kernel(int32_t *index, const StepState *state, const int32_t *epoch, uint32_t site, uint32_t n)
{
    uint32_t i = blockIdx.x * ROLL_THREADS + threadIdx.x;
    if (i >= n) return;
    Shuffle s = shuffle_begin(n, state->in.seed, site, state->in.step, epoch ? *epoch : 0);
    index[i]  = (int32_t)shuffle_at(&s, i);
}

extern "C" int cuda_perm(Dev *dev, const Perm *a)
{
    TRY(k_need_dtype("perm", a->index, DT_I32));
    TRY(k_need_dtype("perm", a->epoch, DT_I32));
    int64_t n = tensor_numel(a->index);
    CHECK(n <= INT32_MAX, "%s has %lld numbers", a->index->name, (long long)n);
    return k_launch("perm", perm_kernel, dim3((unsigned)ceil_div(n, ROLL_THREADS)), ROLL_THREADS, 0,
                    cuda_stream(dev), t_data<int32_t>(a->index), t_data<StepState>(a->state),
                    t_data<int32_t>(a->epoch), (uint32_t)a->site, (uint32_t)n);
}

/* ---- Packing ------------------------------------------------------------------------------------------ */

struct PackP {
    int32_t       *index, *first, *last, *tail, *low, *high;
    const int32_t *len;
    int64_t        stride, rows; /* rows: of the packed form */
    int            n, align, causal, n_tail, n_each;
};

/* Where sequence b begins, and how many rows it has. Lengths are few: each thread adds up those before. */
__device__ __forceinline__ int64_t pack_begin(const PackP &p, int b)
{
    int64_t row = 0;
    for (int i = 0; i < b; i++) {
        int n = p.len[i];
        if (n > 0) row = (row + p.align - 1) / p.align * p.align + n;
    }
    return row;
}

/* A thread block a sequence, and one more for the rows behind the last. */
static __global__ void __launch_bounds__(ROLL_THREADS) pack_kernel(PackP p)
{
    int     b = (int)blockIdx.x, n = b < p.n ? p.len[b] : 0;
    int64_t before = pack_begin(p, b), begin = (before + p.align - 1) / p.align * p.align;
    if (begin + n > p.rows) n = 0; /* the CPU calls this a bug; here nothing is written outside */
    int64_t end = b == p.n ? p.rows : n > 0 ? begin + n : before;
    if (end > p.rows) end = p.rows;
    for (int64_t row = before + threadIdx.x; row < end; row += ROLL_THREADS) {
        int is_in    = b < p.n && row >= begin;
        p.index[row] = is_in ? (int32_t)(b * p.stride + row - begin) : -1;
        p.first[row] = is_in ? (int32_t)begin : 0;
        p.last[row]  = is_in ? (int32_t)(p.causal ? row : end - 1) : -1;
    }
    if (b == p.n) return;
    for (int t = (int)threadIdx.x; t < p.n_tail; t += ROLL_THREADS)
        p.tail[b * p.n_tail + t] = n < p.n_tail - t ? -1 : (int32_t)(end - p.n_tail + t);
    for (int t = (int)threadIdx.x; t < p.n_each; t += ROLL_THREADS) {
        p.low[b * p.n_each + t]  = n > 0 ? (int32_t)begin : 0;
        p.high[b * p.n_each + t] = n > 0 ? (int32_t)(end - 1) : -1;
    }
}

extern "C" int cuda_pack_rows(Dev *dev, const PackRows *a)
{
    PackP p = { t_data<int32_t>(a->index),
                t_data<int32_t>(a->first),
                t_data<int32_t>(a->last),
                t_data<int32_t>(a->tail),
                t_data<int32_t>(a->low),
                t_data<int32_t>(a->high),
                t_data<int32_t>(a->len),
                a->stride,
                tensor_numel(a->index),
                (int)tensor_numel(a->len),
                a->align,
                a->causal,
                a->n_tail,
                a->n_each };
    return k_launch("pack_rows", pack_kernel, dim3((unsigned)(p.n + 1)), ROLL_THREADS, 0, cuda_stream(dev),
                    p);
}
