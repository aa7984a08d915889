/* Finding images: in folders, and in tar files. */
#include "data/image_set_impl.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "file/tar.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MOST = 16, CLS_MOST = 20, ITEM_MOST = 1 << 28 };

static int has_ending(const char *name, const char *const *ending, int n)
{
    const char *dot = strrchr(name, '.');
    for (int i = 0; dot && i < n; i++) {
        if (strcasecmp(dot + 1, ending[i]) == 0) return 1;
    }
    return 0;
}

static int is_image(const char *name)
{
    static const char *const ending[] = { "jpg", "jpeg", "png" };
    return has_ending(name, ending, ARRAY_LEN(ending));
}

static int is_other_image(const char *name)
{
    static const char *const ending[] = { "gif", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "heic", "avif" };
    return has_ending(name, ending, ARRAY_LEN(ending));
}

int set_is_video(const char *path)
{
    static const char *const ending[] = { "mp4",  "m4v", "mov",  "avi", "mkv",
                                          "webm", "mpg", "mpeg", "ogv", "ts" };
    return has_ending(path, ending, ARRAY_LEN(ending));
}

/* ---- Folders --------------------------------------------------------------------------------------- */

typedef struct {
    ImageSet *set;
    int       label;
    int64_t   n_other; /* images of kinds that Brim does not read */
    int       n_empty; /* classes without images */
} Scan;

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Names of path in order; folders have a '/' behind them. The caller's arena keeps them. */
static int list_names(Arena *arena, const char *path, char ***out)
{
    DIR *d = opendir(path);
    int  n = 0, cap = 64;
    if (!d) return err_sys("%s", path);
    char **name = ARENA_ARRAY(arena, char *, cap);
    for (;;) {
        errno            = 0;
        struct dirent *e = readdir(d);
        if (!e) break;
        if (e->d_name[0] == '.') continue;
        int folder = e->d_type == DT_DIR;
        if (e->d_type == DT_LNK || e->d_type == DT_UNKNOWN) {
            char full[PATH_MAX];
            snprintf(full, sizeof full, "%s/%s", path, e->d_name);
            folder = file_kind(full) == FILE_FOLDER;
        }
        if (n == cap) {
            char **more = ARENA_ARRAY(arena, char *, cap *= 2);
            memcpy(more, name, (size_t)n * sizeof *name);
            name = more;
        }
        name[n++] = arena_printf(arena, "%s%s", e->d_name, folder ? "/" : "");
    }
    int failed = errno;
    closedir(d);
    errno = failed;
    if (failed != 0) return err_sys("%s", path);
    qsort(name, (size_t)n, sizeof *name, by_name);
    *out = name;
    return n;
}

/* Adds the images of folder `sub` (relative to the set's path, "" or with '/' behind it). */
static int scan_folder(Scan *c, const char *sub, int depth)
{
    char   path[PATH_MAX];
    char **name;
    Arena  arena;
    int    rc = 0;
    if (depth > DEPTH_MOST) return err_user("%s/%s: folders in folders deeper than 16", c->set->path, sub);
    arena_init(&arena);
    snprintf(path, sizeof path, "%s/%s", c->set->path, sub);
    int n = list_names(&arena, path, &name);
    for (int i = 0; i < n && rc == 0; i++) {
        snprintf(path, sizeof path, "%s%s", sub, name[i]);
        if (str_ends_with(name[i], "/")) {
            rc = scan_folder(c, path, depth + 1);
        } else if (is_image(name[i])) {
            rc = set_add(c->set, &(SetItem){ .label = c->label }, path);
        } else {
            c->n_other += is_other_image(name[i]);
        }
    }
    arena_deinit(&arena);
    return n < 0 ? -1 : rc;
}

/* Leaves the folders of n names, in order, without the '/' behind them: with it "a-b" comes before "a". */
static int keep_folders(char **name, int n)
{
    int k = 0;
    for (int i = 0; i < n; i++) {
        if (str_ends_with(name[i], "/")) name[k++] = name[i];
    }
    for (int i = 0; i < k; i++) name[i][strlen(name[i]) - 1] = '\0';
    qsort(name, (size_t)k, sizeof *name, by_name);
    return k;
}

static int scan_classes(Scan *c, char **name, int n)
{
    ImageSet *s   = c->set;
    s->kind       = SET_FOLDER;
    n             = keep_folders(name, n);
    s->class_name = ARENA_ARRAY(&s->arena, char *, n);
    for (int i = 0; i < n; i++) {
        int64_t before = s->n_item;
        c->label       = s->n_class;
        TRY(scan_folder(c, arena_printf(&s->arena, "%s/", name[i]), 1));
        s->class_name[s->n_class++] = arena_strdup(&s->arena, name[i]);
        c->n_empty += s->n_item == before;
    }
    return 0;
}

int set_has_classes(ImageSet *s)
{
    char **name, **in, path[PATH_MAX];
    Arena  arena;
    arena_init(&arena);
    int n = list_names(&arena, s->path, &name), has = 0;
    for (int i = 0; i < n && has == 0; i++) {
        if (!str_ends_with(name[i], "/")) continue;
        snprintf(path, sizeof path, "%s/%s", s->path, name[i]);
        int n_in = list_names(&arena, path, &in);
        for (int k = 0; k < n_in && !has; k++) has = is_image(in[k]);
        if (n_in < 0) has = -1;
    }
    arena_deinit(&arena);
    return n < 0 ? -1 : has;
}

