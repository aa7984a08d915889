/* Masked autoencoding once more, in plain C and double: the loss of one sample from its bytes, its hidden
 * patches and the weights by name. tests/test_mae.c compares the task with it, gradients by differences. */
#ifndef TESTS_MAE_REF_H
#define TESTS_MAE_REF_H

#include "base/err.h"
#include "conf/recipe.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { REF_PARAMS = 96, REF_ROWS = 24, REF_WIDE = 128 };

typedef struct {
    char    name[64];
    double *x;
    int64_t n;
} RefParam;

typedef struct {
    const Recipe *r;
    RefParam      param[REF_PARAMS];
    int           n_param;
} MaeRef;

/* T rows of C numbers. */
typedef struct {
    int    T, C;
    double x[REF_ROWS][REF_WIDE];
} RefRows;

/* NULL: the model has no such weight. */
__attribute__((format(printf, 2, 3))) static inline const double *ref_w(const MaeRef *m, const char *fmt, ...)
{
    char    name[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    for (int i = 0; i < m->n_param; i++) {
        if (strcmp(m->param[i].name, name) == 0) return m->param[i].x;
    }
    return NULL;
}

static inline RefRows ref_linear(const MaeRef *m, const RefRows *x, const char *name, int out)
{
    const double *w = ref_w(m, "%s.weight", name), *bias = ref_w(m, "%s.bias", name);
    RefRows       y = { .T = x->T, .C = out };
    for (int t = 0; t < x->T; t++) {
        for (int o = 0; o < out; o++) {
            y.x[t][o] = bias ? bias[o] : 0;
            for (int i = 0; i < x->C; i++) y.x[t][o] += x->x[t][i] * w[o * x->C + i];
        }
    }
    return y;
}

/* Mean 0 and variance 1. */
static inline void ref_normalise(double *x, int n, double eps)
{
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += x[i] / n;
    for (int i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / n;
    for (int i = 0; i < n; i++) x[i] = (x[i] - mean) / sqrt(square + eps);
}

static inline RefRows ref_norm(const MaeRef *m, const RefRows *x, const char *name)
{
    const double *gamma = ref_w(m, "%s.weight", name), *beta = ref_w(m, "%s.bias", name);
    RefRows       y = *x;
    for (int t = 0; t < y.T; t++) {
        ref_normalise(y.x[t], y.C, m->r->model.norm_eps);
        for (int i = 0; i < y.C; i++) y.x[t][i] = y.x[t][i] * gamma[i] + beta[i];
    }
    return y;
}

static inline RefRows ref_attention(const RefRows *qkv, int heads)
{
    int     C = qkv->C / 3, D = C / heads;
    RefRows y = { .T = qkv->T, .C = C };
    for (int h = 0; h < heads; h++) {
        for (int t = 0; t < y.T; t++) {
            double p[REF_ROWS], sum = 0;
            for (int s = 0; s < y.T; s++) {
                double dot = 0;
                for (int i = h * D; i < (h + 1) * D; i++) dot += qkv->x[t][i] * qkv->x[s][C + i];
                sum += p[s] = exp(dot / sqrt(D));
            }
            for (int s = 0; s < y.T; s++) {
                for (int i = h * D; i < (h + 1) * D; i++) y.x[t][i] += p[s] / sum * qkv->x[s][2 * C + i];
            }
        }
    }
    return y;
}

/* x += branch, each channel times its layer scale where there is one. */
static inline void ref_add(RefRows *x, const RefRows *branch, const double *scale)
{
    for (int t = 0; t < x->T; t++) {
        for (int i = 0; i < x->C; i++) x->x[t][i] += branch->x[t][i] * (scale ? scale[i] : 1);
    }
}

static inline void ref_block(const MaeRef *m, RefRows *x, const char *prefix, int heads, int ffn)
{
    char name[64];
#define NAME(part) (snprintf(name, sizeof name, "%s.%s", prefix, part), name)
    RefRows h = ref_norm(m, x, NAME("norm1"));
    h         = ref_linear(m, &h, NAME("qkv"), 3 * x->C);
    h         = ref_attention(&h, heads);
    h         = ref_linear(m, &h, NAME("proj"), x->C);
    ref_add(x, &h, ref_w(m, "%s.scale1.weight", prefix));
    h = ref_norm(m, x, NAME("norm2"));
    h = ref_linear(m, &h, NAME("up"), ffn);
    for (int t = 0; t < h.T; t++) {
        for (int i = 0; i < h.C; i++) {
            double u  = h.x[t][i];
            h.x[t][i] = u / 2 * (1 + tanh(sqrt(2 / M_PI) * (u + 0.044715 * u * u * u)));
        }
    }
    h = ref_linear(m, &h, NAME("down"), x->C);
    ref_add(x, &h, ref_w(m, "%s.scale2.weight", prefix));
#undef NAME
}

/* All patches of a sample, by time, row and column. */
static inline RefRows ref_patches(const Recipe *r, const uint8_t *pixels)
{
    const double mean[3] = { 0.485, 0.456, 0.406 }, std[3] = { 0.229, 0.224, 0.225 };
    int          S = (int)r->image.size, P = (int)r->image.patch, n = S / P;
    int          tube  = r->image.frames > 0 ? (int)r->image.tubelet : 1;
    int          times = r->image.frames > 0 ? (int)r->image.frames / tube : 1;
    RefRows      y     = { .T = times * n * n, .C = tube * P * P * 3 };
    for (int f = 0; f < times * tube; f++) {
        for (int i = 0; i < S * S * 3; i++) {
            int row = i / 3 / S, column = i / 3 % S, c = i % 3;
            int patch     = f / tube * n * n + row / P * n + column / P;
            int k         = (f % tube * P * P + row % P * P + column % P) * 3 + c;
            y.x[patch][k] = (pixels[f * S * S * 3 + i] / 255.0 - mean[c]) / std[c];
        }
    }
    return y;
}

/* The position of a patch in C numbers: for time (of clips), row and column sines, then cosines. */
static inline void ref_add_sincos(const Recipe *r, int patch, double *x, int C)
{
    int n = (int)(r->image.size / r->image.patch), parts = r->image.frames > 0 ? 3 : 2, each = C / parts;
    int place[3] = { patch / (n * n), patch / n % n, patch % n };
    for (int k = 0; k < parts; k++) {
        for (int i = 0; i < each / 2; i++) {
            double angle = place[3 - parts + k] * pow(10000, -i / (each / 2.0));
            x[k * each + i] += sin(angle);
            x[k * each + each / 2 + i] += cos(angle);
        }
    }
}

/* What the trunk makes of the patches that are not hidden; the class token comes first, registers last. */
static inline RefRows ref_trunk(const MaeRef *m, const RefRows *patches, const int *hidden)
{
    const RecipeModel *o = &m->r->model;
    const double *class = ref_w(m, "class.weight"), *pos = ref_w(m, "pos.weight");
    RefRows all = ref_linear(m, patches, "patch", (int)o->width), x = { .C = all.C };
    char    name[64];
    for (int i = class ? -1 : 0; i < all.T; i++) {
        double *row = x.x[x.T];
        if (i >= 0 && hidden[i]) continue;
        memcpy(row, i < 0 ? class : all.x[i], sizeof *row * (size_t)x.C);
        for (int k = 0; pos && k < x.C; k++) row[k] += pos[(i + (class != NULL)) * x.C + k];
        if (!pos && i >= 0) ref_add_sincos(m->r, i, row, x.C);
        x.T++;
    }
    for (int i = 0; i < m->r->image.registers; i++)
        memcpy(x.x[x.T++], ref_w(m, "register.weight") + i * x.C, sizeof(double) * (size_t)x.C);
    for (int l = 0; l < o->layers; l++) {
        snprintf(name, sizeof name, "block.%d", l);
        ref_block(m, &x, name, (int)o->heads, (int)o->ffn);
    }
    return ref_norm(m, &x, "norm");
}

/* The guesses for all patches. */
static inline RefRows ref_decode(const MaeRef *m, const RefRows *seen, const int *hidden, int n, int numbers)
{
    const RecipeMae *o    = &m->r->mae;
    const double    *mask = ref_w(m, "decoder.mask.weight");
    RefRows          few = ref_linear(m, seen, "decoder.embed", (int)o->width), x = { .T = n, .C = few.C };
    char             name[64];
    int              next = ref_w(m, "class.weight") != NULL;
    for (int i = 0; i < n; i++) {
        memcpy(x.x[i], hidden[i] ? mask : few.x[next++], sizeof *mask * (size_t)x.C);
        ref_add_sincos(m->r, i, x.x[i], x.C);
    }
    for (int l = 0; l < o->layers; l++) {
        snprintf(name, sizeof name, "decoder.block.%d", l);
        ref_block(m, &x, name, (int)o->heads, 4 * x.C);
    }
    x = ref_norm(m, &x, "decoder.norm");
    return ref_linear(m, &x, "decoder.pixels", numbers);
}

/* Sum over hidden patches of the mean squared difference. */
static inline double ref_loss(const MaeRef *m, const uint8_t *pixels, const int *hidden)
{
    RefRows patches = ref_patches(m->r, pixels), seen = ref_trunk(m, &patches, hidden);
    RefRows guess = ref_decode(m, &seen, hidden, patches.T, patches.C);
    double  loss  = 0;
    for (int i = 0; i < patches.T; i++) {
        if (!hidden[i]) continue;
        ref_normalise(patches.x[i], patches.C, 1e-6);
        for (int k = 0; k < patches.C; k++)
            loss += (guess.x[i][k] - patches.x[i][k]) * (guess.x[i][k] - patches.x[i][k]) / patches.C;
    }
    return loss;
}

/* Of task image: the cross-entropy of a label. */
static inline double ref_class_loss(const MaeRef *m, const uint8_t *pixels, int label)
{
    const int none[REF_ROWS] = { 0 };
    RefRows patches = ref_patches(m->r, pixels), x = ref_trunk(m, &patches, none), one = { .T = 1, .C = x.C };
    double  sum = 0;
    for (int t = 0; t < patches.T; t++) {
        for (int i = 0; i < x.C; i++)
            one.x[0][i] = m->r->image.pool == POOL_CLASS ? x.x[0][i] : one.x[0][i] + x.x[t][i] / patches.T;
    }
    RefRows logits = ref_linear(m, &one, "head", (int)m->r->image.classes);
    for (int c = 0; c < logits.C; c++) sum += exp(logits.x[0][c]);
    return log(sum) - logits.x[0][label];
}

#endif
