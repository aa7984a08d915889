/* Matrix products: packed panels of b, register tiles of c.
 *
 * b is copied into panels of TILE_COLS columns ([k][TILE_COLS], zero padded), all threads together. Then each thread owns
 * a rectangle of c and walks it: rows in blocks that keep a's part in L2, k in steps that keep a panel's part in L1.
 * a is read in place when its rows are consecutive (forward, dx); when its columns are (dw) it is packed beside b.
 *
 * 1. How k is cut, and with it the order of additions for one element of c, follows from k and n alone, so neither the
 *    number of threads nor the number of rows changes its bits.
 * 2. Packed depths alternate between two buffers: one barrier per depth. */
#include "dev/cpu/cpu_gemm.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"

#include <omp.h>

enum {
    DEPTH        = 384,             /* a panel of that depth is 48 KiB, a register tile's rows of a 18 KiB */
    BLOCK_STRIPS = 8,               /* strips of TILE_ROWS per block of rows */
    PACK_RUN     = 16,              /* rows packed at a time */
    PACK_FLOATS  = 4 * 1024 * 1024, /* bound of packed b per buffer */
};

/* ---- Register tiles ------------------------------------------------------------------------------------------ */

VEC_INLINE void tile_run(const Tile *t, const int rows, const int vecs)
{
    vf sum[12][TILE_VECS];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) sum[i][j] = (vf){ 0 };
    }
    const float *a = t->a, *b = t->b;
    int64_t      a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;
    for (int64_t k = t->k; k > 0; k--) {
        vf bv[TILE_VECS];
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) bv[j] = vf_load(b + j * VL);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            float s = a[i * a_row];
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++) sum[i][j] += bv[j] * s;
        }
        a += a_col;
        b += b_row;
    }
    const float *plus = t->plus;
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) {
            vf v = sum[i][j];
            if (plus) v = vf_load(plus + i * t->plus_row + j * VL) + v;
            vf_store(t->c + i * t->c_row + j * VL, v);
        }
    }
}

#define TILE_CASE(rows)                                                                                      \
    static CPU_ONCE void tile_##rows##_1(const Tile *t) { tile_run(t, rows, 1); }                            \
    static CPU_ONCE void tile_##rows##_2(const Tile *t) { tile_run(t, rows, 2); }
TILE_CASE(1)
TILE_CASE(2)
TILE_CASE(3)
TILE_CASE(4)
TILE_CASE(5)
TILE_CASE(6)
TILE_CASE(7)
TILE_CASE(8)
TILE_CASE(9)
TILE_CASE(10)
TILE_CASE(11)
TILE_CASE(12)
#undef TILE_CASE

static void (*const tile_table[13][TILE_VECS + 1])(const Tile *) = {
    [1] = { 0, tile_1_1, tile_1_2 },    [2] = { 0, tile_2_1, tile_2_2 },    [3] = { 0, tile_3_1, tile_3_2 },
    [4] = { 0, tile_4_1, tile_4_2 },    [5] = { 0, tile_5_1, tile_5_2 },    [6] = { 0, tile_6_1, tile_6_2 },
    [7] = { 0, tile_7_1, tile_7_2 },    [8] = { 0, tile_8_1, tile_8_2 },    [9] = { 0, tile_9_1, tile_9_2 },
    [10] = { 0, tile_10_1, tile_10_2 }, [11] = { 0, tile_11_1, tile_11_2 }, [12] = { 0, tile_12_1, tile_12_2 },
};

void cpu_tile(const Tile *t, int rows, int vecs) { tile_table[rows][vecs](t); }

/* Rows [begin, end) of part i when m rows are cut into n_part parts that differ by at most one row. */
static int64_t cut(int64_t m, int64_t n_part, int64_t i) { return m * i / n_part; }

static int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

