/* Meteor: a game of Brim's own on a 10 x 10 grid. The player moves along the bottom row; gems and rocks fall.
 *
 * 1. Actions: 0 left, 1 stay, 2 right; the mask forbids leaving the grid. Each step everything falls one
 *    cell, then a new thing may appear in the top row. A gem caught is +1. A rock that hits ends the episode
 *    with -1.
 * 2. Rocks come more often as time goes on: with chance 1/4 at first, 3/4 after 500 steps.
 * 3. The observation is three planes of bytes, 0 or 1: player, gems, rocks. */
#ifndef ENV_METEOR_H
#define ENV_METEOR_H

#include "env/envfn.h"

enum { METEOR_SIZE = 10, METEOR_CELLS = METEOR_SIZE * METEOR_SIZE, METEOR_OBS = 3 * METEOR_CELLS };

enum { METEOR_EMPTY, METEOR_GEM, METEOR_ROCK };

typedef struct {
    EnvRng  rng;
    int32_t column, time;
    uint8_t cell[METEOR_CELLS]; /* row by row from the top */
} Meteor;

ENV_FN void meteor_reset(Meteor *s, uint64_t seed)
{
    s->rng    = envfn_rng(seed);
    s->column = envfn_below(&s->rng, METEOR_SIZE);
    s->time   = 0;
    for (int i = 0; i < METEOR_CELLS; i++) s->cell[i] = METEOR_EMPTY;
}

ENV_FN void meteor_spawn(Meteor *s)
{
    uint64_t bits = envfn_bits(&s->rng);
    int      late = s->time < 500 ? s->time : 500, rock = (int)(bits & 1023) < 256 + late * 512 / 500;
    int      gem    = !rock && (bits >> 10 & 3) == 0;
    int      column = (int)((bits >> 16) % METEOR_SIZE);
    if (rock || gem) s->cell[column] = rock ? METEOR_ROCK : METEOR_GEM;
}

ENV_FN int meteor_step(Meteor *s, const int32_t *act_i, const float *act_f, float *reward)
{
    int column = s->column + act_i[0] - 1;
    s->column  = column < 0 ? 0 : column >= METEOR_SIZE ? METEOR_SIZE - 1 : column;
    for (int i = METEOR_CELLS - 1; i >= METEOR_SIZE; i--) s->cell[i] = s->cell[i - METEOR_SIZE];
    for (int i = 0; i < METEOR_SIZE; i++) s->cell[i] = METEOR_EMPTY;
    meteor_spawn(s);
    s->time++;
    int caught = s->cell[METEOR_CELLS - METEOR_SIZE + s->column];
    *reward    = caught == METEOR_GEM ? 1.0f : caught == METEOR_ROCK ? -1.0f : 0.0f;
    return caught == METEOR_ROCK ? ENV_TERMINATED : ENV_GOES_ON;
}

ENV_FN void meteor_observe(const Meteor *s, uint8_t *obs)
{
    for (int i = 0; i < METEOR_CELLS; i++) {
        obs[i]                    = i == METEOR_CELLS - METEOR_SIZE + s->column;
        obs[METEOR_CELLS + i]     = s->cell[i] == METEOR_GEM;
        obs[2 * METEOR_CELLS + i] = s->cell[i] == METEOR_ROCK;
    }
}

ENV_FN void meteor_mask(const Meteor *s, uint8_t *mask)
{
    mask[0] = s->column > 0;
    mask[1] = 1;
    mask[2] = s->column < METEOR_SIZE - 1;
}

#endif
