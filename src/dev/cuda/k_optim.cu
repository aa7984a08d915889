/* Optimizer: SUMSQ, CLIP, ADAMW.
 *
 * Maths    SUMSQ  state.out.grad_sumsq += sum x^2;  CLIP and ADAMW as in op.h.
 * Layout   flat ranges. The segment table is sorted; an element in no segment is padding: its weights stay,
 *          its gradient becomes 0.
 * Order    SUMSQ: a pack's squares are added in f32, packs in double; thread, warp, block and finally the
 *          blocks' sums are added in an order that follows from the length alone.
 * Grid     SUMSQ at most SUMSQ_BLOCKS blocks, a contiguous range each, then one block over their sums. ADAMW
 *          a block a chunk of ADAM_CHUNK elements; the chunk's first segment is found once by bisection, from
 *          there threads walk forward. CLIP one thread.
 * Bytes    SUMSQ size an element; ADAMW 32 an element, 34 with a narrow copy, 20 with bf16 weights and
 *          moments: two elements share a draw of Philox. */
#include "dev/cuda/k_common.cuh"
#include "dev/op_math.h"
#include "dev/op_scratch.h"

enum { SUMSQ_THREADS = 256, SUMSQ_UNROLL = 4 };
enum { ADAM_THREADS = 256, ADAM_TURNS = 8, ADAM_CHUNK = ADAM_THREADS * ADAM_TURNS * 4 };

/* Updates before a spike can be told from the fall of the first steps, and the weight of one loss in the
 * running mean. */
enum { SPIKE_AFTER = 20 };
#define EMA_WEIGHT 0.05

/* ---- Sum of squares ---------------------------------------------------------------------------------- */

