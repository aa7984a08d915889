/* Norm, backward: NORM_DX, NORM_DW and NORM_BWD (both, the residual's gradient added, and the bias gradient
 * of the linear layer before the residual).
 *
 * Maths    xhat = (x - mean)*rstd, w = gamma*dy, c1 = sum(w)/C (RMS: 0), c2 = sum(w*xhat)/C;
 *          dx = rstd*(w - c1 - xhat*c2) = rstd*w + a*x + k with a = -rstd^2*c2, k = -rstd*(c1 -
 *          mean*rstd*c2): two instructions an element. dgamma += sum over rows of dy*xhat; dbeta += sum over
 *          rows of dy; with dres: dx = dres + dx, each rounded to storage as NORM_DX followed by ADD would;
 *          dbias += sum over rows of dx as stored.
 * Layout   rows x cols with a row stride each; gamma, dgamma, dbeta, dbias f32[C]; mean, rstd f32[N].
 * Grid     persistent, one block a multiprocessor; a team of warps as wide as a row, one pack a thread, takes
 *          a batch of rows at a time (ColPlan of k_colsum.cuh, whose order the sums over rows have). A batch
 *          costs one exchange between the team's warps. As soon as a batch is in registers the copy engine
 *          fetches the team's next one into shared memory: at C = 768 five teams keep 92 KB in flight all the
 *          time. Where rows are not a multiple of 16 bytes, shared memory does not suffice or the device has
 *          no such engine, threads load the next batch's row themselves when this one's has been used. Sums
 *          over rows live in shared memory, two chains a team, and are touched once a batch.
 *          NORM_DW, and rows wider than sixteen warps: k_colsum.cuh for the sums, with the same bits; dx of
 *          such rows: one block a row.
 * Bytes    NORM_BWD with dres 4*C*size a row (three reads, one write), without 3*C*size. */
#include "dev/cuda/k_colsum.cuh"
#include "dev/cuda/k_rows.cuh"

/* Planes of a slot: with room for dres always, because where they begin is then known to the compiler (fewer
 * spills). */
enum { NORM_THREADS = TEAM_WARPS * WARP, NORM_PLANES = 3 };
/* Which sums over rows a kernel takes. */
enum { SUM_GAMMA = 1, SUM_BETA = 2, SUM_BIAS = 4 };
/* Where a thread has its packs from: loads of one element, of a pack, or what the copy engine has brought. */
enum { FROM_ODD, FROM_PACKS, FROM_COPIES };

template <typename T> struct NormBwdP {
    T           *dx;
    float       *part; /* [block][sums][cols] */
    const T     *dy, *x, *dres;
    const float *gamma, *mean, *rstd;
    int          ld_dx, ld_dy, ld_x, ld_dres;
    int          rows, cols, n_batch;
    int          warps, teams;
    float        inv_cols;
};

/* A block's shared memory beside its sums and slots. */
struct NormShared {
    float    exchange[2][TEAM_WARPS][8]; /* team_sum8() */
    uint64_t full[TEAM_MAX];             /* NormSlot */
};

/* What a thread holds of a row. */
template <typename T> struct NormRow {
    Pack<T> dy, x, dres;
};

/* n: columns from col to the row's end. Rows past the end read as zero. */
template <typename T, bool AL>
__device__ __forceinline__ NormRow<T> norm_row_load(const NormBwdP<T> &p, int row, int col, int n)
{
    NormRow<T> f;
    n      = row < p.rows ? n : 0;
    f.dy   = vec_load<T, AL>(row_at(p.dy, row, p.ld_dy) + col, n);
    f.x    = vec_load<T, AL>(row_at(p.x, row, p.ld_x) + col, n);
    f.dres = vec_load<T, AL>(row_at(p.dres, row, p.ld_dres) + col, p.dres ? n : 0);
    return f;
}

__device__ __forceinline__ float norm_shift(float mean, float rstd) { return -__fmul_rn(mean, rstd); }
__device__ __forceinline__ float norm_xhat(float x, float rstd, float shift) { return fmaf(x, rstd, shift); }

/* A batch's (rstd, mean), spread over a warp to spare registers: rstd of row r in lane r, mean in lane R + r.
 * 0 past the end. */
