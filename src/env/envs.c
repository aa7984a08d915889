#include "env/envs.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/hostmem.h"
#include "base/str.h"
#include "env/envfn.h"
#include "env/envs_impl.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIMEOUT_S = 60 };

/* ---- rows ---------------------------------------------------------------------------------------------- */

EnvIo envs_row(const Envs *e, const EnvsIo *io, int i)
{
    const EnvInfo *n   = &e->spec.info;
    int64_t        row = (int64_t)i * n->n_agent;
    EnvIo          r   = { .reward = io->reward ? io->reward + row : NULL };
    for (int k = 0; k < n->n_obs; k++) r.obs[k] = (char *)io->obs[k] + row * e->spec.block_bytes[k];
    if (io->act_i) r.act_i = io->act_i + row * n->n_act;
    if (io->act_f) r.act_f = io->act_f + row * n->n_act;
    if (io->mask) r.mask = io->mask + row * e->spec.n_mask;
    if (io->alive) r.alive = io->alive + row;
    return r;
}

/* Thread `slot` goes into n environments from i on. Their numbers count over all ranks. */
static void enter(const Envs *e, int slot, int i, int n)
{
    if (e->guard) guard_enter(e->guard, slot, e->conf.first + i, n);
}

void envs_enter(const Envs *e, int i) { enter(e, 0, i, 1); }

void envs_leave(const Envs *e)
{
    if (e->guard) guard_leave(e->guard, 0);
}

static void check_io(const Envs *e, const EnvsIo *io, int is_step)
{
    const EnvInfo *n = &e->spec.info;
    for (int k = 0; k < n->n_obs; k++) CHECK(io->obs[k], "no buffer for block %s", n->obs[k].name);
    CHECK(!n->has_mask || io->mask, "no buffer for the mask");
    CHECK(n->n_agent == 1 || io->alive, "no buffer for alive");
    if (!is_step) return;
    CHECK(io->reward && io->terminated && io->truncated, "no buffer for reward and ends");
    CHECK(n->act_kind == ENV_DISCRETE ? io->act_i != NULL : io->act_f != NULL, "no actions");
}

/* Every bit of the exponent is set in infinities and NaNs alone; without branches the loop runs in
 * vectors. */
static int64_t first_bad(const float *x, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    if (!bad) return -1;
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return i;
    return -1;
}

static int fail(const Envs *e, int i, const char *what)
{
    return err_set("environment %s number %lld, episode %lld, step %lld: %s", e->conf.name,
                   (long long)e->conf.first + i, (long long)e->episode[i], (long long)e->steps[i], what);
}

static int check_actions(const Envs *e, const EnvsIo *io, int lo, int hi)
{
    const EnvInfo *n   = &e->spec.info;
    int64_t        per = (int64_t)n->n_agent * n->n_act;
    char           what[160];
    if (n->act_kind == ENV_CONTINUOUS) {
        int64_t bad = first_bad(io->act_f + lo * per, (hi - lo) * per);
        if (bad < 0) return 0;
        snprintf(what, sizeof what, "action %lld is not a finite number", (long long)(bad % n->n_act));
        return fail(e, lo + (int)(bad / per), what);
    }
    for (int64_t k = lo * per; k < hi * per; k += n->n_act) {
        for (int h = 0; h < n->n_act; h++) {
            if ((uint32_t)io->act_i[k + h] < (uint32_t)n->act_choices[h]) continue;
            snprintf(what, sizeof what, "action %d of head %d, but there are %d choices",
                     (int)io->act_i[k + h], h, (int)n->act_choices[h]);
            return fail(e, (int)(k / per), what);
        }
    }
    return 0;
}

static int check_values(const Envs *e, const EnvIo *r, int i, int is_step)
{
    const EnvInfo *n = &e->spec.info;
    char           what[160];
    for (int k = 0; k < n->n_obs; k++) {
        if (n->obs[k].type != ENV_F32) continue;
        int64_t bad = first_bad(r->obs[k], e->spec.block_elem[k] * n->n_agent);
        if (bad < 0) continue;
        snprintf(what, sizeof what, "element %lld of observation block %s is %g", (long long)bad,
                 n->obs[k].name, (double)((const float *)r->obs[k])[bad]);
        return fail(e, i, what);
    }
    if (!is_step) return 0;
    int64_t bad = first_bad(r->reward, n->n_agent);
    if (bad < 0) return 0;
    snprintf(what, sizeof what, "the reward is %g", (double)r->reward[bad]);
    return fail(e, i, what);
}

