/* Elementwise ops without a family: add, mul, fill, copy, dropout; and the collectives. */
#include "base/err.h"
#include "base/rng.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"
#include "dev/cpu/cpu_vec.h"
#include "tensor/number.h"

#include <string.h>

int cpu_add(Dev *dev, const Add *a)
{
    Mat y = cpu_mat(a->y), ma = cpu_mat(a->a), mb = cpu_mat(a->b);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) row_add(mat_row(y, r), mat_row(ma, r), mat_row(mb, r), y.cols);
    return 0;
}

int cpu_mul(Dev *dev, const Mul *a)
{
    Mat y = cpu_mat(a->y), ma = cpu_mat(a->a), mb = cpu_mat(a->b);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (y.rows * y.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < y.rows; r++) {
        const float *va = mat_row(ma, r), *vb = mat_row(mb, r);
        for (int64_t c = 0; c < y.cols; c++) mat_row(y, r)[c] = va[c] * vb[c];
    }
    return 0;
}

/* The value's bytes in t's format; integers are truncated. */
static void encode(char out[8], DType t, float value)
{
    float    f = value;
    uint16_t h = t == DT_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
    int32_t  i = (int32_t)value;
    int64_t  l = (int64_t)value;
    uint8_t  u = (uint8_t)(int)value;
    CHECK(t != DT_E4M3 && t != DT_E5M2 && t != DT_F64, "fill of %s", dtype_name(t));
    const void *from = t == DT_F32   ? (void *)&f
                       : t == DT_I32 ? (void *)&i
                       : t == DT_I64 ? (void *)&l
                       : t == DT_U8  ? (void *)&u
                                     : (void *)&h;
    memcpy(out, from, dtype_bytes(t));
}

int cpu_fill(Dev *dev, const Fill *a)
{
    char one[8];
    encode(one, a->y->dtype, a->value);
    size_t  size = dtype_bytes(a->y->dtype);
    int64_t cols = tensor_cols(a->y), rows = tensor_rows(a->y), ld = tensor_ld(a->y);
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static)                                      \
    collapse(2) if (rows * cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < cols; c++)
            memcpy((char *)a->y->data + (size_t)(r * ld + c) * size, one, size);
    }
    return 0;
}

/* Bytes from x to y with all threads, in pieces of whole pages. */
static void copy_bytes(Dev *dev, char *y, const char *x, size_t n)
{
    enum { PIECE = 1 << 16 };
    int64_t n_piece = (int64_t)((n + PIECE - 1) / PIECE);
#pragma omp parallel for num_threads(cpu_threads(dev)) schedule(static) if (n_piece > 1)
    for (int64_t i = 0; i < n_piece; i++) {
        size_t at = (size_t)i * PIECE;
        memcpy(y + at, x + at, MIN((size_t)PIECE, n - at));
    }
}

static int copy_tensor(Dev *dev, const Tensor *y, const Tensor *x)
{
    CHECK(tensor_bytes(y) == tensor_bytes(x), "copy of %s to %s: sizes differ", x->name, y->name);
    if (y->data == x->data) return 0;
    if (tensor_is_contiguous(y) && tensor_is_contiguous(x)) {
        copy_bytes(dev, y->data, x->data, tensor_bytes(x));
        return 0;
    }
    CHECK(tensor_same_shape(y, x) && y->dtype == x->dtype, "copy of %s to %s: shapes differ", x->name,
          y->name);
    size_t  size = dtype_bytes(x->dtype), row = (size_t)tensor_cols(x) * size;
    int64_t rows = tensor_rows(x);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (tensor_numel(x) >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        memcpy((char *)y->data + (size_t)(r * tensor_ld(y)) * size,
               (char *)x->data + (size_t)(r * tensor_ld(x)) * size, row);
    }
    return 0;
}

int cpu_copy(Dev *dev, const Copy *a) { return copy_tensor(dev, a->y, a->x); }

/* ---- Collectives --------------------------------------------------------------------------------------- */

int cpu_comm_id(unsigned char id[COMM_ID_BYTES])
{
    memset(id, 0, COMM_ID_BYTES); /* the transport knows who belongs together */
    return 0;
}

int cpu_comm_open(Dev *dev, const DevComm *c)
{
    CHECK(c->world <= 1 || (c->all_reduce && c->all_gather), "the CPU has no transport of its own");
    ((CpuDev *)dev)->comm = *c;
    return 0;
}

/* NULL when this rank is alone: then the sum over ranks is its own, and so is every part of it. */
static const DevComm *peers(const Dev *dev, const Tensor *y, const Tensor *x)
{
    const DevComm *c = &((const CpuDev *)dev)->comm;
    if (c->world <= 1) return NULL;
    CHECK(y->dtype == x->dtype && tensor_is_contiguous(x) && tensor_is_contiguous(y),
          "a collective from %s to %s", x->name, y->name);
    return c;
}

int cpu_all_reduce(Dev *dev, const AllReduce *a)
{
    const DevComm *c = peers(dev, a->y, a->x);
    TRY(copy_tensor(dev, a->y, a->x));
    return c ? c->all_reduce(c->ctx, a->y->dtype, a->y->data, tensor_numel(a->y)) : 0;
}

int cpu_reduce_scatter(Dev *dev, const ReduceScatter *a)
{
    const DevComm *c = peers(dev, a->y, a->x);
    if (!c) return copy_tensor(dev, a->y, a->x);
    size_t part = tensor_bytes(a->y), whole = tensor_bytes(a->x);
    CHECK(part * (size_t)c->world == whole, "%s is not one of %d parts of %s", a->y->name, c->world,
          a->x->name);
    char *sum = cpu_scratch(dev, whole);
    if (!sum) return -1;
    copy_bytes(dev, sum, a->x->data, whole);
    TRY(c->all_reduce(c->ctx, a->x->dtype, sum, tensor_numel(a->x)));
    copy_bytes(dev, a->y->data, sum + part * (size_t)c->rank, part);
    return 0;
}

