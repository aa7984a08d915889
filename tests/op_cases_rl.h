/* Cases of sampling, PPO, advantages, statistics and rollouts; and the mathematics of policies in double,
 * which cases need to stay away from kinks. */
#ifndef TESTS_OP_CASES_RL_H
#define TESTS_OP_CASES_RL_H

#include "op_cases_loss.h"

/* ---- Policies in double -------------------------------------------------------------------------------- */

/* One segment: x[0..n) and what may be chosen of it. */
typedef struct {
    double  lse, entropy;
    double *p; /* chances */
} MathChoice;

static inline MathChoice math_choice(const double *x, const uint8_t *mask, int64_t n)
{
    MathChoice c   = { 0, 0, dbl_new(n) };
    double    *y   = dbl_new(n);
    int64_t    any = 0;
    for (int64_t k = 0; k < n && mask; k++) any += mask[k] != 0;
    for (int64_t k = 0; k < n; k++) y[k] = any && !mask[k] ? -INFINITY : x[k];
    c.lse = math_lse(y, n);
    for (int64_t k = 0; k < n; k++) {
        c.p[k] = exp(y[k] - c.lse);
        if (c.p[k] > 0) c.entropy += c.p[k] * (c.lse - y[k]);
    }
    free(y);
    return c;
}

/* Segment s of a row: [first, end). */
static inline void math_segment(const Tensor *seg, int64_t A, int64_t s, int64_t *first, int64_t *end)
{
    *first = seg ? *case_int(seg, s) : 0;
    *end   = seg ? *case_int(seg, s + 1) : A;
}

/* The logarithm of the policy of one row x[A], its entropy, and the sum of the sizes behind it. */
static inline double math_cat(const double *x, int64_t A, const uint8_t *mask, const Tensor *seg,
                              const int32_t *action, double *entropy, double *size)
{
    int64_t S    = seg ? tensor_numel(seg) - 1 : 1, first, end;
    double  logp = 0;
    *entropy = *size = 0;
    for (int64_t s = 0; s < S; s++) {
        math_segment(seg, A, s, &first, &end);
        MathChoice c = math_choice(x + first, mask ? mask + first : NULL, end - first);
        logp += x[first + action[s]] - c.lse;
        *entropy += c.entropy;
        *size += fabs(x[first + action[s]]) + fabs(c.lse) + 1 + (double)(end - first) / 4;
        free(c.p);
    }
    return logp;
}

static inline double math_gauss(const double *mean, const double *log_std, const double *action, int64_t A,
                                double *entropy, double *size)
{
    double logp = 0;
    *entropy = *size = 0;
    for (int64_t k = 0; k < A; k++) {
        double z = (action[k] - mean[k]) * exp(-log_std[k]);
        logp += -z * z / 2 - log_std[k] - log(2 * M_PI) / 2;
        *entropy += log_std[k] + log(2 * M_PI) / 2 + 0.5;
        *size += z * z * (1 + fabs(log_std[k])) + fabs(log_std[k]) + 1 +
                 fabs(z) * (fabs(action[k]) + fabs(mean[k])) * exp(-log_std[k]);
    }
    return logp;
}

/* ---- Sampling ------------------------------------------------------------------------------------------ */

/* N, columns, segments, columns behind the last segment, padding */
static const int64_t case_policy[][5] = {
    { 1, 1, 1, 0, 0 }, { 5, 8, 3, 1, 3 }, { 300, 18, 1, 0, 0 }, { 127, 40, 4, 8, 0 }, { 1100, 6, 2, 0, 2 }
};
#define CASE_POLICIES ((int)(sizeof case_policy / sizeof case_policy[0]))

/* Borders of S segments that end `behind` columns before the row does. */
static inline void case_segments(OpCase *c, int i, const int64_t *k)
{
    Tensor *seg = case_ints(c, i, 1, k[2] + 1, 0, 1);
    for (int64_t s = 0; s <= k[2]; s++) *case_int(seg, s) = (int32_t)(s * (k[1] - k[3]) / k[2]);
}

/* Bytes of which one in four is 0, and all of a row now and then. */
static inline void case_mask(OpCase *c, int i, const int64_t *k)
{
    Tensor *mask = case_tensor(c, i, DT_U8, 0, 2, (int64_t[]){ k[0], k[1] });
    for (int64_t e = 0; e < k[0] * k[1]; e++) {
        ((uint8_t *)mask->data)[e] = case_pick(c, 4) != 0 && e / k[1] % 7 != 2;
    }
}

