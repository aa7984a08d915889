#include "file/album.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "albums are read without swapping bytes");

#define INDEX_MOST (INT64_C(1) << 36)

/* The two structs are the bytes of the file. */
typedef struct {
    char     magic[8];
    uint32_t version, n_class;
    uint64_t n_sample, index_offset, index_bytes, index_hash, zero, check;
} Header;

typedef struct {
    uint64_t offset, size_bytes, hash;
    int32_t  label;
    uint32_t name, frames, codec, w, h; /* name: offset into the texts */
} Entry;

_Static_assert(sizeof(Header) == ALBUM_HEADER_BYTES && sizeof(Entry) == ALBUM_ENTRY_BYTES, "no padding");

struct Album {
    char        *path;
    int          fd;
    Header       head;
    uint8_t     *index;
    const Entry *entry;
    const char  *text;
    size_t       text_bytes;
    const char **class_name;
};

/* ---- Opening --------------------------------------------------------------------------------------- */

static int check_header(const char *path, const Header *h, int64_t file_bytes)
{
    if (memcmp(h->magic, "BRIMALB1", 8) != 0) return err_user("%s: not an album of images", path);
    if (h->check != XXH64(h, sizeof *h - 8, 0)) return err_user("%s: its header is damaged", path);
    if (h->version != 1) return err_user("%s: version %u of the format; this Brim reads 1", path, h->version);
    if (h->index_bytes > INDEX_MOST || h->index_offset < sizeof *h ||
        h->index_offset > (uint64_t)file_bytes || h->index_offset + h->index_bytes != (uint64_t)file_bytes)
        return err_user("%s: truncated, or has bytes behind its index", path);
    if (h->n_sample > h->index_bytes / sizeof(Entry) || h->n_class > ALBUM_CLASSES_MOST)
        return err_user("%s: its header is damaged: %llu samples of %u classes", path,
                        (unsigned long long)h->n_sample, h->n_class);
    return 0;
}

static int check_entry(const Album *a, int64_t i)
{
    const Entry *e   = &a->entry[i];
    int          raw = e->codec == ALBUM_GREY || e->codec == ALBUM_RGB;
    if (e->offset < sizeof(Header) || e->offset > a->head.index_offset || e->size_bytes > ALBUM_RECORD_MOST ||
        e->size_bytes > a->head.index_offset - e->offset)
        return err_user("%s: sample %lld lies outside the file", a->path, (long long)i);
    if (e->label < -1 || e->label >= (int64_t)a->head.n_class || e->name >= a->text_bytes)
        return err_user("%s: sample %lld has a bad label or name", a->path, (long long)i);
    uint64_t want = (uint64_t)e->w * e->h * e->codec * MAX(e->frames, 1u);
    if (e->w > 65535 || e->h > 65535 || e->frames > ALBUM_FRAMES_MOST || (!raw && e->codec != ALBUM_FILE) ||
        (raw && want != e->size_bytes))
        return err_user("%s: sample %lld has a bad size", a->path, (long long)i);
    if (e->frames > 0 && (e->w < 1 || e->h < 1 || e->size_bytes < 4 * (uint64_t)(raw ? 0 : e->frames)))
        return err_user("%s: sample %lld is a bad clip", a->path, (long long)i);
    return 0;
}

/* Class names are the first texts. */
static int find_class_names(Album *a)
{
    size_t at = 0;
    if (a->head.n_class > a->text_bytes) return err_user("%s: names of classes are missing", a->path);
    a->class_name = mem_zeroed(a->head.n_class, sizeof *a->class_name);
    if (!a->class_name) return err_sys("%s: %u class names", a->path, a->head.n_class);
    for (uint32_t c = 0; c < a->head.n_class; c++) {
        if (at >= a->text_bytes) return err_user("%s: names of classes are missing", a->path);
        a->class_name[c] = a->text + at;
        at += strlen(a->text + at) + 1;
    }
    return 0;
}

