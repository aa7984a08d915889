/* Dice: repeatable random choices for tests. */
#ifndef TESTS_DICE_H
#define TESTS_DICE_H

#include "base/rng.h"

typedef struct {
    uint64_t seed, n; /* n: rolls so far */
} Dice;

/* One of 0 .. n-1. */
static inline int dice_roll(Dice *d, int n)
{
    uint32_t out[4];
    rng_philox(out, d->seed, 0, 0, d->n++);
    return (int)(out[0] % (uint32_t)n);
}

static inline float dice_uniform(Dice *d)
{
    return (float)dice_roll(d, 1 << 24) * 0x1p-23f - 1.0f;
} /* [-1, 1) */

#endif
