/* Buckets: where in a list the gradients of several ranks are summed.
 *
 * 1. A flat tensor is cut into contiguous ranges at the borders of the views that ops write. One ALL_REDUCE
 *    on the communication lane sums a range in place, right behind the last op that touches the range. So a
 *    range travels while the rest of the backward half still computes. The order and the events follow from
 *    the executor's address rules.
 * 2. The cut follows from the list alone: ranks that record the same list sum the same ranges in the
 *    same order.
 * 3. Padding between views belongs to the range before it and stays zero. */
#ifndef PROG_BUCKETS_H
#define PROG_BUCKETS_H

#include "prog/prog.h"

/* Large enough for the full rate of NVLink and of networks, small enough that the last one, which nothing
 * hides, is short. */
enum { BUCKET_BYTES = 25 * 1024 * 1024 };

/* After prog_lower, before prog_plan. flat: a contiguous tensor of the store, f32 or f64, or a view of one.
 * Ranges end at the border nearest to bucket_bytes; a tensor larger than that is not cut. */
void prog_add_reductions(Prog *p, Tensor *flat, size_t bucket_bytes);

#endif
