/* Place: turns lifetimes into offsets. Plain integers; this file knows neither tensors nor devices.
 *
 * 1. Two items whose lifetimes share an instant never share a byte.
 * 2. The result depends only on the input, so a plan made on a laptop is the plan of the GPU machine. */
#ifndef PLAN_PLACE_H
#define PLAN_PLACE_H

#include <stddef.h>

typedef struct {
    size_t size_bytes; /* a multiple of the alignment the caller wants; 0 is allowed */
    int    first;      /* first and last instant it is alive, both included */
    int    last;
    size_t offset; /* out */
} PlanItem;

/* Sets every offset and returns the bytes needed in all. */
size_t plan_place(PlanItem *item, int n);

/* The largest sum of sizes alive at one instant: no placement can need less. */
size_t plan_lower_bound(const PlanItem *item, int n);

#endif
