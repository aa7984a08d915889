/* What the rules of the doctor share, and their order. doctor_recipe.c, doctor_host.c and doctor_card.c have
 * one function a bottleneck: each looks at the evidence and adds a finding, or nothing. */
#include "watch/doctor_case.h"

#include "base/err.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- tools --------------------------------------------------------------------------------------------- */

int doctor_is_gpu(const DoctorCase *c) { return c->f->plan.capability > 0; }

int doctor_is_known(const DoctorCase *c) { return doctor_is_gpu(c) && c->f->plan.machine[0] != '\0'; }

Finding *doctor_add(DoctorCase *c, const char *cause)
{
    CHECK(c->d->n_finding < DOCTOR_FINDINGS, "too many findings");
    Finding *x = &c->d->finding[c->d->n_finding++];
    *x         = (Finding){ .cause = cause, .step_s = NAN, .gain = NAN };
    return x;
}

void doctor_change(Finding *x, const char *fmt, ...)
{
    va_list ap;
    CHECK(x->n_change < DOCTOR_CHANGES, "too many changes");
    va_start(ap, fmt);
    vsnprintf(x->change[x->n_change++], WHATIF_KEY, fmt, ap);
    va_end(ap);
}

void doctor_predict(DoctorCase *c, Finding *x, double step_s)
{
    if (!(step_s > 0)) return;
    x->step_s = MIN(step_s, c->w->step_s);
    x->gain   = 1 - x->step_s / c->w->step_s;
}

void doctor_predict_between(DoctorCase *c, Finding *x, double least_s, double most_s)
{
    double worth = (1 - DOCTOR_GAIN) * c->w->step_s;
    if (least_s <= worth && most_s > worth) return;
    doctor_predict(c, x, (MIN(least_s, c->w->step_s) + MIN(most_s, c->w->step_s)) / 2);
}

static double ratio_s(const DoctorCase *c, double then, double now)
{
    double busy = doctor_busy_s(c);
    return MAX(busy * then / now + c->w->step_s - busy, doctor_load_s(c));
}

/* What an op costs a CPU beside its work is known by its order of magnitude: between nothing and what the
 * plan takes. Small ops tell the two apart: micro-batches of 128 rows are as fast as larger ones. */
void doctor_predict_ratio(DoctorCase *c, Finding *x, const WhatIf *then)
{
    double full = ratio_s(c, then->step_s, c->now.step_s), work = ratio_s(c, then->work_s, c->now.work_s);
    if (doctor_is_gpu(c)) {
        doctor_predict(c, x, full);
    } else {
        doctor_predict_between(c, x, MIN(full, work), MAX(full, work));
    }
}

void doctor_keep_if(DoctorCase *c, Finding *x, double least)
{
    if (x->gain < least) c->d->n_finding--;
}

double doctor_busy_s(const DoctorCase *c)
{
    if (c->f->trace.busy_s > 0) return MIN(c->f->trace.busy_s, c->w->step_s);
    return c->w->step_s * (1 - c->d->input_share - c->d->gap_share);
}

double doctor_load_s(const DoctorCase *c)
{
    double n = c->f->host.loader_threads;
    return c->w->fill_s > 0 && n > 0 ? c->w->fill_s / n : 0;
}

/* A GPU that waits now and then is below its power limit, and its clock is higher than it will be: an H200
 * fell from 1850 to 1535 MHz once its loader kept up, and computed 8 % longer. Known rates are those at the
 * limit. */
double doctor_full_s(const DoctorCase *c, double busy)
{
    const double most = 1.15; /* a plan that is further off knows something else wrong */
    return doctor_is_known(c) && c->now.step_s > busy ? MIN(c->now.step_s, most * busy) : busy;
}

int doctor_plan_change(DoctorCase *c, Finding *x, DoctorHow how, WhatIf *out)
{
    WhatIf then;
    int    rc = whatif_plan(&then, c->from, c->f, x->change, x->n_change, 0);
    if (rc < 0 || c->now.step_s <= 0) {
        err_clear();
        c->d->n_finding--;
        return -1;
    }
    if (how == BY_RATES && doctor_is_known(c)) {
        doctor_predict(c, x, MAX(then.step_s, doctor_load_s(c)));
    } else {
        doctor_predict_ratio(c, x, &then);
    }
    if (out) *out = then;
    return 0;
}

const char *doctor_ms(char *buf, size_t n, double s)
{
    snprintf(buf, n, s < 0.1 ? "%.2f ms" : "%.0f ms", s * 1e3);
    return buf;
}

/* ---- all ----------------------------------------------------------------------------------------------- */

/* Known gains first, the largest first; what trains something else behind what does not. */
static int by_gain(const void *a, const void *b)
{
    const Finding *x = a, *y = b;
    double         p = isnan(x->gain) ? -1 : x->gain, q = isnan(y->gain) ? -1 : y->gain;
    if (x->is_other != y->is_other) return x->is_other - y->is_other;
    return p < q ? 1 : p > q ? -1 : 0;
}

void doctor_find(Doctor *d, const RecipeFrom *from)
{
    DoctorCase c = { .d = d, .from = from, .w = &d->window, .f = &d->facts, .r = d->recipe };
    if (whatif_plan(&c.now, from, &d->facts, NULL, 0, 0) < 0) err_clear();
    doctor_find_recipe(&c);
    doctor_find_cpu(&c);
    doctor_find_host(&c);
    doctor_find_card(&c);
    qsort(d->finding, (size_t)d->n_finding, sizeof d->finding[0], by_gain);
}
