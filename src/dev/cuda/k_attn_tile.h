/* Attention on Hopper's tensor cores for bf16 heads of 64 or 128, packed rows, every mask, with the same bits
 * every time. */
#ifndef DEV_CUDA_K_ATTN_TILE_H
#define DEV_CUDA_K_ATTN_TILE_H

#include "dev/cuda/cuda_tma.h"
#include "dev/op.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows are [q heads | k heads | v heads], ld_* elements apart; see AttnFwd, AttnBwd in dev/op.h. */
typedef struct {
    void *qkv, *o, *lse; /* o and lse: written by forward, read by backward */
    void *dout, *dqkv;   /* backward's */
    void *ws;
    const float
              *table; /* backward's, f32[T, head_dim]: dq and dk are rotated back by it; NULL: they are not */
    const int *doc, *prefix, *first, *last; /* [B,T], [B], [B,T], [B,T], for the masks that need them */
    int64_t    B, T;
    int64_t    ld_qkv, ld_o, ld_dout, ld_dqkv;
    AttnShape  shape;
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
