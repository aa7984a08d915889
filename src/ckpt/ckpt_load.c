/* Loading.
 *
 * 1. Order of trust: DONE vouches for state.json; that for each file's size, header and tensors. A file's
 *    own hash in DONE is checked too, so that one flipped bit anywhere in the folder is found.
 * 2. The model is compared as soon as the headers are trusted: nobody waits for gigabytes of checksums to
 *    read that the recipe is another one. */
#include "ckpt/ckpt.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "conf/paths.h"
#include "ckpt/ckpt_impl.h"
#include "tensor/number.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

typedef struct {
    char         path[PATH_MAX];
    char         done[512];
    CkptManifest manifest;
    SafeFile     file[CKPT_FILES];
    int          n_file; /* 1: weights alone */
    Arena        arena;  /* of the items */
    CkptItem    *item;   /* what the job has */
    int          n_item;
    void        *buf; /* 2 x CKPT_CHUNK_BYTES: as read, and converted */
} Loaded;

/* ---- Opening: everything but the tensors' bytes -------------------------------------------------------- */

static int read_done(Loaded *l)
{
    char   path[PATH_MAX], *text;
    size_t n;
    TRY(ckpt_join(path, sizeof path, l->path, ckpt_done_name));
    TRY(file_read_all(path, sizeof l->done - 1, &text, &n));
    memcpy(l->done, text, n + 1);
    free(text);
    int lines = 0;
    for (size_t i = 0; i < n; i++) lines += l->done[i] == '\n';
    if (strlen(l->done) == n && lines == CKPT_FILES + 1 && l->done[n - 1] == '\n') return 0;
    return err_set("%s: truncated or damaged", path);
}

/* The line-th line of DONE must be what a writer would have put there. */
static int check_done(const Loaded *l, int line, uint64_t hash, const char *name)
{
    char        want[128];
    const char *p = l->done;
    ckpt_done_line(want, sizeof want, hash, name);
    for (int i = 0; i < line; i++) p = strchr(p, '\n') + 1;
    if (strncmp(p, want, strlen(want)) == 0) return 0;
    return err_set("%s/%s: damaged: its checksum does not match the one in %s", l->path, name,
                   ckpt_done_name);
}

static int read_state(Loaded *l)
{
    char   path[PATH_MAX], *text;
    size_t n;
    TRY(ckpt_join(path, sizeof path, l->path, ckpt_state_name));
    TRY(file_read_all(path, CKPT_STATE_MAX, &text, &n));
    int rc = check_done(l, CKPT_FILES, XXH64(text, n, 0), ckpt_state_name);
    if (rc == 0) rc = ckpt_state_parse(&l->manifest, path, text, n);
    free(text);
    return rc;
}

static int open_tensors(Loaded *l, int kind)
{
    char            path[PATH_MAX];
    SafeFile       *f    = &l->file[kind];
    const CkptFile *want = &l->manifest.file[kind];
    TRY(ckpt_join(path, sizeof path, l->path, ckpt_file_name[kind]));
    TRY(safetensors_open(f, path));
    if (f->file_bytes != want->size_bytes) {
        return err_set("%s: %lld bytes long, should be %lld: truncated or damaged", path,
                       (long long)f->file_bytes, (long long)want->size_bytes);
    }
    if (f->header_hash != want->header_hash)
        return err_set("%s: damaged: its header's checksum does not match", path);
    if (f->n_tensor != want->n_tensor) {
        return err_set("%s: %d tensors, %s has %d", path, f->n_tensor, ckpt_state_name, want->n_tensor);
    }
    for (int i = 0; i < f->n_tensor; i++) {
        if (strcmp(f->tensor[i].name, want->tensor[i].name) != 0) {
            return err_set("%s: tensor %s is not where %s says", path, f->tensor[i].name, ckpt_state_name);
        }
    }
    return 0;
}

