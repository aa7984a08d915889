/* Sources over files and over Philox. See source.h for the contract.
 *
 * 1. `first` of a SourceFile counts from the first token of all files; a Source's own window [first, first+len) is
 *    what its user sees as 0..len-1. */
#include "data/source.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/rng.h"
#include "data/shard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Shards beyond this many are opened for each read, so that a folder of thousands stays within the usual limit of 1024
 * descriptors. */
enum { MAX_OPEN = 512 };

enum { CHUNK_BYTES = 16384 };

/* Philox sites of the two random sources; recorded ops count theirs from 0. */
enum { SITE_TRAIN = 0x7f000001, SITE_VAL = 0x7f000002 };

typedef struct {
    const char *path;
    int         fd; /* -1: opened for each read */
    int         token_bytes;
    int         shard;          /* 0: plain bytes */
    int64_t     payload_offset; /* bytes */
    int64_t     first, n_token;
    int64_t     limit; /* ids are below it */
} SourceFile;

struct Source {
    Arena       arena;
    DataKind    kind;
    const char *key;  /* "data.train" or "data.val" */
    const char *name; /* key and path */
    int64_t     vocab;
    int64_t     first, len;
    SourceFile *file;
    int         n_file;
    uint64_t    seed; /* random */
    uint32_t    site;
};

static int64_t file_end(const SourceFile *f) { return f->first + f->n_token; }

static int open_text(Source *s, const char *path)
{
    struct stat st;
    if (s->vocab < 256) {
        return err_user("model.vocab: %lld is too small: text is read as bytes and needs 256", (long long)s->vocab);
    }
    SourceFile *f = s->file = ARENA_NEW(&s->arena, SourceFile);
    *f = (SourceFile){ .path = arena_strdup(&s->arena, path), .token_bytes = 1, .limit = 256 };
    f->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (f->fd < 0) return err_user("%s: %s: %s", s->key, path, strerror(errno));
    s->n_file = 1;
    if (fstat(f->fd, &st) != 0) return err_sys("%s: stat", path);
    if (!S_ISREG(st.st_mode)) return err_user("%s: %s: not a regular file", s->key, path);
    f->n_token = st.st_size;
    return 0;
}

static int open_shard(Source *s, SourceFile *f, const char *path, int64_t first)
{
    ShardHeader h;
    int         fd = shard_open(&h, path);
    if (fd < 0) return -1;
    /* llm.c's shards do not state their vocabulary; their ids are checked as they are read. */
    if (h.kind == SHARD_BRIM && h.vocab > s->vocab) {
        close(fd);
        return err_user("%s: made for a vocabulary of %lld, model.vocab is %lld", path, (long long)h.vocab,
                        (long long)s->vocab);
    }
    *f = (SourceFile){ .path           = arena_strdup(&s->arena, path),
                       .fd             = fd,
                       .token_bytes    = h.token_bytes,
                       .shard          = 1,
                       .payload_offset = h.payload_offset,
                       .first          = first,
                       .n_token        = h.n_token,
                       .limit          = MIN(h.vocab, s->vocab) };
    if (s->n_file++ >= MAX_OPEN) {
        close(fd);
        f->fd = -1;
    }
    return 0;
}

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* The *.bin files of a folder, sorted. Returns their number; negative after err_user()/err_set(). */
static int list_shards(Source *s, const char *folder, char ***out)
{
    int    n = 0, cap = 0;
    char **name = NULL;
    DIR   *dir  = opendir(folder);
    if (!dir) return err_user("%s: %s: %s", s->key, folder, strerror(errno));
    for (;;) {
        errno            = 0;
        struct dirent *e = readdir(dir);
        if (!e) break;
        size_t len = strlen(e->d_name);
        if (len <= 4 || e->d_name[0] == '.' || strcmp(e->d_name + len - 4, ".bin") != 0) continue;
        if (n == cap) {
            cap         = cap ? 2 * cap : 64;
            char **more = ARENA_ARRAY(&s->arena, char *, cap);
            if (n > 0) memcpy(more, name, sizeof *name * (size_t)n);
            name = more;
        }
        name[n++] = arena_printf(&s->arena, "%s/%s", folder, e->d_name);
    }
    int rc = errno == 0 ? n : err_sys("%s: reading the folder", folder);
    closedir(dir);
    if (rc == 0) return err_user("%s: %s: no *.bin files in this folder", s->key, folder);
    if (rc > 0) qsort(name, (size_t)n, sizeof *name, compare_names);
    *out = name;
    return rc;
}

static int open_tokens(Source *s, const char *path)
{
    struct stat st;
    char       *single = arena_strdup(&s->arena, path), **name = &single;
    int         n      = 1;
    if (stat(path, &st) != 0) return err_user("%s: %s: %s", s->key, path, strerror(errno));
    if (S_ISDIR(st.st_mode)) n = list_shards(s, path, &name);
    if (n < 0) return -1;
    s->file       = ARENA_ARRAY(&s->arena, SourceFile, n);
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        TRY(open_shard(s, &s->file[i], name[i], total));
        total += s->file[i].n_token;
    }
    return 0;
}

