/* Mujoco_task: the tasks for MuJoCo models that Brim knows by name, and those of users. */
#ifndef ENV_MUJOCO_TASK_H
#define ENV_MUJOCO_TASK_H

#include "env/mujoco.h"

#ifdef __cplusplus
extern "C" {
#endif

/* name: humanoid, reach, none or a shared object. Negative: error holds one line that says why. */
int mujoco_task_take(MujocoTask *out, const char *name, char *error, size_t n_error);

#ifdef __cplusplus
}
#endif
#endif
