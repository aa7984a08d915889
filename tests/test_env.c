/* env/: dynamics against published formulas, episodes, threads, state, masks, pictures, descriptions. */
#include "base/err.h"
#include "base/file.h"
#include "env/builtin.h"
#include "env/draw.h"
#include "env/envlib.h"
#include "env/gif.h"
#include "env/pictures.h"
#include "env/remote.h"
#include "env/rows.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- dynamics ------------------------------------------------------------------------------------------ */

static double near(double got, double want)
{
    double size = fabs(want) > 1 ? fabs(want) : 1;
    return fabs(got - want) / size;
}

/* One step from each state of the file. Python's ** 2 may round otherwise than a product, and a libm's sine
 * by one unit: a few units of double's last place, times the largest factor between a term and a result
 * (Acrobot's torques over inertias, below 100), stay below 1e-12. */
static void one_line(const char *line, int *seen)
{
    char   name[64];
    double x[16];
    int    n = 0, at = 0, n_state, used;
    sscanf(line, "%63s%n", name, &at);
    for (const char *p = line + at; n < 16; n++, p += used) {
        if (strncmp(p, " ->", 3) == 0) p += 3;
        if (sscanf(p, "%lf%n", &x[n], &used) != 1) break;
    }
    n_state          = (n - 3) / 2;
    const Builtin *b = builtin_find(name);
    void          *env;
    char           why[100];
    double         state[8] = { 0 };
    assert_non_null(b);
    assert_int_equal(b->api->create(&env, NULL, 0, why, sizeof why), 0);
    int64_t size = b->api->save(env, NULL, 0);
    assert_true(size <= (int64_t)sizeof state && n_state >= 2);
    memcpy(state, x + 1, (size_t)n_state * sizeof(double));
    assert_int_equal(b->api->load(env, state, size), 0);
    float   obs[8], reward, act_f = (float)x[0];
    int32_t act_i = (int32_t)x[0];
    int     end =
        b->api->step(env, &(EnvIo){ .obs = { obs }, .act_i = &act_i, .act_f = &act_f, .reward = &reward });
    b->api->save(env, state, size);
    for (int i = 0; i < n_state; i++) {
        if (near(state[i], x[1 + n_state + i]) > 1e-12)
            fail_msg("%s: state %d is %a: %s", name, i, state[i], line);
    }
    assert_true(near(reward, x[1 + 2 * n_state]) <= FLT_EPSILON);
    assert_int_equal(end, x[2 + 2 * n_state] != 0 ? ENV_TERMINATED : ENV_GOES_ON);
    if (n_state == 4 && strcmp(name, "cartpole") == 0) assert_true(obs[2] == (float)state[2]);
    b->api->destroy(env);
    seen[b - builtin_at(0)]++;
}

/* 64 workers that import a package on two cores take 32 times as long as one. */
static void test_start_limit(void **unused)
{
    assert_true(remote_start_limit(60, 1, 2) == 60 && remote_start_limit(60, 2, 2) == 60);
    assert_true(remote_start_limit(60, 64, 2) == 32 * 60 && remote_start_limit(60, 3, 2) == 120);
    assert_true(remote_start_limit(0.5, 4, 4) == 60 && remote_start_limit(100, 4, 2) == 200);
    assert_true(remote_start_limit(-1, 64, 2) < 0);
}

static void test_classic(void **unused)
{
    FILE *f = fopen("tests/golden/env_classic.txt", "r");
    char  line[1000];
    int   seen[16] = { 0 };
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) one_line(line, seen);
    fclose(f);
    for (int i = 0; i < 5; i++) assert_int_equal(seen[i], 60);
}

/* A random policy keeps Gymnasium's CartPole-v1 up for 22 steps on average (standard deviation 12 over 4000
 * episodes: the mean is sure to 0.2). Start states, limits and resets all enter here. */
static void test_random_return(void **unused)
{
    enum { N = 64 };
    Envs  *e;
    Rows   r;
    double sum = 0;
    int    n   = 0;
    assert_int_equal(envs_open(&e, &(EnvsConf){ .name = "CartPole-v1", .n_env = N, .seed = 3 }), 0);
    rows_init(&r, envs_spec(e), N, 1);
    assert_int_equal(envs_reset(e, &r.io), 0);
    while (n < 4000) {
        rows_random(&r, envs_spec(e), N);
        assert_int_equal(envs_step(e, 0, &r.io), 0);
        for (int i = 0; i < N; i++) {
            sum += r.io.episode_return[i];
            n += r.io.episode_length[i] > 0;
        }
    }
    assert_true(fabs(sum / n - 22.2) < 1.0);
    rows_deinit(&r);
    envs_close(e);
}

