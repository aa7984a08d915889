/* Matrix products.
 *
 * Why not a library: on two cores of an Emerald Rapids Xeon (AVX-512, 182 GFLOP/s a core) OpenBLAS 0.3.21
 * does not know the core and takes it for a Prescott: 66 GFLOP/s were measured. With the core set to
 * SkylakeX, OpenBLAS gives 290 to 320 on the shapes of a small language model. This code gives 300 to 355,
 * and the same bits for any number of threads. A block of rows can be finished (activation) while it is in
 * cache. */
#ifndef DEV_CPU_GEMM_H
#define DEV_CPU_GEMM_H

#include "dev/cpu/cpu_vec.h"
#include "dev/dev.h"

/* A register tile is TILE_ROWS x TILE_COLS: as many sums as registers allow, less two for b and some for
 * a. */
enum { TILE_ROWS = VREGS == 32 ? 12 : 6, TILE_VECS = 2, TILE_COLS = TILE_VECS * VL, TILE_AHEAD = 2 };

/* c[m,n] = plus[m,n] + a[m,k] b[k,n]. a has any strides; b and c have rows of consecutive floats. plus may be
 * c, a bias (plus_row 0) or NULL for nothing. */
typedef struct {
    int64_t      k;
    const float *a;
    int64_t      a_row, a_col;
    const float *b;
    int64_t      b_row;
    float       *c;
    int64_t      c_row;
    const float *plus;
    int64_t      plus_row;
    const float *ahead; /* the next TILE_AHEAD * k floats to bring into L2 meanwhile, or NULL */
} Tile;

/* One register tile: rows in 1..TILE_ROWS, vecs (of VL columns) in 1..TILE_VECS. */
void cpu_tile(const Tile *t, int rows, int vecs);

/* out[c][r] = x[r][c] * factor[c] for rows r < n_row and columns c < n_col, both at most VL. Rows of out get
 * `width` floats: those past n_row are 0. */
typedef struct {
    float       *out;
    int64_t      out_row, width;
    const float *x;
    int64_t      x_row, n_row, n_col;
    vf           factor;
} Turn;
void cpu_turn(const Turn *t);

/* A block of m rows and n columns (a multiple of VL) of such tiles, on the calling thread. */
void cpu_block(const Tile *t, int64_t m, int64_t n);

/* Finished rows and columns of a product, and where they lie. */
typedef struct {
    int64_t row0, n_row, col0, n_col;
    float  *c;
    int64_t c_row;
} GemmBlock;

/* c[m,n] = a[m,k] b[k,n] (+ bias[n] to each row) (+ c when accumulate), on all threads. One stride of a and
 * of b is 1. finish, if any, is called once for each block, by the thread that made it, while it is in
 * cache. */
typedef struct Gemm Gemm;
struct Gemm {
    int64_t      m, n, k;
    const float *a;
    int64_t      a_row, a_col;
    const float *b;
    int64_t      b_row, b_col;
    float       *c;
    int64_t      c_row;
    const float *bias;
    int          accumulate;
    int private_blocks; /* not 0: c is not stored; blocks for so many threads lie in scratch, for finish */
    void (*finish)(const void *ctx, const GemmBlock *block);
    const void *ctx;
};
int    cpu_gemm(Dev *dev, const Gemm *g);
size_t cpu_gemm_scratch(const Gemm *g); /* bytes */

#endif