/* ---- episodes ------------------------------------------------------------------------------------------ */

static void begin_episode(Envs *e, int i, int64_t episode)
{
    e->seed[i]    = envfn_episode_seed(e->conf.seed, e->conf.first + i, episode);
    e->episode[i] = episode;
    e->steps[i]   = 0;
    for (int a = 0; a < e->spec.info.n_agent; a++) e->sum[(int64_t)i * e->spec.info.n_agent + a] = 0;
}

static void keep_final(const Envs *e, const EnvsIo *io, int i)
{
    int64_t agents = e->spec.info.n_agent;
    for (int k = 0; k < e->spec.info.n_obs; k++) {
        int64_t bytes = e->spec.block_bytes[k] * agents;
        if (io->final_obs[k])
            memcpy((char *)io->final_obs[k] + i * bytes, (char *)io->obs[k] + i * bytes, (size_t)bytes);
    }
}

/* Who took part when the step began: environments overwrite alive. */
static void note_present(Envs *e, const EnvsIo *io, int lo, int hi)
{
    int64_t agents = e->spec.info.n_agent;
    if (agents > 1) memcpy(e->present + lo * agents, io->alive + lo * agents, (size_t)((hi - lo) * agents));
}

/* Rewards and ends of each agent's row, of a step that did (1) or did not (0) end the episode so. */
static void book_row(Envs *e, const EnvsIo *io, int64_t row, int64_t n_step, int term, int cut)
{
    int several = e->spec.info.n_agent > 1, stays = !several || io->alive[row];
    if (several && !e->present[row]) io->reward[row] = 0;
    e->sum[row] += io->reward[row];
    io->terminated[row] = (uint8_t)(term || (!stays && (cut || e->present[row])));
    io->truncated[row]  = (uint8_t)(cut && stays);
    if (io->episode_return) io->episode_return[row] = term || cut ? (float)e->sum[row] : 0.0f;
    if (io->episode_length) io->episode_length[row] = term || cut ? (int32_t)n_step : 0;
}

/* Books a step of environment i. When the episode ended, end[i] stays set and the next episode's seed is
 * drawn. */
static int settle(Envs *e, const EnvsIo *io, int i)
{
    int   n_agent = e->spec.info.n_agent, bits = e->end[i];
    EnvIo r = envs_row(e, io, i);
    e->steps[i]++;
    if (bits & ~(ENV_TERMINATED | ENV_TRUNCATED))
        return fail(e, i, "step gives something else than ENV_GOES_ON, ENV_TERMINATED or ENV_TRUNCATED");
    TRY(check_values(e, &r, i, 1));
    int term = (bits & ENV_TERMINATED) != 0;
    int cut  = !term && ((bits & ENV_TRUNCATED) || (e->limit > 0 && e->steps[i] >= e->limit));
    for (int64_t row = (int64_t)i * n_agent; row < (int64_t)(i + 1) * n_agent; row++)
        book_row(e, io, row, e->steps[i], term, cut);
    e->end[i] = (uint8_t)(term || cut);
    if (!e->end[i]) return 0;
    keep_final(e, io, i);
    begin_episode(e, i, e->episode[i] + 1);
    return 0;
}

/* ---- in this process ----------------------------------------------------------------------------------- */

static int call_failed(const Envs *e, int i, const char *call)
{
    const char *why = e->lib.api.error ? e->lib.api.error(e->env[i]) : NULL;
    char        line[200], what[260];
    snprintf(what, sizeof what, "%s failed%s%s", call, why && why[0] ? ": " : "",
             why && why[0] ? str_quote(line, sizeof line, why, strlen(why)) : "");
    return fail(e, i, what);
}

/* A reset may load another level, of another size. Rows would not fit. */
static int check_shape(const Envs *e, int i)
{
    char what[300];
    if (spec_keeps(&e->spec, e->lib.api.info(e->env[i])) == 0) return 0;
    snprintf(what, sizeof what, "its shape has changed: %s", err_get());
    err_clear();
    return fail(e, i, what);
}