/* ---- episodes ------------------------------------------------------------------------------------------ */

static void open_with(Envs **e, Rows *r, EnvsConf conf)
{
    assert_int_equal(envs_open(e, &conf), 0);
    rows_init(r, envs_spec(*e), envs_rows(*e), 5);
    assert_int_equal(envs_reset(*e, &r->io), 0);
}

/* The time limit truncates; final_obs is what an environment without a limit shows; obs is the next episode's
 * first. */
static void test_truncation(void **unused)
{
    Envs *cut, *whole, *start;
    Rows  a, b, c;
    open_with(&cut, &a, (EnvsConf){ .name = "pendulum", .n_env = 3, .seed = 1, .max_steps = 7 });
    open_with(&whole, &b, (EnvsConf){ .name = "pendulum", .n_env = 3, .seed = 1, .max_steps = -1 });
    for (int t = 1; t <= 7; t++) {
        rows_random(&a, envs_spec(cut), 3);
        rows_random(&b, envs_spec(whole), 3);
        memset(a.io.final_obs[0], 0, 3 * PENDULUM_OBS * sizeof(float));
        assert_int_equal(envs_step(cut, 0, &a.io), 0);
        assert_int_equal(envs_step(whole, 0, &b.io), 0);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(a.io.truncated[i], t == 7);
            assert_int_equal(a.io.terminated[i] + b.io.terminated[i] + b.io.truncated[i], 0);
            assert_int_equal(a.io.episode_length[i], t == 7 ? 7 : 0);
        }
    }
    assert_memory_equal(a.io.final_obs[0], b.io.obs[0], 3 * PENDULUM_OBS * sizeof(float));
    assert_memory_not_equal(a.io.obs[0], b.io.obs[0], 3 * PENDULUM_OBS * sizeof(float));
    /* Another limit, the same second episode: the seed depends on the episode's number alone. */
    open_with(&start, &c, (EnvsConf){ .name = "pendulum", .n_env = 3, .seed = 1, .max_steps = 2 });
    for (int t = 0; t < 2; t++) {
        rows_random(&c, envs_spec(start), 3);
        assert_int_equal(envs_step(start, 0, &c.io), 0);
    }
    assert_memory_equal(a.io.obs[0], c.io.obs[0], 3 * PENDULUM_OBS * sizeof(float));
    Rows *rows[] = { &a, &b, &c };
    for (int i = 0; i < 3; i++) rows_deinit(rows[i]);
    envs_close(cut);
    envs_close(whole);
    envs_close(start);
}

/* Terminated wins over the limit, and return and length are the episode's. */
static void test_termination(void **unused)
{
    Envs *e;
    Rows  r;
    open_with(&e, &r, (EnvsConf){ .name = "tmaze", .n_env = 1, .seed = 4, .max_steps = 11 });
    int32_t sign = ((float *)r.io.obs[0])[0] > 0 ? 2 : 0;
    for (int t = 0; t < 11; t++) {
        r.act_i[0] = t < 10 ? 1 : sign;
        assert_int_equal(envs_step(e, 0, &r.io), 0);
    }
    assert_int_equal(r.io.terminated[0], 1);
    assert_int_equal(r.io.truncated[0], 0);
    assert_true(r.io.episode_return[0] == 1.0f && r.io.episode_length[0] == 11);
    rows_deinit(&r);
    envs_close(e);
}

/* Same actions per row whatever the split, so the same bits. */
static uint64_t play_conf(EnvsConf conf)
{
    enum { N = 37, T = 300 };
    Envs    *e;
    Rows     r;
    uint64_t h       = 14695981039346656037u;
    int      n_group = conf.n_group;
    conf.n_env       = N;
    conf.seed        = 8;
    open_with(&e, &r, conf);
    int64_t n = envs_rows(e), bytes = envs_spec(e)->block_bytes[0] * n;
    for (int t = 0; t < T; t++) {
        rows_random(&r, envs_spec(e), n);
        for (int g = 0; g < MAX(n_group, 1); g++) assert_int_equal(envs_step(e, g, &r.io), 0);
        for (int64_t i = 0; i < bytes; i++) h = (h ^ ((uint8_t *)r.io.obs[0])[i]) * 1099511628211u;
        for (int i = 0; i < n; i++)
            h = (h ^ r.io.terminated[i] ^ (unsigned)(r.io.reward[i] * 64)) * 1099511628211u;
    }
    rows_deinit(&r);
    envs_close(e);
    return h;
}