void cpu_block(const Tile *t, int64_t m, int64_t n)
{
    int64_t n_strip = div_up(m, TILE_ROWS);
    for (int64_t j = 0; j < n; j += TILE_COLS) {
        int vecs = n - j >= TILE_COLS ? TILE_VECS : (int)((n - j) / VL);
        for (int64_t s = 0; s < n_strip; s++) {
            int64_t r0 = cut(m, n_strip, s), r1 = cut(m, n_strip, s + 1);
            Tile    u  = *t;
            u.a += r0 * t->a_row;
            u.b += j;
            u.c += r0 * t->c_row + j;
            if (u.plus) u.plus += r0 * t->plus_row + j;
            cpu_tile(&u, (int)(r1 - r0), vecs);
        }
    }
}

/* ---- The whole product ---------------------------------------------------------------------------------------- */

typedef struct {
    const Gemm *g;
    float      *pack[2];       /* b panels, then a strips */
    int64_t     n_panel;       /* of TILE_COLS columns */
    int64_t     n_strip;       /* of at most TILE_ROWS rows */
    int64_t     n_depth;       /* parts of k that are packed at a time */
    int64_t     row_parts, col_parts; /* grid of rectangles, one per thread */
    int         pack_a;
} Plan;

static void plan_init(Plan *p, const Gemm *g)
{
    p->g       = g;
    p->n_panel = div_up(g->n, TILE_COLS);
    p->n_strip = div_up(g->m, TILE_ROWS);
    p->pack_a  = g->a_col != 1;
    int64_t most = PACK_FLOATS / (p->n_panel * TILE_COLS);
    if (most < DEPTH || p->pack_a) most = DEPTH;
    p->n_depth = div_up(g->k, most);
}

static int64_t pack_floats(const Plan *p)
{
    int64_t depth = div_up(p->g->k, p->n_depth);
    int64_t n     = depth * p->n_panel * TILE_COLS;
    if (p->pack_a) n += depth * p->g->m;
    return div_up(n, VL) * VL;
}

size_t cpu_gemm_scratch(const Gemm *g)
{
    Plan p;
    plan_init(&p, g);
    return (size_t)pack_floats(&p) * (p.n_depth > 1 ? 2 : 1) * sizeof(float);
}

/* Splits c over the threads: the time of the largest rectangle, in cycles per unit of k, counting its tiles and the rows
 * and columns it must load. */
static void plan_grid(Plan *p, int threads)
{
    double best = 0;
    p->row_parts = p->col_parts = 1;
    for (int cols = 1; cols <= threads; cols++) {
        int     rows  = threads / cols;
        int64_t strip = div_up(p->n_strip, rows), panel = div_up(p->n_panel, cols);
        double  cost  = (double)(strip * panel * TILE_ROWS) + 0.25 * (double)(strip * TILE_ROWS + panel * TILE_COLS);
        if (cols == 1 || cost < best) {
            best         = cost;
            p->row_parts = rows;
            p->col_parts = cols;
        }
    }
}

/* Rows [k, k+n) of panel j when b's rows are consecutive: each is copied, zero padded. out is the panel's row k. */
static void pack_b_rows(float *out, const Gemm *g, int64_t j, int64_t k, int64_t n)
{
    int64_t      col0 = j * TILE_COLS, n_col = MIN(TILE_COLS, g->n - col0);
    const float *b = g->b + k * g->b_row + col0;
    for (; n > 0; n--, b += g->b_row, out += TILE_COLS) {
        for (int v = 0; v < TILE_VECS; v++) {
            int64_t left = n_col - v * VL;
            vf_store(out + v * VL, left <= 0 ? (vf){ 0 } : vf_get(b + v * VL, left));
        }
    }
}

