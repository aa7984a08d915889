/* Attention on Hopper's tensor cores for bf16 heads of up to 128, of a sequence with itself or with another
 * one, every mask and length, with the same bits every time. */
#ifndef DEV_CUDA_K_ATTN_TILE_H
#define DEV_CUDA_K_ATTN_TILE_H

#include "dev/cuda/cuda_tma.h"
#include "dev/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of queries [B,T,H*D] and of keys and values [B,S,K*D], ld_* elements apart, each pointer at head 0;
 * see AttnFwd, AttnBwd, CrossAttnFwd, CrossAttnBwd in dev/op.h. */
typedef struct {
    void        *q, *k, *v;
    void        *o, *lse;             /* written by forward, read by backward */
    void        *dout, *dq, *dk, *dv; /* backward's */
    void        *ws;
    const float *table; /* backward's, f32[T, head_dim]: dq and dk are rotated back by it; NULL: they are not;
                         with heads of 64 or 128 only */
    const int   *doc, *prefix, *first, *last; /* [B,T], [B], [B,T], [B,T], for the masks that need them */
    const int   *len; /* [B]: keys of each sequence, full and range masks only; NULL: S */
    int64_t      B, T, S;
    int64_t      ld_q, ld_k, ld_o, ld_dout, ld_dq, ld_dk; /* ld_k, ld_dk: of k and v */
    AttnShape    shape;
} TileAttn;

/* Bytes of ws. */
int64_t tile_attn_fwd_ws(const TileAttn *a);
int64_t tile_attn_bwd_ws(const TileAttn *a);

/* NULL, or why this attention cannot run here. */
const char *tile_attn_refuses(const TileAttn *a);

/* 0, or -1 after err_set(). */
int tile_attn_fwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream);
int tile_attn_bwd(const TileAttn *a, TmaEncode encode, int n_sm, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
