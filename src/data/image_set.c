#include "data/image_set_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MOST = 1 << 28 }; /* bytes of one encoded image */

/* ---- Building -------------------------------------------------------------------------------------- */

static int grow(void **data, int64_t *cap, int64_t need, size_t unit)
{
    if (need <= *cap) return 0;
    int64_t more = MAX(need, *cap * 2 + 1024);
    void   *p    = realloc(*data, (size_t)more * unit);
    if (!p) return err_sys("a list of %lld images", (long long)more);
    *data = p;
    *cap  = more;
    return 0;
}

int set_add(ImageSet *s, const SetItem *item, const char *name)
{
    int64_t n = (int64_t)strlen(name) + 1;
    TRY(grow((void **)&s->item, &s->cap_item, s->n_item + 1, sizeof *s->item));
    TRY(grow((void **)&s->text, &s->cap_text, s->n_text + n, 1));
    memcpy(s->text + s->n_text, name, (size_t)n);
    s->item[s->n_item]        = *item;
    s->item[s->n_item++].name = s->n_text;
    s->n_text += n;
    return 0;
}

/* Class names "0", "1" ... for labels that are only numbers. */
static void number_classes(ImageSet *s, int n)
{
    s->class_name = ARENA_ARRAY(&s->arena, char *, MAX(n, 1));
    s->n_class    = n;
    for (int c = 0; c < n; c++) s->class_name[c] = arena_printf(&s->arena, "%d", c);
}

/* ---- idx ------------------------------------------------------------------------------------------- */

/* "train-images-idx3-ubyte.gz" has its labels in "train-labels-idx1-ubyte.gz", gzip or not. */
static int find_labels(const ImageSet *s, char *buf, size_t n)
{
    const char *base = file_name_of(s->path), *at = strstr(base, "images");
    const char *tail[] = { "-idx1-ubyte", "-idx1-ubyte.gz", ".idx1-ubyte", ".idx1-ubyte.gz" };
    for (int i = 0; at && i < ARRAY_LEN(tail); i++) {
        snprintf(buf, n, "%.*slabels%s", (int)(at - s->path), s->path, tail[i]);
        if (file_kind(buf) == FILE_REGULAR) return 0;
    }
    return err_user("%s: its labels are not beside it (train-images-idx3-ubyte has train-labels-idx1-ubyte)",
                    s->path);
}

static int open_idx(ImageSet *s)
{
    char labels[PATH_MAX], name[32];
    int  n_class = 0;
    TRY(idx_load(&s->images, s->path));
    if (s->images.n_dim != 3 || s->images.dim[1] > IMAGE_SIDE_MOST || s->images.dim[2] > IMAGE_SIDE_MOST ||
        s->images.dim[1] < 1 || s->images.dim[2] < 1)
        return err_user("%s: not an idx file of images: number x height x width", s->path);
    TRY(find_labels(s, labels, sizeof labels));
    TRY(idx_load(&s->labels, labels));
    if (s->labels.n_dim != 1 || s->labels.dim[0] != s->images.dim[0]) {
        return err_user("%s: %lld labels for %lld images", labels, (long long)s->labels.dim[0],
                        (long long)s->images.dim[0]);
    }
    for (int64_t i = 0; i < s->images.dim[0]; i++) {
        SetItem it = { .offset = i, .label = s->labels.data[i] };
        snprintf(name, sizeof name, "image %lld", (long long)i);
        TRY(set_add(s, &it, name));
        n_class = MAX(n_class, it.label + 1);
    }
    number_classes(s, n_class);
    return 0;
}

/* ---- tar files and albums -------------------------------------------------------------------------- */

static int add_parts(ImageSet *s, const char *suffix)
{
    char **names;
    if (file_kind(s->path) == FILE_REGULAR) {
        s->part          = ARENA_NEW(&s->arena, SetPart);
        *s->part         = (SetPart){ s->path, -1, NULL };
        return s->n_part = 1;
    }
    int n = file_list(&s->arena, s->path, suffix, &names);
    TRY(n);
    s->part = ARENA_ARRAY(&s->arena, SetPart, MAX(n, 1));
    for (int i = 0; i < n; i++) {
        if (names[i][0] == '.') continue;
        s->part[s->n_part++] = (SetPart){ arena_printf(&s->arena, "%s/%s", s->path, names[i]), -1, NULL };
    }
    return s->n_part;
}