/* images: so many are beside class folders. */
static void warn_left_out(const Scan *c, int images)
{
    const ImageSet *s = c->set;
    if (c->n_empty > 0 && s->n_item > 0)
        log_warn("%s: %d of %d class folders have no image", s->path, c->n_empty, s->n_class);
    if (images > 0)
        log_warn("%s: %d image%s outside the class folders %s left out", s->path, images, str_plural(images),
                 images == 1 ? "is" : "are");
    if (c->n_other > 0)
        log_warn("%s: %lld image%s neither JPEG nor PNG and %s left out", s->path, (long long)c->n_other,
                 c->n_other == 1 ? " is" : "s are", c->n_other == 1 ? "is" : "are");
}

int set_scan_folder(ImageSet *s)
{
    char **name;
    Arena  arena;
    int    rc = 0, folders = 0, images = 0;
    Scan   c = { s, -1, 0, 0 };
    arena_init(&arena);
    int n = list_names(&arena, s->path, &name);
    for (int i = 0; i < n; i++) {
        folders += str_ends_with(name[i], "/");
        images += is_image(name[i]);
    }
    s->kind = SET_FLAT;
    if (n >= 0) rc = folders > 0 ? scan_classes(&c, name, n) : scan_folder(&c, "", 0);
    arena_deinit(&arena);
    if (n < 0 || rc < 0) return -1;
    if (!s->quiet) warn_left_out(&c, folders > 0 ? images : 0);
    return 0;
}

int set_scan_image(ImageSet *s)
{
    char folder[PATH_MAX];
    if (!is_image(s->path)) return 0;
    if (file_folder_of(s->path, folder, sizeof folder) < 0)
        return err_user("%s: the path is too long", s->path);
    s->kind = SET_FLAT;
    TRY(set_add(s, &(SetItem){ .label = -1 }, file_name_of(s->path)));
    s->path = arena_strdup(&s->arena, folder);
    return 1;
}

/* ---- Tar files ------------------------------------------------------------------------------------- */

/* A WebDataset sample is members whose names agree up to the first dot of the last component. */
typedef struct {
    char    key[TAR_NAME_MOST];
    int64_t offset, size_bytes; /* of its image; offset 0: none yet */
    char    name[TAR_NAME_MOST];
    int     label;
} TarSample;

static int bad_class(const Tar *t)
{
    char name[256];
    str_quote(name, sizeof name, t->name, strlen(t->name));
    if (t->is_link)
        return err_user("%s: %s: a link (tar --hard-dereference packs files instead)", t->path, name);
    return err_user("%s: %s: not a class number from 0 to %d", t->path, name, ALBUM_CLASSES_MOST - 1);
}

/* Each number up to the largest gets a name: a damaged one must not take a gigabyte. */
static int read_class(const Tar *t, int *label)
{
    char    text[CLS_MOST + 1];
    int64_t v;
    if (t->is_link || t->size_bytes > CLS_MOST ||
        pread(t->fd, text, (size_t)t->size_bytes, t->offset) != t->size_bytes)
        return bad_class(t);
    text[t->size_bytes]            = '\0';
    text[strcspn(text, "\r\n \t")] = '\0';
    if (str_parse_int(text, &v) < 0 || v < 0 || v >= ALBUM_CLASSES_MOST) return bad_class(t);
    *label = (int)v;
    return 0;
}

static int end_sample(ImageSet *s, int part, TarSample *x)
{
    int rc = 0;
    if (x->offset > 0) {
        SetItem it = { .offset = x->offset, .size_bytes = x->size_bytes, .label = x->label, .part = part };
        rc         = set_add(s, &it, x->name);
    }
    *x = (TarSample){ .label = -1 };
    return rc;
}

static int take_member(ImageSet *s, int part, const Tar *t, TarSample *x)
{
    const char *base = file_name_of(t->name), *dot = strchr(base, '.');
    if (!dot || base[0] == '.') return 0;
    size_t n = (size_t)(dot - t->name);
    if (strlen(x->key) != n || memcmp(x->key, t->name, n) != 0) {
        TRY(end_sample(s, part, x));
        memcpy(x->key, t->name, n);
        x->key[n] = '\0';
    }
    int fits = is_image(dot) && strchr(dot + 1, '.') == NULL && t->size_bytes <= ITEM_MOST && !t->is_link;
    s->n_left_out += !fits && (is_image(dot) || is_other_image(dot));
    if (fits) {
        x->offset     = t->offset;
        x->size_bytes = t->size_bytes;
        str_copy(x->name, sizeof x->name, t->name);
    }
    return strcmp(dot, ".cls") == 0 ? read_class(t, &x->label) : 0;
}

int set_scan_tar(ImageSet *s, int part)
{
    struct stat st;
    Tar         t;
    TarSample   x  = { .label = -1 };
    SetPart    *p  = &s->part[part];
    int         rc = 1;
    if (fstat(p->fd, &st) != 0) return err_sys("%s", p->path);
    if (!S_ISREG(st.st_mode)) return err_user("%s: not a regular file", p->path);
    tar_begin(&t, p->path, p->fd, st.st_size);
    while ((rc = tar_next(&t)) > 0) TRY(take_member(s, part, &t, &x));
    TRY(rc);
    return end_sample(s, part, &x);
}
