/* Envs: many environments of one kind, stepped together into the caller's buffers. The trainer's side of
 * env.h.
 *
 * 1. Envs owns the episode. When an episode ends, its last observation goes to final_obs, and the
 *    environment is reset. obs then holds the first observation of the next episode (same-step auto-reset).
 *    The time limit is applied here. So a truncation is never taken for a termination, and its final
 *    observation is always there.
 * 2. Episode k of environment i has a seed that depends on (conf.seed, i, k) alone. Results are the same bits
 *    for any number of threads, groups and workers.
 * 3. Row i * n_agent + a belongs to agent a of environment i. Environments write straight into the rows. An
 *    agent that alive says has left is terminated, though the episode goes on; an agent that is not there at
 *    an end is terminated, never truncated. A step counts for the agents that were there when it began: the
 *    others get reward 0.
 * 4. A group is a range of environments. envs_step() of a group touches only its rows, so the caller can
 *    answer one group while another steps. One call at a time per Envs.
 * 5. A value that is not finite, a failed call or an action out of range is err_set() with the environment's
 *    name, its number and the step. A crash or a hang inside this process ends the process (guard.h). With
 *    isolate, and through the Gymnasium bridge, environments live in worker processes. A lost worker is
 *    started again. The episodes of its environments end as truncated with reward 0. envs_restarts() counts
 *    the restarts. */
#ifndef ENV_ENVS_H
#define ENV_ENVS_H

#include "env/spec.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Envs Envs;

typedef struct {
    const char        *name;   /* see envlib.h */
    const char *const *option; /* "key=value"; borrowed until envs_close() */
    int                n_option;
    int                n_env;
    int                n_group;  /* 0: 1 */
    int                n_thread; /* 0: one a CPU; never more than environments in a group */
    int                n_worker; /* processes, with isolate or gym; 0: as many as threads */
    uint64_t           seed;
    int64_t            first;     /* number of the first environment, for seeds: ranks have different ones */
    int64_t            max_steps; /* time limit; 0: the environment's own, -1: none */
    int                isolate;   /* 1: environments run in worker processes */
    double             timeout_s; /* of one call; 0: 60, negative: none */
    const char        *program;   /* the brim that workers run; NULL: this program */
    /* Called when an episode of env has ended, before the next one begins; NULL: nothing is called. */
    int (*on_end)(void *self, int env);
    void *self;
} EnvsConf;

/* The caller's buffers, each with a row per agent of all environments of all groups. NULL: not wanted, unless
 * it says otherwise. */
typedef struct {
    void          *obs[ENV_MAX_OBS];       /* needed; written by reset and step */
    void          *final_obs[ENV_MAX_OBS]; /* rows of episodes that ended are written */
    const int32_t *act_i;                  /* needed for discrete actions, [row][n_act] */
    const float   *act_f;                  /* needed for continuous ones */
    float         *reward;                 /* needed by step, as are the next two */
    uint8_t       *terminated, *truncated;
    uint8_t       *mask;           /* needed if the environment has one, [row][n_mask] */
    uint8_t       *alive;          /* needed for several agents; the caller keeps it from call to call */
    float         *episode_return; /* the agent's, of the episode that ended in this step, else 0 */
    int32_t       *episode_length; /* the same; 0: no episode ended */
} EnvsIo;

int  envs_open(Envs **e, const EnvsConf *conf);
void envs_close(Envs *e); /* NULL is allowed */

const EnvSpec *envs_spec(const Envs *e);
int64_t        envs_rows(const Envs *e);                                   /* n_env * n_agent */
void           envs_group(const Envs *e, int group, int *first, int *end); /* its environments */
int64_t        envs_max_steps(const Envs *e);                              /* the limit in force; 0: none */
int64_t        envs_restarts(const Envs *e);

/* Starts the first episode of every environment. */
int envs_reset(Envs *e, const EnvsIo *io);
/* One step of every environment of the group. */
int envs_step(Envs *e, int group, const EnvsIo *io);

/* RGB of one environment. rgb NULL: only the size. Negative after err_set(), also when there are no
 * pictures. */
int envs_picture(Envs *e, int env, uint8_t *rgb, int *width, int *height);

/* ---- the whole state, for exact resume (envs_state.c) ---- */

int     envs_can_save(const Envs *e);
int64_t envs_state_bytes(Envs *e); /* of the state now; negative after err_set() */
/* io as after the last step: the current observations, masks and alive flags are part of the state. */
int envs_save(Envs *e, const EnvsIo *io, void *buf, int64_t n);
/* 1: nothing is loaded, because the state is of another kind, of other options, of another number or of
 * another seed, or because environments here cannot load. Negative after err_set(): the bytes are damaged. */
int envs_load(Envs *e, const EnvsIo *io, const void *buf, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
