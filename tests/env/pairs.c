/* Two agents that want to choose the same of two heads each; the second one leaves after five steps.
 * RANDOM_ALIVE, RANDOM_LAST: chance without a seed in who takes part, or in last observations alone.
 * BATCH: many pairs step in one call, which writes a reward too many. */
#include "env.h"

#include <stdlib.h>

static const EnvBlock blocks[]  = { { "clock", ENV_I32, 1, { 1 }, 0, 100, 1, 0 },
                                    { "me", ENV_I8, 1, { 2 }, 0, 1, 1, 0 } };
static const int32_t  choices[] = { 2, 3 };
static const EnvInfo  the_info  = { .abi         = ENV_ABI,
                                    .size_bytes  = sizeof(EnvInfo),
                                    .name        = "pairs",
                                    .obs         = blocks,
                                    .n_obs       = 2,
                                    .act_kind    = ENV_DISCRETE,
                                    .n_act       = 2,
                                    .act_choices = choices,
                                    .n_agent     = 2,
                                    .max_steps   = 10 };

static const EnvInfo *info(void *env) { return &the_info; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    *env = calloc(1, sizeof(int32_t));
    return *env ? 0 : -1;
}

static void observe(int32_t t, const EnvIo *io)
{
    int32_t *clock = io->obs[0];
    int8_t  *me    = io->obs[1];
    for (int a = 0; a < 2; a++) {
        clock[a]      = t;
        me[2 * a]     = a == 0;
        me[2 * a + 1] = a == 1;
        io->alive[a]  = a == 0 || t < 5;
#ifdef RANDOM_ALIVE
        io->alive[a] = a == 0 || rand() % 2;
#endif
#ifdef RANDOM_LAST
        if (t == 11) clock[a] = rand() % 100; /* the last step of episodes that begin with 1 */
#endif
    }
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    int32_t *t = env;
    *t         = (int32_t)(seed % 2);
    observe(*t, io);
    return 0;
}

static int step(void *env, const EnvIo *io)
{
    int32_t *t = env;
    ++*t;
    for (int a = 0; a < 2; a++)
        io->reward[a] = (float)((io->act_i[0] == io->act_i[2]) + (io->act_i[1] == io->act_i[3])) - (float)a;
    observe(*t, io);
    return ENV_GOES_ON;
}

#ifdef BATCH
static int step_batch(void *const *env, int n, const EnvIo *io, uint8_t *end)
{
    for (int i = 0; i < n; i++) {
        EnvIo r = { .obs    = { (int32_t *)io->obs[0] + 2 * i, (int8_t *)io->obs[1] + 4 * i },
                    .act_i  = io->act_i + 4 * i,
                    .reward = io->reward + 2 * i,
                    .alive  = io->alive + 2 * i };
        end[i]  = (uint8_t)step(env[i], &r);
    }
    io->reward[2 * n] = 0;
    return 0;
}
#endif

const EnvApi *brim_env(uint32_t host_abi)
{
    static const EnvApi api = { .abi        = ENV_ABI,
                                .size_bytes = sizeof(EnvApi),
                                .create     = create,
                                .destroy    = free,
                                .info       = info,
                                .reset      = reset,
#ifdef BATCH
                                .step_batch = step_batch,
#endif
                                .step = step };
    return &api;
}
