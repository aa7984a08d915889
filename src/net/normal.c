#include "net/normal.h"

#include "base/err.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum {
    LANES  = 64,        /* counters at a time */
    PAIRS  = 2 * LANES, /* pairs of normals they give */
    STREAM = 0x1717,    /* of initial values */
    PIECE  = 1 << 14    /* counters of a thread at a time */
};

/* Relative. The vectors' logarithm, root, sine and products are each within two units of 2^-53 of the exact
 * value, and so are the C library's: their results differ by less than 20 units. */
static const double DOUBT = 0x1p-48;

void normal_plain(float out[2], uint32_t r0, uint32_t r1, double std)
{
    double u = (r0 + 0.5) * 0x1p-32, angle = 6.283185307179586 * (r1 * 0x1p-32);
    double len = sqrt(-2.0 * log(u)) * std;
    out[0]     = (float)(len * cos(angle));
    out[1]     = (float)(len * sin(angle));
}

/* ---- in vectors: loops without branches over PAIRS, which the compiler turns into vector code ---------- */

/* log of u in (0, 1): u = 2^e m with m around 1, log m = 2 atanh((m - 1) / (m + 1)) by its series. */
static void vector_log(double *out, const double *u)
{
    for (int i = 0; i < PAIRS; i++) {
        uint64_t bits, mant;
        double   m;
        memcpy(&bits, &u[i], 8);
        /* The exponent that leaves m in [0.7071, 1.4142). */
        uint64_t e52 = (bits - 0x3FE6A09E667F3BCDull) & 0xFFF0000000000000ull;
        mant         = bits - e52;
        memcpy(&m, &mant, 8);
        double e = (double)((int64_t)e52 >> 52), s = (m - 1) / (m + 1), z = s * s, p = 1.0 / 23;
        for (int k = 21; k >= 3; k -= 2) p = p * z + 1.0 / k;
        /* ln 2 in two parts, the first short enough for an exact product */
        out[i] = e * 0x1.62e42feep-1 + (2 * s + (2 * s * (z * p) + e * 0x1.a39ef35793c76p-33));
    }
}

/* Cosine and sine of an angle in [0, 2 pi]: the nearest multiple of pi/2 is taken off in three parts, so that
 * what is left is exact to its last bits also near zero; then Taylor's series on [-pi/4, pi/4]. */
static void vector_turn(double *cosine, double *sine, const double *angle)
{
    for (int i = 0; i < PAIRS; i++) {
        double k = (double)(int)(angle[i] * 0.6366197723675814 + 0.5);
        double y = angle[i] - k * 0x1.921fb544p+0;
        y        = y - k * 0x1.0b4611a6p-34;
        y        = y - k * 0x1.3198a2e037073p-69;
        double z = y * y, s = 1.0 / 355687428096000.0, c = -1.0 / 6402373705728000.0;
        s              = s * z - 1.0 / 1307674368000.0;
        s              = s * z + 1.0 / 6227020800.0;
        s              = s * z - 1.0 / 39916800.0;
        s              = s * z + 1.0 / 362880.0;
        s              = s * z - 1.0 / 5040.0;
        s              = s * z + 1.0 / 120.0;
        s              = s * z - 1.0 / 6.0;
        s              = y + y * (z * s);
        c              = c * z + 1.0 / 20922789888000.0;
        c              = c * z - 1.0 / 87178291200.0;
        c              = c * z + 1.0 / 479001600.0;
        c              = c * z - 1.0 / 3628800.0;
        c              = c * z + 1.0 / 40320.0;
        c              = c * z - 1.0 / 720.0;
        c              = c * z + 1.0 / 24.0;
        c              = 1 - (0.5 * z - z * z * c);
        int    quarter = (int)k & 3;
        double a = quarter & 1 ? s : c, b = quarter & 1 ? c : s;
        cosine[i] = quarter == 1 || quarter == 2 ? -a : a;
        sine[i]   = quarter >= 2 ? -b : b;
    }
}

/* The words of counters q .. q + LANES - 1: pair 2 l + j has words 2 j and 2 j + 1 of counter q + l. */
static void draw(uint32_t *r0, uint32_t *r1, int64_t q, uint32_t site, const uint32_t key[2])
{
    for (int l = 0; l < LANES; l++) {
        uint32_t ctr[4] = { (uint32_t)(q + l), (uint32_t)((q + l) >> 32), site, STREAM }, r[4];
        philox4x32(r, ctr, key);
        r0[2 * l]     = r[0];
        r1[2 * l]     = r[1];
        r0[2 * l + 1] = r[2];
        r1[2 * l + 1] = r[3];
    }
}

static void fill_lanes(float *out, const uint32_t *r0, const uint32_t *r1, double std)
{
    double u[PAIRS], angle[PAIRS], len[PAIRS], x[PAIRS], y[PAIRS];
    int    doubt = 0;
    for (int i = 0; i < PAIRS; i++) {
        u[i]     = (r0[i] + 0.5) * 0x1p-32;
        angle[i] = 6.283185307179586 * (r1[i] * 0x1p-32);
    }
    vector_log(len, u);
    vector_turn(x, y, angle);
    for (int i = 0; i < PAIRS; i++) {
        len[i] = sqrt(-2.0 * len[i]) * std;
        x[i] *= len[i];
        y[i] *= len[i];
        out[2 * i]     = (float)x[i];
        out[2 * i + 1] = (float)y[i];
        doubt |= (float)(x[i] - x[i] * DOUBT) != (float)(x[i] + x[i] * DOUBT);
        doubt |= (float)(y[i] - y[i] * DOUBT) != (float)(y[i] + y[i] * DOUBT);
    }
    if (!doubt) return;
    for (int i = 0; i < PAIRS; i++) normal_plain(out + 2 * i, r0[i], r1[i], std);
}

void normal_fill(float *out, int64_t n, uint64_t seed, uint32_t site, double std)
{
    const uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    int64_t        n_q    = (n + 3) / 4;
#pragma omp parallel for schedule(static)
    for (int64_t piece = 0; piece < n_q; piece += PIECE) {
        for (int64_t q = piece; q < MIN(n_q, piece + PIECE); q += LANES) {
            uint32_t r0[PAIRS], r1[PAIRS];
            float    last[2 * PAIRS];
            int      is_last = n - 4 * q < 2 * PAIRS;
            draw(r0, r1, q, site, key);
            fill_lanes(is_last ? last : out + 4 * q, r0, r1, std);
            if (is_last) memcpy(out + 4 * q, last, sizeof *out * (size_t)(n - 4 * q));
        }
    }
}