/* Block b sums packs [b*block_pack, (b+1)*block_pack). */
template <typename T, bool AL>
__global__ void __launch_bounds__(SUMSQ_THREADS)
    sumsq_kernel(double *part, const T *x, int64_t n, int64_t block_pack)
{
    constexpr int     N = Pack<T>::N;
    __shared__ double slot[SUMSQ_THREADS / WARP];
    int64_t n_pack = ceil_div(n, N), begin = blockIdx.x * block_pack, end = MIN(begin + block_pack, n_pack);
    double  sum = 0.0;
    for (int64_t k = begin + threadIdx.x; k < end; k += SUMSQ_THREADS * SUMSQ_UNROLL) {
        Pack<T> v[SUMSQ_UNROLL];
#pragma unroll
        for (int u = 0; u < SUMSQ_UNROLL; u++) {
            int64_t at = k + u * SUMSQ_THREADS;
            v[u]       = vec_load<T, AL>(x + at * N, at < end ? n - at * N : 0);
        }
#pragma unroll
        for (int u = 0; u < SUMSQ_UNROLL; u++) {
            float f[N], s = 0.0f;
            vec_unpack(v[u], f);
#pragma unroll
            for (int i = 0; i < N; i++) s = fmaf(f[i], f[i], s);
            sum += (double)s;
        }
    }
    sum = block_sum(sum, slot);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(SUMSQ_THREADS)
    sumsq_finish(StepState *state, const double *part, int n)
{
    __shared__ double slot[SUMSQ_THREADS / WARP];
    double            sum = 0.0;
    for (int i = threadIdx.x; i < n; i += SUMSQ_THREADS) sum += part[i];
    sum = block_sum(sum, slot);
    if (threadIdx.x == 0) state->out.grad_sumsq += sum;
}

extern "C" int cuda_sumsq(Dev *dev, const Sumsq *a)
{
    const char *op = "sumsq";
    CHECK(tensor_is_contiguous(a->x), "sum of squares of the view %s", a->x->name);
    return k_dispatch(a->x->dtype, op, [&](auto zero) {
        using T   = decltype(zero);
        int64_t n = tensor_numel(a->x), n_pack = ceil_div(n, Pack<T>::N);
        int64_t turn       = SUMSQ_THREADS * SUMSQ_UNROLL;
        int64_t block_pack = ceil_div(ceil_div(n_pack, SUMSQ_BLOCKS), turn) * turn;
        int     grid       = (int)ceil_div(n_pack, block_pack);
        TRY(k_need_ws(op, a->ws, (size_t)grid * sizeof(double)));
        double *part = t_data<double>(a->ws);
        int     al   = (uintptr_t)a->x->data % 16 == 0 && n % Pack<T>::N == 0;
        TRY(k_flag(al, [&](auto is_al) {
            auto kernel = sumsq_kernel<T, decltype(is_al)::value>;
            return k_launch(op, kernel, dim3((unsigned)grid), SUMSQ_THREADS, 0, cuda_stream(dev), part,
                            t_data<T>(a->x), n, block_pack);
        }));
        return k_launch(op, sumsq_finish, dim3(1), SUMSQ_THREADS, 0, cuda_stream(dev),
                        t_data<StepState>(a->state), part, grid);
    });
}

/* ---- The decision about a step ----------------------------------------------------------------------- */

static __global__ void clip_kernel(StepState *state, double max_norm, double beta1, double beta2,
                                   double spike_factor, int scale_every)
{
    const StepIn *in    = &state->in;
    StepOut      *out   = &state->out;
    double        scale = (double)step_loss_scale(state);
    double        loss = 0.0, norm = sqrt(out->grad_sumsq) / scale;
    for (int k = 0; k < LOSS_SLOTS; k++) {
        double part = out->sum[k] * (double)in->inv[k];
        if (!(in->measures >> k & 1)) loss += part;
        out->report[k] += part;
        out->sum[k] = 0.0;
    }
    out->n_report += 1;
    out->loss       = (float)loss;
    out->grad_norm  = (float)norm;
    out->grad_sumsq = 0.0;
    out->skip       = SKIP_NONE;
    if (out->stop) {
        out->skip = SKIP_HALTED;
        out->clip = 0.0f;
        return;
    }
    if (isfinite(loss) && step_overflow(out, isfinite(norm), scale_every)) return;
    if (spike_factor > 0.0 && out->n_update >= SPIKE_AFTER && loss > spike_factor * out->loss_ema) {
        out->skip = SKIP_SPIKE;
    }
    if (!isfinite(norm) || !isfinite(loss)) out->skip = SKIP_NOT_FINITE;
    if (out->skip) {
        out->n_skipped += 1;
        out->n_skip_row += 1;
        out->clip = 0.0f;
        return;
    }
    out->n_skip_row = 0;
    out->n_update += 1;
    double factor = max_norm > 0.0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1.0;
    out->clip     = (float)(factor / scale);
    out->bias1    = (float)(1.0 / (1.0 - pow(beta1, (double)out->n_update)));
    out->bias2    = (float)(1.0 / (1.0 - pow(beta2, (double)out->n_update)));
    out->loss_ema = out->n_update == 1 ? loss : (1.0 - EMA_WEIGHT) * out->loss_ema + EMA_WEIGHT * loss;
    step_grow_scale(out, scale_every);
}

extern "C" int cuda_clip(Dev *dev, const Clip *a)
{
    return k_launch("clip", clip_kernel, dim3(1), 1, 0, cuda_stream(dev), t_data<StepState>(a->state),
                    (double)a->max_norm, (double)a->beta1, (double)a->beta2, (double)a->spike_factor,
                    a->scale_every);
}

static __global__ void halt_kernel(StepState *state, int slot, double limit)
{
    if (state->out.sum[slot] * (double)state->in.inv[slot] > limit) state->out.stop = 1;
}

extern "C" int cuda_halt(Dev *dev, const Halt *a)
{
    return k_launch("halt", halt_kernel, dim3(1), 1, 0, cuda_stream(dev), t_data<StepState>(a->state),
                    a->slot, (double)a->limit);
}

/* ---- AdamW ------------------------------------------------------------------------------------------- */

struct AdamP {
    void            *w, *m, *v; /* of types W, M and M */
    float           *g;
    void            *copy; /* of type C, or NULL */
    const StepState *state;
    const Segment   *seg;
    int64_t          n;
    int              n_seg;
    uint32_t         site;
    float            beta1, beta2, eps;
};

/* What one element of the update needs from the step's state. */
struct AdamStep {
    float lr, bias1, bias2, clip;
};

__device__ __forceinline__ void adam_element(const AdamP &p, const AdamStep &s, float decay, float lr_mul,
                                             float g, float &w, float &m, float &v)
{
    g = __fmul_rn(g, s.clip);
    m = fmaf(p.beta1, m, __fmul_rn(1.0f - p.beta1, g));
    v = fmaf(p.beta2, v, __fmul_rn(1.0f - p.beta2, __fmul_rn(g, g)));

    float step = __fmul_rn(m, s.bias1) / (sqrtf(__fmul_rn(v, s.bias2)) + p.eps);
    w          = fmaf(-__fmul_rn(s.lr, lr_mul), fmaf(decay, w, step), w);
}

/* First segment that ends after element i. */
__device__ __forceinline__ int segment_find(const Segment *seg, int n_seg, int64_t i)
{
    int lo = 0, hi = n_seg;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (seg[mid].end > i) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return lo;
}

/* Stored as they are, or in bf16 with a draw. */
__device__ __forceinline__ void adam_put(float *p, float x, uint32_t) { *p = x; }
__device__ __forceinline__ void adam_put(bf16 *p, float x, uint32_t draw)
{
    *reinterpret_cast<uint16_t *>(p) = adam_round(x, draw);
}

template <typename W, typename M> __device__ __forceinline__ AdamDraw adam_draw_at(const AdamP &p, int64_t i)
{
    if (sizeof(W) == 4 && sizeof(M) == 4) return AdamDraw{ 0, 0, 0 };
    return adam_draw(p.state->in.seed, p.site, p.state->out.n_update, i);
}

/* Elements one by one, each in its own segment: a pack that a segment's edge cuts, or the end of the
 * range. */
template <typename W, typename M, typename C>
static __device__ void adam_edge(const AdamP &p, const AdamStep &s, int k, int64_t begin, int64_t end)
{
    W *pw = (W *)p.w;
    M *pm = (M *)p.m, *pv = (M *)p.v;
    for (int64_t i = begin; i < end; i++) {
        while (k < p.n_seg && p.seg[k].end <= i) k++;
        if (k < p.n_seg && p.seg[k].begin <= i) {
            AdamDraw d = adam_draw_at<W, M>(p, i);
            float    w = to_f32(pw[i]), m = to_f32(pm[i]), v = to_f32(pv[i]);
            adam_element(p, s, p.seg[k].decay, p.seg[k].lr_mul, p.g[i], w, m, v);
            adam_put(pw + i, w, d.w);
            adam_put(pm + i, m, d.m);
            adam_put(pv + i, v, d.v);
            if (p.copy) ((C *)p.copy)[i] = from_f32<C>(w);
        }
        p.g[i] = 0.0f;
    }
}

__device__ __forceinline__ uint2 adam_copy(const float *w, bf16)
{
    __nv_bfloat162 c[2] = { __floats2bfloat162_rn(w[0], w[1]), __floats2bfloat162_rn(w[2], w[3]) };
    return *reinterpret_cast<const uint2 *>(c);
}
__device__ __forceinline__ uint2 adam_copy(const float *w, __half)
{
    __half2 c[2] = { __floats2half2_rn(w[0], w[1]), __floats2half2_rn(w[2], w[3]) };
    return *reinterpret_cast<const uint2 *>(c);
}

/* Four numbers at once. */
__device__ __forceinline__ void adam_load(const float *p, float *f)
{
    vec_unpack(vec_load<float, true>(p, 4), f);
}
__device__ __forceinline__ void adam_load(const bf16 *p, float *f)
{
    uint2 w = *reinterpret_cast<const uint2 *>(p);
    f[0]    = __uint_as_float(w.x << 16);
    f[1]    = __uint_as_float(w.x & 0xffff0000u);
    f[2]    = __uint_as_float(w.y << 16);
    f[3]    = __uint_as_float(w.y & 0xffff0000u);
}
__device__ __forceinline__ void adam_store(float *p, const float *f, const uint32_t *)
{
    pack_store(p, vec_pack<float>(f));
}
__device__ __forceinline__ void adam_store(bf16 *p, const float *f, const uint32_t *draw)
{
    uint2 w                       = { adam_round(f[0], draw[0]) | (uint32_t)adam_round(f[1], draw[1]) << 16,
                                      adam_round(f[2], draw[2]) | (uint32_t)adam_round(f[3], draw[3]) << 16 };
    *reinterpret_cast<uint2 *>(p) = w;
}

/* The four elements at i, all of segment seg. */
template <typename W, typename M, typename C>
__device__ __forceinline__ void adam_pack(const AdamP &p, const AdamStep &s, const Segment &seg, int64_t i)
{
    W       *pw = (W *)p.w + i;
    M       *pm = (M *)p.m + i, *pv = (M *)p.v + i;
    float    w[4], m[4], v[4], g[4];
    uint32_t dw[4], dm[4], dv[4];
    adam_load(pw, w);
    adam_load(pm, m);
    adam_load(pv, v);
    adam_load(p.g + i, g);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        AdamDraw d = adam_draw_at<W, M>(p, i + k);
        dw[k]      = d.w;
        dm[k]      = d.m;
        dv[k]      = d.v;
        adam_element(p, s, seg.decay, seg.lr_mul, g[k], w[k], m[k], v[k]);
    }
    adam_store(pw, w, dw);
    adam_store(pm, m, dm);
    adam_store(pv, v, dv);
    pack_store(p.g + i, pack_zero<float>());
    if (p.copy) *reinterpret_cast<uint2 *>((C *)p.copy + i) = adam_copy(w, C());
}

