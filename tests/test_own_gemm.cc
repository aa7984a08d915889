/* The own matrix product (src/dev/cuda/k_gemm.cu) against sums in double, on an emulated Hopper
 * (emulate/hopper.h): every kind, edges in rows, columns and k, one step and more steps than the ring has,
 * one and more clusters with several tiles each. The bits must not depend on the order in which warps run.
 * Memory beside a matrix is NaN where it must not be read, and must stay unchanged. */
#include "dev/cuda/k_gemm.h"
#include "hopper.h"

struct Case {
    OwnKind kind;
    Act     act;
    int64_t rows, cols, k;
    int     n_sm;
    bool    extra; /* a bias, or db */
    bool    other; /* outputs take the place of inputs; OWN_DW: fixed */
};

static float draw() { return (float)rand() / (float)RAND_MAX * 2 - 1; }

/* Row-major, with room beside and below that is nobody's. */
template <typename T> struct Matrix {
    int64_t        rows = 0, cols = 0, ld = 0;
    std::vector<T> v;

    T       &at(int64_t r, int64_t c) { return v[(size_t)(r * ld + c)]; }
    const T &at(int64_t r, int64_t c) const { return v[(size_t)(r * ld + c)]; }
    void     shape(int64_t n_row, int64_t n_col, T guard)
    {
        rows = n_row;
        cols = n_col;
        ld   = cols / 8 * 8 + (cols % 8 ? 16 : 8);
        v.assign((size_t)((rows + 2) * ld), guard);
    }
    bool same_outside(const Matrix &m) const
    {
        for (size_t i = 0; i < v.size(); i++) {
            bool inside = (int64_t)i / ld < rows && (int64_t)i % ld < cols;
            if (!inside && memcmp(&v[i], &m.v[i], sizeof(T)) != 0) return false;
        }
        return true;
    }
};
typedef Matrix<uint16_t> Half;

enum { NAN_BF16 = 0x7fff, GUARDS = 512 };

struct Data {
    Half                  a, b, b2, in[2], out[3];
    Matrix<float>         dw;
    std::vector<uint16_t> bias;
    std::vector<float>    db, sums; /* GUARDS more than needed */
};

static Half half_random(int64_t rows, int64_t cols, float most)
{
    Half m;
    m.shape(rows, cols, NAN_BF16);
    for (int64_t i = 0; i < rows * cols; i++) m.at(i / cols, i % cols) = (uint16_t)to_bf16(most * draw());
    return m;
}

static bool has_bias(OwnKind kind) { return kind == OWN_FWD || kind == OWN_ACT || kind == OWN_BOTH; }
static bool is_gated(OwnKind kind) { return kind == OWN_GLU || kind == OWN_GLU_BOTH; }
static bool b_is_columns(OwnKind kind) { return !has_bias(kind) && !is_gated(kind); }

static Data data_new(const Case &c)
{
    Data   x;
    size_t n_db = (size_t)(c.kind == OWN_DW ? c.rows : c.cols);
    x.a         = c.kind == OWN_DW ? half_random(c.k, c.rows, 1) : half_random(c.rows, c.k, 1);
    x.b         = b_is_columns(c.kind) ? half_random(c.k, c.cols, 1) : half_random(c.cols, c.k, 1);
    x.b2        = half_random(c.cols, c.k, 1);
    x.bias.assign((size_t)c.cols + GUARDS, NAN_BF16);
    for (int64_t i = 0; i < c.cols; i++) x.bias[(size_t)i] = (uint16_t)to_bf16(8 * draw());
    for (Half &m : x.in) m = half_random(c.rows, c.cols, 2);
    for (int i = 0; i < 3; i++) x.out[i].shape(c.rows, c.cols, NAN_BF16);
    x.dw.shape(c.rows, c.cols, NAN);
    for (int64_t i = 0; i < c.rows * c.cols; i++) x.dw.at(i / c.cols, i % c.cols) = draw();
    x.db.assign(n_db + GUARDS, -0.0f); /* even 0 added to it shows */
    for (size_t i = 0; i < n_db; i++) x.db[i] = draw();
    x.sums.assign((size_t)(own_gemm_sum_rows(c.rows) * c.cols + GUARDS), NAN);
    for (int i = 0; i < 2 && c.kind != OWN_DW && c.other; i++) x.out[i] = x.in[i];
    return x;
}