/* The same when b's columns are consecutive: VL x VL blocks are turned. */
static void pack_b_cols(float *out, const Gemm *g, int64_t j, int64_t k0, int64_t depth)
{
    for (int64_t v = 0; v < TILE_VECS; v++) {
        for (int64_t k = 0; k < depth; k += VL) {
            vf block[VL];
            for (int64_t l = 0; l < VL; l++) {
                int64_t col = j * TILE_COLS + v * VL + l;
                block[l]    = col < g->n ? vf_get(g->b + col * g->b_col + k0 + k, depth - k) : (vf){ 0 };
            }
            vf_transpose(block);
            int64_t n = MIN(VL, depth - k);
            for (int64_t l = 0; l < n; l++) vf_store(out + (k + l) * TILE_COLS + v * VL, block[l]);
        }
    }
}

/* Columns [k, k+n) of rows [r0, r0+rows) of a, whose columns are consecutive: [n][rows]. */
static void pack_a_rows(float *out, const Gemm *g, int64_t r0, int64_t rows, int64_t k, int64_t n)
{
    const float *a = g->a + r0 + k * g->a_col;
    for (; n > 0; n--, a += g->a_col, out += rows) {
        for (int64_t i = 0; i < rows; i += VL) vf_put(out + i, rows - i, vf_get(a + i, rows - i));
    }
}

/* This thread's share of packing depth part d. Rows are taken in short runs, panel after panel: a run's source stays in
 * L1 and each page is entered once. */
static void pack_share(const Plan *p, int64_t d, int thread, int team)
{
    const Gemm *g  = p->g;
    int64_t     k0 = cut(g->k, p->n_depth, d), depth = cut(g->k, p->n_depth, d + 1) - k0;
    float      *b = p->pack[d & 1], *a = b + depth * p->n_panel * TILE_COLS;
    if (g->b_col != 1) {
        for (int64_t j = cut(p->n_panel, team, thread); j < cut(p->n_panel, team, thread + 1); j++) {
            pack_b_cols(b + j * depth * TILE_COLS, g, j, k0, depth);
        }
    }
    int64_t end = cut(depth, team, thread + 1);
    for (int64_t k = cut(depth, team, thread); k < end; k += PACK_RUN) {
        int64_t n = MIN(PACK_RUN, end - k);
        for (int64_t j = 0; g->b_col == 1 && j < p->n_panel; j++) {
            pack_b_rows(b + (j * depth + k) * TILE_COLS, g, j, k0 + k, n);
        }
        for (int64_t s = 0; p->pack_a && s < p->n_strip; s++) {
            int64_t r0 = cut(g->m, p->n_strip, s), rows = cut(g->m, p->n_strip, s + 1) - r0;
            pack_a_rows(a + r0 * depth + k * rows, g, r0, rows, k0 + k, n);
        }
    }
}

/* A tile at the right edge: computed beside c, then its columns inside c are added. */
static void tile_edge(Tile t, int rows, int64_t n_col)
{
    float        part[12 * TILE_COLS];
    float       *c = t.c;
    const float *plus = t.plus;
    t.c    = part;
    t.plus = NULL;
    int64_t c_row = t.c_row;
    t.c_row       = TILE_COLS;
    cpu_tile(&t, rows, (int)div_up(n_col, VL));
    for (int i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n_col; j++) {
            float v          = part[i * TILE_COLS + j];
            c[i * c_row + j] = plus ? plus[i * t.plus_row + j] + v : v;
        }
    }
}

/* What every tile of one packed part needs, worked out once: a division costs as much as ten steps of k. */
typedef struct {
    const Plan  *p;
    const float *b, *a;  /* packed; a only if it is packed */
    int64_t      k0, full; /* depths [k0, k0+full) */
    int          last;
} Part;

static Part part_init(const Plan *p, int64_t d)
{
    Part t = { .p = p, .b = p->pack[d & 1], .k0 = cut(p->g->k, p->n_depth, d), .last = d == p->n_depth - 1 };
    t.full = cut(p->g->k, p->n_depth, d + 1) - t.k0;
    t.a    = t.b + t.full * p->n_panel * TILE_COLS;
    return t;
}

