/* Attention of new tokens to the key/value caches. The new tokens are appended to the caches.
 *
 *     o[b,h] = softmax(scale q[b,h] . k[b,0..n]) v[b,0..n],  n = len[b] (len[0] where all have one length)
 * With a window the keys begin at n + 1 - window instead of 0.
 *
 * This kernel serves one new token a sequence. Several tokens (a prompt) are appended here; then the kernel
 * of k_attn.cu runs.
 *
 * Layout: qkv[B,(H+2K)*D]; caches [B,Tmax,K,D].
 * Grid: (b * key head, part of the keys, GROUP query heads of those that share the key head). The number of
 *     parts follows from shapes; which keys are a part's, from n. The first part of the first query heads
 *     writes the cache; every block takes the new row from qkv, so no block waits for another.
 * Block: 4 warps; LANES lanes take a key, each C packs of 16 bytes of its row, so that a cache line is read
 *     by neighbours. Each such team runs an online softmax of its own for all GROUP heads. Teams are merged
 *     in shared memory, parts by a second kernel, both in a fixed order.
 * Bytes: the caches once (once for every GROUP query heads of a key head, the others from L2). */
#include "dev/cuda/cuda_attn.h"

#include "dev/cuda/k_common.cuh"
#include "dev/op_scratch.h"

enum { WARPS = 4, THREADS = 32 * WARPS, STEP = 2, PART_KEYS = 64 };

struct DecodeArgs {
    int        B, T, H, K, D, max_len; /* T new tokens */
    int64_t    ld_qkv, ld_o;
    int64_t    cache_batch, cache_row; /* elements between sequences and between positions */
    float      scale;
    const int *len;
    int        one_len, n_part, window;
    float     *part_sum; /* [B*H][n_part][D], then part_top [B*H][n_part][2]: maximum and sum of weights */
    float     *part_top;
};

__device__ __forceinline__ int cache_len(const DecodeArgs &a, int b) { return a.len[a.one_len ? 0 : b]; }

/* ---- one token ----------------------------------------------------------------------------------------- */

/* C packs of a row of D elements, as f32; pack c of lane l begins at element (c*LANES + l) * N. AL: rows are
 * aligned to packs. */
template <typename T, int LANES, int C, bool AL>
__device__ __forceinline__ void row_load(float (&x)[C * Pack<T>::N], const T *row, int D)
{
    constexpr int N = Pack<T>::N;
#pragma unroll
    for (int c = 0; c < C; c++) {
        int at = (c * LANES + (int)threadIdx.x % LANES) * N;
        if (AL) {
            Pack<T> p = pack_load(row + (at < D ? at : 0));
#pragma unroll
            for (int e = 0; e < N; e++) x[c * N + e] = at < D ? to_f32(p.v[e]) : 0.0f;
        } else {
#pragma unroll
            for (int e = 0; e < N; e++) x[c * N + e] = at + e < D ? to_f32(row[at + e]) : 0.0f;
        }
    }
}

/* What a team has of one query head: the maximum, the sum of weights, and weighted values. */
template <int E> struct Online {
    float m, l, acc[E];
};

/* STEP keys more; s: their scores, -inf for those that are not there; x: their values. */
template <int E>
__device__ __forceinline__ void online_add(Online<E> &a, const float (&s)[STEP], const float (&x)[STEP][E])
{
    float top = a.m;
#pragma unroll
    for (int u = 0; u < STEP; u++) top = fmaxf(top, s[u]);
    /* A team that has seen no key yet keeps m = -inf; subtracting 0 instead leaves exp(-inf) = 0. */
    float base = top == -INFINITY ? 0.0f : top, keep = expf(a.m - base);
    a.m = top;
    a.l *= keep;
#pragma unroll
    for (int e = 0; e < E; e++) a.acc[e] *= keep;
#pragma unroll
    for (int u = 0; u < STEP; u++) {
        float p = expf(s[u] - base);
        a.l += p;
#pragma unroll
        for (int e = 0; e < E; e++) a.acc[e] = fmaf(p, x[u][e], a.acc[e]);
    }
}

