/* One of eight choices is allowed at a time, and the mask says which. Any other choice is a failure. */
#include "env.h"

#include <stdlib.h>
#include <string.h>

enum { N = 8 };

static const EnvBlock blocks[]  = { { "x", ENV_F32, 1, { N }, 0, 1, 1, 0 } };
static const int32_t  choices[] = { N };
static const EnvInfo  the_info  = { .abi         = ENV_ABI,
                                    .size_bytes  = sizeof(EnvInfo),
                                    .name        = "legal",
                                    .obs         = blocks,
                                    .n_obs       = 1,
                                    .act_kind    = ENV_DISCRETE,
                                    .n_act       = 1,
                                    .act_choices = choices,
                                    .has_mask    = 1,
                                    .max_steps   = 21 };

static const EnvInfo *info(void *env) { return &the_info; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    *env = calloc(1, sizeof(int32_t));
    return *env ? 0 : -1;
}

static void observe(int32_t allowed, const EnvIo *io)
{
    float *x = io->obs[0];
    for (int i = 0; i < N; i++) {
        x[i]        = (float)(i == allowed);
        io->mask[i] = i == allowed;
    }
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    int32_t *allowed = env;
    *allowed         = (int32_t)(seed % N);
    observe(*allowed, io);
    return 0;
}

static int step(void *env, const EnvIo *io)
{
    int32_t *allowed = env;
    if (io->act_i[0] != *allowed) return -1;
    *allowed    = (*allowed * 3 + 1) % N;
    *io->reward = 1;
    observe(*allowed, io);
    return ENV_GOES_ON;
}

/* -DSTATE_BYTES=n: built anew with a larger state, which does not know the one before. */
#ifndef STATE_BYTES
#define STATE_BYTES sizeof(int32_t)
#endif

static int64_t save(void *env, void *buf, int64_t cap)
{
    if (buf && cap >= (int64_t)STATE_BYTES) memset(buf, 0, STATE_BYTES), memcpy(buf, env, sizeof(int32_t));
    return STATE_BYTES;
}

static int load(void *env, const void *buf, int64_t n)
{
    if (n != STATE_BYTES) return -1;
    memcpy(env, buf, sizeof(int32_t));
    return 0;
}

static const char *error(void *env) { return "the mask forbids this choice"; }

const EnvApi *brim_env(uint32_t host_abi)
{
    static const EnvApi api = { .abi        = ENV_ABI,
                                .size_bytes = sizeof(EnvApi),
                                .create     = create,
                                .destroy    = free,
                                .info       = info,
                                .reset      = reset,
                                .step       = step,
                                .save       = save,
                                .load       = load,
                                .error      = error };
    return &api;
}
