/* References of sampling, PPO, advantages, statistics and rollouts. */
#ifndef TESTS_OP_REF_RL_H
#define TESTS_OP_REF_RL_H

#include "dev/op_math.h"
#include "op_ref_loss.h"

/* ---- Sampling ------------------------------------------------------------------------------------------ */

static inline int64_t ref_choose(const MathChoice *c, int64_t n, double u)
{
    double  sum  = 0;
    int64_t last = 0;
    for (int64_t k = 0; k < n; k++) {
        if (c->p[k] == 0) continue;
        sum += c->p[k];
        last = k;
        if (sum > u) break;
    }
    return last;
}

static inline void ref_sample_cat(const OpCase *c, OpRef *r)
{
    const SampleCat *a = &c->args.sample_cat;
    const StepState *s = a->state->data;
    int64_t          A = tensor_cols(a->logits), S = a->seg ? tensor_numel(a->seg) - 1 : 1,
            t = a->t ? *case_int(a->t, 0) : 0;
    double *x = case_doubles(a->logits);
    for (int64_t n = 0; n < tensor_rows(a->logits); n++) {
        const uint8_t *mask   = a->mask ? (const uint8_t *)a->mask->data + n * A : NULL;
        int32_t       *action = (int32_t *)r->bytes[0] + n * S;
        double         entropy, size;
        for (int64_t g = 0; g < S; g++) {
            int64_t first, end;
            math_segment(a->seg, A, g, &first, &end);
            MathChoice one  = math_choice(x + n * A + first, mask ? mask + first : NULL, end - first);
            uint32_t   draw = rng_draw(s->in.seed, (uint32_t)a->site, s->in.step,
                                       *(int64_t *)a->sample0->data + n, t * S + g);
            int64_t    best = 0;
            for (int64_t k = 0; k < end - first; k++) best = one.p[k] > one.p[best] ? k : best;
            action[g] =
                (int32_t)(a->greedy ? best : ref_choose(&one, end - first, (double)rng_uniform(draw)));
            free(one.p);
        }
        double logp = math_cat(x + n * A, A, mask, a->seg, action, &entropy, &size);
        ref_put(r, 1, n, logp, size);
        if (a->entropy) ref_put(r, 2, n, entropy, size + 30);
    }
    r->terms[1] = r->terms[2] = (double)A;
    free(x);
}

/* sqrt(-2 log u) cos(2 pi v) with a rounded argument of the cosine, below 2 pi, is wrong by 40 last bits at
 * most. */
static inline void ref_sample_gauss(const OpCase *c, OpRef *r)
{
    const SampleGauss *a = &c->args.sample_gauss;
    const StepState   *s = a->state->data;
    int64_t            A = tensor_cols(a->mean), t = a->t ? *case_int(a->t, 0) : 0;
    for (int64_t i = 0; i < tensor_numel(a->mean); i++) {
        uint32_t w[4];
        int64_t  n = i / A;
        rng_draw4(w, s->in.seed, (uint32_t)a->site, s->in.step, *(int64_t *)a->sample0->data + n,
                  4 * (t * A + i % A));
        double u = ((double)(w[0] >> 8) + 1) / 16777216, v = (double)(w[1] >> 8) / 16777216;
        double z = a->greedy ? 0 : sqrt(-2 * log(u)) * cos(2 * M_PI * v), mean = *case_at(a->mean, i);
        double ls = *case_at(a->log_std, tensor_rows(a->log_std) == 1 ? i % A : i);
        ref_put(r, 0, i, mean + exp(ls) * z, fabs(mean) + 40 * exp(ls));
        r->want[1][n] += -z * z / 2 - ls - log(2 * M_PI) / 2;
        r->mag[1][n] += z * z + fabs(ls) + 1 + 40 * fabs(z);
        if (!a->entropy) continue;
        r->want[2][n] += ls + log(2 * M_PI) / 2 + 0.5;
        r->mag[2][n] += fabs(ls) + 2;
    }
    r->terms[1] = r->terms[2] = (double)A;
}

/* ---- PPO ----------------------------------------------------------------------------------------------- */