template <typename T> __device__ __forceinline__ float stat_load(const NormBwdP<T> &p, int batch)
{
    constexpr int R    = COLSUM_BATCH;
    int           lane = threadIdx.x % WARP, row = batch * R + lane % R;
    const float  *from = lane < R ? p.rstd : p.mean;
    return lane < 2 * R && row < p.rows && from ? from[row] : 0.0f;
}
__device__ __forceinline__ float stat_rstd(float stat, int r) { return __shfl_sync(FULL_WARP, stat, r); }
__device__ __forceinline__ float stat_shift(float stat, int r, float rstd)
{
    return norm_shift(__shfl_sync(FULL_WARP, stat, COLSUM_BATCH + r), rstd);
}

/* What the copy engine fetches for a team: a batch's rows of dy, x and dres, and the barrier that counts
 * their bytes. */
template <typename T> struct NormSlot {
    T        *buf; /* [dy, x, dres][COLSUM_BATCH][cols] */
    uint64_t *full;
    uint32_t  phase;
};

/* One warp. Rows past the end are not fetched. */
template <typename T>
__device__ __forceinline__ void norm_fetch(const NormBwdP<T> &p, const NormSlot<T> &to, int batch)
{
    int row = batch * COLSUM_BATCH, n = MIN((int)COLSUM_BATCH, p.rows - row), plane = COLSUM_BATCH * p.cols;
    int bytes = p.cols * (int)sizeof(T);
    if (n <= 0 || !ptx_elect()) return;
    ptx_fence_async(); /* after the team's reads of what was there */
    ptx_mbar_expect(to.full, (uint32_t)(n * bytes * (p.dres ? 3 : 2)));
    T *dst = to.buf;
    for (int end = row + n; row < end; row++, dst += p.cols) {
        ptx_bulk_load(dst, row_at(p.dy, row, p.ld_dy), bytes, to.full);
        ptx_bulk_load(dst + plane, row_at(p.x, row, p.ld_x), bytes, to.full);
        if (p.dres) ptx_bulk_load(dst + 2 * plane, row_at(p.dres, row, p.ld_dres), bytes, to.full);
    }
}

/* The batch in the slot. Rows past the end become zero. Threads past a row's end work on its first pack, for
 * nothing: their gamma is 0. */
template <typename T>
__device__ __forceinline__ void norm_take(const NormBwdP<T> &p, const NormSlot<T> &from, int batch, int col,
                                          NormRow<T> (&f)[COLSUM_BATCH])
{
    constexpr int R     = COLSUM_BATCH;
    int           plane = R * p.cols, left = p.rows - batch * R;
    const T      *at = from.buf + (col < p.cols ? col : 0);
    if (left > 0) ptx_mbar_wait(from.full, from.phase);
#pragma unroll
    for (int r = 0; r < R; r++, at += p.cols) {
        f[r].dy   = pack_load(at);
        f[r].x    = pack_load(at + plane);
        f[r].dres = pack_load(at + 2 * plane); /* without dres whatever is there, for nothing */
    }
    if (left >= R) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        if (r >= left) f[r].dy = f[r].x = f[r].dres = pack_zero<T>();
    }
}

/* A pack's part of (sum(w), sum(w*xhat)), and of dgamma. Outside the row dy is 0 and adds nothing. */
template <bool GAMMA, int N>
__device__ __forceinline__ float2 norm_pack_sums(const float *dy, const float *x, const float *g, float shift,
                                                 float rstd, float *dgamma)
{
    float2 s = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float xhat = norm_xhat(x[i], rstd, shift), w = __fmul_rn(dy[i], g[i]);
        if (GAMMA) dgamma[i] = fmaf(dy[i], xhat, dgamma[i]);
        s.x = __fadd_rn(s.x, w);
        s.y = fmaf(w, xhat, s.y);
    }
    return s;
}

/* sum += v, element by element. */
template <typename T> __device__ __forceinline__ void pack_sum_into(float *sum, const Pack<T> &v)
{
    float f[Pack<T>::N];
    vec_unpack(v, f);
#pragma unroll
    for (int i = 0; i < Pack<T>::N; i++) sum[i] = __fadd_rn(sum[i], f[i]);
}

