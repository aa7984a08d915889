#include "task/weights.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "file/safetensors.h"
#include "tensor/number.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { CHUNK = 1 << 20 /* elements at a time */ };

/* ---- Is it this model? --------------------------------------------------------------------------------- */

static int is_row(void *ctx, const char *ours)
{
    return strlen(ours) < PARAM_NAME && param_find((const ParamTable *)ctx, ours) != NULL;
}

static const char *shape_text(char *buf, size_t n, int ndim, int64_t rows, int64_t cols)
{
    if (ndim == 1) {
        snprintf(buf, n, "%lld", (long long)(rows * cols));
    } else {
        snprintf(buf, n, "%lld x %lld", (long long)rows, (long long)cols);
    }
    return buf;
}

static int match_one(const ParamTable *t, const Param *p, const HfFolder *h, HfWeight *w)
{
    char a[64], b[64];
    TRY(hf_find(h, p->name + strlen(t->prefix), w));
    /* A vector may count its numbers as rows or as columns. */
    int same =
        w->ndim == 1 ? w->rows * w->cols == p->rows * p->cols : w->rows == p->rows && w->cols == p->cols;
    if (w->ndim == p->ndim && same) return 0;
    return err_user("%s: tensor %s: makes %s of shape %s, config.json asks for %s", w->file[0]->path,
                    w->part[0]->name, p->name, shape_text(a, sizeof a, w->ndim, w->rows, w->cols),
                    shape_text(b, sizeof b, p->ndim, p->rows, p->cols));
}

int weights_match_hf(const ParamTable *t, const HfFolder *h)
{
    HfWeight w;
    for (int i = 0; i < t->n_param; i++) TRY(match_one(t, &t->param[i], h, &w));
    return hf_check_unused(h, is_row, (void *)t);
}

/* ---- Loading ------------------------------------------------------------------------------------------- */

/* buf: two chunks of 4 bytes an element. */
static int load_one(Job *j, const Param *p, HfFolder *h, const HfWeight *w, char *buf, XXH64_state_t *hash)
{
    const Tensor *t    = p->col[COL_WEIGHT];
    int64_t       all  = p->rows * p->cols;
    char         *wide = buf + 4 * (size_t)CHUNK;
    for (int64_t at = 0; at < all; at += CHUNK) {
        int64_t n = MIN(all - at, (int64_t)CHUNK);
        TRY(hf_read(h, w, at, n, buf));
        XXH64_update(hash, buf, (size_t)n * dtype_bytes(w->dtype));
        if (t->dtype != w->dtype) number_convert(t->dtype, wide, w->dtype, buf, n);
        TRY(j->dev->vt->upload(j->dev, LANE_COMPUTE, (char *)t->data + (size_t)at * dtype_bytes(t->dtype),
                               t->dtype != w->dtype ? wide : buf, (size_t)n * dtype_bytes(t->dtype)));
        TRY(j->dev->vt->sync(j->dev)); /* the buffer is used again */
    }
    return 0;
}

int weights_load_hf(Job *j, const ParamTable *t, HfFolder *h, uint64_t *hash)
{
    XXH64_state_t state;
    HfWeight      w;
    char         *buf = mem_alloc(8 * (size_t)CHUNK);
    if (!buf) return err_sys("memory for reading %s", h->dir);
    XXH64_reset(&state, 0);
    int rc = weights_match_hf(t, h);
    for (int i = 0; i < t->n_param && rc == 0; i++) {
        rc = match_one(t, &t->param[i], h, &w);
        if (rc == 0) rc = load_one(j, &t->param[i], h, &w, buf, &state);
    }
    free(buf);
    if (hash) *hash = XXH64_digest(&state);
    return rc;
}

/* ---- From a run of another task ------------------------------------------------------------------------ */

/* The weights of a run's newest checkpoint. */
static int find_newest(const char *run, char *path, size_t n)
{
    char   folder[PATH_MAX], **name;
    Arena  arena;
    int    n_name = -1, rc = -1;
    size_t room = sizeof folder;
    arena_init(&arena);
    if (snprintf(folder, room, "%s/checkpoints", run) < (int)room)
        n_name = file_list(&arena, folder, "", &name); /* sorted */
    while (n_name > 0 && !str_starts_with(name[n_name - 1], "step-")) n_name--;
    if (n_name > 0 && snprintf(path, n, "%s/%s/model.safetensors", folder, name[n_name - 1]) < (int)n) rc = 0;
    arena_deinit(&arena);
    if (rc == 0) return 0;
    err_clear();
    return err_user("%s: the run has no checkpoint yet", run);
}

