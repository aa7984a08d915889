/* Task reach once more, by a user's file: the same numbers in the same order. */
#include "mujoco.h"

#include <math.h>
#include <mujoco/mujoco.h>

static int judge(const MujocoStep *s, float *reward)
{
    const double *tip = &s->d->xipos[3 * s->m->nbody - 3];
    double        x = s->target[0] - tip[0], y = s->target[1] - tip[1], z = s->target[2] - tip[2];
    *reward = (float)-sqrt(x * x + y * y + z * z);
    return ENV_GOES_ON;
}

const MujocoTask *brim_mujoco_task(void)
{
    static const MujocoTask task = { .abi         = MUJOCO_TASK_ABI,
                                     .size_bytes  = sizeof task,
                                     .frame_skip  = 4,
                                     .max_steps   = 100,
                                     .reset_noise = 0.01,
                                     .judge_step  = judge,
                                     .has_target  = 1 };
    return &task;
}