static inline void case_sample0(OpCase *c, int i, int64_t value)
{
    *(int64_t *)case_tensor(c, i, DT_I64, 0, 1, (int64_t[]){ 1 })->data = value;
}

/* Case i = 4 shape + 2 greedy, or at step t + mask */
static inline int case_sample_cat(OpCase *c, int i)
{
    if (i >= 4 * CASE_POLICIES) return 0;
    const int64_t *k    = case_policy[i / 4];
    int            mask = i % 2, greedy = i / 2 % 2;
    CASE_NAME("N%d A%d S%d pad%d%s%s", (int)k[0], (int)k[1], (int)k[2], (int)k[4], mask ? " mask" : "",
              greedy ? " greedy" : "");
    case_tensor(c, 0, DT_I32, 0, 2, (int64_t[]){ k[0], k[2] });
    case_vec(c, 1, k[0]);
    if (mask) case_vec(c, 2, k[0]);
    case_randomize(c, case_act(c, 3, k[0], k[1], k[4]), 2);
    if (mask) case_mask(c, 4, k);
    if (k[2] > 1 || k[3]) case_segments(c, 5, k);
    case_state(c, 6);
    case_sample0(c, 7, (int64_t)1 << 33);
    if (!greedy && i % 4) case_int1(c, 8, 11);
    c->args.sample_cat.site   = 5;
    c->args.sample_cat.greedy = greedy;
    return 1;
}

/* Case i = 4 shape + 2 greedy, or at step t + a log_std of each row */
static inline int case_sample_gauss(OpCase *c, int i)
{
    if (i >= 4 * CASE_POLICIES) return 0;
    const int64_t *k   = case_policy[i / 4];
    int            own = i % 2, greedy = i / 2 % 2;
    CASE_NAME("N%d A%d pad%d%s%s", (int)k[0], (int)k[1], (int)k[4], own ? " log_std of each" : "",
              greedy ? " greedy" : "");
    case_f32(c, 0, k[0], k[1], 0);
    case_vec(c, 1, k[0]);
    if (own) case_vec(c, 2, k[0]);
    case_act(c, 3, k[0], k[1], k[4]);
    if (own) {
        case_act(c, 4, k[0], k[1], k[4]);
    } else {
        case_vec(c, 4, k[1]);
    }
    case_state(c, 5);
    case_sample0(c, 6, 17);
    if (!greedy && own) case_int1(c, 7, 3);
    c->args.sample_gauss.site   = 6;
    c->args.sample_gauss.greedy = greedy;
    return 1;
}

/* ---- PPO ----------------------------------------------------------------------------------------------- */

/* The arguments of the four PPO ops by what they are; -1: the op has none. */
typedef struct {
    int policy, log_std, value, action, old_logp, adv, ret, old_value, norm, mask, seg, valid, coef, state;
} PpoSlots;

static inline PpoSlots ppo_slots(OpKind kind)
{
    switch (kind) {
    case OP_PPO_CAT_FWD: return (PpoSlots){ 2, -1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, -1 };
    case OP_PPO_CAT_DX: return (PpoSlots){ 2, -1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14 };
    case OP_PPO_GAUSS_FWD: return (PpoSlots){ 2, 3, 4, 5, 6, 7, 8, 9, 10, -1, -1, 11, 12, -1 };
    default: /* OP_PPO_GAUSS_DX */ return (PpoSlots){ 3, 4, 5, 6, 7, 8, 9, 10, 11, -1, -1, 12, 13, 14 };
    }
}

static inline const Tensor *ppo_arg(const OpCase *c, int slot) { return slot < 0 ? NULL : c->args.t[slot]; }

/* A whole policy in numbers: logits or means, log_std by rows or one for all. */
typedef struct {
    const double *policy, *log_std, *value;
} PpoNumbers;

/* Logarithm of the policy of row n. */
static inline double ppo_logp(const OpCase *c, const PpoNumbers *v, int64_t n, double *entropy, double *size)
{
    PpoSlots      s      = ppo_slots(c->kind);
    const Tensor *policy = ppo_arg(c, s.policy), *mask = ppo_arg(c, s.mask), *seg = ppo_arg(c, s.seg),
                 *action = ppo_arg(c, s.action), *log_std = ppo_arg(c, s.log_std);
    int64_t A = tensor_cols(policy), S = seg ? tensor_numel(seg) - 1 : 1;
    if (!log_std) {
        return math_cat(v->policy + n * A, A, mask ? (const uint8_t *)mask->data + n * A : NULL, seg,
                        case_int(action, n * S), entropy, size);
    }
    double *taken = dbl_new(A);
    for (int64_t k = 0; k < A; k++) taken[k] = *case_at(action, n * A + k);
    double logp = math_gauss(v->policy + n * A, v->log_std + (tensor_rows(log_std) == 1 ? 0 : n * A), taken,
                             A, entropy, size);
    free(taken);
    return logp;
}

