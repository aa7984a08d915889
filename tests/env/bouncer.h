/* An environment of another author, in a common form: one header, a struct, and functions over the struct.
 * Brim hosts such a header as it is (bouncer_env.c, docs/environments.md). A ball falls and bounces; the
 * paddle must be below it. This header uses rand(), holds pointers to its buffers and starts a new round by
 * itself, as such headers do. */
#ifndef BOUNCER_H
#define BOUNCER_H

#include <stdlib.h>
#include <string.h>

typedef struct {
    float         *observations; /* 5 */
    int           *actions;      /* 1: 0 left, 1 stay, 2 right */
    float         *rewards;
    unsigned char *terminals;
    float          ball_x, ball_y, speed_x, speed_y, paddle;
    int            width;
} Bouncer;

static void init(Bouncer *b) { b->width = 1; }

static void fill(Bouncer *b)
{
    float o[5] = { b->ball_x, b->ball_y, b->speed_x, b->speed_y, b->paddle };
    memcpy(b->observations, o, sizeof o);
}

static void c_reset(Bouncer *b)
{
    b->ball_x  = (float)(rand() % 1000) / 1000;
    b->ball_y  = 1;
    b->speed_x = (float)(rand() % 1000) / 20000 - 0.025f;
    b->speed_y = 0;
    b->paddle  = 0.5f;
    fill(b);
}

static void c_step(Bouncer *b)
{
    b->rewards[0]   = 0;
    b->terminals[0] = 0;
    b->paddle += 0.05f * (float)(b->actions[0] - 1);
    if (b->paddle < 0) b->paddle = 0;
    if (b->paddle > 1) b->paddle = 1;
    b->speed_y -= 0.005f;
    b->ball_x += b->speed_x;
    b->ball_y += b->speed_y;
    if (b->ball_x < 0 || b->ball_x > 1) b->speed_x = -b->speed_x;
    if (b->ball_y < 0) {
        float off = b->ball_x - b->paddle;
        if (off < -0.2f || off > 0.2f) {
            b->rewards[0]   = -1;
            b->terminals[0] = 1;
            c_reset(b);
            return;
        }
        b->rewards[0] = 1;
        b->ball_y     = 0;
        b->speed_y    = 0.08f;
    }
    fill(b);
}

static void c_close(Bouncer *b) { (void)b; }

#endif
