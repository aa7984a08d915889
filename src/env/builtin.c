#include "env/builtin.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "env/pictures.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- what each says about itself ----------------------------------------------------------------------- */

#define ONE_BLOCK(...) (const EnvBlock[]){ __VA_ARGS__ }, .n_obs = 1
#define CHOICES(n)                                                                                           \
    .act_kind = ENV_DISCRETE, .n_act = 1, .act_choices = (const int32_t[]) { n }
#define RANGE(low, high)                                                                                     \
    .act_kind = ENV_CONTINUOUS, .n_act = 1, .act_low = (const float[]){ low }, .act_high = (const float[])   \
    {                                                                                                        \
        high                                                                                                 \
    }
#define SOLVED_AT(x) .has_solved_at = 1, .solved_at = x
#define INFO         .abi = ENV_ABI, .size_bytes = sizeof(EnvInfo)

static const EnvInfo cartpole_info = {
    INFO,
    .name  = "cartpole",
    .about = "CartPole-v1: balance a pole on a cart",
    .obs   = ONE_BLOCK({ .name = "state", .n_dim = 1, .shape = { CARTPOLE_OBS } }),
    CHOICES(2),
    .max_steps = 500,
    SOLVED_AT(475),
    .fps = 50,
};
static const EnvInfo acrobot_info = {
    INFO,
    .name  = "acrobot",
    .about = "Acrobot-v1: swing the tip of two links above a line",
    .obs   = ONE_BLOCK(
          { .name = "state", .n_dim = 1, .shape = { ACROBOT_OBS }, .low = -28.2744f, .high = 28.2744f }),
    CHOICES(3),
    .max_steps = 500,
    SOLVED_AT(-100),
    .fps = 15,
};
static const EnvInfo mountaincar_info = {
    INFO,
    .name  = "mountaincar",
    .about = "MountainCar-v0: swing a weak car up a hill",
    .obs   = ONE_BLOCK(
          { .name = "state", .n_dim = 1, .shape = { MOUNTAINCAR_OBS }, .low = -1.2001f, .high = 0.6001f }),
    CHOICES(3),
    .max_steps = 200,
    SOLVED_AT(-110),
};
static const EnvInfo mountaincarc_info = {
    INFO,
    .name  = "mountaincar-continuous",
    .about = "MountainCarContinuous-v0: the same with a force",
    .obs   = ONE_BLOCK(
          { .name = "state", .n_dim = 1, .shape = { MOUNTAINCAR_OBS }, .low = -1.2001f, .high = 0.6001f }),
    RANGE(-1, 1),
    .max_steps = 999,
    SOLVED_AT(90),
};
static const EnvInfo pendulum_info = {
    INFO,
    .name  = "pendulum",
    .about = "Pendulum-v1: swing up and hold",
    .obs   = ONE_BLOCK({ .name = "state", .n_dim = 1, .shape = { PENDULUM_OBS }, .low = -8, .high = 8 }),
    RANGE(-2, 2),
    .max_steps = 200,
};
static const EnvInfo tmaze_info = {
    INFO,
    .name  = "tmaze",
    .about = "a corridor whose first cell says where to turn at its end; needs memory",
    .obs   = ONE_BLOCK({ .name = "state", .n_dim = 1, .shape = { TMAZE_OBS }, .low = -1, .high = 1 }),
    CHOICES(3),
    .max_steps = 40,
    SOLVED_AT(0.9f),
    .fps = 8,
};
static const EnvInfo meteor_info = {
    INFO,
    .name  = "meteor",
    .about = "catch gems, dodge rocks: three 10 x 10 planes of bytes",
    .obs   = ONE_BLOCK({ .name  = "planes",
                         .type  = ENV_U8,
                         .n_dim = 3,
                         .shape = { 3, METEOR_SIZE, METEOR_SIZE },
                         .high  = 1 }),
    CHOICES(3),
    .has_mask  = 1,
    .max_steps = 1000,
    .fps       = 10,
};

static const EnvInfo crossing_info = {
    INFO,
    .name  = "crossing",
    .about = "four buses give way to each other where their roads cross",
    .obs   = ONE_BLOCK({ .name = "buses", .n_dim = 1, .shape = { CROSSING_OBS }, .low = -1, .high = 1 }),
    CHOICES(2),
    .n_agent   = CROSSING_BUSES,
    .max_steps = 100,
    .fps       = 8,
};

/* ---- options ------------------------------------------------------------------------------------------- */

