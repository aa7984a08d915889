/* Matrix products: packed panels of b, register tiles of c.
 *
 * All threads together copy b into panels of TILE_COLS columns ([k][TILE_COLS], zero padded). Then each
 * thread owns a rectangle of c and walks it: rows in blocks that keep a's part in L2, k in steps that keep a
 * panel's part in L1 or L2. A thread that is done helps the others: on a shared machine some thread is always
 * late. If the rows of a are consecutive in memory (forward, dx), a is read in place. If its columns are
 * consecutive (dw), a is packed into strips of TILE_ROWS rows ([k][rows]). Panels of b are read in place if
 * the rows of b are close enough.
 *
 * 1. The cut of k into steps follows from k alone. So does the order of additions for one element of c. The
 *    bits depend neither on threads nor on the number of rows or columns.
 * 2. Steps are packed several at a time (a part); parts alternate between two buffers: one barrier per
 *    part. */
#include "dev/cpu/cpu_gemm.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"

#include <omp.h>
#include <stdatomic.h>

enum {
    STEP_DEPTH   = 384,             /* k of a step at most: 48 KiB of a panel, 18 KiB of a strip */
    BLOCK_STRIPS = 32,              /* strips per block of rows at most: 590 KB of a */
    L2_PANELS    = 24,              /* panels that stay in L2 beside a block of half that height */
    PACK_RUN     = 16,              /* rows packed at a time */
    PACK_FLOATS  = 4 * 1024 * 1024, /* of one part at most; wider products are cut */
    PART_FLOATS  = 512 * 1024,      /* of one part of dw: enough work between barriers for 16 threads */
    NEAR_ROW     = 512,             /* floats; the stride prefetcher reaches 2 KiB */
    MOST_RECTS   = 256,             /* rectangles of c; more threads than that help */
    RECT_UNITS   = 8,               /* pieces of a rectangle that one thread takes at a time, at least */
    BLOCK_COLS   = 320,             /* at most, if a block is finished: 490 KB that are still in L2 */
    BLOCK_FLOATS = BLOCK_STRIPS * TILE_ROWS * BLOCK_COLS,
};

typedef struct {
    const Gemm *g;
    float      *pack[2];              /* panels of b, then strips of a */
    float      *blocks;               /* BLOCK_FLOATS for each thread; NULL: they lie in c */
    int64_t     n_panel, n_strip;     /* columns by TILE_COLS, rows by TILE_ROWS or less */
    int64_t     in_place;             /* panels before this one are read where they are */
    int64_t     n_step, part_steps;   /* of k; packed at a time */
    int64_t     row_parts, col_parts; /* grid of rectangles, one per thread */
    int64_t     block;                /* strips per block */
    int         pack_a;
} Plan;

/* ---- Planning ------------------------------------------------------------------------------------------ */

static void plan_init(Plan *p, const Gemm *g)
{
    *p = (Plan){ .g = g, .n_panel = row_div_up(g->n, TILE_COLS), .n_strip = row_div_up(g->m, TILE_ROWS) };
    p->pack_a   = g->a_col != 1;
    p->in_place = p->pack_a && g->b_col == 1 && g->b_row <= NEAR_ROW ? g->n / TILE_COLS : 0;
    /* Panels that do not stay in L2 come from L3 once per block: higher blocks use each longer. */
    p->block       = p->n_panel > L2_PANELS ? BLOCK_STRIPS : BLOCK_STRIPS / 2;
    p->n_step      = row_div_up(g->k, STEP_DEPTH);
    int64_t floats = STEP_DEPTH * ((p->n_panel - p->in_place) * TILE_COLS + (p->pack_a ? g->m : 0));
    p->part_steps  = MAX(1, MIN(p->n_step, (p->pack_a ? PART_FLOATS : PACK_FLOATS) / MAX(1, floats)));
    if (g->private_blocks) p->part_steps = p->n_step; /* one block after another is finished in one place */
}

