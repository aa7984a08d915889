/* T-maze: a corridor of `length` cells with a junction at its end. Only the first cell shows which way is
 * right.
 *
 * 1. Actions: 0 turn left, 1 go on, 2 turn right. At the junction a turn ends the episode: +1 for the way
 *    that the sign showed, -1 for the other. Elsewhere a turn, and at the junction going on, costs 0.1 and
 *    moves nothing.
 * 2. The observation is {sign (-1 or 1 in the first cell, else 0), corridor, junction}. The junction looks
 *    the same for both signs, so a policy without memory turns right half of the time: its return is 0 on
 *    average at best. A policy with memory reaches 1. */
#ifndef ENV_TMAZE_H
#define ENV_TMAZE_H

#include "env/envfn.h"

typedef struct {
    int32_t length, position, sign;
} TMaze;

enum { TMAZE_OBS = 3, TMAZE_LENGTH = 10 /* unless an option says another */ };

ENV_FN void tmaze_reset(TMaze *s, uint64_t seed)
{
    EnvRng r    = envfn_rng(seed);
    s->position = 0;
    s->sign     = envfn_below(&r, 2) ? 1 : -1;
}

ENV_FN int tmaze_step(TMaze *s, const int32_t *act_i, const float *act_f, float *reward)
{
    int at_end = s->position == s->length, turn = act_i[0] - 1;
    if (at_end && turn != 0) {
        *reward = turn == s->sign ? 1.0f : -1.0f;
        return ENV_TERMINATED;
    }
    int moves = !at_end && turn == 0;
    s->position += moves;
    *reward = moves ? 0.0f : -0.1f;
    return ENV_GOES_ON;
}

ENV_FN void tmaze_observe(const TMaze *s, float *obs)
{
    obs[0] = s->position == 0 ? (float)s->sign : 0.0f;
    obs[1] = s->position < s->length ? 1.0f : 0.0f;
    obs[2] = s->position == s->length ? 1.0f : 0.0f;
}

#endif