static uint64_t play_hash(const char *name, int n_thread, int n_group)
{
    return play_conf((EnvsConf){ .name = name, .n_thread = n_thread, .n_group = n_group });
}

/* The program beside this test: build/tests/test_env -> build/brim. */
static const char *brim_path(void)
{
    static char path[600];
    ssize_t     n = readlink("/proc/self/exe", path, sizeof path - 20);
    assert_true(n > 0);
    path[n] = '\0';
    for (int i = 0; i < 2; i++) *strrchr(path, '/') = '\0';
    return strcat(path, "/brim");
}

static void test_workers(void **unused)
{
    static const char *const name[] = { "meteor", "pendulum", "crossing" };
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        EnvsConf apart = {
            .name = name[i], .isolate = 1, .n_group = 2, .n_worker = 5, .program = brim_path()
        };
        assert_true(play_hash(name[i], 1, 1) == play_conf(apart));
    }
}

/* A worker of four dies in the reset of one: the episodes of the others end, and nobody steps without a
 * reset. The environment shows its own count of steps; the test counts as well. */
static void test_lost_in_reset(void **unused)
{
    enum { N = 4, T = 200 };
    char folder[] = "/tmp/brim-env-XXXXXX", text[600], marker[100], object[100];
    assert_non_null(mkdtemp(folder));
    snprintf(object, sizeof object, "%s/faulty.so", folder);
    snprintf(marker, sizeof marker, "marker=%s/once", folder);
    snprintf(text, sizeof text, "gcc -O1 -w -shared -fPIC -Isrc/env -o %s tests/env/faulty.c -lm", object);
    assert_int_equal(system(text), 0);
    const char *const option[] = { "fault=reset", "at=3", marker };
    Envs             *e;
    Rows              r;
    int               count[N] = { 0 }, n_cut = 0;
    open_with(&e, &r,
              (EnvsConf){ .name      = object,
                          .option    = option,
                          .n_option  = 3,
                          .n_env     = N,
                          .isolate   = 1,
                          .n_worker  = 1,
                          .program   = brim_path(),
                          .max_steps = -1 });
    for (int t = 0; t < T; t++) {
        assert_int_equal(envs_step(e, 0, &r.io), 0);
        for (int i = 0; i < N; i++) {
            int over = r.io.terminated[i] || r.io.truncated[i];
            count[i] = over ? 0 : count[i] + 1;
            n_cut += r.io.truncated[i];
            if (!over) assert_int_equal(lroundf(((float *)r.io.obs[0])[2 * i] * 100), count[i]);
        }
    }
    assert_int_equal(envs_restarts(e), 1);
    assert_int_equal(n_cut, N);
    rows_deinit(&r);
    envs_close(e);
    snprintf(text, sizeof text, "rm -r %s", folder);
    assert_int_equal(system(text), 0);
}

static void test_any_split(void **unused)
{
    static const char *const name[] = { "cartpole", "meteor", "mountaincar-continuous", "crossing" };
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        uint64_t h = play_hash(name[i], 1, 1);
        assert_true(h == play_hash(name[i], 2, 1));
        assert_true(h == play_hash(name[i], 5, 3));
    }
}

/* A step of one group leaves the other group's rows alone. */
static void test_group(void **unused)
{
    Envs *e;
    Rows  r;
    int   first, end;
    open_with(&e, &r, (EnvsConf){ .name = "cartpole", .n_env = 5, .n_group = 2, .seed = 2 });
    float before[5 * CARTPOLE_OBS], *obs = r.io.obs[0];
    memcpy(before, obs, sizeof before);
    envs_group(e, 1, &first, &end);
    assert_int_equal(end, 5);
    assert_int_equal(envs_step(e, 1, &r.io), 0);
    assert_memory_equal(before, obs, (size_t)first * CARTPOLE_OBS * sizeof(float));
    for (int i = first; i < 5; i++) assert_true(obs[i * CARTPOLE_OBS + 1] != before[i * CARTPOLE_OBS + 1]);
    rows_deinit(&r);
    envs_close(e);
}

/* Saved in one Envs, loaded into another: both go on with the same bits. A changed byte of the sizes is
 * refused. */