/* Everything about one row. */
typedef struct {
    double policy, value, entropy, log_ratio, ratio, clipped; /* parts of the loss */
    double loss, dlogp, dvalue;
    double size, value_size; /* of the numbers behind the policy and the value */
} RefPpo;

static inline RefPpo ref_ppo_row(const OpCase *c, const PpoNumbers *v, int64_t n)
{
    PpoSlots      s    = ppo_slots(c->kind);
    const Tensor *coef = ppo_arg(c, s.coef), *norm = ppo_arg(c, s.norm), *valid = ppo_arg(c, s.valid),
                 *ret = ppo_arg(c, s.ret), *old = ppo_arg(c, s.old_value);
    RefPpo r    = { 0 };
    double clip = *case_at(coef, 0), clip_value = *case_at(coef, 1), g = *case_at(ppo_arg(c, s.adv), n), lp;
    if (norm) g = (g - *case_at(norm, 0)) / (*case_at(norm, 1) + 1e-8);
    lp          = ppo_logp(c, v, n, &r.entropy, &r.size);
    r.log_ratio = lp - *case_at(ppo_arg(c, s.old_logp), n);
    r.ratio     = exp(r.log_ratio);
    r.size += fabsf(*case_at(ppo_arg(c, s.old_logp), n));
    double plain = -g * r.ratio, bound = -g * fmin(fmax(r.ratio, 1 - clip), 1 + clip);
    r.policy  = fmax(plain, bound);
    r.dlogp   = plain >= bound ? plain : 0;
    r.clipped = r.ratio < 1 - clip || r.ratio > 1 + clip;
    if (v->value) {
        double o = *case_at(old, n), t = *case_at(ret, n);
        r.value      = math_mse(v->value[n], t, clip_value > 0 ? &o : NULL, clip_value, &r.dvalue);
        r.value_size = fabs(v->value[n]) + fabs(t) + 2 * fabs(o);
    }
    double live = !valid || *case_int(valid, n);
    r.loss      = live * (r.policy - *case_at(coef, 2) * r.entropy + *case_at(coef, 3) * r.value);
    r.size *= live;
    r.dlogp *= live;
    r.dvalue *= live * *case_at(coef, 3);
    return r;
}

static inline PpoNumbers ref_ppo_numbers(const OpCase *c)
{
    PpoSlots s = ppo_slots(c->kind);
    return (PpoNumbers){ case_doubles(ppo_arg(c, s.policy)), case_doubles(ppo_arg(c, s.log_std)),
                         case_doubles(ppo_arg(c, s.value)) };
}

static inline void ref_ppo_free(PpoNumbers *v)
{
    free((void *)v->policy);
    free((void *)v->log_std);
    free((void *)v->value);
}

/* The logarithm of the policy is wrong by r.size last bits, so the ratio is by as many of itself. */
static inline void ref_ppo_fwd(const OpCase *c, OpRef *r)
{
    PpoSlots   s = ppo_slots(c->kind);
    PpoNumbers v = ref_ppo_numbers(c);
    int64_t    N = tensor_rows(ppo_arg(c, s.policy));
    for (int64_t n = 0; n < N; n++) {
        RefPpo p     = ref_ppo_row(c, &v, n);
        int    live  = p.size > 0;
        double vsize = p.value + sqrt(2 * p.value) * p.value_size,
               psize = (fabs(p.policy) + 1e-3) * (2 + p.size);
        ref_put(r, 0, n, p.loss, live * (psize + vsize + fabs(p.entropy) + p.size));
        if (!r->want[1]) continue;
        double part[PPO_PARTS][2] = { [PPO_POLICY]  = { p.policy, psize },
                                      [PPO_VALUE]   = { p.value, vsize },
                                      [PPO_ENTROPY] = { p.entropy, p.size + 30 },
                                      [PPO_OLD_KL]  = { -p.log_ratio, p.size + 1 },
                                      [PPO_KL] = { p.ratio - 1 - p.log_ratio, (p.ratio + 1) * (2 + p.size) },
                                      [PPO_CLIPPED] = { p.clipped, 0 } };
        for (int k = 0; k < PPO_PARTS; k++) ref_put(r, 1, k * N + n, live * part[k][0], live * part[k][1]);
    }
    r->terms[0] = r->terms[1] = (double)tensor_cols(ppo_arg(c, s.policy));
    ref_ppo_free(&v);
}

