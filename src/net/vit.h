/* Vit: a vision transformer for images and clips: patches, positions, the trunk, pooling, a head.
 *
 * 1. Stem: pixels (bytes) become rows of patches (PATCHES), a product makes tokens of them, positions are
 *    added. A class token comes first where image.pool is class. Registers (image.registers) come last; they
 *    have no positions, and the head does not read them.
 * 2. Head: the mean of all tokens behind the last norm, or the class token; then one product. Its rows are
 *    padded to a multiple of VIT_CLASS_ALIGN.
 * 3. Positions are a table for a grid of tokens, frame by frame and row by row (image.pos_size,
 *    image.pos_frames). Where the net sees another grid, a constant matrix resamples the table. So the
 *    weights are the same at every size.
 * 4. With image.seen_patches the trunk reads some patches of a sample; the batch says which (task mae).
 *    Without image.classes there is no head.
 * 5. Names: patch.{weight,bias} class.weight pos.weight register.weight block.N.* norm.* head.{weight,bias}.
 *    Columns of patch.weight go by (frame, row, column, channel). */
#ifndef NET_VIT_H
#define NET_VIT_H

#include "conf/relate_image.h"
#include "net/net.h"

enum { VIT_CLASS_ALIGN = 8 };

typedef struct {
    Net         net;
    RecipeImage image;
    ImageGrid   grid, pos_grid;
    int64_t     T;            /* tokens of a sample, the class token included */
    int64_t     some;         /* so many of them that the trunk reads */
    int64_t     read;         /* all that the trunk reads: those, and registers */
    int64_t     stored_class; /* rows of the head */
    float       mean[3], std[3];
    /* constants */
    Tensor *sincos;   /* [T,C] */
    Tensor *resample; /* [T,tokens of pos_grid]; NULL: the table is used as it is */
    Tensor *spread;   /* i32[B*some]: row of the patch, -1 for the class token */
    Tensor *put;      /* i32[B*some]: 0 for the class token, else -1 */
    Tensor *pick;     /* i32[B]: row of the class token */
    Tensor *before;   /* i32[B*read]: row of the token, -1 for a register */
    Tensor *extra;    /* i32[B*read]: number of the register, else -1 */
    Tensor *len;      /* i32[B]: some */
} Vit;

/* One micro-batch on the device. What mixing and hiding need may be NULL. */
typedef struct {
    int64_t B;
    Tensor *sample0;         /* i64[1] */
    Tensor *pixels;          /* u8[B, frames, size, size, 3] */
    Tensor *label;           /* i32[B] */
    Tensor *label2, *share;  /* i32[B], f32[B]: the partner's label, and the weight of the own */
    Tensor *partner, *blend; /* i32[B], f32[B]: the partner's distance, and the weight of the own pixels */
    Tensor *box;             /* i32[B,4] */
    Tensor *seen, *place;    /* i32[B,image.seen_patches], i32[B,some]: rows of patches, of positions */
} VitBatch;

/* Tokens of a sample, the class token included, registers not. */
int64_t vit_tokens(const RecipeImage *m);

/* Declares every weight and constant. B: samples of a micro-batch. */
void vit_declare(Vit *v, Store *store, const Recipe *r, const ParamOptions *opt, const NetPlace *place,
                 int64_t B);
void vit_deinit(Vit *v);

/* Numbers of a patch. */
int64_t vit_patch_numbers(const RecipeImage *m);

/* Records pixels -> all patches [B, n, numbers]. mixes: as the batch says. */
Tensor *vit_record_patches(const Vit *v, Prog *p, const VitBatch *b, DType dtype, int mixes);
/* Records pixels -> the residual stream [B, read, C] behind the last block. The run's batch has that T. */
Tensor *vit_record_blocks(const Vit *v, const NetRun *run, const VitBatch *b);
/* Records pixels -> logits [B, stored_class]. Mixes where the batch says how. */
Tensor *vit_record(const Vit *v, Prog *p, const VitBatch *b, Tensor *state, NetMode mode);
/* Records logits -> loss (added to slot 0 of state). Training: with mixing and smoothing. Evaluation: hard
 * targets; how often the target was the first and among the first five goes to slots 1 and 2. */
void vit_record_loss(const Vit *v, Prog *p, const VitBatch *b, Tensor *logits, Tensor *state, NetMode mode);

/* ---- host values of constants ---- */

void vit_fill_sincos(const Vit *v, float *out); /* T * C */
/* The same for the patches alone, C numbers each. */
void vit_fill_grid(const Vit *v, int64_t C, float *out);
void vit_fill_resample(const Vit *v, float *out); /* T * rows of the table */
void vit_fill_rows(const Vit *v, int64_t B, int32_t *spread, int32_t *put, int32_t *pick);
void vit_fill_registers(const Vit *v, int64_t B, int32_t *before, int32_t *extra, int32_t *len);

#endif
