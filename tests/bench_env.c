/* Steps per second of environments through the vector layer, and of MuJoCo beside a bare loop of mj_step() on
 * as many threads: `make bench-env` (needs libmujoco-dev). The two MuJoCo loops take turns, and the median of
 * each counts. */
#include "base/clock.h"
#include "base/err.h"
#include "env/builtin.h"
#include "env/rows.h"

#include <mujoco/mujoco.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { TURNS = 7, MUJOCO_ENVS = 16, FRAME_SKIP = 5 };

static double envs_rate(const char *name, int n_env, int n_thread, double seconds)
{
    Envs *e;
    Rows  r;
    CHECK(envs_open(&e, &(EnvsConf){ .name = name, .n_env = n_env, .n_thread = n_thread, .seed = 1 }) == 0,
          "%s", err_get());
    rows_init(&r, envs_spec(e), envs_rows(e), 1);
    CHECK(envs_reset(e, &r.io) == 0, "%s", err_get());
    rows_random(&r, envs_spec(e), envs_rows(e));
    double  begin = clock_now_s(), used = 0;
    int64_t n = 0;
    while (used < seconds) {
        CHECK(envs_step(e, 0, &r.io) == 0, "%s", err_get());
        n += n_env;
        used = clock_now_s() - begin;
    }
    rows_deinit(&r);
    envs_close(e);
    return (double)n / used;
}

/* The engine alone, with the same controls and the same rule for starting anew, and nothing else. */
static double bare_rate(const mjModel *m, int n_env, int n_thread, double seconds)
{
    mjData **d = calloc((size_t)n_env, sizeof *d);
    for (int i = 0; i < n_env; i++) {
        d[i] = mj_makeData(m);
        for (int k = 0; k < m->nu; k++) d[i]->ctrl[k] = ((i * 31 + k * 17) % 100) / 50.0 - 1;
    }
    double  begin = clock_now_s(), used = 0;
    int64_t n = 0;
    while (used < seconds) {
#pragma omp parallel for num_threads(n_thread) schedule(static)
        for (int i = 0; i < n_env; i++) {
            for (int k = 0; k < FRAME_SKIP; k++) mj_step(m, d[i]);
            if (d[i]->qpos[2] > 1 && d[i]->qpos[2] < 2) continue;
            mj_resetData(m, d[i]);
            mj_forward(m, d[i]);
            for (int k = 0; k < m->nu; k++) d[i]->ctrl[k] = ((i * 31 + k * 17) % 100) / 50.0 - 1;
        }
        n += n_env;
        used = clock_now_s() - begin;
    }
    for (int i = 0; i < n_env; i++) mj_deleteData(d[i]);
    free(d);
    return (double)n / used;
}

int main(int argc, char **argv)
{
    const char *xml      = argc > 1 ? argv[1] : "/usr/share/mujoco/model/humanoid/humanoid.xml";
    char        why[300] = "";
    for (int i = 0; i < builtin_count(); i++)
        printf("%-24s %8.2f M steps/s, one thread\n", builtin_at(i)->name,
               envs_rate(builtin_at(i)->name, 256, 1, 0.5) * 1e-6);
    mjModel *m = mj_loadXML(xml, NULL, why, sizeof why);
    CHECK(m, "%s: %s", xml, why);
    for (int n_thread = 1; n_thread <= omp_get_num_procs(); n_thread *= 2) {
        double bare[TURNS], ours[TURNS];
        for (int t = 0; t < TURNS; t++) {
            bare[t] = bare_rate(m, MUJOCO_ENVS, n_thread, 0.7);
            ours[t] = envs_rate("mujoco:humanoid.xml", MUJOCO_ENVS, n_thread, 0.7);
        }
        double b = clock_median(bare, TURNS), o = clock_median(ours, TURNS);
        printf("humanoid, %d thread%s: bare mj_step loop %.0f steps/s, vector layer %.0f: %.1f %%\n",
               n_thread, n_thread == 1 ? "" : "s", b, o, 100 * o / b);
    }
    mj_deleteModel(m);
    return 0;
}
