/* Embedding: EMBED_FWD, EMBED_DW, POS_DW; and ROWS_DX, which needs the same order.
 *
 * Maths    y[n] = wte[tok[n]] + wpe[pos0[b] + n mod T];  dwte[v] += sum over n with tok[n] = v of dy[n]; 
 *          dwpe[t] += sum over b of dy[b][t].
 * Layout   y, dy [N,C] with a row stride; tok i32[N], T its last dimension; dwte, dwpe f32.
 * Order    EMBED_DW sorts the row numbers by token (stable, so rows of one token stay in increasing n), then
 *          each token's rows are added by whoever owns the token: no atomics on numbers. Light tokens (at
 *          most 32 rows): the warp that looks after their first position adds the rows in order. Heavy tokens
 *          (a frequent word may be 5 % of all rows) go to a list; a block takes a token and 64-odd columns,
 *          its row slots take rows round robin and are then added in order, so that a long token is not a
 *          serial tail. The order of the list (filled by an atomic counter) does not touch any sum.
 * Grid     EMBED_FWD: a warp a row; light: a warp sixteen sorted positions; heavy: (column tile, list
 *          stride); POS_DW: a thread a pack.
 * Bytes    EMBED_FWD 2*C*size a row (+ wpe); EMBED_DW C*size a row + 8*C a distinct token; POS_DW C*size a
 *          row + 8*C*T. */
#include "dev/cuda/k_common.cuh"

#include <cub/device/device_radix_sort.cuh>

enum { EMBED_THREADS = 256, LIGHT_ROWS = WARP, LIGHT_POSITIONS = WARP / 2, LIGHT_MAX_NV = 4 };
enum { HEAVY_THREADS = 512, HEAVY_LANES = 8, HEAVY_SLOTS = HEAVY_THREADS / HEAVY_LANES, HEAVY_UNROLL = 8 };

/* ---- Forward ----------------------------------------------------------------------------------------- */

template <typename T> struct EmbedFwdP {
    T             *y;
    const int32_t *tok, *pos0;
    const T       *wte, *wpe;
    int64_t        ld_y, ld_wte, ld_wpe, rows;
    int            T_len, cols, one_pos; /* one_pos: pos0[0] is every sequence's */
};

template <typename T, bool AL>
__global__ void __launch_bounds__(EMBED_THREADS) embed_fwd_kernel(EmbedFwdP<T> p)
{
    constexpr int N   = Pack<T>::N;
    int64_t       row = (int64_t)blockIdx.x * (EMBED_THREADS / WARP) + threadIdx.x / WARP;
    if (row >= p.rows) return;
    int      lane = threadIdx.x % WARP;
    const T *w    = p.wte + p.tok[row] * p.ld_wte;
    const T *pos  = p.wpe ? p.wpe + k_position(p.pos0, p.one_pos, row, p.T_len) * p.ld_wpe : nullptr;
    for (int col = lane * N; col < p.cols; col += WARP * N) {
        int     n = p.cols - col;
        Pack<T> v = vec_load<T, AL>(w + col, n);
        if (pos) {
            float a[N], b[N];
            vec_unpack(v, a);
            vec_unpack(vec_load<T, AL>(pos + col, n), b);
#pragma unroll
            for (int i = 0; i < N; i++) a[i] = __fadd_rn(a[i], b[i]);
            v = vec_pack<T>(a);
        }
        vec_store<T, AL>(p.y + row * p.ld_y + col, v, n);
    }
}

