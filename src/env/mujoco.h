/* Mujoco: any MuJoCo model as an environment, through the real engine.
 *
 * 1. The library is opened at run time. It must have the version of the headers that Brim was built with,
 *    because the engine's structs change between versions. What is missing is said in one line.
 * 2. Observations are blocks named after fields of mjData. Actions are the actuators. Options:
 *        task=NAME|./mine.so   reward and end; humanoid (default for humanoid.xml), reach, none, a shared
 *                              object
 *        obs=qpos+qvel+...     blocks: qpos qvel cinert cvel qfrc_actuator cfrc_ext target
 *        frame_skip=N          engine steps per environment step
 * 3. The physics of one environment runs on the thread that steps it.
 * 4. A task may have a target, drawn per episode: a place where the centre of mass of the model's last body
 *    can be. The block `target` is the way to it from where that centre is.
 * 5. When a state is no longer finite, the engine resets itself and warns; the episode then ends as
 *    terminated. */
#ifndef ENV_MUJOCO_H
#define ENV_MUJOCO_H

#include "env/env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The user's file includes <mujoco/mujoco.h> and this header and exports brim_mujoco_task(). */
struct mjModel_;
struct mjData_;

#define MUJOCO_TASK_ABI 1u

/* The step that was just made. Later versions only append fields. */
typedef struct {
    const struct mjModel_ *m;
    const struct mjData_  *d;
    double                 before; /* what measure() returned before the step */
    double                 dt;     /* seconds of the step */
    const double          *target; /* [3], of the episode; NULL: the task has none */
} MujocoStep;

typedef struct {
    uint32_t abi, size_bytes;
    int      frame_skip;
    int64_t  max_steps;
    int      skip_qpos;   /* leading positions that the observation leaves out */
    double   reset_noise; /* uniform, added to qpos0 and to zero velocities */
    /* Judges the step that was just made. before: what measure() returned before the step. Returns ENV_*
     * bits. */
    int (*judge)(const struct mjModel_ *m, const struct mjData_ *d, double before, float *reward);
    /* A number that judge() compares, such as the position; may be NULL. */
    double (*measure)(const struct mjModel_ *m, const struct mjData_ *d);
    /* Instead of judge(), for a task that must know the seconds of a step: the option frame_skip changes
     * them. May be NULL. */
    int (*judge_step)(const MujocoStep *s, float *reward);
    int has_target; /* 1: each episode has one. The model's joints are hinges and slides then. */
} MujocoTask;

const MujocoTask *brim_mujoco_task(void);

/* The environment's functions, or negative after err_user(): no engine. */
int mujoco_open(const EnvApi **api);

#ifdef __cplusplus
}
#endif
#endif
