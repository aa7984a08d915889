/* Random programs: a script is drawn first. A test may record the script several times, with other passes or
 * on other devices, and gets the same program each time. Scripts have several consumers of a value, dead
 * ends, frozen weights, shared weights, blocks with their own recomputation level and a head in chunks. */
#ifndef TESTS_RANDOM_PROG_H
#define TESTS_RANDOM_PROG_H

#include "base/err.h"
#include "dice.h"
#include "prog/prog.h"
#include "prog/record.h"

#include <string.h>

enum { SCRIPT_MAX = 32, SCRIPT_BLOCKS = 4, SCRIPT_VOCAB = 11, SCRIPT_VOCAB_STORED = 16 };

typedef enum {
    DO_LINEAR,
    DO_LINEAR_BIAS,
    DO_ADD,
    DO_ACT,
    DO_NORM,
    DO_RMS,
    DO_GLU,
    DO_DROPOUT,
    DO_ROPE,
    DO_QKNORM,
    DO_ATTN,
    DO_CROSS,
    DO_COUNT
} Do;

typedef struct {
    Do      what;
    int     a, b;    /* values read: 0 is the embedding, i + 1 the result of line i */
    int64_t width;   /* of the result */
    int     weights; /* line whose weights it uses: itself, or an earlier one with the same shapes */
    int     frozen;
    int     block;
    Act     act;
} Line;

typedef struct {
    Line           line[SCRIPT_MAX];
    int            n_line, embed_frozen;
    int64_t        B, T, width, head_rows;
    RecomputeLevel level[SCRIPT_BLOCKS];
    RecipeOpt      lower;
    int            hoist;
} Script;

/* ---- drawing ------------------------------------------------------------------------------------------- */

static inline int64_t script_width(const Script *s, int value)
{
    return value == 0 ? s->width : s->line[value - 1].width;
}

static inline int script_pick(Dice *d, const Script *s, int64_t width)
{
    int reach = 1 + dice_roll(d, 6); /* mostly recent ones */
    int value = s->n_line - dice_roll(d, MIN(s->n_line + 1, reach));
    for (; width && value > 0 && script_width(s, value) != width; value--) {
    }
    return value;
}

static inline int has_weights(Do what)
{
    return what == DO_LINEAR || what == DO_LINEAR_BIAS || what == DO_NORM || what == DO_RMS ||
           what == DO_QKNORM;
}

static inline void script_share_weights(Dice *d, Script *s, Line *l)
{
    int i = dice_roll(d, SCRIPT_MAX);
    if (i >= s->n_line || s->line[i].what != l->what || s->line[i].width != l->width) return;
    if (script_width(s, s->line[i].a) == script_width(s, l->a)) l->weights = s->line[i].weights;
}