extern "C" int cuda_embed_fwd(Dev *dev, const EmbedFwd *a)
{
    const char *op = "embed_fwd";
    TRY(k_need_dtype(op, a->tok, DT_I32));
    TRY(k_need_dtype(op, a->pos0, DT_I32));
    TRY(k_need_dtype(op, a->wte, a->y->dtype));
    TRY(k_need_dtype(op, a->wpe, a->y->dtype));
    int aligned = cuda_packable(a->y) && cuda_packable(a->wte) && cuda_packable(a->wpe);
    return k_dispatch_half(a->y->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        EmbedFwdP<T> p;
        p.y           = t_data<T>(a->y);
        p.tok         = t_data<int32_t>(a->tok);
        p.pos0        = t_data<int32_t>(a->pos0);
        p.wte         = t_data<T>(a->wte);
        p.wpe         = t_data<T>(a->wpe);
        p.ld_y        = t_ld(a->y);
        p.ld_wte      = t_ld(a->wte);
        p.ld_wpe      = t_ld(a->wpe);
        p.rows        = tensor_rows(a->y);
        p.one_pos     = !a->pos0 || tensor_numel(a->pos0) == 1;
        p.T_len       = (int)tensor_cols(a->tok);
        p.cols        = (int)tensor_cols(a->y);
        unsigned grid = (unsigned)ceil_div(p.rows, EMBED_THREADS / WARP);
        return k_flag(aligned, [&](auto al) {
            return k_launch(op, embed_fwd_kernel<T, decltype(al)::value>, dim3(grid), EMBED_THREADS, 0,
                            cuda_stream(dev), p);
        });
    });
}

/* ---- Token gradient ---------------------------------------------------------------------------------- */

/* The workspace: sort keys and row numbers, twice each, the heavy list's length, then the sort's own table.
 * The buffer the sorted keys are not in holds the heavy list. */
typedef struct {
    int32_t *key[2], *row[2];
    int32_t *n_heavy;
    void    *table;
    size_t   table_bytes;
} SortWs;

template <typename T> struct EmbedDwP {
    float         *dwte;
    const T       *dy;
    const int32_t *key, *row; /* sorted */
    int2          *heavy;     /* sorted positions [x, y) of each heavy token */
    int32_t       *n_heavy;
    int64_t        ld_dwte, ld_dy;
    int            rows, cols;
};

static __global__ void embed_init_kernel(const int32_t *tok, int32_t *key, int32_t *row, int32_t *n_heavy,
                                         int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) *n_heavy = 0;
    if (i >= n) return;
    key[i] = tok[i];
    row[i] = i;
}

/* A pack's worth of an f32 gradient. */
template <int N, bool AL> __device__ __forceinline__ void grad_load(const float *dst, int n, float *f)
{
#pragma unroll
    for (int i = 0; i < N; i++) f[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        Pack<float> v = vec_load<float, AL>(dst + i, n - i);
        vec_unpack(v, f + i);
    }
}
template <int N, bool AL> __device__ __forceinline__ void grad_store(float *dst, int n, const float *f)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) vec_store<float, AL>(dst + i, vec_pack<float>(f + i), n - i);
}

/* One past the last sorted position of tok, which is known to fill every position below lo. The whole warp
 * looks: 32 probes a round instead of one, because each round waits for memory. */
static __device__ int segment_end(const int32_t *key, int32_t tok, int lo, int hi)
{
    int lane = threadIdx.x % WARP;
    while (lo < hi) { /* the answer is in [lo, hi] */
        int step = (hi - lo + WARP - 1) / WARP;
        int at   = lo + lane * step;
        int n    = __popc(__ballot_sync(FULL_WARP, at < hi && key[at] == tok));
        if (n == 0) return lo;
        hi = MIN(lo + n * step, hi);
        lo = lo + (n - 1) * step + 1;
    }
    return lo;
}

/* Adds n_row rows of dy to row tok of dwte, in order. Lane l knows the row numbers at positions l and l + 32
 * of the warp's window; the rows begin at position `at`. A lane has NV packs of columns in hand at a time and
 * loads two rows before it adds the first: up to three kilobytes in flight a warp, and as much of dwte. */