/* offer: the environment's only option; "": none. */
static int refuse_option(const char *option, const char *offer, char *error, size_t n_error)
{
    char name[64];
    str_copy(name, sizeof name, option); /* cut short where it is no option of ours anyway */
    name[strcspn(name, "=")] = '\0';
    StrNearest near          = str_nearest_begin(name);
    if (offer[0]) str_nearest_offer(&near, offer);
    str_append(error, n_error, "%s: no such option ", name);
    if (near.best) str_append(error, n_error, "(did you mean %s?)", offer);
    if (!near.best && offer[0]) str_append(error, n_error, "(there is %s=N)", offer);
    if (!near.best && !offer[0]) str_append(error, n_error, "(it has none)");
    return -1;
}

static int no_option(void *s, EnvInfo *info, const char *option, char *error, size_t n_error)
{
    return refuse_option(option, "", error, n_error);
}

static int tmaze_option(void *s, EnvInfo *info, const char *option, char *error, size_t n_error)
{
    enum { LONGEST = 100000 };
    int64_t n;
    TMaze  *t = s;
    if (!str_starts_with(option, "length=")) return refuse_option(option, "length", error, n_error);
    if (str_parse_int(option + strlen("length="), &n) < 0 || n < 1 || n > LONGEST) {
        str_append(error, n_error, "%s: not a whole number from 1 to %d", option, LONGEST);
        return -1;
    }
    t->length       = (int32_t)n;
    info->max_steps = 4 * n;
    return 0;
}

static int crossing_option(void *s, EnvInfo *info, const char *option, char *error, size_t n_error)
{
    int64_t n;
    if (!str_starts_with(option, "blind=")) return refuse_option(option, "blind", error, n_error);
    if (str_parse_int(option + strlen("blind="), &n) < 0 || n < 0 || n > 1) {
        str_append(error, n_error, "%s: neither 0 nor 1", option);
        return -1;
    }
    ((Crossing *)s)->blind = (int32_t)n;
    return 0;
}

static void no_default(void *s) {}

static void tmaze_default(void *s) { ((TMaze *)s)->length = TMAZE_LENGTH; }

/* ---- one adapter for all: the functions differ only in the struct and in the inlined step -------------- */

/* What an environment writes beside observations and rewards. */
#define NO_MORE(s, io, i)        ((void)0)
#define METEOR_MASK(s, io, i)    meteor_mask(s, (io)->mask + 3 * (i))
#define CROSSING_ALIVE(s, io, i) crossing_alive(s, (io)->alive + CROSSING_BUSES * (i))

