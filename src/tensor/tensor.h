/* Tensor: shape and identity; an address only after binding. No behaviour.
 *
 * 1. A root tensor owns storage; a view points into a root and keeps it alive for the planner.
 * 2. Strides count elements. The last stride is 1 for every tensor an op may see: views take leading rows or
 *    leading-dimension slices, never a transposed last axis. Ops read a tensor as tensor_rows x tensor_cols
 *    with a row stride of tensor_ld.
 * 3. offset_bytes counts from the root's first byte. data is NULL until bind (or until a test sets it).
 * 4. The slab says in which persistent range a root lives. The planner places the roots of SLAB_ACT. */
#ifndef TENSOR_TENSOR_H
#define TENSOR_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E5M2, DT_I32, DT_I64, DT_U8, DT_F64, DT_COUNT } DType;

/* Sized before step 0. */
typedef enum {
    SLAB_ACT,     /* activations, gradients of activations, workspaces: placed by lifetime */
    SLAB_MASTER,  /* fp32 weights that the optimizer updates */
    SLAB_COPY,    /* compute copies (bf16 ...) of the weights */
    SLAB_GRAD,    /* weight gradients */
    SLAB_OPTIM,   /* optimizer state */
    SLAB_STATE,   /* step state, tables, constants */
    SLAB_IO,      /* batches: tokens, targets, sample index */
    SLAB_KV,      /* key/value cache of decoding */
    SLAB_COMM,    /* communication buffers */
    SLAB_SCRATCH, /* one range that a backend's ops share, one after another */
    SLAB_COUNT
} Slab;

enum { TENSOR_MAX_DIM = 4, TENSOR_ALIGN = 256 /* bytes; every root starts on such a boundary */ };

typedef struct Tensor Tensor;
struct Tensor {
    int         id; /* index in its program's (or store's) table; unique within one program */
    DType       dtype;
    int         ndim;
    int64_t     dim[TENSOR_MAX_DIM];
    int64_t     stride[TENSOR_MAX_DIM]; /* elements */
    Tensor     *root;                   /* itself for a root */
    size_t      offset_bytes;           /* from the root's start */
    Slab        slab;                   /* of the root */
    size_t      slab_offset;            /* of the root within the slab, once placed */
    void       *data;                   /* device address, set by bind */
    const char *name;                   /* for messages; never NULL */
};

size_t      dtype_bytes(DType t);
const char *dtype_name(DType t);
const char *slab_name(Slab s);

/* Fills *t as a contiguous root of the given shape; data NULL. */
void tensor_init(Tensor *t, const char *name, DType dtype, int ndim, const int64_t *dim);

/* Fills *v as the view of rows [row0, row0+n_rows) of t seen as rows x cols; 2-D. */
void tensor_init_rows(Tensor *v, Tensor *t, int64_t row0, int64_t n_rows);

int64_t tensor_numel(const Tensor *t);
int64_t tensor_cols(const Tensor *t); /* last dimension */
int64_t tensor_rows(const Tensor *t); /* numel / cols */
int64_t tensor_ld(const Tensor *t);   /* stride between consecutive rows, in elements */
int     tensor_is_contiguous(const Tensor *t);
int     tensor_same_shape(const Tensor *a, const Tensor *b); /* rows, cols */
size_t  tensor_bytes(const Tensor *t);                       /* of its elements, not of its root */
size_t  tensor_root_bytes(const Tensor *t);                  /* root's storage, padded to TENSOR_ALIGN */
size_t  tensor_align_up(size_t size_bytes);                  /* rounded up to a multiple of TENSOR_ALIGN */

/* Writes "name bf16[64,1024,768]" into buf and returns buf. */
const char *tensor_describe(const Tensor *t, char *buf, size_t n);

#ifdef __cplusplus
}
#endif
#endif
