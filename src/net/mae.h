/* Mae: masked autoencoding. A vision transformer reads some patches of a sample, and a small decoder guesses
 * the pixels of the others.
 *
 *     pixels -> patches -> those that are seen -> trunk -> norm                          [B, read, C]
 *     linear -> put at their places, the mask token at the others -> positions           [B, n, D]
 *     blocks -> norm -> those that are hidden -> linear                          [B*hidden, numbers]
 *
 * 1. The trunk is a Vit without a head, with the names that task image gives its weights, so task image goes
 *    on with them.
 * 2. A target is a hidden patch with mean 0 and variance 1 over all its numbers, in f32. The loss of a patch
 *    is the mean over its numbers of the squared difference.
 * 3. The last product has no bias. A row that stands for no patch is zero, so its guess, its target and its
 *    loss are zero.
 * 4. The decoder sees patches alone: a class token stays in the trunk.
 * 5. Names: decoder.embed.{weight,bias} decoder.mask.weight decoder.block.N.* decoder.norm.*
 *    decoder.pixels.weight. Its positions are sines and cosines. */
#ifndef NET_MAE_H
#define NET_MAE_H

#include "net/vit.h"

typedef struct {
    Vit     vit;
    Net     decoder;
    int64_t n, hidden; /* patches of a sample, and those of them that are hidden */
    int64_t numbers;   /* of a patch */
    /* constants */
    Tensor *pos;  /* [n,D] */
    Tensor *unit; /* f32[numbers]: each sqrt(2/numbers). MSE adds up halves of squares; of guess and target
                   * in this unit, that is the mean of squares. */
} Mae;

/* One micro-batch on the device: what the fields of data/image_mask.h say. */
typedef struct {
    VitBatch image;
    Tensor  *hidden;      /* i32[B,hidden]: rows of patches; -1: none */
    Tensor  *slot, *hole; /* i32[B,n]: the trunk's row of a seen patch; 0 for a hidden one; else -1 */
} MaeBatch;

/* Declares every weight and constant. r is of task mae. B: samples of a micro-batch. */
void mae_declare(Mae *m, Store *store, const Recipe *r, const ParamOptions *opt, int64_t B);
void mae_deinit(Mae *m);

/* Records pixels -> guesses [B*hidden, numbers], in the unit of Mae.unit. */
Tensor *mae_record(const Mae *m, Prog *p, const MaeBatch *b, Tensor *state, NetMode mode);
/* Records guesses -> loss (added to slot 0 of state). */
void mae_record_loss(const Mae *m, Prog *p, const MaeBatch *b, Tensor *guess, Tensor *state);

/* ---- host values of constants ---- */

void mae_fill_pos(const Mae *m, float *out);  /* n * D */
void mae_fill_unit(const Mae *m, float *out); /* numbers */

#endif
