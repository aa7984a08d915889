/* A user's task for a MuJoCo model: the height of the first joint's third coordinate is the reward. */
#include "mujoco.h"

#include <mujoco/mujoco.h>

static int judge(const mjModel *m, const mjData *d, double before, float *reward)
{
    *reward = (float)(d->qpos[2] + 0 * before);
    return d->qpos[2] < 0.5 ? ENV_TERMINATED : ENV_GOES_ON;
}

const MujocoTask *brim_mujoco_task(void)
{
    static const MujocoTask task = { MUJOCO_TASK_ABI, sizeof task, 2, 50, 0, 0.001, judge, 0 };
    return &task;
}
