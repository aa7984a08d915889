/* PPO: a policy learns in environments. One step of the run is one rollout and its updates.
 *
 *     rollout x T    collect (host: step a group of environments, upload), act (answer, store)
 *     last           the last rewards; the value of the observation that follows
 *     finals         values of the last observations of truncated episodes
 *     advantages
 *     epochs x n     shuffle; minibatches until KL stops them: norm, micro x k, update
 *
 * 1. Rollouts stay on the device. What travels at each step is one block up (observations, rewards, ends) and
 *    the actions down.
 * 2. Every draw depends on (seed, step, environment, t) alone. Groups and threads do not change a rollout.
 * 3. The state of the environments is part of a checkpoint if the environment has save and load. */
#ifndef TASK_PPO_H
#define TASK_PPO_H

#include "task/task.h"

extern const Task task_ppo;

#endif
