#include "base/file.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/folder.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char tmp_mark[] = ".tmp-";

FileKind file_kind(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return FILE_NONE;
    return S_ISREG(st.st_mode) ? FILE_REGULAR : S_ISDIR(st.st_mode) ? FILE_FOLDER : FILE_OTHER;
}

int64_t file_size(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0) return err_sys("%s", path);
    if (!S_ISREG(st.st_mode)) return err_set("%s: not a regular file", path);
    return (int64_t)st.st_size;
}

/* A descriptor on a regular file, or negative after err_set(). */
static int open_regular(const char *path, struct stat *st)
{
    /* O_NONBLOCK: opening a pipe without a writer would hang before fstat could refuse the pipe. */
    int fd = fault_hit(FAULT_OPEN) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return err_sys("%s", path);
    if (fstat(fd, st) != 0) {
        err_sys("%s", path);
    } else if (S_ISDIR(st->st_mode)) {
        err_set("%s: is a directory", path);
    } else if (!S_ISREG(st->st_mode)) {
        err_set("%s: not a regular file", path);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

/* Reads until the end or until cap bytes are there. */
static ssize_t read_up_to(int fd, char *buf, size_t cap)
{
    size_t used = 0;
    while (used < cap) {
        ssize_t n = fault_hit(FAULT_READ) ? -1 : read(fd, buf + used, cap - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        if (n == 0) break;
        used += (size_t)n;
    }
    return (ssize_t)used;
}

int file_read_all(const char *path, size_t max_bytes, char **data, size_t *size_bytes)
{
    struct stat st;
    int         fd = open_regular(path, &st), rc = -1;
    if (fd < 0) return -1;
    /* The size may be a lie (files in /proc say 0) or change, so what was read is checked again. */
    size_t  cap = MIN(st.st_size > 0 ? (size_t)st.st_size : (size_t)1 << 20, max_bytes);
    char   *buf = NULL;
    ssize_t n;
    if (st.st_size > 0 && (size_t)st.st_size > max_bytes) {
        err_set("%s: larger than %zu bytes", path, max_bytes);
        goto out;
    }
    buf = mem_alloc(cap + 1);
    if (!buf) {
        err_sys("%s: memory for %zu bytes", path, cap);
        goto out;
    }
    n = read_up_to(fd, buf, cap + 1);
    if (n < 0) {
        err_sys("%s", path);
        goto out;
    }
    if ((size_t)n > cap) {
        err_set(cap == max_bytes ? "%s: larger than %zu bytes"
                                 : "%s: grew beyond %zu bytes while it was read",
                path, cap);
        goto out;
    }
    buf[n]      = '\0';
    *data       = buf;
    *size_bytes = (size_t)n;
    buf         = NULL;
    rc          = 0;
out:
    free(buf);
    close(fd);
    return rc;
}

int file_read_at(int fd, const char *path, void *buf, size_t size_bytes, int64_t offset)
{
    size_t done = 0;
    while (done < size_bytes) {
        ssize_t n = fault_hit(FAULT_READ)
                        ? -1
                        : pread(fd, (char *)buf + done, size_bytes - done, (off_t)(offset + (int64_t)done));
        if (n < 0 && errno == EINTR) continue;
        int64_t at = offset + (int64_t)done;
        if (n < 0) return err_sys("%s: reading at byte %lld", path, (long long)at);
        if (n == 0) {
            struct stat st; /* reading may have begun behind the end */
            if (fstat(fd, &st) == 0) at = MIN(at, (int64_t)st.st_size);
            return err_set("%s: ends at byte %lld: the file became shorter while it was in use", path,
                           (long long)at);
        }
        done += (size_t)n;
    }
    return 0;
}

/* ---- Writing in place ---------------------------------------------------------------------------------- */

static const char *foreign(const struct stat *st, const char *path, int folder, char *why, size_t n)
{
    const char *what = NULL;
    if (S_ISLNK(st->st_mode)) {
        what = "is a symbolic link, and nothing is written through links";
    } else if (folder && !S_ISDIR(st->st_mode)) {
        what = "is not a folder";
    } else if (!folder && S_ISDIR(st->st_mode)) {
        what = "is a folder, a plain file belongs there";
    } else if (!folder && !S_ISREG(st->st_mode)) {
        what = "is not a plain file";
    } else if (!folder && st->st_nlink > 1) {
        what = "has a second name elsewhere (a hard link), whose contents would change";
    }
    if (!what) return NULL;
    snprintf(why, n, "%s %s", path, what);
    return why;
}

const char *file_foreign(const char *path, int folder, char *why, size_t n)
{
    struct stat st;
    return lstat(path, &st) == 0 ? foreign(&st, path, folder, why, n) : NULL;
}

int file_open_own(const char *path, int flags, char *why, size_t n)
{
    struct stat st;
    int         safe = flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, cause = ELOOP;
    /* Looked at before, because opening some devices already does something; and after, because names
     * change. */
    if (file_foreign(path, 0, why, n)) {
        errno = cause;
        return -1;
    }
    int fd = fault_hit(FAULT_OPEN) ? -1 : open(path, safe, 0666);
    if (fd >= 0 && fstat(fd, &st) == 0 && !foreign(&st, path, 0, why, n)) return fd;
    if (fd < 0) {
        cause = errno;
        snprintf(why, n, "%s: %s", path, strerror(cause));
    } else {
        close(fd);
    }
    errno = cause;
    return -1;
}

/* ---- Publishing ---------------------------------------------------------------------------------------- */

FILE *file_create_tmp(const char *path)
{
    char tmp[PATH_MAX];
    int  fd = -1;
    for (int i = 0; i < 1000 && fd < 0; i++) {
        int n = snprintf(tmp, sizeof tmp, "%s%s%ld-%d", path, tmp_mark, (long)getpid(), i);
        if (n < 0 || (size_t)n >= sizeof tmp) errno = ENAMETOOLONG;
        int fail = n < 0 || (size_t)n >= sizeof tmp || fault_hit(FAULT_OPEN);
        /* O_EXCL: another thread, or another host on the same file system, may use the same name. */
        fd = fail ? -1 : open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) {
        err_sys("%s", path);
        return NULL;
    }
    FILE *f = fdopen(fd, "w+");
    if (!f) {
        err_sys("%s", path);
        close(fd);
        unlink(tmp);
    }
    return f;
}

/* Where NAME ends in "NAME.tmp-PID-N"; NULL for a path that file_create_tmp() does not give. */
static char *find_mark(char *path)
{
    static const char digits[] = "0123456789";
    char             *mark     = NULL;
    for (char *p = path; (p = strstr(p, tmp_mark)); p++) mark = p;
    if (!mark) return NULL;
    const char *pid = mark + strlen(tmp_mark), *dash = pid + strspn(pid, digits);
    if (dash == pid || *dash != '-' || !dash[1]) return NULL;
    return dash[1 + strspn(dash + 1, digits)] == '\0' ? mark : NULL;
}

int file_is_tmp(const char *name)
{
    char copy[PATH_MAX];
    return str_copy(copy, sizeof copy, name) == 0 && find_mark(copy);
}

/* The temporary file's present name. The kernel knows it, so no table of open files is needed. */
static int tmp_name(FILE *f, char *buf, size_t n)
{
    static const char gone[] = " (deleted)"; /* what the kernel appends once somebody removed the file */
    char              link[64];
    ssize_t           len;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fileno(f));
    len = readlink(link, buf, n - 1);
    if (len < 0) return -1;
    buf[len] = '\0';
    if (str_ends_with(buf, gone)) buf[(size_t)len - strlen(gone)] = '\0';
    return find_mark(buf) ? 0 : -1; /* never touch a file that is not a temporary one */
}

int file_write(FILE *f, const void *data, size_t size_bytes)
{
    char name[PATH_MAX];
    if (!fault_hit(FAULT_WRITE) && fwrite(data, 1, size_bytes, f) == size_bytes) return 0;
    int cause = errno;
    if (tmp_name(f, name, sizeof name) < 0) str_copy(name, sizeof name, "a file");
    char *mark = find_mark(name);
    if (mark) *mark = '\0'; /* the name that the file would have got */
    errno = cause;
    err_sys("%s: write", name);
    errno = cause;
    return -1;
}

static int sync_folder_of(const char *path)
{
    char folder[PATH_MAX];
    if (file_folder_of(path, folder, sizeof folder) < 0) return err_set("%s: path too long", path);
    return folder_sync(folder);
}

int file_publish(FILE **f, const char *path)
{
    char tmp[PATH_MAX];
    CHECK(*f != NULL, "nothing to publish as %s", path);
    if (tmp_name(*f, tmp, sizeof tmp) < 0) {
        err_sys("%s: its temporary file is gone", path);
        goto fail;
    }
    if (fault_hit(FAULT_WRITE) || fflush(*f) != 0 || ferror(*f)) {
        err_sys("%s: write", path);
        goto fail;
    }
    if (fault_hit(FAULT_FSYNC) || fsync(fileno(*f)) != 0) {
        err_sys("%s: fsync", path);
        goto fail;
    }
    if (fault_hit(FAULT_RENAME) || rename(tmp, path) != 0) {
        err_sys("%s: rename", path);
        goto fail;
    }
    /* Everything was flushed, so closing has nothing left to write. */
    int rc = fclose(*f) == 0 ? 0 : err_sys("%s: close", path);
    *f     = NULL;
    return rc < 0 ? rc : sync_folder_of(path);
fail:
    file_discard(f);
    return -1;
}

void file_discard(FILE **f)
{
    char tmp[PATH_MAX];
    if (!*f) return;
    int known = tmp_name(*f, tmp, sizeof tmp) == 0;
    fclose(*f); /* its result does not matter: the file goes away */
    if (known) unlink(tmp);
    *f = NULL;
}

int file_sweep_tmp(const char *folder)
{
    DIR *d = fault_hit(FAULT_OPEN) ? NULL : opendir(folder);
    if (!d) return err_sys("%s", folder);
    int rc = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        if (!file_is_tmp(e->d_name)) continue;
        if (unlinkat(dirfd(d), e->d_name, 0) != 0 && errno != ENOENT && errno != EISDIR)
            rc = err_sys("%s/%s", folder, e->d_name);
    }
    closedir(d);
    return rc;
}

/* ---- Folders ------------------------------------------------------------------------------------------- */

int file_make_folders(const char *path)
{
    char part[PATH_MAX];
    if (str_copy(part, sizeof part, path) < 0 || !*path) return err_set("%s: not a usable folder name", path);
    for (char *p = part + 1;; p++) {
        if (*p != '/' && *p != '\0') continue;
        char end = *p;
        *p       = '\0';
        /* Try again if the folder existed a moment ago: another process whose start failed has removed it. */
        enum { TRIES = 100 };
        for (int i = 0; mkdir(part, 0777) != 0; i++) {
            int      cause = errno;
            FileKind kind  = file_kind(part);
            if (kind == FILE_FOLDER) break;
            if (cause == EEXIST && kind == FILE_NONE && i < TRIES) continue;
            errno = cause == EEXIST ? ENOTDIR : cause; /* a file, or a link to nothing, has the name */
            return err_sys("%s", part);
        }
        if (end == '\0') return 0;
        *p = end;
    }
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int file_list(Arena *a, const char *folder, const char *suffix, char ***names)
{
    DIR *d = fault_hit(FAULT_OPEN) ? NULL : opendir(folder);
    if (!d) return err_sys("%s", folder);
    int    n = 0, room = 64;
    char **list = ARENA_ARRAY(a, char *, room);
    for (;;) {
        errno            = 0;
        struct dirent *e = readdir(d);
        if (!e) break;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || !str_ends_with(e->d_name, suffix))
            continue;
        if (n == room) {
            char **more = ARENA_ARRAY(a, char *, 2 * room);
            memcpy(more, list, sizeof *list * (size_t)n);
            list = more;
            room *= 2;
        }
        list[n++] = arena_strdup(a, e->d_name);
    }
    int failed = errno;
    closedir(d);
    errno = failed;
    if (failed != 0) return err_sys("%s", folder);
    qsort(list, (size_t)n, sizeof *list, compare_names);
    *names = list;
    return n;
}

int file_folder_of(const char *path, char *buf, size_t n)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return str_copy(buf, n, ".");
    size_t len = slash == path ? 1 : (size_t)(slash - path);
    if (len >= n) return -1;
    memcpy(buf, path, len);
    buf[len] = '\0';
    return 0;
}

