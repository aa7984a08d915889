/* Attention in tiles (src/dev/cuda/k_attn_tile_*.cu) against sums in double, on an emulated Hopper
 * (emulate/hopper.h): forward and both kernels of backward, every mask, grouped heads, heads of 64 and 128,
 * lengths that leave some warpgroups without rows, several thread blocks at once. The bits must not depend on
 * the order in which warps run. */
#include "dev/cuda/k_attn_tile.h"
#include "hopper.h"

struct Case {
    int  B, T, H, K, D;
    Mask mask;
    int  n_sm;
    bool again;          /* twice, in other orders: the same bits; and with rotations */
    int  second = 0;     /* where the second document begins, or the prefix ends; 0: anywhere */
    bool grows  = false; /* scores do, with the keys' positions */
    int  range  = 0;     /* how first and last are filled: range_row() */
    int  other  = 0;     /* keys of another sequence; 0: the queries' own */
    int  len    = 0;     /* so many of them are there, one less in each later sequence; 0: all */

    int keys() const { return other ? other : T; }
};

typedef std::vector<uint16_t> Half;

struct Data {
    int64_t ld_qkv, ld_o, ld_kv;
    Half    qkv, o, dout, dqkv; /* qkv, dqkv: without keys and values if those are of another sequence */
    Half    kv, dkv;            /* of another sequence */
    int     at_k, at_v;         /* columns */
    std::vector<float> lse, ws, table; /* of rotations */
    std::vector<int>   doc, prefix, first, last, len;

    Half       &keys() { return kv.empty() ? qkv : kv; }
    const Half &dkeys() const { return kv.empty() ? dqkv : dkv; }
};

static float draw() { return (float)rand() / (float)RAND_MAX * 2 - 1; }

enum { RANGE_PACKED = 1, RANGE_WINDOW, RANGE_VALID, RANGE_TAIL, RANGE_ANY };

/* What query t sees. packed: sequences of `second` tokens side by side; window: causal, `second` keys back;
 * valid: the first `second` keys, and the queries behind them nothing; tail: only the last queries see
 * anything, and only the last keys; any: any two integers. */
static void range_row(const Case &c, int t, int &first, int &last)
{
    int n = c.second;
    switch (c.range) {
    case RANGE_PACKED:
        first = t / n * n;
        last  = first + n - 1;
        break;
    case RANGE_WINDOW:
        first = t - n;
        last  = t;
        break;
    case RANGE_VALID:
        first = 0;
        last  = t < n ? n - 1 : -1;
        break;
    case RANGE_TAIL:
        first = n;
        last  = t < n ? -1 : c.keys() + 5;
        break;
    default:
        first = rand() % (c.keys() + 20) - 10;
        last  = rand() % (c.keys() + 20) - 10;
        break;
    }
}

static void ranges_fill(const Case &c, Data &x)
{
    for (int i = 0; i < c.B * c.T; i++) {
        int first = 0, last = 0;
        range_row(c, i % c.T, first, last);
        x.first.push_back(first);
        x.last.push_back(last);
    }
}