template <typename T, bool AL, int NV>
__device__ __forceinline__ void light_add(const EmbedDwP<T> &p, int32_t tok, const int32_t (&row)[2], int at,
                                          int n_row)
{
    constexpr int N = Pack<T>::N, U = 2;
    int           lane = threadIdx.x % WARP;
    for (int base = 0; base < p.cols;
         base += WARP * N * NV) { /* every lane: the shuffles below need them all */
        float *dst = p.dwte + tok * p.ld_dwte + base + lane * N;
        int    n   = p.cols - base - lane * N; /* columns from this lane's first on */
        float  acc[NV][N];
#pragma unroll
        for (int v = 0; v < NV; v++) grad_load<N, AL>(dst + v * WARP * N, n - v * WARP * N, acc[v]);
        for (int j = 0; j < n_row; j += U) {
            Pack<T> in[U][NV];
#pragma unroll
            for (int u = 0; u < U; u++) {
                int     k    = at + j + u;
                int32_t low  = __shfl_sync(FULL_WARP, row[0], k % WARP),
                        high = __shfl_sync(FULL_WARP, row[1], k % WARP);
                int64_t r    = k < WARP ? low : high;
                bool    live = j + u < n_row;
#pragma unroll
                for (int v = 0; v < NV; v++) {
                    const T *src = p.dy + (live ? r : 0) * p.ld_dy + base + (lane + v * WARP) * N;
                    in[u][v]     = vec_load<T, AL>(src, live ? n - v * WARP * N : 0);
                }
            }
#pragma unroll
            for (int i = 0; i < U * NV; i++) {
                float f[N];
                vec_unpack(in[i / NV][i % NV], f);
#pragma unroll
                for (int k = 0; k < N; k++) acc[i % NV][k] = __fadd_rn(acc[i % NV][k], f[k]);
            }
        }
#pragma unroll
        for (int v = 0; v < NV; v++) grad_store<N, AL>(dst + v * WARP * N, n - v * WARP * N, acc[v]);
    }
}

/* A warp looks after LIGHT_POSITIONS sorted positions: the tokens that begin there are its own. */
template <typename T, bool AL, int NV>
__global__ void __launch_bounds__(EMBED_THREADS) embed_dw_light_kernel(EmbedDwP<T> p)
{
    int64_t warp = (int64_t)blockIdx.x * (EMBED_THREADS / WARP) + threadIdx.x / WARP;
    int     lane = threadIdx.x % WARP;
    if (warp * LIGHT_POSITIONS >= p.rows) return;
    int     first = (int)warp * LIGHT_POSITIONS;
    int32_t key[2], row[2]; /* of the window: positions first + lane and first + 32 + lane; -1 past the end */
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int at = first + k * WARP + lane;
        key[k] = at < p.rows ? p.key[at] : -1;
        row[k] = at < p.rows ? p.row[at] : 0;
    }
    int32_t  before = first + lane > 0 && first + lane < p.rows ? p.key[first + lane - 1] : -1;
    uint32_t starts = __ballot_sync(FULL_WARP, lane < LIGHT_POSITIONS && key[0] >= 0 && key[0] != before);
    for (; starts; starts &= starts - 1) {
        int     s   = __ffs((int)starts) - 1;
        int32_t tok = __shfl_sync(FULL_WARP, key[0], s);
        int     n_row =
            __popc(__ballot_sync(FULL_WARP, key[0] == tok)) + __popc(__ballot_sync(FULL_WARP, key[1] == tok));
        if (n_row <= LIGHT_ROWS) {
            light_add<T, AL, NV>(p, tok, row, s, n_row);
        } else {
            int end = first + s + n_row; /* goes on behind the window if it fills it */
            if (s + n_row == 2 * WARP) end = segment_end(p.key, tok, end, p.rows);
            if (lane == 0) p.heavy[atomicAdd(p.n_heavy, 1)] = make_int2(first + s, end);
        }
    }
}

/* Block: HEAVY_LANES packs of columns x HEAVY_SLOTS row slots. The numbers of the next rows are read while
 * this turn's rows are on their way: one wait a turn instead of two. */