/* The a and k of the row. c: sum(w) and sum(w*xhat). */
__device__ __forceinline__ float2 norm_coefs(float2 c, bool rms, float inv_cols, float shift, float rstd)
{
    float c1 = rms ? 0.0f : __fmul_rn(c.x, inv_cols), c2 = __fmul_rn(c.y, inv_cols);
    return make_float2(-__fmul_rn(__fmul_rn(rstd, rstd), c2), -__fmul_rn(rstd, fmaf(shift, c2, c1)));
}

/* dx of a pack as it is stored. */
template <typename T>
__device__ __forceinline__ Pack<T> norm_pack_dx(const NormRow<T> &f, const float *g, float rstd, float2 ak,
                                                bool residual)
{
    constexpr int N = Pack<T>::N;
    float         d[N], x[N];
    vec_unpack(f.dy, d);
    vec_unpack(f.x, x);
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = fmaf(__fmul_rn(d[i], g[i]), rstd, fmaf(x[i], ak.x, ak.y));
    Pack<T> out = vec_pack<T>(d), sum;
    vec_unpack(out, d);
    vec_unpack(f.dres, x);
#pragma unroll
    for (int i = 0; i < N; i++) d[i] = __fadd_rn(x[i], d[i]);
    sum = vec_pack<T>(d);
    return residual ? sum : out;
}

/* ---- A team: a batch of rows in registers ------------------------------------------------------------ */

__device__ __forceinline__ void team_sync(int team, int warps)
{
    if (warps == 1) {
        __syncwarp();
    } else {
        ptx_bar_sync(1 + team, warps * WARP);
    }
}

/* Sums v[j] over the team for all eight j; the same bits in every thread. A warp halves the values it carries
 * with each of the first three exchanges: nine shuffles for eight sums. slot: [warp of the block][8]; the
 * caller alternates between two slots, because the barrier of the next call frees the slot of this call. */
__device__ __forceinline__ void team_sum8(float (&v)[8], int team, int warps, float (*slot)[8])
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int d = 1, n = 4; n > 0; d *= 2, n /= 2) {
        bool high = lane & d;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float keep = high ? v[2 * i + 1] : v[2 * i], send = high ? v[2 * i] : v[2 * i + 1];
            v[i] = __fadd_rn(keep, __shfl_xor_sync(FULL_WARP, send, d));
        }
    }
    float s = v[0]; /* of value lane % 8 */
    s       = __fadd_rn(s, __shfl_xor_sync(FULL_WARP, s, 8));
    s       = __fadd_rn(s, __shfl_xor_sync(FULL_WARP, s, 16));
    if (lane < 8) slot[warp][lane] = s;
    team_sync(team, warps);
    float part[TEAM_WARPS / 4]; /* lanes 8q to 8q+7 add warps q, q + 4, ... */
#pragma unroll
    for (int k = 0; k < TEAM_WARPS / 4; k++) {
        int w   = lane / 8 + 4 * k;
        part[k] = w < warps ? slot[team * warps + w][lane % 8] : 0.0f;
    }
    s = __fadd_rn(__fadd_rn(part[0], part[1]), __fadd_rn(part[2], part[3]));
    s = __fadd_rn(s, __shfl_xor_sync(FULL_WARP, s, 8));
    s = __fadd_rn(s, __shfl_xor_sync(FULL_WARP, s, 16));
#pragma unroll
    for (int j = 0; j < 8; j++) v[j] = __shfl_sync(FULL_WARP, s, j);
}

/* Adds the block's chains in order and writes its partial row. Chain c is turn c / teams of team
 * c % teams. */
template <int S, int N>
__device__ __forceinline__ void acc_store(const float4 *acc, float *part, int teams, int warps, int cols)
{
    const float *a = reinterpret_cast<const float *>(acc);
    __syncthreads();
    for (int e = threadIdx.x; e < S * cols; e += blockDim.x) {
        int   which = e / cols, col = e - which * cols, t = col / N, h = col % N / 4;
        float sum = 0.0f;
        for (int c = 0; c < 2 * teams; c++) {
            int   thread = c % teams * warps * WARP + t, line = (c / teams * S + which) * (N / 4) + h;
            float v = a[(line * blockDim.x + thread) * 4 + col % 4];
            sum     = c ? __fadd_rn(sum, v) : v;
        }
        part[e] = sum;
    }
}

