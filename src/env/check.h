/* Check: tests an environment as a trainer would use it. `brim env check NAME`. */
#ifndef ENV_CHECK_H
#define ENV_CHECK_H

#include "env/envs.h"

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Prints one line per test: "ok NAME", "not ok NAME: why" or "-- NAME: why not". Negative after err_set()
 * when one failed. conf.n_env and what belongs to threads is chosen here. */
int check_env(const EnvsConf *conf, double seconds, FILE *out);

#ifdef __cplusplus
}
#endif
#endif