/* Chances of all columns of row n; 0 outside of segments. entropy: of each column's segment. */
static inline void ref_chances(const PpoCatDx *a, const double *x, int64_t n, double *p, double *logp,
                               double *entropy, double *hit)
{
    int64_t A = tensor_cols(a->logits), S = a->seg ? tensor_numel(a->seg) - 1 : 1;
    for (int64_t k = 0; k < A; k++) p[k] = logp[k] = entropy[k] = hit[k] = 0;
    for (int64_t g = 0; g < S; g++) {
        int64_t first, end;
        math_segment(a->seg, A, g, &first, &end);
        MathChoice one = math_choice(x + n * A + first,
                                     a->mask ? (uint8_t *)a->mask->data + n * A + first : NULL, end - first);
        for (int64_t k = first; k < end; k++) {
            p[k]       = one.p[k - first];
            logp[k]    = p[k] > 0 ? x[n * A + k] - one.lse : 0;
            entropy[k] = one.entropy;
            hit[k]     = k - first == *case_int(a->action, n * S + g);
        }
        free(one.p);
    }
}

static inline void ref_ppo_cat_dx(const OpCase *c, OpRef *r)
{
    const PpoCatDx *a = &c->args.ppo_cat_dx;
    PpoNumbers      v = ref_ppo_numbers(c);
    int64_t         A = tensor_cols(a->logits);
    double          f = ref_scale(a->state, a->slot), weight = *case_at(a->coef, 2);
    double         *p = dbl_new(A), *logp = dbl_new(A), *entropy = dbl_new(A), *hit = dbl_new(A);
    for (int64_t n = 0; n < tensor_rows(a->logits); n++) {
        RefPpo row  = ref_ppo_row(c, &v, n);
        double live = row.size > 0, w = weight * live;
        ref_chances(a, v.policy, n, p, logp, entropy, hit);
        for (int64_t k = 0; k < A; k++) {
            /* A class that was taken though it is hidden has no gradient: only where all are hidden can that
             * be, and then none is. */
            double d    = row.dlogp * (hit[k] - p[k]) + w * p[k] * (logp[k] + entropy[k]);
            double size = (fabs(row.dlogp) * (hit[k] + p[k]) + w * p[k] * (fabs(logp[k]) + entropy[k] + 1)) *
                          (2 + row.size);
            ref_put(r, 0, n * A + k, d * f, size * f);
        }
        if (a->dvalue) ref_put(r, 1, n, row.dvalue * f, live * (fabs(row.dvalue) + row.value_size) * f);
    }
    r->terms[0] = (double)A;
    ref_ppo_free(&v);
    free(p);
    free(logp);
    free(entropy);
    free(hit);
}

static inline void ref_ppo_gauss_dx(const OpCase *c, OpRef *r)
{
    const PpoGaussDx *a = &c->args.ppo_gauss_dx;
    PpoNumbers        v = ref_ppo_numbers(c);
    int64_t           A = tensor_cols(a->mean);
    double            f = ref_scale(a->state, a->slot), weight = *case_at(a->coef, 2);
    for (int64_t i = 0; i < tensor_numel(a->mean); i++) {
        RefPpo row = ref_ppo_row(c, &v, i / A);
        double ls = v.log_std[tensor_rows(a->log_std) == 1 ? i % A : i], act = *case_at(a->action, i), z,
               live = row.size > 0, g = fabs(row.dlogp) * (2 + row.size);
        z = (act - v.policy[i]) * exp(-ls);
        /* z is wrong by as many last bits as the action and the mean have over it */
        double zsize = fabs(z) * (1 + fabs(ls)) + (fabs(act) + fabs(v.policy[i])) * exp(-ls);
        ref_put(r, 0, i, row.dlogp * z * exp(-ls) * f,
                (g * fabs(z) + fabs(row.dlogp) * zsize) * exp(-ls) * (1 + fabs(ls)) * f);
        ref_put(r, 1, i, (row.dlogp * (z * z - 1) - weight * live) * f,
                live * (g * (z * z + 1) + fabs(row.dlogp) * 2 * fabs(z) * zsize + weight) * f);
        if (a->dvalue) ref_put(r, 2, i / A, row.dvalue * f, live * (fabs(row.dvalue) + row.value_size) * f);
    }
    r->terms[0] = r->terms[1] = (double)A;
    ref_ppo_free(&v);
}

