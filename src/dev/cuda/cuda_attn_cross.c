/* Cross-attention: tiles (k_attn_tile_*.cu) for bf16 on Hopper where lengths allow it, else the simple kernel
 * (k_attn.cu). Nothing is timed: tiles are faster wherever they can run. */
#include "dev/cuda/cuda_attn.h"
#include "dev/cuda/k_attn_tile.h"

static const int *ints(const Tensor *t) { return t ? t->data : NULL; }

static void *elem_at(const Tensor *t, int64_t i)
{
    return (char *)t->data + (size_t)i * dtype_bytes(t->dtype);
}

/* In one piece, and aligned as the kernels read it. */
static int is_plain(const Tensor *t) { return t && tensor_is_contiguous(t) && (uintptr_t)t->data % 16 == 0; }

/* What forward and backward share. */
static TileAttn tiles_of(const AttnShape *s, const Tensor *q, const Tensor *kv, const Tensor *o,
                         const Tensor *ws)
{
    return (TileAttn){ .q     = q->data,
                       .k     = kv->data,
                       .v     = elem_at(kv, (int64_t)s->kv_heads * s->head_dim),
                       .o     = o->data,
                       .ws    = ws ? ws->data : NULL,
                       .B     = q->dim[0],
                       .T     = q->dim[1],
                       .S     = kv->dim[1],
                       .ld_q  = tensor_ld(q),
                       .ld_k  = tensor_ld(kv),
                       .ld_o  = tensor_ld(o),
                       .shape = *s };
}

/* 1 if tiles can do it with this workspace, of which they need ws_need bytes. */
static int tiles_can(const CudaDev *d, const TileAttn *t, const Tensor *ws, int64_t ws_need)
{
    if (!d->encode || d->base.opt.own < 0) return 0;
    return ws && (int64_t)tensor_bytes(ws) >= ws_need && !tile_attn_refuses(t);
}

static int is_bf16(const Tensor *t) { return t->dtype == DT_BF16; }

int cuda_cross_attn_fwd(Dev *dev, const CrossAttnFwd *a)
{
    CudaDev *d  = (CudaDev *)dev;
    TileAttn t  = tiles_of(&a->shape, a->q, a->kv, a->o, a->ws);
    int      ok = is_bf16(a->q) && is_bf16(a->kv) && is_bf16(a->o);
    t.lse       = a->lse->data;
    t.first     = ints(a->first);
    t.last      = ints(a->last);
    t.len       = ints(a->len);
    ok          = ok && (a->shape.mask == MASK_FULL || (is_plain(a->first) && is_plain(a->last)));
    if (!ok || !tiles_can(d, &t, a->ws, tile_attn_fwd_ws(&t))) return cuda_flash_cross_fwd(dev, a);
    return tile_attn_fwd(&t, d->encode, d->n_sm, cuda_stream(dev));
}

int cuda_cross_attn_bwd(Dev *dev, const CrossAttnBwd *a)
{
    CudaDev *d  = (CudaDev *)dev;
    TileAttn t  = tiles_of(&a->shape, a->q, a->kv, a->o, a->ws);
    int      ok = is_bf16(a->q) && is_bf16(a->kv) && is_bf16(a->o) && is_bf16(a->dout);
    t.lse       = a->lse->data;
    t.dout      = a->dout->data;
    t.dq        = a->dq->data;
    t.dk        = a->dkv->data;
    t.dv        = elem_at(a->dkv, (int64_t)a->shape.kv_heads * a->shape.head_dim);
    t.ld_dout   = tensor_ld(a->dout);
    t.ld_dq     = tensor_ld(a->dq);
    t.ld_dk     = tensor_ld(a->dkv);
    t.first     = ints(a->first);
    t.last      = ints(a->last);
    t.len       = ints(a->len);
    ok          = ok && is_bf16(a->dq) && is_bf16(a->dkv);
    ok          = ok && (a->shape.mask == MASK_FULL || (is_plain(a->first) && is_plain(a->last)));
    if (!ok || !tiles_can(d, &t, a->ws, tile_attn_bwd_ws(&t))) return cuda_flash_cross_bwd(dev, a);
    return tile_attn_bwd(&t, d->encode, d->n_sm, cuda_stream(dev));
}
