#include "dev/cuda/cuda_tune.h"

#include "base/err.h"
#include "base/file.h"
#include "dev/cuda/cuda_dev.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { F_KEY, F_GPU, F_VERSION, F_VALUE, F_NOTE, F_COUNT };
enum { MAX_FILE_BYTES = 16 << 20 };

static const char head_line[] =
    "# Brim tune cache: key | GPU | library | choice | measured. Safe to delete.\n";

typedef struct {
    char *field[F_COUNT]; /* heap */
    int   fresh;          /* put since the file was last written */
} Entry;

typedef struct {
    Entry *entry;
    int    n, cap;
} Table;

struct CudaTune {
    char *path; /* NULL: nothing is kept */
    char *gpu;
    char *version;
    Table table;
    int   fresh;
};

static char *copy_text(const char *s, size_t n)
{
    char *p = strndup(s, n);
    CHECK(p, "out of host memory");
    return p;
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static void table_deinit(Table *t)
{
    for (int i = 0; i < t->n; i++) {
        for (int f = 0; f < F_COUNT; f++) free(t->entry[i].field[f]);
    }
    free(t->entry);
    *t = (Table){ 0 };
}

static int entry_is(const Entry *e, const char *key, const char *gpu, const char *version)
{
    return strcmp(e->field[F_KEY], key) == 0 && strcmp(e->field[F_GPU], gpu) == 0 &&
           strcmp(e->field[F_VERSION], version) == 0;
}

/* The entry with the same key, GPU and version, or a new one. */
static Entry *table_slot(Table *t, const char *key, const char *gpu, const char *version)
{
    for (int i = 0; i < t->n; i++) {
        if (entry_is(&t->entry[i], key, gpu, version)) return &t->entry[i];
    }
    if (t->n == t->cap) {
        t->cap   = t->cap ? 2 * t->cap : 64;
        t->entry = realloc(t->entry, (size_t)t->cap * sizeof *t->entry);
        CHECK(t->entry, "out of host memory");
    }
    Entry *e            = &t->entry[t->n++];
    *e                  = (Entry){ 0 };
    e->field[F_KEY]     = copy_text(key, strlen(key));
    e->field[F_GPU]     = copy_text(gpu, strlen(gpu));
    e->field[F_VERSION] = copy_text(version, strlen(version));
    return e;
}

static void table_put(Table *t, char *const field[F_COUNT], int fresh)
{
    Entry *e = table_slot(t, field[F_KEY], field[F_GPU], field[F_VERSION]);
    for (int f = F_VALUE; f < F_COUNT; f++) {
        free(e->field[f]);
        e->field[f] = copy_text(field[f], strlen(field[f]));
    }
    e->fresh = fresh;
}

/* ---- the file ------------------------------------------------------------------------------------------ */

/* Splits line at " | " in place; 0 if it has exactly F_COUNT parts. */
static int split_line(char *line, char *field[F_COUNT])
{
    int n = 0;
    for (char *p = line; p && n < F_COUNT; n++) {
        char *bar = strstr(p, " | ");
        field[n]  = p;
        if (bar) *bar = 0;
        p = bar ? bar + 3 : NULL;
        if (p && n == F_COUNT - 1) return -1;
    }
    if (n != F_COUNT) return -1;
    for (int f = 0; f <= F_VALUE; f++) {
        if (!*field[f]) return -1;
    }
    return 0;
}

/* The whole file as text with a final NUL; NULL when it is absent or cannot be used (then with a warning). */
static char *read_text(const char *path)
{
    if (file_kind(path) == FILE_OTHER) { /* opening a pipe would hang */
        cuda_note("tune cache %s: not a plain file; ignored", path);
        return NULL;
    }
    FILE *f = fopen(path, "rb");
    if (!f) {
        if (errno != ENOENT) cuda_note("tune cache %s: %s; ignored", path, strerror(errno));
        return NULL;
    }
    char *text = malloc(MAX_FILE_BYTES + 1);
    CHECK(text, "out of host memory");
    size_t n   = fread(text, 1, MAX_FILE_BYTES, f);
    int    bad = ferror(f) || n == MAX_FILE_BYTES || memchr(text, 0, n) != NULL;
    fclose(f);
    if (bad) {
        cuda_note("tune cache %s: not a tune cache; ignored", path);
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

static void table_read(Table *t, const char *path)
{
    char *text = read_text(path);
    int   bad  = 0;
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        char *field[F_COUNT];
        if (end) *end = 0;
        if (*line && *line != '#') {
            /* A line without its end was cut off while being written. */
            if (!end || split_line(line, field) < 0) {
                bad++;
            } else {
                table_put(t, field, 0);
            }
        }
        line = end ? end + 1 : NULL;
    }
    if (bad) cuda_note("tune cache %s: %d lines not understood; ignored", path, bad);
    free(text);
}

static int table_write(const Table *t, FILE *f)
{
    if (fputs(head_line, f) < 0) return -1;
    for (int i = 0; i < t->n; i++) {
        char *const *p = t->entry[i].field;
        for (int k = 0; k < F_COUNT; k++) {
            if (fprintf(f, "%s%s", p[k], k + 1 < F_COUNT ? " | " : "\n") < 0) return -1;
        }
    }
    return fflush(f) != 0 || fsync(fileno(f)) != 0 ? -1 : 0;
}

/* Makes the folder that path is in. A cache that cannot be kept is no error of the run. So a failure leaves
 * errno and no message of its own; a message that was pending stays. */
static int folder_make(const char *path)
{
    char        folder[4096];
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path) return 0;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    int pending = err_kind() != ERR_NONE, rc = file_make_folders(folder);
    if (rc < 0 && !pending) err_clear();
    return rc;
}

static int table_publish(const Table *t, const char *path)
{
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid()) >= (int)sizeof tmp) return -1;
    if (folder_make(path) < 0) return -1;
    FILE *f = fopen(tmp, "wb");
    if (!f) return -1;
    int rc = table_write(t, f);
    if (fclose(f) != 0) rc = -1;
    if (rc == 0 && rename(tmp, path) != 0) rc = -1;
    if (rc < 0) unlink(tmp);
    return rc;
}