static Data data_new(const Case &c)
{
    size_t n = (size_t)(c.B * c.T);
    Data   x;
    x.ld_qkv = (c.H + (c.other ? 0 : 2 * c.K)) * c.D + 8;
    x.ld_kv  = c.other ? 2 * c.K * c.D + 24 : x.ld_qkv;
    x.at_k   = c.other ? 0 : c.H * c.D;
    x.at_v   = x.at_k + c.K * c.D;
    x.kv.resize((size_t)(c.B * c.other * x.ld_kv));
    x.dkv.assign(x.kv.size(), 0x7fff);
    x.ld_o = c.H * c.D + 16;
    x.qkv.resize(n * (size_t)x.ld_qkv);
    x.dout.resize(n * (size_t)x.ld_o);
    x.o.assign(x.dout.size(), 0x7fff);
    x.dqkv.assign(x.qkv.size(), 0x7fff);
    x.lse.assign(n * (size_t)c.H, NAN);
    for (uint16_t &v : x.qkv) v = (uint16_t)to_bf16(1.5f * draw());
    for (uint16_t &v : x.kv) v = (uint16_t)to_bf16(1.5f * draw());
    for (int b = 0; b < c.B && c.len; b++) x.len.push_back(c.len - b);
    for (size_t i = 0; i < x.qkv.size() && c.grows;
         i++) { /* keys and queries of one sign, keys larger and larger */
        size_t col = i % (size_t)x.ld_qkv / (size_t)c.D, t = i / (size_t)x.ld_qkv % (size_t)c.T;
        if (col < (size_t)c.H) x.qkv[i] = (uint16_t)to_bf16(0.5f + 0.2f * draw());
        if (col >= (size_t)c.H && col < (size_t)(c.H + c.K))
            x.qkv[i] = (uint16_t)to_bf16(0.1f * (float)t * (1 + 0.1f * draw()));
    }
    for (uint16_t &v : x.dout) v = (uint16_t)to_bf16(draw());
    for (int i = 0; i < c.T * c.D; i++) {
        double angle = i / c.D * pow(100, -2.0 * (i % (c.D / 2)) / c.D);
        x.table.push_back((float)(i % c.D < c.D / 2 ? cos(angle) : sin(angle)));
    }
    for (int i = 0, first = 0; i < c.B * c.T; i++) {
        if (i % c.T == 0 || (c.second ? i % c.T == c.second : rand() % 50 == 0)) first = i % c.T;
        x.doc.push_back(first);
    }
    ranges_fill(c, x);
    for (int b = 0; b < c.B; b++) x.prefix.push_back(c.second ? c.second : b == 0 ? c.T / 2 + 9 : c.T + 1);
    return x;
}

static bool sees(const Case &c, const Data &x, int b, int q, int k)
{
    if (c.len && k >= x.len[(size_t)b]) return false;
    switch (c.mask) {
    case MASK_FULL: return true;
    case MASK_PREFIX: return k <= q || k < x.prefix[(size_t)b];
    case MASK_DOCUMENT: return k <= q && k >= x.doc[(size_t)(b * c.T + q)];
    case MASK_RANGE: return k >= x.first[(size_t)(b * c.T + q)] && k <= x.last[(size_t)(b * c.T + q)];
    default: return k <= q;
    }
}

static TileAttn data_args(const Case &c, Data &x)
{
    TileAttn  a    = {};
    uint16_t *keys = x.keys().data(), *dkeys = (x.kv.empty() ? x.dqkv : x.dkv).data();
    a.q       = x.qkv.data();
    a.k       = keys + x.at_k;
    a.v       = keys + x.at_v;
    a.o       = x.o.data();
    a.lse     = x.lse.data();
    a.dout    = x.dout.data();
    a.dq      = x.dqkv.data();
    a.dk      = dkeys + x.at_k;
    a.dv      = dkeys + x.at_v;
    a.B       = c.B;
    a.T       = c.T;
    a.S       = c.keys();
    a.ld_q    = x.ld_qkv;
    a.ld_k    = x.ld_kv;
    a.ld_o    = x.ld_o;
    a.ld_dout = x.ld_o;
    a.ld_dq   = x.ld_qkv;
    a.ld_dk   = x.ld_kv;
    a.len     = c.len ? x.len.data() : NULL;
    a.doc     = x.doc.data();
    a.prefix  = x.prefix.data();
    a.first   = x.first.data();
    a.last    = x.last.data();
    a.shape   = { c.H, c.K, c.D, c.mask, 1 / sqrtf((float)c.D), 0, 0, 0 };
    x.ws.assign((size_t)tile_attn_bwd_ws(&a) / sizeof(float), NAN); /* exactly what they ask for */
    a.ws = x.ws.data();
    return a;
}

/* ---- in double ----------------------------------------------------------------------------------------- */