static OwnGemm data_args(const Case &c, Data &x)
{
    OwnGemm g    = {};
    bool    bias = has_bias(c.kind);
    g.kind       = c.kind;
    g.act        = c.act;
    g.rows       = c.rows;
    g.cols       = c.cols;
    g.k          = c.k;
    g.a          = x.a.v.data();
    g.lda        = x.a.ld;
    g.b          = x.b.v.data();
    g.ldb        = x.b.ld;
    g.b2         = is_gated(c.kind) ? x.b2.v.data() : NULL;
    g.bias       = bias && c.extra ? x.bias.data() : NULL;
    g.db         = !bias && c.extra ? x.db.data() : NULL;
    g.sums       = g.db && c.kind == OWN_DACT ? x.sums.data() : NULL;
    g.fixed      = c.other;
    for (int i = 0; i < 3; i++) {
        g.out[i]    = c.kind == OWN_DW ? (void *)x.dw.v.data() : (void *)x.out[i].v.data();
        g.ld_out[i] = c.kind == OWN_DW ? x.dw.ld : x.out[i].ld;
    }
    for (int i = 0; i < 2; i++) {
        g.in[i]    = c.other ? x.out[i].v.data() : x.in[i].v.data();
        g.ld_in[i] = x.in[i].ld;
    }
    return g;
}

/* ---- in double ----------------------------------------------------------------------------------------- */

#define U_BF16 0x1p-8
#define U_F32  0x1p-24

/* What is wanted, and how far from it rounding may lead. */
struct Want {
    double value, most;
};
typedef std::vector<Want> Wants; /* [rows, cols] */

/* Activations in f32 (k_actmath.cuh): the logistic's argument is off by some units of 2^-24 of itself, and it
 * is at most 88; slopes are some sums of a few numbers below 8. */
#define VALUE_OFF 0x1p-15
#define SLOPE_OFF (32 * U_F32)

static double act_z(Act act, double x)
{
    return act == ACT_SILU ? x : 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
}
static double value_of(Act act, double x)
{
    if (act == ACT_RELU) return x > 0 ? x : 0;
    if (act == ACT_RELU2) return x > 0 ? x * x : 0;
    return x / (1 + exp(-act_z(act, x)));
}
static double slope_of(Act act, double x)
{
    if (act == ACT_SLOPE) return x;
    if (act == ACT_RELU) return x > 0;
    if (act == ACT_RELU2) return x > 0 ? 2 * x : 0;
    double s  = 1 / (1 + exp(-act_z(act, x))),
           dz = act == ACT_SILU ? 1 : 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return s + x * dz * s * (1 - s);
}

/* [rows, cols] or its transpose, in double. */
static std::vector<double> plain(const Half &m, bool turned)
{
    std::vector<double> p;
    for (int64_t i = 0; i < m.rows * m.cols; i++) {
        p.push_back((double)from_bf16(turned ? m.at(i % m.rows, i / m.rows) : m.at(i / m.cols, i % m.cols)));
    }
    return p;
}

/* a b, from `start`; k + 2 additions in f32, in any order, of terms whose sizes' sum is known. */
static Wants product(const Case &c, const Data &x, const Half &half_b, const std::vector<double> &start)
{
    std::vector<double> a = plain(x.a, c.kind == OWN_DW), b = plain(half_b, !b_is_columns(c.kind));
    std::vector<double> value = start, size((size_t)(c.rows * c.cols));
    for (size_t i = 0; i < value.size(); i++) size[i] = fabs(value[i]);
    for (int64_t i = 0; i < c.rows * c.k; i++) {
        double *v = &value[(size_t)(i / c.k * c.cols)], *s = &size[(size_t)(i / c.k * c.cols)];
        for (int64_t j = 0; j < c.cols; j++) {
            double term = a[(size_t)i] * b[(size_t)(i % c.k * c.cols + j)];
            v[j] += term;
            s[j] += fabs(term);
        }
    }
    Wants w;
    for (size_t i = 0; i < value.size(); i++) w.push_back({ value[i], (double)(c.k + 2) * U_F32 * size[i] });
    return w;
}

static Want rounded(Want w) { return { w.value, w.most + U_BF16 * (fabs(w.value) + w.most) }; }