template <typename T, int FROM, int SUMS>
__global__ void __launch_bounds__(NORM_THREADS, 1) norm_bwd_kernel(NormBwdP<T> p)
{
    constexpr int  N = Pack<T>::N, R = COLSUM_BATCH, H = N / 4;
    constexpr bool AL = FROM != FROM_ODD, COPIES = FROM == FROM_COPIES;
    constexpr int  S = (SUMS & SUM_GAMMA ? 1 : 0) + (SUMS & SUM_BETA ? 1 : 0) + (SUMS & SUM_BIAS ? 1 : 0);
    constexpr int  AT_BIAS = SUMS & SUM_BETA ? 2 : 1; /* dgamma, dbeta if any, dbias if any */
    extern __shared__ float4 acc[];                   /* [turn][S][H][threads], then the teams' slots */
    __shared__ NormShared    own;
    int         width = p.warps * WARP, team = threadIdx.x / width, thread = threadIdx.x - team * width;
    int         col = thread * N, n = p.cols - col;
    int         step = gridDim.x * p.teams, batch = blockIdx.x + gridDim.x * team;
    float       stat = stat_load(p, batch), g[N];
    NormRow<T>  f[R];
    NormSlot<T> in = {};
    table_load<N, AL>(p.gamma + col, n, g);
    for (int i = 0; i < 2 * S * H; i++) acc[i * blockDim.x + threadIdx.x] = make_float4(0, 0, 0, 0);
    if (COPIES) {
        in.buf  = reinterpret_cast<T *>(acc + 2 * S * H * blockDim.x) + team * NORM_PLANES * R * p.cols;
        in.full = own.full + team;
        if (thread == 0) {
            ptx_mbar_init(in.full, 1);
            ptx_mbar_init_fence();
        }
        team_sync(team, p.warps);
        if (thread < WARP) norm_fetch(p, in, batch);
    } else {
#pragma unroll
        for (int r = 0; r < R; r++) f[r] = norm_row_load<T, AL>(p, batch * R + r, col, n);
    }

    /* All teams make the same number of rounds. The last round may lie past the end, where all rows are zero.
     * racecheck can only follow barriers that every warp has passed equally often. */
    for (int turn = 0; batch < p.n_batch + (int)gridDim.x * team; turn ^= 1, batch += step) {
        float4 *mine = acc + turn * S * H * blockDim.x + threadIdx.x;
        float   c[2 * R], sum[N], next = stat_load(p, batch + step);
        if (COPIES) {
            norm_take(p, in, batch, col, f);
            in.phase ^= 1;
            team_sync(team, p.warps);
            if (thread < WARP) norm_fetch(p, in, batch + step);
        }
        if (SUMS & SUM_BETA) { /* on its own: beside the other sums it would not fit the registers */
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] = 0.0f;
#pragma unroll
            for (int r = 0; r < R; r++) pack_sum_into(sum, f[r].dy);
            acc_add<N>(mine + H * blockDim.x, blockDim.x, sum);
        }
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0.0f;
#pragma unroll
        for (int r = 0; r < R; r++) {
            float d[N], x[N];
            vec_unpack(f[r].dy, d);
            vec_unpack(f[r].x, x);
            float  rstd = stat_rstd(stat, r), shift = stat_shift(stat, r, rstd);
            float2 s     = norm_pack_sums<(SUMS & SUM_GAMMA) != 0, N>(d, x, g, shift, rstd, sum);
            c[2 * r]     = s.x;
            c[2 * r + 1] = s.y;
        }
        if (SUMS & SUM_GAMMA) acc_add<N>(mine, blockDim.x, sum);
        team_sum8(c, team, p.warps, own.exchange[turn]);
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = 0.0f;
#pragma unroll
        for (int r = 0; r < R; r++) {
            vec_forget(f[r].dy); /* unpacked again: as floats they would not fit the registers */
            vec_forget(f[r].x);
            int     row  = batch * R + r;
            float   rstd = stat_rstd(stat, r), shift = stat_shift(stat, r, rstd);
            float2  ak  = norm_coefs(make_float2(c[2 * r], c[2 * r + 1]), !p.mean, p.inv_cols, shift, rstd);
            Pack<T> out = norm_pack_dx(f[r], g, rstd, ak, p.dres != nullptr);
            vec_store<T, AL>(row_at(p.dx, row, p.ld_dx) + col, out, row < p.rows ? n : 0);
            if (SUMS & SUM_BIAS) pack_sum_into(sum, out);
            if (!COPIES) f[r] = norm_row_load<T, AL>(p, (batch + step) * R + r, col, n);
        }
        if (SUMS & SUM_BIAS) acc_add<N>(mine + AT_BIAS * H * blockDim.x, blockDim.x, sum);
        stat = next;
    }
    if (S > 0) acc_store<S, N>(acc, p.part + (int64_t)blockIdx.x * S * p.cols, p.teams, p.warps, p.cols);
}

