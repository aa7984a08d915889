#define _GNU_SOURCE
#include "env/remote.h"

#include "base/err.h"
#include "base/file.h"
#include "base/hostmem.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "env/envlib.h"
#include "env/process.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    START_S = 60 /* importing Gymnasium on a slow disk takes long, on a core of its own */,
    MAX_ARG = ENVLIB_MAX_OPTION + 8
};

typedef struct {
    Process process;
    int     first, n; /* environments */
    int     memory;   /* memfd */
    char   *at;       /* mapped; NULL before the spec is known */
    int     lost;     /* in a row */
    int     n_good;   /* steps since the last loss */
    int     is_lost;  /* in the step that runs */
    int     must_cut; /* lost between two steps: the next one ends the episodes of all */
} Worker;

struct Remote {
    RemoteConf     conf;
    const EnvSpec *spec;
    Worker        *worker;
    int            n_worker;
    RemoteLayout  *layout; /* [n_worker] */
    int64_t        restarts;
    char           script[512], program[512];
    char           said[1024]; /* the last reason in the log */
};

/* ---- memory -------------------------------------------------------------------------------------------- */

static int64_t place(int64_t *total, int64_t bytes)
{
    int64_t at = *total;
    *total     = (at + bytes + 63) / 64 * 64;
    return at;
}

RemoteLayout remote_layout(const EnvSpec *spec, int n)
{
    const EnvInfo *i    = &spec->info;
    int64_t        rows = (int64_t)n * i->n_agent, total = 0;
    RemoteLayout   l;
    memset(&l, 0, sizeof l);
    for (int k = 0; k < i->n_obs; k++) l.obs[k] = place(&total, rows * spec->block_bytes[k]);
    l.act         = place(&total, rows * i->n_act * 4);
    l.reward      = place(&total, rows * 4);
    l.end         = place(&total, n);
    l.mask        = place(&total, rows * spec->n_mask);
    l.alive       = place(&total, rows);
    l.which       = place(&total, n);
    l.seed        = place(&total, (int64_t)n * 8);
    l.current     = place(&total, 4);
    l.total_bytes = total;
    return l;
}

static int write_layout(const RemoteLayout *l, int n_obs, char *buf, size_t cap)
{
    JsonOut o;
    json_out_init_buf(&o, buf, cap);
    json_out_object(&o, NULL);
    json_out_array(&o, "obs");
    for (int k = 0; k < n_obs; k++) json_out_int(&o, NULL, l->obs[k]);
    json_out_close(&o);
    json_out_int(&o, "act", l->act);
    json_out_int(&o, "reward", l->reward);
    json_out_int(&o, "end", l->end);
    json_out_int(&o, "mask", l->mask);
    json_out_int(&o, "alive", l->alive);
    json_out_int(&o, "which", l->which);
    json_out_int(&o, "seed", l->seed);
    json_out_int(&o, "current", l->current);
    json_out_int(&o, "bytes", l->total_bytes);
    TRY(json_out_end(&o));
    return str_append(buf, cap, "\n");
}

/* Moves the pending error into why. Of a traceback why gets the last line, which names the error, and the
 * log gets all, unless it has just had the same one. */
static void take_reason(Remote *r, char *why, size_t n)
{
    const char *text = err_get(), *last = text;
    size_t      len     = strlen(text);
    int         is_said = strcmp(r->said, text) == 0;
    str_copy(r->said, sizeof r->said, text);
    while (len > 0 && text[len - 1] == '\n') len--;
    for (size_t i = 0; i < len; i++) {
        if (text[i] != '\n') continue;
        if (last == text && !is_said) log_warn("environment %s:", r->conf.name);
        if (!is_said) log_warn("%.*s", (int)(text + i - last), last);
        last = text + i + 1;
    }
    if (last != text && !is_said) log_warn("%.*s", (int)(text + len - last), last);
    str_quote(why, n, last, (size_t)(text + len - last));
    err_clear();
}

/* ---- starting ------------------------------------------------------------------------------------------ */

static void worker_argv(Remote *r, const Worker *w, char *count, const char **argv)
{
    int n = 0;
    if (envlib_is_gym(r->conf.name)) {
        argv[n++] = "python3";
        argv[n++] = r->script;
        argv[n++] = r->conf.name + strlen("gym:");
    } else {
        argv[n++] = r->program;
        argv[n++] = "env";
        argv[n++] = "worker";
        argv[n++] = r->conf.name;
    }
    sprintf(count, "%d", w->n);
    argv[n++] = count;
    for (int i = 0; i < r->conf.n_option && n < MAX_ARG - 1; i++) argv[n++] = r->conf.option[i];
    argv[n] = NULL;
}