/* Times y, which is off by at most `off`. */
static Want times(Want w, double y, double off)
{
    return { w.value * y, w.most * (fabs(y) + off) + fabs(w.value) * off + 2 * U_F32 * fabs(w.value * y) };
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static int n_failed;

static void verdict(bool ok, const Case &c, const char *what, double worst)
{
    static const char *const kind[] = { "fwd", "dx", "act", "both", "dact", "glu", "glu both", "dglu", "dw" },
                             *const act[] = { "gelu", "relu2", "silu", "relu", "slope" };
    bool                            acts  = c.kind >= OWN_ACT && c.kind <= OWN_DGLU;
    printf("%s %s%s%s %lldx%lld k%lld, %d blocks%s%s: %s", ok ? "ok" : "not ok", kind[c.kind],
           acts ? " " : "", acts ? act[c.act] : "", (long long)c.rows, (long long)c.cols, (long long)c.k,
           c.n_sm,
           !c.extra           ? ""
           : has_bias(c.kind) ? ", bias"
                              : ", db",
           !c.other           ? ""
           : c.kind == OWN_DW ? ", fixed"
                              : ", in place",
           what);
    if (!ok && worst > 0) printf(": %g of what rounding allows", worst);
    printf("\n");
    n_failed += !ok;
}

struct Worst {
    double off = 0;
    void   add(double got, Want w)
    {
        double x = fabs(got - w.value) / (w.most + 1e-30);
        if (!(x <= off)) off = x == x ? x : INFINITY;
    }
};

template <typename F> static void compare(const Case &c, const char *what, const Half &got, F want)
{
    Worst worst;
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        worst.add((double)from_bf16(got.at(i / c.cols, i % c.cols)), want(i / c.cols, i % c.cols));
    verdict(worst.off <= 1, c, what, worst.off);
}

static double half_at(const Half &m, int64_t r, int64_t col) { return (double)from_bf16(m.at(r, col)); }

/* db, against sums of what was written (OWN_DACT) or of a: f32 additions of n values and of what was
 * there. */
static void compare_db(const Case &c, const Data &before, const Data &x)
{
    const Half &m = c.kind == OWN_DW ? x.a : x.out[0];
    Worst       worst;
    for (int64_t i = 0; i < m.cols; i++) {
        double sum = (double)before.db[(size_t)i], size = fabs(sum);
        for (int64_t r = 0; r < m.rows; r++) {
            sum += half_at(m, r, i);
            size += fabs(half_at(m, r, i));
        }
        worst.add((double)x.db[(size_t)i], { sum, (double)(m.rows + 2) * U_F32 * size });
    }
    verdict(worst.off <= 1, c, "db", worst.off);
}

static void compare_dw(const Case &c, const Data &before, const Data &x)
{
    std::vector<double> start;
    Worst               worst;
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        start.push_back((double)before.dw.at(i / c.cols, i % c.cols));
    Wants w = product(c, x, x.b, start);
    for (int64_t i = 0; i < c.rows * c.cols; i++)
        worst.add((double)x.dw.at(i / c.cols, i % c.cols), w[(size_t)i]);
    verdict(worst.off <= 1, c, "dw", worst.off);
}

/* Outputs that follow from p. What follows from an output is compared with what follows from the output as it
 * is. */
static void compare_outputs(const Case &c, const Data &x)
{
    std::vector<double> start((size_t)(c.rows * c.cols));
    for (size_t i = 0; i < start.size() && c.extra && has_bias(c.kind); i++)
        start[i] = (double)from_bf16(x.bias[i % (size_t)c.cols]);
    Wants sum = product(c, x, x.b, start);
    auto  p   = [&](int64_t r, int64_t i) { return rounded(sum[(size_t)(r * c.cols + i)]); };
    auto  in  = [&](int k, int64_t r, int64_t i) { return half_at(x.in[k], r, i); };
    auto  out = [&](int k, int64_t r, int64_t i) { return half_at(x.out[k], r, i); };
    if (c.kind == OWN_DACT) {
        compare(c, "out", x.out[0], [&](int64_t r, int64_t i) {
            return rounded(times(p(r, i), slope_of(c.act, in(0, r, i)), SLOPE_OFF));
        });
    } else if (c.kind == OWN_DGLU && c.act == ACT_SLOPE) {
        compare(c, "dgate", x.out[0],
                [&](int64_t r, int64_t i) { return rounded(times(p(r, i), in(0, r, i), 0)); });
        compare(c, "dup", x.out[1],
                [&](int64_t r, int64_t i) { return rounded(times(p(r, i), in(1, r, i), 0)); });
    } else if (c.kind == OWN_DGLU) {
        compare(c, "dgate", x.out[0], [&](int64_t r, int64_t i) {
            return rounded(times(times(p(r, i), in(1, r, i), 0), slope_of(c.act, in(0, r, i)), SLOPE_OFF));
        });
        compare(c, "dup", x.out[1], [&](int64_t r, int64_t i) {
            double y = value_of(c.act, in(0, r, i));
            return rounded(times(p(r, i), y, VALUE_OFF * fabs(y)));
        });
    } else if (c.kind == OWN_BOTH) { /* p's error shows times 2 at most in the slope, 2 + 2|p| in the value */
        compare(c, "slope", x.out[0], [&](int64_t r, int64_t i) {
            Want w = p(r, i);
            return rounded({ slope_of(c.act, w.value), 2 * w.most + SLOPE_OFF });
        });
        compare(c, "act", x.out[1], [&](int64_t r, int64_t i) {
            Want   w = p(r, i);
            double y = value_of(c.act, w.value);
            return rounded({ y, (2 + 2 * fabs(w.value)) * w.most + VALUE_OFF * fabs(y) });
        });
    } else {
        compare(c, "out", x.out[0], p);
    }
    if (c.kind == OWN_GLU) {
        Wants up = product(c, x, x.b2, start);
        compare(c, "up", x.out[1],
                [&](int64_t r, int64_t i) { return rounded(up[(size_t)(r * c.cols + i)]); });
    }
    if (c.kind == OWN_ACT || c.kind == OWN_GLU) {
        compare(c, "act", x.out[c.kind == OWN_GLU ? 2 : 1], [&](int64_t r, int64_t i) {
            double y = value_of(c.act, out(0, r, i)) * (c.kind == OWN_GLU ? out(1, r, i) : 1);
            return rounded({ y, VALUE_OFF * fabs(y) });
        });
    }
}

/* ---- cases --------------------------------------------------------------------------------------------- */

/* Instead of base/err.c, which would want a log. */
extern "C" int err_set(const char *fmt, ...)
{
    printf("not ok: %s\n", fmt);
    return -1;
}

static bool same_bits(const Data &x, const Data &y)
{
    bool same = x.db == y.db;
    for (int i = 0; i < 3; i++) same &= x.out[i].v == y.out[i].v;
    return same && memcmp(x.dw.v.data(), y.dw.v.data(), x.dw.v.size() * sizeof(float)) == 0;
}

static bool same_guards(const Data &x, const Data &y)
{
    bool same = x.dw.same_outside(y.dw);
    for (int i = 0; i < 3; i++) same &= x.out[i].same_outside(y.out[i]);
    for (size_t i = 1; i <= GUARDS; i++)
        same &= signbit(x.db[x.db.size() - i]) && isnan(x.sums[x.sums.size() - i]);
    return same;
}

static void run(const Case &c, Data &x)
{
    OwnGemm     g   = data_args(c, x);
    const char *why = own_gemm_refuses(&g);
    if (why) verdict(false, c, why, 0);
    if (own_gemm_launch(&g, 0, c.n_sm, 0) < 0) verdict(false, c, "runs to its end", 0);
}

/* Against OWN_GLU, which has checks of its own: the slopes follow from its gate and up, and the last output
 * is the same. */
static void compare_glu_both(const Case &c, const Data &before, const Data &x)
{
    Case plain = c;
    Data glu   = before;
    plain.kind = OWN_GLU;
    run(plain, glu);
    auto gate = [&](int64_t r, int64_t i) { return half_at(glu.out[0], r, i); };
    compare(c, "slope", x.out[0], [&](int64_t r, int64_t i) {
        return rounded(times({ half_at(glu.out[1], r, i), 0 }, slope_of(c.act, gate(r, i)), SLOPE_OFF));
    });
    compare(c, "value", x.out[1], [&](int64_t r, int64_t i) {
        double y = value_of(c.act, gate(r, i));
        return rounded({ y, VALUE_OFF * fabs(y) });
    });
    verdict(x.out[2].v == glu.out[2].v, c, "act", 0);
}

static void check(const Case &c)
{
    Data before = data_new(c), x = before, again = before;
    run(c, x);
    if (c.kind == OWN_DW) {
        compare_dw(c, before, x);
    } else if (c.kind == OWN_GLU_BOTH) {
        compare_glu_both(c, before, x);
    } else {
        compare_outputs(c, x);
    }
    if (c.extra && (c.kind == OWN_DACT || c.kind == OWN_DW)) compare_db(c, before, x);
    verdict(same_guards(x, before), c, "nothing else is written", 0);
    run(c, again);
    bool sliced = c.kind == OWN_DW && !c.other;
    if (!sliced) verdict(same_bits(x, again), c, "the same bits in another order", 0);
    if (sliced) compare_dw(c, before, again);
}

static void check_refusals()
{
    Case    c    = { OWN_FWD, ACT_RELU, 8, 8, 8, 2, true, false };
    Data    x    = data_new(c);
    OwnGemm fine = data_args(c, x), g[4] = { fine, fine, fine, fine };
    g[0].lda += 4;
    g[1].out[0] = (char *)g[1].out[0] + 8;
    g[2].cols -= 4;
    g[3].rows = INT32_MAX;
    bool ok   = !own_gemm_refuses(&fine);
    for (const OwnGemm &bad : g) ok &= own_gemm_refuses(&bad) != NULL;
    verdict(ok, c, "what cannot run is refused", 0);
}

/* An argument is a seed, for other orders. */
int main(int argc, char **argv)
{
    static const Case all[] = {
        { OWN_FWD, ACT_RELU, 100, 72, 64, 2, true, false },
        { OWN_FWD, ACT_RELU, 300, 392, 448, 2, true, false },
        { OWN_FWD, ACT_RELU, 520, 200, 128, 4, false, false },
        { OWN_FWD, ACT_RELU, 700, 320, 448, 2, true, false }, /* tiles of 192 and of 128 columns by turns */
        { OWN_FWD, ACT_RELU, 4200, 200, 64, 6, true, false }, /* more than one group of row tiles */
        { OWN_DX, ACT_RELU, 1, 8, 64, 4, false, false },
        { OWN_DX, ACT_RELU, 300, 392, 456, 2, false, false },
        { OWN_DX, ACT_RELU, 257, 200, 128, 4, false, false },
        { OWN_DX, ACT_RELU, 700, 448, 200, 2, false, false }, /* and of 64 */
        { OWN_ACT, ACT_GELU, 300, 392, 448, 2, true, false },
        { OWN_ACT, ACT_RELU2, 257, 200, 72, 4, false, false },
        { OWN_ACT, ACT_SILU, 640, 200, 64, 2, true, false },
        { OWN_ACT, ACT_RELU, 129, 584, 128, 2, true, false },
        { OWN_BOTH, ACT_GELU, 300, 392, 448, 2, true, false },
        { OWN_BOTH, ACT_RELU2, 257, 200, 72, 4, false, false },
        { OWN_BOTH, ACT_SILU, 640, 200, 64, 2, true, false },
        { OWN_DACT, ACT_GELU, 300, 392, 448, 2, true, false },
        { OWN_DACT, ACT_SLOPE, 300, 392, 128, 2, true, true },
        { OWN_DACT, ACT_RELU2, 257, 200, 72, 4, false, true },
        { OWN_DACT, ACT_SILU, 1100, 392, 64, 2, true, true },
        { OWN_DACT, ACT_RELU, 129, 584, 128, 2, true, false },
        { OWN_GLU, ACT_SILU, 300, 200, 448, 2, false, false },
        { OWN_GLU, ACT_GELU, 257, 104, 72, 4, false, false },
        { OWN_GLU, ACT_RELU, 640, 104, 64, 2, false, false },
        { OWN_GLU, ACT_RELU2, 129, 296, 128, 2, false, false },
        { OWN_GLU_BOTH, ACT_SILU, 300, 200, 448, 2, false, false },
        { OWN_GLU_BOTH, ACT_GELU, 257, 104, 72, 4, false, false },
        { OWN_GLU_BOTH, ACT_RELU, 640, 104, 64, 2, false, false },
        { OWN_GLU_BOTH, ACT_RELU2, 129, 296, 128, 2, false, false },
        { OWN_DGLU, ACT_SILU, 300, 392, 448, 2, false, false },
        { OWN_DGLU, ACT_SLOPE, 300, 392, 128, 2, false, true },
        { OWN_DGLU, ACT_SLOPE, 1100, 200, 72, 4, false, false },
        { OWN_DGLU, ACT_GELU, 257, 200, 72, 4, false, true },
        { OWN_DGLU, ACT_RELU, 1100, 392, 64, 2, false, true },
        { OWN_DGLU, ACT_RELU2, 129, 584, 128, 2, false, false },
        { OWN_DW, ACT_RELU, 100, 72, 64, 2, true, false },
        { OWN_DW, ACT_RELU, 300, 392, 450, 2, true, true },
        { OWN_DW, ACT_RELU, 203, 136, 2101, 4, true, false },  /* in two slices */
        { OWN_DW, ACT_RELU, 203, 136, 3100, 6, false, false }, /* in three */
        { OWN_DW, ACT_RELU, 203, 136, 2101, 4, true, true },
        { OWN_DW, ACT_RELU, 640, 200, 64, 2, false, true },
        { OWN_DW, ACT_RELU, 600, 320, 2101, 4, true, false },
        { OWN_DW, ACT_RELU, 100, 840, 2101, 4, true,
          false }, /* blocks of a cluster share rows; the last has no columns */
        { OWN_DW, ACT_RELU, 300, 400, 200, 4, true, true },
        { OWN_DW, ACT_RELU, 340, 784, 64, 2, false, false },
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1) srand((unsigned)atoi(argv[1]));
    check_refusals();
    for (const Case &c : all) check(c);
    return n_failed > 0;
}