/* ---- Wide rows -------------------------------------------------------------------------------------- */

/* One block a row. */
template <typename T, bool AL>
__global__ void __launch_bounds__(NORM_THREADS) norm_dx_wide_kernel(NormBwdP<T> p)
{
    constexpr int     N = Pack<T>::N;
    __shared__ float2 slot[TEAM_WARPS];
    RowThread         r    = row_thread<false>(TEAM_WARPS);
    int               row  = blockIdx.x;
    float2            c    = make_float2(0.0f, 0.0f);
    float             rstd = p.rstd[row], shift = norm_shift(p.mean ? p.mean[row] : 0.0f, rstd);
    for (int col = r.t * N; col < p.cols; col += r.stride * N) {
        NormRow<T> f = norm_row_load<T, AL>(p, row, col, p.cols - col);
        float      d[N], x[N], g[N];
        vec_unpack(f.dy, d);
        vec_unpack(f.x, x);
        table_load<N, AL>(p.gamma + col, p.cols - col, g);
        float2 s = norm_pack_sums<false, N>(d, x, g, shift, rstd, nullptr);
        c.x      = __fadd_rn(c.x, s.x);
        c.y      = __fadd_rn(c.y, s.y);
    }
    c         = group_sum2(c, r, slot);
    float2 ak = norm_coefs(c, !p.mean, p.inv_cols, shift, rstd);
    for (int col = r.t * N; col < p.cols; col += r.stride * N) {
        NormRow<T> f = norm_row_load<T, AL>(p, row, col, p.cols - col);
        float      g[N];
        table_load<N, AL>(p.gamma + col, p.cols - col, g);
        vec_store<T, AL>(row_at(p.dx, row, p.ld_dx) + col, norm_pack_dx(f, g, rstd, ak, p.dres != nullptr),
                         p.cols - col);
    }
}

/* dgamma, and dbeta where there is one, as plain column sums. */
template <typename T, bool AL, int SUMS_> struct NormDwOp {
    static constexpr int SUMS = SUMS_, BATCHES = 1;
    struct In {
        Pack<T> dy, x;
        float   mean, rstd;
    };
    NormBwdP<T> p;

    __device__ __forceinline__ In load(int row, int col, int n) const
    {
        In   in;
        bool live = row < p.rows;
        in.dy     = vec_load<T, AL>(row_at(p.dy, row, p.ld_dy) + col, n);
        in.x      = vec_load<T, AL>(row_at(p.x, row, p.ld_x) + col, n);
        in.mean   = live && p.mean ? p.mean[row] : 0.0f;
        in.rstd   = live ? p.rstd[row] : 0.0f;
        return in;
    }
    __device__ __forceinline__ void add(const In &in, int, int, int, float (&sum)[SUMS][Pack<T>::N]) const
    {
        float d[Pack<T>::N], x[Pack<T>::N], shift = norm_shift(in.mean, in.rstd);
        vec_unpack(in.dy, d);
        vec_unpack(in.x, x);
#pragma unroll
        for (int i = 0; i < Pack<T>::N; i++) {
            sum[0][i] = fmaf(d[i], norm_xhat(x[i], in.rstd, shift), sum[0][i]);
            if (SUMS > 1) sum[SUMS - 1][i] = __fadd_rn(sum[SUMS - 1][i], d[i]);
        }
    }
};

