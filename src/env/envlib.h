/* Envlib: finds the environment that a name means and makes instances of it in this process.
 *
 *     cartpole, CartPole-v1      built in
 *     ./mine.so                  a shared object that exports brim_env() (env.h)
 *     mujoco:humanoid.xml        a MuJoCo model (mujoco.h)
 *     gym:LunarLander-v3         Gymnasium; never in this process (remote.h)
 *
 * A missing file and an unknown name are the user's errors. A shared object stays open until the program
 * ends: threads of the team may have thread-local data of the object. */
#ifndef ENV_ENVLIB_H
#define ENV_ENVLIB_H

#include "env/env.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ENVLIB_MAX_OPTION = 64 };

typedef struct {
    char        name[256]; /* as the user wrote it */
    EnvApi      api;       /* fields that the object does not know are NULL */
    int         is_builtin;
    const char *option[ENVLIB_MAX_OPTION]; /* borrowed */
    int         n_option;
    char        model[512]; /* "model=FILE", the option that mujoco:FILE stands for */
} EnvLib;

int envlib_is_gym(const char *name);
int envlib_open(EnvLib *l, const char *name, const char *const *option, int n_option);
int envlib_create(const EnvLib *l, void **env); /* negative after err_user() */

#ifdef __cplusplus
}
#endif
#endif
