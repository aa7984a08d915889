/* Humanoid-v4's reward once more, another way: the engine's own centre of mass instead of a sum over
 * bodies. */
#include "mujoco.h"

#include <mujoco/mujoco.h>

#ifndef SKIP
#define SKIP 5 /* engine steps a step */
#endif

static double measure(const mjModel *m, const mjData *d) { return d->subtree_com[0]; }

static int judge(const mjModel *m, const mjData *d, double before, float *reward)
{
    double speed = (d->subtree_com[0] - before) / (SKIP * 0.005), cost = 0; /* the model's step is 5 ms */
    for (int i = 0; i < 21; i++) cost += 0.1 * d->ctrl[i] * d->ctrl[i];
    int healthy = 1.0 < d->qpos[2] && d->qpos[2] < 2.0;
    *reward     = (float)(1.25 * speed + 5.0 - cost);
    return healthy ? ENV_GOES_ON : ENV_TERMINATED;
}

const MujocoTask *brim_mujoco_task(void)
{
    static const MujocoTask task = { MUJOCO_TASK_ABI, sizeof task, SKIP, 1000, 2, 0.01, judge, measure };
    return &task;
}