/* ---- Host ------------------------------------------------------------------------------------------- */

template <typename T, int FROM, int SUMS>
static int norm_team_launch(Dev *dev, const char *op, const NormBwdP<T> &p, const ColPlan &plan, size_t smem)
{
    auto kernel = norm_bwd_kernel<T, FROM, SUMS>;
    if (smem) CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    return k_launch(op, kernel, dim3((unsigned)plan.blocks), plan.teams * plan.tiles * WARP, smem,
                    cuda_stream(dev), p);
}

template <typename T, bool AL>
static int norm_dw_launch(Dev *dev, const char *op, const NormBwdP<T> &p, const NormBwd *a)
{
    ColDst to = { { t_data<float>(a->dgamma), t_data<float>(a->dbeta) } };
    if (!a->dbeta) return colsum_launch<T>(dev, op, NormDwOp<T, AL, 1>{ p }, p.rows, p.cols, a->ws, to);
    return colsum_launch<T>(dev, op, NormDwOp<T, AL, 2>{ p }, p.rows, p.cols, a->ws, to);
}

template <typename T, bool AL>
static int norm_dx_launch(Dev *dev, const char *op, const NormBwdP<T> &p, const ColPlan &plan, size_t copied)
{
    if (copied > 0) return norm_team_launch < T, AL ? FROM_COPIES : FROM_ODD, 0 > (dev, op, p, plan, copied);
    if (plan.teams > 0) return norm_team_launch < T, AL ? FROM_PACKS : FROM_ODD, 0 > (dev, op, p, plan, 0);
    return k_launch(op, norm_dx_wide_kernel<T, AL>, dim3((unsigned)p.rows), NORM_THREADS, 0, cuda_stream(dev),
                    p);
}

/* One after the other. dx may share storage with dy: the sums over dy come first. copied: bytes of shared
 * memory for the copy engine; 0: without it. */
template <typename T, bool AL>
static int norm_split_launch(Dev *dev, const char *op, const NormBwdP<T> &p, const NormBwd *a,
                             const ColPlan &plan, size_t copied)
{
    if (a->dgamma) TRY((norm_dw_launch<T, AL>(dev, op, p, a)));
    if (a->dx) TRY((norm_dx_launch<T, AL>(dev, op, p, plan, copied)));
    if (!a->dbias) return 0;
    BiasDwOp<T, AL> bias = { p.dx, p.ld_dx };
    return colsum_launch<T>(dev, op, bias, p.rows, p.cols, a->ws, ColDst{ { t_data<float>(a->dbias) } });
}

template <typename T, bool AL>
static int norm_bwd_launch(Dev *dev, const char *op, NormBwdP<T> p, const NormBwd *a)
{
    ColPlan plan = {};
    int     most; /* bytes of shared memory that a block may ask for */
    TRY(col_plan(dev, op, p.rows, p.cols, Pack<T>::N, &plan));
    CUDA_TRY(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, ((CudaDev *)dev)->index));
    p.n_batch = plan.n_batch;
    p.warps   = plan.tiles;
    p.teams   = plan.teams;

    int    n_sum  = 1 + (a->dbeta != NULL) + (a->dbias != NULL);
    size_t smem   = (size_t)plan.chains * n_sum * plan.tiles * WARP * Pack<T>::N * sizeof(float);
    size_t copied = (size_t)plan.teams * NORM_PLANES * COLSUM_BATCH * (size_t)p.cols * sizeof(T);
    int    engine = AL && ((const CudaDev *)dev)->capability >= 90;
    if (!a->dx || !a->dgamma || plan.teams == 0 || smem + sizeof(NormShared) > (size_t)most) {
        if (!engine || copied + sizeof(NormShared) > (size_t)most) copied = 0;
        return norm_split_launch<T, AL>(dev, op, p, a, plan, copied);
    }
    TRY(k_need_ws(op, a->ws, (size_t)plan.blocks * n_sum * (size_t)p.cols * sizeof(float)));
    int copies = engine && smem + copied + sizeof(NormShared) <= (size_t)most;
    int rc     = k_flag(a->dbeta != NULL, [&](auto beta) {
        return k_flag(a->dbias != NULL, [&](auto bias) {
            constexpr int SUMS =
                SUM_GAMMA | (decltype(beta)::value ? SUM_BETA : 0) | (decltype(bias)::value ? SUM_BIAS : 0);
            constexpr int PLAIN = AL ? FROM_PACKS : FROM_ODD;
            if (copies)
                return norm_team_launch < T, AL ? FROM_COPIES : PLAIN,
                       SUMS > (dev, op, p, plan, smem + copied);
            return norm_team_launch<T, PLAIN, SUMS>(dev, op, p, plan, smem);
        });
    });
    if (rc < 0) return rc;
    ColDst to = {};
    to.p[0]   = t_data<float>(a->dgamma);
    if (a->dbeta) to.p[1] = t_data<float>(a->dbeta);
    if (a->dbias) to.p[n_sum - 1] = t_data<float>(a->dbias);
    return colsum_finish_launch(op, cuda_stream(dev), p.part, plan.blocks, n_sum, p.cols, to);
}

