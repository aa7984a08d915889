/* Saving.
 *
 * 1. A save is a pure function of the snapshot and the CkptManifest in the writer; the thread touches
 *    neither Job nor device. Without a snapshot the caller's thread does the same work, reading the
 *    device piece by piece.
 * 2. One thread at a time, first for the memory of the snapshot, then for each save; what it writes is
 *    read by others only after it was joined. */
#include "ckpt/ckpt.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"
#include "ckpt/ckpt_impl.h"
#include "conf/schema.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* A whole range of the device that stored tensors lie in, and its copy. */
typedef struct {
    const Tensor *root;
    char         *copy; /* NULL: not taken */
} Range;

struct CkptWriter {
    char        dir[PATH_MAX];
    int64_t     keep, keep_every;
    Dev        *dev;
    Arena       arena;    /* of the lists below */
    CkptItem   *item;     /* what is stored */
    int        *range_of; /* by item */
    int         n_item;
    Range      *range;
    int         n_range;
    SafeTensor *spec[CKPT_FILES]; /* the items of each file, in order */
    CkptTensor *sum[CKPT_FILES];
    int         n_spec[CKPT_FILES];
    int         has_snapshot;
    int         next_is_best, is_best; /* the save to come; the one that runs or ran last */
    char       *stage;                 /* CKPT_CHUNK_BYTES, for saving without a snapshot */

    CkptKnown known; /* of the thread that saves */

    /* the save that runs or ran last */
    CkptManifest      manifest;
    CkptKey           key[RECIPE_KEYS];
    char              text[RECIPE_KEYS][2 * RECIPE_STR];
    uint64_t          file_hash[CKPT_FILES];
    int               not_finite; /* a weight was */
    const Job        *job;        /* whose state is saved */
    Job              *source;     /* only without a snapshot */
    const CkptSource *from;       /* weights of no device; NULL: the job's */
    double            snapshot_s;
    Thread            thread;
    int               active;
    atomic_int        finished;
    int               result;
    char              message[1024];
};

/* ---- What is stored ------------------------------------------------------------------------------------ */

static void list_stored(CkptWriter *w, const Job *j)
{
    w->n_item   = ckpt_items(j, &w->arena, &w->item);
    w->range    = ARENA_ARRAY(&w->arena, Range, w->n_item + 1);
    w->range_of = ARENA_ARRAY(&w->arena, int, w->n_item + 1);
    for (int k = 0; k < CKPT_FILES; k++) {
        w->spec[k] = ARENA_ARRAY(&w->arena, SafeTensor, w->n_item + 1);
        w->sum[k]  = ARENA_ARRAY(&w->arena, CkptTensor, w->n_item + 1);
    }
    for (int i = 0; i < w->n_item; i++) {
        const CkptItem *it = &w->item[i];
        int             at = w->n_spec[it->file]++, r = 0;
        w->spec[it->file][at] = it->spec;
        w->sum[it->file][at]  = (CkptTensor){ .name = it->spec.name };
        while (r < w->n_range && w->range[r].root != it->t->root) r++;
        if (r == w->n_range) w->range[w->n_range++].root = it->t->root;
        w->range_of[i] = r;
    }
}

/* ---- The snapshot -------------------------------------------------------------------------------------- */

/* Pinned memory makes the copy from a device several times faster; beside the CPU there is nothing to copy
 * from. */
static int is_pinned(const CkptWriter *w) { return w->dev->vt->hints->is_late; }

static void *host_take(CkptWriter *w, size_t size_bytes)
{
    if (fault_hit(FAULT_MALLOC)) return NULL;
    void *p = is_pinned(w) ? w->dev->vt->host_alloc(w->dev, size_bytes) : malloc(size_bytes);
    if (p) memset(p, 0, size_bytes); /* the pages come now, not during the first save */
    return p;
}

static void host_give(CkptWriter *w, void *p)
{
    if (p && is_pinned(w)) {
        w->dev->vt->host_free(w->dev, p);
    } else {
        free(p);
    }
}

static void snapshot_free(CkptWriter *w)
{
    for (int r = 0; r < w->n_range; r++) {
        host_give(w, w->range[r].copy);
        w->range[r].copy = NULL;
    }
}

