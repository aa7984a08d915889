/* PPO once more, in double: a tanh MLP with two heads, advantages by their definition as a sum, losses and
 * gradients by hand. Shares no code with src. */
#ifndef TESTS_PPO_REF_H
#define TESTS_PPO_REF_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { REF_W = 16, REF_A = 4, REF_D = 8 }; /* most width, actions, observation */

/* Layers 0 and 1 are hidden, 2 is the head. w[l] is rows x cols. */
typedef struct {
    int    rows[3], cols[3];
    double w[3][REF_W * REF_W], b[3][REF_W];
    double dw[3][REF_W * REF_W], db[3][REF_W];
    double x[3][REF_W]; /* inputs of the layers in the last forward pass */
} RefNet;

static inline void ref_forward(RefNet *n, const float *obs, double *out)
{
    for (int i = 0; i < n->cols[0]; i++) n->x[0][i] = obs[i];
    for (int l = 0; l < 3; l++) {
        for (int r = 0; r < n->rows[l]; r++) {
            double s = n->b[l][r];
            for (int c = 0; c < n->cols[l]; c++) s += n->w[l][r * n->cols[l] + c] * n->x[l][c];
            if (l < 2)
                n->x[l + 1][r] = tanh(s);
            else
                out[r] = s;
        }
    }
}

static inline void ref_backward(RefNet *n, const double *dout)
{
    double d[REF_W] = { 0 }, dx[REF_W];
    memcpy(d, dout, sizeof *d * (size_t)n->rows[2]);
    for (int l = 2; l >= 0; l--) {
        memset(dx, 0, sizeof dx);
        for (int r = 0; r < n->rows[l]; r++) {
            n->db[l][r] += d[r];
            for (int c = 0; c < n->cols[l]; c++) {
                n->dw[l][r * n->cols[l] + c] += d[r] * n->x[l][c];
                dx[c] += d[r] * n->w[l][r * n->cols[l] + c];
            }
        }
        for (int c = 0; c < n->cols[l]; c++) d[c] = dx[c] * (1 - n->x[l][c] * n->x[l][c]);
    }
}

/* How step t of an episode ended. */
enum { REF_GOES_ON, REF_TERMINATED, REF_TRUNCATED };

typedef struct {
    int           T;
    const double *reward, *value, *final_value; /* of one environment, by step */
    const int    *end;
    double        last_value, gamma, lambda;
    int           exact; /* 0: a truncation counts as a termination */
} RefEpisode;

/* A_t = sum over k of (gamma lambda)^k delta_{t+k}, up to the end of the episode or of the rollout. */
static inline double ref_advantage(const RefEpisode *e, int t)
{
    double sum = 0, factor = 1;
    for (int k = t; k < e->T; k++) {
        double next = k + 1 < e->T ? e->value[k + 1] : e->last_value;
        if (e->end[k] == REF_TRUNCATED) next = e->exact ? e->final_value[k] : 0;
        if (e->end[k] == REF_TERMINATED) next = 0;
        sum += factor * (e->reward[k] + e->gamma * next - e->value[k]);
        if (e->end[k] != REF_GOES_ON) break;
        factor *= e->gamma * e->lambda;
    }
    return sum;
}

typedef struct {
    double clip, clip_value, entropy, value_weight;
} RefCoef;

typedef struct {
    int    action;
    double old_logp, adv, ret, old_value;
} RefSample;

/* The loss of one sample; gradients by logits and by the value. */
static inline double ref_ppo_loss(const double *x, int A, double value, const RefSample *s, const RefCoef *c,
                                  double *dx, double *dvalue)
{
    double p[REF_A], top = x[0], sum = 0, entropy = 0;
    for (int k = 1; k < A; k++) top = fmax(top, x[k]);
    for (int k = 0; k < A; k++) sum += exp(x[k] - top);
    for (int k = 0; k < A; k++) p[k] = exp(x[k] - top) / sum;
    for (int k = 0; k < A; k++) entropy -= p[k] * log(p[k]);
    double ratio = exp(log(p[s->action]) - s->old_logp);
    double low = 1 - c->clip, high = 1 + c->clip, cut = ratio < low ? low : ratio > high ? high : ratio;
    double plain = -s->adv * ratio, bound = -s->adv * cut;
    double dlogp = plain >= bound ? plain : 0; /* where the bound counts, it is constant */
    for (int k = 0; k < A; k++) {
        double dlog = (k == s->action) - p[k];
        dx[k]       = dlogp * dlog + c->entropy * p[k] * (log(p[k]) + entropy);
    }
    double far = value - s->ret, near = value - s->old_value, v = far * far / 2;
    *dvalue = far;
    if (c->clip_value > 0) {
        double held = fabs(near) > c->clip_value ? copysign(c->clip_value, near) : near;
        double w    = s->old_value + held - s->ret;
        if (w * w / 2 > v) {
            v       = w * w / 2;
            *dvalue = fabs(near) > c->clip_value ? 0 : w;
        }
    }
    *dvalue *= c->value_weight;
    return fmax(plain, bound) - c->entropy * entropy + c->value_weight * v;
}

#endif
