/* Doctor: says what holds a run back, what to change, and what that will gain.
 *
 * 1. Evidence comes from the run's own files: metrics.jsonl, watch.json, recipe.yaml. Nothing is measured
 *    here.
 * 2. A finding has a cause, the evidence, the change in recipe terms, and the step time that the change
 *    should give. Where no key helps, there is advice instead. A gain that cannot be predicted is unknown,
 *    not 0.
 * 3. Findings are sorted by gain; unknown gains come last. A run is healthy when no known gain reaches
 *    DOCTOR_GAIN.
 * 4. A change that leaves the mathematics as it is can be written down as a recipe (doctor_apply). */
#ifndef WATCH_DOCTOR_H
#define WATCH_DOCTOR_H

#include "watch/waterfall.h"
#include "watch/whatif.h"

enum { DOCTOR_FINDINGS = 24, DOCTOR_CHANGES = 20 };

/* Shares below this are within what plans and clocks can tell. */
#define DOCTOR_GAIN 0.05
/* A change that promises less is neither shown nor applied. */
#define DOCTOR_LEAST 0.01

typedef struct {
    const char *cause; /* "precision" */
    char        verdict[160], evidence[280], advice[280];
    char        change[DOCTOR_CHANGES][WHATIF_KEY]; /* "precision=auto" */
    int         n_change;
    double      step_s;   /* predicted, of as many units as a step has now; NAN: not known */
    double      gain;     /* share of the step's time, or of the wall time, that is saved; NAN: not known */
    int         is_wall;  /* 1: the gain is of wall time, not of a step */
    int         is_other; /* 1: the change trains something else, and is not applied by itself */
} Finding;

typedef struct {
    char          name[256];
    RunFacts      facts;
    FallWindow    window;
    WaterfallPart part[WATERFALL_PARTS];
    int           n_part;
    double        input_share; /* of a step that waits for data, and gaps between kernels */
    double        gap_share;
    Finding       finding[DOCTOR_FINDINGS];
    int           n_finding;
    Recipe       *recipe; /* owned */
} Doctor;

/* What a run's folder says. from: its recipe.yaml. Negative after err_user()/err_set(). */
int doctor_open(Doctor *d, const RecipeFrom *from, const char *base, const char *name);
/* The second half of that, for what is known already: d->name, d->facts and d->window. */
int  doctor_judge(Doctor *d, const RecipeFrom *from);
void doctor_close(Doctor *d);

int doctor_is_healthy(const Doctor *d);
/* Of a healthy run: "no change of the recipe promises 5 % or more". Returns buf. */
const char *doctor_why_healthy(const Doctor *d, char *buf, size_t n);

void doctor_print(const Doctor *d, FILE *out);
int  doctor_print_json(const Doctor *d, FILE *out); /* negative after err_set() */
/* Writes the recipe with the changes of all findings that train the same. Returns how many keys; 0: nothing
 * to change, and no file. Negative after err_user()/err_set(). */
int doctor_apply(const Doctor *d, const RecipeFrom *from, const char *path);

/* A part of what steps take of the wall time; NAN: not measured. */
double doctor_step_share(const Doctor *d, FallPart part);

/* ---- doctor_rules.c ---- */

/* Adds the findings, sorted. */
void doctor_find(Doctor *d, const RecipeFrom *from);

#endif