/* share: one weight may serve several lines; then the order of its sums depends on lowering. */
static inline void script_draw(Script *s, uint64_t seed, int share)
{
    static const int64_t widths[] = { 8, 16, 24, 32, 48 };
    Dice                 d        = { .seed = seed };
    memset(s, 0, sizeof *s);
    s->B            = 1 + dice_roll(&d, 3);
    s->T            = 2 + dice_roll(&d, 6);
    s->width        = widths[dice_roll(&d, 5)];
    s->head_rows    = 1 + dice_roll(&d, (int)(s->B * s->T));
    s->embed_frozen = dice_roll(&d, 3) == 0;
    s->hoist        = dice_roll(&d, 4) != 0;
    s->lower        = (RecipeOpt){ .add_norm   = dice_roll(&d, 4) != 0,
                                   .norm_bwd   = dice_roll(&d, 4) != 0,
                                   .xent       = dice_roll(&d, 4) != 0,
                                   .act_bias   = dice_roll(&d, 4) != 0,
                                   .linear_act = dice_roll(&d, 4) != 0 };
    for (int i = 0; i < SCRIPT_BLOCKS; i++) s->level[i] = (RecomputeLevel)dice_roll(&d, 3);
    int n = 2 + dice_roll(&d, SCRIPT_MAX - 2);
    while (s->n_line < n) {
        Line l  = { .what    = (Do)dice_roll(&d, DO_COUNT),
                    .weights = s->n_line,
                    .frozen  = dice_roll(&d, 5) == 0,
                    .block   = s->n_line * SCRIPT_BLOCKS / n,
                    .act     = (Act)dice_roll(&d, ACT_COUNT) };
        l.a     = script_pick(&d, s, 0);
        l.width = script_width(s, l.a);
        l.b     = script_pick(&d, s, l.width);
        if ((l.what == DO_ADD || l.what == DO_CROSS) && script_width(s, l.b) != l.width) l.b = l.a;
        if (l.what == DO_LINEAR || l.what == DO_LINEAR_BIAS) l.width = widths[dice_roll(&d, 5)];
        if (l.what == DO_GLU) {
            if (l.width % 16) continue; /* widths stay multiples of 8 */
            l.width /= 2;
        }
        if (l.what == DO_ATTN) l.width /= 2; /* heads 2, kv_heads 1: q is half of the packed row */
        if (l.width % 8) continue;
        if (share && has_weights(l.what)) script_share_weights(&d, s, &l);
        s->line[s->n_line++] = l;
    }
    s->lower.linear_act_bwd = dice_roll(&d, 4) != 0;
    s->lower.act_slope      = dice_roll(&d, 4) != 0;
    s->lower.linear_glu_fwd = dice_roll(&d, 4) != 0;
    s->lower.linear_glu_bwd = dice_roll(&d, 4) != 0;
    s->lower.linear_dw_bias = dice_roll(&d, 2); /* what it takes, LINEAR_ACT_BWD cannot */
    s->lower.attn_rope      = dice_roll(&d, 4) != 0;
}

/* ---- recording ----------------------------------------------------------------------------------------- */

typedef struct {
    Tensor *w, *bias;
} Weights;

typedef struct {
    Store   store;
    Prog   *p;
    Tensor *state, *tok, *target, *sample0, *rope, *embed, *head;
    Tensor *norm_gamma;
    Weights weights[SCRIPT_MAX];
    int64_t B, T;
} Case;

static inline Tensor *case_weight(Case *c, const char *name, int64_t rows, int64_t cols, int frozen)
{
    int64_t dim[2] = { rows, cols };
    int     ndim   = rows ? 2 : 1;
    Tensor *w      = store_tensor(&c->store, SLAB_MASTER, name, DT_F32, ndim, rows ? dim : &cols);
    if (frozen) return w;
    store_set_grad(&c->store, w, store_tensor(&c->store, SLAB_GRAD, name, DT_F32, ndim, rows ? dim : &cols));
    return w;
}

static inline void case_line_weights(Case *c, const Script *s, int i)
{
    const Line *l  = &s->line[i];
    int64_t     in = script_width(s, l->a);
    if (l->weights != i) {
        c->weights[i] = c->weights[l->weights];
    } else if (l->what == DO_LINEAR || l->what == DO_LINEAR_BIAS) {
        c->weights[i].w = case_weight(c, "matrix", l->width, in, l->frozen);
        if (l->what == DO_LINEAR_BIAS) c->weights[i].bias = case_weight(c, "bias", 0, l->width, l->frozen);
    } else if (l->what == DO_NORM || l->what == DO_RMS) {
        c->weights[i].w = case_weight(c, "gamma", 0, in, l->frozen);
        if (l->what == DO_NORM) c->weights[i].bias = case_weight(c, "beta", 0, in, l->frozen);
    } else if (l->what == DO_QKNORM) {
        c->weights[i].w    = case_weight(c, "q gamma", 0, in / 4, l->frozen);
        c->weights[i].bias = case_weight(c, "k gamma", 0, in / 4, l->frozen);
    }
}

