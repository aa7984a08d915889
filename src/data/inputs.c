#include "data/inputs.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "file/parquet.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { MOST_DEPTH = 64, SNIFF_BYTES = 4096 };

/* A list that grows. */
typedef struct {
    Inputs                *in;
    const DocumentsConfig *cfg;
    XXH64_state_t          hash;
    const char            *first_json; /* of n_json inputs whose name says JSON, and which are read as text */
    int                    n_json;
} Walk;

static int add_input(Walk *w, const char *path, const struct stat *st)
{
    Inputs *in = w->in;
    if (in->n == in->cap) {
        in->cap     = in->cap * 2 + 64;
        Input *more = realloc(in->item, sizeof *more * (size_t)in->cap);
        if (!more) return err_sys("memory for a list of files");
        in->item = more;
    }
    int64_t size      = st && S_ISREG(st->st_mode) ? (int64_t)st->st_size : -1;
    in->item[in->n++] = (Input){ arena_strdup(&in->arena, path), size };
    if (size < 0) in->unknown = 1;
    in->size_bytes += MAX(size, 0);
    if (w->cfg->format == DOCUMENTS_AUTO && str_ends_with(path, ".json") && w->n_json++ == 0)
        w->first_json = in->item[in->n - 1].path;
    struct stat none = { 0 };
    if (!st) st = &none;
    int64_t     fact[5] = { size, (int64_t)st->st_dev, (int64_t)st->st_ino, (int64_t)st->st_mtim.tv_sec,
                            (int64_t)st->st_mtim.tv_nsec };
    const char *name    = file_name_of(path); /* it may say what the file is */
    XXH64_update(&w->hash, name, strlen(name) + 1);
    XXH64_update(&w->hash, fact, sizeof fact);
    return 0;
}

static int is_packed(const unsigned char *p, ssize_t n)
{
    static const unsigned char gzip[] = { 0x1f, 0x8b }, zstd[] = { 0x28, 0xb5, 0x2f, 0xfd };
    return (n >= 2 && memcmp(p, gzip, 2) == 0) || (n >= 4 && memcmp(p, zstd, 4) == 0);
}

/* The first bytes of a file, as many as there are up to n; 0: it cannot be opened. */
static ssize_t read_head(const char *path, unsigned char *p, size_t n)
{
    int     fd  = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = fd < 0 ? 0 : read(fd, p, n);
    if (fd >= 0) close(fd);
    return got;
}

int inputs_is_packed(const char *path)
{
    unsigned char p[4];
    return is_packed(p, read_head(path, p, sizeof p));
}

/* 1: a file that is taken for no text. */
static int looks_binary(const char *path)
{
    unsigned char p[SNIFF_BYTES];
    ssize_t       n = read_head(path, p, sizeof p);
    return n > 0 && !is_packed(p, n) && memchr(p, 0, (size_t)n);
}

int inputs_is_parquet(const DocumentsConfig *cfg, const char *path)
{
    return cfg->format == DOCUMENTS_AUTO && parquet_is(path);
}

/* A folder that is being read, and those it lies in. */
typedef struct Folder Folder;
struct Folder {
    const Folder *above; /* NULL: the outermost */
    const char   *path;
    dev_t         dev;
    ino_t         ino;
    int           depth;
};

/* 1: a link back to f or to a folder that f lies in. Two such links would make 2^40 paths. */
static int is_loop(const Folder *f, const struct stat *st)
{
    for (; f; f = f->above) {
        if (f->dev == st->st_dev && f->ino == st->st_ino) return 1;
    }
    return 0;
}

static int add_folder(Walk *w, const Folder *f);

/* st: of path, which lies in f. */
static int add_entry(Walk *w, const Folder *f, const char *path, const struct stat *st)
{
    const char *why = NULL;
    char        zero[80];
    if (S_ISDIR(st->st_mode)) {
        if (!is_loop(f, st)) return add_folder(w, &(Folder){ f, path, st->st_dev, st->st_ino, f->depth + 1 });
        why = "a link to a folder that it lies in";
    } else if (!S_ISREG(st->st_mode)) {
        return 0;
    } else if (inputs_is_parquet(w->cfg, path)) {
        if (file_name_of(path)[0] != '_') return add_input(w, path, st);
        why = "a name with _ in front says that it describes other Parquet files";
    } else if (looks_binary(path)) {
        snprintf(zero, sizeof zero, "not text, it has a zero byte in its first %d bytes", SNIFF_BYTES);
        why = zero;
    } else {
        return add_input(w, path, st);
    }
    if (!w->cfg->quiet) log_warn("%s: left out: %s", path, why);
    return 0;
}

static int add_folder(Walk *w, const Folder *f)
{
    char      **name;
    struct stat st;
    if (f->depth > MOST_DEPTH) return err_user("%s: folders are nested deeper than %d", f->path, MOST_DEPTH);
    int n = file_list(&w->in->arena, f->path, "", &name);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        if (name[i][0] == '.') continue;
        const char *path = arena_printf(&w->in->arena, "%s/%s", f->path, name[i]);
        if (stat(path, &st) == 0) TRY(add_entry(w, f, path, &st)); /* else a link that leads nowhere */
    }
    return 0;
}

static int add_path(Walk *w, const char *path)
{
    struct stat st;
    if (strcmp(path, "-") == 0) return add_input(w, path, NULL);
    if (stat(path, &st) != 0) return err_user("%s: no such file or folder", path);
    if (S_ISREG(st.st_mode) && w->cfg->format == DOCUMENTS_AUTO && !inputs_is_parquet(w->cfg, path) &&
        looks_binary(path))
        return err_user("%s: not text: it has a zero byte in its first %d bytes", path, SNIFF_BYTES);
    if (!S_ISDIR(st.st_mode)) return add_input(w, path, &st);
    int before = w->in->n;
    TRY(add_folder(w, &(Folder){ NULL, path, st.st_dev, st.st_ino, 0 }));
    return w->in->n > before ? 0 : err_user("%s: there is no text in this folder", path);
}

/* One line, however many there are. */
static void warn_json(const Walk *w)
{
    char more[48] = "";
    if (w->n_json == 0 || w->cfg->quiet) return;
    if (w->n_json > 1) snprintf(more, sizeof more, " and %d other *.json", w->n_json - 1);
    log_warn("%s%s: read as plain text: JSON lines have the name *.jsonl", w->first_json, more);
}

int inputs_list(Inputs *in, const DocumentsConfig *cfg)
{
    Walk w = { .in = in, .cfg = cfg };
    XXH64_reset(&w.hash, 0);
    for (int i = 0; i < cfg->n_path; i++) TRY(add_path(&w, cfg->path[i]));
    in->fingerprint = XXH64_digest(&w.hash);
    warn_json(&w);
    return 0;
}

void inputs_deinit(Inputs *in)
{
    free(in->item);
    arena_deinit(&in->arena);
    memset(in, 0, sizeof *in);
}
