/* Hosts bouncer.h, a header of another author, unchanged. It takes about 60 lines, which are the same for
 * every header of this kind. docs/environments.md walks through them.
 *
 *     cc -O2 -shared -fPIC -Isrc/env -o bouncer.so tests/env/bouncer_env.c */
#include "env.h"

#include <stdlib.h>

/* The header calls rand(), which all threads share. Here it draws from the environment that the thread is
 * inside. */
static _Thread_local uint64_t *stream;

static int stream_rand(void)
{
    uint64_t x = *stream += 0x9E3779B97F4A7C15u; /* splitmix64 */
    x          = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x          = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (int)((x ^ x >> 31) & 0x7fffffff);
}

#define rand stream_rand
#include "bouncer.h"
#undef rand

typedef struct {
    Bouncer       game;
    uint64_t      chance;
    unsigned char terminal;
} Host;

static const EnvBlock blocks[]  = { { "state", ENV_F32, 1, { 5 }, -2, 2, 1, 0 } };
static const int32_t  choices[] = { 3 };
static const EnvInfo  host_info = { .abi         = ENV_ABI,
                                    .size_bytes  = sizeof(EnvInfo),
                                    .name        = "bouncer",
                                    .about       = "keep a ball in the air",
                                    .obs         = blocks,
                                    .n_obs       = 1,
                                    .act_kind    = ENV_DISCRETE,
                                    .n_act       = 1,
                                    .act_choices = choices,
                                    .max_steps   = 1000 };

static const EnvInfo *info(void *env) { return &host_info; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    Host *h = *env = calloc(1, sizeof *h);
    if (!h) return -1;
    init(&h->game);
    return 0;
}

static void destroy(void *env)
{
    c_close(&((Host *)env)->game);
    free(env);
}

/* The rows are the trainer's and change from call to call. */
static void bind(Host *h, const EnvIo *io)
{
    h->game.observations = io->obs[0];
    h->game.actions      = (int *)io->act_i;
    h->game.rewards      = io->reward;
    h->game.terminals    = &h->terminal;
    stream               = &h->chance;
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    Host *h   = env;
    h->chance = seed;
    bind(h, io);
    c_reset(&h->game);
    return 0;
}

/* The header has begun the next round when it says terminal. Brim resets once more, from its own seed; the
 * observation in between is not used, because nothing is worth anything after a terminal. */
static int step(void *env, const EnvIo *io)
{
    Host *h = env;
    bind(h, io);
    c_step(&h->game);
    return h->terminal ? ENV_TERMINATED : ENV_GOES_ON;
}

const EnvApi *brim_env(uint32_t host_abi)
{
    static const EnvApi api = { .abi        = ENV_ABI,
                                .size_bytes = sizeof(EnvApi),
                                .create     = create,
                                .destroy    = destroy,
                                .info       = info,
                                .reset      = reset,
                                .step       = step };
    return &api;
}
