#include "watch/runs.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "run/rundir.h"
#include "watch/host.h"

#include <ctype.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const double STILL_TRAINING_S = 60;

const char *runs_state_name(RunState s)
{
    return s == RUN_TRAINING ? "training" : s == RUN_DONE ? "done" : "stopped";
}

int runs_init(Runs *r, const char *base)
{
    memset(r, 0, sizeof *r);
    return str_copy(r->base, sizeof r->base, base) < 0 ? err_set("%s: path too long", base) : 0;
}

int runs_init_one(Runs *r, const char *base, const char *name)
{
    TRY(runs_init(r, base));
    return str_copy(r->only, sizeof r->only, name) < 0 ? err_set("%s: the name is too long", name) : 0;
}

static void close_full(RunView *v)
{
    if (v->full) series_deinit(v->full);
    free(v->full);
    v->full = NULL;
}

static void close_view(RunView *v)
{
    series_deinit(&v->tail);
    close_full(v);
    free(v);
}

void runs_deinit(Runs *r)
{
    for (int i = 0; i < r->n_run; i++) close_view(r->run[i]);
    r->n_run = 0;
}

int runs_path(const Runs *r, const RunView *v, const char *file, char *buf, size_t n)
{
    int len = snprintf(buf, n, "%s/%s/%s", r->base, v->name, file);
    return len >= 0 && (size_t)len < n ? 0 : -1;
}

RunView *runs_find(Runs *r, const char *name)
{
    for (int i = 0; i < r->n_run; i++) {
        if (strcmp(r->run[i]->name, name) == 0) return r->run[i];
    }
    return NULL;
}

RunView *runs_need(Runs *r, const char *name)
{
    char     shown[128], recipe[1400], where[1100];
    RunView *v = runs_find(r, name);
    if (v) return v;
    str_quote(shown, sizeof shown, name, strlen(name));
    snprintf(recipe, sizeof recipe, "%s/%s/recipe.yaml", r->base, name);
    if (access(recipe, F_OK) == 0) {
        err_user("command line: %s: this run has no steps yet", shown);
    } else {
        StrNearest near = str_nearest_begin(name);
        for (int i = 0; i < r->n_run; i++) str_nearest_offer(&near, r->run[i]->name);
        snprintf(where, sizeof where, "there is none in %s", r->base);
        err_user("command line: %s: no such run%s", shown,
                 str_nearest_hint(&near, where, recipe, sizeof recipe));
    }
    return NULL;
}

/* ---- Facts --------------------------------------------------------------------------------------------- */

/* The number behind "key:" at the beginning of a line; for runs that have no watch.json. */
static int64_t yaml_int(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *at = text; at; at = strchr(at, '\n')) {
        at += *at == '\n';
        if (strncmp(at, key, n) == 0 && at[n] == ':') return strtoll(at + n + 1, NULL, 10);
    }
    return 0;
}

static void read_facts(const Runs *r, RunView *v)
{
    char *text = runs_text(r, v, "watch.json", 1 << 16);
    str_copy(v->unit, sizeof v->unit, "unit");
    if (facts_read(&v->facts, text)) {
        v->steps = v->facts.steps;
        if (v->facts.unit[0]) str_copy(v->unit, sizeof v->unit, v->facts.unit);
    } else {
        char *recipe = runs_text(r, v, "recipe.yaml", 1 << 16);
        if (recipe) v->steps = yaml_int(recipe, "steps");
        free(recipe);
    }
    str_copy(v->device, sizeof v->device, v->facts.device);
    str_copy(v->activity, sizeof v->activity, v->facts.activity);
    /* Runs of older versions have no plural. */
    snprintf(v->units, sizeof v->units, v->facts.units[0] ? "%s" : "%ss",
             v->facts.units[0] ? v->facts.units : v->unit);
    free(text);
}