static void test_state(void **unused)
{
    for (int k = 0; k < builtin_count(); k++) {
        EnvsConf conf = { .name = builtin_at(k)->name, .n_env = 6, .seed = 21, .max_steps = 30 };
        Envs    *a, *b;
        Rows     ra, rb;
        open_with(&a, &ra, conf);
        open_with(&b, &rb, conf);
        int64_t N = envs_rows(a);
        for (int t = 0; t < 50; t++) {
            rows_random(&ra, envs_spec(a), N);
            assert_int_equal(envs_step(a, 0, &ra.io), 0);
        }
        int64_t n   = envs_state_bytes(a);
        char   *buf = malloc((size_t)n);
        assert_int_equal(envs_save(a, &ra.io, buf, n), 0);
        assert_int_equal(envs_load(b, &rb.io, buf, n), 0);
        size_t bytes = (size_t)(envs_spec(a)->block_bytes[0] * N);
        assert_memory_equal(ra.io.obs[0], rb.io.obs[0], bytes);
        rb.n_drawn = ra.n_drawn;
        for (int t = 0; t < 50; t++) {
            rows_random(&ra, envs_spec(a), N);
            rows_random(&rb, envs_spec(b), N);
            assert_int_equal(envs_step(a, 0, &ra.io), 0);
            assert_int_equal(envs_step(b, 0, &rb.io), 0);
            assert_memory_equal(ra.io.obs[0], rb.io.obs[0], bytes);
            assert_memory_equal(ra.io.reward, rb.io.reward, (size_t)N * sizeof(float));
            assert_memory_equal(ra.io.episode_return, rb.io.episode_return, (size_t)N * sizeof(float));
            assert_memory_equal(ra.io.terminated, rb.io.terminated, (size_t)N);
        }
        assert_int_equal(envs_load(b, &rb.io, buf, n - 1), -1);
        err_clear();
        buf[16] ^= 1; /* n_env */
        assert_int_equal(envs_load(b, &rb.io, buf, n), 1);
        free(buf);
        rows_deinit(&ra);
        rows_deinit(&rb);
        envs_close(a);
        envs_close(b);
    }
}

/* A state of other options or of another seed is not loaded: the length of a T-maze is part of it. */
static void test_other_state(void **unused)
{
    static const char *const option[] = { "length=8", "length=20" };
    EnvsConf conf = { .name = "tmaze", .n_env = 2, .seed = 1, .option = option, .n_option = 1 };
    Envs    *a, *b;
    Rows     ra, rb;
    open_with(&a, &ra, conf);
    int64_t n   = envs_state_bytes(a);
    char   *buf = malloc((size_t)n);
    assert_int_equal(envs_save(a, &ra.io, buf, n), 0);
    for (int k = 0; k < 3; k++) {
        conf.option = option + (k == 1);
        conf.seed   = 1 + (k == 2);
        open_with(&b, &rb, conf);
        assert_int_equal(envs_load(b, &rb.io, buf, n), k > 0);
        rows_deinit(&rb);
        envs_close(b);
    }
    free(buf);
    rows_deinit(&ra);
    envs_close(a);
}

/* ---- tasks --------------------------------------------------------------------------------------------- */

/* Mean return of a policy that turns where the sign pointed (memory), or always right. */
static double tmaze_return(int has_memory)
{
    enum { N = 200, L = 25 };
    static const char *const option[] = { "length=25" };
    Envs                    *e;
    Rows                     r;
    int32_t                  turn[N];
    double                   sum = 0;
    open_with(&e, &r, (EnvsConf){ .name = "tmaze", .option = option, .n_option = 1, .n_env = N, .seed = 6 });
    const float *obs = r.io.obs[0];
    for (int i = 0; i < N; i++) turn[i] = has_memory && obs[3 * i] < 0 ? 0 : 2;
    for (int t = 0; t <= L; t++) {
        for (int i = 0; i < N; i++) {
            r.act_i[i] = obs[3 * i + 2] > 0 ? turn[i] : 1;
            if (t > 0) assert_true(obs[3 * i] == 0); /* the sign is not shown again */
        }
        assert_int_equal(envs_step(e, 0, &r.io), 0);
    }
    for (int i = 0; i < N; i++) sum += r.io.episode_return[i];
    rows_deinit(&r);
    envs_close(e);
    return sum / N;
}

static void test_tmaze(void **unused)
{
    assert_true(tmaze_return(1) == 1.0);
    assert_true(fabs(tmaze_return(0)) < 0.3); /* 200 fair signs: 0 with standard deviation 0.07 */
}

