#include "data/convert_out.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"

#include <limits.h>
#include <string.h>

enum { LOGGED = 10 };

static const char *part_path(const ConvertOut *c, char buf[PATH_MAX])
{
    snprintf(buf, PATH_MAX, "%s/part-%05d" ALBUM_SUFFIX, c->folder, c->result->n_album);
    return buf;
}

int convert_out_begin(ConvertOut *c)
{
    Arena  a;
    char **names;
    memset(c->result, 0, sizeof *c->result);
    c->result->n_class = c->n_class;
    TRY(file_make_folders(c->folder));
    arena_init(&a);
    int n = file_list(&a, c->folder, ALBUM_SUFFIX, &names);
    arena_deinit(&a);
    if (n > 0) return err_user("%s: has albums already; name another folder, or remove them", c->folder);
    return n;
}

static int publish(ConvertOut *c)
{
    if (!c->writer) return 0;
    c->result->size_bytes += album_write_bytes(c->writer);
    TRY(album_write_publish(&c->writer, c->class_name, c->n_class));
    c->result->n_album++;
    return 0;
}

int convert_out_add(ConvertOut *c, const AlbumEntry *e, const void *record)
{
    char path[PATH_MAX];
    if (c->writer && album_write_bytes(c->writer) + e->size_bytes > c->album_bytes) TRY(publish(c));
    if (!c->writer) c->writer = album_write_begin(part_path(c, path));
    if (!c->writer) return -1;
    TRY(album_write_add(c->writer, e, record));
    c->result->n_sample++;
    return 0;
}

int convert_out_skip(ConvertOut *c, const char *name, const char *why)
{
    char path[PATH_MAX];
    if (!c->skipped) {
        snprintf(path, sizeof path, "%s/skipped.txt", c->folder);
        c->skipped = file_create_tmp(path);
        if (!c->skipped) return -1;
    }
    if (fprintf(c->skipped, "%s: %s\n", name, why) < 0) return err_sys("%s/skipped.txt", c->folder);
    if (++c->result->n_skipped <= LOGGED) log_warn("%s: skipped: %s", name, why);
    return 0;
}

int convert_out_end(ConvertOut *c, int rc)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/skipped.txt", c->folder);
    if (rc == 0) rc = publish(c);
    album_write_discard(&c->writer);
    if (rc == 0 && c->skipped) rc = file_publish(&c->skipped, path);
    file_discard(&c->skipped);
    return rc;
}
