/* NAME: an environment for Brim. The player walks along a line of cells to a goal.
 *
 *     cc -O2 -shared -fPIC -o NAME.so NAME.c
 *     brim env check ./NAME.so
 *     brim env show ./NAME.so */
#include "env.h"

#include <stdlib.h>
#include <string.h>

enum { CELLS = 11 };

typedef struct {
    int32_t position, goal;
} Game;

static const EnvBlock blocks[]  = { { "position", ENV_F32, 1, { CELLS }, 0, 1, 1, 0 },
                                    { "goal", ENV_F32, 1, { CELLS }, 0, 1, 1, 0 } };
static const int32_t  choices[] = { 2 }; /* left, right */
static const EnvInfo  game_info = {
     .abi         = ENV_ABI,
     .size_bytes  = sizeof(EnvInfo),
     .name        = "NAME",
     .about       = "walk to the goal",
     .obs         = blocks,
     .n_obs       = 2,
     .act_kind    = ENV_DISCRETE,
     .n_act       = 1,
     .act_choices = choices,
     .max_steps   = 100, /* the trainer ends the episode there, as truncated */
};

static const EnvInfo *info(void *env) { return &game_info; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    *env = calloc(1, sizeof(Game));
    return *env ? 0 : -1;
}

static void observe(const Game *g, const EnvIo *io)
{
    float *position = io->obs[0], *goal = io->obs[1];
    for (int i = 0; i < CELLS; i++) {
        position[i] = i == g->position;
        goal[i]     = i == g->goal;
    }
}

/* All chance comes from the seed. */
static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    Game *g     = env;
    g->position = CELLS / 2;
    g->goal     = seed % 2 ? CELLS - 1 : 0;
    observe(g, io);
    return 0;
}

static int step(void *env, const EnvIo *io)
{
    Game *g = env;
    g->position += io->act_i[0] ? 1 : -1;
    if (g->position < 0) g->position = 0;
    if (g->position >= CELLS) g->position = CELLS - 1;
    int there   = g->position == g->goal;
    *io->reward = there ? 1.0f : -0.01f;
    observe(g, io);
    return there ? ENV_TERMINATED : ENV_GOES_ON;
}

/* Optional: one row of cells, 8 pixels each. */
static int picture(void *env, uint8_t *rgb, int *width, int *height)
{
    const Game *g = env;
    *width        = 8 * CELLS;
    *height       = 8;
    for (int i = 0; rgb && i < 8 * 8 * CELLS; i++) {
        int cell       = i % (8 * CELLS) / 8;
        rgb[3 * i]     = cell == g->position ? 230 : 40;
        rgb[3 * i + 1] = cell == g->goal ? 200 : 40;
        rgb[3 * i + 2] = 60;
    }
    return 0;
}

/* Optional: lets a stopped run go on exactly. */
static int64_t save(void *env, void *buf, int64_t cap)
{
    if (buf && cap < (int64_t)sizeof(Game)) return -1;
    if (buf) memcpy(buf, env, sizeof(Game));
    return sizeof(Game);
}

static int load(void *env, const void *buf, int64_t n)
{
    if (n != sizeof(Game)) return -1;
    memcpy(env, buf, sizeof(Game));
    return 0;
}

const EnvApi *brim_env(uint32_t host_abi)
{
    static const EnvApi api = { .abi        = ENV_ABI,
                                .size_bytes = sizeof(EnvApi),
                                .create     = create,
                                .destroy    = free,
                                .info       = info,
                                .reset      = reset,
                                .step       = step,
                                .picture    = picture,
                                .save       = save,
                                .load       = load };
    return host_abi >= ENV_ABI ? &api : 0;
}