static int64_t step_begin(const Plan *p, int64_t step) { return row_cut(p->g->k, p->n_step, step); }

static int64_t n_part(const Plan *p) { return row_div_up(p->n_step, p->part_steps); }

static int64_t pack_floats(const Plan *p)
{
    int64_t depth = p->part_steps * row_div_up(p->g->k, p->n_step);
    return depth * ((p->n_panel - p->in_place) * TILE_COLS + (p->pack_a ? row_div_up(p->g->m, VL) * VL : 0));
}

static int64_t packs_floats(const Plan *p) { return pack_floats(p) * (n_part(p) > 1 ? 2 : 1); }

/* The product cut to what may be packed at once: columns, and rows if they are packed. */
static Gemm first_piece(const Gemm *g)
{
    Gemm    p     = *g;
    int64_t depth = g->private_blocks ? MAX(g->k, STEP_DEPTH) : STEP_DEPTH;
    int64_t most  = MAX(TILE_COLS, PACK_FLOATS / depth / TILE_COLS * TILE_COLS);
    if (p.n > most) p.n = most;
    if (p.m > most && p.a_col != 1) p.m = most;
    return p;
}

size_t cpu_gemm_scratch(const Gemm *g)
{
    Gemm piece = first_piece(g);
    Plan p;
    plan_init(&p, &piece);
    return (size_t)(packs_floats(&p) + (int64_t)g->private_blocks * BLOCK_FLOATS) * sizeof(float);
}

/* Splits c over the threads: the time of the largest rectangle, in cycles per unit of k, counting its tiles
 * and the rows and columns it must load. */
static void plan_grid(Plan *p, int threads)
{
    double best = 0;
    threads     = MIN(threads, MOST_RECTS);
    for (int cols = 1; cols <= threads; cols++) {
        int     rows  = threads / cols;
        int64_t strip = row_div_up(p->n_strip, rows), panel = row_div_up(p->n_panel, cols);
        double  cost =
            (double)(strip * panel * TILE_ROWS) + 0.25 * (double)(strip * TILE_ROWS + panel * TILE_COLS);
        if (cols == 1 || cost < best) {
            best         = cost;
            p->row_parts = rows;
            p->col_parts = cols;
        }
    }
}

/* What every tile of one part needs, worked out once: a division costs as much as a step of k over a whole
 * tile. */
typedef struct {
    const Plan *p;
    float      *b, *a;        /* packed */
    int64_t     step0, step1; /* steps [step0, step1) */
    int64_t     k0, depth;
} Part;

static Part part_init(const Plan *p, int64_t d)
{
    Part t  = { .p     = p,
                .b     = p->pack[d & 1],
                .step0 = d * p->part_steps,
                .step1 = MIN((d + 1) * p->part_steps, p->n_step) };
    t.k0    = step_begin(p, t.step0);
    t.depth = step_begin(p, t.step1) - t.k0;
    t.a     = t.b + t.depth * (p->n_panel - p->in_place) * TILE_COLS;
    return t;
}

/* ---- Packing ------------------------------------------------------------------------------------------- */

/* Rows [k, k+n) of panel j when b's rows are consecutive: each is copied, zero padded. out is the panel's row
 * k. */
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

/* The same when b's columns are consecutive: VL x VL blocks are turned. A block without columns is all
 * zero. */
