/* Elementwise ops: ACT_FWD, ACT_DX, GLU_FWD, GLU_DX, ADD, MUL, EMA.
 *
 * Maths    y = act(x);  dx = dy*act'(x);  y = act(gate)*up;  dgate = dy*up*act'(gate), dup = dy*act(gate);
 *          y = a + b. Everything in f32, rounded once on the way out.
 * Layout   planes of rows x cols with a row stride each; a GLU input is two planes, cols apart. Contiguous
 *          planes are taken as one long row.
 * Grid     linear over packs; a thread takes MAP_UNROLL packs, MAP_THREADS apart, and loads all before it
 *          stores any, so an output may share storage with an input at the same place.
 * Bytes    every plane once: ACT_FWD 2, ACT_DX and ADD 3, GLU_FWD 3, GLU_DX 5 elements an output
 *          column. If the slopes are stored: ACT_FWD 3, GLU_FWD 5. */
#include "dev/cuda/k_actmath.cuh"

enum { MAP_THREADS = 256, MAP_MAX_IN = 3, MAP_MAX_OUT = 3 };

template <typename T> struct MapP {
    const T *in[MAP_MAX_IN];
    T       *out[MAP_MAX_OUT];
    int64_t  ld_in[MAP_MAX_IN], ld_out[MAP_MAX_OUT];
    int64_t  cols;
    int64_t  n_pack;   /* of all rows */
    int64_t  row_pack; /* of one row */
};

/* Packs a thread: enough loads in flight to cover memory's latency at this occupancy. */
template <typename F> static constexpr int MAP_UNROLL = F::IN == 1 ? 4 : 2;

template <typename T, bool AL, typename F>
__global__ void __launch_bounds__(MAP_THREADS) map_kernel(MapP<T> p, F f)
{
    constexpr int N = Pack<T>::N, U = MAP_UNROLL<F>;
    int64_t       first = (int64_t)blockIdx.x * (MAP_THREADS * U);
    int64_t       row0 = first / p.row_pack, rest0 = first - row0 * p.row_pack;
    int64_t       row[U], col[U];
    Pack<T>       in[U][F::IN];
#pragma unroll
    for (int u = 0; u < U; u++) {
        /* The block's start was divided in 64 bits; what remains fits 32 unless there is a single row. */
        int64_t rest = rest0 + u * MAP_THREADS + threadIdx.x;
        int64_t step = p.row_pack == p.n_pack ? 0 : (int64_t)((uint32_t)rest / (uint32_t)p.row_pack);
        row[u]       = row0 + step;
        col[u]       = (rest - step * p.row_pack) * N;
        bool inside  = first + u * MAP_THREADS + threadIdx.x < p.n_pack;
        if (!inside) col[u] = p.cols; /* nothing of this pack is inside */
#pragma unroll
        for (int k = 0; k < F::IN; k++) {
            in[u][k] = vec_load<T, AL>(p.in[k] + row[u] * p.ld_in[k] + col[u], p.cols - col[u]);
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++) {
        float x[F::IN][N], y[F::OUT][N];
#pragma unroll
        for (int k = 0; k < F::IN; k++) vec_unpack(in[u][k], x[k]);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float a[F::IN], b[F::OUT];
#pragma unroll
            for (int k = 0; k < F::IN; k++) a[k] = x[k][i];
            f(a, b);
#pragma unroll
            for (int k = 0; k < F::OUT; k++) y[k][i] = b[k];
        }
#pragma unroll
        for (int k = 0; k < F::OUT; k++) {
            vec_store<T, AL>(p.out[k] + row[u] * p.ld_out[k] + col[u], vec_pack<T>(y[k]), p.cols - col[u]);
        }
    }
}