static void test_meteor(void **unused)
{
    Meteor  s;
    float   reward;
    uint8_t mask[3], obs[METEOR_OBS];
    meteor_reset(&s, 1);
    s.column                                   = 0;
    s.cell[METEOR_CELLS - 2 * METEOR_SIZE]     = METEOR_GEM;  /* above the player */
    s.cell[METEOR_CELLS - 2 * METEOR_SIZE + 1] = METEOR_ROCK; /* to the right of it */
    meteor_mask(&s, mask);
    assert_true(!mask[0] && mask[1] && mask[2]);
    meteor_observe(&s, obs);
    assert_int_equal(obs[METEOR_CELLS - METEOR_SIZE], 1);
    assert_int_equal(obs[METEOR_CELLS + METEOR_CELLS - 2 * METEOR_SIZE], 1);
    Meteor copy = s;
    assert_int_equal(meteor_step(&s, &(int32_t){ 1 }, NULL, &reward), ENV_GOES_ON);
    assert_true(reward == 1.0f);
    assert_int_equal(meteor_step(&copy, &(int32_t){ 2 }, NULL, &reward), ENV_TERMINATED);
    assert_true(reward == -1.0f);
}

/* Buses on one cell crash, whoever came first; one that arrives leaves and comes back; the last crash ends
 * the episode. */
static void test_crossing(void **unused)
{
    enum { FIRST = CROSSING_FIRST };
    const int32_t drive[] = { 1, 1, 1, 1 }, wait[] = { 0, 0, 0, 0 };
    float         reward[CROSSING_BUSES];
    uint8_t       alive[CROSSING_BUSES];
    Crossing      s, start;
    crossing_reset(&start, 1);
    s = start;
    memcpy(s.front, (int32_t[]){ FIRST, FIRST, 0, FIRST + 3 }, sizeof s.front); /* the last has passed */
    assert_int_equal(crossing_step(&s, wait, NULL, reward), ENV_GOES_ON);
    assert_true(reward[0] == 0 && reward[1] == 0 && s.front[0] == FIRST);
    assert_int_equal(crossing_step(&s, (int32_t[]){ 1, 0, 0, 0 }, NULL, reward), ENV_GOES_ON);
    assert_true(reward[0] == -1 && reward[1] == -1 && reward[2] == 0 && reward[3] == 0);
    crossing_alive(&s, alive);
    assert_true(!alive[0] && !alive[1] && alive[2] && alive[3]);
    s = start; /* the tail is long: a bus crashes with one that has nearly passed, and not after that */
    memcpy(s.front, (int32_t[]){ FIRST + 2, FIRST - 1, 0, 0 }, sizeof s.front);
    assert_int_equal(crossing_step(&s, (int32_t[]){ 0, 1, 0, 0 }, NULL, reward), ENV_GOES_ON);
    assert_true(reward[0] == -1 && reward[1] == -1);
    s = start;
    memcpy(s.front, (int32_t[]){ FIRST + 2, FIRST - 1, 0, 0 }, sizeof s.front);
    crossing_step(&s, (int32_t[]){ 1, 1, 0, 0 }, NULL, reward);
    assert_true(reward[0] == 0 && reward[1] == 0);
    s = start;
    memcpy(s.front, (int32_t[]){ CROSSING_LANE - 1, 0, 0, 0 }, sizeof s.front);
    crossing_step(&s, drive, NULL, reward);
    assert_true(reward[0] == 1 && s.front[0] == CROSSING_AWAY);
    int away = 0;
    for (; s.front[0] == CROSSING_AWAY; away++) crossing_step(&s, wait, NULL, reward);
    assert_true(away >= 1 && away <= CROSSING_PAUSE && s.front[0] == 0);
    s = start; /* none can drive on out of a full crossing */
    for (int k = 0; k < CROSSING_BUSES; k++) s.front[k] = FIRST;
    assert_int_equal(crossing_step(&s, drive, NULL, reward), ENV_TERMINATED);
}

/* Agents that leave are terminated in that step alone, while the episode goes on for the others. Rewards
 * count for agents that were there. Only agents that are there are cut by the limit. */
static void test_agents(void **unused)
{
    enum { N = 40, A = CROSSING_BUSES, T = 300 };
    Envs   *e;
    Rows    r;
    uint8_t was[N * A];
    double  sum[N * A] = { 0 };
    int     n_left = 0, n_absent = 0, n_cut = 0, n_over = 0;
    open_with(&e, &r, (EnvsConf){ .name = "crossing", .n_env = N, .seed = 3, .max_steps = 40 });
    for (int t = 0; t < T; t++) {
        memcpy(was, r.io.alive, sizeof was);
        rows_random(&r, envs_spec(e), N * A);
        assert_int_equal(envs_step(e, 0, &r.io), 0);
        for (int i = 0; i < N * A; i++) {
            int over = r.io.episode_length[i] > 0, there = over ? r.io.truncated[i] : r.io.alive[i];
            sum[i] += (double)r.io.reward[i];
            if (!was[i]) assert_true(r.io.reward[i] == 0);
            assert_int_equal(over, r.io.episode_length[i / A * A] > 0);
            assert_int_equal(r.io.terminated[i], over ? !there : was[i] && !there);
            if (over) assert_true(r.io.episode_return[i] == (float)sum[i]);
            n_left += was[i] && !there && !over;
            n_absent += over && !there && r.io.episode_length[i] == 40;
            n_cut += r.io.truncated[i];
            n_over += over && r.io.episode_length[i] < 40;
            if (!over) assert_int_equal(r.io.truncated[i], 0);
            if (over) sum[i] = 0;
        }
    }
    assert_true(n_left > 100 && n_absent > 100 && n_cut > 10 && n_over > 10);
    rows_deinit(&r);
    envs_close(e);
}