template <typename T, bool AL>
__global__ void __launch_bounds__(HEAVY_THREADS, 2) embed_dw_heavy_kernel(EmbedDwP<T> p)
{
    constexpr int    N = Pack<T>::N, TILE = HEAVY_LANES * N, U = HEAVY_UNROLL;
    __shared__ float sums[HEAVY_SLOTS][TILE];
    int              lane = threadIdx.x % HEAVY_LANES, slot = threadIdx.x / HEAVY_LANES;
    int              col = blockIdx.x * TILE + lane * N, n = p.cols - col;
    int              n_heavy = *p.n_heavy;
    for (int h = blockIdx.y; h < n_heavy; h += gridDim.y) {
        int   first = p.heavy[h].x, end = p.heavy[h].y, row[U];
        float acc[N];
#pragma unroll
        for (int i = 0; i < N; i++) acc[i] = 0.0f;
#pragma unroll
        for (int u = 0; u < U; u++) {
            int k  = first + slot + u * HEAVY_SLOTS;
            row[u] = k < end ? p.row[k] : -1;
        }
        for (int at = first + slot; at < end; at += HEAVY_SLOTS * U) {
            Pack<T> v[U];
#pragma unroll
            for (int u = 0; u < U; u++)
                v[u] = vec_load<T, AL>(p.dy + row[u] * p.ld_dy + col, row[u] >= 0 ? n : 0);
#pragma unroll
            for (int u = 0; u < U; u++) {
                int k  = at + (u + U) * HEAVY_SLOTS;
                row[u] = k < end ? p.row[k] : -1;
            }
#pragma unroll
            for (int u = 0; u < U; u++) {
                float f[N];
                vec_unpack(v[u], f);
#pragma unroll
                for (int i = 0; i < N; i++) acc[i] = __fadd_rn(acc[i], f[i]);
            }
        }
        __syncthreads(); /* the previous token's sums have been read */
#pragma unroll
        for (int i = 0; i < N; i++) sums[slot][lane * N + i] = acc[i];
        __syncthreads();
        int c = threadIdx.x;
        if (c < TILE && blockIdx.x * TILE + c < p.cols) {
            float sum = sums[0][c];
#pragma unroll 8
            for (int s = 1; s < HEAVY_SLOTS; s++) sum = __fadd_rn(sum, sums[s][c]);
            float *dst = p.dwte + p.key[first] * p.ld_dwte + blockIdx.x * TILE + c;
            *dst       = __fadd_rn(*dst, sum);
        }
    }
}

/* Cuts the workspace and sorts row numbers by token; *sorted tells which of the two buffers holds the result.
 * Token -1 has more low bits set than any other: its rows come last. */
static int embed_sort(Dev *dev, const char *op, const Tensor *tok, const Tensor *ws, int64_t vocab, SortWs *w,
                      int *sorted)
{
    int64_t n      = tensor_numel(tok);
    size_t  stride = (size_t)ceil_div(n * 4, TENSOR_ALIGN) * TENSOR_ALIGN;
    if (n > INT32_MAX) return err_set("%s: %lld rows, at most 2^31 - 1", op, (long long)n);
    TRY(k_need_ws(op, ws, 4 * stride + TENSOR_ALIGN));
    char *base = t_data<char>(ws);
    for (int i = 0; i < 2; i++) {
        w->key[i] = (int32_t *)(base + stride * (size_t)i);
        w->row[i] = (int32_t *)(base + stride * (size_t)(2 + i));
    }
    w->n_heavy = (int32_t *)(base + 4 * stride);
    w->table   = base + 4 * stride + TENSOR_ALIGN;
    int bits   = 1;
    while (bits < 31 && (int64_t)1 << bits <= vocab) bits++;
    cub::DoubleBuffer<int32_t> key(w->key[0], w->key[1]), row(w->row[0], w->row[1]);
    cudaStream_t               stream = cuda_stream(dev);
    CUDA_TRY(cub::DeviceRadixSort::SortPairs(nullptr, w->table_bytes, key, row, (int)n, 0, bits, stream));
    TRY(k_need_ws(op, ws, 4 * stride + TENSOR_ALIGN + w->table_bytes));
    unsigned grid = (unsigned)ceil_div(n, EMBED_THREADS);
    TRY(k_launch(op, embed_init_kernel, dim3(grid), EMBED_THREADS, 0, stream, t_data<int32_t>(tok), w->key[0],
                 w->row[0], w->n_heavy, (int)n));
    CUDA_TRY(cub::DeviceRadixSort::SortPairs(w->table, w->table_bytes, key, row, (int)n, 0, bits, stream));
    /* Both buffers turn together: they are moved by the same passes. */
    *sorted = key.selector;
    return 0;
}