static int reset_here(Envs *e, const EnvsIo *io, int i)
{
    EnvIo r = envs_row(e, io, i);
    if (e->lib.api.reset(e->env[i], e->seed[i], &r) < 0) return call_failed(e, i, "reset");
    if (!e->lib.is_builtin) TRY(check_shape(e, i));
    return check_values(e, &r, i, 0);
}

/* A step counts once it is done: this one was the next. */
static int step_failed(Envs *e, int i)
{
    e->steps[i]++;
    return call_failed(e, i, "step");
}

static int call_steps(Envs *e, const EnvsIo *io, int slot, int lo, int hi)
{
    const EnvApi *api = &e->lib.api;
    if (api->step_batch) {
        enter(e, slot, lo, hi - lo);
        EnvIo r   = envs_row(e, io, lo);
        int   bad = api->step_batch(e->env + lo, hi - lo, &r, e->end + lo);
        return bad < 0 ? step_failed(e, lo + MIN(-1 - bad, hi - 1 - lo)) : 0;
    }
    for (int i = lo; i < hi; i++) {
        EnvIo r = envs_row(e, io, i);
        enter(e, slot, i, 1);
        int bits = api->step(e->env[i], &r);
        if (bits < 0) return step_failed(e, i);
        e->end[i] = (uint8_t)MIN(bits, UINT8_MAX);
    }
    return 0;
}

static int step_slice(Envs *e, const EnvsIo *io, int slot, int lo, int hi)
{
    TRY(check_actions(e, io, lo, hi));
    note_present(e, io, lo, hi);
    TRY(call_steps(e, io, slot, lo, hi));
    for (int i = lo; i < hi; i++) {
        TRY(settle(e, io, i));
        if (!e->end[i]) continue;
        if (e->conf.on_end) TRY(e->conf.on_end(e->conf.self, i));
        enter(e, slot, i, 1);
        TRY(reset_here(e, io, i));
    }
    return 0;
}

static int reset_slice(Envs *e, const EnvsIo *io, int slot, int lo, int hi)
{
    for (int i = lo; i < hi; i++) {
        enter(e, slot, i, 1);
        TRY(reset_here(e, io, i));
    }
    return 0;
}

typedef int (*SliceFn)(Envs *e, const EnvsIo *io, int slot, int lo, int hi);

static int guarded(Envs *e, SliceFn fn, const EnvsIo *io, int slot, int lo, int hi)
{
    enter(e, slot, lo, 1);
    int rc = fn(e, io, slot, lo, hi);
    if (e->guard) guard_leave(e->guard, slot);
    return rc;
}

/* One slice a thread, unless steps take long. Then slices are small, so no thread waits long for another: the
 * cost of a step of physics depends on its contacts. */
static int count_slices(const Envs *e, int n_thread, int n_env)
{
    static const double slice_s = 50e-6; /* far above the price of taking a slice */
    return (int)MIN(MAX(e->work_s / slice_s, (double)n_thread), (double)n_env);
}

static void note_work(Envs *e, double work_s)
{
    e->work_s = e->work_s > 0 ? 0.9 * e->work_s + 0.1 * work_s : work_s;
}

typedef struct {
    SliceFn       fn;
    const EnvsIo *io;
    int           lo, n_env, n_slice;
} Slices;

/* A failure's text is per thread and is carried over; each thread keeps that of its lowest slice. */
static void work_on_slice(Envs *e, const Slices *w, int t, int k)
{
    EnvsWhy *why = &e->why[t];
    int      a   = w->lo + (int)((int64_t)w->n_env * k / w->n_slice),
        b        = w->lo + (int)((int64_t)w->n_env * (k + 1) / w->n_slice);
    if (guarded(e, w->fn, w->io, t, a, b) == 0) return;
    if (why->slice < 0 || k < why->slice) {
        str_copy(why->text, sizeof why->text, err_get());
        why->slice = k;
    }
    err_clear();
}

/* A thread's own slices first, the same ones in every step: their states are in its cache. Then what its
 * neighbours have not begun. */
static void work_on(Envs *e, const Slices *w, int t, int n_thread)
{
    for (int i = 0; i < n_thread; i++) {
        int owner = (t + i) % n_thread, last = (int)((int64_t)w->n_slice * (owner + 1) / n_thread);
        for (int k; (k = atomic_fetch_add(&e->next[owner].slice, 1)) < last;) work_on_slice(e, w, t, k);
    }
}