int cpu_all_gather(Dev *dev, const AllGather *a)
{
    const DevComm *c = peers(dev, a->y, a->x);
    if (!c) return copy_tensor(dev, a->y, a->x);
    size_t part = tensor_bytes(a->x);
    CHECK(part * (size_t)c->world == tensor_bytes(a->y), "%s is not one of %d parts of %s", a->x->name,
          c->world, a->y->name);
    return c->all_gather(c->ctx, a->y->data, a->x->data, part);
}

/* ---- Dropout ------------------------------------------------------------------------------------------- */

enum { DRAW_BLOCKS = 128 }; /* Philox calls per batch of draws, four elements each; a multiple of VL */

typedef struct {
    uint32_t key[2], threshold;
    int64_t  step;
    float    factor;
} Drop;

/* Draws of blocks [first, first + n) of a sample, n a multiple of VL. The four words of a block are kept in
 * four rows, so that the ten rounds of neighbouring blocks run side by side. */
static void draw_blocks(uint32_t word[4][DRAW_BLOCKS], const Drop *p, int64_t sample, int64_t first, int n)
{
    for (int b = 0; b < n; b++) {
        uint32_t ctr[4];
        rng_counter(ctr, p->step, sample, first + b);
        for (int w = 0; w < 4; w++) word[w][b] = ctr[w];
    }
    uint32_t k0 = p->key[0], k1 = p->key[1];
    for (int round = 0; round < 10; round++) {
        for (int b = 0; b < n; b++) {
            uint32_t c[4] = { word[0][b], word[1][b], word[2][b], word[3][b] };
            philox_round(c, k0, k1);
            word[0][b] = c[0];
            word[1][b] = c[1];
            word[2][b] = c[2];
            word[3][b] = c[3];
        }
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
}

/* keep[e] = all ones where element e of n blocks is kept: the four rows of words interleaved. */
static void keep_masks(int32_t *keep, const uint32_t word[4][DRAW_BLOCKS], uint32_t threshold, int n)
{
    for (int b = 0; b < n; b += VL) {
        vf m[4];
        for (int w = 0; w < 4; w++) {
            vu draw = (vu)vi_load((const int32_t *)word[w] + b);
            m[w]    = (vf)(draw >= threshold);
        }
        vf     lo = vf_zip_low(m[0], m[2]), hi = vf_zip_high(m[0], m[2]);
        vf     lo1 = vf_zip_low(m[1], m[3]), hi1 = vf_zip_high(m[1], m[3]);
        float *out = (float *)keep + 4 * b;
        vf_store(out, vf_zip_low(lo, lo1));
        vf_store(out + VL, vf_zip_high(lo, lo1));
        vf_store(out + 2 * VL, vf_zip_low(hi, hi1));
        vf_store(out + 3 * VL, vf_zip_high(hi, hi1));
    }
}

/* Elements [e, e+n) of a sample. y may be x. */
static void drop_row(const Drop *p, float *y, const float *x, int64_t sample, int64_t e, int64_t n)
{
    uint32_t word[4][DRAW_BLOCKS];
    int32_t  keep[4 * DRAW_BLOCKS + VL];
    while (n > 0) {
        int64_t skip = e % 4, count = MIN(n, 4 * DRAW_BLOCKS - skip);
        int     blocks = (int)row_div_up(skip + count, 4 * VL) * VL;
        draw_blocks(word, p, sample, e / 4, blocks);
        keep_masks(keep, (const uint32_t(*)[DRAW_BLOCKS])word, p->threshold, blocks);
        for (int64_t i = 0; i < count; i += VL) {
            vf v = vf_get(x + i, count - i) * p->factor;
            vf_put(y + i, count - i, (vf)((vi)v & vi_load(keep + skip + i)));
        }
        e += count;
        x += count;
        y += count;
        n -= count;
    }
}

/* A whole row of a sample, by one draw. */
static void drop_path_row(const Drop *p, float *y, const float *x, int64_t sample, int64_t n)
{
    uint32_t ctr[4], word[4];
    rng_counter(ctr, p->step, sample, 0);
    philox4x32(word, ctr, p->key);
    int keep = word[0] >= p->threshold;
    for (int64_t i = 0; i < n; i++) y[i] = keep ? x[i] * p->factor : 0.0f;
}

int cpu_dropout(Dev *dev, const Dropout *a)
{
    Mat              y = cpu_mat(a->y), x = cpu_mat(a->x);
    const StepState *state   = a->state->data;
    int64_t          sample0 = *(const int64_t *)a->sample0->data, per = a->rows_per_sample;
    Drop p = { .threshold = rng_threshold(a->p), .step = state->in.step, .factor = 1.0f / (1.0f - a->p) };
    rng_key(p.key, state->in.seed, (uint32_t)a->site);
#pragma omp parallel for num_threads(cpu_threads(dev))                                                       \
    schedule(static) if (x.rows * x.cols >= CPU_PARALLEL_MIN)
    for (int64_t r = 0; r < x.rows; r++) {
        if (a->per_sample) {
            drop_path_row(&p, mat_row(y, r), mat_row(x, r), sample0 + r / per, x.cols);
        } else {
            drop_row(&p, mat_row(y, r), mat_row(x, r), sample0 + r / per, r % per * x.cols, x.cols);
        }
    }
    return 0;
}