/* Rows [r0, r0+rows) times panel j, depths [k, k+depth) of the part. */
static void strip_panel(const Part *part, int64_t r0, int64_t rows, int64_t j, int64_t k, int64_t depth)
{
    const Gemm *g    = part->p->g;
    int64_t     col0 = j * TILE_COLS;
    Tile        t    = { .k = depth, .a_row = g->a_row, .a_col = g->a_col, .b_row = TILE_COLS, .c_row = g->c_row };
    t.b              = part->b + (j * part->full + k) * TILE_COLS;
    t.c              = g->c + r0 * g->c_row + col0;
    if (part->p->pack_a) {
        t.a     = part->a + r0 * part->full + k * rows;
        t.a_row = 1;
        t.a_col = rows;
    } else {
        t.a = g->a + r0 * g->a_row + part->k0 + k;
    }
    if (g->accumulate || part->k0 + k > 0) {
        t.plus     = t.c;
        t.plus_row = g->c_row;
    } else if (g->bias) {
        t.plus = g->bias + col0;
    }
    if (g->n - col0 >= TILE_COLS) {
        cpu_tile(&t, (int)rows, TILE_VECS);
    } else {
        tile_edge(t, (int)rows, g->n - col0);
    }
}

/* One rectangle of c for one packed part. */
static void compute_part(const Part *part, int64_t rectangle)
{
    const Plan *p  = part->p;
    const Gemm *g  = p->g;
    int64_t     pr = rectangle / p->col_parts, pc = rectangle % p->col_parts;
    int64_t     s0 = cut(p->n_strip, p->row_parts, pr), s1 = cut(p->n_strip, p->row_parts, pr + 1);
    int64_t     j0 = cut(p->n_panel, p->col_parts, pc), j1 = cut(p->n_panel, p->col_parts, pc + 1);
    int64_t     n_step = div_up(part->full, DEPTH);
    for (int64_t s = s0; s < s1 && j0 < j1; s += BLOCK_STRIPS) {
        int64_t n = MIN(BLOCK_STRIPS, s1 - s), row[BLOCK_STRIPS + 1];
        for (int64_t i = 0; i <= n; i++) row[i] = cut(g->m, p->n_strip, s + i);
        for (int64_t step = 0; step < n_step; step++) {
            int64_t k = cut(part->full, n_step, step), depth = cut(part->full, n_step, step + 1) - k;
            for (int64_t j = j0; j < j1; j++) {
                for (int64_t i = 0; i < n; i++) strip_panel(part, row[i], row[i + 1] - row[i], j, k, depth);
            }
        }
        if (g->finish && part->last) {
            g->finish(g->ctx, row[0], row[n] - row[0], j0 * TILE_COLS, MIN(j1 * TILE_COLS, g->n) - j0 * TILE_COLS);
        }
    }
}

int cpu_gemm(Dev *dev, const Gemm *g)
{
    CHECK((g->a_row == 1 || g->a_col == 1) && (g->b_row == 1 || g->b_col == 1), "product of transposed views");
    Plan p;
    plan_init(&p, g);
    p.pack[0] = cpu_scratch(dev, cpu_gemm_scratch(g));
    if (!p.pack[0]) return -1;
    p.pack[1]   = p.n_depth > 1 ? p.pack[0] + pack_floats(&p) : p.pack[0];
    int threads = (double)g->m * (double)g->n * (double)g->k < 64.0 * CPU_PARALLEL_MIN ? 1 : cpu_threads(dev);
    plan_grid(&p, threads);
#pragma omp parallel num_threads(threads)
    {
        int thread = omp_get_thread_num(), team = omp_get_num_threads();
        pack_share(&p, 0, thread, team);
#pragma omp barrier
        for (int64_t d = 0; d < p.n_depth; d++) {
            Part part = part_init(&p, d);
            for (int64_t r = thread; r < p.row_parts * p.col_parts; r += team) compute_part(&part, r);
            if (d + 1 < p.n_depth) {
                pack_share(&p, d + 1, thread, team);
#pragma omp barrier
            }
        }
    }
    return 0;
}
