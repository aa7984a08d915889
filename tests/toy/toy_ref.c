#include "toy_ref.h"

#include "dev/op_math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------- */

static double *numbers(int64_t n)
{
    double *p = calloc((size_t)n, sizeof *p);
    CHECK(p, "out of host memory");
    return p;
}

void toy_ref_init(ToyRef *t, const Recipe *r, const float *w, const float *teacher)
{
    const ToyKeys *k = toy_keys(r);
    memset(t, 0, sizeof *t);
    t->r                = r;
    t->margin           = INFINITY;
    t->n[REF_UP]        = k->width * TOY_DIM;
    t->n[REF_UP_BIAS]   = k->width;
    t->n[REF_DOWN]      = k->out * k->width;
    t->n[REF_DOWN_BIAS] = k->out;
    for (int i = 0; i < REF_PARTS; i++) {
        t->first[i] = t->n_all;
        t->n_all += t->n[i];
    }
    double **all[] = { &t->w, &t->g, &t->m, &t->v, &t->mean, &t->teacher };
    for (int i = 0; i < ARRAY_LEN(all); i++) *all[i] = numbers(t->n_all);
    for (int64_t i = 0; i < t->n_all; i++) {
        t->w[i]       = w[i];
        t->teacher[i] = teacher[i];
    }
    t->table_x = calloc(TOY_TABLE * TOY_DIM, sizeof *t->table_x);
    t->table_y = calloc((size_t)(TOY_TABLE * k->out), sizeof *t->table_y);
    toy_fill_table(r, t->table_x, t->table_y);
}

void toy_ref_deinit(ToyRef *t)
{
    double *all[] = { t->w, t->g, t->m, t->v, t->mean, t->teacher };
    for (int i = 0; i < ARRAY_LEN(all); i++) free(all[i]);
    free(t->table_x);
    free(t->table_y);
}

/* ---- a net on one patch ------------------------------------------------------------------------------- */

/* y[out] += share * net(x); hidden[width] gets the tanh. */
static void forward(const ToyRef *t, const double *w, const double *x, double share, double *hidden,
                    double *y)
{
    int64_t       F = toy_keys(t->r)->width, C = toy_keys(t->r)->out;
    const double *up = w + t->first[REF_UP], *down = w + t->first[REF_DOWN];
    for (int64_t f = 0; f < F; f++) {
        double a = w[t->first[REF_UP_BIAS] + f];
        for (int d = 0; d < TOY_DIM; d++) a += up[f * TOY_DIM + d] * x[d];
        hidden[f] = tanh(a);
    }
    for (int64_t c = 0; c < C; c++) {
        double a = w[t->first[REF_DOWN_BIAS] + c];
        for (int64_t f = 0; f < F; f++) a += down[c * F + f] * hidden[f];
        y[c] += share * a;
    }
}

/* Adds the gradient of one patch, dy[out] times share, to g. */
static void backward(ToyRef *t, const double *x, const double *hidden, const double *dy, double share)
{
    int64_t F = toy_keys(t->r)->width, C = toy_keys(t->r)->out;
    double *g = t->g, *down = t->w + t->first[REF_DOWN];
    for (int64_t c = 0; c < C; c++) {
        g[t->first[REF_DOWN_BIAS] + c] += share * dy[c];
        for (int64_t f = 0; f < F; f++) g[t->first[REF_DOWN] + c * F + f] += share * dy[c] * hidden[f];
    }
    for (int64_t f = 0; f < F; f++) {
        double d = 0;
        for (int64_t c = 0; c < C; c++) d += share * dy[c] * down[c * F + f];
        d *= 1 - hidden[f] * hidden[f];
        g[t->first[REF_UP_BIAS] + f] += d;
        for (int k = 0; k < TOY_DIM; k++) g[t->first[REF_UP] + f * TOY_DIM + k] += d * x[k];
    }
}

/* ---- one sample --------------------------------------------------------------------------------------- */

typedef struct {
    uint8_t pixels[TOY_SIDE * TOY_SIDE * 3];
    float   anchor[1024];
    int32_t n;
    double  patch[TOY_PARTS][TOY_DIM];
} Picture;

static void read_picture(const Source *src, int64_t g, Picture *p)
{
    void *field[TOY_FIELDS] = { [TOY_PIXELS] = p->pixels, [TOY_ANCHOR] = p->anchor, [TOY_COUNT] = &p->n };
    CHECK(source_fill(src, g, field, NULL) == 0, "%s", err_get());
    for (int k = 0; k < TOY_PARTS; k++) {
        int y0 = k / 2 * TOY_PATCH, x0 = k % 2 * TOY_PATCH;
        for (int d = 0; d < TOY_DIM; d++) {
            int row = y0 + d / 3 / TOY_PATCH, col = x0 + d / 3 % TOY_PATCH;
            p->patch[k][d] =
                (p->pixels[(row * TOY_SIDE + col) * 3 + d % 3] / 255.0 - (double)TOY_MEAN) / (double)TOY_STD;
        }
    }
}

/* What both nets say, the anchor included. hidden: [TOY_PARTS][width], of the student. */
static void look_at(const ToyRef *t, const Picture *p, double *hidden, double *student, double *target)
{
    int64_t F = toy_keys(t->r)->width, C = toy_keys(t->r)->out;
    memset(student, 0, sizeof *student * (size_t)C);
    for (int64_t c = 0; c < C; c++) target[c] = (double)p->anchor[c];
    for (int k = 0; k < p->n; k++) {
        forward(t, t->teacher, p->patch[k], 1.0 / p->n, hidden + k * F, target);
        forward(t, t->w, p->patch[k], 1.0 / p->n, hidden + k * F, student);
    }
}