/* Any of dx and (dgamma, dbeta) may be absent here. */
static int norm_bwd_run(Dev *dev, const char *op, const NormBwd *a)
{
    DType dt = a->x->dtype;
    TRY(k_need_dtype(op, a->dx, dt));
    TRY(k_need_dtype(op, a->dy, dt));
    TRY(k_need_dtype(op, a->dres, dt));
    TRY(k_need_dtype(op, a->gamma, DT_F32));
    TRY(k_need_dtype(op, a->dgamma, DT_F32));
    TRY(k_need_dtype(op, a->dbeta, DT_F32));
    TRY(k_need_dtype(op, a->dbias, DT_F32));
    int al = cuda_packable(a->dx) && cuda_packable(a->dy) && cuda_packable(a->x) && cuda_packable(a->dres) &&
             (!a->gamma || (uintptr_t)a->gamma->data % 16 == 0);
    return k_dispatch_half(dt, op, [&](auto zero) {
        using T       = decltype(zero);
        NormBwdP<T> p = {};
        p.dx          = t_data<T>(a->dx);
        p.part        = t_data<float>(a->ws);
        p.dy          = t_data<T>(a->dy);
        p.x           = t_data<T>(a->x);
        p.dres        = t_data<T>(a->dres);
        p.gamma       = t_data<float>(a->gamma);
        p.mean        = t_data<float>(a->mean);
        p.rstd        = t_data<float>(a->rstd);
        p.ld_dx       = t_ld32(a->dx);
        p.ld_dy       = t_ld32(a->dy);
        p.ld_x        = t_ld32(a->x);
        p.ld_dres     = t_ld32(a->dres);
        p.rows        = (int)tensor_rows(a->x); /* col_plan refuses more */
        p.cols        = (int)tensor_cols(a->x);
        p.inv_cols    = 1.0f / (float)p.cols;
        return k_flag(al, [&](auto f) { return norm_bwd_launch<T, decltype(f)::value>(dev, op, p, a); });
    });
}

extern "C" int cuda_norm_bwd(Dev *dev, const NormBwd *a) { return norm_bwd_run(dev, "norm_bwd", a); }

extern "C" int cuda_norm_dx(Dev *dev, const NormDx *a)
{
    NormBwd b = {};
    b.dx      = a->dx;
    b.dy      = a->dy;
    b.x       = a->x;
    b.gamma   = a->gamma;
    b.mean    = a->mean;
    b.rstd    = a->rstd;
    return norm_bwd_run(dev, "norm_dx", &b);
}

extern "C" int cuda_norm_dw(Dev *dev, const NormDw *a)
{
    NormBwd b = {};
    b.dgamma  = a->dgamma;
    b.dbeta   = a->dbeta;
    b.ws      = a->ws;
    b.dy      = a->dy;
    b.x       = a->x;
    b.mean    = a->mean;
    b.rstd    = a->rstd;
    return norm_bwd_run(dev, "norm_dw", &b);
}