static inline void case_declare(Case *c, const Script *s)
{
    int64_t one = 1, state = sizeof(StepState), bt[2] = { s->B, s->T }, n1[2] = { s->B * s->T, 1 };
    int64_t table[2] = { s->T, 8 };
    store_init(&c->store);
    c->B       = s->B;
    c->T       = s->T;
    c->state   = store_tensor(&c->store, SLAB_STATE, "state", DT_U8, 1, &state);
    c->tok     = store_tensor(&c->store, SLAB_IO, "tokens", DT_I32, 2, bt);
    c->target  = store_tensor(&c->store, SLAB_IO, "targets", DT_I32, 2, n1);
    c->sample0 = store_tensor(&c->store, SLAB_IO, "sample0", DT_I64, 1, &one);
    c->rope    = store_tensor(&c->store, SLAB_STATE, "rope", DT_F32, 2, table);
    c->embed   = case_weight(c, "embed", SCRIPT_VOCAB_STORED, s->width, s->embed_frozen);
    for (int i = 0; i < s->n_line; i++) case_line_weights(c, s, i);
    int64_t width = script_width(s, s->n_line);
    c->norm_gamma = case_weight(c, "last gamma", 0, width, 0);
    c->head       = case_weight(c, "head", SCRIPT_VOCAB_STORED, width, 0);
    store_seal(&c->store);
}

static inline Tensor *case_act(Case *c, const char *name, int64_t width)
{
    int64_t dim[3] = { c->B, c->T, width };
    return prog_tensor(c->p, name, DT_F32, 3, dim);
}

static inline Tensor *case_norm(Case *c, Tensor *x, Tensor *gamma, Tensor *beta)
{
    int64_t N = c->B * c->T;
    Tensor *y = prog_like(c->p, "norm", x), *rstd = prog_tensor(c->p, "rstd", DT_F32, 1, &N);
    Tensor *mean = beta ? prog_tensor(c->p, "mean", DT_F32, 1, &N) : NULL;
    rec_norm_fwd(
        c->p,
        (NormFwd){ .y = y, .mean = mean, .rstd = rstd, .x = x, .gamma = gamma, .beta = beta, .eps = 1e-5f });
    return y;
}

/* All of them, or those that attention over heads of 8 calls queries and keys. */
static inline int rope_heads(const Tensor *x, const Line *l)
{
    return tensor_cols(x) == 32 && l->a % 2 ? 3 : (int)(tensor_cols(x) / 8);
}

static inline void case_heads(Case *c, const Line *l, Tensor *y, Tensor *x, const Weights *w)
{
    int     D      = (int)(tensor_cols(x) / 4);
    int64_t lse[4] = { c->B, 2, c->T, c->T }, rstd[2] = { c->B * c->T, 3 };
    if (l->what == DO_ATTN) {
        Tensor   *stored = l->a % 2 ? prog_tensor(c->p, "weights", DT_F32, 4, lse) : NULL;
        AttnShape shape  = { .heads = 2, .kv_heads = 1, .head_dim = D, .scale = 0.4f, .deterministic = 1 };
        rec_attn_fwd(c->p, (AttnFwd){ .o     = y,
                                      .lse   = prog_tensor(c->p, "lse", DT_F32, 3, lse),
                                      .p     = stored,
                                      .qkv   = x,
                                      .shape = shape });
    } else {
        rec_qknorm_fwd(c->p, (QkNormFwd){ .y        = y,
                                          .rstd     = prog_tensor(c->p, "qk rstd", DT_F32, 2, rstd),
                                          .x        = x,
                                          .gq       = w->w,
                                          .gk       = w->bias,
                                          .heads    = 2,
                                          .kv_heads = 1,
                                          .head_dim = D,
                                          .eps      = 1e-5f });
    }
}

/* Two query heads, one key/value head: x and kv have one width. They may be one tensor. */
static inline void case_cross_heads(Case *c, Tensor *y, Tensor *x, Tensor *kv)
{
    int64_t   lse[3] = { c->B, 2, c->T };
    AttnShape shape  = {
         .heads = 2, .kv_heads = 1, .head_dim = (int)(tensor_cols(x) / 2), .mask = MASK_FULL, .scale = 0.4f
    };
    rec_cross_attn_fwd(
        c->p,
        (CrossAttnFwd){
            .o = y, .lse = prog_tensor(c->p, "lse", DT_F32, 3, lse), .q = x, .kv = kv, .shape = shape });
}

