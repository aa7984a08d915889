#include "file/album.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Index and texts grow in memory until the file is published. */
typedef struct {
    char  *data;
    size_t n, cap;
} Grow;

struct AlbumWriter {
    char    *path;
    FILE    *file;
    Grow     entries, names;
    uint64_t n_sample, offset;
};

static int grow_add(Grow *g, const void *data, size_t n)
{
    if (g->n + n > g->cap) {
        size_t cap  = (g->n + n) * 2 + 4096;
        char  *more = mem_alloc(cap);
        if (!more) return err_sys("%zu bytes of index", cap);
        if (g->n > 0) memcpy(more, g->data, g->n);
        free(g->data);
        g->data = more;
        g->cap  = cap;
    }
    memcpy(g->data + g->n, data, n);
    g->n += n;
    return 0;
}

static void free_writer(AlbumWriter **pw)
{
    AlbumWriter *w = *pw;
    free(w->path);
    free(w->entries.data);
    free(w->names.data);
    free(w);
    *pw = NULL;
}

AlbumWriter *album_write_begin(const char *path)
{
    static const char zero[ALBUM_HEADER_BYTES];
    AlbumWriter      *w = mem_zeroed(1, sizeof *w);
    if (!w) {
        err_sys("%s", path);
        return NULL;
    }
    w->path   = strdup(path);
    w->offset = ALBUM_HEADER_BYTES;
    w->file   = w->path ? file_create_tmp(path) : NULL;
    if (!w->file || file_write(w->file, zero, sizeof zero) < 0) album_write_discard(&w);
    return w;
}

static void put32(uint8_t *p, uint32_t v) { memcpy(p, &v, sizeof v); }
static void put64(uint8_t *p, uint64_t v) { memcpy(p, &v, sizeof v); }

int album_write_add(AlbumWriter *w, const AlbumEntry *e, const void *record)
{
    uint8_t b[ALBUM_ENTRY_BYTES];
    CHECK(e->size_bytes >= 0 && e->size_bytes <= ALBUM_RECORD_MOST, "a record of %lld bytes",
          (long long)e->size_bytes);
    put64(b, w->offset);
    put64(b + 8, (uint64_t)e->size_bytes);
    put64(b + 16, XXH64(record, (size_t)e->size_bytes, 0));
    put32(b + 24, (uint32_t)e->label);
    put32(b + 28, (uint32_t)w->names.n); /* the class names' length is added at the end */
    put32(b + 32, (uint32_t)e->frames);
    put32(b + 36, (uint32_t)e->codec);
    put32(b + 40, (uint32_t)e->w);
    put32(b + 44, (uint32_t)e->h);
    if (w->names.n + strlen(e->name) > UINT32_MAX / 2) return err_set("%s: names of over 2 GiB", w->path);
    TRY(file_write(w->file, record, (size_t)e->size_bytes));
    TRY(grow_add(&w->entries, b, sizeof b));
    TRY(grow_add(&w->names, e->name, strlen(e->name) + 1));
    w->offset += (uint64_t)e->size_bytes;
    w->n_sample++;
    return 0;
}

int64_t album_write_bytes(const AlbumWriter *w) { return (int64_t)(w->offset + w->entries.n + w->names.n); }

/* Moves the names behind the class names. */
static int join_texts(AlbumWriter *w, Grow *text, const char *const *class_name, int n_class)
{
    for (int c = 0; c < n_class; c++) TRY(grow_add(text, class_name[c], strlen(class_name[c]) + 1));
    for (uint64_t i = 0; i < w->n_sample; i++) {
        uint8_t *at = (uint8_t *)w->entries.data + i * ALBUM_ENTRY_BYTES + 28;
        uint32_t v;
        memcpy(&v, at, sizeof v);
        put32(at, v + (uint32_t)text->n);
    }
    if (w->names.n > 0) TRY(grow_add(text, w->names.data, w->names.n));
    return text->n > 0 ? 0 : grow_add(text, "", 1);
}

static int write_index(AlbumWriter *w, const char *const *class_name, int n_class)
{
    uint8_t h[ALBUM_HEADER_BYTES] = "BRIMALB1";
    Grow    index                 = w->entries;
    Grow    text                  = { 0 };
    int     rc                    = join_texts(w, &text, class_name, n_class);
    if (rc == 0) rc = grow_add(&index, text.data, text.n);
    w->entries = index;
    free(text.data);
    TRY(rc);
    put32(h + 8, 1);
    put32(h + 12, (uint32_t)n_class);
    put64(h + 16, w->n_sample);
    put64(h + 24, w->offset);
    put64(h + 32, index.n);
    put64(h + 40, XXH64(index.data, index.n, 0));
    put64(h + 56, XXH64(h, ALBUM_HEADER_BYTES - 8, 0));
    TRY(file_write(w->file, index.data, index.n));
    if (fseek(w->file, 0, SEEK_SET) != 0) return err_sys("%s", w->path);
    return file_write(w->file, h, sizeof h);
}

int album_write_publish(AlbumWriter **pw, const char *const *class_name, int n_class)
{
    AlbumWriter *w  = *pw;
    int          rc = write_index(w, class_name, n_class);
    if (rc == 0) rc = file_publish(&w->file, w->path);
    album_write_discard(pw);
    return rc;
}

void album_write_discard(AlbumWriter **pw)
{
    if (!*pw) return;
    file_discard(&(*pw)->file);
    free_writer(pw);
}
