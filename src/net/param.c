#include "net/param.h"

#include "base/err.h"
#include "base/str.h"
#include "net/normal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void param_name(char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(name, PARAM_NAME, fmt, ap);
    va_end(ap);
    CHECK(n > 0 && n < PARAM_NAME, "a parameter name of %d characters", n);
}

/* clang-format off */
const ColumnRow column_table[COL_COUNT] = {
    [COL_WEIGHT] = { "master",        "",      SLAB_MASTER, 1 },
    [COL_COPY]   = { "copy",          "",      SLAB_COPY,   0 },
    [COL_GRAD]   = { "gradient",      ".grad", SLAB_GRAD,   0 },
    [COL_M]      = { "first moment",  ".m",    SLAB_OPTIM,  1 },
    [COL_V]      = { "second moment", ".v",    SLAB_OPTIM,  1 },
    [COL_MOMENTUM] = { "momentum", ".momentum", SLAB_OPTIM, 1 },
};
/* clang-format on */

void param_table_init(ParamTable *t, const char *prefix, int site0)
{
    memset(t, 0, sizeof *t);
    CHECK(strlen(prefix) < sizeof t->prefix, "prefix %s", prefix);
    strcpy(t->prefix, prefix);
    t->site0 = site0;
    arena_init(&t->arena);
}

void param_table_deinit(ParamTable *t) { arena_deinit(&t->arena); }

/* The entry of that name in by_name, or the empty one where the name belongs. At least half of the entries
 * are empty. */
static int *name_entry(const ParamTable *t, const char *name)
{
    uint32_t n = 2 * (uint32_t)t->cap, hash = 2166136261u; /* FNV-1a */
    for (const char *c = name; *c; c++) hash = (hash ^ (unsigned char)*c) * 16777619u;
    uint32_t i = hash % n;
    while (t->by_name[i] && strcmp(t->param[t->by_name[i] - 1].name, name) != 0) i = (i + 1) % n;
    return &t->by_name[i];
}

static void index_row(ParamTable *t, int i)
{
    int *entry = name_entry(t, t->param[i].name);
    if (!*entry) *entry = i + 1;
}

int param_declare(ParamTable *t, const Param *row)
{
    if (t->n_param == t->cap) {
        int    cap = t->cap ? 2 * t->cap : 64;
        Param *p   = ARENA_ARRAY(&t->arena, Param, cap);
        if (t->n_param) memcpy(p, t->param, sizeof *p * (size_t)t->n_param);
        t->param   = p;
        t->cap     = cap;
        t->by_name = ARENA_ARRAY(&t->arena, int, 2 * cap);
        for (int i = 0; i < t->n_param; i++) index_row(t, i);
    }
    Param *p = &t->param[t->n_param];
    *p       = *row;
    param_name(p->name, "%s%s", t->prefix, row->name);
    p->rows_stored = MAX(p->rows_stored, p->rows);
    p->lr_mul      = p->lr_mul != 0 ? p->lr_mul : 1.0f;
    p->site        = t->site0 + t->n_param;
    index_row(t, t->n_param);
    return t->n_param++;
}

/* ---- freezing ------------------------------------------------------------------------------------------ */

/* One part of a name against one of a pattern: equal, or a number within "A-B". */
static int part_matches(const char *name, size_t n, const char *pattern, size_t m)
{
    if (n == m && memcmp(name, pattern, n) == 0) return 1;
    char *end, *dash;
    long  first = strtol(pattern, &dash, 10), number = strtol(name, &end, 10);
    if (dash == pattern || *dash != '-' || end != name + n || n == 0) return 0;
    long last = strtol(dash + 1, &end, 10);
    return end > dash + 1 && end == pattern + m && number >= first && number <= last;
}

int param_matches(const char *name, const char *pattern)
{
    while (*pattern) {
        size_t n = strcspn(name, "."), m = strcspn(pattern, ".");
        if (!part_matches(name, n, pattern, m)) return 0;
        name += n + (name[n] == '.');
        pattern += m + (pattern[m] == '.');
        if (!*name && *pattern) return 0;
    }
    return 1;
}

static int is_listed(const char *name, const char *list)
{
    char item[PARAM_NAME];
    while (list && str_list_next(&list, item, sizeof item) > 0) {
        if (param_matches(name, item)) return 1;
    }
    return 0;
}