/* Memory is not taken on trust: Linux promises more than it has, and the promise is broken in the middle
 * of a run. Runs in a thread: pinning takes a second for every few gigabytes, and nobody needs them before
 * the first save. */
static void snapshot_alloc(void *arg)
{
    CkptWriter *w    = (CkptWriter *)arg;
    size_t      need = 0, have = hostmem_available();
    for (int r = 0; r < w->n_range; r++) need += tensor_bytes(w->range[r].root);
    w->has_snapshot = need <= have - have / 8;
    for (int r = 0; r < w->n_range && w->has_snapshot; r++) {
        w->range[r].copy = (char *)host_take(w, tensor_bytes(w->range[r].root));
        w->has_snapshot  = w->range[r].copy != NULL;
    }
    if (w->has_snapshot) return;
    char a[32], b[32];
    snapshot_free(w);
    err_clear(); /* not a failure: there is another way */
    log_warn("checkpoints: a copy of the training state takes %s of host memory, %s are available: training "
             "will wait while one is written",
             str_bytes(a, sizeof a, (double)need), str_bytes(b, sizeof b, (double)have));
}

static int snapshot_fill(CkptWriter *w, const Job *j)
{
    Dev *dev = j->dev;
    for (int r = 0; r < w->n_range; r++) {
        const Tensor *t = w->range[r].root;
        TRY(dev->vt->download(dev, LANE_COMPUTE, w->range[r].copy, t->data, tensor_bytes(t)));
    }
    return dev->vt->sync(dev);
}

