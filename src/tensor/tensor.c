#include "tensor/tensor.h"

#include "base/err.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t      bytes;
} dtype_row[DT_COUNT] = {
    [DT_F32] = { "f32", 4 },   [DT_BF16] = { "bf16", 2 }, [DT_F16] = { "f16", 2 },
    [DT_E4M3] = { "e4m3", 1 }, [DT_E5M2] = { "e5m2", 1 }, [DT_I32] = { "i32", 4 },
    [DT_I64] = { "i64", 8 },   [DT_U8] = { "u8", 1 },     [DT_F64] = { "f64", 8 },
};

static const char *const slab_names[SLAB_COUNT] = {
    [SLAB_ACT] = "activations", [SLAB_MASTER] = "master weights", [SLAB_COPY] = "compute copies",
    [SLAB_GRAD] = "gradients",  [SLAB_OPTIM] = "optimizer",       [SLAB_STATE] = "state",
    [SLAB_IO] = "batches",      [SLAB_KV] = "kv cache",           [SLAB_COMM] = "communication",
    [SLAB_SCRATCH] = "scratch",
};

size_t dtype_bytes(DType t) { return dtype_row[t].bytes; }

const char *dtype_name(DType t) { return dtype_row[t].name; }

const char *slab_name(Slab s) { return slab_names[s]; }

void tensor_init(Tensor *t, const char *name, DType dtype, int ndim, const int64_t *dim)
{
    CHECK(ndim >= 1 && ndim <= TENSOR_MAX_DIM, "%s: %d dimensions", name, ndim);
    memset(t, 0, sizeof *t);
    t->dtype       = dtype;
    t->ndim        = ndim;
    t->root        = t;
    t->slab        = SLAB_ACT;
    t->name        = name;
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        CHECK(dim[i] >= 1, "%s: dimension %d is %lld", name, i, (long long)dim[i]);
        t->dim[i]    = dim[i];
        t->stride[i] = stride;
        stride *= dim[i];
    }
}

void tensor_init_rows(Tensor *v, Tensor *t, int64_t row0, int64_t n_rows)
{
    CHECK(row0 >= 0 && n_rows >= 1 && row0 + n_rows <= tensor_rows(t), "%s: rows %lld+%lld of %lld", t->name,
          (long long)row0, (long long)n_rows, (long long)tensor_rows(t));
    int64_t ld     = tensor_ld(t);
    int64_t dim[2] = { n_rows, tensor_cols(t) };
    tensor_init(v, t->name, t->dtype, 2, dim);
    v->stride[0]    = ld;
    v->root         = t->root;
    v->slab         = t->root->slab;
    v->offset_bytes = t->offset_bytes + (size_t)(row0 * ld) * dtype_bytes(t->dtype);
    if (t->data) v->data = (char *)t->data + (size_t)(row0 * ld) * dtype_bytes(t->dtype);
}

int64_t tensor_numel(const Tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return n;
}

int64_t tensor_cols(const Tensor *t) { return t->dim[t->ndim - 1]; }

int64_t tensor_rows(const Tensor *t) { return tensor_numel(t) / tensor_cols(t); }

int64_t tensor_ld(const Tensor *t) { return t->ndim >= 2 ? t->stride[t->ndim - 2] : tensor_cols(t); }

int tensor_is_contiguous(const Tensor *t)
{
    int64_t stride = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->dim[i] != 1 && t->stride[i] != stride) return 0;
        stride *= t->dim[i];
    }
    return 1;
}

int tensor_same_shape(const Tensor *a, const Tensor *b)
{
    return tensor_rows(a) == tensor_rows(b) && tensor_cols(a) == tensor_cols(b);
}

size_t tensor_bytes(const Tensor *t) { return (size_t)tensor_numel(t) * dtype_bytes(t->dtype); }

size_t tensor_root_bytes(const Tensor *t) { return tensor_align_up(tensor_bytes(t->root)); }

size_t tensor_align_up(size_t size_bytes)
{
    return (size_bytes + TENSOR_ALIGN - 1) / TENSOR_ALIGN * TENSOR_ALIGN;
}

const char *tensor_describe(const Tensor *t, char *buf, size_t n)
{
    int k = snprintf(buf, n, "%s %s[", t->name, dtype_name(t->dtype));
    for (int i = 0; i < t->ndim && k > 0 && (size_t)k < n; i++) {
        k += snprintf(buf + k, n - (size_t)k, "%s%lld", i ? "," : "", (long long)t->dim[i]);
    }
    if (k > 0 && (size_t)k < n) snprintf(buf + k, n - (size_t)k, "]");
    return buf;
}
