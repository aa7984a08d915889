/* One case of an op: its arguments in host memory, and the tensors of it that builders (op_cases.h,
 * op_cases_attn.h) make.
 *
 * 1. Every tensor lies between guard bands; guards and the gaps of strided rows hold CASE_GUARD and must keep
 *    it.
 * 2. Outputs start as NaN (integers and bytes as 0xA5); what an op accumulates into starts with random
 *    numbers. */
#ifndef TESTS_OP_CASE_H
#define TESTS_OP_CASE_H

#include "base/rng.h"
#include "op_math.h"

#include <stdio.h>

enum { CASE_GUARD_BYTES = 512 };
#define CASE_GUARD 0x7FA5A5A5u /* a NaN that no arithmetic makes */

typedef struct {
    OpKind kind;
    char   name[128];
    OpArgs args; /* points into tensor[] */
    Tensor tensor[OP_MAX_TENSOR];
    char  *block[OP_MAX_TENSOR]; /* guard, elements (with gaps), guard */
    size_t block_bytes[OP_MAX_TENSOR];
    char act[OP_MAX_TENSOR]; /* 1: activation, weight or bias, in the compute dtype; 0: f32, integer, bytes */
    uint64_t seed, n_draw;
} OpCase;

/* ---- Tensors ------------------------------------------------------------------------------------------- */

static inline float case_uniform(OpCase *c, float bound)
{
    uint32_t w[4];
    rng_philox(w, c->seed, 77, 0, c->n_draw++);
    return (2 * rng_uniform(w[0]) - 1) * bound;
}

static inline int64_t case_pick(OpCase *c, int64_t n)
{
    uint32_t w[4];
    rng_philox(w, c->seed, 78, 0, c->n_draw++);
    return (int64_t)(w[0] % (uint32_t)n);
}

static inline size_t case_offset(const Tensor *t, int64_t i)
{
    return (size_t)(i / tensor_cols(t) * tensor_ld(t) + i % tensor_cols(t)) * dtype_bytes(t->dtype);
}

static inline float *case_at(const Tensor *t, int64_t i)
{
    return (float *)((char *)t->data + case_offset(t, i));
}
static inline int32_t *case_int(const Tensor *t, int64_t i) { return (int32_t *)case_at(t, i); }

/* A floating number of any width. */
static inline double case_value(const Tensor *t, int64_t i)
{
    double v;
    if (t->dtype != DT_F64) return (double)*case_at(t, i);
    memcpy(&v, case_at(t, i), sizeof v);
    return v;
}

static inline void case_randomize(OpCase *c, const Tensor *t, float bound)
{
    for (int64_t i = 0; i < tensor_numel(t); i++) *case_at(t, i) = case_uniform(c, bound);
}

/* Argument i: ndim dimensions, rows padded by `pad` elements. Contents as the header says; inputs in [-1,
 * 1). */
static inline Tensor *case_tensor(OpCase *c, int i, DType dtype, int64_t pad, int ndim, const int64_t *dim)
{
    const OpRow *row = &op_table[c->kind];
    Tensor      *t   = &c->tensor[i];
    tensor_init(t, row->arg[i].name, dtype, ndim, dim);
    for (int k = 0; k + 1 < ndim; k++)
        t->stride[k] = t->stride[k] / t->dim[ndim - 1] * (t->dim[ndim - 1] + pad);
    size_t elems      = (size_t)((tensor_rows(t) - 1) * tensor_ld(t) + tensor_cols(t)) * dtype_bytes(dtype);
    c->block_bytes[i] = (elems + 2 * CASE_GUARD_BYTES + 255) / 256 * 256;
    c->block[i]       = aligned_alloc(256, c->block_bytes[i]);
    CHECK(c->block[i], "out of memory");
    uint32_t guard = CASE_GUARD;
    for (size_t k = 0; k < c->block_bytes[i]; k += 4) memcpy(c->block[i] + k, &guard, 4);
    t->data         = c->block[i] + CASE_GUARD_BYTES;
    c->args.t[i]    = t;
    unsigned access = row->arg[i].access;
    for (int64_t e = 0; e < tensor_numel(t); e++) {
        if (dtype == DT_F32 && (access & ARG_READ)) {
            *case_at(t, e) = case_uniform(c, 1);
        } else {
            memset(case_at(t, e), dtype == DT_F32 ? 0xFF : 0xA5, dtype_bytes(dtype));
        }
    }
    return t;
}

static inline Tensor *case_f32(OpCase *c, int i, int64_t rows, int64_t cols, int64_t pad)
{
    return case_tensor(c, i, DT_F32, pad, 2, (int64_t[]){ rows, cols });
}
static inline Tensor *case_vec(OpCase *c, int i, int64_t n) { return case_tensor(c, i, DT_F32, 0, 1, &n); }
static inline Tensor *case_act(OpCase *c, int i, int64_t rows, int64_t cols, int64_t pad)
{
    c->act[i] = 1;
    return case_f32(c, i, rows, cols, pad);
}
static inline Tensor *case_act3(OpCase *c, int i, int64_t B, int64_t T, int64_t W, int64_t pad)
{
    c->act[i] = 1;
    return case_tensor(c, i, DT_F32, pad, 3, (int64_t[]){ B, T, W });
}

static inline Tensor *case_act4(OpCase *c, int i, int64_t B, int64_t H, int64_t T, int64_t S)
{
    c->act[i] = 1;
    return case_tensor(c, i, DT_F32, 0, 4, (int64_t[]){ B, H, T, S });
}

/* Integers in [lo, hi). */
static inline Tensor *case_ints(OpCase *c, int i, int64_t rows, int64_t cols, int64_t lo, int64_t hi)
{
    Tensor *t = case_tensor(c, i, DT_I32, 0, 2, (int64_t[]){ rows, cols });
    for (int64_t e = 0; e < rows * cols; e++) *case_int(t, e) = (int32_t)(lo + case_pick(c, hi - lo));
    return t;
}

static inline Tensor *case_int1(OpCase *c, int i, int32_t value)
{
    Tensor *t       = case_tensor(c, i, DT_I32, 0, 1, (int64_t[]){ 1 });
    *case_int(t, 0) = value;
    return t;
}

static inline StepState *case_state(OpCase *c, int i)
{
    Tensor    *t = case_tensor(c, i, DT_U8, 0, 1, (int64_t[]){ sizeof(StepState) });
    StepState *s = t->data;
    memset(s, 0, sizeof *s);
    s->in = (StepIn){
        .step = 7, .seed = 1234567890123ull, .lr = 3e-3f, .inv = { 0.03125f, 0.0625f, 0.5f }, .loss_scale = 4
    };
    s->out = (StepOut){ .sum        = { 1.5, 0, 0.75 },
                        .grad_sumsq = 2.25,
                        .loss_ema   = 2,
                        .clip       = 0.25f,
                        .bias1      = 3.7f,
                        .bias2      = 12.2f };
    return s;
}

/* double copy of an f32 tensor, rows x cols */
static inline double *case_doubles(const Tensor *t)
{
    if (!t) return NULL;
    double *v = dbl_new(tensor_numel(t));
    for (int64_t i = 0; i < tensor_numel(t); i++) v[i] = *case_at(t, i);
    return v;
}

static inline void case_from_doubles(const Tensor *t, const double *v)
{
    for (int64_t i = 0; i < tensor_numel(t); i++) *case_at(t, i) = (float)v[i];
}

#define CASE_NAME(...) snprintf(c->name, sizeof c->name, __VA_ARGS__)

#endif