/* ---- interface ----------------------------------------------------------------------------------------- */

CudaTune *cuda_tune_open(const char *path, const char *gpu, const char *version)
{
    CudaTune *t = calloc(1, sizeof *t);
    CHECK(t, "out of host memory");
    t->gpu     = copy_text(gpu, strlen(gpu));
    t->version = copy_text(version, strlen(version));
    if (path && *path) {
        t->path = copy_text(path, strlen(path));
        table_read(&t->table, path);
    }
    return t;
}

void cuda_tune_close(CudaTune *t)
{
    if (!t) return;
    cuda_tune_save(t);
    table_deinit(&t->table);
    free(t->path);
    free(t->gpu);
    free(t->version);
    free(t);
}

const char *cuda_tune_find(const CudaTune *t, const char *key)
{
    for (int i = 0; i < t->table.n; i++) {
        if (entry_is(&t->table.entry[i], key, t->gpu, t->version)) return t->table.entry[i].field[F_VALUE];
    }
    return NULL;
}

void cuda_tune_put(CudaTune *t, const char *key, const char *value, const char *note)
{
    char *field[F_COUNT] = { (char *)key, t->gpu, t->version, (char *)value, (char *)note };
    table_put(&t->table, field, 1);
    t->fresh = 1;
}

void cuda_tune_save(CudaTune *t)
{
    if (!t->fresh) return;
    t->fresh = 0;
    if (!t->path) return;
    Table merged = { 0 };
    table_read(&merged, t->path);
    for (int i = 0; i < t->table.n; i++) {
        if (t->table.entry[i].fresh) table_put(&merged, t->table.entry[i].field, 0);
        t->table.entry[i].fresh = 0;
    }
    if (table_publish(&merged, t->path) < 0) {
        cuda_note("tune cache %s: cannot be written: %s", t->path, strerror(errno));
    }
    table_deinit(&merged);
}