/* Fills old_logp so that the ratio is well inside or outside of the clipping (0.2: log 0.8 = -0.22, log 1.2 =
 * 0.18). */
static inline void case_ratios(OpCase *c)
{
    static const double away[] = { -0.6, -0.1, 0.1, 0.5 };
    PpoSlots            s      = ppo_slots(c->kind);
    double    *policy = case_doubles(c->args.t[s.policy]), *log_std = case_doubles(ppo_arg(c, s.log_std));
    PpoNumbers v = { policy, log_std, NULL };
    for (int64_t n = 0; n < tensor_rows(c->args.t[s.policy]); n++) {
        double entropy, size, logp = ppo_logp(c, &v, n, &entropy, &size);
        *case_at(c->args.t[s.old_logp], n) = (float)(logp - away[case_pick(c, 4)]);
    }
    free(policy);
    free(log_std);
}

/* Actions of each segment that are not hidden, unless all are. */
static inline void case_actions(OpCase *c, const PpoSlots *s, const int64_t *k)
{
    Tensor       *action = case_tensor(c, s->action, DT_I32, 0, 2, (int64_t[]){ k[0], k[2] });
    const Tensor *seg = ppo_arg(c, s->seg), *mask = ppo_arg(c, s->mask);
    for (int64_t i = 0; i < k[0] * k[2]; i++) {
        int64_t first, end, pick = 0;
        math_segment(seg, k[1], i % k[2], &first, &end);
        for (int tries = 0; tries < 50; tries++) {
            pick = case_pick(c, end - first);
            if (!mask || ((const uint8_t *)mask->data)[i / k[2] * k[1] + first + pick]) break;
        }
        *case_int(action, i) = (int32_t)pick;
    }
}

/* Case i = 4 shape + form: 0 plain, 1 everything there is, 2 without a value, 3 value not clipped */
static inline int case_ppo(OpCase *c, int i)
{
    if (i >= 4 * CASE_POLICIES) return 0;
    const int64_t *k = case_policy[i / 4];
    int      form = i % 4, all = form == 1, gauss = c->kind == OP_PPO_GAUSS_FWD || c->kind == OP_PPO_GAUSS_DX;
    int      fwd = c->kind == OP_PPO_CAT_FWD || c->kind == OP_PPO_GAUSS_FWD, has_value = form != 2;
    PpoSlots s = ppo_slots(c->kind);
    int64_t  N = k[0];
    CASE_NAME("N%d A%d S%d pad%d form%d", (int)N, (int)k[1], (int)k[2], (int)k[4], form);
    case_randomize(c, case_act(c, s.policy, N, k[1], k[4]), gauss ? 1 : 2);
    if (gauss && all) case_randomize(c, case_act(c, s.log_std, N, k[1], k[4]), 0.7f);
    if (gauss && !all) case_randomize(c, case_vec(c, s.log_std, k[1]), 0.7f);
    if (gauss) {
        case_randomize(c, case_f32(c, s.action, N, k[1], 0), 2);
    } else {
        if (all) case_mask(c, s.mask, k);
        if (k[2] > 1 || k[3]) case_segments(c, s.seg, k);
        case_actions(c, &s, k);
    }
    case_vec(c, s.old_logp, N);
    case_ratios(c);
    case_vec(c, s.adv, N);
    Tensor *coef = case_vec(c, s.coef, 4);
    for (int j = 0; j < 4; j++) *case_at(coef, j) = (float[]){ 0.2f, form == 3 ? 0 : 0.25f, 0.03f, 0.6f }[j];
    if (has_value) {
        Tensor *value = case_act(c, s.value, N, 1, 0), *ret = case_vec(c, s.ret, N),
               *old = case_vec(c, s.old_value, N);
        case_avoid_kinks(c, value, ret, old, 0.25f);
    }
    if (all) {
        Tensor *norm         = case_vec(c, s.norm, 3);
        *case_at(norm, 0)    = 0.1f;
        *case_at(norm, 1)    = 0.6f;
        const int32_t *valid = case_ints(c, s.valid, 1, N, 0, 2)->data;
        for (int64_t n = 0; n < N; n++) /* a ratio that f32 cannot hold, where it does not count */
            if (!valid[n]) *case_at(c->args.t[s.old_logp], n) = -200;
    }
    if (fwd) {
        case_vec(c, 0, N);
        if (all) case_f32(c, 1, PPO_PARTS, N, 0);
        return 1;
    }
    case_state(c, s.state);
    if (gauss) {
        c->args.ppo_gauss_dx.slot = i % 3;
    } else {
        c->args.ppo_cat_dx.slot = i % 3;
    }
    case_act(c, 0, N, k[1], k[4]);
    if (gauss) case_act(c, 1, N, k[1], k[4]);
    if (has_value) case_act(c, gauss ? 2 : 1, N, 1, 0);
    return 1;
}