/* Runs fn over [lo, hi) in slices. */
static int over_slices(Envs *e, SliceFn fn, const EnvsIo *io, int lo, int hi)
{
    int n = MIN(e->n_thread, hi - lo);
    if (n <= 1) return guarded(e, fn, io, 0, lo, hi);
    Slices   w     = { .fn = fn, .io = io, .lo = lo, .n_env = hi - lo };
    double   begin = clock_now_s();
    EnvsWhy *first = NULL;
    w.n_slice      = count_slices(e, n, hi - lo);
    for (int t = 0; t < n; t++) {
        e->why[t].slice = -1;
        atomic_store(&e->next[t].slice, (int)((int64_t)w.n_slice * t / n));
    }
#pragma omp parallel num_threads(n)
    for (int t = omp_get_thread_num(); t < n; t += omp_get_num_threads()) work_on(e, &w, t, n);
    note_work(e, (clock_now_s() - begin) * n);
    for (int t = 0; t < n; t++)
        if (e->why[t].slice >= 0 && (!first || e->why[t].slice < first->slice)) first = &e->why[t];
    return first ? err_set("%s", first->text) : 0;
}

/* ---- in workers ---------------------------------------------------------------------------------------- */

static int step_remote(Envs *e, const EnvsIo *io, int lo, int hi)
{
    TRY(check_actions(e, io, lo, hi));
    note_present(e, io, lo, hi);
    TRY(remote_step(e->remote, lo, hi, io, e->end));
    int n_ended = 0;
    for (int i = lo; i < hi; i++) {
        TRY(settle(e, io, i));
        n_ended += e->end[i];
        if (e->end[i] && e->conf.on_end) TRY(e->conf.on_end(e->conf.self, i));
    }
    if (n_ended == 0) return 0;
    TRY(remote_reset(e->remote, lo, hi, e->end, e->seed, io));
    for (int i = lo; i < hi; i++) {
        EnvIo r = envs_row(e, io, i);
        if (e->end[i]) TRY(check_values(e, &r, i, 0));
    }
    return 0;
}

/* ---- open ---------------------------------------------------------------------------------------------- */

static int create_one(Envs *e, int i)
{
    EnvSpec other;
    TRY(envlib_create(&e->lib, &e->env[i]));
    TRY(spec_take(i == 0 ? &e->spec : &other, &e->arena, e->lib.api.info(e->env[i]), e->conf.name));
    if (i == 0 || spec_same(&e->spec, &other)) return 0;
    return err_set("environment %s: number %d has another shape than number 0", e->conf.name, i);
}

static int create_here(Envs *e)
{
    TRY(envlib_open(&e->lib, e->conf.name, e->conf.option, e->conf.n_option));
    e->env = ARENA_ARRAY(&e->arena, void *, e->n_env);
    if (!e->lib.is_builtin)
        TRY(guard_open(&e->guard, e->conf.name, e->n_thread, e->conf.timeout_s < 0 ? 0 : e->conf.timeout_s));
    int rc = 0;
    for (int i = 0; i < e->n_env && rc == 0; i++) {
        envs_enter(e, i);
        rc = create_one(e, i);
    }
    envs_leave(e);
    return rc;
}

static int open_all(Envs *e)
{
    EnvsConf *c = &e->conf;
    if (c->timeout_s == 0) c->timeout_s = DEFAULT_TIMEOUT_S;
    if (c->isolate || envlib_is_gym(c->name)) {
        TRY(remote_open(&e->remote,
                        &(RemoteConf){ c->name, c->option, c->n_option, e->n_env, e->n_group,
                                       c->n_worker > 0 ? c->n_worker : e->n_thread, c->timeout_s, c->program,
                                       c->first },
                        &e->spec, &e->arena));
    } else {
        TRY(create_here(e));
    }
    int64_t n_row = envs_rows(e);
    e->limit      = c->max_steps > 0 ? c->max_steps : c->max_steps < 0 ? 0 : e->spec.info.max_steps;
    e->episode    = ARENA_ARRAY(&e->arena, int64_t, e->n_env);
    e->steps      = ARENA_ARRAY(&e->arena, int64_t, e->n_env);
    e->seed       = ARENA_ARRAY(&e->arena, uint64_t, e->n_env);
    e->end        = ARENA_ARRAY(&e->arena, uint8_t, e->n_env);
    e->present    = ARENA_ARRAY(&e->arena, uint8_t, n_row);
    e->sum        = ARENA_ARRAY(&e->arena, double, n_row);
    e->why        = ARENA_ARRAY(&e->arena, EnvsWhy, e->n_thread);
    e->next       = ARENA_ARRAY(&e->arena, EnvsNext, e->n_thread);
    return 0;
}