static void pack_b_cols(float *out, const Gemm *g, int64_t j, int64_t k0, int64_t depth)
{
    for (int64_t v = 0; v < TILE_VECS; v++) {
        int64_t col = j * TILE_COLS + v * VL;
        for (int64_t k = 0; k < depth; k += VL) {
            Turn t = {
                .out = out + k * TILE_COLS + v * VL, .out_row = TILE_COLS, .width = VL, .x_row = g->b_col
            };
            t.x      = g->b + col * g->b_col + k0 + k;
            t.n_row  = MAX(0, MIN(VL, g->n - col));
            t.n_col  = MIN(VL, depth - k);
            t.factor = vf_set(1);
            cpu_turn(&t);
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

/* This thread's share of packing a part. Rows are taken in short runs, panel after panel: a run's source
 * stays in L1 and each page is entered once. */
static void pack_share(const Part *part, int thread, int team)
{
    const Plan *p = part->p;
    const Gemm *g = p->g;
    if (g->b_col != 1) {
        for (int64_t j = row_cut(p->n_panel, team, thread); j < row_cut(p->n_panel, team, thread + 1); j++) {
            pack_b_cols(part->b + j * part->depth * TILE_COLS, g, j, part->k0, part->depth);
        }
    }
    int64_t end = row_cut(part->depth, team, thread + 1);
    for (int64_t k = row_cut(part->depth, team, thread); k < end; k += PACK_RUN) {
        int64_t n = MIN(PACK_RUN, end - k);
        for (int64_t j = p->in_place; g->b_col == 1 && j < p->n_panel; j++) {
            pack_b_rows(part->b + ((j - p->in_place) * part->depth + k) * TILE_COLS, g, j, part->k0 + k, n);
        }
        for (int64_t s = 0; p->pack_a && s < p->n_strip; s++) {
            int64_t r0 = row_cut(g->m, p->n_strip, s), rows = row_cut(g->m, p->n_strip, s + 1) - r0;
            pack_a_rows(part->a + r0 * part->depth + k * rows, g, r0, rows, part->k0 + k, n);
        }
    }
}

/* ---- Computing ----------------------------------------------------------------------------------------- */

/* A tile at the right edge: computed beside c, then its columns inside c are added. */
static void tile_edge(Tile t, int rows, int64_t n_col)
{
    float        part[TILE_ROWS * TILE_COLS], *c = t.c;
    const float *plus  = t.plus;
    int64_t      c_row = t.c_row;
    t.c                = part;
    t.c_row            = TILE_COLS;
    t.plus             = NULL;
    cpu_tile(&t, rows, (int)row_div_up(n_col, VL));
    for (int i = 0; i < rows; i++) {
        for (int64_t j = 0; j < n_col; j++) {
            float v          = part[i * TILE_COLS + j];
            c[i * c_row + j] = plus ? plus[i * t.plus_row + j] + v : v;
        }
    }
}

/* Panel j from depth k of the part on, and the stride of its rows. */
static const float *panel_at(const Part *part, int64_t j, int64_t k, int64_t *row)
{
    const Plan *p = part->p;
    *row          = j < p->in_place ? p->g->b_row : TILE_COLS;
    if (j < p->in_place) return p->g->b + (part->k0 + k) * p->g->b_row + j * TILE_COLS;
    return part->b + ((j - p->in_place) * part->depth + k) * TILE_COLS;
}

/* Rows [r0, r0+rows) of a block times panel j, depths [k, k+depth) of the part. */
static void strip_panel(const Part *part, const GemmBlock *block, int64_t r0, int64_t rows, int64_t j,
                        int64_t k, int64_t depth, const float *ahead)
{
    const Plan *p    = part->p;
    const Gemm *g    = p->g;
    int64_t     col0 = j * TILE_COLS;
    Tile t = { .k = depth, .a_row = g->a_row, .a_col = g->a_col, .c_row = block->c_row, .ahead = ahead };
    t.b    = panel_at(part, j, k, &t.b_row);
    t.c    = block->c + (r0 - block->row0) * block->c_row + (col0 - block->col0);
    if (p->pack_a) {
        t.a     = part->a + r0 * part->depth + k * rows;
        t.a_row = 1;
        t.a_col = rows;
    } else {
        t.a = g->a + r0 * g->a_row + part->k0 + k;
    }
    if (g->accumulate || part->k0 + k > 0) {
        t.plus     = t.c;
        t.plus_row = t.c_row;
    } else if (g->bias) {
        t.plus = g->bias + col0;
    }
    if (g->n - col0 >= TILE_COLS) {
        cpu_tile(&t, (int)rows, TILE_VECS);
    } else {
        tile_edge(t, (int)rows, g->n - col0);
    }
}

/* Strips [s0, s1) and panels [j0, j1) of c. */
typedef struct {
    int64_t s0, s1, j0, j1;
} Rect;

/* One step of k for a block of strips and panels. */
static void block_step(const Part *part, const Rect *r, const GemmBlock *block, int64_t step)
{
    const Plan *p = part->p;
    int64_t     k = step_begin(p, step) - part->k0, depth = step_begin(p, step + 1) - part->k0 - k;
    int64_t     n = r->s1 - r->s0, row[BLOCK_STRIPS + 1];
    for (int64_t i = 0; i <= n; i++) row[i] = row_cut(p->g->m, p->n_strip, r->s0 + i);
    for (int64_t j = r->j0; j < r->j1; j++) {
        int64_t      next_row;
        const float *next = panel_at(part, j + 1 < r->j1 ? j + 1 : r->j0, k, &next_row);
        for (int64_t i = 0; i < n; i++) {
            const float *ahead =
                next_row == TILE_COLS ? next + i % (BLOCK_STRIPS / 2) * TILE_AHEAD * depth : NULL;
            strip_panel(part, block, row[i], row[i + 1] - row[i], j, k, depth, ahead);
        }
    }
}

static GemmBlock block_of(const Plan *p, const Rect *r)
{
    const Gemm *g = p->g;
    GemmBlock   b = { .row0 = row_cut(g->m, p->n_strip, r->s0), .col0 = r->j0 * TILE_COLS };
    b.n_row       = row_cut(g->m, p->n_strip, r->s1) - b.row0;
    b.n_col       = MIN(r->j1 * TILE_COLS, g->n) - b.col0;
    b.c           = p->blocks ? p->blocks + omp_get_thread_num() * (int64_t)BLOCK_FLOATS
                              : g->c + b.row0 * g->c_row + b.col0;
    b.c_row       = p->blocks ? BLOCK_COLS : g->c_row;
    return b;
}

static Rect rect_of(const Plan *p, int64_t i)
{
    int64_t pr = i / p->col_parts, pc = i % p->col_parts;
    return (Rect){ row_cut(p->n_strip, p->row_parts, pr), row_cut(p->n_strip, p->row_parts, pr + 1),
                   row_cut(p->n_panel, p->col_parts, pc), row_cut(p->n_panel, p->col_parts, pc + 1) };
}

/* A unit is a block of rows, cut into ranges of panels where a rectangle has few blocks. */
typedef struct {
    Rect    r;
    int64_t n_block, n_cut;
} Units;

static Units units_of(const Plan *p, Rect r)
{
    int64_t n_block = row_div_up(r.s1 - r.s0, p->block), n_panel = r.j1 - r.j0;
    int64_t n_cut = row_div_up(RECT_UNITS, MAX(n_block, 1));
    if (p->g->finish) n_cut = MAX(n_cut, row_div_up(n_panel * TILE_COLS, BLOCK_COLS));
    return (Units){ r, n_block, MIN(n_cut, n_panel) };
}

static Rect unit_at(const Plan *p, const Units *u, int64_t i)
{
    int64_t s = u->r.s0 + i / u->n_cut * p->block, cut = i % u->n_cut, n = u->r.j1 - u->r.j0;
    return (Rect){ s, MIN(s + p->block, u->r.s1), u->r.j0 + row_cut(n, u->n_cut, cut),
                   u->r.j0 + row_cut(n, u->n_cut, cut + 1) };
}

/* How many units of a rectangle someone has taken; each counter has a cache line of its own. */
typedef struct {
    _Alignas(64) atomic_long n;
} Taken;

static void taken_reset(const Plan *p, Taken *taken, int thread, int team)
{
    for (int64_t i = thread; i < p->row_parts * p->col_parts; i += team) atomic_init(&taken[i].n, 0);
}

/* Units of one rectangle and part until none is left. */
static void compute_rect(const Part *part, Rect r, Taken *taken)
{
    const Plan *p = part->p;
    Units       u = units_of(p, r);
    while (atomic_load_explicit(&taken->n, memory_order_relaxed) < u.n_block * u.n_cut) {
        int64_t i = atomic_fetch_add_explicit(&taken->n, 1, memory_order_relaxed);
        if (i >= u.n_block * u.n_cut) break;
        Rect      at    = unit_at(p, &u, i);
        GemmBlock block = block_of(p, &at);
        for (int64_t step = part->step0; step < part->step1; step++) block_step(part, &at, &block, step);
        if (p->g->finish && part->step1 == p->n_step) p->g->finish(p->g->ctx, &block);
    }
}

/* This thread's rectangle first, then what the others have left. */
static void compute_share(const Part *part, Taken *taken, int thread)
{
    int64_t n = part->p->row_parts * part->p->col_parts;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = (thread + i) % n;
        compute_rect(part, rect_of(part->p, at), &taken[at]);
    }
}

static int run_piece(Dev *dev, const Gemm *g)
{
    Plan p;
    plan_init(&p, g);
    p.pack[0] = cpu_scratch(dev, cpu_gemm_scratch(g));
    if (!p.pack[0]) return -1;
    p.pack[1]   = p.pack[0] + (n_part(&p) > 1 ? pack_floats(&p) : 0);
    p.blocks    = g->private_blocks ? p.pack[0] + packs_floats(&p) : NULL;
    int threads = (double)g->m * (double)g->n * (double)g->k < CPU_PARALLEL_PRODUCT ? 1 : cpu_threads(dev);
    CHECK(!p.blocks || threads <= g->private_blocks, "%d threads, %d blocks", threads, g->private_blocks);
    plan_grid(&p, threads);
    Taken taken[2][MOST_RECTS]; /* of even and odd parts */
#pragma omp parallel num_threads(threads)
    {
        int  thread = omp_get_thread_num(), team = omp_get_num_threads();
        Part part = part_init(&p, 0);
        taken_reset(&p, taken[0], thread, team);
        pack_share(&part, thread, team);
#pragma omp barrier
        for (int64_t d = 0; d < n_part(&p); d++) {
            part = part_init(&p, d);
            compute_share(&part, taken[d & 1], thread);
            if (d + 1 < n_part(&p)) {
                part = part_init(&p, d + 1);
                taken_reset(&p, taken[(d + 1) & 1], thread, team);
                pack_share(&part, thread, team);
#pragma omp barrier
            }
        }
    }
    return 0;
}

typedef struct {
    const Gemm *g;
    int64_t     row0, col0; /* of the piece within g */
} Shift;

static void finish_shifted(const void *ctx, const GemmBlock *block)
{
    const Shift *s = ctx;
    GemmBlock    b = *block;
    b.row0 += s->row0;
    b.col0 += s->col0;
    s->g->finish(s->g->ctx, &b);
}

int cpu_gemm(Dev *dev, const Gemm *g)
{
    CHECK((g->a_row == 1 || g->a_col == 1) && (g->b_row == 1 || g->b_col == 1),
          "product of transposed views");
    Gemm    first = first_piece(g);
    int64_t m = first.m, n = first.n;
    for (int64_t col = 0; col < g->n; col += n) {
        for (int64_t row = 0; row < g->m; row += m) {
            Shift s = { g, row, col };
            Gemm  p = *g;
            p.m     = MIN(m, g->m - row);
            p.n     = MIN(n, g->n - col);
            p.a += row * g->a_row;
            p.b += col * g->b_col;
            if (p.c) p.c += row * g->c_row + col;
            if (p.bias) p.bias += col;
            if (p.finish) {
                p.finish = finish_shifted;
                p.ctx    = &s;
            }
            TRY(run_piece(dev, &p));
        }
    }
    return 0;
}