static void test_bad_actions(void **unused)
{
    Envs *e;
    Rows  r;
    open_with(&e, &r, (EnvsConf){ .name = "cartpole", .n_env = 4, .seed = 1 });
    r.act_i[2] = 2;
    assert_int_equal(envs_step(e, 0, &r.io), -1);
    assert_non_null(strstr(err_get(), "cartpole number 2"));
    err_clear();
    rows_deinit(&r);
    envs_close(e);
    open_with(&e, &r, (EnvsConf){ .name = "pendulum", .n_env = 4, .seed = 1 });
    r.act_f[3] = NAN;
    assert_int_equal(envs_step(e, 0, &r.io), -1);
    assert_non_null(strstr(err_get(), "pendulum number 3"));
    err_clear();
    rows_deinit(&r);
    envs_close(e);
}

/* ---- descriptions -------------------------------------------------------------------------------------- */

static int takes(EnvInfo info)
{
    Arena   a;
    EnvSpec s;
    arena_init(&a);
    int rc = spec_take(&s, &a, &info, "x");
    err_clear();
    arena_deinit(&a);
    return rc == 0;
}

static void test_spec(void **unused)
{
    EnvBlock good = { .name = "a", .n_dim = 1, .shape = { 3 } }, bad = good;
    int32_t  two[] = { 2, 3 };
    float    low[] = { -1 }, high[] = { 1 };
    EnvInfo  info = { .abi         = ENV_ABI,
                      .size_bytes  = sizeof info,
                      .name        = "x",
                      .obs         = &good,
                      .n_obs       = 1,
                      .n_act       = 2,
                      .act_choices = two };
    assert_true(takes(info));
    EnvInfo x = info;
    x.abi     = 2;
    assert_false(takes(x));
    x       = info;
    x.n_act = 0;
    assert_false(takes(x));
    x             = info;
    x.act_choices = (int32_t[]){ 2, 0 };
    assert_false(takes(x));
    x          = info;
    x.act_kind = ENV_CONTINUOUS;
    assert_false(takes(x));
    x.n_act    = 1;
    x.act_low  = low;
    x.act_high = high;
    assert_true(takes(x));
    high[0] = -1;
    assert_false(takes(x));
    bad.shape[0] = 0;
    x            = info;
    x.obs        = &bad;
    assert_false(takes(x));
    bad      = good;
    bad.high = NAN;
    assert_false(takes(x));
    bad       = good;
    bad.n_dim = 4;
    for (int i = 0; i < 4; i++) bad.shape[i] = 1 << 20;
    assert_false(takes(x));
}

/* What an older object does not know is zero: its struct ends before `fps`. */
static void test_short_struct(void **unused)
{
    EnvBlock b   = { .name = "a", .n_dim = 1, .shape = { 3 } };
    int32_t  two = 2;
    EnvInfo  i   = { .abi         = ENV_ABI,
                     .size_bytes  = offsetof(EnvInfo, fps),
                     .obs         = &b,
                     .n_obs       = 1,
                     .n_act       = 1,
                     .act_choices = &two,
                     .fps         = 99 };
    Arena    a;
    EnvSpec  s;
    arena_init(&a);
    assert_int_equal(spec_take(&s, &a, &i, "x"), 0);
    assert_int_equal(s.info.fps, 30);
    arena_deinit(&a);
}

