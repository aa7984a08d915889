/* Formulas that every backend shares, so that host and device give the same integers and the same factors. */
#ifndef DEV_OP_MATH_H
#define DEV_OP_MATH_H

#include "base/rng.h"
#include "dev/op.h"

/* What all gradients are multiplied by, so that small ones survive in a narrow type. A power of two is
 * exact. */
static inline BRIM_HD float step_loss_scale(const StepState *s)
{
    return s->in.loss_scale * (float)((uint32_t)1 << s->out.scale_exp);
}

/* What the gradient of a loss in `slot` is multiplied by. */
static inline BRIM_HD float step_scale(const StepState *s, int slot)
{
    return s->in.inv[slot] * step_loss_scale(s);
}

/* 1: the gradient overflowed and this update is skipped, with half the scale from now on. A gradient that is
 * not finite at the smallest scale is a failure like any other. */
static inline BRIM_HD int step_overflow(StepOut *out, int grad_is_finite, int scale_every)
{
    if (scale_every == 0 || out->scale_exp <= 1 || grad_is_finite) return 0;
    out->skip = SKIP_OVERFLOW;
    out->clip = 0;
    out->n_overflow += 1;
    out->scale_exp -= 1;
    out->n_scaled = 0;
    return 1;
}

/* After an update: the scale grows once in a while. */
static inline BRIM_HD void step_grow_scale(StepOut *out, int scale_every)
{
    if (scale_every == 0 || out->scale_exp == 0) return;
    out->n_scaled += 1;
    if (out->n_scaled < scale_every || out->scale_exp >= SCALE_EXP_MAX) return;
    out->scale_exp += 1;
    out->n_scaled = 0;
}

/* ---- fp8 ----------------------------------------------------------------------------------------------- */

static inline BRIM_HD float fp8_top(DType t) { return t == DT_E5M2 ? 57344.0f : 448.0f; }

/* The largest power of two that keeps amax within the format; 0 if amax is 0 or not finite. A power of two
 * changes no mantissa: only under- and overflow depend on the scale. */
static inline BRIM_HD float fp8_scale_for(float amax, DType t)
{
    if (!(amax > 0.0f && amax <= 3.4028234e38f)) return 0.0f;
    union {
        float    f;
        uint32_t u;
    } r;
    r.f   = fp8_top(t) / amax;
    int e = (int)(r.u >> 23) - 127; /* the exponent of a positive number */
    e     = e < -100 ? -100 : e > 100 ? 100 : e;
    r.u   = (uint32_t)(e + 127) << 23;
    return r.f;
}

/* What a site with this scale is restored by. */
static inline BRIM_HD float fp8_inv(float scale) { return 1.0f / scale; }

/* amax of a site: the largest of all ranks, whose sites are `apart` numbers apart; the first that is not
 * finite, if there is one. */
static inline BRIM_HD float fp8_site_amax(const float *site, int64_t apart, int64_t ranks)
{
    float top = 0.0f;
    for (int64_t i = 0; i < ranks; i++) {
        float amax = site[i * apart + FP8_SITE_AMAX];
        if (!(amax <= 3.4028234e38f)) return amax;
        top = amax > top ? amax : top;
    }
    return top;
}

/* One row of FP8_SCALE. */
static inline BRIM_HD void fp8_site_update(float *site, float amax, DType t)
{
    float top           = 0.0f;
    int   at            = (int)site[FP8_SITE_CURSOR];
    site[FP8_SITE_AMAX] = 0.0f;
    if (!(amax > 0.0f && amax <= 3.4028234e38f)) return;
    site[FP8_SITE_HISTORY + at] = amax;
    site[FP8_SITE_CURSOR]       = (float)((at + 1) % FP8_HISTORY);
    for (int i = 0; i < FP8_HISTORY; i++) {
        float h = site[FP8_SITE_HISTORY + i];
        top     = h > top ? h : top;
    }
    site[FP8_SITE_SCALE] = fp8_scale_for(top, t);
    site[FP8_SITE_INV]   = fp8_inv(site[FP8_SITE_SCALE]);
}

/* ---- Losses -------------------------------------------------------------------------------------------- */

/* One number of a squared error: the loss is error^2/2, its derivative error * slope. */
typedef struct {
    float error, slope;
} MseTerm;

static inline BRIM_HD MseTerm mse_plain(float x, float target)
{
    MseTerm t = { x - target, 1.0f };
    return t;
}

/* The larger of the plain error and the error of x kept within clip of old; no slope where x was moved. */
static inline BRIM_HD MseTerm mse_clipped(float x, float target, float old, float clip)
{
    float   step = x - old, move = step < -clip ? -clip : step > clip ? clip : step;
    MseTerm plain = mse_plain(x, target), kept = { old + move - target, move == step ? 1.0f : 0.0f };
    float   a = kept.error < 0 ? -kept.error : kept.error, b = plain.error < 0 ? -plain.error : plain.error;
    return a > b ? kept : plain;
}

/* PPO's coefficients, as coef has them. */
typedef struct {
    float clip, clip_value, entropy_weight, value_weight;
} PpoCoef;