/* The keys [j0, j1) for all heads of the block. */
template <typename T, int LANES, int C, int GROUP, bool AL>
__device__ __forceinline__ void team_run(const DecodeArgs &a, Online<C * Pack<T>::N> (&on)[GROUP],
                                         const float (&q)[GROUP][C * Pack<T>::N], const T *const (&old)[2],
                                         const T *const (&fresh)[2], int n, int j0, int j1)
{
    constexpr int E = C * Pack<T>::N, TEAMS = THREADS / LANES;
    for (int all = j0; all < j1; all += TEAMS * STEP) { /* the same number of times for all lanes of a warp */
        int   j = all + (int)threadIdx.x / LANES;
        float x[STEP][E], s[GROUP][STEP];
#pragma unroll
        for (int u = 0; u < STEP; u++) {
            int at = min(j + u * TEAMS, n);
            row_load<T, LANES, C, AL>(x[u], at < n ? old[0] + at * a.cache_row : fresh[0], a.D);
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
#pragma unroll
            for (int u = 0; u < STEP; u++) {
                float dot = 0.0f;
#pragma unroll
                for (int e = 0; e < E; e++) dot = fmaf(q[g][e], x[u][e], dot);
#pragma unroll
                for (int d = LANES / 2; d > 0; d /= 2) dot += __shfl_xor_sync(0xffffffffu, dot, d);
                s[g][u] = j + u * TEAMS < j1 ? dot : -INFINITY;
            }
        }
#pragma unroll
        for (int u = 0; u < STEP; u++) {
            int at = min(j + u * TEAMS, n);
            row_load<T, LANES, C, AL>(x[u], at < n ? old[1] + at * a.cache_row : fresh[1], a.D);
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) online_add(on[g], s[g], x);
    }
}

/* In shared memory, where teams meet. */
template <typename T, int LANES, int C, int GROUP> struct Merge {
    static constexpr int TEAMS = THREADS / LANES, WIDE = LANES * C * Pack<T>::N;
    float                acc[GROUP][TEAMS][WIDE], top[GROUP][TEAMS], sum[GROUP][TEAMS];
};

/* The teams' sums of each head, merged; into o, or as a part. */
template <typename T, int LANES, int C, int GROUP>
__device__ __forceinline__ void teams_merge(const DecodeArgs &a, const Online<C * Pack<T>::N> (&on)[GROUP],
                                            T *o, int b, int h0, int n_head)
{
    using M                    = Merge<T, LANES, C, GROUP>;
    constexpr int            N = Pack<T>::N;
    extern __shared__ float4 smem4[];
    M                       &all  = *reinterpret_cast<M *>(smem4);
    int                      team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (lane == 0) {
            all.top[g][team] = on[g].m;
            all.sum[g][team] = on[g].l;
        }
#pragma unroll
        for (int c = 0; c < C; c++) {
#pragma unroll
            for (int e = 0; e < N; e++) all.acc[g][team][(c * LANES + lane) * N + e] = on[g].acc[c * N + e];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_head * a.D; i += THREADS) {
        int   g = i / a.D, col = i % a.D;
        float most = -INFINITY, total = 0.0f, value = 0.0f;
        for (int t = 0; t < M::TEAMS; t++) most = fmaxf(most, all.top[g][t]);
        float base = most == -INFINITY ? 0.0f : most; /* a part may have no keys */
        for (int t = 0; t < M::TEAMS; t++) {
            float weight = expf(all.top[g][t] - base);
            value        = fmaf(all.acc[g][t][col], weight, value);
            total        = fmaf(all.sum[g][t], weight, total);
        }
        if (a.n_part == 1) {
            o[b * a.ld_o + (int64_t)(h0 + g) * a.D + col] = from_f32<T>(value / total);
            continue;
        }
        int64_t at                 = ((int64_t)b * a.H + h0 + g) * a.n_part + blockIdx.y;
        a.part_sum[at * a.D + col] = value;
        if (col == 0) {
            a.part_top[2 * at]     = most;
            a.part_top[2 * at + 1] = total;
        }
    }
}

