/* CartPole-v1 of Gymnasium: a pole on a cart, pushed left (0) or right (1); +1 a step, Euler steps of 20 ms.
 * Ends beyond 2.4 m or 12 degrees. The state is double, the observation float, as in Gymnasium. */
#ifndef ENV_CARTPOLE_H
#define ENV_CARTPOLE_H

#include "env/envfn.h"

typedef struct {
    double x, x_dot, theta, theta_dot;
} CartPole;

enum { CARTPOLE_OBS = 4 };

#define CARTPOLE_X_LIMIT     2.4
#define CARTPOLE_THETA_LIMIT (12 * 2 * ENV_PI / 360)

ENV_FN void cartpole_reset(CartPole *s, uint64_t seed)
{
    EnvRng r     = envfn_rng(seed);
    s->x         = envfn_uniform(&r, -0.05, 0.05);
    s->x_dot     = envfn_uniform(&r, -0.05, 0.05);
    s->theta     = envfn_uniform(&r, -0.05, 0.05);
    s->theta_dot = envfn_uniform(&r, -0.05, 0.05);
}

ENV_FN int cartpole_step(CartPole *s, const int32_t *act_i, const float *act_f, float *reward)
{
    const double gravity = 9.8, mass_pole = 0.1, total_mass = 0.1 + 1.0, half_length = 0.5;
    const double pole_moment = mass_pole * half_length, push = 10.0, dt = 0.02;
    double       force  = act_i[0] == 1 ? push : -push;
    double       cosine = cos(s->theta), sine = sin(s->theta);
    double       temp = (force + pole_moment * (s->theta_dot * s->theta_dot) * sine) / total_mass;
    double       turn = (gravity * sine - cosine * temp) /
                  (half_length * (4.0 / 3.0 - mass_pole * (cosine * cosine) / total_mass));
    double move = temp - pole_moment * turn * cosine / total_mass;
    s->x += dt * s->x_dot;
    s->x_dot += dt * move;
    s->theta += dt * s->theta_dot;
    s->theta_dot += dt * turn;
    *reward = 1.0f;
    int out = (s->x < -CARTPOLE_X_LIMIT) | (s->x > CARTPOLE_X_LIMIT) | (s->theta < -CARTPOLE_THETA_LIMIT) |
              (s->theta > CARTPOLE_THETA_LIMIT);
    return out ? ENV_TERMINATED : ENV_GOES_ON;
}

ENV_FN void cartpole_observe(const CartPole *s, float *obs)
{
    obs[0] = (float)s->x;
    obs[1] = (float)s->x_dot;
    obs[2] = (float)s->theta;
    obs[3] = (float)s->theta_dot;
}

#endif