/* ---- Rollouts ------------------------------------------------------------------------------------------ */

/* Case i = 2 shape + values of final observations */
static inline int case_gae(OpCase *c, int i)
{
    static const int64_t s[][2] = { { 1, 1 }, { 7, 5 }, { 128, 4 }, { 300, 127 } };
    if (i >= 8) return 0;
    int64_t T = s[i / 2][0], N = s[i / 2][1];
    CASE_NAME("T%d N%d%s", (int)T, (int)N, i % 2 ? " final values" : "");
    for (int k = 0; k < 4; k++) case_f32(c, k, T, N, 0);
    case_vec(c, 4, N);
    for (int k = 5; k < 7; k++) {
        Tensor *t = case_tensor(c, k, DT_U8, 0, 2, (int64_t[]){ T, N });
        for (int64_t e = 0; e < T * N; e++) ((uint8_t *)t->data)[e] = case_pick(c, 9) == 0;
    }
    if (i % 2) case_f32(c, 7, T, N, 0);
    c->args.gae.gamma  = 0.97f;
    c->args.gae.lambda = 0.9f;
    return 1;
}

/* Case i = 4 size + 2 unbiased + valid */
static inline int case_stats_op(OpCase *c, int i)
{
    static const int64_t s[] = { 1, 3, 127, 70001 };
    if (i >= 16) return 0;
    CASE_NAME("n%d%s%s", (int)s[i / 4], i / 2 % 2 ? " unbiased" : "", i % 2 ? " valid" : "");
    case_vec(c, 0, 3);
    Tensor *x = case_vec(c, 2, s[i / 4]);
    for (int64_t k = 0; k < s[i / 4]; k++) *case_at(x, k) += 30; /* a mean far from 0 */
    if (i % 2) case_ints(c, 3, 1, s[i / 4], 0, 2);
    c->args.stats.unbiased = i / 2 % 2;
    return 1;
}

/* n, means, sums of squares: as after `count` rows. */
static inline void case_run(OpCase *c, int i, int64_t D, double count)
{
    int64_t n   = 1 + 2 * D;
    double *run = case_tensor(c, i, DT_F64, 0, 1, &n)->data;
    run[0]      = count;
    for (int64_t d = 0; d < D; d++) {
        run[1 + d]     = count > 0 ? (double)case_uniform(c, 3) : 0;
        run[1 + D + d] = count * (0.2 + (double)fabsf(case_uniform(c, 2)));
    }
}

/* Case i = 3 shape + form: 0 nothing has been seen, 1 something has, 2 that and rows that do not count */
static inline int case_obs(OpCase *c, int i)
{
    static const int64_t s[][3] = { { 1, 1, 0 }, { 5, 4, 0 }, { 300, 33, 3 }, { 64, 130, 0 } };
    if (i >= 12) return 0;
    const int64_t *k = s[i / 3];
    CASE_NAME("N%d D%d pad%d form%d", (int)k[0], (int)k[1], (int)k[2], i % 3);
    if (c->kind == OP_OBS_STATS) {
        case_run(c, 0, k[1], i % 3 ? 1000 : 0);
        case_randomize(c, case_f32(c, 1, k[0], k[1], k[2]), 5);
        if (i % 3 == 2) case_ints(c, 2, 1, k[0], 0, 2);
        return 1;
    }
    case_act(c, 0, k[0], k[1], k[2]);
    case_randomize(c, case_f32(c, 1, k[0], k[1], 0), 5);
    case_run(c, 2, k[1], i % 3 ? 1000 : 0);
    c->args.obs_norm.eps  = 1e-8f;
    c->args.obs_norm.clip = 2;
    return 1;
}

