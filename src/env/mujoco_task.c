#include "env/mujoco_task.h"

#if __has_include(<mujoco/mujoco.h>)

#include "base/err.h"
#include "base/str.h"

#include <dlfcn.h>
#include <math.h>
#include <mujoco/mujoco.h>
#include <stdio.h>
#include <string.h>

/* The centre of mass along x, weighted as Gymnasium's mass_center() does. */
static double humanoid_measure(const mjModel *m, const mjData *d)
{
    double sum = 0, mass = 0;
    for (int i = 0; i < m->nbody; i++) {
        sum += m->body_mass[i] * d->xipos[3 * i];
        mass += m->body_mass[i];
    }
    return sum / mass;
}

/* Gymnasium's Humanoid-v4: 1.25 x forward speed + 5 - 0.1 x sum of squared controls; over unless 1 < z <
 * 2. */
static int humanoid_judge(const MujocoStep *s, float *reward)
{
    const mjModel *m       = s->m;
    const mjData  *d       = s->d;
    double         control = 0, forward = (humanoid_measure(m, d) - s->before) / s->dt;
    for (int i = 0; i < m->nu; i++) control += d->ctrl[i] * d->ctrl[i];
    *reward = (float)(1.25 * forward + 5.0 - 0.1 * control);
    return d->qpos[2] > 1.0 && d->qpos[2] < 2.0 ? ENV_GOES_ON : ENV_TERMINATED;
}

/* Minus the metres between the last body's centre of mass and the target. */
static int reach_judge(const MujocoStep *s, float *reward)
{
    const mjtNum *tip = s->d->xipos + 3 * (s->m->nbody - 1);
    double        sum = 0;
    for (int i = 0; i < 3; i++) sum += (s->target[i] - tip[i]) * (s->target[i] - tip[i]);
    *reward = (float)-sqrt(sum);
    return ENV_GOES_ON;
}

static const MujocoTask humanoid_task = { .abi         = MUJOCO_TASK_ABI,
                                          .size_bytes  = sizeof(MujocoTask),
                                          .frame_skip  = 5,
                                          .max_steps   = 1000,
                                          .skip_qpos   = 2,
                                          .reset_noise = 0.01,
                                          .judge_step  = humanoid_judge,
                                          .measure     = humanoid_measure };
static const MujocoTask reach_task    = { .abi         = MUJOCO_TASK_ABI,
                                          .size_bytes  = sizeof(MujocoTask),
                                          .frame_skip  = 4,
                                          .max_steps   = 100,
                                          .reset_noise = 0.01,
                                          .judge_step  = reach_judge,
                                          .has_target  = 1 };
static const MujocoTask no_task       = { .abi         = MUJOCO_TASK_ABI,
                                          .size_bytes  = sizeof(MujocoTask),
                                          .frame_skip  = 1,
                                          .max_steps   = 1000,
                                          .reset_noise = 0.01 };

int mujoco_task_take(MujocoTask *out, const char *name, char *error, size_t n_error)
{
    const MujocoTask *t = strcmp(name, "humanoid") == 0 ? &humanoid_task
                          : strcmp(name, "reach") == 0  ? &reach_task
                          : strcmp(name, "none") == 0   ? &no_task
                                                        : NULL;
    if (!t && str_ends_with(name, ".so")) {
        char path[512] = "";
        str_append(path, sizeof path, "%s%s", strchr(name, '/') ? "" : "./", name);
        void *handle                   = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        const MujocoTask *(*get)(void) = NULL;
        if (handle) *(void **)&get = dlsym(handle, "brim_mujoco_task");
        if (!handle || !get) {
            snprintf(error, n_error, "task: %s", dlerror());
            return -1;
        }
        t = get();
    }
    if (!t || t->abi != MUJOCO_TASK_ABI) {
        snprintf(error, n_error, "task: '%s' is not humanoid, reach, none or a shared object of this version",
                 name);
        return -1;
    }
    memset(out, 0, sizeof *out);
    memcpy(out, t, MIN((size_t)t->size_bytes, sizeof *out));
    return 0;
}

#endif
