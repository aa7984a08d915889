/* An environment that goes wrong on purpose, at step at=N:
 * fault=crash|recurse|abort|hang|nan|inf|fail|random|outside|overrun|reward; fault=last leaves its bounds in
 * the last observation of an episode; fault=bits gives an end that env.h does not know; fault=create crashes
 * as environment number N is made, and each takes 150 ms; fault=reset crashes in the reset number N and has
 * episodes of different lengths; fault=shape has a larger block from the reset number N on. With marker=FILE
 * the fault happens once: the file remembers it over a restart. With every=N it happens in each Nth step of a
 * process. */
#include "env.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char fault[32], marker[200];
    int  at, every, t, n_step, n_reset, length;
} Faulty;

static const EnvBlock blocks[]  = { { "x", ENV_F32, 1, { 2 }, -1, 1, 1, 0 } };
static const int32_t  choices[] = { 2 };
static const EnvInfo  the_info  = { .abi         = ENV_ABI,
                                    .size_bytes  = sizeof(EnvInfo),
                                    .name        = "faulty",
                                    .obs         = blocks,
                                    .n_obs       = 1,
                                    .act_kind    = ENV_DISCRETE,
                                    .n_act       = 1,
                                    .act_choices = choices,
                                    .max_steps   = 20 };

static const EnvInfo *info(void *env)
{
    static const EnvBlock larger[] = { { "x", ENV_F32, 1, { 3 }, -1, 1, 1, 0 } };
    static EnvInfo        other;
    const Faulty         *f = env;
    if (strcmp(f->fault, "shape") != 0 || f->n_reset < f->at) return &the_info;
    other     = the_info;
    other.obs = larger;
    return &other;
}

static int create(void **env, const char *const *option, int n_option, char *error, size_t n_error)
{
    Faulty *f = *env = calloc(1, sizeof *f);
    f->at            = 5;
    for (int i = 0; i < n_option; i++) {
        if (sscanf(option[i], "fault=%31s", f->fault) == 1 || sscanf(option[i], "at=%d", &f->at) == 1)
            continue;
        if (sscanf(option[i], "marker=%199s", f->marker) == 1) continue;
        if (sscanf(option[i], "every=%d", &f->every) == 1) continue;
        snprintf(error, n_error, "%s: no such option", option[i]);
        free(f);
        return -1;
    }
    if (strcmp(f->fault, "create") == 0) {
        static int n_made;
        usleep(150000);
        if (n_made++ == f->at) abort();
    }
    return 0;
}

/* 1 unless the marker remembers that it happened. */
static int is_first(Faulty *f)
{
    if (!f->marker[0]) return 1;
    if (access(f->marker, F_OK) == 0) return 0;
    FILE *m = fopen(f->marker, "w");
    if (m) fclose(m);
    return 1;
}

static int reset(void *env, uint64_t seed, const EnvIo *io)
{
    Faulty *f = env;
    float  *x = io->obs[0];
    f->t      = 0;
    f->length = strcmp(f->fault, "reset") == 0 ? 5 + (int)(seed % 7) : 1000;
    f->n_reset++;
    if (f->length < 1000 && f->n_reset == f->at && is_first(f)) abort();
    x[0] = (float)(seed % 1000) / 1000;
    x[1] = 0;
    return 0;
}

static int is_due(Faulty *f)
{
    if (f->every) return ++f->n_step % f->every == 0;
    return f->t == f->at && is_first(f);
}

static int deeper(volatile char *last)
{
    volatile char here[4096];
    here[0] = last[0];
    return deeper(here) + here[0];
}

static int step(void *env, const EnvIo *io)
{
    Faulty *f = env;
    float  *x = io->obs[0];
    f->t++;
    *io->reward = 1;
    x[0]        = (float)f->t / 100;
    x[1]        = (float)io->act_i[0];
    if (strcmp(f->fault, "random") == 0) x[0] = (float)(rand() % 1000) / 1000;
    if (f->length < 1000) return f->t == f->length ? ENV_TERMINATED : ENV_GOES_ON;
    if (!is_due(f)) return ENV_GOES_ON;
    if (strcmp(f->fault, "crash") == 0) *(volatile int *)8 = 1;
    if (strcmp(f->fault, "recurse") == 0) x[1] = (float)deeper((char *)x);
    if (strcmp(f->fault, "abort") == 0) abort();
    while (strcmp(f->fault, "hang") == 0) usleep(1000);
    if (strcmp(f->fault, "nan") == 0) x[1] = NAN;
    if (strcmp(f->fault, "inf") == 0) *io->reward = INFINITY;
    if (strcmp(f->fault, "outside") == 0) x[1] = 7;
    if (strcmp(f->fault, "overrun") == 0) x[2] = 0;
    if (strcmp(f->fault, "reward") == 0) io->reward[1] = 0;
    if (strcmp(f->fault, "last") == 0) x[1] = 7;
    if (strcmp(f->fault, "last") == 0) return ENV_TERMINATED;
    if (strcmp(f->fault, "bits") == 0) return 256;
    return strcmp(f->fault, "fail") == 0 ? -1 : ENV_GOES_ON;
}

static const char *error(void *env) { return "it said so itself"; }

const EnvApi *brim_env(uint32_t host_abi)
{
    static const EnvApi api = { .abi        = ENV_ABI,
                                .size_bytes = sizeof(EnvApi),
                                .create     = create,
                                .destroy    = free,
                                .info       = info,
                                .reset      = reset,
                                .step       = step,
                                .error      = error };
    return &api;
}