/* AL: every pointer is aligned to its access of four elements. */
template <typename W, typename M, typename C, bool AL>
__global__ void __launch_bounds__(ADAM_THREADS) adamw_kernel(AdamP p)
{
    const StepState *st    = p.state;
    AdamStep         s     = { st->in.lr, st->out.bias1, st->out.bias2, st->out.clip };
    int64_t          chunk = (int64_t)blockIdx.x * ADAM_CHUNK;
    /* Skipped: no segment at all, so that every gradient is cleared and nothing else happens. */
    p.n_seg     = st->out.skip ? 0 : p.n_seg;
    int     k   = segment_find(p.seg, p.n_seg, chunk);
    Segment seg = { p.n, p.n, 0.0f, 0.0f }; /* past the table: a gap up to the end */
    if (k < p.n_seg) seg = p.seg[k];
#pragma unroll 2
    for (int turn = 0; turn < ADAM_TURNS; turn++) {
        int64_t i = chunk + (int64_t)(turn * ADAM_THREADS + threadIdx.x) * 4;
        if (i >= p.n) break;
        while (k < p.n_seg && seg.end <= i) {
            k++;
            if (k < p.n_seg) seg = p.seg[k];
        }
        if (AL && k < p.n_seg && seg.begin <= i && i + 4 <= seg.end) {
            adam_pack<W, M, C>(p, s, seg, i);
        } else {
            adam_edge<W, M, C>(p, s, k, i, MIN(i + 4, p.n));
        }
    }
}

