/* Builtin: the environments that come with Brim. They use the same interface as environments of users. */
#ifndef ENV_BUILTIN_H
#define ENV_BUILTIN_H

#include "env/env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char   *name, *gym; /* gym: Gymnasium's name, accepted as well; NULL: it has none */
    const EnvApi *api;
} Builtin;

int            builtin_count(void);
const Builtin *builtin_at(int i);
const Builtin *builtin_find(const char *name); /* NULL: there is none */

#ifdef __cplusplus
}
#endif
#endif
