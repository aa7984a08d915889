/* The frozen language model: where its shape and weights come from.
 *
 * latent.llm names a Hugging Face folder (config.json), a run of Brim (its best checkpoint, else the newest),
 * a checkpoint's folder, or a safetensors file with Brim's names. The hash is of all bytes that were read,
 * names included: another file, or a changed one, is not gone on with (ckpt). */
#include "task/latent.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "file/safetensors.h"
#include "task/weights.h"
#include "tensor/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PATH = 2 * RECIPE_STR };

/* ---- paths -------------------------------------------------------------------------------------------- */

static int exists(char *buf, const char *folder, const char *name)
{
    snprintf(buf, PATH, "%s/%s", folder, name);
    return file_kind(buf) == FILE_REGULAR;
}

/* The newest checkpoint of a run that is complete. */
static int find_newest(char *buf, const char *run)
{
    char   folder[PATH - 256], name[128];
    char **names;
    Arena  arena;
    int    found = 0;
    arena_init(&arena);
    snprintf(folder, sizeof folder, "%s/checkpoints", run);
    int n = file_list(&arena, folder, "", &names);
    if (n < 0) err_clear();
    for (int i = n - 1; i >= 0 && !found; i--) {
        if (!str_starts_with(names[i], "step-") || strlen(names[i]) > 64) continue;
        snprintf(name, sizeof name, "%s/model.safetensors", names[i]);
        found = exists(buf, folder, name);
    }
    arena_deinit(&arena);
    return found;
}

static int find_weights(const char *path, char *buf)
{
    snprintf(buf, PATH, "%s", path);
    switch (file_kind(path)) {
    case FILE_REGULAR: return 0;
    case FILE_FOLDER:
        if (exists(buf, path, "model.safetensors") || exists(buf, path, "checkpoints/best/model.safetensors"))
            return 0;
        if (find_newest(buf, path)) return 0;
        return err_user("%s is neither a run of Brim with a checkpoint nor a folder with model.safetensors",
                        path);
    default: return err_user("%s: no such file or folder", path);
    }
}

int latent_model(const Recipe *r, RecipeModel *m)
{
    Recipe *run;
    *m = r->model;
    if (r->latent.llm[0] && hfconf_is_folder(r->latent.llm)) {
        HfConfig c;
        if (hfconf_read(&c, r->latent.llm) < 0) return recipe_blame_pending(r, "latent.llm");
        if (strcmp(hfconf_task(c.family), "lm") != 0)
            return recipe_blame(r, "latent.llm", "%s: a %s model reads no text", r->latent.llm,
                                hfconf_family_name[c.family]);
        *m = c.model;
        return 0;
    }
    int rc = pairs_llm_run(r, &run);
    if (rc > 0) *m = run->model;
    free(run);
    return rc < 0 ? -1 : 0;
}

/* ---- weights ------------------------------------------------------------------------------------------ */

typedef struct {
    Job           *j;
    SafeFile       file;
    XXH64_state_t *hash;
    void          *raw; /* of one tensor */
    float         *wide;
} Load;

static int load_param(Load *l, const Param *p)
{
    enum { BLOCK = 1 << 22 }; /* elements */
    const char       *name = p->name + strlen("llm.");
    const SafeTensor *t    = safetensors_find(&l->file, name);
    int64_t           n    = p->rows * p->cols;
    if (!t) return err_user("%s: tensor %s is missing", l->file.path, name);
    if (t->n_elem != n || t->ndim < 1 || t->dim[t->ndim - 1] != p->cols)
        return err_user("%s: tensor %s has %lld numbers, the model needs %lld x %lld", l->file.path, name,
                        (long long)t->n_elem, (long long)p->rows, (long long)p->cols);
    if (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)
        return err_user("%s: tensor %s: holds %s, Brim reads f32, bf16 and f16", l->file.path, name,
                        dtype_name(t->dtype));
    TRY(safetensors_read(&l->file, t->offset, l->raw, t->size_bytes));
    XXH64_update(l->hash, name, strlen(name));
    XXH64_update(l->hash, l->raw, t->size_bytes);
    if (t->dtype == p->col[COL_WEIGHT]->dtype)
        return job_upload(l->j, p->col[COL_WEIGHT], l->raw, t->size_bytes);
    for (int64_t at = 0; at < n; at += BLOCK)
        TRY(safetensors_read_f32(&l->file, t, at, MIN(BLOCK, n - at), l->wide + at));
    return job_write_param(l->j, p, COL_WEIGHT, l->wide);
}

static int load_all(Load *l, const char *path)
{
    ParamTable *t    = &latent_of(l->j)->llm.table;
    int64_t     most = 0;
    if (safetensors_open(&l->file, path) < 0) {
        char why[512];
        str_copy(why, sizeof why, err_get());
        err_clear();
        return err_user("%s", why); /* the user named the file */
    }
    for (int i = 0; i < t->n_param; i++) most = MAX(most, t->param[i].rows * t->param[i].cols);
    l->hash = XXH64_createState();
    l->raw  = mem_alloc(sizeof(float) * (size_t)most);
    l->wide = mem_alloc(sizeof(float) * (size_t)most);
    if (!l->hash || !l->raw || !l->wide) return err_sys("memory for the language model's weights");
    XXH64_reset(l->hash, 0);
    for (int i = 0; i < t->n_param; i++) TRY(load_param(l, &t->param[i]));
    t->origin_hash = XXH64_digest(l->hash);
    return 0;
}