/* The policy's part for ratio r = exp(log_ratio) and advantage g; dlogp is its derivative by the logarithm of
 * the policy. */
typedef struct {
    float loss, dlogp, clipped;
} PpoPolicy;

static inline BRIM_HD PpoPolicy ppo_policy(float r, float g, float clip)
{
    float     lo = 1.0f - clip, hi = 1.0f + clip, kept = r < lo ? lo : r > hi ? hi : r;
    float     plain = -g * r, bound = -g * kept;
    int       takes = plain >= bound;
    PpoPolicy p     = { takes ? plain : bound, takes ? plain : 0.0f, r < lo || r > hi ? 1.0f : 0.0f };
    return p;
}

static inline BRIM_HD float ppo_advantage(float adv, const float *norm)
{
    return norm ? (adv - norm[0]) / (norm[1] + 1e-8f) : adv;
}

static inline BRIM_HD MseTerm ppo_value(float value, float ret, float old, float clip)
{
    return clip > 0 ? mse_clipped(value, ret, old, clip) : mse_plain(value, ret);
}

/* ---- Stochastic rounding ------------------------------------------------------------------------------- */

/* 16 bits for each number of an element that AdamW rounds: weight, first and second moment. Two elements
 * share a call. n_update, not the step: a step may have several updates. */
typedef struct {
    uint32_t w, m, v;
} AdamDraw;

static inline BRIM_HD AdamDraw adam_draw(uint64_t seed, uint32_t site, int32_t n_update, int64_t i)
{
    uint32_t word[4];
    rng_philox(word, seed, site, (uint64_t)(uint32_t)n_update, (uint64_t)i / 2);
    uint32_t a = word[2 * (i & 1)], b = word[2 * (i & 1) + 1];
    AdamDraw d = { a & 0xFFFFu, a >> 16, b & 0xFFFFu };
    return d;
}

/* The bits of x as bf16: up with a probability of what would be cut off, x finite. */
static inline BRIM_HD uint16_t adam_round(float x, uint32_t draw)
{
    union {
        float    f;
        uint32_t u;
    } bits = { x };
    return (uint16_t)((bits.u + draw) >> 16);
}

/* ---- Orthogonal matrices ------------------------------------------------------------------------------- */

/* Steps of X -> a X + b (X X^T) X + c (X X^T)^2 X. The coefficients are those of Polar Express (Amsel,
 * Persson, Musco and Gower, 2025): each step is the best odd polynomial for what the steps before can have
 * left. The margin keeps rounded singular values inside the range that they are made for. */
enum { ORTHO_STEPS = 5 };
#define ORTHO_MARGIN 1.01f
#define ORTHO_EPS    1e-20f /* a matrix of zeros stays one */

typedef struct {
    float a, b, c;
} OrthoStep;

static inline BRIM_HD OrthoStep ortho_step(int i)
{
    const OrthoStep step[ORTHO_STEPS] = {
        { 8.28721201814563f, -23.595886519098837f, 17.300387312530933f },
        { 4.107059111542203f, -2.9478499167379106f, 0.5448431082926601f },
        { 3.9486908534822946f, -2.908902115962949f, 0.5518191394370137f },
        { 3.3184196573706015f, -2.488488024314874f, 0.51004894012372f },
        { 2.300652019954817f, -1.6689039845747493f, 0.4188073119525673f },
    };
    float     m = ORTHO_MARGIN, m3 = m * m * m;
    OrthoStep s = { step[i].a / m, step[i].b / m3, step[i].c / (m3 * m * m) };
    return s;
}

/* ---- Permutations -------------------------------------------------------------------------------------- */

enum { SHUFFLE_ROUNDS = 8 };

/* A Feistel network on pairs of `half` bits: a bijection of [0, 4^half), whatever its round function does. */
typedef struct {
    uint32_t key[SHUFFLE_ROUNDS], mask, n;
    int      half;
} Shuffle;

static inline BRIM_HD Shuffle shuffle_begin(uint32_t n, uint64_t seed, uint32_t site, int64_t step,
                                            int64_t epoch)
{
    Shuffle s;
    s.n    = n;
    s.half = 1;
    while (s.half < 16 && ((uint64_t)1 << (2 * s.half)) < n) s.half++;
    s.mask = ((uint32_t)1 << s.half) - 1;
    rng_draw4(s.key, seed, site, step, epoch, 0);
    rng_draw4(s.key + 4, seed, site, step, epoch, 4);
    return s;
}

/* Where i goes: round after round until the number is below n. The walk is a cycle that i is on, so it ends.
 */
static inline BRIM_HD uint32_t shuffle_at(const Shuffle *s, uint32_t i)
{
    do {
        uint32_t left = i >> s->half, right = i & s->mask;
        for (int k = 0; k < SHUFFLE_ROUNDS; k++) {
            uint32_t c[4] = { right, s->key[k], (uint32_t)k, 0 }, next;
            for (int m = 0; m < 3; m++) philox_round(c, s->key[k], (uint32_t)m);
            next  = left ^ (c[0] & s->mask);
            left  = right;
            right = next;
        }
        i = left << s->half | right;
    } while (i >= s->n);
    return i;
}

#endif
