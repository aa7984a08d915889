#include "net/param.h"

#include "base/err.h"
#include "base/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdio.h>
#include <string.h>

void param_name(char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(name, PARAM_NAME, fmt, ap);
    va_end(ap);
    CHECK(n > 0 && n < PARAM_NAME, "a parameter name of %d characters", n);
}

void param_table_init(ParamTable *t)
{
    memset(t, 0, sizeof *t);
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
    Param *p       = &t->param[t->n_param];
    *p             = *row;
    p->rows_stored = MAX(p->rows_stored, p->rows);
    p->lr_mul      = p->lr_mul != 0 ? p->lr_mul : 1.0f;
    p->site        = t->n_param;
    index_row(t, t->n_param);
    return t->n_param++;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

static Tensor *flat(Store *s, Slab slab, const char *what, int region, DType dtype, int64_t n)
{
    char name[64];
    snprintf(name, sizeof name, "%s %d", what, region);
    return n ? store_tensor(s, slab, name, dtype, 1, &n) : NULL;
}

static Tensor *row_view(Store *s, Tensor *root, const Param *p, const char *suffix)
{
    char    name[PARAM_NAME + 16];
    int64_t two[2] = { p->rows_stored, p->cols };
    snprintf(name, sizeof name, "%s%s", p->name, suffix);
    return store_view(s, root, name, p->offset, p->ndim, p->ndim == 2 ? two : &p->cols);
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

void param_layout(ParamTable *t, Store *store, const ParamOptions *opt, float decay)
{
    for (int i = t->n_param - 1; i >= 0; i--) {
        Param   *p   = &t->param[i];
        int64_t *end = &t->region_elems[p->region];
        p->offset    = *end;
        *end += round_up(p->rows_stored * p->cols, PARAM_ALIGN);
    }
    for (int r = 0; r < REGION_COUNT; r++) {
        int64_t n    = t->region_elems[r];
        t->master[r] = flat(store, SLAB_MASTER, "master", r, DT_F32, n);
        if (r == REGION_COPY && opt->compute != DT_F32)
            t->copy = flat(store, SLAB_COPY, "copy", r, opt->compute, n);
        if (!opt->trainable) continue;
        t->grad[r] = flat(store, SLAB_GRAD, "gradient", r, DT_F32, n);
        t->m[r]    = flat(store, SLAB_OPTIM, "first moment", r, DT_F32, n);
        t->v[r]    = flat(store, SLAB_OPTIM, "second moment", r, DT_F32, n);
        layout_segments(t, store, r, decay);
    }
    for (int i = 0; i < t->n_param; i++) {
        Param *p  = &t->param[i];
        p->master = row_view(store, t->master[p->region], p, "");
        p->w      = p->region == REGION_COPY && t->copy ? row_view(store, t->copy, p, "") : p->master;
        if (!opt->trainable) continue;
        p->grad = row_view(store, t->grad[p->region], p, ".grad");
        p->m    = row_view(store, t->m[p->region], p, ".m");
        p->v    = row_view(store, t->v[p->region], p, ".v");
        store_set_grad(store, p->w, p->grad);
    }
}

Param *param_find(const ParamTable *t, const char *name)
{
    int i = t->cap ? *name_entry(t, name) : 0;
    return i ? &t->param[i - 1] : NULL;
}

int64_t param_count(const ParamTable *t)
{
    int64_t n = 0;
    for (int i = 0; i < t->n_param; i++) n += t->param[i].rows * t->param[i].cols;
    return n;
}

/* Two uniforms from one counter give two normals (Box-Muller), four elements per Philox call. */
static void init_normal(const Param *p, uint64_t seed, float *out, int64_t n)
{
#pragma omp parallel for schedule(static)
    for (int64_t q = 0; q < (n + 3) / 4; q++) {
        /* 0x1717: the stream of initial values */
        uint32_t ctr[4] = { (uint32_t)q, (uint32_t)(q >> 32), (uint32_t)p->site, 0x1717 };
        uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, r[4];
        philox4x32(r, ctr, key);
        for (int k = 0; k < 4 && 4 * q + k < n; k += 2) {
            double u = (r[k] + 0.5) * 0x1p-32, angle = 6.283185307179586 * (r[k + 1] * 0x1p-32);
            double len     = sqrt(-2.0 * log(u)) * p->std;
            out[4 * q + k] = (float)(len * cos(angle));
            if (4 * q + k + 1 < n) out[4 * q + k + 1] = (float)(len * sin(angle));
        }
    }
}

void param_init_values(const Param *p, uint64_t seed, float *out)
{
    int64_t n = p->rows * p->cols, stored = p->rows_stored * p->cols;
    memset(out, 0, sizeof *out * (size_t)stored);
    if (p->init == INIT_ONE) {
        for (int64_t i = 0; i < n; i++) out[i] = 1.0f;
    } else if (p->init == INIT_NORMAL) {
        init_normal(p, seed, out, n);
    }
}