template <typename T, int LANES, int C, int GROUP, bool AL>
__global__ void __launch_bounds__(THREADS)
    decode_kernel(T *o, T *kcache, T *vcache, const T *qkv, const DecodeArgs a)
{
    constexpr int E = C * Pack<T>::N;
    int           b = blockIdx.x / a.K, kv = blockIdx.x % a.K, share = a.H / a.K;
    int           h0 = kv * share + (int)blockIdx.z * GROUP, n_head = min(GROUP, (kv + 1) * share - h0);
    int           n  = min(max(cache_len(a, b), 0), a.max_len - 1);
    int           lo = a.window > 0 ? max(n + 1 - a.window, 0) : 0;
    int      keys = ((n - lo + a.n_part) / a.n_part + PART_KEYS - 1) / PART_KEYS * PART_KEYS; /* of a part */
    int      j0 = lo + (int)blockIdx.y * keys, j1 = min(j0 + keys, n + 1);
    const T *row      = qkv + b * a.ld_qkv;
    const T *fresh[2] = { row + (int64_t)(a.H + kv) * a.D, row + (int64_t)(a.H + a.K + kv) * a.D };
    int64_t  at       = b * a.cache_batch + (int64_t)kv * a.D;
    const T *old[2]   = { kcache + at, vcache + at };
    if (blockIdx.y == 0 && blockIdx.z == 0) {
        for (int c = threadIdx.x; c < a.D; c += THREADS) {
            kcache[at + n * a.cache_row + c] = fresh[0][c];
            vcache[at + n * a.cache_row + c] = fresh[1][c];
        }
    }
    float     q[GROUP][E];
    Online<E> on[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        row_load<T, LANES, C, AL>(q[g], row + (int64_t)min(h0 + g, a.H - 1) * a.D, a.D);
        on[g].m = -INFINITY;
        on[g].l = 0.0f;
#pragma unroll
        for (int e = 0; e < E; e++) {
            q[g][e] *= a.scale;
            on[g].acc[e] = 0.0f;
        }
    }
    if (j0 < j1) team_run<T, LANES, C, GROUP, AL>(a, on, q, old, fresh, n, j0, j1);
    teams_merge<T, LANES, C, GROUP>(a, on, o, b, h0, n_head);
}

/* The parts of one query head, in order. */
template <typename T> __global__ void __launch_bounds__(THREADS) decode_merge_kernel(T *o, const DecodeArgs a)
{
    int          b = blockIdx.x / a.H, h = blockIdx.x % a.H;
    const float *top  = a.part_top + (int64_t)blockIdx.x * a.n_part * 2;
    const float *sum  = a.part_sum + (int64_t)blockIdx.x * a.n_part * a.D;
    float        most = -INFINITY, total = 0.0f;
    for (int p = 0; p < a.n_part; p++) most = fmaxf(most, top[2 * p]); /* part 0 has a key */
    for (int p = 0; p < a.n_part; p++) total = fmaf(top[2 * p + 1], expf(top[2 * p] - most), total);
    for (int c = threadIdx.x; c < a.D; c += THREADS) {
        float value = 0.0f;
        for (int p = 0; p < a.n_part; p++) value = fmaf(sum[p * a.D + c], expf(top[2 * p] - most), value);
        o[b * a.ld_o + (int64_t)h * a.D + c] = from_f32<T>(value / total);
    }
}

/* ---- several tokens ------------------------------------------------------------------------------------ */

/* Keys and values of new tokens into the caches: a block a token. */
template <typename T> __global__ void append_kernel(T *kcache, T *vcache, const T *qkv, const DecodeArgs a)
{
    int b = blockIdx.x / a.T, n = cache_len(a, b) + (int)(blockIdx.x % a.T), wide = a.K * a.D;
    if (n < 0 || n >= a.max_len) return;
    const T *k  = qkv + (int64_t)blockIdx.x * a.ld_qkv + (int64_t)a.H * a.D;
    int64_t  at = b * a.cache_batch + n * a.cache_row;
    for (int c = threadIdx.x; c < wide; c += THREADS) {
        kcache[at + c] = k[c];
        vcache[at + c] = k[wide + c];
    }
}

/* ---- launching ----------------------------------------------------------------------------------------- */

template <typename T, int LANES, int C, int GROUP>
static int decode_run(Dev *dev, const AttnDecode *x, const DecodeArgs &a, int aligned)
{
    dim3     grid((unsigned)(a.B * a.K), (unsigned)a.n_part, (unsigned)((a.H / a.K + GROUP - 1) / GROUP));
    size_t   smem = sizeof(Merge<T, LANES, C, GROUP>);
    T       *o = (T *)x->o->data, *k = (T *)x->kcache->data, *v = (T *)x->vcache->data;
    const T *qkv = (const T *)x->qkv->data;
    TRY(k_flag(aligned, [&](auto al) {
        return k_launch("attn_decode", decode_kernel<T, LANES, C, GROUP, decltype(al)::value>, grid, THREADS,
                        smem, cuda_stream(dev), o, k, v, qkv, a);
    }));
    if (a.n_part == 1) return 0;
    return k_launch("attn_decode", decode_merge_kernel<T>, dim3((unsigned)(a.B * a.H)), THREADS, 0,
                    cuda_stream(dev), o, a);
}

