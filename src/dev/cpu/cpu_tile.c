/* Register tiles: the inner loop of every product and of attention.
 *
 * One step of k takes TILE_VECS loads of b and one broadcast per row of a for rows * TILE_VECS multiply-adds:
 * on AVX-512 14 loads for 24, so the multipliers never wait (measured: 98 % of the machine's peak with a and
 * b in L2). */
#include "dev/cpu/cpu_gemm.h"

#include "dev/cpu/cpu.h"
#include "dev/cpu/cpu_row.h"

VEC_INLINE void tile_run(const Tile *t, const int rows, const int vecs)
{
    vf sum[12][TILE_VECS];
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++) sum[i][j] = (vf){ 0 };
    }
    const float *a = t->a, *b = t->b, *c = t->c, *ahead = t->ahead ? t->ahead : t->b;
    int64_t      a_row = t->a_row, a_col = t->a_col, b_row = t->b_row;
    for (int64_t k = 0; k < t->k; k++) {
        /* Lines wanted later travel meanwhile, one or two a step: more at once would keep b's own loads
         * waiting. */
        if (k < rows) {
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++) __builtin_prefetch(c + j * VL, 1);
            c += t->c_row;
        }
        __builtin_prefetch(ahead, 0, 2);
        ahead += TILE_AHEAD;
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
    [1] = { 0, tile_1_1, tile_1_2 },    [2] = { 0, tile_2_1, tile_2_2 },
    [3] = { 0, tile_3_1, tile_3_2 },    [4] = { 0, tile_4_1, tile_4_2 },
    [5] = { 0, tile_5_1, tile_5_2 },    [6] = { 0, tile_6_1, tile_6_2 },
    [7] = { 0, tile_7_1, tile_7_2 },    [8] = { 0, tile_8_1, tile_8_2 },
    [9] = { 0, tile_9_1, tile_9_2 },    [10] = { 0, tile_10_1, tile_10_2 },
    [11] = { 0, tile_11_1, tile_11_2 }, [12] = { 0, tile_12_1, tile_12_2 },
};

void cpu_tile(const Tile *t, int rows, int vecs) { tile_table[rows][vecs](t); }

/* A whole block stays in registers; the loops have constant bounds for that. */
static void turn_whole(const Turn *t)
{
    vf v[VL];
#pragma GCC unroll 16
    for (int r = 0; r < VL; r++) v[r] = vf_load(t->x + r * t->x_row) * t->factor;
    vf_transpose(v);
#pragma GCC unroll 16
    for (int c = 0; c < VL; c++) vf_store(t->out + c * t->out_row, v[c]);
}

void cpu_turn(const Turn *t)
{
    if (t->n_row == VL && t->n_col == VL) {
        turn_whole(t);
        return;
    }
    vf v[VL];
    for (int64_t r = 0; r < VL; r++)
        v[r] = r < t->n_row ? vf_get(t->x + r * t->x_row, t->n_col) * t->factor : (vf){ 0 };
    vf_transpose(v);
    for (int64_t c = 0; c < t->n_col; c++) vf_put(t->out + c * t->out_row, t->width, v[c]);
}

void cpu_block(const Tile *t, int64_t m, int64_t n)
{
    int64_t n_strip = row_div_up(m, TILE_ROWS), least = m / n_strip,
            more = m % n_strip; /* `more` strips have a row more */
    for (int64_t j = 0; j < n; j += TILE_COLS) {
        int  vecs = n - j >= TILE_COLS ? TILE_VECS : (int)((n - j) / VL);
        Tile u    = *t;
        u.b += j;
        u.c += j;
        if (u.plus) u.plus += j;
        for (int64_t s = 0; s < n_strip; s++) {
            int64_t rows = least + (s < more);
            cpu_tile(&u, (int)rows, vecs);
            u.a += rows * t->a_row;
            u.c += rows * t->c_row;
            if (u.plus) u.plus += rows * t->plus_row;
        }
    }
}