static int check_index(Album *a)
{
    size_t entries = a->head.n_sample * sizeof(Entry);
    if (XXH64(a->index, a->head.index_bytes, 0) != a->head.index_hash)
        return err_user("%s: its index is damaged", a->path);
    a->entry      = (const Entry *)a->index;
    a->text       = (const char *)a->index + entries;
    a->text_bytes = a->head.index_bytes - entries;
    if (a->text_bytes < 1 || a->text[a->text_bytes - 1] != '\0')
        return err_user("%s: its texts do not end", a->path);
    for (int64_t i = 0; i < (int64_t)a->head.n_sample; i++) TRY(check_entry(a, i));
    return find_class_names(a);
}

static int open_file(Album *a, const char *path)
{
    struct stat st;
    a->path = strdup(path);
    if (!a->path) return err_sys("%s", path);
    a->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (a->fd < 0 || fstat(a->fd, &st) != 0) return err_sys("%s", path);
    if (!S_ISREG(st.st_mode) || st.st_size < ALBUM_HEADER_BYTES)
        return err_user("%s: not an album of images", path);
    TRY(file_read_at(a->fd, path, &a->head, sizeof a->head, 0));
    TRY(check_header(path, &a->head, st.st_size));
    a->index = mem_alloc(a->head.index_bytes + 1);
    if (!a->index) return err_sys("%s: %llu bytes of index", path, (unsigned long long)a->head.index_bytes);
    TRY(file_read_at(a->fd, path, a->index, a->head.index_bytes, (int64_t)a->head.index_offset));
    return check_index(a);
}

int album_open(Album **out, const char *path)
{
    *out     = NULL;
    Album *a = mem_zeroed(1, sizeof *a);
    if (!a) return err_sys("%s", path);
    a->fd = -1;
    if (open_file(a, path) < 0) {
        album_close(a);
        return -1;
    }
    *out = a;
    return 0;
}

void album_close(Album *a)
{
    if (!a) return;
    if (a->fd >= 0) close(a->fd);
    free(a->index);
    free(a->class_name);
    free(a->path);
    free(a);
}

int64_t     album_len(const Album *a) { return (int64_t)a->head.n_sample; }
int         album_classes(const Album *a) { return (int)a->head.n_class; }
const char *album_class_name(const Album *a, int i) { return a->class_name[i]; }

AlbumEntry album_entry(const Album *a, int64_t i)
{
    const Entry *e = &a->entry[i];
    return (AlbumEntry){ (int64_t)e->offset, (int64_t)e->size_bytes, e->hash,   e->label,
                         (int)e->frames,     (AlbumCodec)e->codec,   (int)e->w, (int)e->h,
                         a->text + e->name };
}

int album_read(const Album *a, int64_t i, void *buf, char *why, size_t n)
{
    const Entry *e = &a->entry[i];
    if (file_read_at(a->fd, a->path, buf, e->size_bytes, (int64_t)e->offset) < 0) {
        snprintf(why, n, "%s", err_get());
        err_clear();
        return 1;
    }
    if (XXH64(buf, e->size_bytes, 0) == e->hash) return 0;
    snprintf(why, n, "the checksum of its record in %s is wrong", a->path);
    return 1;
}

int album_frame(const AlbumEntry *e, const uint8_t *record, int f, size_t *offset, size_t *size_bytes)
{
    CHECK(f >= 0 && f < e->frames, "frame %d of %d", f, e->frames);
    size_t n = (size_t)e->size_bytes;
    if (e->codec != ALBUM_FILE) {
        *size_bytes = n / (size_t)e->frames;
        *offset     = *size_bytes * (size_t)f;
        return 0;
    }
    size_t at = 4 * (size_t)e->frames;
    for (int i = 0; i <= f; i++) {
        uint32_t size;
        memcpy(&size, record + 4 * (size_t)i, sizeof size);
        if (size > n - at) return -1;
        *offset     = at;
        *size_bytes = size;
        at += size;
    }
    return 0;
}
