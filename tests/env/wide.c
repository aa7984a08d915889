/* A drifting point in 64 dimensions, for measuring: four pushes, a reward for staying near the middle, and
 * episodes of 62,000 steps. */
#include "env.h"

#include <stdlib.h>

enum { DIM = 64 };

typedef struct {
    uint64_t s;
    float    x[DIM];
} Wide;

static const EnvBlock blocks[]  = { { "x", ENV_F32, 1, { DIM }, 0, 0, 1, 0 } };
static const int32_t  choices[] = { 4 };
static const EnvInfo  the_info  = { .abi         = ENV_ABI,
                                    .size_bytes  = sizeof(EnvInfo),
                                    .name        = "wide",
                                    .obs         = blocks,
                                    .n_obs       = 1,
                                    .act_kind    = ENV_DISCRETE,
                                    .n_act       = 1,
                                    .act_choices = choices,
                                    .max_steps   = 62000 };

static const EnvInfo *info(void *env) { return &the_info; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    *env = calloc(1, sizeof(Wide));
    return *env ? 0 : -1;
}

static float noise(Wide *w)
{
    w->s = w->s * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(w->s >> 40) / (1 << 23) - 1;
}

static void show(const Wide *w, const EnvIo *io)
{
    float *x = io->obs[0];
    for (int i = 0; i < DIM; i++) x[i] = w->x[i];
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    Wide *w = env;
    w->s    = seed;
    for (int i = 0; i < DIM; i++) w->x[i] = noise(w);
    show(w, io);
    return 0;
}

static int step(void *env, const EnvIo *io)
{
    Wide *w      = env;
    float square = 0;
    for (int i = 0; i < DIM; i++) {
        w->x[i] = 0.98f * w->x[i] + 0.05f * noise(w) + (i % 4 == io->act_i[0] ? 0.02f : -0.005f);
        square += w->x[i] * w->x[i];
    }
    *io->reward = 1 - square / DIM;
    show(w, io);
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
                                .step       = step };
    return &api;
}
