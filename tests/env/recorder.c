/* Writes down what a policy was shown and what it answered: a line for each step in the file record=FILE, the
 * observation's raw numbers, then the action's, as hexadecimal floats. The observation has blocks of three
 * types, two of them with a scale and a bias. act=heads: choices of 2, 3 and 4, some of them masked.
 * act=range: two numbers, each with a range of its own. */
#include "env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BYTE = 3, N_FLOAT = 2, HEADS = 3, CHOICES = 9, DIMS = 2 };

typedef struct {
    int      is_range;
    uint64_t s;
    uint8_t  byte[N_BYTE];
    int8_t   small;
    float    x[N_FLOAT];
    FILE    *record;
} Recorder;

static const EnvBlock blocks[]  = { { "bytes", ENV_U8, 1, { N_BYTE }, 0, 255, 1.0f / 255, -0.5f },
                                    { "small", ENV_I8, 1, { 1 }, -128, 127, 0.25f, 3 },
                                    { "place", ENV_F32, 1, { N_FLOAT }, 0, 0, 0, 0 } };
static const int32_t  choices[] = { 2, 3, 4 };
static const float    low[] = { -0.25f, -3 }, high[] = { 0.125f, 5 };
static const EnvInfo  with_heads = { .abi         = ENV_ABI,
                                     .size_bytes  = sizeof(EnvInfo),
                                     .name        = "recorder",
                                     .obs         = blocks,
                                     .n_obs       = 3,
                                     .act_kind    = ENV_DISCRETE,
                                     .n_act       = HEADS,
                                     .act_choices = choices,
                                     .has_mask    = 1,
                                     .max_steps   = 64 };
static const EnvInfo  with_range = { .abi        = ENV_ABI,
                                     .size_bytes = sizeof(EnvInfo),
                                     .name       = "recorder",
                                     .obs        = blocks,
                                     .n_obs      = 3,
                                     .act_kind   = ENV_CONTINUOUS,
                                     .n_act      = DIMS,
                                     .act_low    = low,
                                     .act_high   = high,
                                     .max_steps  = 64 };

static const EnvInfo *info(void *env) { return ((Recorder *)env)->is_range ? &with_range : &with_heads; }

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    Recorder *r = *env = calloc(1, sizeof *r);
    for (int i = 0; i < n_option; i++) {
        if (strcmp(option[i], "act=range") == 0) r->is_range = 1;
        if (strncmp(option[i], "record=", 7) == 0) r->record = fopen(option[i] + 7, "a");
    }
    if (r->record) setvbuf(r->record, NULL, _IOLBF, 4096); /* other environments write there, too */
    return 0;
}

static void destroy(void *env)
{
    Recorder *r = env;
    if (r->record) fclose(r->record);
    free(r);
}

static uint32_t draw(Recorder *r)
{
    r->s = r->s * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(r->s >> 33);
}

/* The first number of `place` is far from 0 and hardly moves: a mean that is subtracted must be exact. */
static void observe(Recorder *r, const EnvIo *io)
{
    for (int i = 0; i < N_BYTE; i++) r->byte[i] = (uint8_t)draw(r);
    r->small = (int8_t)draw(r);
    r->x[0]  = 1000 + (float)(draw(r) % 1000) / 1000;
    r->x[1]  = (float)(draw(r) % 2001) / 1000 - 1;
    memcpy(io->obs[0], r->byte, sizeof r->byte);
    memcpy(io->obs[1], &r->small, sizeof r->small);
    memcpy(io->obs[2], r->x, sizeof r->x);
    if (!io->mask) return;
    memset(io->mask, 1, CHOICES);
    io->mask[2 + r->byte[0] % 3] = 0;
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    Recorder *r = env;
    r->s        = seed;
    observe(r, io);
    return 0;
}

static void note(Recorder *r, const EnvIo *io)
{
    for (int i = 0; i < N_BYTE; i++) fprintf(r->record, "%a ", (double)r->byte[i]);
    fprintf(r->record, "%a %a %a", (double)r->small, (double)r->x[0], (double)r->x[1]);
    for (int i = 0; i < (r->is_range ? DIMS : HEADS); i++)
        fprintf(r->record, " %a", r->is_range ? (double)io->act_f[i] : (double)io->act_i[i]);
    fprintf(r->record, "\n");
}

static int step(void *env, const EnvIo *io)
{
    Recorder *r = env;
    if (r->record) note(r, io);
    if (r->is_range)
        *io->reward = -(io->act_f[0] - (float)r->byte[0] / 1000) * (io->act_f[0] - (float)r->byte[0] / 1000);
    else
        *io->reward = (float)(io->act_i[0] == (r->byte[0] > 127)) + (float)(io->act_i[2] == r->byte[1] / 64);
    observe(r, io);
    return ENV_GOES_ON;
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
