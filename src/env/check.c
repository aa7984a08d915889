#include "env/check.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "env/envlib.h"
#include "env/rows.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FEW = 4, LONG_RUN = 2000, SLOW_RUN = 150, CANARY = 64 };

typedef struct {
    const EnvsConf *conf;
    FILE           *out;
    int             n_failed;
    int             n_step;    /* fewer where a step is slow */
    int64_t         n_restart; /* of workers, in all tests */
} Check;

static void verdict(Check *c, int ok, const char *name, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void verdict(Check *c, int ok, const char *name, const char *fmt, ...)
{
    char    text[600];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(c->out, "%s %s%s%s\n",
            ok > 0    ? "ok"
            : ok == 0 ? "not ok"
                      : "--",
            name, text[0] ? ": " : "", text);
    fflush(c->out);
    c->n_failed += ok == 0;
}

static EnvsConf with(const Check *c, int n_env, int n_thread, uint64_t seed)
{
    EnvsConf k = *c->conf;
    k.n_env    = n_env;
    k.n_group  = 1;
    k.n_thread = n_thread;
    k.seed     = seed;
    return k;
}

/* Of the last observations of episodes that ended. */
static uint64_t hash_finals(const EnvSpec *s, const EnvsIo *io, int64_t n, uint64_t h)
{
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < s->info.n_obs && io->episode_length[i] > 0; k++)
            h = XXH64((const char *)io->final_obs[k] + i * s->block_bytes[k], (size_t)s->block_bytes[k], h);
    }
    return h;
}

static uint64_t hash_rows(const EnvSpec *s, const EnvsIo *io, int64_t n, uint64_t h)
{
    for (int k = 0; k < s->info.n_obs; k++) h = XXH64(io->obs[k], (size_t)(n * s->block_bytes[k]), h);
    h = hash_finals(s, io, n, h);
    h = XXH64(io->alive, (size_t)n, h);
    h = XXH64(io->reward, (size_t)n * sizeof(float), h);
    h = XXH64(io->terminated, (size_t)n, h);
    if (io->mask) h = XXH64(io->mask, (size_t)(n * s->n_mask), h);
    return XXH64(io->truncated, (size_t)n, h);
}

/* Random actions for n_step steps; the hash of everything that came back. */
static int run(Envs *e, Rows *r, int n_step, uint64_t *hash, int64_t *n_episode)
{
    int64_t n = envs_rows(e);
    for (int t = 0; t < n_step; t++) {
        rows_random(r, envs_spec(e), n);
        TRY(envs_step(e, 0, &r->io));
        *hash = hash_rows(envs_spec(e), &r->io, n, *hash);
        for (int64_t i = 0; i < n; i += envs_spec(e)->info.n_agent) *n_episode += r->io.episode_length[i] > 0;
    }
    return 0;
}

static void close_envs(Check *c, Envs *e)
{
    c->n_restart += envs_restarts(e);
    envs_close(e);
}