/* Pair p: rows k[0], each of shape k[1] x k[2]. */
static inline void case_put_pair(OpCase *c, int p, DType dtype, const int64_t *k)
{
    case_tensor(c, p, dtype, 0, 3, k);
    Tensor *x = case_tensor(c, PUT_PAIRS + p, dtype, 0, 2, k + 1);
    for (int64_t e = 0; e < tensor_numel(x) && dtype != DT_F32; e++)
        *(uint8_t *)case_at(x, e) = (uint8_t)case_pick(c, 256);
}

/* Case i = 3 shape + dtype: one pair. Then all pairs, and some, of different sizes and alignments. */
static inline int case_put(OpCase *c, int i)
{
    static const int64_t s[][3]  = { { 1, 1, 1 }, { 3, 5, 7 }, { 4, 128, 16 }, { 2, 33, 50 } };
    static const DType   dtype[] = { DT_F32, DT_I32, DT_U8 };
    if (i >= 15) return 0;
    const int64_t *k = s[i < 12 ? i / 3 : 1];
    if (i < 12) {
        CASE_NAME("%s T%d N%d C%d", dtype_name(dtype[i % 3]), (int)k[0], (int)k[1], (int)k[2]);
        case_put_pair(c, 0, dtype[i % 3], k);
    } else {
        CASE_NAME("%s pairs", i == 12 ? "all" : i == 13 ? "two" : "pairs with gaps between");
        for (int p = 0; p < PUT_PAIRS; p++) {
            int64_t dim[3] = { k[0] + p, 1 + p, p % 4 ? 16 : 5 };
            if (i == 12 || p == 0 || (i == 13 ? p == 1 : p % 3 == 0)) case_put_pair(c, p, dtype[p % 3], dim);
        }
    }
    case_int1(c, 2 * PUT_PAIRS, (int32_t)(k[0] - 1));
    return 1;
}

static inline int case_tick(OpCase *c, int i)
{
    static const int32_t s[][2] = { { 0, 1 }, { 3, 8 }, { 7, 8 } };
    if (i >= 3) return 0;
    CASE_NAME("%d of %d", s[i][0], s[i][1]);
    case_int1(c, 0, s[i][0]);
    c->args.tick.modulo = s[i][1];
    return 1;
}

static inline int case_perm(OpCase *c, int i)
{
    static const int64_t s[] = { 1, 2, 5, 64, 1000, 4097 };
    if (i >= 12) return 0;
    CASE_NAME("n%d%s", (int)s[i / 2], i % 2 ? " epoch" : "");
    case_tensor(c, 0, DT_I32, 0, 1, &s[i / 2]);
    case_state(c, 1);
    if (i % 2) case_int1(c, 2, 3);
    c->args.perm.site = 9;
    return 1;
}

/* B, stride, R, align; case i = 4 shape + causal + 2 whether tails and borders are asked for */
static inline int case_pack(OpCase *c, int i)
{
    static const int64_t s[][4] = {
        { 2, 1, 3, 1 }, { 3, 5, 16, 1 }, { 7, 40, 7 * 64, 64 }, { 70, 33, 1600, 1 }
    };
    if (i >= 16) return 0;
    const int64_t *k = s[i / 4], n_tail = 3, n_each = 2;
    PackRows      *a = &c->args.pack_rows;
    CASE_NAME("B%d of %d in %d by %d%s%s", (int)k[0], (int)k[1], (int)k[2], (int)k[3], i % 2 ? " causal" : "",
              i & 2 ? " all" : "");
    for (int n = 0; n < 3; n++) case_tensor(c, n, DT_I32, 0, 1, &k[2]);
    int64_t tail = k[0] * n_tail, each = k[0] * n_each, room = k[2];
    if (i & 2) {
        case_tensor(c, 3, DT_I32, 0, 1, &tail);
        case_tensor(c, 4, DT_I32, 0, 1, &each);
        case_tensor(c, 5, DT_I32, 0, 1, &each);
        a->n_tail = (int)n_tail;
        a->n_each = (int)n_each;
    }
    Tensor *len = case_tensor(c, 6, DT_I32, 0, 1, &k[0]);
    for (int64_t b = 0; b < k[0]; b++) {
        int64_t n         = MIN(case_pick(c, k[1] + 1), room / k[3] * k[3]);
        *case_int(len, b) = (int32_t)n;
        room -= (n + k[3] - 1) / k[3] * k[3];
    }
    a->stride = k[1];
    a->align  = (int)k[3];
    a->causal = i % 2;
    return 1;
}

#endif
