/* What envs.c and envs_state.c share. */
#ifndef ENV_ENVS_IMPL_H
#define ENV_ENVS_IMPL_H

#include "env/envlib.h"
#include "env/envs.h"
#include "env/guard.h"
#include "env/remote.h"

#include <stdatomic.h>

/* Why a thread's first slice failed; slice -1: none did. */
typedef struct {
    int  slice;
    char text[512];
} EnvsWhy;

/* The next slice of a thread's own; a cache line of its own, too. */
typedef struct {
    _Alignas(64) atomic_int slice;
} EnvsNext;

struct Envs {
    Arena     arena;
    EnvsConf  conf;
    EnvSpec   spec;
    EnvLib    lib;
    Guard    *guard;  /* NULL for built-in environments and workers */
    Remote   *remote; /* NULL: in this process */
    void    **env;    /* [n_env], in this process */
    int       n_env, n_group, n_thread;
    int64_t   limit;   /* steps; 0: none */
    int64_t  *episode; /* [n_env], which episode runs, from 0 */
    int64_t  *steps;   /* [n_env], in that episode */
    double   *sum;     /* [row], rewards of that episode */
    uint8_t  *end;     /* [n_env], bits of the last step */
    uint8_t  *present; /* [row], several agents: who took part in the last step */
    uint64_t *seed;    /* [n_env], of the episode that runs */
    EnvsWhy  *why;     /* [n_thread] */
    EnvsNext *next;    /* [n_thread] */
    double    work_s;  /* of all threads together, in one step of a group, lately */
};

/* Around a call into environment i, from the caller's own thread; a crash or a hang is then named. */
void envs_enter(const Envs *e, int i);
void envs_leave(const Envs *e);

/* The part of io that belongs to environment i. */
EnvIo envs_row(const Envs *e, const EnvsIo *io, int i);

#endif