static int loaded_open(Loaded *l, const char *path, int n_file)
{
    memset(l, 0, sizeof *l);
    arena_init(&l->arena);
    l->n_file = n_file;
    if (str_copy(l->path, sizeof l->path, path) < 0) return err_set("%s: path too long", path);
    l->buf = mem_alloc(2 * CKPT_CHUNK_BYTES);
    if (!l->buf) return err_sys("%s: memory for reading it", path);
    TRY(read_done(l));
    TRY(read_state(l));
    for (int k = 0; k < n_file; k++) TRY(open_tensors(l, k));
    return 0;
}

static void loaded_close(Loaded *l)
{
    for (int k = 0; k < CKPT_FILES; k++) safetensors_close(&l->file[k]);
    ckpt_state_deinit(&l->manifest);
    arena_deinit(&l->arena);
    free(l->buf);
    l->buf = NULL;
}

/* ---- Verifying ----------------------------------------------------------------------------------------- */

/* Hashes [offset, offset+size) into both states. */
static int hash_range(const Loaded *l, int kind, int64_t offset, size_t size_bytes, XXH64_state_t *part,
                      XXH64_state_t *whole)
{
    for (size_t at = 0; at < size_bytes; at += CKPT_CHUNK_BYTES) {
        size_t n = MIN(size_bytes - at, (size_t)CKPT_CHUNK_BYTES);
        TRY(safetensors_read(&l->file[kind], offset + (int64_t)at, l->buf, n));
        XXH64_update(part, l->buf, n);
        XXH64_update(whole, l->buf, n);
    }
    return 0;
}

static int damaged(const SafeFile *f, const char *tensor)
{
    return err_set("%s: tensor %s is damaged: its checksum does not match", f->path, tensor);
}

static int verify_tensors(const Loaded *l, int kind)
{
    const SafeFile *f = &l->file[kind];
    XXH64_state_t   part, whole;
    XXH64_reset(&part, 0);
    XXH64_reset(&whole, 0);
    TRY(hash_range(l, kind, 0, (size_t)f->header_bytes, &part, &whole));
    for (int i = 0; i < f->n_tensor; i++) {
        XXH64_reset(&part, 0);
        TRY(hash_range(l, kind, f->tensor[i].offset, f->tensor[i].size_bytes, &part, &whole));
        if (XXH64_digest(&part) != l->manifest.file[kind].tensor[i].hash)
            return damaged(f, f->tensor[i].name);
    }
    return check_done(l, kind, XXH64_digest(&whole), ckpt_file_name[kind]);
}

int ckpt_verify(const char *path)
{
    Loaded l;
    int    rc = loaded_open(&l, path, CKPT_FILES);
    for (int k = 0; k < CKPT_FILES && rc == 0; k++) rc = verify_tensors(&l, k);
    loaded_close(&l);
    return rc;
}

/* ---- Is it this model? --------------------------------------------------------------------------------- */

