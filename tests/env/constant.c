/* Reward 1 for ever, and always the same observation: with discount g every value is 1/(1 - g). */
#include "env.h"

#include <stdlib.h>

static const EnvBlock blocks[]  = { { "x", ENV_F32, 1, { 2 }, -1, 1, 1, 0 } };
static const int32_t  choices[] = { 2 };
static const EnvInfo  the_info  = { .abi         = ENV_ABI,
                                    .size_bytes  = sizeof(EnvInfo),
                                    .name        = "constant",
                                    .obs         = blocks,
                                    .n_obs       = 1,
                                    .act_kind    = ENV_DISCRETE,
                                    .n_act       = 1,
                                    .act_choices = choices,
                                    .max_steps   = 5 };

static const EnvInfo *info(void *env) { return &the_info; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    *env = malloc(1);
    return *env ? 0 : -1;
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    float *x = io->obs[0];
    x[0]     = 1;
    x[1]     = -1;
    return 0;
}

static int step(void *env, const EnvIo *io)
{
    *io->reward = 1;
    return reset(env, 0, io);
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