/* ---- Rollouts ------------------------------------------------------------------------------------------ */

/* By the definition: the sum of discounted one-step errors up to the end of the episode. */
static inline void ref_gae(const OpCase *c, OpRef *r)
{
    const Gae     *a = &c->args.gae;
    int64_t        T = tensor_rows(a->reward), N = tensor_cols(a->reward);
    const uint8_t *term = a->terminated->data, *trunc = a->truncated->data;
    double         gamma = (double)a->gamma, lambda = (double)a->lambda;
    for (int64_t i = 0; i < T * N; i++) {
        double sum = 0, size = 0, weight = 1;
        for (int64_t j = i; j < T * N; j += N) {
            double next = j + N < T * N ? *case_at(a->value, j + N) : *case_at(a->last_value, j % N);
            if (trunc[j]) next = a->final_value ? *case_at(a->final_value, j) : 0;
            if (term[j]) next = 0;
            double v = *case_at(a->value, j), w = *case_at(a->reward, j);
            sum += weight * (w + gamma * next - v);
            size += weight * (fabs(w) + fabs(next) + fabs(v));
            if (term[j] || trunc[j]) break;
            weight *= gamma * lambda;
        }
        ref_put(r, 0, i, sum, size);
        ref_put(r, 1, i, sum + *case_at(a->value, i), size + fabsf(*case_at(a->value, i)));
    }
    r->terms[0] = r->terms[1] = 8; /* of a geometric sum with ratio 0.87 few count */
}

static inline void ref_stats_op(const OpCase *c, OpRef *r)
{
    const Stats *a = &c->args.stats;
    double       n = 0, mean = 0, square = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < tensor_numel(a->x); i++) {
            if (a->valid && !*case_int(a->valid, i)) continue;
            n += pass == 0;
            if (pass == 0) mean += *case_at(a->x, i);
            if (pass == 1) square += pow(*case_at(a->x, i) - mean, 2);
        }
        if (pass == 0 && n > 0) mean /= n;
    }
    double std = n < 2 ? 0 : sqrt(square / (a->unbiased ? n - 1 : n));
    ref_put(r, 0, 0, mean, fabs(mean));
    ref_put(r, 0, 1, std, std);
    ref_put(r, 0, 2, n, 0);
}

/* In double on both sides: 2^-20 of what f32 may be wrong by. */
static inline void ref_obs_stats(const OpCase *c, OpRef *r)
{
    const ObsStats *a = &c->args.obs_stats;
    int64_t         D = tensor_cols(a->x), N = tensor_rows(a->x);
    const double   *run  = a->run->data;
    double          fine = 0x1p-20, some = 0;
    for (int64_t n = 0; n < N; n++) some += !a->valid || *case_int(a->valid, n);
    ref_put(r, 0, 0, run[0] + some, 0);
    for (int64_t d = 0; d < D; d++) {
        /* As if all the numbers, old and new, were there: mean and squares from their sums about 0. */
        double sum = run[0] * run[1 + d], square = run[1 + D + d] + run[0] * run[1 + d] * run[1 + d],
               n = run[0] + some;
        for (int64_t i = 0; i < N; i++) {
            double x = *case_at(a->x, i * D + d);
            if (a->valid && !*case_int(a->valid, i)) continue;
            sum += x;
            square += x * x;
        }
        double mean = n > 0 ? sum / n : 0;
        ref_put(r, 0, 1 + d, mean, (fabs(mean) + 5) * fine);
        ref_put(r, 0, 1 + D + d, n > 0 ? square - n * mean * mean : 0, (square + n * mean * mean + 1) * fine);
    }
}