static int is_float(DType t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

static const char *describe_shape(char *buf, size_t n, const int64_t *dim, int ndim)
{
    buf[0] = '\0';
    for (int i = 0; i < ndim; i++) str_append(buf, n, "%s%lld", i ? " x " : "", (long long)dim[i]);
    return ndim ? buf : "a single number";
}

/* Bytes of a task's own say inside how long they are, and their length may have changed since. */
static int has_own_length(const SafeTensor *t, const SafeTensor *want)
{
    return t->dtype == DT_U8 && want->dtype == DT_U8 && t->ndim == want->ndim;
}

static int match_tensor(const SafeFile *f, const CkptItem *it)
{
    char              a[128], b[128];
    const SafeTensor *t = safetensors_find(f, it->spec.name), *want = &it->spec;
    if (!t) return err_user("%s is of another model: it has no tensor %s", f->path, want->name);
    if (has_own_length(t, want)) return 0;
    if (t->ndim != want->ndim || memcmp(t->dim, want->dim, sizeof *t->dim * (size_t)t->ndim) != 0) {
        return err_user("%s is of another model: tensor %s is %s there, %s in the recipe's model", f->path,
                        want->name, describe_shape(a, sizeof a, t->dim, t->ndim),
                        describe_shape(b, sizeof b, want->dim, want->ndim));
    }
    if (t->dtype == want->dtype) return 0;
    if (is_float(t->dtype) && is_float(want->dtype)) return 0;
    return err_user("%s: tensor %s holds %s, not floating-point numbers of 2 or 4 bytes", f->path, want->name,
                    dtype_name(t->dtype));
}

/* Scales of fp8 tensors (ParamTable.sites), of whichever table. */
static int is_scales(const char *name)
{
    size_t n = strlen(name), end = strlen("fp8"), grad = strlen("fp8 gradients");
    return str_starts_with(name, "state.") && ((n > end && strcmp(name + n - end, "fp8") == 0) ||
                                               (n > grad && strcmp(name + n - grad, "fp8 gradients") == 0));
}

static int match_tensors(const Loaded *l, const SafeFile *f, int kind)
{
    int n = 0;
    for (int i = 0; i < l->n_item; i++) {
        if ((int)l->item[i].file != kind) continue;
        TRY(match_tensor(f, &l->item[i]));
        n++;
    }
    for (int k = 0; k < f->n_tensor && f->n_tensor > n; k++) {
        int found = is_scales(f->tensor[k].name);
        for (int i = 0; i < l->n_item && !found; i++)
            found = (int)l->item[i].file == kind && strcmp(l->item[i].spec.name, f->tensor[k].name) == 0;
        if (!found)
            return err_user("%s is of another model: the recipe's has no tensor %s", f->path,
                            f->tensor[k].name);
    }
    return 0;
}

/* A frozen net that came from a file of its own must be that file's still. */
static int match_frozen(const Loaded *l, const Job *j)
{
    for (int k = 0; k < j->n_table; k++) {
        const ParamTable *t = j->table[k];
        for (int i = 0; t->origin[0] && i < l->manifest.n_frozen; i++) {
            const CkptFrozen *f = &l->manifest.frozen[i];
            if (strcmp(f->prefix, t->prefix) != 0 || f->hash == t->origin_hash) continue;
            return err_user("%s: the frozen part %s* is not the one it was trained with: %s, now %s", l->path,
                            t->prefix, f->path, t->origin);
        }
    }
    return 0;
}

static int is_fixed(const SchemaRow *row, int weights_alone)
{
    int other = row->fixed == FIXED_SAMPLE || row->fixed == FIXED_STATE;
    return row->fixed == FIXED_WEIGHTS || (other && !weights_alone);
}

static int keep_name(void *ctx, const SchemaRow *row, char path[RECIPE_STR])
{
    const char *name = file_name_of(path);
    memmove(path, name, strlen(name) + 1);
    return 0;
}

/* The same but for the folders of files: a program that is rebuilt or moved is taken for the same one. */
static int same_names(const SchemaRow *row, const char *was, const char *now)
{
    char a[RECIPE_STR], b[RECIPE_STR];
    if (str_copy(a, sizeof a, was) < 0 || str_copy(b, sizeof b, now) < 0) return 0;
    paths_in_text(row, a, keep_name, NULL);
    paths_in_text(row, b, keep_name, NULL);
    return strcmp(a, b) == 0;
}

/* The same file? Older checkpoints have a path as it was given, maybe relative to an unknown folder: one that
 * leads to the file from here, or that the file's path ends with, is taken for it. Both texts are in
 * quotation marks. */
static int same_path(const SchemaRow *row, const char *was, const char *now)
{
    char   path[PATH_MAX], full[PATH_MAX + 2] = "\"";
    size_t n = strlen(was), m = strlen(now);
    if (row->path == PATH_PART) return same_names(row, was, now);
    if (row->path != PATH_WHOLE) return 0;
    if (n < 3 || n >= sizeof path || was[0] != '"') return 0;
    if (m > n && now[m - n] == '/' && strcmp(now + m - n + 1, was + 1) == 0) return 1;
    snprintf(path, sizeof path, "%.*s", (int)n - 2, was + 1);
    if (!realpath(path, full + 1)) return 0;
    str_append(full, sizeof full, "\"");
    return strcmp(full, now) == 0;
}

/* 1: the key asks for another beginning than the run had. A key that is left out asks for nothing. */
static int begins_anew(const SchemaRow *row, const char *now)
{
    return row->fixed == FIXED_BEGIN && strcmp(now, "\"\"") != 0;
}

/* 1: a checkpoint of an older version, which left the key to the data. */
static int says_nothing(const SchemaRow *row, const char *was)
{
    return row->by_data && (strcmp(was, row->def) == 0 || strcmp(was, "\"\"") == 0);
}

/* Remembers a key that names other data; a path only while there is nothing else, for a file may have
 * moved. */
static void note_data(CkptState *s, const Recipe *r, int row, const char *was)
{
    if (schema_row(r, row)->fixed != FIXED_DATA) return;
    if (s->other_data && schema_row(r, row)->type == KEY_TEXT) return;
    s->other_data = 1 + row;
    str_copy(s->was_data, sizeof s->was_data, was);
}

static void note_schedule(CkptState *s, const char *key, const char *was)
{
    static const char rate[] = "optim.lr,optim.min_lr,optim.warmup,optim.schedule,optim.cooldown";
    if (strcmp(key, "steps") == 0) str_parse_int(was, &s->was_steps);
    s->other_rate |= str_list_has(rate, key);
}

/* Refuses what shapes do not show (heads, activation, positions) and lists the other keys that changed in
 * note. */
static int match_keys(Loaded *l, const Recipe *r, char *note, size_t n)
{
    CkptManifest *m = &l->manifest;
    for (int i = 0; i < m->n_key; i++) {
        char now[2 * RECIPE_STR];
        int  row = schema_find(r, m->key[i].key);
        if (row < 0) continue; /* a key of another version of this program */
        schema_get(schema_row(r, row), r, now, sizeof now);
        if (says_nothing(schema_row(r, row), m->key[i].text)) continue;
        if (strcmp(now, m->key[i].text) == 0 || same_path(schema_row(r, row), m->key[i].text, now)) continue;
        if (is_fixed(schema_row(r, row), l->n_file < CKPT_FILES)) {
            return err_user("%s is of another model: %s is %s there, %s in the recipe", l->path,
                            m->key[i].key, m->key[i].text, now);
        }
        if (begins_anew(schema_row(r, row), now) && l->n_file == CKPT_FILES) {
            return err_user(
                "%s: %s is %s in the recipe, but %s in the run so far, which has its own weights now",
                l->path, m->key[i].key, now, m->key[i].text);
        }
        note_data(&m->state, r, row, m->key[i].text);
        note_schedule(&m->state, m->key[i].key, m->key[i].text);
        str_append(note, n, "%s%s %s -> %s", *note ? ", " : "", m->key[i].key, m->key[i].text, now);
    }
    return 0;
}

/* Appends what was planned otherwise. The mathematics is the same. With another micro-batch or other chunks
 * of the head, sums are taken in another order: the run does not go on bit for bit. */
static void note_plan(const CkptState *was, const JobChoice *now, char *note, size_t n)
{
    int new_micro = was->micro_batch != now->micro_batch;
    int new_head  = was->head_rows > 0 && was->head_rows != now->head_rows;
    if (was->recompute_level != (int64_t)now->level) {
        str_append(note, n, "%splanned recomputation %s -> %s", *note ? ", " : "",
                   was->recompute_level <= LEVEL_BLOCK
                       ? recompute_level_name((RecomputeLevel)was->recompute_level)
                       : "unknown",
                   recompute_level_name(now->level));
    }
    if (new_micro) {
        str_append(note, n, "%splanned micro-batch %lld -> %lld", *note ? ", " : "",
                   (long long)was->micro_batch, (long long)now->micro_batch);
    }
    if (new_head) {
        str_append(note, n, "%splanned head rows %lld -> %lld", *note ? ", " : "", (long long)was->head_rows,
                   (long long)now->head_rows);
    }
    if (new_micro || new_head) str_append(note, n, " (sums in another order)");
}

/* A checkpoint of weights alone (ckpt_write_weights) leaves moments and the task's state as a new run has
 * them. */
static void drop_optim(Loaded *l)
{
    int n = 0;
    if (l->n_file < CKPT_FILES || l->manifest.state.step > 0 || l->file[CKPT_OPTIM].n_tensor > 0) return;
    for (int i = 0; i < l->n_item; i++) {
        if (l->item[i].file == CKPT_MODEL) l->item[n++] = l->item[i];
    }
    l->n_item = n;
}

static int is_scale_key(const char *key)
{
    return strcmp(key, "fp8.wide") == 0 || strcmp(key, "fp8.head") == 0 || strcmp(key, "fp8.scaling") == 0;
}

/* Row i of the scales is of the i-th weight in fp8: where other weights are, it may be another one's. */
static int same_scales(const Loaded *l, const Recipe *r)
{
    for (int i = 0; i < l->n_item; i++) {
        const SafeTensor *want = &l->item[i].spec, *t;
        if (!is_scales(want->name)) continue;
        t = safetensors_find(&l->file[CKPT_OPTIM], want->name);
        if (!t || t->ndim != want->ndim || memcmp(t->dim, want->dim, sizeof *t->dim * (size_t)t->ndim) != 0)
            return 0;
    }
    for (int i = 0; i < l->manifest.n_key; i++) {
        const CkptKey *key = &l->manifest.key[i];
        char           now[2 * RECIPE_STR];
        if (!is_scale_key(key->key)) continue;
        schema_get(schema_row(r, schema_find(r, key->key)), r, now, sizeof now);
        if (strcmp(now, key->text) != 0) return 0;
    }
    return 1;
}

/* A run that goes on with other weights in fp8, or that had none, takes all scales from its tensors. */
static void drop_scales(Loaded *l, const Recipe *r)
{
    int n = 0;
    if (l->n_file < CKPT_FILES || same_scales(l, r)) return;
    for (int i = 0; i < l->n_item; i++) {
        if (!is_scales(l->item[i].spec.name)) l->item[n++] = l->item[i];
    }
    l->n_item = n;
}

static int match_own(const Loaded *l, const Job *j)
{
    int64_t was = l->manifest.state.own_bytes;
    if (l->n_file < CKPT_FILES || was == (int64_t)j->task->own_state_bytes) return 0;
    return err_user("%s: has %lld bytes of the task's own state, %zu are expected", l->path, (long long)was,
                    j->task->own_state_bytes);
}

static int match_model(Loaded *l, const Job *j, char *note, size_t n)
{
    l->n_item = ckpt_items(j, &l->arena, &l->item);
    drop_optim(l);
    drop_scales(l, &j->recipe);
    TRY(match_tensors(l, &l->file[CKPT_MODEL], CKPT_MODEL));
    TRY(match_frozen(l, j));
    TRY(match_keys(l, &j->recipe, note, n)); /* before the optimizer's tensors: a key says why they differ */
    for (int k = CKPT_OPTIM; k < l->n_file; k++) TRY(match_tensors(l, &l->file[k], k));
    TRY(match_own(l, j));
    note_plan(&l->manifest.state, &j->choice, note, n);
    return 0;
}

/* ---- To the device ------------------------------------------------------------------------------------- */

/* hash NULL: the file has no checksums. What is longer than the item is read for the hash alone. */
static int upload_item(Job *j, const SafeFile *f, const SafeTensor *t, const CkptItem *it, char *buf,
                       const uint64_t *hash)
{
    Dev          *dev  = j->dev;
    DType         to   = it->t->dtype;
    size_t        size = dtype_bytes(t->dtype), to_size = dtype_bytes(to);
    int64_t       most = (int64_t)(CKPT_CHUNK_BYTES / MAX(size, to_size));
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    for (int64_t at = 0; at < t->n_elem; at += most) {
        int64_t n   = MIN(t->n_elem - at, most);
        void   *put = buf;
        TRY(safetensors_read(f, t->offset + at * (int64_t)size, buf, (size_t)n * size));
        XXH64_update(&state, buf, (size_t)n * size);
        if (t->dtype != to) number_convert(to, put = buf + CKPT_CHUNK_BYTES, t->dtype, buf, n);
        int64_t room = MIN(n, it->n_elem - at);
        if (room <= 0) continue;
        TRY(dev->vt->upload(dev, LANE_COMPUTE, (char *)it->t->data + (size_t)at * to_size, put,
                            (size_t)room * to_size));
        TRY(dev->vt->sync(dev)); /* buf is used again */
    }
    return !hash || XXH64_digest(&state) == *hash ? 0 : damaged(f, t->name);
}

/* scales_alone: no more than the scales of fp8 tensors. */
static int upload_items(Job *j, const Loaded *l, int scales_alone)
{
    for (int i = 0; i < l->n_item; i++) {
        const CkptItem *it = &l->item[i];
        if ((int)it->file >= l->n_file || (scales_alone && !is_scales(it->spec.name))) continue;
        const SafeFile   *f    = &l->file[it->file];
        const SafeTensor *from = safetensors_find(f, it->spec.name);
        const CkptTensor *sums = l->manifest.file[it->file].tensor;
        TRY(upload_item(j, f, from, it, (char *)l->buf, sums ? &sums[from - f->tensor].hash : NULL));
    }
    return 0;
}

static int upload_all(Job *j, const Loaded *l)
{
    TRY(job_forget_scales(j)); /* for when the file has none */
    TRY(upload_items(j, l, 0));
    TRY(job_refresh_copies(j));
    /* Frozen weights were quantised once more, which raised the amax of their sites. */
    return upload_items(j, l, 1);
}

static int load(Job *j, Loaded *l, char *note, size_t n)
{
    TRY(match_model(l, j, note, n));
    for (int k = 0; k < l->n_file; k++) TRY(verify_tensors(l, k));
    return upload_all(j, l);
}

/* State of the task's own goes back where it came from. */
static void restore_own(Job *j, const CkptState *s)
{
    if (s->own_bytes > 0) memcpy(j->own_state, s->own, (size_t)s->own_bytes);
}

/* A run that goes on in another precision begins with the scale of that precision. */
static StepState *adapt_scale(const Job *j, StepState *s)
{
    int first = job_first_scale(j);
    if (first == 0 || s->out.scale_exp == 0) s->out.scale_exp = first;
    return s;
}

int ckpt_load(Job *j, const char *path, CkptState *s, char *note, size_t n)
{
    Loaded l;
    CHECK(j->dev && job_trains(j) && n > 0, "only a bound job that trains can go on with a checkpoint");
    note[0] = '\0';
    int rc  = loaded_open(&l, path, CKPT_FILES);
    if (rc == 0) rc = load(j, &l, note, n);
    if (rc == 0) restore_own(j, &l.manifest.state);
    if (rc == 0) rc = job_write_state(j, adapt_scale(j, &l.manifest.state.device));
    if (rc == 0) *s = l.manifest.state;
    loaded_close(&l);
    return rc;
}

int ckpt_resume(Job *j, const char *dir, int64_t before, CkptState *s, char *note, size_t n)
{
    enum { MAX_TRIES = 1024 };
    int64_t step[MAX_TRIES];
    char    path[PATH_MAX], first[512] = "";
    int     found = ckpt_list(dir, step, MAX_TRIES), tried = 0;
    if (found <= 0) return found;
    for (int i = 0; i < found; i++) {
        if (step[i] >= before) continue;
        TRY(ckpt_path(dir, step[i], path, sizeof path));
        int rc = ckpt_load(j, path, s, note, n);
        if (rc == 0 && s->step == step[i]) return 1;
        if (rc == 0) err_set("%s holds step %lld", path, (long long)s->step);
        if (err_kind() == ERR_USER) return -1;
        log_warn("checkpoint of step %lld cannot be used: %s", (long long)step[i], err_get());
        if (tried++ == 0) str_copy(first, sizeof first, err_get());
        err_clear();
    }
    if (tried == 0) return 0;
    return err_set("%s: none of its %d %scheckpoints can be used; the newest: %s", dir, tried,
                   before < INT64_MAX ? "older " : "", first);
}

/* ---- Weights alone ------------------------------------------------------------------------------------- */

static int load_file(Job *j, Loaded *l, const char *path)
{
    memset(l, 0, sizeof *l);
    arena_init(&l->arena);
    l->n_file = 1;
    l->buf    = mem_alloc(2 * CKPT_CHUNK_BYTES);
    if (!l->buf) return err_sys("%s: memory for reading it", path);
    TRY(safetensors_open(&l->file[CKPT_MODEL], path));
    l->n_item = ckpt_items(j, &l->arena, &l->item);
    TRY(match_tensors(l, &l->file[CKPT_MODEL], CKPT_MODEL));
    return upload_all(j, l);
}

static int load_folder(Job *j, Loaded *l, const char *path)
{
    char note[256] = ""; /* what a run would be told does not matter to weights */
    TRY(loaded_open(l, path, 1));
    return load(j, l, note, sizeof note);
}

int ckpt_load_weights(Job *j, const char *path)
{
    Loaded   l;
    FileKind kind = file_kind(path);
    CHECK(j->dev, "the job is not bound");
    if (kind == FILE_NONE) return err_user("%s: no such checkpoint or file", path);
    int rc = kind == FILE_FOLDER ? load_folder(j, &l, path) : load_file(j, &l, path);
    loaded_close(&l);
    return rc;
}

/* Which folder a name stands for now; zeros when there is none. */
typedef struct {
    dev_t device;
    ino_t inode;
} FolderId;

static FolderId folder_id(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (FolderId){ st.st_dev, st.st_ino } : (FolderId){ 0 };
}

/* 1 loaded, 0 it went away or was replaced while it was opened, negative after err_set(). */
static int try_weights(Job *j, const char *path)
{
    FolderId before = folder_id(path), after;
    int      rc     = ckpt_load_weights(j, path);
    if (rc == 0) return 1;
    after = folder_id(path);
    if (before.inode != 0 && before.inode == after.inode && before.device == after.device) return -1;
    err_clear();
    return 0;
}

int ckpt_load_newest(Job *j, const char *dir, int64_t *step)
{
    enum { TRIES = 1000, MOST = 64 }; /* a run would have to save so often while one file is opened */
    int64_t list[MOST];
    char    path[PATH_MAX];
    for (int t = 0; t < TRIES; t++) {
        int n = ckpt_list(dir, list, MOST), rc = -1;
        if (n < 0) return -1;
        if (n == 0) return err_user("%s: there is no checkpoint yet", dir);
        for (int i = 0; i < n && rc < 0; i++) {
            TRY(ckpt_path(dir, list[i], path, sizeof path));
            rc    = try_weights(j, path);
            *step = list[i];
            if (rc > 0) return 0;
            if (rc == 0) break; /* the list is old */
            if (err_kind() == ERR_USER || i + 1 == n) return -1;
            log_warn("%s; trying the one before", err_get());
            err_clear();
        }
    }
    return err_set("%s: its checkpoints change faster than they can be read", dir);
}