static int launch(Remote *r, Worker *w)
{
    const char *argv[MAX_ARG];
    char        count[16];
    worker_argv(r, w, count, argv);
    return process_start(&w->process, (char *const *)argv, w->memory);
}

double remote_start_limit(double timeout_s, int n_worker, int n_cpu)
{
    if (timeout_s < 0) return -1;
    return MAX(START_S, timeout_s) * ceil((double)n_worker / MAX(n_cpu, 1));
}

/* Waits for the process, which starts beside n-1 others, and gives it its layout. The first worker's spec
 * becomes the spec of all. */
static int greet(Remote *r, Worker *w, int n_start, EnvSpec *first_spec, Arena *a)
{
    char     line[1024] = "", *json = NULL;
    uint32_t n       = 0;
    int      cpus    = hostmem_cpus();
    double   limit_s = remote_start_limit(r->conf.timeout_s, n_start, cpus);
    Arena    own;
    EnvSpec  spec;
    if (process_receive(&w->process, 's', limit_s, &json, &n) < 0) {
        if (!w->process.is_late || n_start == 1) return -1;
        err_clear();
        return err_set("a worker has not started within %g s: %d of them share %d core%s (ppo.workers)",
                       limit_s, n_start, cpus, str_plural(cpus));
    }
    arena_init(&own);
    int rc = spec_parse(first_spec ? first_spec : &spec, first_spec ? a : &own, json, n, r->conf.name);
    if (rc == 0 && !first_spec && !spec_same(r->spec, &spec))
        rc = err_set("environment %s: a worker has another shape than the first", r->conf.name);
    arena_deinit(&own);
    free(json);
    if (rc < 0) return -1;
    RemoteLayout *l = &r->layout[w - r->worker];
    *l              = remote_layout(r->spec, w->n);
    if (!w->at) {
        if (ftruncate(w->memory, l->total_bytes) < 0)
            return err_sys("shared memory of %lld bytes", (long long)l->total_bytes);
        void *at = mmap(NULL, (size_t)l->total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->memory, 0);
        if (at == MAP_FAILED) return err_sys("shared memory of %lld bytes", (long long)l->total_bytes);
        w->at = at;
    }
    TRY(write_layout(l, r->spec->info.n_obs, line, sizeof line));
    return process_send(&w->process, line, (int64_t)strlen(line));
}

/* Beside the program, or where the sources are: build/../tools. */
static int find_files(Remote *r)
{
    static const char *const place_of[] = { "", "../tools/", "../../tools/", "../share/brim/" };
    char                     self[400];
    ssize_t                  n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return err_sys("/proc/self/exe");
    self[n] = '\0';
    str_copy(r->program, sizeof r->program, r->conf.program ? r->conf.program : self);
    if (!envlib_is_gym(r->conf.name)) return 0;
    char *slash = strrchr(self, '/');
    if (slash) slash[1] = '\0';
    for (int i = 0; i < ARRAY_LEN(place_of); i++) {
        r->script[0] = '\0';
        str_append(r->script, sizeof r->script, "%s%sgym_worker.py", self, place_of[i]);
        if (file_kind(r->script) == FILE_REGULAR) return 0;
    }
    return err_set("gym_worker.py is not beside the program, in tools/ or in share/brim/");
}

static int make_workers(Remote *r, Arena *a)
{
    int groups = r->conf.n_group, per = MAX(r->conf.n_worker / groups, 1);
    r->worker = ARENA_ARRAY(a, Worker, (int64_t)groups * per);
    r->layout = ARENA_ARRAY(a, RemoteLayout, (int64_t)groups * per);
    for (int g = 0; g < groups; g++) {
        int lo = (int)((int64_t)r->conf.n_env * g / groups),
            n  = (int)((int64_t)r->conf.n_env * (g + 1) / groups) - lo;
        int k  = MIN(per, n);
        for (int i = 0; i < k; i++) {
            Worker *w = &r->worker[r->n_worker++];
            w->first  = lo + n * i / k;
            w->n      = lo + n * (i + 1) / k - w->first;
            w->memory = -1;
        }
    }
    for (int i = 0; i < r->n_worker; i++) {
        r->worker[i].memory = memfd_create("brim-env", MFD_CLOEXEC);
        if (r->worker[i].memory < 0) return err_sys("shared memory");
    }
    return 0;
}

