/* What the files of the doctor's rules share. Not for others. */
#ifndef WATCH_DOCTOR_CASE_H
#define WATCH_DOCTOR_CASE_H

#include "watch/doctor.h"

#define DOCTOR_GIB 1073741824.0

typedef struct {
    Doctor           *d;
    const RecipeFrom *from;
    const FallWindow *w;
    const RunFacts   *f;
    const Recipe     *r;
    WhatIf            now; /* the recipe as it is; step_s 0: cannot be planned */
    int               cpu_is_short;
} DoctorCase;

int doctor_is_gpu(const DoctorCase *c);
/* The rates of this machine were measured: its predictions hold as they are. */
int doctor_is_known(const DoctorCase *c);

Finding *doctor_add(DoctorCase *c, const char *cause);
void     doctor_change(Finding *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void     doctor_predict(DoctorCase *c, Finding *x, double step_s);
/* The same for a step between two bounds: the middle. If one of them is worth a change and the other is not,
 * nothing is predicted. */
void doctor_predict_between(DoctorCase *c, Finding *x, double least_s, double most_s);
/* The measured busy time, times planned-then over planned-now. */
void doctor_predict_ratio(DoctorCase *c, Finding *x, const WhatIf *then);
/* Takes the newest finding back when it is known to promise less than `least`. */
void doctor_keep_if(DoctorCase *c, Finding *x, double least);

/* Seconds of a step in which the device computes. */
double doctor_busy_s(const DoctorCase *c);
/* The loader cannot go faster than its threads. */
double doctor_load_s(const DoctorCase *c);
/* Busy seconds at full load. */
double doctor_full_s(const DoctorCase *c, double busy);

typedef enum { BY_RATES, BY_RATIO } DoctorHow;

/* The step with the finding's changes. BY_RATES: as planned for a known machine, where the kernels will be
 * other ones. BY_RATIO: what is measured now, times planned then over planned now. Negative: it cannot be
 * planned, and the finding is gone. */
int doctor_plan_change(DoctorCase *c, Finding *x, DoctorHow how, WhatIf *out);

/* "1.23 ms". Returns buf. */
const char *doctor_ms(char *buf, size_t n, double s);

void doctor_find_recipe(DoctorCase *c); /* doctor_recipe.c: what the recipe forbids */
void doctor_find_cpu(DoctorCase *c);    /* doctor_host.c: CPUs first, others go by cpu_is_short */
void doctor_find_host(DoctorCase *c);   /* doctor_host.c: the rest of it */
void doctor_find_card(DoctorCase *c);   /* doctor_card.c */

#endif
