/* ByteEncoder: bytes to a fixed number of vectors that a language model reads in place of a prompt.
 *
 *     bytes -> embedding + positions -> blocks that see the whole prompt -> norm                [R, width]
 *     M learned queries -> cross-attention over the prompt, gate -> feed-forward              [B*M, width]
 *     norm -> linear -> GELU -> linear -> RMS norm, calibrated to the embedding                 [B*M, out]
 *
 * 1. Prompts of different lengths are packed side by side (PackRows). A prompt sees its own rows only, so its
 *    latents do not depend on its neighbours.
 * 2. Names: encoder.embed.weight encoder.pos.weight encoder.block.N.* encoder.norm.*; pool.query.weight
 *    pool.{norm_q,q,kv,proj,gate,norm,up,down}.*; pool.adapt_norm.*, pool.adapt_up.*, pool.adapt_down.*,
 *    pool.out.weight. */
#ifndef NET_ENCODER_H
#define NET_ENCODER_H

#include "net/net.h"

typedef struct {
    RecipeEncoder shape;
    int64_t       out; /* the language model's width */
    Net           trunk;
    ParamTable    pool;
} ByteEncoder;

/* A micro-batch: B prompts in R packed rows. */
typedef struct {
    int64_t B, R;
    Tensor *bytes;     /* i32[B,S] */
    Tensor *len;       /* i32[B] */
    Tensor *query_row; /* i32[B*M]: the query of each latent, a constant (encoder_fill_query_rows()) */
    int     align;     /* of a prompt's first row */
    int     mean_len;  /* rows that a row sees on average, for FLOPs alone */
} EncoderBatch;

/* out: width of what comes out. index: 0, 1, ... of nets of the run (NetPlace). block0: blocks before. */
void encoder_declare(ByteEncoder *e, Store *store, const RecipeEncoder *shape, int64_t out,
                     const ParamOptions *opt, int index, int block0);
void encoder_deinit(ByteEncoder *e);

typedef struct {
    Tensor *pooled;  /* [B*M, width] before the adapter */
    Tensor *latents; /* [B*M, out] */
} EncoderOut;

EncoderOut encoder_record(const ByteEncoder *e, Prog *p, const EncoderBatch *b);

void encoder_fill_query_rows(const ByteEncoder *e, int64_t B, int32_t *out);

#endif