/* A value, and the sum of its terms' sizes: rounding each to bf16 moves it by at most 2^-8 of that. */
struct Sum {
    double value = 0, size = 0;
    void   add(double x)
    {
        value += x;
        size += fabs(x);
    }
};

struct Wanted {
    std::vector<Sum>    o, dq, dk, dv; /* [B,T,heads,D] */
    std::vector<double> lse;
};

struct Reader {
    const Case &c;
    Data       &x;
    double      q(int b, int t, int h, int d) const { return of(x.qkv, x.ld_qkv, b * c.T + t, h * c.D + d); }
    double      k(int b, int t, int h, int d) const { return key(b, t, x.at_k + h * c.D + d); }
    double      v(int b, int t, int h, int d) const { return key(b, t, x.at_v + h * c.D + d); }
    double dout(int b, int t, int h, int d) const { return of(x.dout, x.ld_o, b * c.T + t, h * c.D + d); }
    double o(int b, int t, int h, int d) const { return of(x.o, x.ld_o, b * c.T + t, h * c.D + d); }
    double key(int b, int t, int col) const { return of(x.keys(), x.ld_kv, b * c.keys() + t, col); }
    double of(const Half &m, int64_t ld, int row, int col) const
    {
        return (double)from_bf16(m[(size_t)(row * ld + col)]);
    }
    size_t at(int row, int heads, int h, int d) const { return (size_t)((row * heads + h) * c.D + d); }
};

/* One query: its weights, its output, and what it adds to the gradients. */
static void want_query(const Reader &r, Wanted &w, int b, int h, int i)
{
    const Case         &c     = r.c;
    int                 hk    = h / (c.H / c.K);
    double              scale = 1 / sqrt((double)c.D), sum = 0, rowsum = 0;
    std::vector<double> p((size_t)c.keys()), dp((size_t)c.keys());
    for (int j = 0; j < c.keys(); j++) {
        if (!sees(c, r.x, b, i, j)) continue;
        for (int d = 0; d < c.D; d++) {
            p[(size_t)j] += scale * r.q(b, i, h, d) * r.k(b, j, hk, d);
            dp[(size_t)j] += r.dout(b, i, h, d) * r.v(b, j, hk, d);
        }
        sum += exp(p[(size_t)j]);
    }
    double lse                               = sum > 0 ? log(sum) : 0;
    w.lse[(size_t)((b * c.H + h) * c.T + i)] = lse;
    for (int d = 0; d < c.D; d++) rowsum += r.dout(b, i, h, d) * r.o(b, i, h, d);
    for (int j = 0; j < c.keys(); j++) {
        if (!sees(c, r.x, b, i, j)) continue;
        double pj = exp(p[(size_t)j] - lse), ds = pj * (dp[(size_t)j] - rowsum) * scale;
        for (int d = 0; d < c.D; d++) {
            w.o[r.at(b * c.T + i, c.H, h, d)].add(pj * r.v(b, j, hk, d));
            w.dq[r.at(b * c.T + i, c.H, h, d)].add(ds * r.k(b, j, hk, d));
            w.dk[r.at(b * c.keys() + j, c.K, hk, d)].add(ds * r.q(b, i, h, d));
            w.dv[r.at(b * c.keys() + j, c.K, hk, d)].add(pj * r.dout(b, i, h, d));
        }
    }
}