/* All are launched before any is waited for: importing a package takes seconds. */
static int start_all(Remote *r, EnvSpec *spec, Arena *a)
{
    for (int i = 0; i < r->n_worker; i++) TRY(launch(r, &r->worker[i]));
    for (int i = 0; i < r->n_worker; i++) TRY(greet(r, &r->worker[i], r->n_worker, i == 0 ? spec : NULL, a));
    return 0;
}

int remote_open(Remote **out, const RemoteConf *conf, EnvSpec *spec, Arena *a)
{
    Remote *r = ARENA_NEW(a, Remote);
    char    why[500];
    *out    = r;
    r->conf = *conf;
    r->spec = spec;
    TRY(find_files(r));
    TRY(make_workers(r, a));
    if (start_all(r, spec, a) == 0) return 0;
    take_reason(r, why, sizeof why);
    int is_named = str_starts_with(why, conf->name); /* what the spec's checks say begins so */
    return err_user("environment %s%s%s", is_named ? "" : conf->name, is_named ? "" : ": ", why);
}

void remote_close(Remote *r)
{
    if (!r) return;
    for (int i = 0; i < r->n_worker; i++) {
        Worker *w = &r->worker[i];
        process_stop(&w->process);
        if (w->at) munmap(w->at, (size_t)r->layout[i].total_bytes);
        if (w->memory >= 0) close(w->memory);
    }
    r->n_worker = 0;
}

int64_t remote_restarts(const Remote *r) { return r->restarts; }

/* ---- losing and restarting ----------------------------------------------------------------------------- */

/* Takes the pending error as the reason. Negative when it happened too often. */
static int restart(Remote *r, Worker *w)
{
    char    why[500];
    int32_t current = 0;
    for (;;) {
        int is_hopeless = w->process.is_hopeless;
        take_reason(r, why, sizeof why);
        if (w->at) memcpy(&current, w->at + r->layout[w - r->worker].current, sizeof current);
        long long number = r->conf.first + w->first + (current < 0 || current >= w->n ? 0 : current);
        w->n_good        = 0;
        if (is_hopeless) return err_set("environment %s number %lld: %s", r->conf.name, number, why);
        if (++w->lost >= REMOTE_IN_A_ROW)
            return err_set("environment %s number %lld: lost %d times in a row; the last time: %s",
                           r->conf.name, number, w->lost, why);
        log_warn("environment %s number %lld: %s; restarting its worker", r->conf.name, number, why);
        r->restarts++;
        process_stop(&w->process);
        if (launch(r, w) == 0 && greet(r, w, 1, NULL, NULL) == 0) return 0;
    }
}

/* ---- commands ------------------------------------------------------------------------------------------ */

static void copy_out(const Remote *r, const Worker *w, int i, const EnvsIo *io)
{
    const RemoteLayout *l = &r->layout[w - r->worker];
    int64_t agents = r->spec->info.n_agent, from = i * agents, to = (int64_t)(w->first + i) * agents;
    for (int k = 0; k < r->spec->info.n_obs; k++) {
        int64_t bytes = r->spec->block_bytes[k];
        memcpy((char *)io->obs[k] + to * bytes, w->at + l->obs[k] + from * bytes, (size_t)(agents * bytes));
    }
    int64_t m = r->spec->n_mask;
    if (m) memcpy(io->mask + to * m, w->at + l->mask + from * m, (size_t)(agents * m));
    if (agents > 1) memcpy(io->alive + to, w->at + l->alive + from, (size_t)agents);
}

static void copy_actions(const Remote *r, const Worker *w, const EnvsIo *io)
{
    const EnvInfo *n   = &r->spec->info;
    int64_t        per = (int64_t)n->n_agent * n->n_act;
    const void    *act = n->act_kind == ENV_DISCRETE ? (const void *)(io->act_i + w->first * per)
                                                     : (const void *)(io->act_f + w->first * per);
    memcpy(w->at + r->layout[w - r->worker].act, act, (size_t)(w->n * per * 4));
}

/* The worker that was lost leaves its last observation in the memory. */
static void copy_results(const Remote *r, const Worker *w, const EnvsIo *io, uint8_t *end)
{
    const RemoteLayout *l      = &r->layout[w - r->worker];
    int64_t             agents = r->spec->info.n_agent;
    for (int i = 0; i < w->n; i++) {
        copy_out(r, w, i, io);
        float *reward = io->reward + (int64_t)(w->first + i) * agents;
        if (w->is_lost) {
            memset(reward, 0, (size_t)agents * sizeof *reward);
            end[w->first + i] = ENV_TRUNCATED;
        } else {
            memcpy(reward, w->at + l->reward + i * agents * 4, (size_t)agents * sizeof *reward);
            end[w->first + i] = (uint8_t)w->at[l->end + i];
        }
    }
}

