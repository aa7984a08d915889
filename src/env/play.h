/* Play: episodes of one environment, answered by a policy, as a GIF or on the terminal. */
#ifndef ENV_PLAY_H
#define ENV_PLAY_H

#include "env/envs.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Writes one action from the current observations and mask in io: n_act values per agent. first: the episode
 * begins with this observation, so memory is to be cleared. Negative after err_set(). */
typedef int (*PlayPolicy)(void *self, const EnvSpec *spec, const EnvsIo *io, int first, int32_t *act_i,
                          float *act_f);

typedef struct {
    EnvsConf    env; /* n_env and n_group are set here */
    int         n_episode;
    const char *out;         /* FILE.gif; NULL: the terminal, if it is one */
    int         in_terminal; /* 1: draw there, at the environment's pace */
    PlayPolicy  policy;      /* NULL: random actions */
    void       *self;
    FILE       *text; /* where results are said; NULL: standard output */
} PlayConf;

/* Prints return and length of every episode and their mean. Negative after err_set(). */
int play_run(const PlayConf *conf);

#ifdef __cplusplus
}
#endif
#endif
