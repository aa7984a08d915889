/* MountainCar-v0 and MountainCarContinuous-v0 of Gymnasium: a car too weak for the hill must swing up.
 *
 * 1. Discrete: push left, not, right; -1 a step; the goal is at 0.5. The state is double.
 * 2. Continuous: a force in [-1, 1]; -0.1 force^2 a step and +100 at the goal at 0.45. Gymnasium rounds this
 *    one's state to float after every step and computes in double (numpy 1); so does this file. */
#ifndef ENV_MOUNTAINCAR_H
#define ENV_MOUNTAINCAR_H

#include "env/envfn.h"

typedef struct {
    double position, velocity;
} MountainCar;

typedef MountainCar MountainCarC;

enum { MOUNTAINCAR_OBS = 2 };

#define MOUNTAINCAR_MIN   (-1.2)
#define MOUNTAINCAR_MAX   0.6
#define MOUNTAINCAR_SPEED 0.07

ENV_FN void mountaincar_reset(MountainCar *s, uint64_t seed)
{
    EnvRng r    = envfn_rng(seed);
    s->position = envfn_uniform(&r, -0.6, -0.4);
    s->velocity = 0;
}

/* Adds push to the velocity, then moves; the left wall stops the car. */
ENV_FN void mountaincar_move(MountainCar *s, double push)
{
    s->velocity = envfn_clip(s->velocity + push, -MOUNTAINCAR_SPEED, MOUNTAINCAR_SPEED);
    s->position = envfn_clip(s->position + s->velocity, MOUNTAINCAR_MIN, MOUNTAINCAR_MAX);
    if (s->position == MOUNTAINCAR_MIN && s->velocity < 0) s->velocity = 0;
}

ENV_FN int mountaincar_step(MountainCar *s, const int32_t *act_i, const float *act_f, float *reward)
{
    mountaincar_move(s, (act_i[0] - 1) * 0.001 + cos(3 * s->position) * -0.0025);
    *reward = -1.0f;
    return s->position >= 0.5 && s->velocity >= 0 ? ENV_TERMINATED : ENV_GOES_ON;
}

ENV_FN void mountaincar_observe(const MountainCar *s, float *obs)
{
    obs[0] = (float)s->position;
    obs[1] = (float)s->velocity;
}

ENV_FN void mountaincarc_reset(MountainCarC *s, uint64_t seed) { mountaincar_reset(s, seed); }

ENV_FN int mountaincarc_step(MountainCarC *s, const int32_t *act_i, const float *act_f, float *reward)
{
    double action = act_f[0], force = envfn_clip(action, -1.0, 1.0);
    mountaincar_move(s, force * 0.0015 - 0.0025 * cos(3 * s->position));
    int there   = s->position >= 0.45 && s->velocity >= 0;
    *reward     = (float)((there ? 100.0 : 0.0) - action * action * 0.1);
    s->position = (float)s->position;
    s->velocity = (float)s->velocity;
    return there ? ENV_TERMINATED : ENV_GOES_ON;
}

ENV_FN void mountaincarc_observe(const MountainCarC *s, float *obs) { mountaincar_observe(s, obs); }

#endif