/* All workers are asked before any is waited for: they work side by side. */
int remote_step(Remote *r, int lo, int hi, const EnvsIo *io, uint8_t *end)
{
    for (int i = 0; i < r->n_worker; i++) {
        Worker *w = &r->worker[i];
        if (w->first < lo || w->first >= hi) continue;
        w->is_lost  = w->must_cut;
        w->must_cut = 0;
        if (w->is_lost) continue;
        copy_actions(r, w, io);
        w->is_lost = process_send(&w->process, "S", 1) < 0;
        if (w->is_lost) TRY(restart(r, w));
    }
    for (int i = 0; i < r->n_worker; i++) {
        Worker *w = &r->worker[i];
        if (w->first < lo || w->first >= hi) continue;
        if (!w->is_lost) {
            w->is_lost = process_receive(&w->process, 'k', r->conf.timeout_s, NULL, NULL) < 0;
            if (w->is_lost)
                TRY(restart(r, w));
            else if (++w->n_good >= REMOTE_GOOD_STEPS)
                w->lost = 0;
        }
        copy_results(r, w, io, end);
    }
    return 0;
}

static int any(const uint8_t *which, int n)
{
    for (int i = 0; i < n; i++)
        if (which[i]) return 1;
    return 0;
}

static void mark(const Remote *r, Worker *w, const uint8_t *which, const uint64_t *seed)
{
    const RemoteLayout *l = &r->layout[w - r->worker];
    memcpy(w->at + l->which, which + w->first, (size_t)w->n);
    memcpy(w->at + l->seed, seed + w->first, (size_t)w->n * sizeof *seed);
}

/* The reset is asked for again. Environments that were in the middle of an episode have lost it. */
static int restart_in_reset(Remote *r, Worker *w, const uint8_t *which)
{
    TRY(restart(r, w));
    for (int i = 0; i < w->n; i++) w->must_cut |= !which[w->first + i];
    return 0;
}

static int await_reset(Remote *r, Worker *w, const uint8_t *which)
{
    while (process_receive(&w->process, 'k', r->conf.timeout_s, NULL, NULL) < 0) {
        do TRY(restart_in_reset(r, w, which));
        while (process_send(&w->process, "R", 1) < 0);
    }
    return 0;
}

int remote_reset(Remote *r, int lo, int hi, const uint8_t *which, const uint64_t *seed, const EnvsIo *io)
{
    for (int i = 0; i < r->n_worker; i++) {
        Worker *w = &r->worker[i];
        if (w->first < lo || w->first >= hi || !any(which + w->first, w->n)) continue;
        mark(r, w, which, seed);
        while (process_send(&w->process, "R", 1) < 0) TRY(restart_in_reset(r, w, which));
    }
    for (int i = 0; i < r->n_worker; i++) {
        Worker *w = &r->worker[i];
        if (w->first < lo || w->first >= hi || !any(which + w->first, w->n)) continue;
        TRY(await_reset(r, w, which));
        for (int k = 0; k < w->n; k++)
            if (which[w->first + k]) copy_out(r, w, k, io);
    }
    return 0;
}

int remote_picture(Remote *r, int env, uint8_t *rgb, int *width, int *height)
{
    Worker *w = r->worker;
    while (env >= w->first + w->n) w++;
    uint8_t *which = (uint8_t *)w->at + r->layout[w - r->worker].which;
    memset(which, 0, (size_t)w->n);
    which[env - w->first] = 1;
    char    *data         = NULL;
    uint32_t n            = 0, size[2];
    TRY(process_send(&w->process, "P", 1));
    TRY(process_receive(&w->process, 'p', r->conf.timeout_s, &data, &n));
    int rc = n < sizeof size ? -1 : 0;
    if (rc == 0) memcpy(size, data, sizeof size);
    if (rc == 0 && (size[0] < 1 || size[1] < 1 || size[0] > ENV_MAX_SIDE || size[1] > ENV_MAX_SIDE ||
                    n != 8 + size[0] * size[1] * 3))
        rc = -1;
    if (rc == 0) {
        *width  = (int)size[0];
        *height = (int)size[1];
        if (rgb) memcpy(rgb, data + 8, n - 8);
    }
    free(data);
    return rc == 0 ? 0 : err_set("environment %s: the worker sent no picture", r->conf.name);
}