/* Reads the facts if the file is another one than before. 1: they were read. */
static int follow_facts(const Runs *r, RunView *v)
{
    char        path[1400], mark[sizeof v->facts_mark] = "none";
    struct stat st;
    if (runs_path(r, v, "watch.json", path, sizeof path) == 0 && stat(path, &st) == 0) {
        snprintf(mark, sizeof mark, "%llu.%lld.%09ld", (unsigned long long)st.st_ino,
                 (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    }
    if (strcmp(mark, v->facts_mark) == 0) return 0;
    str_copy(v->facts_mark, sizeof v->facts_mark, mark);
    read_facts(r, v);
    return 1;
}

/* 1: the log has another length than before. */
static int follow_log(const Runs *r, RunView *v)
{
    char        path[1400];
    struct stat st;
    int64_t     was = v->log_bytes;
    int         is  = runs_path(r, v, "log.txt", path, sizeof path) == 0 && stat(path, &st) == 0;
    v->log_bytes    = is ? st.st_size : 0;
    return v->log_bytes != was;
}

/* 1 when the process holds a flock() on the file; pid 0: some process of this machine. The inode alone is not
 * enough, since another file system may have the same. Its device in the kernel's list is not always that of
 * stat(). */
static int is_locked(const char *path, int64_t pid)
{
    struct stat st;
    char        line[256], inode[64], owner[32] = "";
    int         found = 0;
    if (stat(path, &st) != 0) return 0;
    snprintf(inode, sizeof inode, ":%llu ", (unsigned long long)st.st_ino);
    if (pid > 0) snprintf(owner, sizeof owner, " %lld ", (long long)pid);
    FILE *f = fopen("/proc/locks", "re");
    while (f && !found && fgets(line, sizeof line, f))
        found = strstr(line, "FLOCK") && strstr(line, inode) && strstr(line, owner);
    if (f) fclose(f);
    return found;
}

static int has_its_steps(const RunView *v)
{
    return v->steps > 0 && series_last(&v->tail, "step") >= (double)v->steps;
}

double runs_recent(const RunView *v, const char *key)
{
    return series_mean(&v->tail, key, strcmp(key, "loss") == 0 ? RUNS_LOSS_STEPS : RUNS_RATE_STEPS);
}

const char *runs_recent_steps(const RunView *v, char *buf, size_t n)
{
    const Series *s = &v->tail;
    double        first, last;
    buf[0] = '\0';
    if (series_span(s, "per_s", RUNS_RATE_STEPS, &first, &last))
        snprintf(buf, n, "%.0f to %.0f", first, last);
    return buf;
}

int runs_has_target(const RunView *v)
{
    const RunFacts *f   = &v->facts;
    double          val = series_last(&v->tail, facts_best(f));
    return !isnan(f->target) && (facts_best_larger(f) ? val >= f->target : val <= f->target);
}

/* A lock that is not held here may be held on another machine: then its metrics still grow. */
static int is_training(const Runs *r, const RunView *v)
{
    char path[1400];
    if (runs_path(r, v, "lock", path, sizeof path) < 0 || access(path, F_OK) != 0) return 0;
    int64_t pid = rundir_owner(path);
    if (pid > 0 && !host_process_lives((int)pid)) return 0;
    return is_locked(path, pid) || clock_wall_s() - v->changed_s < STILL_TRAINING_S;
}

/* Of a run that does not train: 1 when its last process left the lock behind. What the metrics say of the
 * last step may not have been saved. */
static int was_killed(const Runs *r, const RunView *v)
{
    char path[1400];
    return runs_path(r, v, "lock", path, sizeof path) == 0 && access(path, F_OK) == 0;
}

static RunState state_of(const Runs *r, const RunView *v)
{
    if (is_training(r, v)) return RUN_TRAINING;
    if (was_killed(r, v)) return RUN_STOPPED;
    return has_its_steps(v) || runs_has_target(v) ? RUN_DONE : RUN_STOPPED;
}

/* ---- The listing --------------------------------------------------------------------------------------- */

static RunView *add_view(Runs *r, const char *name)
{
    char     path[1400];
    RunView *v = (RunView *)mem_zeroed(1, sizeof *v);
    if (!v) return NULL;
    str_copy(v->name, sizeof v->name, name);
    if (runs_path(r, v, "metrics.jsonl", path, sizeof path) < 0 ||
        series_init(&v->tail, path, RUNS_TAIL_ROWS, RUNS_TAIL_BYTES) < 0) {
        err_clear();
        free(v);
        return NULL;
    }
    r->run[r->n_run++] = v;
    return v;
}

static int by_change(const void *a, const void *b)
{
    const RunView *x = *(RunView *const *)a, *y = *(RunView *const *)b;
    if ((x->state == RUN_TRAINING) != (y->state == RUN_TRAINING)) return x->state == RUN_TRAINING ? -1 : 1;
    if (x->changed_s != y->changed_s) return x->changed_s > y->changed_s ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* 1 when folder is a run; *changed_s is when its metrics were written last. */
static int is_run(const Runs *r, const char *name, double *changed_s)
{
    char        path[1400];
    struct stat st;
    int         n = snprintf(path, sizeof path, "%s/%s/metrics.jsonl", r->base, name);
    if (name[0] == '.' || n < 0 || n >= (int)sizeof path || strlen(name) >= RUNS_NAME ||
        !str_is_printable(name) || stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
        return 0;
    }
    *changed_s = (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec;
    return 1;
}

static void drop_unseen(Runs *r)
{
    int kept = 0;
    for (int i = 0; i < r->n_run; i++) {
        if (r->run[i]->is_seen) {
            r->run[kept++] = r->run[i];
        } else {
            close_view(r->run[i]);
        }
    }
    r->n_run = kept;
}

/* Makes room by the run that changed longest ago, if that is older. The others stay: most of them have not
 * been looked at yet in this listing. */
static RunView *room_for(Runs *r, const char *name, double changed_s)
{
    int oldest = 0;
    if (r->n_run < RUNS_MOST) return add_view(r, name);
    for (int i = 1; i < r->n_run; i++) {
        if (r->run[i]->changed_s < r->run[oldest]->changed_s) oldest = i;
    }
    if (r->run[oldest]->changed_s >= changed_s) return NULL;
    close_view(r->run[oldest]);
    r->run[oldest] = r->run[--r->n_run];
    return add_view(r, name);
}

static int list_runs(Runs *r)
{
    Arena arena;
    char *one = r->only, **names = &one;
    int   changed = 0, before = r->n_run;
    arena_init(&arena);
    int n = r->only[0] ? 1 : file_list(&arena, r->base, "", &names);
    err_clear(); /* no folder: no runs */
    for (int i = 0; i < r->n_run; i++) r->run[i]->is_seen = 0;
    for (int i = 0; i < n; i++) {
        double   changed_s;
        RunView *v = runs_find(r, names[i]);
        if (!is_run(r, names[i], &changed_s)) continue;
        if (v) v->is_seen = 1;
        if (!v && (v = room_for(r, names[i], changed_s))) {
            v->is_seen = 1;
            changed    = 1;
        }
        if (v) v->changed_s = changed_s;
    }
    drop_unseen(r);
    arena_deinit(&arena);
    return changed || r->n_run != before;
}

int runs_refresh(Runs *r)
{
    int changed = list_runs(r);
    for (int i = 0; i < r->n_run; i++) {
        RunView *v  = r->run[i];
        int      rc = series_follow(&v->tail);
        if (rc < 0) err_clear();
        changed |= follow_facts(r, v) || rc > 0;
        changed |= follow_log(r, v);
        RunState now = state_of(r, v);
        changed |= now != v->state;
        v->state = now;
    }
    qsort(r->run, (size_t)r->n_run, sizeof r->run[0], by_change);
    return changed;
}

/* ---- All of a run -------------------------------------------------------------------------------------- */

Series *runs_series(Runs *r, RunView *v)
{
    int      n_open = 0;
    RunView *oldest = NULL;
    v->asked        = ++r->n_asked;
    if (!v->full) {
        for (int i = 0; i < r->n_run; i++) {
            if (!r->run[i]->full) continue;
            n_open++;
            if (!oldest || r->run[i]->asked < oldest->asked) oldest = r->run[i];
        }
        if (n_open >= RUNS_OPEN) close_full(oldest);
        v->full = (Series *)mem_alloc(sizeof *v->full);
        if (!v->full) {
            err_sys("memory for %s", v->name);
            return NULL;
        }
        if (series_init(v->full, v->tail.path, SERIES_ROWS, -1) < 0) {
            close_full(v);
            return NULL;
        }
    }
    return series_follow(v->full) < 0 ? NULL : v->full;
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

void runs_blot(char *text)
{
    static const char *const mark[] = { "watch.token=", "?token=" };
    for (int i = 0; i < ARRAY_LEN(mark); i++) {
        for (char *at = strstr(text, mark[i]); at; at = strstr(at, mark[i])) {
            at += strlen(mark[i]);
            while (*at == ' ') at++;
            for (; *at && !isspace((unsigned char)*at); at++) *at = '*';
        }
    }
}

/* Bytes *from to *to of a file of *to bytes, the last max of them; a line that begins before them is cut. */
static char *read_part(int fd, int64_t *from, int64_t *to, size_t max)
{
    char   *text  = (char *)mem_alloc(max + 1);
    int64_t begin = MAX(*from, *to - (int64_t)max);
    if (!text) return NULL;
    ssize_t n           = pread(fd, text, (size_t)(*to - begin), begin);
    text[n > 0 ? n : 0] = '\0';
    char *first         = begin > *from ? strchr(text, '\n') : NULL;
    *to                 = begin + MAX(n, 0);
    *from               = begin + (first ? first + 1 - text : 0);
    if (first) memmove(text, first + 1, strlen(first + 1) + 1);
    return text;
}

static int open_text(const Runs *r, const RunView *v, const char *file, int64_t *size_bytes)
{
    char        path[1400];
    struct stat st;
    if (runs_path(r, v, file, path, sizeof path) < 0) return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) return -1;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return -1;
    }
    *size_bytes = st.st_size;
    return fd;
}

char *runs_text(const Runs *r, const RunView *v, const char *file, size_t max)
{
    int64_t from = 0, to;
    int     fd   = open_text(r, v, file, &to);
    if (fd < 0) return NULL;
    char *text = read_part(fd, &from, &to, max);
    close(fd);
    if (text) runs_blot(text);
    return text;
}

char *runs_log(const Runs *r, const RunView *v, int64_t *from, int64_t *to, size_t max)
{
    int fd = open_text(r, v, "log.txt", to);
    if (fd < 0) return NULL;
    if (*from > *to || *from < 0) *from = 0;
    char *text = read_part(fd, from, to, max);
    close(fd);
    if (!text) return NULL;
    char *end = strrchr(text, '\n'), *behind = end ? end + 1 : text;
    *behind = '\0'; /* half a line waits for its end */
    *to     = *from + (behind - text);
    runs_blot(text);
    return text;
}