static int run_fresh(Check *c, const EnvsConf *conf, uint64_t *hash, int64_t *n_episode)
{
    Envs *e;
    Rows  r;
    *hash = *n_episode = 0;
    TRY(envs_open(&e, conf));
    rows_init(&r, envs_spec(e), envs_rows(e), 1);
    int rc = envs_reset(e, &r.io);
    if (rc == 0) *hash = hash_rows(envs_spec(e), &r.io, envs_rows(e), 0);
    if (rc == 0) rc = run(e, &r, c->n_step, hash, n_episode);
    rows_deinit(&r);
    close_envs(c, e);
    return rc;
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void test_runs(Check *c)
{
    EnvsConf one = with(c, FEW, 1, 7), two = with(c, FEW, 2, 7), other = with(c, FEW, 1, 8);
    uint64_t a, b, d;
    int64_t  n_a, n_b, n_d;
    if (run_fresh(c, &one, &a, &n_a) < 0) {
        verdict(c, 0, "runs", "%s", err_get());
        err_clear();
        return;
    }
    verdict(c, 1, "runs", "%d steps of %d environments, %lld episodes ended; every value is finite",
            c->n_step, FEW, (long long)n_a);
    int rc = run_fresh(c, &two, &b, &n_b) < 0 || run_fresh(c, &other, &d, &n_d) < 0;
    if (rc) {
        verdict(c, 0, "deterministic", "%s", err_get());
        err_clear();
        return;
    }
    verdict(
        c, a == b, "deterministic",
        a == b
            ? "same seeds and actions, same bits, with one thread and with two"
            : "same seeds and actions, but other results: chance that is not from the seed, or shared state");
    if (a != d)
        verdict(c, 1, "seeded", "another seed gives another run");
    else
        verdict(c, -1, "seeded",
                "another seed gives the same run: it has no chance in it, or ignores its seed");
}

/* The first value of n rows of block k that is outside its bounds; its index or -1. */
static int64_t outside(const EnvSpec *s, int k, const void *rows, int64_t n_row)
{
    const EnvBlock *b = &s->block[k];
    for (int64_t i = 0; b->low < b->high && i < n_row * s->block_elem[k]; i++) {
        double x = b->type == ENV_F32  ? ((const float *)rows)[i]
                   : b->type == ENV_U8 ? ((const uint8_t *)rows)[i]
                   : b->type == ENV_I8 ? ((const int8_t *)rows)[i]
                                       : ((const int32_t *)rows)[i];
        if (x < b->low || x > b->high) return i % s->block_elem[k];
    }
    return -1;
}

/* Block and element of a value that is outside; the last observations of episodes count, too. */
typedef struct {
    int     block;
    int64_t elem; /* -1: none is */
} Outside;

static Outside look_outside(const EnvSpec *s, const EnvsIo *io, int64_t n_row)
{
    Outside o = { 0, -1 };
    for (int k = 0; k < s->info.n_obs && o.elem < 0; k++) {
        o = (Outside){ k, outside(s, k, io->obs[k], n_row) };
        for (int64_t i = 0; i < n_row && o.elem < 0; i++) {
            if (io->episode_length[i] > 0)
                o.elem = outside(s, k, (const char *)io->final_obs[k] + i * s->block_bytes[k], 1);
        }
    }
    return o;
}

static int mask_is_bad(const EnvSpec *s, const EnvsIo *io, int64_t n_row)
{
    for (int64_t row = 0; row < n_row && s->n_mask; row++) {
        const uint8_t *m = io->mask + row * s->n_mask;
        for (int h = 0; h < s->info.n_act; h++) {
            int any = 0;
            for (int32_t i = 0; i < s->info.act_choices[h]; i++) any |= *m++;
            if (!any) return 1;
        }
    }
    return 0;
}

static void test_bounds(Check *c)
{
    EnvsConf conf = with(c, FEW, 1, 9);
    Envs    *e;
    Rows     r;
    if (envs_open(&e, &conf) < 0) return; /* said by test_runs() */
    const EnvSpec *s = envs_spec(e);
    int64_t        n = envs_rows(e), masked = 0;
    Outside        bad = { 0, -1 };
    rows_init(&r, s, n, 2);
    int rc = envs_reset(e, &r.io);
    for (int t = 0; rc == 0 && bad.elem < 0 && t < c->n_step; t++) {
        bad = look_outside(s, &r.io, n);
        masked |= mask_is_bad(s, &r.io, n);
        rows_random(&r, s, n);
        rc = envs_step(e, 0, &r.io);
    }
    if (bad.elem >= 0)
        verdict(c, 0, "bounds", "element %lld of block %s is outside its low and high", (long long)bad.elem,
                s->block[bad.block].name);
    else
        verdict(c, rc == 0, "bounds", "%s", rc < 0 ? err_get() : "every value lies between its low and high");
    if (s->n_mask && (rc == 0 || masked))
        verdict(c, !masked, "mask",
                masked ? "it forbids every choice of a head" : "every head has a choice left");
    err_clear();
    rows_deinit(&r);
    close_envs(c, e);
}

/* ---- rows between canaries: what an environment writes beside its row lands in one. What is a canary at the
 * end was never written. ---- */

enum { MOST_FENCED = ENV_MAX_OBS + 3, CANARY_BYTE = 0xa5 };

typedef struct {
    const char *name;
    uint8_t    *row;
    size_t      bytes;
} Fenced;

typedef struct {
    char s[200];
} Text;

typedef struct {
    Arena  arena;
    Fenced row[MOST_FENCED];
    int    n;
} Fence;

/* So many bytes with a canary on either side. */
static void *fence_add(Fence *f, const char *name, int64_t bytes)
{
    uint8_t *all = arena_alloc(&f->arena, (size_t)bytes + 2 * CANARY);
    memset(all, CANARY_BYTE, (size_t)bytes + 2 * CANARY);
    f->row[f->n++] = (Fenced){ name, all + CANARY, (size_t)bytes };
    return all + CANARY;
}

/* The name of a row that was written beside; NULL: none was. */
static const char *fence_broken(const Fence *f)
{
    for (int k = 0; k < f->n; k++) {
        const Fenced *x = &f->row[k];
        for (int i = 1; i <= CANARY; i++)
            if (x->row[-i] != CANARY_BYTE || x->row[x->bytes + (size_t)i - 1] != CANARY_BYTE) return x->name;
    }
    return NULL;
}

/* Says in `wrong` which row is a canary as it was, if one is. A single agent's `alive` is not asked for. */
static void fence_unwritten(const Fence *f, int64_t agents, Text *wrong)
{
    for (int k = 0; k < f->n; k++) {
        const Fenced *x     = &f->row[k];
        size_t        bytes = x->bytes / (size_t)agents;
        if (agents == 1 && strcmp(x->name, "alive") == 0) continue;
        for (int64_t a = 0; a < agents; a++) {
            size_t i = 0;
            while (i < bytes && x->row[(size_t)a * bytes + i] == CANARY_BYTE) i++;
            if (i < bytes) continue;
            str_copy(wrong->s, sizeof wrong->s, "it never writes its row of ");
            str_append(wrong->s, sizeof wrong->s, "%s", x->name);
            if (agents > 1) str_append(wrong->s, sizeof wrong->s, " for agent %lld", (long long)a + 1);
            return;
        }
    }
}

/* Trainers call step_batch, if there is one, and workers call step: here they take turns. */
static int step_either(const EnvLib *l, void *env, const EnvIo *io, int t)
{
    uint8_t end = 0;
    if (!l->api.step_batch || t % 2) return l->api.step(env, io);
    return l->api.step_batch(&env, 1, io, &end) < 0 ? -1 : end;
}

/* What is wrong with the rows, if anything is. */
static Text step_fenced(const EnvLib *l, void *env, const EnvSpec *s, int n_step)
{
    Text        wrong = { "" };
    Rows        r;
    Fence       f      = { .n = 0 };
    int64_t     agents = s->info.n_agent;
    const char *broken = NULL;
    arena_init(&f.arena);
    rows_init(&r, s, agents, 3);
    EnvIo io = { .act_i = r.act_i, .act_f = r.act_f };
    for (int k = 0; k < s->info.n_obs; k++)
        io.obs[k] = fence_add(&f, s->block[k].name, s->block_bytes[k] * agents);
    io.reward = fence_add(&f, "reward", agents * (int64_t)sizeof(float));
    io.alive  = fence_add(&f, "alive", agents);
    if (s->n_mask) r.io.mask = io.mask = fence_add(&f, "mask", agents * s->n_mask);
    int end = ENV_TERMINATED;
    for (int t = 0; t < n_step && end >= 0 && !broken; t++) {
        if (end != ENV_GOES_ON) end = l->api.reset(env, (uint64_t)t, &io);
        if (end >= 0) rows_random(&r, s, agents);
        if (end >= 0) end = step_either(l, env, &io, t);
        broken = fence_broken(&f);
    }
    if (broken) {
        snprintf(wrong.s, sizeof wrong.s, "it writes beside its row of %s", broken);
    } else if (end >= 0) {
        fence_unwritten(&f, agents, &wrong);
    }
    rows_deinit(&r);
    arena_deinit(&f.arena);
    return wrong;
}

static void test_writes(Check *c)
{
    EnvLib  l;
    EnvSpec s;
    Arena   a;
    void   *env = NULL;
    if (envlib_is_gym(c->conf->name) || c->conf->isolate) return; /* their memory is copied row by row */
    arena_init(&a);
    if (envlib_open(&l, c->conf->name, c->conf->option, c->conf->n_option) == 0 &&
        envlib_create(&l, &env) == 0 && spec_take(&s, &a, l.api.info(env), c->conf->name) == 0) {
        Text wrong = step_fenced(&l, env, &s, c->n_step);
        verdict(c, !wrong.s[0], "writes", "%s", wrong.s[0] ? wrong.s : "nothing beside its rows");
    }
    if (env) l.api.destroy(env);
    arena_deinit(&a);
    err_clear();
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

/* Saves in the middle, goes on, loads, goes on again: both ways on must be the same bits. */
static int both_ways(Envs *e, Rows *r, int n_step, int *same)
{
    int64_t  n = envs_rows(e), episodes = 0;
    uint64_t one = 0, two = 0;
    TRY(envs_reset(e, &r->io));
    TRY(run(e, r, n_step / 2, &one, &episodes));
    int64_t bytes = envs_state_bytes(e), drawn = (int64_t)r->n_drawn;
    if (bytes < 0) return -1;
    char *buf = mem_alloc((size_t)bytes);
    if (!buf) return err_sys("memory for %lld bytes", (long long)bytes);
    int rc = envs_save(e, &r->io, buf, bytes);
    one    = 0;
    if (rc == 0) rc = run(e, r, n_step / 2, &one, &episodes);
    if (rc == 0) rc = envs_load(e, &r->io, buf, bytes);
    r->n_drawn = (uint64_t)drawn;
    two        = 0;
    if (rc == 0) rc = run(e, r, n_step / 2, &two, &episodes);
    free(buf);
    *same = one == two && n > 0;
    return rc;
}

static void test_state(Check *c)
{
    EnvsConf conf = with(c, FEW, 1, 11);
    Envs    *e;
    Rows     r;
    int      same = 0;
    if (envs_open(&e, &conf) < 0) return;
    if (!envs_can_save(e)) {
        verdict(c, -1, "save and load", "there is none: a resumed run starts new episodes");
    } else {
        rows_init(&r, envs_spec(e), envs_rows(e), 4);
        int rc = both_ways(e, &r, c->n_step, &same);
        verdict(c, rc == 0 && same, "save and load", "%s",
                rc < 0 ? err_get()
                : same ? "same bits after load"
                       : "other results after load");
        rows_deinit(&r);
    }
    err_clear();
    close_envs(c, e);
}

static void test_picture(Check *c)
{
    EnvsConf conf = with(c, 1, 1, 12);
    Envs    *e;
    Rows     r;
    int      w = 0, h = 0;
    if (envs_open(&e, &conf) < 0) return;
    rows_init(&r, envs_spec(e), envs_rows(e), 5);
    int      rc  = envs_reset(e, &r.io) < 0 ? -1 : envs_picture(e, 0, NULL, &w, &h);
    uint8_t *rgb = rc == 0 ? mem_alloc((size_t)w * (size_t)h * 3) : NULL;
    if (rgb) rc = envs_picture(e, 0, rgb, &w, &h);
    if (rgb && rc == 0)
        verdict(c, 1, "picture", "%d x %d", w, h);
    else
        verdict(c, -1, "picture", "%s", err_get());
    err_clear();
    free(rgb);
    rows_deinit(&r);
    close_envs(c, e);
}

static void test_speed(Check *c, double seconds)
{
    enum { BATCH = 64 };
    EnvsConf conf = with(c, BATCH, 1, 13);
    Envs    *e;
    Rows     r;
    if (envs_open(&e, &conf) < 0) return;
    int64_t n = envs_rows(e), steps = 0;
    rows_init(&r, envs_spec(e), n, 6);
    int rc = envs_reset(e, &r.io);
    rows_random(&r, envs_spec(e), n);
    double begin = clock_now_s(), used = 0;
    while (rc == 0 && (used < seconds || steps == 0)) {
        rc = envs_step(e, 0, &r.io);
        steps += BATCH;
        used = clock_now_s() - begin;
        if (envs_spec(e)->n_mask) rows_random(&r, envs_spec(e), n);
    }
    char count[32];
    if (rc < 0 || envs_restarts(e) > 0)
        verdict(c, 0, "speed", "%s", rc < 0 ? err_get() : "workers were lost");
    else
        verdict(c, 1, "speed", "%s steps/s with one thread",
                str_count(count, sizeof count, (double)steps / used));
    err_clear();
    rows_deinit(&r);
    close_envs(c, e);
}

int check_env(const EnvsConf *conf, double seconds, FILE *out)
{
    Check    c   = { .conf = conf, .out = out, .n_step = LONG_RUN };
    EnvsConf one = with(&c, 1, 1, 1);
    Envs    *e;
    Rows     r;
    char     line[300];
    TRY(envs_open(&e, &one));
    fprintf(out, "%s: %s\n", conf->name, spec_describe(envs_spec(e), line, sizeof line));
    verdict(&c, 1, "opens", "interface %u", ENV_ABI);
    rows_init(&r, envs_spec(e), envs_rows(e), 1);
    uint64_t hash     = 0;
    int64_t  episodes = 0;
    double   begin    = clock_now_s();
    if (envs_reset(e, &r.io) == 0)
        run(e, &r, 10, &hash, &episodes); /* what fails here fails below, with a verdict */
    err_clear();
    if (clock_now_s() - begin > 10 * 50e-6) c.n_step = SLOW_RUN;
    rows_deinit(&r);
    close_envs(&c, e);
    test_runs(&c);
    test_bounds(&c);
    test_writes(&c);
    test_state(&c);
    test_picture(&c);
    test_speed(&c, seconds);
    if (envlib_is_gym(conf->name) || conf->isolate)
        verdict(&c, c.n_restart == 0, "workers", "%lld restart%s", (long long)c.n_restart,
                str_plural(c.n_restart));
    if (c.n_failed) return err_set("%s: %d test%s failed", conf->name, c.n_failed, str_plural(c.n_failed));
    return 0;
}
