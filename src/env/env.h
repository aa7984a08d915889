/* Env: the interface between Brim and an environment in a shared object. This header needs nothing else of
 * Brim.
 *
 * 1. A shared object exports one symbol, brim_env(). It returns a table of functions. `brim env new NAME`
 *    writes a file to begin with; `brim env check ./NAME.so` tests what you made of it.
 * 2. The trainer owns the episode. reset() starts an episode from a seed, step() says whether the episode
 *    ended and leaves the last observation. The environment never resets itself. The trainer keeps the last
 *    observation, then calls reset() with the next seed. The trainer also applies `max_steps`; that end is a
 *    truncation.
 * 3. Terminated means that the task is over and the future is worth nothing. Truncated means that somebody
 *    stopped looking. If both hold, terminated wins.
 * 4. All chance comes from the seed: the same seed and the same actions give the same bits, in any thread.
 * 5. The rows belong to the trainer. A row is contiguous. A pointer is valid only during the call.
 * 6. Each environment is used by one thread at a time. Different environments are used by different threads
 *    at the same time, so an environment has no writable statics.
 * 7. step() and reset() write every observation block, the mask if there is one, and `alive` if there are
 *    several agents; step() also writes the rewards. They do not allocate and print nothing.
 * 8. Both tables begin with the interface's number and their own size. Later versions only append fields. A
 *    field beyond the size that an object was compiled with counts as zero. */
#ifndef BRIM_ENV_H
#define BRIM_ENV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ENV_ABI 1u

enum {
    ENV_MAX_OBS    = 8,     /* observation blocks */
    ENV_MAX_DIM    = 4,     /* dimensions of a block */
    ENV_MAX_ACT    = 512,   /* heads, or continuous dimensions */
    ENV_MAX_CHOICE = 65536, /* choices of all heads together */
    ENV_MAX_AGENT  = 256,
    ENV_MAX_SIDE   = 8192, /* pixels of a picture's width or height */
};

typedef enum { ENV_F32, ENV_U8, ENV_I8, ENV_I32 } EnvType;

/* One head of DISCRETE is a discrete action, several are a multi-discrete one. */
typedef enum { ENV_DISCRETE, ENV_CONTINUOUS } EnvActKind;

/* What step() returns when it did not fail; bits. */
enum { ENV_GOES_ON = 0, ENV_TERMINATED = 1, ENV_TRUNCATED = 2 };

/* A named part of the observation. The network sees value * scale + bias; scale 0 counts as 1. */
typedef struct {
    const char *name;
    EnvType     type;
    int         n_dim;
    int64_t     shape[ENV_MAX_DIM];
    float       low, high; /* every value lies between them; low == high: no bounds */
    float       scale, bias;
} EnvBlock;

typedef struct {
    uint32_t        abi, size_bytes; /* ENV_ABI, sizeof(EnvInfo) */
    const char     *name, *about;    /* about: one line */
    const EnvBlock *obs;
    int             n_obs;
    EnvActKind      act_kind;
    int             n_act;              /* heads or dimensions */
    const int32_t  *act_choices;        /* DISCRETE: choices per head, counted from 0 */
    const float    *act_low, *act_high; /* CONTINUOUS: the range that makes sense; actions may lie outside */
    int             n_agent;            /* 0 counts as 1 */
    int             has_mask;  /* DISCRETE: one byte per choice of every head, 0 forbids the choice */
    int64_t         max_steps; /* the trainer truncates there; 0: never */
    int             has_solved_at;
    float           solved_at; /* mean return of all agents that counts as solved */
    int             fps;       /* of pictures; 0 counts as 30 */
} EnvInfo;

/* Where one environment reads and writes. For n_agent > 1 every row is n_agent rows, one after the other. */
typedef struct {
    void          *obs[ENV_MAX_OBS];
    const int32_t *act_i; /* [n_act], DISCRETE */
    const float   *act_f; /* [n_act], CONTINUOUS */
    float         *reward;
    uint8_t       *mask;  /* has_mask: [sum of act_choices] */
    uint8_t       *alive; /* n_agent > 1: 0 for an agent that does not take part; an agent may come back */
} EnvIo;

typedef struct {
    uint32_t abi, size_bytes; /* ENV_ABI, sizeof(EnvApi) */

    /* Makes an environment. Options are "key=value" texts. Negative: error holds one line that says why. */
    int (*create)(void **env, const char *const *option, int n_option, char *error, size_t n_error);
    void (*destroy)(void *env);
    const EnvInfo *(*info)(void *env);                       /* constant: one that changes is stopped */
    int (*reset)(void *env, uint64_t seed, const EnvIo *io); /* negative: it failed */
    int (*step)(void *env, const EnvIo *io);                 /* ENV_* bits; negative: it failed */

    /* ---- each of these may be NULL ---- */

    /* Steps n environments whose rows follow each other; end[i] gets the bits of environment i. Returns 0, or
     * -1 - i when environment i failed. */
    int (*step_batch)(void *const *env, int n, const EnvIo *io, uint8_t *end);
    /* Writes width x height RGB bytes. rgb NULL: only says the size, which is constant. Negative: failed. */
    int (*picture)(void *env, uint8_t *rgb, int *width, int *height);
    /* Copies the state into buf and returns its size. buf NULL: only says the size. Negative: it failed. */
    int64_t (*save)(void *env, void *buf, int64_t cap);
    int (*load)(void *env, const void *buf, int64_t n);
    const char *(*error)(void *env); /* one line about the last failure */
} EnvApi;

/* The symbol. host_abi is the newest interface the trainer knows; NULL: the environment needs a newer one. */
const EnvApi *brim_env(uint32_t host_abi);

#ifdef __cplusplus
}
#endif
#endif