static int has_shape(const SafeTensor *s, const Param *p)
{
    if (s->ndim != p->ndim) return 0;
    return s->ndim == 1 ? s->n_elem == p->rows * p->cols : s->dim[0] == p->rows && s->dim[1] == p->cols;
}

/* 1: a run of another task may lack this weight. */
static int may_be_new(const Param *p)
{
    return str_starts_with(p->name, "head.") || str_starts_with(p->name, "decoder.");
}

static int take_one(Job *j, const Param *p, const SafeFile *f, const SafeTensor *s)
{
    float *x  = mem_alloc(sizeof *x * (size_t)(p->rows * p->cols));
    int    rc = x ? safetensors_read_f32(f, s, 0, s->n_elem, x) : err_sys("memory for reading %s", f->path);
    if (rc == 0) rc = job_write_param(j, p, COL_WEIGHT, x);
    free(x);
    return rc;
}

/* Every weight of the table that the file has. */
static int take_all(Job *j, const ParamTable *t, const SafeFile *f)
{
    char a[64], b[64], new[256] = "";
    int  n_new = 0;
    for (int i = 0; i < t->n_param; i++) {
        const Param      *p = &t->param[i];
        const SafeTensor *s = safetensors_find(f, p->name);
        if (s && has_shape(s, p)) {
            TRY(take_one(j, p, f, s));
        } else if (may_be_new(p)) {
            if (n_new++ < 2) str_append(new, sizeof new, "%s%s", new[0] ? ", " : ": ", p->name);
        } else if (!s) {
            return err_user("%s: has no tensor %s", f->path, p->name);
        } else {
            return err_user("%s: tensor %s: has shape %s, the recipe asks for %s", f->path, p->name,
                            shape_text(a, sizeof a, s->ndim, s->dim[0], s->ndim > 1 ? s->dim[1] : 1),
                            shape_text(b, sizeof b, p->ndim, p->rows, p->cols));
        }
    }
    log_info("init: %s: %d weights taken, %d new%s%s", f->path, t->n_param - n_new, n_new, new,
             n_new > 2 ? ", ..." : "");
    return 0;
}

/* Names what the run has and no net of the job reads, such as a decoder. */
static void say_unused(const Job *j, const SafeFile *f)
{
    const char *first = NULL;
    int         n     = 0;
    for (int i = 0; i < f->n_tensor; i++) {
        int used = 0;
        for (int k = 0; k < j->n_table && !used; k++) {
            size_t skip = strlen(j->table[k]->prefix);
            used        = strncmp(f->tensor[i].name, j->table[k]->prefix, skip) == 0 &&
                   is_row(j->table[k], f->tensor[i].name + skip);
        }
        if (!used && n++ == 0) first = f->tensor[i].name;
    }
    if (n > 0) log_info("init: %s: %d weights are not used: %s%s", f->path, n, first, n > 1 ? ", ..." : "");
}

/* The scales in fp8 are those of the initial values, which may be much smaller. */
static int refresh(Job *j)
{
    TRY(job_forget_scales(j));
    return job_refresh_copies(j);
}

static int load_run(Job *j, const ParamTable *t)
{
    char     path[PATH_MAX];
    SafeFile f;
    TRY(find_newest(j->recipe.init, path, sizeof path));
    TRY(safetensors_open(&f, path));
    int rc = take_all(j, t, &f);
    if (rc == 0 && t == j->table[0]) say_unused(j, &f);
    safetensors_close(&f);
    return rc == 0 ? refresh(j) : -1;
}

int weights_load_init(Job *j, const ParamTable *t)
{
    const char *dir = j->recipe.init;
    HfConfig    config;
    HfFolder    h;
    if (!dir[0]) return 0;
    if (!hfconf_is_folder(dir)) return load_run(j, t);
    TRY(hfconf_read(&config, dir));
    TRY(hf_open(&h, dir, hf_map_of(config.family)));
    int rc = weights_load_hf(j, t, &h, NULL);
    hf_close(&h);
    return rc == 0 ? refresh(j) : -1;
}

int weights_load_frozen(Job *j, ParamTable *t, const char *dir, const HfConfig *config)
{
    HfFolder h;
    char     full[PATH_MAX];
    TRY(hf_open(&h, dir, hf_map_of(config->family)));
    int rc = weights_load_hf(j, t, &h, &t->origin_hash);
    hf_close(&h);
    TRY(rc);
    if (!realpath(dir, full) || str_copy(t->origin, sizeof t->origin, full) < 0)
        return err_user("%s: path too long", dir);
    return 0;
}
