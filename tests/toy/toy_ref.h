/* The toy tenant once more: plain C in double, one thread, gradients by hand.
 * The reference knows nothing of programs, fields or plans. */
#ifndef TESTS_TOY_TOY_REF_H
#define TESTS_TOY_TOY_REF_H

#include "toy.h"

enum { REF_UP, REF_UP_BIAS, REF_DOWN, REF_DOWN_BIAS, REF_PARTS };

typedef struct {
    const Recipe *r;
    int64_t       n[REF_PARTS], first[REF_PARTS], n_all; /* numbers in each weight, and where it begins */
    double       *w, *g, *m, *v, *mean, *teacher;        /* n_all each */
    float        *table_x, *table_y;
    int64_t       n_update, turns;
    int32_t       epoch, cursor;
    double        report[2]; /* of the last step: the sums over its updates, by slot */
    double margin; /* the smallest distance of a loss of the table's rows from toy.halt, over all steps */
} ToyRef;

/* w: initial weights of the student, teacher: the teacher's, both in the order above. */
void toy_ref_init(ToyRef *t, const Recipe *r, const float *w, const float *teacher);
void toy_ref_deinit(ToyRef *t);

/* Step `step` on samples [step * step_samples, ...) of src. */
void toy_ref_step(ToyRef *t, const Source *src, int64_t step, double lr);

/* distance and agreement over all samples of src. */
void toy_ref_eval(ToyRef *t, const Source *src, double out[2]);

#endif