/* N_OBS: numbers of all agents together. Each agent has one action. */
#define BUILTIN(NAME, Type, Obs, N_OBS, N_AGENT, MORE, DEFAULT, OPTION)                                      \
    typedef struct {                                                                                         \
        Type    s; /* first: an environment's pointer is its state's */                                      \
        EnvInfo info;                                                                                        \
    } Type##Box;                                                                                             \
    static int NAME##_box_create(void **env, const char *const *option, int n, char *error, size_t n_error)  \
    {                                                                                                        \
        Type##Box *b = mem_zeroed(1, sizeof *b);                                                             \
        if (!b) {                                                                                            \
            str_copy(error, n_error, "no memory");                                                           \
            return -1;                                                                                       \
        }                                                                                                    \
        b->info = NAME##_info;                                                                               \
        DEFAULT(&b->s);                                                                                      \
        for (int i = 0; i < n; i++) {                                                                        \
            if (OPTION(&b->s, &b->info, option[i], error, n_error) == 0) continue;                           \
            free(b);                                                                                         \
            return -1;                                                                                       \
        }                                                                                                    \
        *env = b;                                                                                            \
        return 0;                                                                                            \
    }                                                                                                        \
    static const EnvInfo *NAME##_box_info(void *env) { return &((Type##Box *)env)->info; }                   \
    static int            NAME##_box_reset(void *env, uint64_t seed, const EnvIo *io)                        \
    {                                                                                                        \
        Type *s = env;                                                                                       \
        NAME##_reset(s, seed);                                                                               \
        NAME##_observe(s, (Obs *)io->obs[0]);                                                                \
        MORE(s, io, 0);                                                                                      \
        return 0;                                                                                            \
    }                                                                                                        \
    static int NAME##_box_batch(void *const *env, int n, const EnvIo *io, uint8_t *end)                      \
    {                                                                                                        \
        Obs *obs = io->obs[0];                                                                               \
        for (int i = 0; i < n; i++) {                                                                        \
            Type *s = env[i];                                                                                \
            int   r = N_AGENT * i;                                                                           \
            end[i]  = (uint8_t)NAME##_step(s, io->act_i ? io->act_i + r : NULL,                              \
                                          io->act_f ? io->act_f + r : NULL, io->reward + r);                \
            NAME##_observe(s, obs + (int64_t)i * N_OBS);                                                     \
            MORE(s, io, i);                                                                                  \
        }                                                                                                    \
        return 0;                                                                                            \
    }                                                                                                        \
    static int NAME##_box_step(void *env, const EnvIo *io)                                                   \
    {                                                                                                        \
        uint8_t end;                                                                                         \
        NAME##_box_batch(&env, 1, io, &end);                                                                 \
        return end;                                                                                          \
    }                                                                                                        \
    static int NAME##_box_picture(void *env, uint8_t *rgb, int *width, int *height)                          \
    {                                                                                                        \
        *width  = PICTURE_WIDTH;                                                                             \
        *height = PICTURE_HEIGHT;                                                                            \
        if (rgb) picture_##NAME(env, rgb);                                                                   \
        return 0;                                                                                            \
    }                                                                                                        \
    static int64_t NAME##_box_save(void *env, void *buf, int64_t cap)                                        \
    {                                                                                                        \
        if (buf && cap < (int64_t)sizeof(Type)) return -1;                                                   \
        if (buf) memcpy(buf, env, sizeof(Type));                                                             \
        return sizeof(Type);                                                                                 \
    }                                                                                                        \
    static int NAME##_box_load(void *env, const void *buf, int64_t n)                                        \
    {                                                                                                        \
        if (n != sizeof(Type)) return -1;                                                                    \
        memcpy(env, buf, sizeof(Type));                                                                      \
        return 0;                                                                                            \
    }                                                                                                        \
    static const EnvApi NAME##_api = { ENV_ABI,                                                              \
                                       sizeof(EnvApi),                                                       \
                                       NAME##_box_create,                                                    \
                                       free,                                                                 \
                                       NAME##_box_info,                                                      \
                                       NAME##_box_reset,                                                     \
                                       NAME##_box_step,                                                      \
                                       NAME##_box_batch,                                                     \
                                       NAME##_box_picture,                                                   \
                                       NAME##_box_save,                                                      \
                                       NAME##_box_load,                                                      \
                                       NULL };

BUILTIN(cartpole, CartPole, float, CARTPOLE_OBS, 1, NO_MORE, no_default, no_option)
BUILTIN(acrobot, Acrobot, float, ACROBOT_OBS, 1, NO_MORE, no_default, no_option)
BUILTIN(mountaincar, MountainCar, float, MOUNTAINCAR_OBS, 1, NO_MORE, no_default, no_option)
BUILTIN(mountaincarc, MountainCarC, float, MOUNTAINCAR_OBS, 1, NO_MORE, no_default, no_option)
BUILTIN(pendulum, Pendulum, float, PENDULUM_OBS, 1, NO_MORE, no_default, no_option)
BUILTIN(tmaze, TMaze, float, TMAZE_OBS, 1, NO_MORE, tmaze_default, tmaze_option)
BUILTIN(meteor, Meteor, uint8_t, METEOR_OBS, 1, METEOR_MASK, no_default, no_option)
BUILTIN(crossing, Crossing, float, (CROSSING_BUSES * CROSSING_OBS), CROSSING_BUSES, CROSSING_ALIVE,
        no_default, crossing_option)

static const Builtin builtin_table[] = {
    { "cartpole", "CartPole-v1", &cartpole_api },
    { "acrobot", "Acrobot-v1", &acrobot_api },
    { "mountaincar", "MountainCar-v0", &mountaincar_api },
    { "mountaincar-continuous", "MountainCarContinuous-v0", &mountaincarc_api },
    { "pendulum", "Pendulum-v1", &pendulum_api },
    { "tmaze", NULL, &tmaze_api },
    { "meteor", NULL, &meteor_api },
    { "crossing", NULL, &crossing_api },
};

int builtin_count(void) { return ARRAY_LEN(builtin_table); }

const Builtin *builtin_at(int i)
{
    CHECK(i >= 0 && i < builtin_count(), "%d", i);
    return &builtin_table[i];
}

const Builtin *builtin_find(const char *name)
{
    for (int i = 0; i < builtin_count(); i++) {
        const Builtin *b = &builtin_table[i];
        if (strcasecmp(name, b->name) == 0 || (b->gym && strcasecmp(name, b->gym) == 0)) return b;
    }
    return NULL;
}
