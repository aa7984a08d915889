/* Store: the tensors that outlive a program (weights, gradients, optimizer state, step state, batches), laid
 * out in slabs.
 *
 * 1. Every tensor gets its slab offset when it is declared, so bytes per slab are exact before anything is
 *    allocated.
 * 2. The store is sealed before the first program over it is begun; program tensors continue its numbering,
 *    so an id is unique among all tensors a program can name.
 * 3. SLAB_ACT and SLAB_SCRATCH belong to the programs: store_fit_act() and store_fit_scratch() grow these
 *    slabs to the need of the largest program. */
#ifndef PROG_STORE_H
#define PROG_STORE_H

#include "base/arena.h"
#include "dev/dev.h"
#include "tensor/tensor.h"

/* fp8 copies of a weight, as it is and transposed, and the sites (dev/op.h) of the layer's tensors. */
typedef struct {
    Tensor *q, *qt, *x_site, *w_site, *dy_site;
} StoreFp8;

typedef struct {
    Arena    arena;
    Tensor **tensor;
    /* By id of a tensor of the store: where `_dw` ops add up the gradient of a trainable weight; NULL for all
     * others. Programs have ids beyond this table: read it with store_grad(). */
    Tensor   **grad;
    StoreFp8 **fp8; /* by id of a weight, NULL for all others */
    int        n_tensor, cap;
    int        sealed;
    size_t     slab_bytes[SLAB_COUNT];
    void      *base[SLAB_COUNT]; /* device addresses once allocated */
} Store;

void store_init(Store *s);
void store_deinit(Store *s); /* not the device memory: store_free_slabs() first */

/* Declares a root in a slab. The store owns it. */
Tensor *store_tensor(Store *s, Slab slab, const char *name, DType dtype, int ndim, const int64_t *dim);
/* Declares a contiguous view that begins offset_elem elements into a root of the store. */
Tensor *store_view(Store *s, Tensor *root, const char *name, int64_t offset_elem, int ndim,
                   const int64_t *dim);
/* The same for a view of another dtype, offset in bytes: the parts of one block that is uploaded whole. */
Tensor *store_view_as(Store *s, Tensor *root, const char *name, size_t offset_bytes, DType dtype, int ndim,
                      const int64_t *dim);
void    store_set_grad(Store *s, const Tensor *weight, Tensor *grad);
void    store_set_fp8(Store *s, const Tensor *weight, const StoreFp8 *copies); /* *copies is copied */
const StoreFp8 *store_fp8(const Store *s, const Tensor *t); /* NULL: products read t itself */
/* The gradient of a trainable weight, NULL for all else. A program's own view of a trainable weight is a
 * bug. */
Tensor *store_grad(const Store *s, const Tensor *t);

void   store_seal(Store *s);
void   store_fit_act(Store *s, size_t size_bytes);
void   store_fit_scratch(Store *s, size_t size_bytes);
size_t store_total_bytes(const Store *s);

/* Allocates every slab on the device and gives every tensor its address. Negative after err_set(), nothing
 * allocated. */
int  store_alloc_slabs(Store *s, Dev *dev);
void store_free_slabs(Store *s, Dev *dev);

#endif