int envs_open(Envs **out, const EnvsConf *conf)
{
    CHECK(conf->n_env > 0 && conf->name, "no environments");
    Envs *e = calloc(1, sizeof *e);
    *out    = e;
    if (!e) return err_sys("memory for environments");
    arena_init(&e->arena);
    e->conf     = *conf;
    e->n_env    = conf->n_env;
    e->n_group  = MAX(conf->n_group, 1);
    e->n_thread = conf->n_thread > 0 ? conf->n_thread : MIN(omp_get_max_threads(), hostmem_quota());
    CHECK(e->n_group <= e->n_env, "%d groups of %d environments", e->n_group, e->n_env);
    if (open_all(e) == 0) return 0;
    envs_close(e);
    *out = NULL;
    return -1;
}

void envs_close(Envs *e)
{
    if (!e) return;
    for (int i = 0; e->env && i < e->n_env; i++) {
        envs_enter(e, i);
        if (e->env[i]) e->lib.api.destroy(e->env[i]);
    }
    envs_leave(e);
    guard_close(e->guard);
    remote_close(e->remote);
    arena_deinit(&e->arena);
    free(e);
}

const EnvSpec *envs_spec(const Envs *e) { return &e->spec; }
int64_t        envs_rows(const Envs *e) { return (int64_t)e->n_env * e->spec.info.n_agent; }
int64_t        envs_max_steps(const Envs *e) { return e->limit; }
int64_t        envs_restarts(const Envs *e) { return e->remote ? remote_restarts(e->remote) : 0; }

void envs_group(const Envs *e, int group, int *first, int *end)
{
    CHECK(group >= 0 && group < e->n_group, "group %d of %d", group, e->n_group);
    *first = (int)((int64_t)e->n_env * group / e->n_group);
    *end   = (int)((int64_t)e->n_env * (group + 1) / e->n_group);
}

int envs_reset(Envs *e, const EnvsIo *io)
{
    check_io(e, io, 0);
    for (int i = 0; i < e->n_env; i++) begin_episode(e, i, 0);
    if (!e->remote) return over_slices(e, reset_slice, io, 0, e->n_env);
    memset(e->end, 1, (size_t)e->n_env);
    TRY(remote_reset(e->remote, 0, e->n_env, e->end, e->seed, io));
    for (int i = 0; i < e->n_env; i++) {
        EnvIo r = envs_row(e, io, i);
        TRY(check_values(e, &r, i, 0));
    }
    return 0;
}

int envs_step(Envs *e, int group, const EnvsIo *io)
{
    int lo, hi;
    check_io(e, io, 1);
    envs_group(e, group, &lo, &hi);
    return e->remote ? step_remote(e, io, lo, hi) : over_slices(e, step_slice, io, lo, hi);
}

static int picture_here(Envs *e, int env, uint8_t *rgb, int *width, int *height)
{
    int w, h;
    if (e->lib.api.picture(e->env[env], NULL, &w, &h) < 0 || w < 1 || h < 1 || w > ENV_MAX_SIDE ||
        h > ENV_MAX_SIDE)
        return call_failed(e, env, "picture");
    *width  = w;
    *height = h;
    if (rgb && (e->lib.api.picture(e->env[env], rgb, &w, &h) < 0 || w != *width || h != *height))
        return call_failed(e, env, "picture");
    return 0;
}

int envs_picture(Envs *e, int env, uint8_t *rgb, int *width, int *height)
{
    CHECK(env >= 0 && env < e->n_env, "environment %d of %d", env, e->n_env);
    if (e->remote) return remote_picture(e->remote, env, rgb, width, height);
    if (!e->lib.api.picture) return err_set("environment %s has no pictures", e->conf.name);
    envs_enter(e, env);
    int rc = picture_here(e, env, rgb, width, height);
    envs_leave(e);
    return rc;
}