static double half_square(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]) / 2;
    return sum;
}

/* ---- updates ------------------------------------------------------------------------------------------ */

static void update(ToyRef *t, double lr)
{
    const RecipeOptim *o    = &t->r->optim;
    double             norm = 0;
    t->n_update++;
    for (int64_t i = 0; i < t->n_all; i++) norm += t->g[i] * t->g[i];
    norm          = sqrt(norm);
    double factor = o->clip > 0 ? MIN(1, o->clip / (norm + 1e-6)) : 1;
    double bias1 = 1 - pow(o->beta1, (double)t->n_update), bias2 = 1 - pow(o->beta2, (double)t->n_update);
    for (int k = 0; k < REF_PARTS; k++) {
        double decay = k == REF_UP || k == REF_DOWN ? o->weight_decay : 0;
        for (int64_t i = t->first[k]; i < t->first[k] + t->n[k]; i++) {
            double g = t->g[i] * factor;
            t->m[i]  = o->beta1 * t->m[i] + (1 - o->beta1) * g;
            t->v[i]  = o->beta2 * t->v[i] + (1 - o->beta2) * g * g;
            t->w[i] -= lr * (t->m[i] / bias1 / (sqrt(t->v[i] / bias2) + o->eps) + decay * t->w[i]);
            t->mean[i] = (double)TOY_DECAY * t->mean[i] + (1 - (double)TOY_DECAY) * t->w[i];
        }
    }
    memset(t->g, 0, sizeof *t->g * (size_t)t->n_all);
}

static void first_update(ToyRef *t, const Source *src, int64_t step, double lr)
{
    int64_t F = toy_keys(t->r)->width, C = toy_keys(t->r)->out, n = t->r->step_samples, n_target = 0;
    double *hidden = numbers(TOY_PARTS * F), *student = numbers(C), *target = numbers(C);
    Picture p;
    for (int64_t i = 0; i < n; i++) {
        read_picture(src, step * n + i, &p);
        n_target += p.n > 0;
    }
    for (int64_t i = 0; i < n; i++) {
        read_picture(src, step * n + i, &p);
        if (p.n == 0) continue;
        look_at(t, &p, hidden, student, target);
        t->report[TOY_DISTANCE] += half_square(student, target, C) / (double)n_target;
        for (int64_t c = 0; c < C; c++) student[c] = (student[c] - target[c]) / (double)n_target;
        for (int k = 0; k < p.n; k++) backward(t, p.patch[k], hidden + k * F, student, 1.0 / p.n);
    }
    update(t, lr);
    free(hidden);
    free(student);
    free(target);
}

/* One turn on the table; the loss. */
static double repel(ToyRef *t, int64_t step)
{
    int64_t F = toy_keys(t->r)->width, C = toy_keys(t->r)->out;
    double *hidden = numbers(F), *y = numbers(C), *dy = numbers(C), x[TOY_DIM], loss = 0;
    double  inv = -toy_keys(t->r)->weight / TOY_PICK;
    Shuffle f   = shuffle_begin(TOY_TABLE, (uint64_t)t->r->seed, TOY_ORDER_SITE, step, t->epoch);
    for (int k = 0; k < TOY_PICK; k++) {
        uint32_t row = shuffle_at(&f, (uint32_t)(t->cursor * TOY_PICK + k));
        for (int d = 0; d < TOY_DIM; d++) x[d] = (double)t->table_x[row * TOY_DIM + d];
        memset(y, 0, sizeof *y * (size_t)C);
        forward(t, t->w, x, 1, hidden, y);
        for (int64_t c = 0; c < C; c++) {
            double e = y[c] - (double)t->table_y[row * C + c];
            loss += inv * e * e / 2;
            dy[c] = inv * e;
        }
        backward(t, x, hidden, dy, 1);
    }
    t->epoch++;
    t->cursor = (t->cursor + 1) % (TOY_TABLE / TOY_PICK);
    t->turns++;
    free(hidden);
    free(y);
    free(dy);
    return loss;
}

void toy_ref_step(ToyRef *t, const Source *src, int64_t step, double lr)
{
    const ToyKeys *k    = toy_keys(t->r);
    int64_t        stop = INT64_MAX - UNTIL_LAG - 1; /* turn that halts */
    t->report[0] = t->report[1] = 0;
    first_update(t, src, step, lr);
    for (int64_t turn = 0; turn < k->rounds && turn <= stop + UNTIL_LAG; turn++) {
        double loss = repel(t, step);
        t->report[TOY_REPEL] += loss;
        if (turn <= stop) t->margin = MIN(t->margin, fabs(loss - k->halt));
        if (turn < stop && loss > k->halt) stop = turn;
        if (turn < stop) update(t, lr);
        memset(t->g, 0, sizeof *t->g * (size_t)t->n_all);
    }
}

void toy_ref_eval(ToyRef *t, const Source *src, double out[2])
{
    int64_t F = toy_keys(t->r)->width, C = toy_keys(t->r)->out, n = 0;
    double *hidden = numbers(TOY_PARTS * F), *student = numbers(C), *target = numbers(C);
    Picture p;
    out[0] = out[1] = 0;
    for (int64_t i = 0; i < src->n_sample; i++) {
        read_picture(src, i, &p);
        if (p.n == 0) continue;
        look_at(t, &p, hidden, student, target);
        n++;
        out[0] += half_square(student, target, C);
        for (int64_t c = 0; c < C; c++) out[1] += student[c] * target[c] / (double)C;
    }
    for (int i = 0; i < 2; i++) out[i] /= (double)n;
    free(hidden);
    free(student);
    free(target);
}