extern "C" int cuda_embed_dw(Dev *dev, const EmbedDw *a)
{
    const char *op = "embed_dw";
    SortWs      w;
    int         s = 0;
    TRY(k_need_dtype(op, a->tok, DT_I32));
    TRY(k_need_dtype(op, a->dwte, DT_F32));
    TRY(embed_sort(dev, op, a->tok, a->ws, tensor_rows(a->dwte), &w, &s));
    int aligned = cuda_packable(a->dy) && cuda_packable(a->dwte);
    return k_dispatch_half(a->dy->dtype, op, [&](auto zero) {
        using T = decltype(zero);
        EmbedDwP<T> p;
        p.dwte    = t_data<float>(a->dwte);
        p.dy      = t_data<T>(a->dy);
        p.key     = w.key[s];
        p.row     = w.row[s];
        p.heavy   = (int2 *)w.key[1 - s];
        p.n_heavy = w.n_heavy;
        p.ld_dwte = t_ld(a->dwte);
        p.ld_dy   = t_ld(a->dy);
        p.rows    = (int)tensor_rows(a->dy);
        p.cols    = (int)tensor_cols(a->dy);
        /* Packs of columns a lane has at once: as even a cut of the row as there is. */
        int64_t tiles = ceil_div(p.cols, WARP * Pack<T>::N);
        int     nv    = (int)ceil_div(tiles, ceil_div(tiles, LIGHT_MAX_NV));
        return k_flag(aligned, [&](auto is_al) {
            constexpr bool AL   = decltype(is_al)::value;
            unsigned       grid = (unsigned)ceil_div(p.rows, LIGHT_POSITIONS * (EMBED_THREADS / WARP));
            TRY(k_count(nv, [&](auto count) {
                return k_launch(op, embed_dw_light_kernel<T, AL, decltype(count)::value>, dim3(grid),
                                EMBED_THREADS, 0, cuda_stream(dev), p);
            }));
            /* Two blocks fill a multiprocessor; more tokens than that are taken in turns. */
            int64_t tile = ceil_div(p.cols, HEAVY_LANES * Pack<T>::N), most = p.rows / (LIGHT_ROWS + 1);
            int64_t turns = MIN(MAX((int64_t)cuda_sm_count(dev) * 2 / tile, (int64_t)1), most);
            if (turns == 0) return 0;
            dim3 heavy((unsigned)tile, (unsigned)turns);
            return k_launch(op, embed_dw_heavy_kernel<T, AL>, heavy, HEAVY_THREADS, 0, cuda_stream(dev), p);
        });
    });
}

/* ---- Rows by number ---------------------------------------------------------------------------------- */

/* First sorted position whose token is not below tok; -1 counts as the largest. */
static __device__ int sorted_first(const int32_t *key, uint32_t tok, int n)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if ((uint32_t)key[mid] < tok) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* A warp a row of dx: rows of dy are added in order, in f32. */
template <typename T, bool AL>
__global__ void __launch_bounds__(EMBED_THREADS)
    rows_dx_kernel(T *dx, int64_t ld_dx, int64_t M, EmbedDwP<T> p)
{
    constexpr int N = Pack<T>::N;
    int64_t       m = (int64_t)blockIdx.x * (EMBED_THREADS / WARP) + threadIdx.x / WARP;
    if (m >= M) return;
    int first = sorted_first(p.key, (uint32_t)m, p.rows), end = sorted_first(p.key, (uint32_t)m + 1, p.rows);
    for (int col = (int)(threadIdx.x % WARP) * N; col < p.cols; col += WARP * N) {
        int   n      = p.cols - col;
        float acc[N] = {};
#pragma unroll 2
        for (int k = first; k < end; k++) {
            float f[N];
            vec_unpack(vec_load<T, AL>(p.dy + p.row[k] * p.ld_dy + col, n), f);
#pragma unroll
            for (int i = 0; i < N; i++) acc[i] = __fadd_rn(acc[i], f[i]);
        }
        vec_store<T, AL>(dx + m * ld_dx + col, vec_pack<T>(acc), n);
    }
}

