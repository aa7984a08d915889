/* Acrobot-v1 of Gymnasium: two links, a torque of -1, 0 or 1 at the joint between them, one fourth-order
 * Runge-Kutta step of 0.2 s. -1 a step until the tip is one link's length above the pivot. The equations are
 * the book's (Sutton and Barto), which is Gymnasium's default. The first state is rounded to float, as
 * there. */
#ifndef ENV_ACROBOT_H
#define ENV_ACROBOT_H

#include "env/envfn.h"

typedef struct {
    double theta1, theta2, speed1, speed2;
} Acrobot;

enum { ACROBOT_OBS = 6 };

#define ACROBOT_SPEED1_LIMIT (4 * ENV_PI)
#define ACROBOT_SPEED2_LIMIT (9 * ENV_PI)

ENV_FN void acrobot_reset(Acrobot *s, uint64_t seed)
{
    EnvRng r  = envfn_rng(seed);
    s->theta1 = (float)envfn_uniform(&r, -0.1, 0.1);
    s->theta2 = (float)envfn_uniform(&r, -0.1, 0.1);
    s->speed1 = (float)envfn_uniform(&r, -0.1, 0.1);
    s->speed2 = (float)envfn_uniform(&r, -0.1, 0.1);
}

/* Masses and lengths 1, centres of mass at 0.5, moments of inertia 1. */
ENV_FN Acrobot acrobot_slope(Acrobot s, double torque)
{
    const double m = 1.0, l1 = 1.0, lc = 0.5, moment = 1.0, g = 9.8;
    double       sine2 = sin(s.theta2), cosine2 = cos(s.theta2);
    double       d1   = m * (lc * lc) + m * (l1 * l1 + lc * lc + 2 * l1 * lc * cosine2) + moment + moment;
    double       d2   = m * (lc * lc + l1 * lc * cosine2) + moment;
    double       phi2 = m * lc * g * cos(s.theta1 + s.theta2 - ENV_PI / 2.0);
    double       phi1 = -m * l1 * lc * (s.speed2 * s.speed2) * sine2 -
                  2 * m * l1 * lc * s.speed2 * s.speed1 * sine2 +
                  (m * lc + m * l1) * g * cos(s.theta1 - ENV_PI / 2) + phi2;
    double turn2 = (torque + d2 / d1 * phi1 - m * l1 * lc * (s.speed1 * s.speed1) * sine2 - phi2) /
                   (m * (lc * lc) + moment - d2 * d2 / d1);
    Acrobot d = { s.speed1, s.speed2, -(d2 * turn2 + phi1) / d1, turn2 };
    return d;
}

ENV_FN Acrobot acrobot_along(Acrobot s, double h, Acrobot d)
{
    Acrobot n = { s.theta1 + h * d.theta1, s.theta2 + h * d.theta2, s.speed1 + h * d.speed1,
                  s.speed2 + h * d.speed2 };
    return n;
}

ENV_FN double acrobot_rk4(double y, double a, double b, double c, double d)
{
    return y + 0.2 / 6.0 * (a + 2 * b + 2 * c + d);
}

ENV_FN double acrobot_wrap(double x)
{
    while (x > ENV_PI) x -= 2 * ENV_PI;
    while (x < -ENV_PI) x += 2 * ENV_PI;
    return x;
}

ENV_FN int acrobot_step(Acrobot *s, const int32_t *act_i, const float *act_f, float *reward)
{
    const double dt = 0.2, torque = act_i[0] - 1;
    Acrobot      y = *s, a = acrobot_slope(y, torque), b = acrobot_slope(acrobot_along(y, dt / 2, a), torque);
    Acrobot      c = acrobot_slope(acrobot_along(y, dt / 2, b), torque);
    Acrobot      d = acrobot_slope(acrobot_along(y, dt, c), torque);
    s->theta1      = acrobot_wrap(acrobot_rk4(y.theta1, a.theta1, b.theta1, c.theta1, d.theta1));
    s->theta2      = acrobot_wrap(acrobot_rk4(y.theta2, a.theta2, b.theta2, c.theta2, d.theta2));
    s->speed1      = envfn_clip(acrobot_rk4(y.speed1, a.speed1, b.speed1, c.speed1, d.speed1),
                                -ACROBOT_SPEED1_LIMIT, ACROBOT_SPEED1_LIMIT);
    s->speed2      = envfn_clip(acrobot_rk4(y.speed2, a.speed2, b.speed2, c.speed2, d.speed2),
                                -ACROBOT_SPEED2_LIMIT, ACROBOT_SPEED2_LIMIT);
    int up         = -cos(s->theta1) - cos(s->theta2 + s->theta1) > 1.0;
    *reward        = up ? 0.0f : -1.0f;
    return up ? ENV_TERMINATED : ENV_GOES_ON;
}

ENV_FN void acrobot_observe(const Acrobot *s, float *obs)
{
    obs[0] = (float)cos(s->theta1);
    obs[1] = (float)sin(s->theta1);
    obs[2] = (float)cos(s->theta2);
    obs[3] = (float)sin(s->theta2);
    obs[4] = (float)s->speed1;
    obs[5] = (float)s->speed2;
}

#endif
