/* What the files of attention share: a shape, one launch's addresses, and what was chosen for the shape. */
#ifndef DEV_CUDA_CUDA_ATTN_IMPL_H
#define DEV_CUDA_CUDA_ATTN_IMPL_H

#include "dev/cuda/cuda_cudnn.h"
#include "dev/cuda/cuda_dev.h"

/* Compared bytewise: no padding, and zeroed before it is filled. */
typedef struct {
    int64_t B, T, H, K, D;
    int64_t ld_qkv, ld_o, ld_dout, ld_dqkv, ws_bytes;
    int32_t bwd, dtype, mask, deterministic, own,
        none; /* none: no gap at the end, keys are compared as bytes */
} AttnKey;

typedef enum { ATTN_SIMPLE, ATTN_TILES, ATTN_CUDNN } AttnWay;

typedef struct {
    AttnKey    key;
    AttnWay    way;
    CudnnGraph graph;
    CudnnDesc  plan;    /* with ATTN_CUDNN */
    int64_t    plan_ws; /* bytes of its workspace */
} AttnPlan;

struct CudaAttn {
    CudnnLib      lib;
    cudnnHandle_t handle; /* NULL: no cuDNN */
    cudaStream_t  stream; /* the handle's */
    size_t        version;
    AttnPlan    **plan;
    int           n_plan, cap;
};

/* Addresses of one launch. */
typedef struct {
    char        *qkv, *o, *lse, *dout, *dqkv, *ws;
    float        scale;
    const float *table; /* of rotations, for tiles; the others leave them to cuda_rope() */
    const int   *doc, *prefix, *first, *last; /* for tiles: cuDNN has no such masks */
} AttnData;

/* cuda_attn_graph.c */

/* NULL, or why cuDNN is not asked at all. */
const char *attn_graph_refuses(const AttnKey *k);
/* Builds the key's graph. Returns how many engines cuDNN proposes for it, negative with p->graph.error
 * set. */
int attn_graph_build(CudaAttn *c, AttnPlan *p);
/* Proposal i as the plan: 0, or 1 when it cannot be or wants more workspace than there is. */
int attn_graph_take(CudaAttn *c, AttnPlan *p, int i);
/* NULL, or why it did not run. */
const char *attn_graph_run(CudaDev *d, AttnPlan *p, const AttnData *x);

#endif