extern "C" int cuda_rows_dx(Dev *dev, const RowsDx *a)
{
    const char *op = "rows_dx";
    SortWs      w;
    int         s = 0;
    int64_t     M = tensor_rows(a->dx);
    TRY(k_need_dtype(op, a->index, DT_I32));
    TRY(k_need_dtype(op, a->dx, a->dy->dtype));
    TRY(embed_sort(dev, op, a->index, a->ws, M, &w, &s));
    int aligned = cuda_packable(a->dy) && cuda_packable(a->dx);
    return k_dispatch_half(a->dy->dtype, op, [&](auto zero) {
        using T       = decltype(zero);
        EmbedDwP<T> p = {};
        p.dy          = t_data<T>(a->dy);
        p.key         = w.key[s];
        p.row         = w.row[s];
        p.ld_dy       = t_ld(a->dy);
        p.rows        = (int)tensor_rows(a->dy);
        p.cols        = (int)tensor_cols(a->dy);
        unsigned grid = (unsigned)ceil_div(M, EMBED_THREADS / WARP);
        return k_flag(aligned, [&](auto al) {
            return k_launch(op, rows_dx_kernel<T, decltype(al)::value>, dim3(grid), EMBED_THREADS, 0,
                            cuda_stream(dev), t_data<T>(a->dx), t_ld(a->dx), M, p);
        });
    });
}

/* ---- Position gradient ------------------------------------------------------------------------------- */

template <typename T, bool AL>
__global__ void __launch_bounds__(EMBED_THREADS)
    pos_dw_kernel(float *dwpe, const T *dy, int64_t ld_dwpe, int64_t ld_dy, int batch, int T_len, int cols)
{
    constexpr int N    = Pack<T>::N;
    int           pack = (int)ceil_div(cols, N);
    int64_t       i    = (int64_t)blockIdx.x * EMBED_THREADS + threadIdx.x;
    if (i >= (int64_t)T_len * pack) return;
    int64_t t   = i / pack;
    int     col = (int)(i - t * pack) * N, n = cols - col;
    float   acc[N];
    grad_load<N, AL>(dwpe + t * ld_dwpe + col, n, acc);
#pragma unroll 4
    for (int b = 0; b < batch; b++) {
        float f[N];
        vec_unpack(vec_load<T, AL>(dy + ((int64_t)b * T_len + t) * ld_dy + col, n), f);
#pragma unroll
        for (int k = 0; k < N; k++) acc[k] = __fadd_rn(acc[k], f[k]);
    }
    grad_store<N, AL>(dwpe + t * ld_dwpe + col, n, acc);
}

extern "C" int cuda_pos_dw(Dev *dev, const PosDw *a)
{
    const char *op = "pos_dw";
    TRY(k_need_dtype(op, a->dwpe, DT_F32));
    int64_t rows = tensor_rows(a->dy), cols = tensor_cols(a->dy);
    int64_t T_len   = a->dy->ndim == 3 ? a->dy->dim[1] : tensor_rows(a->dwpe);
    int     aligned = cuda_packable(a->dy) && cuda_packable(a->dwpe);
    return k_dispatch_half(a->dy->dtype, op, [&](auto zero) {
        using T       = decltype(zero);
        unsigned grid = (unsigned)ceil_div(T_len * ceil_div(cols, Pack<T>::N), EMBED_THREADS);
        return k_flag(aligned, [&](auto al) {
            return k_launch(op, pos_dw_kernel<T, decltype(al)::value>, dim3(grid), EMBED_THREADS, 0,
                            cuda_stream(dev), t_data<float>(a->dwpe), t_data<T>(a->dy), t_ld(a->dwpe),
                            t_ld(a->dy), (int)(rows / T_len), (int)T_len, (int)cols);
        });
    });
}
