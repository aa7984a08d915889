/* What an op must give, in double, with the size of the numbers that were added up on the way.
 *
 * Tolerance. A float sum of n terms makes n roundings, each at most U = 2^-24 of a partial sum, and a partial
 * sum is at most mag = sum of |terms|. They are as good as random, so the error grows with sqrt(n): four
 * standard deviations are 4 sqrt(n) U mag. Another 4 U mag covers the few roundings outside the sum
 * (products, a division, exp at 1 unit). */
#ifndef TESTS_OP_REF_BASE_H
#define TESTS_OP_REF_BASE_H

#include "op_cases.h"

typedef struct {
    double   *want[OP_MAX_TENSOR], *mag[OP_MAX_TENSOR]; /* per element, for f32 outputs */
    double    terms[OP_MAX_TENSOR];                     /* n of the longest sum behind an output */
    StepState state;                                    /* for ops that write the state */
    int       has_state;
    char     *bytes[OP_MAX_TENSOR]; /* exact contents instead, for other dtypes */
} OpRef;

static inline double op_ref_tolerance(const OpRef *r, int i, int64_t e)
{
    return 0x1p-24 * (4 + 4 * sqrt(r->terms[i])) * r->mag[i][e];
}

static inline void ref_put(OpRef *r, int i, int64_t e, double want, double mag)
{
    r->want[i][e] = want;
    r->mag[i][e]  = mag;
}

#endif
