#define _GNU_SOURCE /* AT_EACCESS */
#include "run/rundir.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

const char *rundir_base(void) { return folder_of_runs(); }

static const char tune_name[] = "tune.txt";

const char *rundir_tune_cache(char *buf, size_t n)
{
    snprintf(buf, n, "%s/%s", rundir_base(), tune_name);
    return buf;
}

/* ---- Paths --------------------------------------------------------------------------------------------- */

int rundir_paths(RunDir *d, const char *name)
{
    enum { NAME_MAX_BYTES = 200 /* a file name ends at 255, and .old-YYYYmmdd-HHMMSS-NNN comes behind it */ };
    char shown[128];
    memset(d, 0, sizeof *d);
    if (!*name || strchr(name, '/') || name[0] == '.' || strlen(name) > NAME_MAX_BYTES ||
        !str_is_printable(name)) {
        return err_user("run: \"%s\" cannot be the name of a folder",
                        str_quote(shown, sizeof shown, name, strlen(name)));
    }
    if (strcmp(name, tune_name) == 0)
        return err_user("run: %s is the file that keeps timings for all runs; a run needs another name",
                        name);
    const struct {
        char       *path;
        const char *file;
    } row[] = {
        { d->path, "" },
        { d->checkpoints, "/checkpoints" },
        { d->metrics, "/metrics.jsonl" },
        { d->plan, "/plan.txt" },
        { d->recipe, "/recipe.yaml" },
        { d->machine, "/machine.txt" },
        { d->lock, "/lock" },
        { d->log, "/log.txt" },
    };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        int n = snprintf(row[i].path, RUNDIR_PATH, "%s/%s%s", rundir_base(), name, row[i].file);
        if (n < 0 || n >= RUNDIR_PATH) return err_user("BRIM_RUNS: path too long");
    }
    return 0;
}

/* ---- The lock ------------------------------------------------------------------------------------------ */

/* Says who holds it, from the text that the holder left. */
static int refuse(const RunDir *d)
{
    char  *text = NULL, shown[128];
    size_t n;
    if (file_read_all(d->lock, 512, &text, &n) < 0) err_clear(); /* the holder may just have finished */
    if (text) text[strcspn(text, "\n")] = '\0';
    err_user("%s is in use by %s", d->path,
             text && *text ? str_quote(shown, sizeof shown, text, strlen(text)) : "another process");
    free(text);
    return -1;
}

/* Where the pid of a lock counts: the machine's name, and the kernel's name of this space of pids, which a
 * container has its own of. Returns buf. */
static const char *place_here(char *buf, size_t n)
{
    char    host[65] = "", space[64] = "";
    ssize_t len = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    if (gethostname(host, sizeof host - 1) != 0 || len < 0) len = 0;
    space[MAX(len, 0)] = '\0';
    snprintf(buf, n, "%s %s", host, space);
    return buf;
}

static int write_owner(const RunDir *d, int fd)
{
    char when[64], place[160], text[256];
    int  n = snprintf(text, sizeof text, "pid %ld (started %s)\non %s\n", (long)getpid(),
                      clock_date(when, sizeof when, "%Y-%m-%d %H:%M:%S"), place_here(place, sizeof place));
    if (ftruncate(fd, 0) != 0 || fault_hit(FAULT_WRITE) || pwrite(fd, text, (size_t)n, 0) != n) {
        return err_sys("%s: write", d->lock);
    }
    return 0;
}

int64_t rundir_owner(const char *lock)
{
    char  *text = NULL, here[160], place[160] = "";
    long   pid = 0;
    size_t n;
    if (file_read_all(lock, 512, &text, &n) < 0) err_clear(); /* the holder may just have finished */
    const char *second = text ? strchr(text, '\n') : NULL;
    if (second && sscanf(second, "\non %159[^\n]", place) == 1 &&
        strcmp(place, place_here(here, sizeof here)) == 0 && sscanf(text, "pid %ld ", &pid) != 1)
        pid = 0;
    free(text);
    return pid;
}

/* 1 when the descriptor's file is still the one under the lock's name: an owner that finishes removes it. */
static int is_current(const RunDir *d, int fd)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && lstat(d->lock, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* flock() with the file systems that have none made harmless: 0 locked, -1 held by another. */
static int lock_file(const RunDir *d, int fd)
{
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno == EINTR) continue;
        if (errno == EWOULDBLOCK) return -1;
        log_warn(
            "%s: this file system cannot lock files (%s): make sure that no other process trains this run",
            d->lock, strerror(errno));
        return 0;
    }
    return 0;
}

