/* Ladder: a recipe measured with its optimisations off, then switched on one after the other, each rung
 * keeping those before.
 *
 * 1. Every rung is a list of overrides, as on the command line: `brim bench RECIPE KEYS` is that rung.
 * 2. The top rung has no override left: it is `brim bench RECIPE`. With LADDER_RECIPE it has those that lift
 *    what the recipe holds back.
 * 3. A step that the recipe itself leaves out, or that the device cannot take, is listed with the reason
 *    and not counted. */
#ifndef BENCH_LADDER_H
#define BENCH_LADDER_H

#include "conf/recipe.h"
#include "dev/dev.h"
#include "task/task.h"

#include <stdio.h>

typedef enum {
    LADDER_FP32,  /* fp32, a small micro-batch, stored attention, nothing fused */
    LADDER_TORCH, /* what a good PyTorch user has: bf16, flash attention, elementwise passes fused */
    LADDER_RECIPE /* the steps of LADDER_FP32, for a recipe that is the bottom itself: keys which hold it back
                   * (precision, micro_batch, opt.*) are lifted on the way */
} LadderStart;

enum { LADDER_RUNGS = 16, LADDER_KEYS = 32, LADDER_KEY = 48 };

typedef struct {
    const char *name;
    const char *guide; /* what the usual guides promise for this step; "" when they do not say */
    int         n_key;
    char        key[LADDER_KEYS][LADDER_KEY]; /* "opt.flash=false" */
    int         is_cost;                      /* behind the top: what a switch costs */
    int         is_slow;                      /* below the top: measured for less long */
    char        refused[240];                 /* why it was not measured; "" when it was */
    double      per_s, step_s;                /* units a second, seconds a step */
    double      over_before, over_bottom;     /* factors; a cost's first is over the top */
    size_t      planned_bytes;
    int64_t     micro_batch;
} Rung;

typedef struct {
    char        recipe[RECIPE_STR], device[128];
    const char *unit; /* the task's */
    Rung        rung[LADDER_RUNGS];
    int         n_rung;
} Ladder;

typedef struct {
    const Task       *task;
    const RecipeTask *extra;    /* of a task that is not shipped; NULL: none */
    const char       *path;     /* of the recipe */
    char *const      *override; /* the user's own, borrowed */
    int               n_override;
    LadderStart       start;
    double            least_s; /* timed seconds of a rung at least; 0: those of bench */
    int64_t           batch;   /* micro-batch of the bottom; 0: up to 8, or up to 32,768 rows from torch */
} LadderOptions;

/* Names and keys of all rungs for a resolved recipe on a backend; measures nothing. Negative after err_user()
 * when the batch does not divide the step's samples. */
int ladder_plan(Ladder *l, const LadderOptions *opt, const Recipe *r, const DevVt *vt);

/* Plans and measures, with a line in the log for every rung. Negative after err_set()/err_user(). */
int ladder_run(Ladder *l, const LadderOptions *opt);

void ladder_print(const Ladder *l, FILE *out);      /* a Markdown table */
void ladder_print_json(const Ladder *l, FILE *out); /* one object a line */

/* Before minutes of measuring: makes the folders of a picture and tries a file there. Negative after
 * err_set(). */
int ladder_try_picture(const char *path);
int ladder_draw(const Ladder *l, const char *path); /* an SVG picture. Negative after err_set() */

#endif
