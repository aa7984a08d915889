/* The definition is that of the transformers library, in double precision. */
#include "net/rope.h"

#include "base/err.h"
#include "conf/relate_image.h"

#include <math.h>

enum { MOST_PAIRS = 256 /* of a head, as model.head_dim allows */ };

static const double tau = 6.283185307179586;

static double plain_rate(const RecipeModel *m, int64_t i)
{
    return pow(m->rope_theta, -2.0 * (double)i / (double)m->head_dim);
}

/* Llama 3.1 stretches slow pairs in full and fast ones not at all; those in between go over from one to the
 * other. */
static double llama3_rate(const RecipeModel *m, double rate)
{
    double turns = (double)m->rope_original * rate / tau; /* within the original context */
    if (turns < m->rope_low) return rate / m->rope_factor;
    if (turns > m->rope_high) return rate;
    double share = (turns - m->rope_low) / (m->rope_high - m->rope_low);
    return (1 - share) * rate / m->rope_factor + share * rate;
}

/* The pair, a fraction, that turns so many times within the original context. */
static double yarn_pair(const RecipeModel *m, double turns)
{
    return (double)m->head_dim * log((double)m->rope_original / (turns * tau)) / (2 * log(m->rope_theta));
}

/* Pairs up to `low` are not stretched, those from `high` on in full. */
static void yarn_rates(const RecipeModel *m, double *rate)
{
    double low = yarn_pair(m, m->rope_fast), high = yarn_pair(m, m->rope_slow);
    if (m->rope_truncate) {
        low  = floor(low);
        high = ceil(high);
    }
    low  = fmax(low, 0);
    high = fmin(high, (double)m->head_dim - 1);
    if (low == high) high += 0.001; /* as transformers does */
    for (int64_t i = 0; i < m->head_dim / 2; i++) {
        double share = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        rate[i]      = share * rate[i] / m->rope_factor + (1 - share) * rate[i];
    }
}

void rope_rates(const RecipeModel *m, double *rate)
{
    int64_t half = m->head_dim / 2;
    float   stretch[MOST_PAIRS];
    CHECK(half <= MOST_PAIRS, "%lld pairs", (long long)half);
    for (int64_t i = 0; i < half; i++) rate[i] = plain_rate(m, i);
    switch (m->rope_scaling) {
    case ROPE_NONE: return;
    case ROPE_LINEAR:
        for (int64_t i = 0; i < half; i++) rate[i] /= m->rope_factor;
        return;
    case ROPE_LLAMA3:
        for (int64_t i = 0; i < half; i++) rate[i] = llama3_rate(m, rate[i]);
        return;
    case ROPE_YARN: yarn_rates(m, rate); return;
    case ROPE_LONG:
        CHECK(relate_floats(m->rope_short, (int)half, stretch) == 0, "model.rope_short: '%s'", m->rope_short);
        for (int64_t i = 0; i < half; i++) rate[i] /= (double)stretch[i];
        return;
    }
}

double rope_attention(const RecipeModel *m)
{
    if (m->rope_scaling != ROPE_YARN && m->rope_scaling != ROPE_LONG) return 1;
    if (m->rope_attention > 0) return m->rope_attention;
    if (m->rope_factor <= 1) return 1;
    if (m->rope_scaling == ROPE_YARN) return 0.1 * log(m->rope_factor) + 1;
    return sqrt(1 + log(m->rope_factor) / log((double)m->rope_original));
}

void rope_table(const RecipeModel *m, int64_t rows, float *out)
{
    int64_t D = m->head_dim, half   = D / 2;
    double  rate[MOST_PAIRS], scale = rope_attention(m);
    rope_rates(m, rate);
    for (int64_t t = 0; t < rows; t++) {
        for (int64_t i = 0; i < half; i++) {
            double angle          = (double)t * rate[i];
            out[t * D + i]        = (float)(cos(angle) * scale);
            out[t * D + half + i] = (float)(sin(angle) * scale);
        }
    }
}

const char *rope_describe(const RecipeModel *m, char *buf, size_t n)
{
    long long original = (long long)m->rope_original;
    double    factor = m->rope_factor, scale = rope_attention(m);
    buf[0] = '\0';
    switch (m->rope_scaling) {
    case ROPE_NONE: break;
    case ROPE_LINEAR: snprintf(buf, n, "linear: stretched by %g", factor); break;
    case ROPE_LLAMA3: snprintf(buf, n, "llama3: stretched by %g from %lld tokens", factor, original); break;
    case ROPE_YARN:
        snprintf(buf, n, "yarn: stretched by %g from %lld tokens, queries and keys x %.6g", factor, original,
                 scale);
        break;
    case ROPE_LONG:
        snprintf(buf, n, "longrope: the short list, up to %lld tokens; queries and keys x %.6g", original,
                 scale);
        break;
    }
    return buf;
}
