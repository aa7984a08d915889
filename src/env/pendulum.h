/* Pendulum-v1 of Gymnasium: swing up and hold with a torque in [-2, 2]; never terminates. Reward is minus the
 * cost of angle, speed and torque before the step. State and arithmetic are double. */
#ifndef ENV_PENDULUM_H
#define ENV_PENDULUM_H

#include "env/envfn.h"

typedef struct {
    double theta, speed;
    double torque; /* the last one, for the picture */
} Pendulum;

enum { PENDULUM_OBS = 3 };

ENV_FN void pendulum_reset(Pendulum *s, uint64_t seed)
{
    EnvRng r  = envfn_rng(seed);
    s->theta  = envfn_uniform(&r, -ENV_PI, ENV_PI);
    s->speed  = envfn_uniform(&r, -1.0, 1.0);
    s->torque = 0;
}

/* Into [-pi, pi), with Python's remainder, which has the divisor's sign. */
ENV_FN double pendulum_normal(double x)
{
    double m = fmod(x + ENV_PI, 2 * ENV_PI);
    return (m < 0 ? m + 2 * ENV_PI : m) - ENV_PI;
}

ENV_FN int pendulum_step(Pendulum *s, const int32_t *act_i, const float *act_f, float *reward)
{
    const double g = 10.0, m = 1.0, l = 1.0, dt = 0.05;
    double       u = envfn_clip(act_f[0], -2.0, 2.0), angle = pendulum_normal(s->theta);
    double       cost  = angle * angle + 0.1 * (s->speed * s->speed) + 0.001 * (u * u);
    double       speed = s->speed + (3 * g / (2 * l) * sin(s->theta) + 3.0 / (m * (l * l)) * u) * dt;
    s->speed           = envfn_clip(speed, -8.0, 8.0);
    s->theta           = s->theta + s->speed * dt;
    s->torque          = u;
    *reward            = (float)-cost;
    return ENV_GOES_ON;
}

ENV_FN void pendulum_observe(const Pendulum *s, float *obs)
{
    obs[0] = (float)cos(s->theta);
    obs[1] = (float)sin(s->theta);
    obs[2] = (float)s->speed;
}

#endif
