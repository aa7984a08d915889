#include "data/convert_out.h"

#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOGGED = 10 };

static const char tmp_name[] = ".tmp-albums-"; /* with the process id behind it */

static const char *part_path(const char *folder, int part, char buf[PATH_MAX])
{
    int n = snprintf(buf, PATH_MAX, "%s/part-%05d" ALBUM_SUFFIX, folder, part);
    CHECK(n > 0 && n < PATH_MAX, "a path of %d bytes", n); /* the folder's was measured */
    return buf;
}

/* Removes what conversions that were killed have left. */
static int sweep(const char *folder)
{
    Arena  a;
    char **names, path[PATH_MAX];
    arena_init(&a);
    int n = file_list(&a, folder, "", &names), rc = n < 0 ? -1 : 0;
    for (int i = 0; i < n && rc == 0; i++) {
        int64_t pid;
        if (!str_starts_with(names[i], tmp_name) || str_parse_int(names[i] + strlen(tmp_name), &pid) < 0)
            continue;
        if (pid <= 0 || kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue; /* it may still be at work */
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) < (int)sizeof path)
            rc = folder_remove(path);
    }
    arena_deinit(&a);
    return rc;
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
    if (n < 0) return -1;
    TRY(sweep(c->folder));
    if (snprintf(c->tmp, sizeof c->tmp, "%s/%s%d", c->folder, tmp_name, (int)getpid()) >= PATH_MAX - 64)
        return err_user("%s: the path is too long", c->folder);
    return file_make_folders(c->tmp);
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
    if (!c->skipped) {
        snprintf(path, sizeof path, "%s/skipped.txt", c->folder);
        c->skipped = file_create_tmp(path);
        if (!c->skipped) return -1;
    }
    if (fprintf(c->skipped, "%s: %s\n", name, why) < 0) return err_sys("%s/skipped.txt", c->folder);
    if (++c->result->n_skipped <= LOGGED) log_warn("%s: skipped: %s", name, why);
    return 0;
}

static int move_parts(const ConvertOut *c)
{
    char from[PATH_MAX], to[PATH_MAX];
    for (int i = 0; i < c->result->n_album; i++) {
        if (rename(part_path(c->tmp, i, from), part_path(c->folder, i, to)) != 0) return err_sys("%s", to);
    }
    return folder_sync(c->folder);
}

int convert_out_end(ConvertOut *c, int rc)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/skipped.txt", c->folder);
    if (rc == 0) rc = publish(c);
    album_write_discard(&c->writer);
    if (rc == 0 && c->skipped) rc = file_publish(&c->skipped, path);
    file_discard(&c->skipped);
    if (rc == 0) rc = move_parts(c);
    folder_remove(c->tmp); /* an error that is pending stays */
    return rc;
}
