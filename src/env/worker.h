/* Worker: the other end of remote.h, for environments in C. `brim env worker NAME N [key=value ...]` runs
 * it. */
#ifndef ENV_WORKER_H
#define ENV_WORKER_H

#ifdef __cplusplus
extern "C" {
#endif

/* Serves until the commands end, or until a failure that the parent is told of. Negative after err_set(): the
 * parent could not be told. */
int worker_run(const char *name, int n_env, const char *const *option, int n_option);

#ifdef __cplusplus
}
#endif
#endif