const char *param_unmatched(const ParamTable *t, const char *list, char *buf, size_t n)
{
    while (str_list_next(&list, buf, n) > 0) {
        int found = 0;
        for (int i = 0; i < t->n_param && !found; i++) found = param_matches(t->param[i].name, buf);
        if (!found) return buf;
    }
    return NULL;
}

/* ---- layout -------------------------------------------------------------------------------------------- */

static Tensor *row_view(Store *s, Tensor *root, const Param *p, const char *suffix)
{
    char    name[PARAM_NAME + 16];
    int64_t two[2] = { p->rows_stored, p->cols }, one = p->rows_stored * p->cols;
    snprintf(name, sizeof name, "%s%s", p->name, suffix);
    return store_view(s, root, name, p->offset, p->ndim, p->ndim == 2 ? two : &one);
}

/* The group of a shape, which is new or was there before. */
static MuonGroup *group_of(ParamTable *t, int64_t rows, int64_t cols)
{
    for (int i = 0; i < t->n_muon; i++) {
        if (t->muon[i].rows == rows && t->muon[i].cols == cols) return &t->muon[i];
    }
    CHECK(t->n_muon < MUON_GROUPS, "raise MUON_GROUPS");
    t->muon[t->n_muon] = (MuonGroup){ .rows = rows, .cols = cols };
    return &t->muon[t->n_muon++];
}

/* Segments of REGION_MUON: a matrix each, those of one shape in a row, else in the order of the flat
 * range. */
static void layout_muon(ParamTable *t, Store *store, const ParamOptions *opt)
{
    int      n   = 0;
    Segment *seg = ARENA_ARRAY(&t->arena, Segment, PARAM_STACK * t->n_param + 1);
    for (int pass = 0; pass < 2; pass++) { /* count, then fill */
        for (int g = 0, at = 0; g < t->n_muon && pass == 1; g++) {
            t->muon[g].first = at;
            at += t->muon[g].n;
            t->muon[g].n = 0;
        }
        for (int i = t->n_param - 1; i >= 0; i--) {
            const Param *p  = &t->param[i];
            int64_t      at = p->offset;
            for (int k = 0; k < PARAM_STACK && p->region == REGION_MUON && p->stack[k]; k++) {
                MuonGroup *g    = group_of(t, p->stack[k], p->cols);
                int64_t    size = p->stack[k] * p->cols;
                if (pass == 1)
                    seg[g->first + g->n] =
                        (Segment){ at, at + size, p->decay ? opt->decay : 0.0f, p->lr_mul * opt->muon };
                n += pass;
                g->n++;
                at += size;
            }
            CHECK(p->region != REGION_MUON || at == p->offset + p->rows * p->cols, "%s: its stack", p->name);
        }
    }
    int64_t bytes             = (int64_t)sizeof *seg * n;
    t->segments[REGION_MUON]  = seg;
    t->n_segment[REGION_MUON] = n;
    if (n) t->seg[REGION_MUON] = store_tensor(store, SLAB_STATE, "matrices", DT_U8, 1, &bytes);
}

static void layout_segments(ParamTable *t, Store *store, int region, float decay)
{
    Segment *seg = ARENA_ARRAY(&t->arena, Segment, t->n_param);
    int      n   = 0;
    for (int i = t->n_param - 1; i >= 0; i--) {
        const Param *p = &t->param[i];
        if ((int)p->region != region) continue;
        int64_t end = p->offset + p->rows_stored * p->cols;
        seg[n++]    = (Segment){ p->offset, end, p->decay ? decay : 0.0f, p->lr_mul };
    }
    int64_t bytes        = (int64_t)sizeof *seg * n;
    t->segments[region]  = seg;
    t->n_segment[region] = n;
    t->seg[region]       = n ? store_tensor(store, SLAB_STATE, "segments", DT_U8, 1, &bytes) : NULL;
}

