/* Steps per second of environments through the vector layer, and of MuJoCo beside a bare loop of mj_step() on
 * as many threads: `make bench-env` (needs libmujoco-dev). The two MuJoCo loops have the same controls and
 * take turns, and the median of each counts. */
#include "base/clock.h"
#include "base/err.h"
#include "env/builtin.h"
#include "env/rows.h"

#include <mujoco/mujoco.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TURNS = 5, MUJOCO_ENVS = 512, FRAME_SKIP = 5 };

/* Steps per second of the clock, and per second that the processor worked: the second one is right on a busy
 * machine, too. */
typedef struct {
    double wall, cpu;
} Rate;

typedef struct {
    double wall_s, cpu_s;
} Since;

static double cpu_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static Since begin(void) { return (Since){ clock_now_s(), cpu_now_s() }; }

static Rate rate(Since s, int64_t n, int n_thread)
{
    return (Rate){ (double)n / (clock_now_s() - s.wall_s), (double)n / (cpu_now_s() - s.cpu_s) * n_thread };
}

static Rate envs_rate(const char *name, int n_env, int n_thread, double seconds)
{
    Envs *e;
    Rows  r;
    CHECK(envs_open(&e, &(EnvsConf){ .name = name, .n_env = n_env, .n_thread = n_thread, .seed = 1 }) == 0,
          "%s", err_get());
    rows_init(&r, envs_spec(e), envs_rows(e), 1);
    CHECK(envs_reset(e, &r.io) == 0, "%s", err_get());
    rows_random(&r, envs_spec(e), envs_rows(e));
    Since   s = begin();
    int64_t n = 0;
    while (clock_now_s() - s.wall_s < seconds) {
        CHECK(envs_step(e, 0, &r.io) == 0, "%s", err_get());
        n += n_env;
    }
    Rate x = rate(s, n, n_thread);
    rows_deinit(&r);
    envs_close(e);
    return x;
}

static void set_controls(const mjModel *m, mjData *d, const float *act)
{
    for (int k = 0; k < m->nu; k++) d->ctrl[k] = act[k];
}

/* The engine alone, with the same controls and the same rule for starting anew, and nothing else: no thread
 * waits for another. */
static Rate bare_rate(const mjModel *m, const char *name, int n_env, int n_thread, double seconds)
{
    Envs *e;
    Rows  r;
    CHECK(envs_open(&e, &(EnvsConf){ .name = name, .n_env = 1 }) == 0, "%s", err_get());
    rows_init(&r, envs_spec(e), n_env, 1);
    rows_random(&r, envs_spec(e), n_env);
    mjData **d = calloc((size_t)n_env, sizeof *d);
    for (int i = 0; i < n_env; i++) set_controls(m, d[i] = mj_makeData(m), r.act_f + i * m->nu);
    Since   s = begin();
    int64_t n = 0;
#pragma omp parallel num_threads(n_thread) reduction(+ : n)
    while (clock_now_s() - s.wall_s < seconds) {
        int t = omp_get_thread_num();
        for (int i = n_env * t / n_thread; i < n_env * (t + 1) / n_thread; i++, n++) {
            for (int k = 0; k < FRAME_SKIP; k++) mj_step(m, d[i]);
            if (d[i]->qpos[2] > 1 && d[i]->qpos[2] < 2) continue;
            mj_resetData(m, d[i]);
            mj_forward(m, d[i]);
            set_controls(m, d[i], r.act_f + i * m->nu);
        }
    }
    Rate x = rate(s, n, n_thread);
    for (int i = 0; i < n_env; i++) mj_deleteData(d[i]);
    free(d);
    rows_deinit(&r);
    envs_close(e);
    return x;
}

static void beside(const mjModel *m, const char *name, int n_thread)
{
    double bare[2][TURNS], ours[2][TURNS];
    for (int t = 0; t < TURNS; t++) {
        Rate b     = bare_rate(m, name, MUJOCO_ENVS, n_thread, 0.5),
             o     = envs_rate(name, MUJOCO_ENVS, n_thread, 0.5);
        bare[0][t] = b.wall;
        bare[1][t] = b.cpu;
        ours[0][t] = o.wall;
        ours[1][t] = o.cpu;
    }
    for (int k = 0; k < 2; k++) {
        double b = clock_median(bare[k], TURNS), o = clock_median(ours[k], TURNS);
        printf("humanoid, %d thread%s, %s: bare loop of mj_step %.0f steps/s, vector layer %.0f: %.1f %%\n",
               n_thread, n_thread == 1 ? "" : "s", k ? "processor time" : "clock", b, o, 100 * o / b);
    }
}

/* bench_env [MODEL.xml [THREADS]]: with a number of threads, MuJoCo alone on so many. */
int main(int argc, char **argv)
{
    const char *xml      = argc > 1 ? argv[1] : "/usr/share/mujoco/model/humanoid/humanoid.xml";
    char        why[300] = "";
    int         n_wanted = argc > 2 ? atoi(argv[2]) : 0;
    for (int i = 0; i < builtin_count() && !n_wanted; i++)
        printf("%-24s %8.2f M steps/s, one thread\n", builtin_at(i)->name,
               envs_rate(builtin_at(i)->name, 256, 1, 0.5).cpu * 1e-6);
    mjModel *m = mj_loadXML(xml, NULL, why, sizeof why);
    CHECK(m, "%s: %s", xml, why);
    char name[300];
    snprintf(name, sizeof name, "mujoco:%s", xml);
    if (n_wanted) beside(m, name, n_wanted);
    for (int n = 1; n <= omp_get_num_procs() && !n_wanted; n *= 2) beside(m, name, n);
    mj_deleteModel(m);
    return 0;
}