static int open_tars(ImageSet *s)
{
    int n_class = 0;
    for (int i = 0; i < s->n_part; i++) {
        s->part[i].fd = open(s->part[i].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (s->part[i].fd < 0) return err_sys("%s", s->part[i].path);
        TRY(set_scan_tar(s, i));
    }
    if (s->n_left_out > 0 && !s->quiet)
        log_warn("%s: left out of tar files: %lld image%s of another kind, over 256 MiB, links, or with a "
                 "second dot",
                 s->path, (long long)s->n_left_out, str_plural(s->n_left_out));
    for (int64_t i = 0; i < s->n_item; i++) n_class = MAX(n_class, s->item[i].label + 1);
    number_classes(s, n_class);
    return 0;
}

/* Every album of a folder was written with the same classes. */
static int check_classes(const ImageSet *s, const SetPart *p)
{
    const Album *first = s->part[0].album;
    int          same  = album_classes(first) == album_classes(p->album);
    for (int c = 0; same && c < album_classes(first); c++)
        same = strcmp(album_class_name(first, c), album_class_name(p->album, c)) == 0;
    return same ? 0 : err_user("%s: other classes than %s", p->path, s->part[0].path);
}

static int open_albums(ImageSet *s)
{
    for (int i = 0; i < s->n_part; i++) {
        SetPart *p = &s->part[i];
        TRY(album_open(&p->album, p->path));
        TRY(check_classes(s, p));
        for (int64_t k = 0; k < album_len(p->album); k++) {
            AlbumEntry e = album_entry(p->album, k);
            SetItem    t = { .offset = k, .size_bytes = e.size_bytes, .label = e.label, .part = i };
            TRY(set_add(s, &t, e.name));
        }
    }
    number_classes(s, album_classes(s->part[0].album));
    for (int c = 0; c < s->n_class; c++)
        s->class_name[c] = arena_strdup(&s->arena, album_class_name(s->part[0].album, c));
    return 0;
}

/* ---- Opening --------------------------------------------------------------------------------------- */

static int idx_in_folder(ImageSet *s)
{
    char **names;
    int    n = file_list(&s->arena, s->path, "", &names);
    for (int i = 0; i < n; i++) {
        if (!strstr(names[i], "images") || !strstr(names[i], "idx3-ubyte")) continue;
        return err_user("%s: a folder of idx files: name one of them (%s/%s)", s->path, s->path, names[i]);
    }
    return n < 0 ? -1 : 0;
}

/* A folder is one kind of set: with two of them it is not clear which the user means. */
static int check_one_kind(ImageSet *s)
{
    static const char *const kind[] = { "albums", "tar files", "folders of images" };
    char                   **names;
    int                      n_album = file_list(&s->arena, s->path, ALBUM_SUFFIX, &names);
    int                      n_tar   = n_album < 0 ? -1 : file_list(&s->arena, s->path, ".tar", &names);
    if (n_tar < 0) return -1;
    int has[3] = { n_album > 0, n_tar > 0, 0 };
    if (has[0] + has[1] == 0) return 0;
    has[2] = set_has_classes(s);
    if (has[2] < 0) return -1;
    if (has[0] + has[1] + has[2] == 1) return 0;
    return err_user("%s: has %s and %s: move one of them elsewhere", s->path, kind[!has[0]],
                    kind[1 + has[2]]);
}

static int open_folder(ImageSet *s)
{
    TRY(check_one_kind(s));
    s->kind = SET_ALBUM;
    int n   = add_parts(s, ALBUM_SUFFIX);
    if (n != 0) return n < 0 ? -1 : open_albums(s);
    s->kind = SET_TAR;
    n       = add_parts(s, ".tar");
    if (n != 0) return n < 0 ? -1 : open_tars(s);
    TRY(idx_in_folder(s));
    return set_scan_folder(s);
}

static int open_file(ImageSet *s)
{
    if (str_ends_with(s->path, ".tar") || str_ends_with(s->path, ALBUM_SUFFIX)) {
        s->kind = str_ends_with(s->path, ".tar") ? SET_TAR : SET_ALBUM;
        TRY(add_parts(s, ""));
        return s->kind == SET_TAR ? open_tars(s) : open_albums(s);
    }
    int one = set_scan_image(s);
    if (one != 0) return MIN(one, 0);
    s->kind = SET_IDX;
    if (idx_is_magic(s->path)) return open_idx(s);
    if (str_ends_with(s->path, ".tar.gz") || str_ends_with(s->path, ".tgz") || str_ends_with(s->path, ".zip"))
        return err_user("%s: is compressed: unpack it first", s->path);
    if (set_is_video(s->path))
        return err_user("%s: a video: brim data clips VIDEO --out FOLDER makes clips of it", s->path);
    return err_user("%s: neither a folder of images nor a .jpg, .jpeg, .png, idx, .tar or " ALBUM_SUFFIX
                    " file",
                    s->path);
}

static int open_path(ImageSet *s)
{
    switch (file_kind(s->path)) {
    case FILE_FOLDER: TRY(open_folder(s)); break;
    case FILE_REGULAR: TRY(open_file(s)); break;
    default: return err_user("%s: no such file or folder", s->path);
    }
    if (s->n_item == 0) return err_user("%s: no image in it (.jpg, .jpeg and .png are read)", s->path);
    return 0;
}

static int open_set(ImageSet **out, const char *path, int quiet)
{
    *out        = NULL;
    ImageSet *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("%s", path);
    arena_init(&s->arena);
    s->quiet = quiet;
    s->path  = arena_strdup(&s->arena, path);
    for (size_t n = strlen(s->path); n > 1 && s->path[n - 1] == '/'; n--) s->path[n - 1] = '\0';
    if (open_path(s) < 0) {
        image_set_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

int image_set_open(ImageSet **out, const char *path) { return open_set(out, path, 0); }
int image_set_open_quiet(ImageSet **out, const char *path) { return open_set(out, path, 1); }

void image_set_close(ImageSet *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_part; i++) {
        if (s->part[i].fd >= 0) close(s->part[i].fd);
        album_close(s->part[i].album);
    }
    idx_deinit(&s->images);
    idx_deinit(&s->labels);
    free(s->item);
    free(s->text);
    arena_deinit(&s->arena);
    free(s);
}

int64_t     image_set_len(const ImageSet *s) { return s->n_item; }
int         image_set_classes(const ImageSet *s) { return s->n_class; }
const char *image_set_class_name(const ImageSet *s, int c) { return s->class_name[c]; }
int         image_set_label(const ImageSet *s, int64_t i) { return s->item[i].label; }

int64_t image_set_largest(const ImageSet *s)
{
    int64_t most = 0;
    for (int64_t i = 0; i < s->n_item; i++) most = MAX(most, s->item[i].size_bytes);
    return most;
}

int64_t image_set_clips(const ImageSet *s, int least)
{
    int64_t n = 0;
    for (int64_t i = 0; s->kind == SET_ALBUM && i < s->n_item; i++)
        n += album_entry(s->part[s->item[i].part].album, s->item[i].offset).frames >= least;
    return n;
}

const char *image_set_kind(const ImageSet *s)
{
    static const char *const name[] = { "class folders", "a folder without classes", "idx", "tar", "albums" };
    return name[s->kind];
}

const char *image_set_name(const ImageSet *s, int64_t i, char *buf, size_t n)
{
    const SetItem *it   = &s->item[i];
    const char    *root = s->n_part > 0 ? s->part[it->part].path : s->path;
    char           name[2 * PATH_MAX];
    snprintf(name, sizeof name, "%s%s%s", root, s->kind == SET_FOLDER || s->kind == SET_FLAT ? "/" : ": ",
             s->text + it->name);
    return str_quote(buf, n, name, strlen(name));
}

/* ---- Reading --------------------------------------------------------------------------------------- */

static int unreadable(ImageScratch *s, const char *what)
{
    snprintf(s->why, sizeof s->why, "%s", what);
    return 1;
}

static int read_span(ImageScratch *s, int fd, int64_t at, int64_t n)
{
    TRY(image_buf_need(&s->bytes, (size_t)n + 1));
    for (int64_t got = 0; got < n;) {
        ssize_t k = pread(fd, s->bytes.data + got, (size_t)(n - got), at + got);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return unreadable(s, strerror(errno));
        if (k == 0) return unreadable(s, "the file became shorter");
        got += k;
    }
    return 0;
}

static int read_file(const ImageSet *set, const SetItem *it, ImageScratch *s, size_t *n)
{
    char        path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", set->path, set->text + it->name) >= sizeof path)
        return unreadable(s, "the path is too long");
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return unreadable(s, strerror(errno));
    int rc = 1;
    if (fstat(fd, &st) != 0) {
        unreadable(s, strerror(errno));
    } else if (!S_ISREG(st.st_mode) || st.st_size > FILE_MOST) {
        unreadable(s, S_ISREG(st.st_mode) ? "over 256 MiB" : "not a regular file");
    } else {
        *n = (size_t)st.st_size;
        rc = read_span(s, fd, 0, st.st_size);
    }
    close(fd);
    return rc;
}

static int read_album(const ImageSet *set, const SetItem *it, ImageScratch *s, ImageRecord *out)
{
    const Album *a = set->part[it->part].album;
    AlbumEntry   e = album_entry(a, it->offset);
    TRY(image_buf_need(&s->bytes, (size_t)e.size_bytes + 1));
    if (album_read(a, it->offset, s->bytes.data, s->why, sizeof s->why)) return 1;
    out->image = (ImageBytes){ s->bytes.data, (size_t)e.size_bytes, 0, 0, 0 };
    if (e.codec != ALBUM_FILE)
        out->image = (ImageBytes){ s->bytes.data, (size_t)e.size_bytes, e.w, e.h, (int)e.codec };
    out->frames = e.frames;
    out->w      = e.w;
    out->h      = e.h;
    out->entry  = e;
    return 0;
}

static int read_idx(const ImageSet *set, const SetItem *it, ImageRecord *out)
{
    int64_t h = set->images.dim[1], w = set->images.dim[2];
    out->image = (ImageBytes){ set->images.data + it->offset * h * w, (size_t)(h * w), (int)w, (int)h, 1 };
    return 0;
}

int image_set_read(const ImageSet *set, int64_t i, ImageScratch *s, ImageRecord *out)
{
    CHECK(i >= 0 && i < set->n_item, "sample %lld of %lld", (long long)i, (long long)set->n_item);
    const SetItem *it = &set->item[i];
    size_t         n  = (size_t)it->size_bytes;
    double         t0 = clock_now_s();
    int            rc = 0;
    memset(out, 0, sizeof *out);
    switch (set->kind) {
    case SET_IDX: rc = read_idx(set, it, out); break;
    case SET_ALBUM: rc = read_album(set, it, s, out); break;
    case SET_TAR: rc = read_span(s, set->part[it->part].fd, it->offset, it->size_bytes); break;
    case SET_FLAT:
    case SET_FOLDER: rc = read_file(set, it, s, &n); break;
    }
    if (rc == 0 && !out->image.data) out->image = (ImageBytes){ s->bytes.data, n, 0, 0, 0 };
    s->count.read_s += clock_now_s() - t0;
    if (rc == 0) s->count.read_bytes += (int64_t)out->image.size_bytes;
    return rc;
}

int image_set_frame(const ImageRecord *r, ImageScratch *s, int f, ImageBytes *out)
{
    size_t at, n;
    if (album_frame(&r->entry, r->image.data, f, &at, &n) < 0)
        return unreadable(s, "the table of frames is damaged");
    *out = (ImageBytes){ r->image.data + at, n, r->image.raw_w, r->image.raw_h, r->image.raw_c };
    return 0;
}