/* Frozen rows get a region of their own, because they are kept once, in the dtype that they compute in. */
static void choose_regions(ParamTable *t, const ParamOptions *opt)
{
    for (int i = 0; i < t->n_param; i++) {
        Param *p = &t->param[i];
        p->frozen |= is_listed(p->name, opt->freeze);
        if (opt->muon > 0 && opt->trains && p->stack[0] && !p->frozen) p->region = REGION_MUON;
        if (p->frozen) p->region = p->region == REGION_COPY ? REGION_FROZEN_COPY : REGION_FROZEN_MASTER;
    }
    for (int i = t->n_param - 1; i >= 0; i--) {
        Param   *p   = &t->param[i];
        int64_t *end = &t->region_elems[p->region];
        p->offset    = *end;
        *end += round_up(p->rows_stored * p->cols, PARAM_ALIGN);
    }
}

/* The dtype of a column in a region; -1: it has none there. */
static int column_dtype(Column c, Region r, const ParamOptions *opt)
{
    int frozen = (int)r >= REGION_TRAINED, copied = opt->compute != DT_F32;
    int narrow = r == REGION_FROZEN_COPY || (r == REGION_COPY && !opt->trains);
    int moment = opt->gives & GIVE_MOMENTS ? DT_BF16 : DT_F32;
    int alone  = r == REGION_COPY && opt->compute == DT_BF16 && opt->trains && opt->gives & GIVE_WEIGHTS;
    int read   = (r == REGION_COPY || r == REGION_MUON) && copied && opt->trains; /* by products */
    switch (c) {
    case COL_WEIGHT: return narrow || alone ? (int)opt->compute : DT_F32;
    case COL_COPY: return read && !alone ? (int)opt->compute : -1;
    case COL_M:
    case COL_V: return frozen || !opt->trains || r == REGION_MUON ? -1 : moment;
    case COL_MOMENTUM: return r == REGION_MUON && opt->trains ? DT_F32 : -1;
    default: return frozen || !opt->trains ? -1 : DT_F32;
    }
}

/* ---- fp8 ----------------------------------------------------------------------------------------------- */

static int is_narrow(const Param *p, const ParamOptions *opt)
{
    return opt->fp8 && opt->trains && p->narrow && p->ndim == 2 && p->rows_stored % FP8_SIDE == 0 &&
           p->cols % FP8_SIDE == 0 && !is_listed(p->name, opt->wide);
}

static Tensor *site_view(Store *s, Tensor *sites, int64_t i, const char *name)
{
    int64_t n = FP8_SITE;
    return store_view(s, sites, name, i * FP8_SITE, 1, &n);
}

static void layout_copies(ParamTable *t, Store *store, Param *p, int64_t i)
{
    char     name[PARAM_NAME + 16];
    int64_t  dim[2] = { p->rows_stored, p->cols }, turned[2] = { p->cols, p->rows_stored };
    StoreFp8 f;
    snprintf(name, sizeof name, "%s e4m3", p->name);
    f.q = store_tensor(store, SLAB_COPY, name, DT_E4M3, 2, dim);
    snprintf(name, sizeof name, "%s e4m3^T", p->name);
    f.qt      = store_tensor(store, SLAB_COPY, name, DT_E4M3, 2, turned);
    f.x_site  = site_view(store, t->sites, 2 * i, "x site");
    f.w_site  = site_view(store, t->sites, 2 * i + 1, "w site");
    f.dy_site = site_view(store, t->grad_sites, i, "dy site");
    store_set_fp8(store, p->w, &f);
    p->fp8 = store_fp8(store, p->w);
}

static void layout_fp8(ParamTable *t, Store *store, const ParamOptions *opt)
{
    char    name[64];
    int64_t n = 0, i = 0;
    for (int k = 0; k < t->n_param; k++) n += is_narrow(&t->param[k], opt);
    if (n == 0) return;
    int64_t dim[2] = { 2 * n, FP8_SITE };
    snprintf(name, sizeof name, "%sfp8", t->prefix);
    t->sites = store_tensor(store, SLAB_STATE, name, DT_F32, 2, dim);
    dim[0]   = n;
    snprintf(name, sizeof name, "%sfp8 gradients", t->prefix);
    t->grad_sites = store_tensor(store, SLAB_STATE, name, DT_F32, 2, dim);
    for (int k = 0; k < t->n_param; k++) {
        if (is_narrow(&t->param[k], opt)) layout_copies(t, store, &t->param[k], i++);
    }
}