/* *made is set if the directory was gone and had to be made. */
static int lock_take(RunDir *d, int *made)
{
    enum { TRIES = 100 };
    char why[RUNDIR_PATH + 128];
    for (int i = 0; i < TRIES; i++) {
        int fd = file_open_own(d->lock, O_RDWR | O_CREAT, why, sizeof why);
        if (fd < 0 && errno == ENOENT) { /* one whose start failed has just taken its directory away */
            TRY(file_make_folders(d->path));
            *made = 1;
            continue;
        }
        if (fd < 0) return err_set("%s", why);
        if (lock_file(d, fd) < 0) {
            close(fd);
            return refuse(d);
        }
        if (is_current(d, fd)) {
            struct stat st;
            if (write_owner(d, fd) == 0 && stat(d->path, &st) == 0) {
                d->lock_fd = fd;
                d->is_open = 1;
                d->device  = st.st_dev;
                d->inode   = st.st_ino;
                return 0;
            }
            err_sys("%s", d->path);
            unlink(d->lock);
            close(fd);
            return -1;
        }
        close(fd); /* locked the file of an owner that was just finishing */
    }
    return err_set("%s: changes too often", d->lock);
}

void rundir_close(RunDir *d)
{
    if (!d->is_open) return;
    if (is_current(d, d->lock_fd)) {
        if (d->is_new) rmdir(d->checkpoints);
        unlink(d->lock);
        if (d->is_new) rmdir(d->path); /* fails when it holds anything, also the lock of the next one */
    }
    close(d->lock_fd);
    d->is_open = 0;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

/* What stands where this run will write is a plain file, or a folder, of the run alone (log.txt: else there
 * is none). So that nothing outside the directory changes, and no pipe makes a start hang, whoever filled the
 * directory. */
static int check_contents(const RunDir *d)
{
    const char *const file[] = { d->lock, d->metrics, d->recipe, d->plan, d->machine };
    char              why[RUNDIR_PATH + 128];
    for (int i = 0; i < ARRAY_LEN(file); i++) {
        if (file_foreign(file[i], 0, why, sizeof why)) return err_user("%s", why);
    }
    return file_foreign(d->checkpoints, 1, why, sizeof why) ? err_user("%s", why) : 0;
}

/* A run that cannot save would find that out after its first steps. */
static int check_writable(const char *folder)
{
    if (faccessat(AT_FDCWD, folder, R_OK | W_OK | X_OK, AT_EACCESS) == 0) return 0;
    return err_sys("%s: a run must be able to write there", folder);
}

static int make_folders(RunDir *d)
{
    TRY(file_make_folders(d->checkpoints));
    TRY(check_writable(d->path));
    TRY(check_writable(d->checkpoints));
    TRY(file_sweep_tmp(d->path));
    TRY(folder_sync(d->path)); /* a checkpoint is only as durable as the names above it */
    return folder_sync(rundir_base());
}

/* A folder for runs that cannot be made is most often BRIM_RUNS misspelt. */
static int make_run_folder(const RunDir *d)
{
    char        cause[700];
    const char *base = getenv("BRIM_RUNS");
    if (file_make_folders(d->path) == 0) return 0;
    if (file_kind(rundir_base()) == FILE_FOLDER) return -1;
    str_copy(cause, sizeof cause, err_get());
    err_clear();
    return err_set("%s (%s is the folder for runs%s)", cause, rundir_base(),
                   base && *base ? ", from BRIM_RUNS" : "; BRIM_RUNS names another");
}

/* Whether a directory is new is seen under its lock: every owner that stays has made the folder of
 * checkpoints. */
static int make_and_lock(RunDir *d)
{
    int made = file_kind(d->path) == FILE_NONE;
    TRY(make_run_folder(d));
    TRY(check_contents(d));
    if (lock_take(d, &made) < 0) {
        if (made) rmdir(d->path); /* fails while another one's lock is in it */
        return -1;
    }
    d->is_new = made && file_kind(d->checkpoints) == FILE_NONE;
    int rc    = make_folders(d);
    if (rc < 0) rundir_close(d);
    return rc;
}

int rundir_open(RunDir *d, const char *name)
{
    TRY(rundir_paths(d, name));
    return make_and_lock(d);
}

/* Renames the directory, whose lock is held, so that none is moved from under a run. Closed afterwards, or as
 * before when it fails. */
static int move_aside(RunDir *d)
{
    char when[32], old[RUNDIR_PATH + 64], lock[sizeof old + 8];
    clock_date(when, sizeof when, "%Y%m%d-%H%M%S");
    snprintf(old, sizeof old, "%s.old-%s", d->path, when);
    for (int i = 2; file_kind(old) != FILE_NONE; i++)
        snprintf(old, sizeof old, "%s.old-%s-%d", d->path, when, i);
    if (fault_hit(FAULT_RENAME) || rename(d->path, old) != 0) return err_sys("%s: rename", d->path);
    snprintf(lock, sizeof lock, "%s/lock", old);
    unlink(lock);
    rundir_close(d);
    log_info("the old %s is now %s", d->path, old);
    return folder_sync(rundir_base());
}

int rundir_begin(RunDir *d, int fresh)
{
    int made = rundir_hold(d);
    if (made < 0) return -1;
    if (fresh && !made && !d->is_new) {
        TRY(move_aside(d));
        TRY(make_and_lock(d));
    }
    d->is_new = 0;
    return 0;
}

int rundir_is_lost(const RunDir *d)
{
    struct stat st;
    return stat(d->path, &st) == 0 && (st.st_dev != d->device || st.st_ino != d->inode);
}

int rundir_hold(RunDir *d)
{
    CHECK(d->is_open, "%s is not open", d->path);
    if (is_current(d, d->lock_fd)) return file_make_folders(d->checkpoints);
    RunDir again = *d;
    int    made  = file_kind(d->path) == FILE_NONE;
    if (rundir_is_lost(d)) return err_set("%s is the directory of another run now", d->path);
    TRY(file_make_folders(d->path));
    TRY(lock_take(&again, &made));
    close(d->lock_fd);
    *d = again;
    TRY(file_make_folders(d->checkpoints));
    return made;
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

/* 1 for a complete line that stays. */
static int line_stays(const char *line, size_t n, int64_t first_step)
{
    if (n == 0 || line[n - 1] != '\n') return 0; /* cut off while it was written */
    json_t *root = json_loadb(line, n, 0, NULL);
    json_t *step = json_object_get(root, "step");
    int     stay =
        json_is_object(root) && !(json_is_number(step) && json_number_value(step) >= (double)first_step);
    json_decref(root);
    return stay;
}

/* Copies the lines that stay to out (NULL: only counts). Returns how many do not. */
static int copy_lines(const char *path, FILE *in, FILE *out, int64_t first_step)
{
    char  *line    = NULL;
    size_t room    = 0;
    int    dropped = 0, rc = 0;
    for (;;) {
        ssize_t n = fault_hit(FAULT_READ) ? -2 : getline(&line, &room, in);
        if (n == -2 || (n < 0 && !feof(in))) rc = err_sys("%s", path);
        if (n < 0) break;
        if (!line_stays(line, (size_t)n, first_step)) {
            dropped++;
        } else if (out && (rc = file_write(out, line, (size_t)n)) < 0) {
            break;
        }
    }
    free(line);
    return rc < 0 ? rc : dropped;
}

static int rewrite_lines(const char *path, FILE *in, int64_t first_step)
{
    FILE *out = file_create_tmp(path);
    if (!out) return -1;
    int dropped = copy_lines(path, in, out, first_step), rc = MIN(dropped, 0);
    if (rc == 0) rc = file_publish(&out, path);
    file_discard(&out);
    return rc < 0 ? rc : dropped;
}

static FILE *open_lines(const char *path, char *why, size_t n)
{
    int   fd = file_open_own(path, O_RDONLY, why, n);
    FILE *f  = fd < 0 ? NULL : fdopen(fd, "r");
    if (f || fd < 0) return f;
    snprintf(why, n, "%s: %s", path, strerror(errno));
    close(fd);
    return NULL;
}

int rundir_trim(const char *path, int64_t first_step)
{
    char  why[RUNDIR_PATH + 128];
    FILE *in = open_lines(path, why, sizeof why);
    if (!in) return errno == ENOENT ? 0 : err_set("%s", why);
    int dropped = copy_lines(path, in, NULL, first_step);
    if (dropped > 0) {
        rewind(in);
        dropped = rewrite_lines(path, in, first_step);
    }
    fclose(in);
    return dropped;
}

int64_t rundir_last_step(const RunDir *d)
{
    char   *line = NULL;
    size_t  room = 0;
    int64_t last = 0;
    char    why[RUNDIR_PATH + 128];
    FILE   *in = open_lines(d->metrics, why, sizeof why);
    if (!in) return 0;
    while (getline(&line, &room, in) >= 0) {
        json_t *root = json_loads(line, 0, NULL); /* none where a kill cut the line off */
        if (json_object_get(root, "loss")) last = json_integer_value(json_object_get(root, "step"));
        json_decref(root);
    }
    free(line);
    fclose(in);
    return last;
}

int rundir_has_eval(const RunDir *d, int64_t step)
{
    char  *line = NULL;
    size_t room = 0;
    int    has  = 0;
    char   why[RUNDIR_PATH + 128];
    FILE  *in = open_lines(d->metrics, why, sizeof why);
    if (!in) return 0;
    while (!has && getline(&line, &room, in) >= 0) {
        json_t     *root = json_loads(line, 0, NULL);
        const char *key;
        json_t     *value; /* may be null: what a number that is not finite gives */
        json_object_foreach(root, key, value) has |= str_starts_with(key, "val_");
        has = has && json_integer_value(json_object_get(root, "step")) == step;
        json_decref(root);
    }
    free(line);
    fclose(in);
    return has;
}
