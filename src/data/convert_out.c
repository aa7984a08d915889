#include "data/convert_out.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOGGED = 10 };

static const char tmp_name[] = ".tmp-albums-"; /* with the process id behind it */
static const char skipped[]  = "skipped.txt";

static const char *path_in(const char *folder, const char *name, char buf[PATH_MAX])
{
    int n = snprintf(buf, PATH_MAX, "%s/%s", folder, name);
    CHECK(n > 0 && n < PATH_MAX, "a path of %d bytes", n); /* the folder's was measured */
    return buf;
}

static const char *part_path(const char *folder, int part, char buf[PATH_MAX])
{
    char name[32];
    snprintf(name, sizeof name, "part-%05d" ALBUM_SUFFIX, part);
    return path_in(folder, name, buf);
}

static int check_no_album(const char *folder)
{
    Arena  a;
    char **names;
    arena_init(&a);
    int n = file_list(&a, folder, ALBUM_SUFFIX, &names);
    arena_deinit(&a);
    if (n > 0) return err_user("%s: has albums already; name another folder, or remove them", folder);
    return MIN(n, 0);
}

int convert_out_begin(ConvertOut *c)
{
    memset(c->result, 0, sizeof *c->result);
    c->result->n_class = c->n_class;
    if (snprintf(c->tmp, sizeof c->tmp, "%s/%s%d", c->folder, tmp_name, (int)getpid()) >= PATH_MAX - 64)
        return err_user("%s: the path is too long", c->folder);
    TRY(folder_make_out(c->folder, &c->is_new));
    int rc = check_no_album(c->folder);
    if (rc == 0) folder_sweep(c->folder, tmp_name);
    if (rc == 0) rc = file_make_folders(c->tmp);
    if (rc < 0 && c->is_new) rmdir(c->folder);
    return rc;
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
    if (!c->writer) c->writer = album_write_begin(part_path(c->tmp, c->result->n_album, path));
    if (!c->writer) return -1;
    TRY(album_write_add(c->writer, e, record));
    c->result->n_sample++;
    return 0;
}

int convert_out_skip(ConvertOut *c, const char *name, const char *why)
{
    char path[PATH_MAX];
    path_in(c->tmp, skipped, path);
    if (!c->skipped) c->skipped = file_create_tmp(path);
    if (!c->skipped) return -1;
    if (fprintf(c->skipped, "%s: %s\n", name, why) < 0) return err_sys("%s", path);
    if (++c->result->n_skipped <= LOGGED) log_warn("%s: skipped: %s", name, why);
    return 0;
}

static int move(const char *from, const char *to)
{
    return fault_hit(FAULT_RENAME) || rename(from, to) != 0 ? err_sys("%s", to) : 0;
}

/* Gives everything its name, or nothing. */
static int move_all(const ConvertOut *c)
{
    char from[PATH_MAX], to[PATH_MAX];
    int  rc = 0, lists = c->result->n_skipped > 0;
    for (int i = 0; rc == 0 && i < c->result->n_album; i++)
        rc = move(part_path(c->tmp, i, from), part_path(c->folder, i, to));
    if (rc == 0 && lists) rc = move(path_in(c->tmp, skipped, from), path_in(c->folder, skipped, to));
    int is_moved = rc == 0;
    if (rc == 0) rc = folder_sync(c->folder);
    if (rc == 0) return 0;
    for (int i = 0; i < c->result->n_album; i++) unlink(part_path(c->folder, i, to));
    if (is_moved && lists) unlink(path_in(c->folder, skipped, to));
    return rc;
}

int convert_out_end(ConvertOut *c, int rc)
{
    char path[PATH_MAX];
    if (rc == 0) rc = publish(c);
    album_write_discard(&c->writer);
    if (rc == 0 && c->skipped) rc = file_publish(&c->skipped, path_in(c->tmp, skipped, path));
    file_discard(&c->skipped);
    if (rc == 0) rc = move_all(c);
    folder_remove(c->tmp); /* an error that is pending stays */
    if (rc < 0 && c->is_new) rmdir(c->folder);
    return rc;
}
