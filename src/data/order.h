/* Order: which window of the source is sample g. The answer is a pure function, so a run resumes anywhere
 * without saved state.
 *
 * 1. A sample is the window of T+1 tokens that begins at order_start(): T inputs and, one later, T targets.
 * 2. Windows tile the source with stride T, so within an epoch no target is seen twice. Each epoch shifts the
 *    tiling by a phase of its own in 0..T-1, so the cuts between windows move. A source shorter than 2T has
 *    fewer phases.
 * 3. Every epoch has the same number of windows; epoch = g / n_window. Within an epoch the windows are
 *    visited in a permutation of its own.
 * 4. The order depends on (seed, length, T, g) alone: not on threads, micro-batch, ranks or where a run was
 *    resumed.
 * 5. Samples to skip (after a rollback) are taken out of the numbering: the used samples keep consecutive
 *    numbers. order_skip() says which raw g a used number means. */
#ifndef DATA_ORDER_H
#define DATA_ORDER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No sample has a number above this: sums of two such numbers and a step's samples fit into 64 bits. */
#define ORDER_MOST (INT64_C(1) << 61)

typedef struct {
    uint64_t seed;
    int64_t  T;
    int64_t  n_window;  /* windows per epoch; 0: the source has not even T+1 tokens */
    int64_t  n_phase;   /* the phase is below this */
    int      half_bits; /* the permutation works on 2 * half_bits bits */
} Order;

/* Raw samples [first, first+count). */
typedef struct {
    int64_t first, count;
} SampleRange;

/* The order of a source of n_token tokens in windows of T targets. */
void order_init(Order *o, int64_t n_token, int64_t T, uint64_t seed);

/* First token of sample g >= 0. */
int64_t order_start(const Order *o, int64_t g);

/* The window visited i-th in an epoch: for each (seed, epoch) a permutation of 0..n_window-1. */
int64_t order_permute(const Order *o, int64_t epoch, int64_t i);

/* Windows of an evaluation: window i begins at token i*T, in order, and the last one may be cut short. */
int64_t order_eval_windows(int64_t n_token, int64_t T);

/* If only n_some < n_window windows are used for all, the i-th of them is floor(i * n_window / n_some): they
 * are spread evenly over the source. For n_some >= n_window it is i. */
int64_t order_eval_pick(int64_t i, int64_t n_some, int64_t n_window);

/* The raw sample that the used number u >= 0 stands for. Ranges are sorted by first; they may overlap. */
int64_t order_skip(const SampleRange *skip, int n_skip, int64_t used);

/* Adds the raw samples that the used numbers [used, used+count) stand for to a sorted list, which stays
 * sorted and must have room for one more. Returns its new length. Used numbers below `used` keep their
 * meaning. */
int order_skip_add(SampleRange *skip, int n_skip, int64_t used, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