/* RMS of the embedding, from blocks of it spread evenly. */
static int embed_rms(Job *j, double *out)
{
    enum { BLOCKS = 32, NUMBERS = 1 << 16 };
    const Param  *p   = param_find(&latent_of(j)->llm.table, "embed.weight");
    const Tensor *t   = p->col[COL_WEIGHT];
    int64_t       all = p->rows * p->cols, n = MIN(all, NUMBERS);
    size_t        size  = dtype_bytes(t->dtype);
    double        sumsq = 0;
    void         *raw   = mem_alloc((size_t)n * size);
    int           rc    = raw ? 0 : err_sys("memory for an embedding");
    for (int k = 0; k < BLOCKS && rc == 0; k++) {
        Tensor part = *t;
        part.data   = (char *)t->data + (size_t)((all - n) / (BLOCKS - 1) * k) * size;
        rc          = job_download(j, &part, raw, (size_t)n * size);
        for (int64_t i = 0; i < n && rc == 0; i++) {
            float x = number_get(raw, t->dtype, i);
            sumsq += (double)x * (double)x;
        }
    }
    free(raw);
    *out = sqrt(sumsq / ((double)n * BLOCKS));
    return rc;
}

/* The adapter's last norm begins with the embedding's RMS, so latents are as large as tokens are. */
static int calibrate(Job *j)
{
    const Param *p = param_find(&latent_of(j)->enc.pool, "out.weight");
    double       rms;
    TRY(embed_rms(j, &rms));
    float *v = mem_alloc(sizeof *v * (size_t)p->cols);
    if (!v) return err_sys("memory for the adapter");
    for (int64_t i = 0; i < p->cols; i++) v[i] = (float)rms;
    int rc = job_write_param(j, p, COL_WEIGHT, v);
    free(v);
    return rc;
}

static const float QUERY_SIZE = 0.1f;

/* A latent begins as what one of the last places of the prompt says: the query is that place's position, and
 * keys are made by the same matrix as queries. With random ones all prompts begin with about the same
 * latents, and the encoder learns a constant first: in latent-tiny a cosine of 0.99998 between prompts after
 * 50 steps. Queries are small beside what they read, since they are a part of the latents, too. Positions
 * count from the prompt's end (data/pairs.h), so the last latent has position 0: latents begin in the text's
 * order, and the language model meets the prompt's last place right before the anchor. */
static int aim_queries(Job *j)
{
    const ByteEncoder *e   = &latent_of(j)->enc;
    const Param       *pos = param_find(&e->trunk.table, "pos.weight"),
                *query     = param_find(&e->pool, "query.weight");
    const Param *q = param_find(&e->pool, "q.weight"), *kv = param_find(&e->pool, "kv.weight");
    int64_t      d = e->shape.width, n = MIN(e->shape.latents, e->shape.bytes);
    float *a = mem_alloc(sizeof *a * (size_t)(MAX(pos->rows, q->rows) * d + MAX(kv->rows, query->rows) * d)),
          *b = a + MAX(pos->rows, q->rows) * d;
    if (!a) return err_sys("memory for queries");
    int rc = job_read_param(j, query, COL_WEIGHT, b);
    if (rc == 0) rc = job_read_param(j, pos, COL_WEIGHT, a);
    for (int64_t i = 0; i < n * d && rc == 0; i++) b[i] = QUERY_SIZE * a[(n - 1 - i / d) * d + i % d];
    if (rc == 0) rc = job_write_param(j, query, COL_WEIGHT, b);
    if (rc == 0) rc = job_read_param(j, kv, COL_WEIGHT, b);
    if (rc == 0) rc = job_read_param(j, q, COL_WEIGHT, a);
    if (rc == 0) memcpy(b, a, sizeof *a * (size_t)(q->rows * d));
    if (rc == 0) rc = job_write_param(j, kv, COL_WEIGHT, b);
    free(a);
    return rc;
}

static int load_file(Job *j)
{
    Load l = { .j = j };
    char path[PATH];
    TRY(find_weights(j->recipe.latent.llm, path));
    int rc = load_all(&l, path);
    safetensors_close(&l.file);
    if (l.hash) XXH64_freeState(l.hash);
    free(l.raw);
    free(l.wide);
    return rc;
}

static int load_folder(Job *j, const char *dir)
{
    HfConfig c;
    TRY(hfconf_read(&c, dir));
    return weights_load_frozen(j, &latent_of(j)->llm.table, dir, &c);
}

int latent_load_llm(Job *j)
{
    const Recipe *r   = &j->recipe;
    const char   *llm = r->latent.llm;
    int           rc  = 0;
    if (llm[0]) rc = hfconf_is_folder(llm) ? load_folder(j, llm) : load_file(j);
    if (rc < 0) return recipe_blame_pending(r, "latent.llm");
    TRY(aim_queries(j));
    return calibrate(j);
}