static inline Tensor *case_line(Case *c, const Line *l, int i, Tensor **value)
{
    Tensor        *x = value[l->a], *y;
    const Weights *w = &c->weights[i];
    if (l->what == DO_NORM || l->what == DO_RMS) return case_norm(c, x, w->w, w->bias);
    y = case_act(c, "value", l->width);
    switch (l->what) {
    case DO_ADD: rec_add(c->p, (Add){ .y = y, .a = x, .b = value[l->b] }); break;
    case DO_ACT: rec_act_fwd(c->p, (ActFwd){ .y = y, .x = x, .act = l->act }); break;
    case DO_GLU: rec_glu_fwd(c->p, (GluFwd){ .y = y, .x = x, .act = l->act }); break;
    case DO_DROPOUT:
        rec_dropout(c->p, (Dropout){ .y               = y,
                                     .x               = x,
                                     .state           = c->state,
                                     .sample0         = c->sample0,
                                     .p               = 0.2f,
                                     .site            = i,
                                     .rows_per_sample = c->T });
        break;
    case DO_ROPE:
        rec_rope(c->p, (Rope){ .y = y, .x = x, .table = c->rope, .n_head = rope_heads(x, l), .head_dim = 8 });
        break;
    case DO_QKNORM:
    case DO_ATTN: case_heads(c, l, y, x, w); break;
    case DO_CROSS: case_cross_heads(c, y, x, value[l->b]); break;
    default: rec_linear_fwd(c->p, (LinearFwd){ .y = y, .x = x, .w = w->w, .bias = w->bias }); break;
    }
    return y;
}

static inline void case_head(Case *c, const Script *s, Tensor *h)
{
    int64_t N = c->B * c->T, n1[2] = { N, 1 };
    Tensor *loss  = prog_tensor(c->p, "loss", DT_F32, 2, n1);
    int     chunk = 0;
    for (int64_t row = 0; row < N; row += s->head_rows) {
        int64_t n = MIN(s->head_rows, N - row), dim[2] = { n, SCRIPT_VOCAB_STORED };
        Tensor *logits = prog_tensor(c->p, "logits", DT_F32, 2, dim),
               *lse    = prog_tensor(c->p, "lse", DT_F32, 1, &n);
        prog_at(c->p, -1, chunk++, "head");
        rec_linear_fwd(c->p, (LinearFwd){ .y = logits, .x = prog_rows(c->p, h, row, n), .w = c->head });
        rec_xent_fwd(c->p, (XentFwd){ .loss    = prog_rows(c->p, loss, row, n),
                                      .lse     = lse,
                                      .logits  = logits,
                                      .target  = prog_rows(c->p, c->target, row, n),
                                      .n_class = SCRIPT_VOCAB });
    }
    prog_at(c->p, -1, -1, "loss sum");
    rec_loss_add(c->p, (LossAdd){ .state = c->state, .loss = loss });
}

/* Records the script and its backward half; lowering and planning are the caller's. */
static inline void case_record(Case *c, const Script *s, const RecomputeLevel *level)
{
    Tensor *value[SCRIPT_MAX + 1];
    memset(c, 0, sizeof *c);
    case_declare(c, s);
    c->p = prog_begin("random", &c->store);
    prog_at(c->p, -1, -1, "embedding");
    value[0] = case_act(c, "embedding", s->width);
    rec_embed_fwd(c->p, (EmbedFwd){ .y = value[0], .tok = c->tok, .wte = c->embed });
    for (int i = 0; i < s->n_line; i++) {
        prog_at(c->p, s->line[i].block, -1, "line");
        value[i + 1] = case_line(c, &s->line[i], i, value);
    }
    prog_at(c->p, -1, -1, "last norm");
    case_head(c, s, case_norm(c, value[s->n_line], c->norm_gamma, NULL));
    prog_differentiate(c->p, level, SCRIPT_BLOCKS, c->state);
}

static inline void case_free(Case *c, Dev *dev)
{
    prog_destroy(c->p, dev);
    if (dev) store_free_slabs(&c->store, dev);
    store_deinit(&c->store);
}

#endif