static inline void ref_obs_norm(const OpCase *c, OpRef *r)
{
    const ObsNorm *a    = &c->args.obs_norm;
    const double  *run  = a->run->data;
    int64_t        D    = tensor_cols(a->x);
    double         clip = (double)a->clip;
    for (int64_t i = 0; i < tensor_numel(a->x); i++) {
        double mean     = run[0] > 0 ? run[1 + i % D] : 0,
               variance = run[0] > 0 ? run[1 + D + i % D] / run[0] : 1;
        double rstd = 1 / sqrt(variance + (double)a->eps), x = *case_at(a->x, i), y = (x - mean) * rstd;
        ref_put(r, 0, i, fmin(fmax(y, -clip), clip), (fabs(x) + fabs(mean)) * rstd);
    }
}

static inline void ref_put_op(const OpCase *c, OpRef *r)
{
    const Put *a = &c->args.put;
    for (int p = 0; p < PUT_PAIRS; p++) {
        if (!a->y[p]) continue;
        int64_t n = tensor_numel(a->x[p]), t = *case_int(a->t, 0);
        size_t  size = dtype_bytes(a->y[p]->dtype);
        for (int64_t i = 0; i < tensor_numel(a->y[p]); i++) {
            const void *from = i / n == t ? case_at(a->x[p], i % n) : case_at(a->y[p], i);
            if (r->want[p]) ref_put(r, p, i, *(const float *)from, 0);
            if (r->bytes[p]) memcpy(r->bytes[p] + (size_t)i * size, from, size);
        }
    }
}

static inline void ref_tick(const OpCase *c, OpRef *r)
{
    int32_t next = *case_int(c->args.tick.t, 0) + 1;
    if (next == c->args.tick.modulo) next = 0;
    memcpy(r->bytes[0], &next, sizeof next);
}

/* The definition itself, one number at a time; test_op_policy.c shows that what comes out is a permutation.
 */
static inline void ref_perm(const OpCase *c, OpRef *r)
{
    const Perm      *a = &c->args.perm;
    const StepState *s = a->state->data;
    Shuffle f = shuffle_begin((uint32_t)tensor_numel(a->index), s->in.seed, (uint32_t)a->site, s->in.step,
                              a->epoch ? *case_int(a->epoch, 0) : 0);
    for (int64_t i = 0; i < tensor_numel(a->index); i++)
        ((uint32_t *)r->bytes[0])[i] = shuffle_at(&f, (uint32_t)i);
}

/* Row by row: which sequence a packed row belongs to. */
static inline void ref_pack(const OpCase *c, OpRef *r)
{
    const PackRows *a = &c->args.pack_rows;
    int64_t         B = tensor_numel(a->len), begin[128], end[128], at = 0;
    CHECK(B <= 128, "%lld sequences", (long long)B);
    for (int64_t b = 0; b < B; b++) {
        int64_t n = *case_int(a->len, b);
        begin[b]  = n ? (at + a->align - 1) / a->align * a->align : at;
        end[b] = at = begin[b] + n;
    }
#define PUT_INT(arg, i, x) ((int32_t *)r->bytes[arg])[i] = (int32_t)(x)
    for (int64_t row = 0; row < tensor_numel(a->index); row++) {
        int64_t b = 0;
        while (b < B && (row < begin[b] || row >= end[b])) b++;
        PUT_INT(0, row, b < B ? b * a->stride + row - begin[b] : -1);
        PUT_INT(1, row, b < B ? begin[b] : 0);
        PUT_INT(2, row, b == B ? -1 : a->causal ? row : end[b] - 1);
    }
    for (int64_t i = 0; i < B * a->n_tail; i++) {
        int64_t b = i / a->n_tail, row = end[b] - a->n_tail + i % a->n_tail;
        PUT_INT(3, i, row >= begin[b] && end[b] > begin[b] ? row : -1);
    }
    for (int64_t i = 0; i < B * a->n_each; i++) {
        int64_t b = i / a->n_each;
        PUT_INT(4, i, end[b] > begin[b] ? begin[b] : 0);
        PUT_INT(5, i, end[b] > begin[b] ? end[b] - 1 : -1);
    }
#undef PUT_INT
}

#endif
