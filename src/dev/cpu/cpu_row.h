/* Row functions that several ops share, and column sums.
 *
 * Column sums (weight gradients of norms and biases) have two stages: rows are cut into at most COLSUM_CHUNKS
 * chunks. Each chunk is summed into its own row of partial sums; then the partial rows are added in order.
 * The cut follows from the number of rows alone, so threads do not change the bits. */
#ifndef DEV_CPU_ROW_H
#define DEV_CPU_ROW_H

#include "dev/cpu/cpu.h"

/* 96 is divisible by every usual number of threads, and the partial rows stay a few per cent of the
 * traffic. */
enum { COLSUM_CHUNKS = 96, COLSUM_MIN_ROWS = 8 };

void row_add(float *y, const float *a, const float *b, int64_t n);         /* y may be a or b */
void row_add_near(float *y, const float *a, const float *near, int64_t n); /* the same; near is in cache */
void row_sum_into(float *sum, const float *x, int64_t n);                  /* sum += x */
void row_act_fwd(float *y, const float *x, int64_t n, Act act);            /* y may be x */
void row_act_both(float *y, float *slope, const float *x, int64_t n, Act act);   /* slope may be x */
void row_act_dx(float *dx, const float *dy, const float *x, int64_t n, Act act); /* dx may be dy or x */

/* Part of a gated row: the gate and what it gates lie `up` floats apart, in x and in dx. */
void row_glu_fwd(float *y, const float *x, int64_t up, int64_t n, Act act);
void row_glu_both(float *y, float *x, int64_t up, int64_t n, Act act); /* then x = [act' * up | act] */
void row_glu_dx(float *dx, const float *dy, const float *x, int64_t up, int64_t n, Act act); /* dx may be x */

/* Part of a row of XENT_DX: n classes, of which `target` is the target's, or none; dx may be x. */
void row_xent_dx(float *dx, const float *x, float lse, int64_t target, float factor, int64_t n);

typedef struct {
    int64_t rows, cols;
    int     n_out;    /* sums per column: 1 to 3 */
    float  *out[3];   /* accumulated into; NULL: not wanted */
    int64_t tmp_cols; /* floats of private space that chunk() gets, 0: none */
    /* Adds rows [r0, r1) into sum[n_out * cols], which starts at zero. */
    void (*chunk)(const void *ctx, int64_t r0, int64_t r1, float *sum, float *tmp);
    const void *ctx;
} Colsum;
int    colsum_run(Dev *dev, const Colsum *c);
size_t colsum_scratch(const Colsum *c, int threads);

/* Begin of part i when n things are cut into n_part parts that differ by at most one. */
static inline int64_t row_cut(int64_t n, int64_t n_part, int64_t i) { return n * i / n_part; }
static inline int64_t row_div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

#endif