template <bool AL> static void (*adamw_of(const AdamW *a))(AdamP)
{
    int half = a->copy && a->copy->dtype == DT_F16, moments = a->m->dtype == DT_BF16;
    if (a->master->dtype == DT_BF16)
        return moments ? adamw_kernel<bf16, bf16, bf16, AL> : adamw_kernel<bf16, float, bf16, AL>;
    if (half) return moments ? adamw_kernel<float, bf16, __half, AL> : adamw_kernel<float, float, __half, AL>;
    return moments ? adamw_kernel<float, bf16, bf16, AL> : adamw_kernel<float, float, bf16, AL>;
}

/* 1 if four numbers of t can be moved at once. */
static int adam_packable(const Tensor *t)
{
    return !t || (uintptr_t)t->data % (4 * dtype_bytes(t->dtype)) == 0;
}

extern "C" int cuda_adamw(Dev *dev, const AdamW *a)
{
    const char *op = "adamw";
    TRY(k_need_dtype(op, a->grad, DT_F32));
    if (!a->copy || a->copy->dtype != DT_F16) TRY(k_need_dtype(op, a->copy, DT_BF16));
    AdamP p;
    p.w     = t_data<void>(a->master);
    p.m     = t_data<void>(a->m);
    p.v     = t_data<void>(a->v);
    p.g     = t_data<float>(a->grad);
    p.copy  = t_data<void>(a->copy);
    p.state = t_data<StepState>(a->state);
    p.seg   = t_data<Segment>(a->seg);
    p.n     = tensor_numel(a->master);
    p.n_seg = (int)(tensor_bytes(a->seg) / sizeof(Segment));
    p.site  = (uint32_t)a->site;
    p.beta1 = a->beta1;
    p.beta2 = a->beta2;
    p.eps   = a->eps;
    int al  = 1;
    for (int i = 0; i < 5; i++) al &= adam_packable(((const OpArgs *)a)->t[i]); /* master, m, v, grad, copy */
    unsigned grid = (unsigned)ceil_div(p.n, ADAM_CHUNK);
    return k_launch(op, al ? adamw_of<true>(a) : adamw_of<false>(a), dim3(grid), ADAM_THREADS, 0,
                    cuda_stream(dev), p);
}