template <typename T, int LANES, int C>
static int decode_group(Dev *dev, const AttnDecode *x, const DecodeArgs &a, int aligned)
{
    if (a.H == a.K) return decode_run<T, LANES, C, 1>(dev, x, a, aligned);
    return decode_run<T, LANES, C, 4>(dev, x, a, aligned);
}

/* As many parts as fill the multiprocessors once: registers leave room for two thread blocks of four query
 * heads on each, or six of one. Not more than there are keys for. */
static int parts_of(Dev *dev, const DecodeArgs &a, const Tensor *ws)
{
    int64_t blocks = (int64_t)a.B * a.K, most = (a.max_len + PART_KEYS - 1) / PART_KEYS;
    int64_t room_for = (int64_t)cuda_sm_count(dev) * (a.H == a.K ? 6 : 2);
    int64_t n        = MIN(MIN((room_for + blocks - 1) / blocks, most), (int64_t)ATTN_DECODE_PARTS);
    int64_t room     = ws ? (int64_t)tensor_bytes(ws) / ((int64_t)a.B * a.H * (a.D + 2) * 4) : 0;
    return (int)MAX(MIN(n, room), 1);
}

static int check_types(const AttnDecode *a)
{
    DType dtype = a->qkv->dtype;
    if (a->o->dtype != dtype || a->kcache->dtype != dtype || a->vcache->dtype != dtype) {
        return err_set("attn_decode: qkv, o and the caches differ in dtype");
    }
    if (a->shape.head_dim > 256)
        return err_set("attn_decode: head size %d is not in 1..256", a->shape.head_dim);
    return 0;
}

static DecodeArgs args_of(const AttnDecode *x)
{
    DecodeArgs a  = {};
    a.B           = (int)x->kcache->dim[0];
    a.T           = (int)(tensor_rows(x->qkv) / a.B);
    a.H           = x->shape.heads;
    a.K           = x->shape.kv_heads;
    a.D           = x->shape.head_dim;
    a.max_len     = (int)x->kcache->dim[1];
    a.ld_qkv      = tensor_ld(x->qkv);
    a.ld_o        = tensor_ld(x->o);
    a.cache_row   = (int64_t)a.K * a.D;
    a.cache_batch = a.cache_row * a.max_len;
    a.scale       = x->shape.scale;
    a.len         = (const int *)x->len->data;
    a.one_len     = tensor_numel(x->len) == 1;
    a.window      = x->shape.window;
    return a;
}

int cuda_attn_decode(Dev *dev, const AttnDecode *x)
{
    TRY(check_types(x));
    DecodeArgs a = args_of(x);
    if (a.T > 1) {
        TRY(cuda_dispatch(x->qkv->dtype, "attn_decode", [&](auto zero) {
            using T = decltype(zero);
            return k_launch("attn_decode", append_kernel<T>, dim3((unsigned)(a.B * a.T)), THREADS, 0,
                            cuda_stream(dev), (T *)x->kcache->data, (T *)x->vcache->data,
                            (const T *)x->qkv->data, a);
        }));
        return cuda_flash_decode(dev, x);
    }
    a.n_part = parts_of(dev, a, x->ws);
    if (x->ws) a.part_sum = (float *)x->ws->data;
    if (x->ws) a.part_top = a.part_sum + (int64_t)a.B * a.H * a.n_part * a.D;
    int aligned = cuda_packable(x->qkv) && (size_t)a.D * dtype_bytes(x->qkv->dtype) % 16 == 0 &&
                  (uintptr_t)x->kcache->data % 16 == 0 && (uintptr_t)x->vcache->data % 16 == 0;
    return cuda_dispatch(x->qkv->dtype, "attn_decode", [&](auto zero) {
        using T         = decltype(zero);
        constexpr int N = Pack<T>::N;
        if (a.D <= 8 * N) return decode_group<T, 8, 1>(dev, x, a, aligned);
        if (a.D <= 16 * N) return decode_group<T, 8, 2>(dev, x, a, aligned);
        if (a.D <= 32 * N) return decode_group<T, 16, 2>(dev, x, a, aligned);
        return decode_group<T, 32, 2>(dev, x, a, aligned);
    });
}