const char *file_name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int file_refuse_open(const char *name)
{
    if (errno == ENOENT) return err_user("%s: no such file", name);
    return err_user("%s: cannot be opened: %s", name, strerror(errno));
}

/* ---- Mapping ------------------------------------------------------------------------------------------- */

int file_map(FileMap *m, const char *path)
{
    struct stat st;
    m->data       = NULL;
    m->size_bytes = 0;
    int fd        = open_regular(path, &st);
    if (fd < 0) return -1;
    if (st.st_size == 0) { /* mmap refuses 0 bytes */
        m->data = "";
        close(fd);
        return 0;
    }
    void *p =
        fault_hit(FAULT_MMAP) ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) err_sys("%s: mmap", path);
    close(fd); /* the mapping keeps the file */
    if (p == MAP_FAILED) return -1;
    m->data       = p;
    m->size_bytes = (size_t)st.st_size;
    return 0;
}

void file_unmap(FileMap *m)
{
    if (m->size_bytes > 0) munmap((void *)(uintptr_t)m->data, m->size_bytes);
    m->data       = NULL;
    m->size_bytes = 0;
}

int file_copy(const char *from, const char *to)
{
    enum { MOST = 256 << 20 };
    char  *data;
    size_t n;
    TRY(file_read_all(from, MOST, &data, &n));
    FILE *f  = file_create_tmp(to);
    int   rc = f ? file_write(f, data, n) : -1;
    if (rc == 0) rc = file_publish(&f, to);
    file_discard(&f);
    free(data);
    return rc;
}