/* n bytes of an item; NULL after err_set(). */
static const char *fetch(CkptWriter *w, int item, size_t first, size_t n)
{
    const Tensor *t = w->item[item].t;
    if (w->has_snapshot) return w->range[w->range_of[item]].copy + t->offset_bytes + first;
    if (w->from) {
        const SafeTensor *spec = &w->item[item].spec;
        int64_t           size = (int64_t)dtype_bytes(spec->dtype);
        return w->from->read(w->from->ctx, spec->name, (int64_t)first / size, (int64_t)n / size, w->stage) ==
                       0
                   ? w->stage
                   : NULL;
    }
    Dev *dev = w->source->dev;
    int  rc  = dev->vt->download(dev, LANE_COMPUTE, w->stage, (const char *)t->data + first, n);
    if (rc == 0) rc = dev->vt->sync(dev);
    return rc == 0 ? w->stage : NULL;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

/* 1: all n_bytes of numbers of this type are finite, or the type has no others. */
static int is_finite(const void *data, DType dtype, size_t n_bytes)
{
    const uint32_t *word = (const uint32_t *)data, full = 0x7f800000u;
    const uint16_t *half = (const uint16_t *)data, half_full = dtype == DT_BF16 ? 0x7f80 : 0x7c00;
    int             bad = 0;
    if (dtype == DT_F32) {
        for (size_t i = 0; i < n_bytes / sizeof *word; i++) bad |= (word[i] & full) == full;
    } else if (dtype == DT_BF16 || dtype == DT_F16) {
        for (size_t i = 0; i < n_bytes / sizeof *half; i++) bad |= (half[i] & half_full) == half_full;
    }
    return !bad;
}

static int write_item(CkptWriter *w, SafeWriter *out, int item, uint64_t *hash)
{
    size_t        all = (size_t)w->item[item].n_elem * dtype_bytes(w->item[item].spec.dtype);
    XXH64_state_t state;
    XXH64_reset(&state, 0);
    for (size_t at = 0; at < all; at += CKPT_CHUNK_BYTES) {
        size_t      n   = MIN(all - at, (size_t)CKPT_CHUNK_BYTES);
        const char *src = fetch(w, item, at, n);
        if (!src) return -1;
        if (w->item[item].file == CKPT_MODEL && !is_finite(src, w->item[item].spec.dtype, n)) {
            w->not_finite    = 1;
            const char *name = w->item[item].spec.name;
            return w->from ? err_user("%s has numbers that are not finite", name)
                           : err_set("%s has numbers that are not finite", name);
        }
        XXH64_update(&state, src, n);
        TRY(safetensors_write_data(out, src, n));
    }
    *hash = XXH64_digest(&state);
    return 0;
}

static int write_tensors(CkptWriter *w, const char *folder, int kind)
{
    char     path[PATH_MAX];
    SafeSums sums;
    TRY(ckpt_join(path, sizeof path, folder, ckpt_file_name[kind]));
    SafeWriter *out = safetensors_write_begin(path, w->spec[kind], w->n_spec[kind], NULL, 0);
    int         rc  = out ? 0 : -1;
    for (int i = 0, at = 0; i < w->n_item && rc == 0; i++) {
        if ((int)w->item[i].file == kind) rc = write_item(w, out, i, &w->sum[kind][at++].hash);
    }
    if (rc == 0) rc = safetensors_write_publish(&out, &sums);
    safetensors_write_discard(&out);
    if (rc < 0) return -1;
    w->file_hash[kind]     = sums.file_hash;
    w->manifest.file[kind] = (CkptFile){ sums.file_bytes, sums.header_hash, w->sum[kind], w->n_spec[kind] };
    return 0;
}

static int write_small(const char *path, const char *text, size_t n)
{
    FILE *f  = file_create_tmp(path);
    int   rc = f ? file_write(f, text, n) : -1;
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

/* Room for state.json: a byte of text takes at most 6 in JSON. */
static size_t state_room(const CkptManifest *m)
{
    size_t room = 16384 + 64 * (size_t)m->state.n_skip + (size_t)m->n_key * (6 * 2 * RECIPE_STR + 512);
    for (int k = 0; k < CKPT_FILES; k++) room += (size_t)m->file[k].n_tensor * (6 * (PARAM_NAME + 8) + 64);
    return room;
}

static int write_state(CkptWriter *w, const char *folder, uint64_t *hash, int64_t *size_bytes)
{
    char   path[PATH_MAX];
    size_t room = state_room(&w->manifest);
    TRY(ckpt_join(path, sizeof path, folder, ckpt_state_name));
    char *text = mem_alloc(room);
    if (!text) return err_sys("%s: memory for %zu bytes", path, room);
    JsonOut o;
    json_out_init_buf(&o, text, room);
    ckpt_state_write(&o, &w->manifest);
    int rc      = json_out_end(&o);
    *hash       = XXH64(text, o.len, 0);
    *size_bytes = (int64_t)o.len;
    if (rc == 0) rc = write_small(path, text, o.len);
    free(text);
    return rc;
}

static int write_done(CkptWriter *w, const char *folder, uint64_t state_hash, int64_t *size_bytes)
{
    char path[PATH_MAX], text[512] = "";
    TRY(ckpt_join(path, sizeof path, folder, ckpt_done_name));
    for (int k = 0; k < CKPT_FILES; k++) {
        ckpt_done_line(text + strlen(text), sizeof text - strlen(text), w->file_hash[k], ckpt_file_name[k]);
    }
    ckpt_done_line(text + strlen(text), sizeof text - strlen(text), state_hash, ckpt_state_name);
    *size_bytes = (int64_t)strlen(text);
    return write_small(path, text, strlen(text));
}

static int check_size(const char *folder, const char *name, int64_t size_bytes)
{
    char        path[PATH_MAX];
    struct stat st;
    TRY(ckpt_join(path, sizeof path, folder, name));
    if (stat(path, &st) != 0) return err_sys("%s", path);
    if (st.st_size == size_bytes) return 0;
    return err_set("%s: %lld bytes on disk, %lld were written", path, (long long)st.st_size,
                   (long long)size_bytes);
}

/* ---- One save ------------------------------------------------------------------------------------------ */

static int write_folder(CkptWriter *w, const char *tmp, const char *path)
{
    uint64_t hash        = 0;
    int64_t  state_bytes = 0, done_bytes = 0;
    TRY(folder_remove(tmp));
    if (mkdir(tmp, 0777) != 0) return err_sys("%s", tmp);
    for (int k = 0; k < CKPT_FILES; k++) TRY(write_tensors(w, tmp, k));
    TRY(write_state(w, tmp, &hash, &state_bytes));
    TRY(write_done(w, tmp, hash, &done_bytes));
    TRY(folder_publish(tmp, path));
    for (int k = 0; k < CKPT_FILES; k++)
        TRY(check_size(path, ckpt_file_name[k], w->manifest.file[k].size_bytes));
    TRY(check_size(path, ckpt_state_name, state_bytes));
    return check_size(path, ckpt_done_name, done_bytes);
}

static int save(CkptWriter *w)
{
    char    tmp[PATH_MAX], path[PATH_MAX], name[64];
    int64_t step = w->manifest.state.step;
    snprintf(name, sizeof name, "%sstep-%08lld-%ld", ckpt_tmp_prefix, (long long)step, (long)getpid());
    TRY(ckpt_join(tmp, sizeof tmp, w->dir, name));
    TRY(ckpt_path(w->dir, step, path, sizeof path));
    if (write_folder(w, tmp, path) < 0) {
        folder_remove(tmp); /* the first cause is the one reported */
        return -1;
    }
    return 0;
}

/* The whole of a save, with its result left in the writer. */
static void save_body(void *arg)
{
    CkptWriter *w       = (CkptWriter *)arg;
    double      begin_s = clock_now_s();
    long long   step    = (long long)w->manifest.state.step;
    err_clear();
    w->not_finite = 0;
    if (save(w) < 0) {
        w->result = w->not_finite ? CKPT_NOT_FINITE : -1;
        snprintf(w->message, sizeof w->message, "checkpoint of step %lld failed: %s", step, err_get());
    } else {
        char   size[32];
        double bytes =
            (double)(w->manifest.file[CKPT_MODEL].size_bytes + w->manifest.file[CKPT_OPTIM].size_bytes);
        w->result = 1;
        snprintf(w->message, sizeof w->message,
                 "checkpoint of step %lld: %s in %.1f s, training waited %.2f s", step,
                 str_bytes(size, sizeof size, bytes), clock_now_s() - begin_s,
                 w->has_snapshot ? w->snapshot_s : clock_now_s() - begin_s);
        if (w->is_best && ckpt_set_best(w->dir, step) < 0) {
            str_append(w->message, sizeof w->message, "; it is the best one, but cannot be named so: %s",
                       err_get());
            err_clear();
        }
        /* Sweeping: a removal that failed earlier must not fill the disk of a run of weeks. */
        ckpt_known_set(&w->known, step, 1);
        if (ckpt_prune(w->dir, step, w->keep, w->keep_every, &w->known) < 0 || ckpt_sweep(w->dir) < 0) {
            str_append(w->message, sizeof w->message, "; an old one could not be removed: %s", err_get());
        }
    }
    err_clear();
    atomic_store(&w->finished, 1);
}

static void describe_run(CkptWriter *w, const Job *j, const CkptState *s)
{
    CkptManifest *m = &w->manifest;
    m->state        = *s;
    m->n_frozen     = 0;
    for (int k = 0; k < j->n_table; k++) {
        const ParamTable *t = j->table[k];
        if (t->origin[0]) m->frozen[m->n_frozen++] = (CkptFrozen){ t->prefix, t->origin, t->origin_hash };
    }
    m->state.own_bytes = (int64_t)j->task->own_state_bytes;
    CHECK(j->task->own_state_bytes <= sizeof m->state.own, "raise CKPT_OWN");
    if (m->state.own_bytes) memcpy(m->state.own, j->own_state, j->task->own_state_bytes);
    m->key   = w->key;
    m->n_key = 0;
    for (int i = 0; i < schema_rows(&j->recipe); i++) {
        const SchemaRow *row  = schema_row(&j->recipe, i);
        char            *text = w->text[m->n_key];
        if (!schema_applies(&j->recipe, row)) continue;
        schema_get(row, &j->recipe, text, sizeof w->text[0]);
        if (str_is_printable(text)) m->key[m->n_key++] = (CkptKey){ row->name, text };
    }
}

void ckpt_mark_best(CkptWriter *w) { w->next_is_best = 1; }

int ckpt_begin(CkptWriter *w, Job *j, const CkptState *s)
{
    double begin_s = clock_now_s();
    CHECK(j == w->job, "the writer was made for another job");
    CHECK(s->n_skip >= 0 && s->n_skip <= CKPT_MAX_SKIP && s->step >= 0, "step %lld", (long long)s->step);
    char before[sizeof w->message];
    if (ckpt_wait(w, before, sizeof before) < 0) log_error("%s", before);
    w->is_best      = w->next_is_best;
    w->next_is_best = 0;
    describe_run(w, j, s);
    TRY(job_read_state(j, &w->manifest.state.device));
    if (w->has_snapshot) TRY(snapshot_fill(w, j));
    w->source     = j;
    w->snapshot_s = clock_now_s() - begin_s;
    w->active     = 1;
    atomic_store(&w->finished, 0);
    if (w->has_snapshot && thread_start(&w->thread, "checkpoint", save_body, w) == 0) return 0;
    err_clear(); /* no thread: the work is done here */
    save_body(w);
    return 0;
}

int ckpt_poll(CkptWriter *w, char *msg, size_t n)
{
    if (!w->active || !atomic_load(&w->finished)) return 0;
    thread_join(&w->thread);
    w->active = 0;
    str_copy(msg, n, w->message);
    return w->result;
}

int ckpt_wait(CkptWriter *w, char *msg, size_t n)
{
    thread_join(&w->thread);
    return ckpt_poll(w, msg, n);
}

/* ---- The writer ---------------------------------------------------------------------------------------- */

int ckpt_writer_create(CkptWriter **out, const Job *j, const char *dir)
{
    CHECK(j->dev && job_trains(j), "only a bound job that trains has checkpoints");
    CkptWriter *w = mem_zeroed(1, sizeof *w);
    if (!w) return err_sys("memory for writing checkpoints");
    arena_init(&w->arena);
    w->job        = j;
    w->dev        = j->dev;
    w->keep       = j->recipe.checkpoint.keep;
    w->keep_every = j->recipe.checkpoint.keep_every;
    list_stored(w, j);
    int rc = str_copy(w->dir, sizeof w->dir, dir) < 0 ? err_set("%s: path too long", dir) : 0;
    if (rc == 0) rc = file_make_folders(dir);
    if (rc == 0) rc = ckpt_check_names(dir);
    if (rc == 0) rc = ckpt_sweep(dir);
    if (rc == 0) w->stage = (char *)host_take(w, CKPT_CHUNK_BYTES);
    if (rc == 0 && !w->stage) rc = err_set("host memory for %d bytes to write checkpoints", CKPT_CHUNK_BYTES);
    if (rc == 0 && thread_start(&w->thread, "snapshot", snapshot_alloc, w) < 0) {
        err_clear(); /* no thread: the work is done here */
        snapshot_alloc(w);
    }
    *out = w;
    if (rc < 0) {
        ckpt_writer_destroy(w);
        *out = NULL;
    }
    return rc;
}

void ckpt_writer_destroy(CkptWriter *w)
{
    if (!w) return;
    thread_join(&w->thread);
    snapshot_free(w);
    host_give(w, w->stage);
    arena_deinit(&w->arena);
    free(w);
}

/* ---- Weights alone ------------------------------------------------------------------------------------- */

static int take_dtypes(CkptWriter *w)
{
    for (int i = 0; i < w->n_item; i++) {
        int dtype = w->from->dtype(w->from->ctx, w->item[i].spec.name);
        if (dtype < 0) return -1;
        w->item[i].spec.dtype = w->spec[CKPT_MODEL][i].dtype = (DType)dtype;
    }
    return 0;
}

int ckpt_write_weights(const Job *j, const char *dir, const CkptState *s, const CkptSource *src)
{
    CHECK(!job_trains(j) && s->step == 0, "only weights alone come from elsewhere");
    CkptWriter *w = mem_zeroed(1, sizeof *w);
    if (!w) return err_sys("memory for writing checkpoints");
    arena_init(&w->arena);
    w->job  = j;
    w->from = src;
    list_stored(w, j);
    describe_run(w, j, s);
    w->stage = mem_alloc(CKPT_CHUNK_BYTES);
    int rc   = w->stage ? 0 : err_sys("memory for writing checkpoints");
    if (rc == 0 && str_copy(w->dir, sizeof w->dir, dir) < 0) rc = err_set("%s: path too long", dir);
    if (rc == 0) rc = file_make_folders(dir);
    if (rc == 0) rc = take_dtypes(w);
    if (rc == 0) rc = save(w);
    free(w->stage);
    arena_deinit(&w->arena);
    free(w);
    return rc;
}
