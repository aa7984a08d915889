/* Crossing: a game of Brim's own for four agents. Four buses cross each other's way and must not meet.
 *
 * 1. Each bus has a lane of 10 cells, straight through a 10 x 10 grid. A bus is two cells long: its front and
 *    the cell behind. Actions: 0 wait, 1 drive one cell on. All buses move at the same time.
 * 2. Lanes meet in the four cells of the middle: cell 5 of bus k's lane is cell 4 of bus k + 1's lane. Two
 *    buses that reach one cell crash: each gets -1 and is gone for the rest of the episode.
 * 3. A bus whose front passes the last cell has arrived: +1. It leaves the grid and takes no part for 1 to 8
 *    steps; then it begins at its first cell again. The episode is over when all buses have crashed.
 * 4. The observation of a bus: its number as four places, then of each bus, itself first, whether the bus is
 *    on the grid and where its front is, from -1 to 1. With blind=1 the other buses are never shown.
 * 5. The middle has room for three: if four buses stand with their fronts in it, none can drive on. */
#ifndef ENV_CROSSING_H
#define ENV_CROSSING_H

#include "env/envfn.h"

enum {
    CROSSING_BUSES = 4,
    CROSSING_LANE  = 10,
    CROSSING_FIRST = 4, /* the lane's first cell in the middle; the next one is the second */
    CROSSING_PAUSE = 8, /* steps off the grid, at most */
    CROSSING_OBS   = CROSSING_BUSES + 2 * CROSSING_BUSES
};

enum { CROSSING_AWAY = -1, CROSSING_CRASHED = -2 };

typedef struct {
    EnvRng  rng;
    int32_t front[CROSSING_BUSES]; /* cell of its lane, AWAY or CRASHED */
    int32_t pause[CROSSING_BUSES]; /* steps until it comes back, while it is away */
    int32_t blind;
} Crossing;

ENV_FN void crossing_reset(Crossing *s, uint64_t seed)
{
    s->rng = envfn_rng(seed);
    for (int k = 0; k < CROSSING_BUSES; k++) {
        s->front[k] = envfn_below(&s->rng, CROSSING_FIRST);
        s->pause[k] = 0;
    }
}

/* 1: the bus covers that cell of its lane. */
ENV_FN int crossing_covers(int32_t front, int cell) { return front == cell || front == cell + 1; }

/* Takes those that crashed off the grid; how many have crashed so far. */
ENV_FN int crossing_crash(Crossing *s, float *reward)
{
    int n = 0, hit[CROSSING_BUSES] = { 0 };
    for (int k = 0; k < CROSSING_BUSES; k++) {
        int next = (k + 1) % CROSSING_BUSES;
        if (!crossing_covers(s->front[k], CROSSING_FIRST + 1)) continue;
        if (crossing_covers(s->front[next], CROSSING_FIRST)) hit[k] = hit[next] = 1;
    }
    for (int k = 0; k < CROSSING_BUSES; k++) {
        if (hit[k]) {
            s->front[k] = CROSSING_CRASHED;
            reward[k]   = -1;
        }
        n += s->front[k] == CROSSING_CRASHED;
    }
    return n;
}

/* One action and one reward for each bus. */
ENV_FN int crossing_step(Crossing *s, const int32_t *act_i, const float *act_f, float *reward)
{
    for (int k = 0; k < CROSSING_BUSES; k++) {
        reward[k] = 0;
        if (s->front[k] >= 0) {
            s->front[k] += act_i[k];
        } else if (s->front[k] == CROSSING_AWAY && --s->pause[k] == 0) {
            s->front[k] = 0;
        }
    }
    int n_crashed = crossing_crash(s, reward);
    for (int k = 0; k < CROSSING_BUSES; k++) {
        if (s->front[k] < CROSSING_LANE) continue;
        s->front[k] = CROSSING_AWAY;
        s->pause[k] = 1 + envfn_below(&s->rng, CROSSING_PAUSE);
        reward[k]   = 1;
    }
    return n_crashed == CROSSING_BUSES ? ENV_TERMINATED : ENV_GOES_ON;
}

ENV_FN void crossing_observe(const Crossing *s, float *obs)
{
    const float half = (CROSSING_LANE - 1) / 2.0f;
    for (int k = 0; k < CROSSING_BUSES; k++) {
        for (int j = 0; j < CROSSING_BUSES; j++) {
            int front = s->front[(k + j) % CROSSING_BUSES], shown = front >= 0 && (j == 0 || !s->blind);
            obs[j]                          = j == k;
            obs[CROSSING_BUSES + 2 * j]     = (float)shown;
            obs[CROSSING_BUSES + 2 * j + 1] = shown ? ((float)front - half) / half : 0;
        }
        obs += CROSSING_OBS;
    }
}

ENV_FN void crossing_alive(const Crossing *s, uint8_t *alive)
{
    for (int k = 0; k < CROSSING_BUSES; k++) alive[k] = s->front[k] >= 0;
}

#endif