template <Act ACT> struct ActFwdF {
    static constexpr int            IN = 1, OUT = 1;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        y[0] = act_value<ACT>(x[0]);
    }
};
template <Act ACT> struct ActBothF { /* out: act(x), act'(x) */
    static constexpr int            IN = 1, OUT = 2;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        ActBoth b = act_both<ACT>(x[0]);
        y[0]      = b.value;
        y[1]      = b.slope;
    }
};
template <Act ACT> struct ActDxF { /* in: dy, x */
    static constexpr int            IN = 2, OUT = 1;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        y[0] = __fmul_rn(x[0], act_slope<ACT>(x[1]));
    }
};
template <Act ACT> struct GluFwdF { /* in: gate, up */
    static constexpr int            IN = 2, OUT = 1;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        y[0] = __fmul_rn(act_value<ACT>(x[0]), x[1]);
    }
};
template <Act ACT> struct GluBothF { /* in: gate, up; out: y, act'(gate) * up, act(gate) */
    static constexpr int            IN = 2, OUT = 3;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        GluBoth b = glu_both<ACT>(x[0], x[1]);
        y[0]      = b.y;
        y[1]      = b.slope;
        y[2]      = b.value;
    }
};
template <Act ACT> struct GluDxF { /* in: dy, gate, up; out: dgate, dup */
    static constexpr int            IN = 3, OUT = 2;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        GluGrad d = glu_grad<ACT>(x[0], x[1], x[2]);
        y[0]      = d.gate;
        y[1]      = d.up;
    }
};
struct AddF {
    static constexpr int            IN = 2, OUT = 1;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        y[0] = __fadd_rn(x[0], x[1]);
    }
};

struct MulF {
    static constexpr int            IN = 2, OUT = 1;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        y[0] = __fmul_rn(x[0], x[1]);
    }
};
struct EmaF { /* in: e, w */
    static constexpr int            IN = 2, OUT = 1;
    const StepState                *state;
    float                           decay;
    int                             warmup;
    __device__ __forceinline__ void operator()(const float *x, float *y) const
    {
        float n = (float)state->out.n_update, d = warmup ? fminf(decay, (1.0f + n) / (10.0f + n)) : decay;
        y[0] = state->out.skip ? x[0] : fmaf(d, x[0], __fmul_rn(1.0f - d, x[1]));
    }
};

/* A plane on the host: a tensor, or columns [col0, col0 + cols) of one. */
typedef struct {
    const Tensor *t;
    int64_t       col0;
} Plane;

static int plane_aligned(const Plane *pl)
{
    size_t size = dtype_bytes(pl->t->dtype);
    return cuda_packable(pl->t) && (size_t)pl->col0 * size % 16 == 0;
}

/* Runs f over planes of rows x cols: F::OUT outputs first, then F::IN inputs. */
template <typename F>
static int map_run(Dev *dev, const char *op, const Plane *plane, int64_t rows, int64_t cols, F f)
{
    DType dt = plane[0].t->dtype;
    int   al = (size_t)cols * dtype_bytes(dt) % 16 == 0, flat = 1;
    for (int k = 0; k < F::OUT + F::IN; k++) {
        TRY(k_need_dtype(op, plane[k].t, dt));
        al   = al && plane_aligned(&plane[k]);
        flat = flat && (rows == 1 || tensor_ld(plane[k].t) == cols);
    }
    if (flat) {
        cols *= rows;
        rows = 1;
    }
    return k_dispatch_half(dt, op, [&](auto zero) {
        using T   = decltype(zero);
        MapP<T> p = {};
        for (int k = 0; k < F::OUT; k++) {
            p.out[k]    = t_data<T>(plane[k].t) + plane[k].col0;
            p.ld_out[k] = tensor_ld(plane[k].t);
        }
        for (int k = 0; k < F::IN; k++) {
            p.in[k]    = t_data<T>(plane[F::OUT + k].t) + plane[F::OUT + k].col0;
            p.ld_in[k] = tensor_ld(plane[F::OUT + k].t);
        }
        p.cols        = cols;
        p.row_pack    = ceil_div(cols, Pack<T>::N);
        p.n_pack      = p.row_pack * rows;
        unsigned grid = (unsigned)ceil_div(p.n_pack, MAP_THREADS * MAP_UNROLL<F>);
        return k_flag(al, [&](auto is_al) {
            return k_launch(op, map_kernel<T, decltype(is_al)::value, F>, dim3(grid), MAP_THREADS, 0,
                            cuda_stream(dev), p, f);
        });
    });
}

