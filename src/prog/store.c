#include "prog/store.h"

#include "base/err.h"

#include <string.h>

void store_init(Store *s)
{
    memset(s, 0, sizeof *s);
    arena_init(&s->arena);
}

void store_deinit(Store *s) { arena_deinit(&s->arena); }

static Tensor *store_add(Store *s)
{
    CHECK(!s->sealed, "a tensor was declared after the store was sealed");
    if (s->n_tensor == s->cap) {
        int        cap  = s->cap ? 2 * s->cap : 256;
        Tensor   **t    = ARENA_ARRAY(&s->arena, Tensor *, cap);
        Tensor   **grad = ARENA_ARRAY(&s->arena, Tensor *, cap);
        StoreFp8 **fp8  = ARENA_ARRAY(&s->arena, StoreFp8 *, cap);
        if (s->n_tensor) {
            memcpy(t, s->tensor, sizeof *t * (size_t)s->n_tensor);
            memcpy(grad, s->grad, sizeof *grad * (size_t)s->n_tensor);
            memcpy(fp8, s->fp8, sizeof *fp8 * (size_t)s->n_tensor);
        }
        s->tensor = t;
        s->grad   = grad;
        s->fp8    = fp8;
        s->cap    = cap;
    }
    Tensor *t              = ARENA_NEW(&s->arena, Tensor);
    s->tensor[s->n_tensor] = t;
    return t;
}

Tensor *store_tensor(Store *s, Slab slab, const char *name, DType dtype, int ndim, const int64_t *dim)
{
    CHECK(slab != SLAB_ACT, "%s: activations belong to programs", name);
    Tensor *t = store_add(s);
    tensor_init(t, arena_strdup(&s->arena, name), dtype, ndim, dim);
    t->id          = s->n_tensor++;
    t->slab        = slab;
    t->slab_offset = s->slab_bytes[slab];
    s->slab_bytes[slab] += tensor_root_bytes(t);
    return t;
}

Tensor *store_view_as(Store *s, Tensor *root, const char *name, size_t offset_bytes, DType dtype, int ndim,
                      const int64_t *dim)
{
    Tensor *t = store_add(s);
    tensor_init(t, arena_strdup(&s->arena, name), dtype, ndim, dim);
    CHECK(root->root == root && offset_bytes + tensor_bytes(t) <= tensor_bytes(root),
          "%s does not lie within %s", name, root->name);
    t->id           = s->n_tensor++;
    t->root         = root;
    t->slab         = root->slab;
    t->offset_bytes = offset_bytes;
    return t;
}

Tensor *store_view(Store *s, Tensor *root, const char *name, int64_t offset_elem, int ndim,
                   const int64_t *dim)
{
    CHECK(offset_elem >= 0, "%s: offset %lld", name, (long long)offset_elem);
    return store_view_as(s, root, name, (size_t)offset_elem * dtype_bytes(root->dtype), root->dtype, ndim,
                         dim);
}

void store_set_grad(Store *s, const Tensor *weight, Tensor *grad)
{
    CHECK(tensor_numel(weight) == tensor_numel(grad), "%s and its gradient differ in size", weight->name);
    s->grad[weight->id] = grad;
}

void store_set_fp8(Store *s, const Tensor *weight, const StoreFp8 *copies)
{
    s->fp8[weight->id]  = ARENA_NEW(&s->arena, StoreFp8);
    *s->fp8[weight->id] = *copies;
}

const StoreFp8 *store_fp8(const Store *s, const Tensor *t)
{
    return t->id < s->n_tensor ? s->fp8[t->id] : NULL;
}

static int shares_bytes(const Tensor *a, const Tensor *b)
{
    return a->root == b->root && a->offset_bytes < b->offset_bytes + tensor_bytes(b) &&
           b->offset_bytes < a->offset_bytes + tensor_bytes(a);
}

Tensor *store_grad(const Store *s, const Tensor *t)
{
    if (t->id < s->n_tensor) return s->grad[t->id];
    if (t->slab != SLAB_MASTER && t->slab != SLAB_COPY) return NULL;
    for (int i = 0; i < s->n_tensor; i++) {
        CHECK(!s->grad[i] || !shares_bytes(t, s->tensor[i]),
              "%s is a view of the trainable %s: its gradient would be lost", t->name, s->tensor[i]->name);
    }
    return NULL;
}

void store_seal(Store *s) { s->sealed = 1; }

static void fit(Store *s, Slab slab, size_t size_bytes)
{
    CHECK(!s->base[slab], "%s: already allocated", slab_name(slab));
    s->slab_bytes[slab] = MAX(s->slab_bytes[slab], size_bytes);
}

void store_fit_act(Store *s, size_t size_bytes) { fit(s, SLAB_ACT, size_bytes); }
void store_fit_scratch(Store *s, size_t size_bytes) { fit(s, SLAB_SCRATCH, size_bytes); }

size_t store_total_bytes(const Store *s)
{
    size_t sum = 0;
    for (int i = 0; i < SLAB_COUNT; i++) sum += s->slab_bytes[i];
    return sum;
}

int store_alloc_slabs(Store *s, Dev *dev)
{
    CHECK(s->sealed, "seal the store first");
    for (int i = 0; i < SLAB_COUNT; i++) {
        if (s->slab_bytes[i] == 0) continue;
        s->base[i] = dev_slab_alloc(dev, s->slab_bytes[i]);
        if (!s->base[i]) {
            store_free_slabs(s, dev);
            return err_set("cannot allocate %zu bytes for %s", s->slab_bytes[i], slab_name((Slab)i));
        }
    }
    for (int i = 0; i < s->n_tensor; i++) {
        Tensor *t = s->tensor[i];
        t->data   = (char *)s->base[t->slab] + t->root->slab_offset + t->offset_bytes;
    }
    if (dev->vt->use_scratch) dev->vt->use_scratch(dev, s->base[SLAB_SCRATCH], s->slab_bytes[SLAB_SCRATCH]);
    return 0;
}

void store_free_slabs(Store *s, Dev *dev)
{
    if (dev->vt->use_scratch) dev->vt->use_scratch(dev, NULL, 0);
    for (int i = SLAB_COUNT - 1; i >= 0; i--) {
        if (s->base[i]) dev_slab_free(dev, s->base[i]);
        s->base[i] = NULL;
    }
    for (int i = 0; i < s->n_tensor; i++) s->tensor[i]->data = NULL;
}