void param_layout(ParamTable *t, Store *store, const ParamOptions *opt)
{
    choose_regions(t, opt);
    for (int r = 0; r < REGION_COUNT; r++) {
        for (int c = 0; c < COL_COUNT; c++) {
            char    name[64];
            int64_t n     = t->region_elems[r];
            int     dtype = column_dtype((Column)c, (Region)r, opt);
            if (n == 0 || dtype < 0) continue;
            snprintf(name, sizeof name, "%s%s %d", t->prefix, column_table[c].name, r);
            t->flat[c][r] = store_tensor(store, column_table[c].slab, name, (DType)dtype, 1, &n);
        }
        if (r < REGION_MUON && opt->trains) layout_segments(t, store, r, opt->decay);
        if (r == REGION_MUON && opt->trains) layout_muon(t, store, opt);
    }
    for (int i = 0; i < t->n_param; i++) {
        Param *p = &t->param[i];
        for (int c = 0; c < COL_COUNT; c++) {
            Tensor *root = t->flat[c][p->region];
            if (root) p->col[c] = row_view(store, root, p, column_table[c].suffix);
        }
        p->w = p->col[COL_COPY] ? p->col[COL_COPY] : p->col[COL_WEIGHT];
        if (p->col[COL_GRAD]) store_set_grad(store, p->w, p->col[COL_GRAD]);
    }
    layout_fp8(t, store, opt);
}

Param *param_find(const ParamTable *t, const char *name)
{
    char full[PARAM_NAME];
    param_name(full, "%s%s", t->prefix, name);
    int i = t->cap ? *name_entry(t, full) : 0;
    return i ? &t->param[i - 1] : NULL;
}

int64_t param_count(const ParamTable *t)
{
    int64_t n = 0;
    for (int i = 0; i < t->n_param; i++) n += t->param[i].rows * t->param[i].cols;
    return n;
}

/* Gram-Schmidt in double, twice, because once leaves errors of the order of the matrix' condition. Vector i
 * of length `len` begins at i * step and has its elements `by` apart. */
static void orthonormalise(double *a, int64_t n, int64_t len, int64_t step, int64_t by)
{
    for (int64_t i = 0; i < n; i++) {
        double *v = a + i * step, square = 0;
        for (int64_t pass = 0; pass < 2; pass++) {
            for (int64_t j = 0; j < i; j++) {
                const double *u   = a + j * step;
                double        dot = 0;
                for (int64_t k = 0; k < len; k++) dot += u[k * by] * v[k * by];
                for (int64_t k = 0; k < len; k++) v[k * by] -= dot * u[k * by];
            }
        }
        for (int64_t k = 0; k < len; k++) square += v[k * by] * v[k * by];
        for (int64_t k = 0; k < len; k++) v[k * by] /= sqrt(square);
    }
}

static void init_orthogonal(const Param *p, uint64_t seed, float *out)
{
    int64_t n = p->rows * p->cols;
    double *a = malloc(sizeof *a * (size_t)n);
    CHECK(a, "no memory for %s", p->name);
    normal_fill(out, n, seed, (uint32_t)p->site, 1);
    for (int64_t i = 0; i < n; i++) a[i] = out[i];
    if (p->rows <= p->cols)
        orthonormalise(a, p->rows, p->cols, p->cols, 1);
    else
        orthonormalise(a, p->cols, p->rows, 1, p->cols);
    for (int64_t i = 0; i < n; i++) out[i] = (float)(a[i] * (double)p->std);
    free(a);
}

void param_init_values(const Param *p, uint64_t seed, float *out)
{
    int64_t n = p->rows * p->cols, stored = p->rows_stored * p->cols, drawn = p->init == INIT_ZERO ? 0 : n;
    memset(out + drawn, 0, sizeof *out * (size_t)(stored - drawn));
    if (p->init == INIT_ONE || p->init == INIT_CONSTANT) {
        for (int64_t i = 0; i < n; i++) out[i] = p->init == INIT_ONE ? 1.0f : p->std;
    } else if (p->init == INIT_ORTHOGONAL) {
        init_orthogonal(p, seed, out);
    } else if (p->init == INIT_NORMAL) {
        normal_fill(out, n, seed, (uint32_t)p->site, p->std);
    }
}
