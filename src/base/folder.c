#define _GNU_SOURCE /* nftw, renameat2 */
#include "base/folder.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *folder_of_runs(void)
{
    const char *base = getenv("BRIM_RUNS");
    return base && *base ? base : "runs";
}

int folder_sync(const char *path)
{
    int fd = fault_hit(FAULT_OPEN) ? -1 : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_sys("%s", path);
    int rc = fault_hit(FAULT_FSYNC) ? -1 : fsync(fd);
    /* Some network file systems cannot sync a folder and say EINVAL; the names stand all the same. */
    if (rc != 0 && errno == EINVAL) rc = 0;
    if (rc != 0) err_sys("%s: fsync", path);
    close(fd);
    return rc;
}

/* Swaps two folders, atomically where the file system can. */
static int exchange(const char *tmp, const char *path)
{
    char aside[PATH_MAX];
    if (renameat2(AT_FDCWD, tmp, AT_FDCWD, path, RENAME_EXCHANGE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return err_sys("%s: rename", path);
    int n = snprintf(aside, sizeof aside, "%s-aside", tmp);
    if (n < 0 || (size_t)n >= sizeof aside) return err_set("%s: path too long", tmp);
    if (rename(path, aside) != 0) return err_sys("%s: rename", path);
    if (rename(tmp, path) != 0) {
        err_sys("%s: rename", path);
        if (rename(aside, path) != 0) err_sys("%s: rename", path); /* the first cause is the one reported */
        return -1;
    }
    return rename(aside, tmp) == 0 ? 0 : err_sys("%s: rename", aside);
}

int folder_publish(const char *tmp, const char *path)
{
    char parent[PATH_MAX];
    if (file_folder_of(path, parent, sizeof parent) < 0) return err_set("%s: path too long", path);
    int replaces = file_kind(path) == FILE_FOLDER;
    if (fault_hit(FAULT_RENAME)) return err_sys("%s: rename", path);
    if (replaces) {
        TRY(exchange(tmp, path));
    } else if (rename(tmp, path) != 0) {
        return err_sys("%s: rename", path);
    }
    TRY(folder_sync(parent));
    return replaces ? folder_remove(tmp) : 0;
}

int folder_make_out(const char *path, int *is_new)
{
    FileKind kind = file_kind(path);
    *is_new       = kind == FILE_NONE;
    if (kind == FILE_FOLDER) return 0;
    if (kind != FILE_NONE) return err_user("%s: is not a folder: name another one", path);
    if (file_make_folders(path) == 0) return 0;
    char why[1024];
    str_copy(why, sizeof why, err_get());
    err_clear();
    return err_user("%s", why);
}

void folder_sweep(const char *path, const char *prefix)
{
    char  **names, one[PATH_MAX];
    int64_t pid;
    Arena   a;
    arena_init(&a);
    int n = file_list(&a, path, "", &names);
    for (int i = 0; i < n; i++) {
        if (!str_starts_with(names[i], prefix)) continue;
        if (str_parse_int(names[i] + strlen(prefix), &pid) < 0 || pid < 1 || pid > INT_MAX) continue;
        if (kill((pid_t)pid, 0) == 0 || errno != ESRCH) continue;
        if (snprintf(one, sizeof one, "%s/%s", path, names[i]) < PATH_MAX) folder_remove(one);
    }
    err_clear();
    arena_deinit(&a);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

int folder_remove(const char *path)
{
    enum { MAX_OPEN = 16 };
    if (nftw(path, remove_one, MAX_OPEN, FTW_DEPTH | FTW_PHYS) == 0 || errno == ENOENT) return 0;
    return err_sys("%s: cannot be removed", path);
}
