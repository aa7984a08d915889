/* Net: a transformer as a parameter table and the functions that record its ops. The net does not know
 * whether it runs on a CPU or a GPU.
 *
 * 1. A Net owns its table and constants. A program may read several Nets: each has a prefix, random sites and
 *    blocks of its own (NetPlace). A frozen Net has no gradients.
 * 2. Recording order is execution order: stem, blocks, head. docs/tour.md walks through net_record_*.
 * 3. Names: embed.weight pos.weight block.N.{norm1,qkv,q_norm,k_norm,proj,norm2,up,down}.{weight,bias} norm.*
 *    head.weight. up holds [gate | up] for SwiGLU. block.N.{scale1,scale2}.weight: layer scale.
 * 4. A net with another stem and head (net/vit.c) uses the trunk through the functions at the end. */
#ifndef NET_NET_H
#define NET_NET_H

#include "conf/recipe.h"
#include "net/param.h"
#include "prog/prog.h"

/* Stored rows of embedding and head: unaligned widths run at an eighth of the rate (V = 50257). */
enum { VOCAB_ALIGN = 128 };

typedef struct {
    RecipeModel model;
    DType       compute;
    int         deterministic;
    int         stored_attn; /* attention keeps its weights (opt.flash off) */
    ParamTable  table;
    int         block0;     /* blocks of the nets before this one */
    int         site0;      /* random sites of dropout begin here */
    Tensor     *rope_table; /* f32[context or more, D], constant; NULL with learned positions */
    int         is_bare;    /* blocks and the last norm alone */
    Tensor    **value_w;    /* by block, of a bare net with context 1: the rows of qkv that make values */
} Net;

/* What tells a net from the others of its run. All zero for the only one, or the first. */
typedef struct {
    const char *prefix;    /* of its weights' names; NULL: none */
    int         index;     /* 0, 1, ...: sites of net i begin at i * NET_SITES */
    int         block0;    /* blocks of the nets before */
    int         bare;      /* 1: no embeddings and no head: the caller has its own */
    int64_t     positions; /* rows of the table of rotations; 0: model.context */
} NetPlace;

enum { NET_SITES = 1 << 20 };

/* One micro-batch on the device. */
typedef struct {
    int64_t B, T;
    Tensor *sample0; /* i64[1] */
    Tensor *tok;     /* i32[B,T] */
    Tensor *target;  /* i32[B*T,1] */
    Tensor *doc;     /* i32[B,T], only with document masking */
    Tensor *prefix;  /* i32[B], only with prefix masking */
    /* i32[B,T]: the rows that each row sees, instead of the model's mask. mean_keys: so many on average. */
    Tensor *first, *last;
    int     mean_keys;
    /* i32[n]: the rows of B*T that somebody reads behind the trunk; NULL: all. The last block computes others
     * only as far as attention needs them. Only with NET_EVAL. */
    Tensor *read;
} NetBatch;

/* New tokens of B sequences and the caches of all before them. Programs with different T may share caches. */
typedef struct {
    int64_t  B, T;             /* sequences; new tokens of each */
    Tensor  *tok;              /* i32[B,T] */
    Tensor  *pos;              /* i32[B]: rows in the cache before these tokens */
    Tensor  *last;             /* i32[B]: the row of B*T whose logits are wanted; NULL: all rows */
    Tensor  *logits;           /* f32[rows,V stored] */
    Tensor **kcache, **vcache; /* one pair per block, [B, S, K, D] */
} NetDecode;

typedef enum { NET_TRAIN, NET_EVAL } NetMode;

/* Declares every weight and constant in the store. */
void net_declare(Net *net, Store *store, const RecipeModel *m, const ParamOptions *opt,
                 const NetPlace *place);
void net_deinit(Net *net);

/* The newest model.window keys as a range for each token of a batch; nothing without a window. */
void net_declare_window(const Net *net, Store *store, NetBatch *batch);
/* Host values of first and last, B*T each. */
void net_fill_window(const Net *net, const NetBatch *batch, int32_t *first, int32_t *last);

/* Caches of S rows for B sequences, and one new token for each. */
void net_declare_decode(const Net *net, Store *store, NetDecode *d, int64_t B, int64_t S);
/* T new tokens for each, with the caches of d. all: logits of every token. */
void net_declare_prefill(const Net *net, Store *store, const NetDecode *d, NetDecode *out, int64_t T,
                         int all);

/* Records tokens -> loss (added to state). head_rows: rows of logits at a time. */
void net_record(const Net *net, Prog *p, const NetBatch *batch, Tensor *state, NetMode mode,
                int64_t head_rows);
/* Records new tokens -> logits of what follows, through the caches. */
void net_record_decode(const Net *net, Prog *p, const NetDecode *d);

/* ---- the trunk, for nets with a stem and a head of their own ---- */

/* Begins an empty table; then come the rows of the stem, net_declare_blocks(), the rows of the head, and
 * param_layout(). */
void net_begin(Net *net, const RecipeModel *m, const ParamOptions *opt, const NetPlace *place);
void net_declare_linear(Net *net, const char *name, int64_t rows, int64_t cols, double std, int bias);
void net_declare_norm(Net *net, const char *name, int64_t width, int beta);
void net_declare_blocks(Net *net);

/* One reading of the trunk. Of the batch, B, T, sample0 and the masks count. */
typedef struct {
    Prog           *p;
    const NetBatch *batch;
    Tensor         *state; /* NULL unless it trains with dropout */
    NetMode         mode;
    const NetDecode
        *decode; /* through its caches, from position decode->pos (i32[1] or i32[B]) on; or NULL */
} NetRun;

/* The residual stream x [B,T,C] behind the last block. */
Tensor *net_record_blocks(const Net *net, const NetRun *run, Tensor *x);
/* The norm `name` (of no block) of the rows of x. */
Tensor *net_record_norm(const Net *net, const NetRun *run, const char *name, Tensor *x);

/* The same and the last norm: [B,T,C], or [1,n,C] with batch->read. A bare net with context 1: a query has
 * one key, so attention is the value, and queries and keys are not computed. */
Tensor *net_record_trunk(const Net *net, const NetRun *run, Tensor *x);
/* The matrix of the logits. */
Tensor *net_head_weight(const Net *net);

/* Caches of so many rows for B sequences; the positions are the caller's. */
void net_declare_caches(const Net *net, Store *store, NetDecode *d, int64_t B, int64_t rows);

/* Host values of the rope table, as many as the tensor has. */
void net_fill_rope(const Net *net, float *out);

int64_t net_vocab_stored(const RecipeModel *m);

#endif
