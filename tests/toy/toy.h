/* The toy tenant: a task that lives wholly outside src/, which needs no line there (docs/tenant.md).
 *
 * A small net (student) learns what a frozen net (teacher, from a file) says about pictures of noise.
 * 1. A sample is a picture u8[8,8,3], an anchor f32[out] and n i32, the number of valid patches: 0 to 4.
 *    A sample without patches is no target.
 * 2. Student and teacher: linear, tanh, linear on each patch, then the mean over valid patches.
 * 3. First update of a step: distance, slot 0, half the squared error between student and teacher + anchor.
 * 4. Then up to toy.rounds updates on TOY_PICK rows of a fixed table. Their order is drawn on the device.
 *    Their loss, repel, slot 1, has a negative weight. A loss above toy.halt ends the updates of the step.
 * 5. On the device from step to step: two counters of the order, and a running mean of the weights.
 * 6. On the host from step to step: ToyState. */
#ifndef TESTS_TOY_TOY_H
#define TESTS_TOY_TOY_H

#include "task/job.h"

extern const Task       task_toy;
extern const RecipeTask recipe_toy;

enum {
    TOY_SIDE  = 8,
    TOY_PATCH = 4,
    TOY_PARTS = 4,  /* patches of a picture */
    TOY_DIM   = 48, /* numbers in a patch */
    TOY_TABLE = 32, /* rows of the table */
    TOY_PICK  = 8,  /* rows of one update on it */
    TOY_VAL   = 40  /* samples for validation */
};

enum { TOY_PIXELS, TOY_ANCHOR, TOY_COUNT, TOY_FIELDS };
enum { TOY_DISTANCE, TOY_REPEL, TOY_AGREEMENT }; /* slots */

#define TOY_MEAN  0.5f
#define TOY_STD   0.25f
#define TOY_DECAY 0.9f /* of the running mean of weights */

/* Keys of the section toy, in Recipe.own. */
typedef struct {
    int64_t width, out, rounds;
    double  weight, halt;
    char    teacher[RECIPE_STR];
} ToyKeys;

static inline const ToyKeys *toy_keys(const Recipe *r) { return (const ToyKeys *)r->own; }

/* Job.own_state. */
typedef struct {
    int64_t turns; /* of the second loop, those after a halt included */
} ToyState;

/* Job.own. */
typedef struct {
    ParamTable student, teacher;
    Tensor    *table_x, *table_y; /* f32[TOY_TABLE, TOY_DIM], f32[TOY_TABLE, out] */
    Tensor    *epoch, *cursor;    /* i32[1] */
    Tensor    *mean;              /* f32, running mean of the student's flat weights */
} Toy;

static inline Toy *toy_of(const Job *j) { return (Toy *)j->own; }

/* The table of a recipe: x[TOY_TABLE][TOY_DIM], y[TOY_TABLE][out]. */
void toy_fill_table(const Recipe *r, float *x, float *y);
int  toy_sample(Job *j, const TaskSample *opt, FILE *out);
/* The random site that orders the table. */
enum { TOY_ORDER_SITE = 9000 };

/* ---- toy_source.c ---- */

int toy_open_train(Source **out, const Recipe *r);
int toy_open_val(Source **out, const Recipe *r, int64_t most, const Source *train);

/* ---- toy_teacher.c ---- */

/* Writes a teacher of random weights. Negative after err_set(). */
int toy_write_teacher(const char *path, int64_t width, int64_t out, uint64_t seed);

#endif