static Wanted want(const Case &c, Data &x)
{
    size_t n = (size_t)(c.B * c.T * c.D), n_key = (size_t)(c.B * c.keys() * c.D);
    Wanted w;
    w.o.resize(n * (size_t)c.H);
    w.dq.resize(n * (size_t)c.H);
    w.dk.resize(n_key * (size_t)c.K);
    w.dv.resize(n_key * (size_t)c.K);
    w.lse.resize((size_t)(c.B * c.H * c.T));
    for (int b = 0; b < c.B; b++) {
        for (int h = 0; h < c.H; h++) {
            for (int i = 0; i < c.T; i++) want_query({ c, x }, w, b, h, i);
        }
    }
    return w;
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static int n_failed;

static void verdict(bool ok, const Case &c, const char *what, double worst)
{
    static const char *const mask[] = { "causal", "full", "prefix", "documents", "ranges" };
    printf("%s B%d T%d S%d H%d/%d D%d %s, %d blocks: %s", ok ? "ok" : "not ok", c.B, c.T, c.keys(), c.H, c.K,
           c.D, mask[c.mask], c.n_sm, what);
    if (!ok) printf(": %g of what rounding allows", worst);
    printf("\n");
    n_failed += !ok;
}

/* Operands rounded to bf16 (2^-8 of each term), sums in f32, the result rounded (2^-8 of it). */
static void compare(const Case &c, const char *what, const std::vector<Sum> &want, const Half &m, int64_t ld,
                    int heads, int col0)
{
    double worst = 0;
    for (size_t i = 0; i < want.size(); i++) {
        size_t row = i / (size_t)(heads * c.D), col = i % (size_t)(heads * c.D);
        double got  = (double)from_bf16(m[row * (size_t)ld + (size_t)col0 + col]);
        double most = (want[i].size + fabs(want[i].value)) * 0x1.01p-8 + 1e-6,
               off  = fabs(got - want[i].value) / most;
        if (!(off <= worst)) worst = off == off ? off : INFINITY;
    }
    verdict(worst <= 1, c, what, worst);
}

static void run_both(const Case &c, Data &x, const float *table)
{
    TileAttn a = data_args(c, x);
    a.table    = table;
    if (tile_attn_refuses(&a)) printf("not ok refused: %s\n", tile_attn_refuses(&a));
    n_failed += tile_attn_fwd(&a, 0, c.n_sm, 0) < 0 || tile_attn_bwd(&a, 0, c.n_sm, 0) < 0;
}

/* The gradients of q or k rotated back. They are rounded before and after. */
static void turn_back(const Case &c, const Data &x, std::vector<Sum> &d, int heads)
{
    for (size_t i = 0; i < d.size(); i++) {
        size_t half = (size_t)c.D / 2, t = i / (size_t)(heads * c.D) % (size_t)c.T, col = i % (size_t)c.D;
        if (col >= half) continue;
        double cs = (double)x.table[t * 2 * half + col], sn = (double)x.table[t * 2 * half + half + col];
        Sum    u = d[i], v = d[i + half];
        double size = u.size + v.size + fabs(u.value) + fabs(v.value);
        d[i]        = { u.value * cs + v.value * sn, size };
        d[i + half] = { v.value * cs - u.value * sn, size };
    }
}

static void compare_gradients(const Case &c, const Wanted &w, const Data &x)
{
    compare(c, "dq", w.dq, x.dqkv, x.ld_qkv, c.H, 0);
    compare(c, "dk", w.dk, x.dkeys(), x.ld_kv, c.K, x.at_k);
    compare(c, "dv", w.dv, x.dkeys(), x.ld_kv, c.K, x.at_v);
}

static void check(const Case &c)
{
    Data x = data_new(c);
    run_both(c, x, NULL);
    Wanted w   = want(c, x);
    double off = 0;
    for (size_t i = 0; i < w.lse.size(); i++) {
        double e = fabs((double)x.lse[i] - w.lse[i]) / (1e-6 * fmax(1, fabs(w.lse[i])));
        if (!(e <= off)) off = e == e ? e : INFINITY;
    }
    verdict(off <= 1, c, "lse", off);
    compare(c, "o", w.o, x.o, x.ld_o, c.H, 0);
    compare_gradients(c, w, x);
    if (!c.again) return;
    Data again = x;
    run_both(c, again, NULL);
    verdict(again.o == x.o && again.dqkv == x.dqkv && again.dkv == x.dkv, c, "the same bits in another order",
            0);
    run_both(c, again, again.table.data());
    turn_back(c, x, w.dq, c.H);
    turn_back(c, x, w.dk, c.K);
    compare_gradients(c, w, again);
}

/* Documents that make no sense give results that make none, and an end. */
static void check_nonsense()
{
    Case c = { 1, 256, 1, 1, 64, MASK_DOCUMENT, 2, false };
    Data x = data_new(c);
    for (int &d : x.doc) d = rand() % 300 - 20;
    run_both(c, x, NULL);
    verdict(true, c, "whatever the documents say, it ends", 0);
}

int main()
{
    static const Case all[] = {
        { 1, 128, 1, 1, 64, MASK_CAUSAL, 1, false },
        { 1, 128, 2, 1, 64, MASK_FULL, 2, false },
        { 2, 384, 2, 1, 64, MASK_CAUSAL, 3, true },
        { 1, 384, 2, 1, 64, MASK_DOCUMENT, 2, true },
        { 2, 256, 1, 1, 64, MASK_PREFIX, 2, false },
        { 1, 128, 1, 1, 128, MASK_CAUSAL, 1, false },
        { 1, 384, 2, 1, 128, MASK_CAUSAL, 2, true },
        { 1, 128, 2, 2, 128, MASK_FULL, 3, false },
        { 1, 256, 1, 1, 128, MASK_DOCUMENT, 2, false },
        { 1, 256, 1, 1, 128, MASK_PREFIX, 1, false },
        /* more tiles between two that a warpgroup needs than the ring has stages */
        { 1, 768, 1, 1, 64, MASK_DOCUMENT, 1, false, 64 },
        { 1, 512, 1, 1, 128, MASK_DOCUMENT, 1, false, 64 },
        { 1, 768, 2, 1, 64, MASK_PREFIX, 1, false, 530 },
        /* ranges: in order, and not; tiles without queries that see, or without keys that are seen */
        { 1, 384, 2, 1, 64, MASK_RANGE, 2, true, 100, false, RANGE_PACKED },
        { 1, 384, 2, 1, 128, MASK_RANGE, 2, false, 77, false, RANGE_PACKED },
        { 1, 768, 2, 1, 64, MASK_RANGE, 2, false, 70, false, RANGE_WINDOW },
        { 1, 512, 1, 1, 128, MASK_RANGE, 1, false, 130, false, RANGE_WINDOW },
        { 2, 384, 1, 1, 64, MASK_RANGE, 2, false, 50, false, RANGE_VALID },
        { 1, 384, 2, 1, 128, MASK_RANGE, 2, false, 200, false, RANGE_VALID },
        { 1, 640, 2, 1, 64, MASK_RANGE, 3, true, 500, false, RANGE_TAIL },
        { 1, 2112, 1, 1, 64, MASK_RANGE, 1, false, 100, false, RANGE_PACKED }, /* more tiles than a warp */
        { 1, 256, 1, 1, 64, MASK_RANGE, 2, false, 0, false, RANGE_ANY },
        { 1, 256, 2, 1, 128, MASK_RANGE, 2, false, 0, false, RANGE_ANY },
        /* tables of tiles that several thread blocks fill, with sequences that end within one; more tiles of
         * keys than of queries, and fewer */
        { 3, 330, 1, 1, 64, MASK_RANGE, 2, true, 0, false, RANGE_ANY },
        { 3, 330, 1, 1, 64, MASK_DOCUMENT, 2, false },
        { 2, 130, 2, 1, 64, MASK_RANGE, 2, false, 70, false, RANGE_PACKED, 650 },
        { 3, 70, 1, 1, 64, MASK_RANGE, 2, false, 0, false, RANGE_ANY, 400, 390 },
        { 5, 330, 1, 1, 64, MASK_RANGE, 2, false, 0, false, RANGE_ANY, 60, 59 },
        { 11, 3, 1, 1, 64, MASK_RANGE, 2, false, 0, false, RANGE_ANY },
        { 1, 2200, 1, 1, 64, MASK_RANGE, 1, false, 1, false, RANGE_TAIL,
          70 }, /* only the first query sees none */
        { 1, 2200, 1, 1, 64, MASK_RANGE, 1, false, 5000, false, RANGE_TAIL, 70 }, /* nobody sees anything */
        /* keys of another sequence */
        { 1, 64, 2, 1, 64, MASK_FULL, 2, false, 0, false, 0, 384 },
        { 2, 64, 2, 1, 128, MASK_FULL, 2, false, 0, false, 0, 256, 200 },
        { 1, 192, 2, 1, 64, MASK_RANGE, 2, false, 0, false, RANGE_ANY, 256, 130 },
        { 1, 320, 1, 1, 128, MASK_RANGE, 2, false, 90, false, RANGE_PACKED, 128 },
        { 2, 128, 2, 2, 64, MASK_FULL, 3, false, 0, false, 0, 640, 70 },
        /* lengths that end within a tile, or leave a warpgroup without keys; odd ones */
        { 1, 1, 1, 1, 64, MASK_CAUSAL, 1, false },
        { 1, 192, 4, 1, 64, MASK_CAUSAL, 3, true },
        { 2, 196, 2, 1, 64, MASK_FULL, 2, true },
        { 2, 197, 2, 1, 64, MASK_CAUSAL, 3, true },
        { 2, 67, 4, 2, 128, MASK_CAUSAL, 2, false },
        { 2, 65, 2, 1, 128, MASK_FULL, 2, true },
        { 2, 131, 2, 1, 64, MASK_DOCUMENT, 2, true },
        { 2, 133, 1, 1, 128, MASK_DOCUMENT, 2, false },
        { 2, 100, 2, 1, 64, MASK_PREFIX, 2, false },
        { 2, 205, 2, 1, 64, MASK_RANGE, 2, false, 77, false, RANGE_PACKED },
        { 2, 77, 1, 1, 128, MASK_RANGE, 2, false, 0, false, RANGE_ANY },
        { 2, 19, 2, 1, 64, MASK_FULL, 2, false, 0, false, 0, 100, 90 },
        { 2, 70, 2, 1, 128, MASK_FULL, 2, false, 0, false, 0, 333 },
        { 1, 250, 1, 1, 64, MASK_FULL, 1, false, 0, true },
        /* a last tile with few rows, of keys, of queries, of both */
        { 2, 196, 2, 2, 64, MASK_FULL, 2, true },
        { 1, 72, 2, 2, 64, MASK_FULL, 1, false },
        { 1, 257, 1, 1, 64, MASK_FULL, 2, false, 0, true },
        { 2, 129, 2, 2, 128, MASK_FULL, 2, true },
        { 1, 68, 2, 2, 128, MASK_FULL, 1, false },
        { 1, 73, 1, 1, 64, MASK_FULL, 1, false },
        { 1, 128, 2, 1, 64, MASK_FULL, 2, false, 0, false, 0, 260 },
        { 1, 260, 2, 2, 80, MASK_FULL, 2, false, 0, false, 0, 128 },
        /* heads of other sizes */
        { 1, 70, 1, 1, 8, MASK_CAUSAL, 1, false },
        { 2, 128, 2, 1, 32, MASK_FULL, 2, false },
        { 2, 151, 2, 2, 32, MASK_DOCUMENT, 2, false },
        { 2, 130, 2, 1, 80, MASK_FULL, 2, false },
        { 1, 200, 2, 1, 96, MASK_CAUSAL, 2, false },
        { 2, 16, 2, 1, 32, MASK_FULL, 2, false, 0, false, 0, 150, 140 },
        /* maxima that grow from tile to tile */
        { 1, 384, 1, 1, 64, MASK_FULL, 1, false, 0, true },
        { 1, 256, 1, 1, 128, MASK_CAUSAL, 1, false, 0, true },
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (const Case &c : all) check(c);
    check_nonsense();
    return n_failed > 0;
}