extern "C" int cuda_act_fwd(Dev *dev, const ActFwd *a)
{
    Plane plane[] = { { a->y, 0 }, { a->x, 0 } };
    return any_dispatch(a->act, "act_fwd", [&](auto act) {
        return map_run(dev, "act_fwd", plane, tensor_rows(a->y), tensor_cols(a->y),
                       ActFwdF<decltype(act)::value>());
    });
}

extern "C" int cuda_act_both(Dev *dev, const Tensor *y, const Tensor *x, Act act)
{
    Plane plane[] = { { y, 0 }, { x, 0 }, { x, 0 } };
    return any_dispatch(act, "linear_act_fwd", [&](auto act) {
        return map_run(dev, "linear_act_fwd", plane, tensor_rows(y), tensor_cols(y),
                       ActBothF<decltype(act)::value>());
    });
}

extern "C" int cuda_act_dx(Dev *dev, const ActDx *a)
{
    Plane plane[] = { { a->dx, 0 }, { a->dy, 0 }, { a->x, 0 } };
    return any_dispatch(a->act, "act_dx", [&](auto act) {
        return map_run(dev, "act_dx", plane, tensor_rows(a->dx), tensor_cols(a->dx),
                       ActDxF<decltype(act)::value>());
    });
}

extern "C" int cuda_glu_fwd(Dev *dev, const GluFwd *a)
{
    int64_t F       = tensor_cols(a->y);
    Plane   plane[] = { { a->y, 0 }, { a->x, 0 }, { a->x, F } };
    return any_dispatch(a->act, "glu_fwd", [&](auto act) {
        return map_run(dev, "glu_fwd", plane, tensor_rows(a->y), F, GluFwdF<decltype(act)::value>());
    });
}

extern "C" int cuda_glu_both(Dev *dev, const Tensor *y, const Tensor *x, Act act)
{
    int64_t F       = tensor_cols(y);
    Plane   plane[] = { { y, 0 }, { x, 0 }, { x, F }, { x, 0 }, { x, F } };
    return any_dispatch(act, "linear_glu_fwd", [&](auto act) {
        return map_run(dev, "linear_glu_fwd", plane, tensor_rows(y), F, GluBothF<decltype(act)::value>());
    });
}

extern "C" int cuda_glu_dx(Dev *dev, const GluDx *a)
{
    int64_t F       = tensor_cols(a->dy);
    Plane   plane[] = { { a->dx, 0 }, { a->dx, F }, { a->dy, 0 }, { a->x, 0 }, { a->x, F } };
    return any_dispatch(a->act, "glu_dx", [&](auto act) {
        return map_run(dev, "glu_dx", plane, tensor_rows(a->dy), F, GluDxF<decltype(act)::value>());
    });
}

extern "C" int cuda_add(Dev *dev, const Add *a)
{
    Plane plane[] = { { a->y, 0 }, { a->a, 0 }, { a->b, 0 } };
    return map_run(dev, "add", plane, tensor_rows(a->y), tensor_cols(a->y), AddF());
}

extern "C" int cuda_mul(Dev *dev, const Mul *a)
{
    Plane plane[] = { { a->y, 0 }, { a->a, 0 }, { a->b, 0 } };
    return map_run(dev, "mul", plane, tensor_rows(a->y), tensor_cols(a->y), MulF());
}

extern "C" int cuda_ema(Dev *dev, const Ema *a)
{
    Plane plane[] = { { a->e, 0 }, { a->e, 0 }, { a->w, 0 } };
    TRY(k_need_dtype("ema", a->e, DT_F32));
    return map_run(dev, "ema", plane, tensor_rows(a->e), tensor_cols(a->e),
                   EmaF{ t_data<StepState>(a->state), a->decay, a->warmup });
}