static void test_spec_json(void **unused)
{
    for (int i = 0; i < builtin_count(); i++) {
        EnvLib  l;
        Arena   a;
        EnvSpec s, t;
        void   *env;
        char    json[4000];
        arena_init(&a);
        assert_int_equal(envlib_open(&l, builtin_at(i)->name, NULL, 0), 0);
        assert_int_equal(envlib_create(&l, &env), 0);
        assert_int_equal(spec_take(&s, &a, l.api.info(env), "x"), 0);
        int n = spec_write(&s, json, sizeof json);
        assert_true(n > 0);
        assert_int_equal(spec_parse(&t, &a, json, (size_t)n, "x"), 0);
        assert_true(spec_same(&s, &t) && t.info.max_steps == s.info.max_steps &&
                    t.info.solved_at == s.info.solved_at);
        for (int k = 1; k < n; k++) { /* no prefix is accepted or read beyond */
            assert_int_equal(spec_parse(&t, &a, json, (size_t)k - 1, "x"), -1);
            err_clear();
        }
        l.api.destroy(env);
        arena_deinit(&a);
    }
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

/* A decoder of its own: codes of growing width, as the standard has them. Returns pixels decoded. */
static int64_t unpack_lzw(const uint8_t *in, uint8_t *out, int64_t most)
{
    static uint8_t tail[4096];
    static int     from[4096];
    int            width = 9, next = 258, last = -1, bit = 0;
    int64_t        n = 0;
    for (int i = 0; i < 256; i++) tail[i] = (uint8_t)i, from[i] = -1;
    for (;;) {
        int code = 0;
        for (int k = 0; k < width; k++, bit++) code |= (in[bit / 8] >> bit % 8 & 1) << k;
        if (code == 257) return n;
        if (code == 256) {
            width = 9, next = 258, last = -1;
            continue;
        }
        uint8_t stack[4096];
        int     depth = 0, at = code;
        if (last >= 0 && code >= next) at = last; /* the entry that is just being made */
        for (int c = at; c >= 0; c = from[c]) stack[depth++] = tail[c];
        uint8_t first = stack[depth - 1];
        while (depth > 0 && n < most) out[n++] = stack[--depth];
        if (last >= 0 && code >= next && n < most) out[n++] = first;
        if (last >= 0 && next < 4096) {
            tail[next] = first, from[next] = last;
            if (++next == 1 << width && width < 12) width++;
        }
        last = code;
    }
}

static void one_gif(const uint8_t *rgb, int w, int h, int exact)
{
    char     path[] = "/tmp/brim-gif-XXXXXX", *data;
    size_t   size, at = 13 + 19, n = (size_t)w * (size_t)h;
    Gif      g;
    uint8_t *index = malloc(n), *packed = malloc(4 * n + 1000);
    close(mkstemp(path));
    assert_int_equal(gif_open(&g, path, w, h, 20), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(gif_frame(&g, rgb), 0);
    assert_int_equal(gif_finish(&g), 0);
    assert_int_equal(file_read_all(path, 1 << 26, &data, &size), 0);
    const uint8_t *p = (const uint8_t *)data;
    assert_memory_equal(p, "GIF89a", 6);
    assert_int_equal(p[6] + 256 * p[7], w);
    for (int frame = 0; frame < 2; frame++) {
        assert_int_equal(p[at], 0x21);
        assert_int_equal(p[at + 4], 5); /* 20 frames a second */
        assert_int_equal(p[at + 8], 0x2c);
        const uint8_t *palette = p + at + 18;
        size_t         k = at + 18 + 768 + 1, m = 0;
        for (; p[k]; k += 1u + p[k]) {
            memcpy(packed + m, p + k + 1, p[k]);
            m += p[k];
        }
        assert_int_equal(unpack_lzw(packed, index, (int64_t)n), n);
        for (size_t i = 0; i < n; i++) {
            for (int c = 0; c < 3; c++)
                assert_true(abs(palette[3 * index[i] + c] - rgb[3 * i + (size_t)c]) <= (exact ? 0 : 26));
        }
        at = k + 1;
    }
    assert_int_equal(p[at], 0x3b);
    assert_int_equal(at + 1, size);
    free(data);
    free(index);
    free(packed);
    unlink(path);
}

/* Few colours, many colours, and noise that fills the dictionary several times. */
static void test_gif(void **unused)
{
    enum { W = 97, H = 131 };
    static uint8_t rgb[W * H * 3];
    uint32_t       x = 1;
    one_gif(rgb, 1, 1, 1);
    one_gif(rgb, W, H, 1);
    for (int i = 0; i < W * H; i++) memset(rgb + 3 * i, i / 7 % 9 * 20, 3);
    one_gif(rgb, W, H, 1);
    for (int i = 0; i < W * H; i++) memset(rgb + 3 * i, (int)((x = x * 1664525 + 1013904223) >> 24), 3);
    one_gif(rgb, W, H, 1);
    for (int i = 0; i < W * H * 3; i++) rgb[i] = (uint8_t)((x = x * 1664525 + 1013904223) >> 24);
    one_gif(rgb, W, H, 0);
}

/* Every picture fills its bytes and changes when the state does. */
static void test_pictures(void **unused)
{
    enum { BYTES = PICTURE_WIDTH * PICTURE_HEIGHT * 3 };
    uint8_t *a = malloc(BYTES), *b = malloc(BYTES);
    for (int k = 0; k < builtin_count(); k++) {
        Envs *e;
        Rows  r;
        int   w, h, bad = 0;
        open_with(&e, &r, (EnvsConf){ .name = builtin_at(k)->name, .n_env = 1, .seed = 5 });
        memset(a, 0x11, BYTES);
        memset(b, 0x77, BYTES);
        assert_int_equal(envs_picture(e, 0, a, &w, &h), 0);
        assert_int_equal(envs_picture(e, 0, b, &w, &h), 0);
        assert_true(w == PICTURE_WIDTH && h == PICTURE_HEIGHT);
        assert_memory_equal(a, b, BYTES);
        for (int t = 0; t < 8; t++) {
            if (r.act_i) r.act_i[0] = 1;
            if (r.act_f) r.act_f[0] = 1;
            assert_int_equal(envs_step(e, 0, &r.io), 0);
        }
        assert_int_equal(envs_picture(e, 0, b, &w, &h), 0);
        bad = memcmp(a, b, BYTES) == 0;
        if (bad) fail_msg("%s: the picture does not change", builtin_at(k)->name);
        rows_deinit(&r);
        envs_close(e);
    }
    free(a);
    free(b);
}

/* Half-block characters, two pixels each, with the picture's colours and its proportions. */
static void test_terminal(void **unused)
{
    static const char first[] = "\033[38;2;200;100;50m\033[48;2;1;2;3m\xe2\x96\x80";
    uint8_t           rgb[8 * 6 * 3];
    char              text[8000];
    Draw              d = { rgb, 8, 6 };
    FILE             *f = tmpfile();
    draw_fill(&d, (DrawColor){ 1, 2, 3 });
    draw_rect(&d, 0, 0, 4, 1, (DrawColor){ 200, 100, 50 });
    draw_terminal(&d, 8, 20, f);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    int lines = 0, blocks = 0, colours = 0;
    for (const char *p = text; *p; p++) lines += *p == '\n';
    for (const char *p = text; (p = strstr(p, "8;2;")); p++) colours++;
    assert_int_equal(colours, 2 * 3 + 1); /* both of a line at its beginning, then only another one */
    for (const char *p = text; (p = strstr(p, "\xe2\x96\x80")); p++) blocks++;
    assert_int_equal(lines, 3);
    assert_int_equal(blocks, 24);
    assert_int_equal(strncmp(text, first, strlen(first)), 0);
}

/* ---- names --------------------------------------------------------------------------------------------- */

static void refused(const char *name, const char *option, const char *text)
{
    Envs *e;
    assert_int_equal(
        envs_open(&e, &(EnvsConf){ .name = name, .option = &option, .n_option = option != NULL, .n_env = 1 }),
        -1);
    assert_int_equal(err_kind(), ERR_USER);
    if (!strstr(err_get(), text)) fail_msg("%s: %s", name, err_get());
    err_clear();
}

static void test_names(void **unused)
{
    refused("cartpol", NULL, "did you mean cartpole?");
    refused("quite-another-thing", NULL, "brim env list");
    refused("./there-is-none.so", NULL, "no such file");
    refused("ant.xml", NULL, "did you mean mujoco:ant.xml?");
    refused("LunarLander-v3", NULL, "did you mean gym:LunarLander-v3?");
    refused("my/game.py", NULL, "did you mean gym:my/game.py:CLASS?");
    refused("game.py:Game", NULL, "did you mean gym:game.py:Game?");
    refused("cartpole", "length=3", "length: no such option (it has none)");
    refused("tmaze", "length=0", "whole number");
    refused("tmaze", "width=3", "length=N");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classic),       cmocka_unit_test(test_random_return),
        cmocka_unit_test(test_truncation),    cmocka_unit_test(test_termination),
        cmocka_unit_test(test_any_split),     cmocka_unit_test(test_workers),
        cmocka_unit_test(test_lost_in_reset), cmocka_unit_test(test_group),
        cmocka_unit_test(test_state),         cmocka_unit_test(test_tmaze),
        cmocka_unit_test(test_meteor),        cmocka_unit_test(test_bad_actions),
        cmocka_unit_test(test_start_limit),   cmocka_unit_test(test_crossing),
        cmocka_unit_test(test_agents),        cmocka_unit_test(test_spec),
        cmocka_unit_test(test_short_struct),  cmocka_unit_test(test_spec_json),
        cmocka_unit_test(test_gif),           cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_other_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