/* Narrows the source to the training or the validation part of all its files. */
static int split(Source *s, const RecipeData *d, int validation)
{
    int64_t total = file_end(&s->file[s->n_file - 1]);
    int64_t n_val = d->val[0] == '\0' ? (int64_t)((double)total * d->val_fraction) : 0;
    s->len        = total;
    if (d->val[0] == '\0') {
        s->first = validation ? total - n_val : 0;
        s->len   = validation ? n_val : total - n_val;
    }
    if (total == 0) return err_user("%s: is empty", s->name);
    if (s->len > 0) return 0;
    return err_user("data.val_fraction: %g of the %lld tokens of %s leaves none for %s", d->val_fraction,
                    (long long)total, d->train, validation ? "validation" : "training");
}

static int open_files(Source *s, const RecipeData *d, int validation)
{
    const char *path = validation && d->val[0] != '\0' ? d->val : d->train;
    s->key           = path == d->val ? "data.val" : "data.train";
    if (path[0] == '\0') return err_user("%s: no file is named", s->key);
    s->name = arena_printf(&s->arena, "%s: %s", s->key, path);
    TRY(s->kind == DATA_TEXT ? open_text(s, path) : open_tokens(s, path));
    return split(s, d, validation);
}

int source_open(Source **out, const Recipe *r, int validation)
{
    Source *s = calloc(1, sizeof *s);
    CHECK(s, "out of memory");
    CHECK(r->model.vocab >= 1, "vocabulary of %lld", (long long)r->model.vocab);
    arena_init(&s->arena);
    s->kind  = r->data.kind;
    s->vocab = r->model.vocab;
    s->seed  = (uint64_t)r->seed;
    s->site  = validation ? SITE_VAL : SITE_TRAIN;
    s->key   = validation ? "data.val" : "data.train";
    s->name  = "data.kind: random";
    s->len   = SOURCE_RANDOM_LEN;
    if (s->kind != DATA_RANDOM && open_files(s, &r->data, validation) < 0) {
        source_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

void source_close(Source *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_file; i++) {
        if (s->file[i].fd >= 0) close(s->file[i].fd);
    }
    arena_deinit(&s->arena);
    free(s);
}

int64_t source_len(const Source *s) { return s->len; }

const char *source_name(const Source *s) { return s->name; }

/* Token i of a random source is word i mod 4 of Philox block i / 4, scaled to the vocabulary. */
static void read_random(const Source *s, int64_t first, int64_t n, int32_t *out)
{
    int64_t i = first, end = first + n;
    while (i < end) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t word[4];
        rng_philox(word, s->seed, s->site, block);
        for (int lane = (int)(i & 3); lane < 4 && i < end; lane++, i++) {
            *out++ = (int32_t)(((uint64_t)word[lane] * (uint64_t)s->vocab) >> 32);
        }
    }
}

/* Copies ids [at, at+n) of one file; at counts from its first token. */
static int read_file(const SourceFile *f, int fd, int64_t at, int64_t n, int32_t *out)
{
    unsigned char raw[CHUNK_BYTES];
    int64_t       chunk = CHUNK_BYTES / f->token_bytes;
    for (int64_t i = 0; i < n; i += chunk) {
        int64_t m = MIN(chunk, n - i);
        TRY(shard_read(fd, f->path, raw, (size_t)(m * f->token_bytes), f->payload_offset + (at + i) * f->token_bytes));
        int64_t bad = shard_decode(out + i, raw, m, f->token_bytes, f->limit);
        if (bad >= 0) {
            return err_user("%s: token %lld is %u, the vocabulary ends at %lld", f->path, (long long)(at + i + bad),
                            (uint32_t)out[i + bad], (long long)f->limit);
        }
    }
    return 0;
}

/* The same for a file that may not be open. It must still be as long as it was: its header was checked then. */
static int read_any_file(const SourceFile *f, int64_t at, int64_t n, int32_t *out)
{
    struct stat st;
    if (f->fd >= 0) return read_file(f, f->fd, at, n, out);
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_sys("%s: opening it again", f->path);
    int rc = -1;
    if (fstat(fd, &st) != 0) {
        err_sys("%s: stat", f->path);
    } else if (st.st_size != f->payload_offset + f->n_token * f->token_bytes) {
        err_set("%s: its size changed while it was in use", f->path);
    } else {
        rc = read_file(f, fd, at, n, out);
    }
    close(fd);
    return rc;
}

/* The last file that begins at or before token i of all files. */
static int find_file(const Source *s, int64_t i)
{
    int lo = 0, hi = s->n_file - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (s->file[mid].first <= i) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

int source_read(const Source *s, int64_t first, int64_t n, int32_t *out)
{
    CHECK(first >= 0 && n >= 0 && first <= s->len - n, "%s: tokens [%lld, +%lld) of %lld", s->name, (long long)first,
          (long long)n, (long long)s->len);
    if (s->kind == DATA_RANDOM) {
        read_random(s, first, n, out);
        return 0;
    }
    int64_t i = s->first + first, end = i + n;
    for (int k = find_file(s, i); i < end; k++) {
        const SourceFile *f = &s->file[k];
        int64_t           m = MIN(end, file_end(f)) - i;
        TRY(read_any_file(f, i - f->first, m, out));
        out += m;
        i += m;
    }
    return 0;
}

int source_verify(const Source *s)
{
    int32_t tok[4096];
    if (s->kind == DATA_RANDOM) return 0;
    for (int k = 0; k < s->n_file; k++) {
        if (s->file[k].shard) TRY(shard_verify(s->file[k].path));
    }
    for (int64_t i = 0; i < s->len; i += ARRAY_LEN(tok)) TRY(source_read(s, i, MIN(ARRAY_LEN(tok), s->len - i), tok));
    return 0;
}
