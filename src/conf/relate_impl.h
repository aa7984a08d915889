/* What the files of relate share. Not for others. */
#ifndef CONF_RELATE_IMPL_H
#define CONF_RELATE_IMPL_H

#include "base/err.h"
#include "conf/recipe.h"
#include "conf/schema.h"

/* The row of a key that there is. */
int relate_row(const Recipe *r, const char *key);

/* Of two keys that do not go together, the one to blame: what the command line changed, else what the file
 * says. */
const char *relate_culprit(const Recipe *r, const char *key, const char *other);

/* "256" or "256 or 512": the neighbours of a wrong value that would do, 0: none. */
const char *relate_nearest(char *buf, size_t n, int64_t below, int64_t above);

/* relate_ppo.c: fills in and verifies what task ppo adds to a recipe. Negative after recipe_blame(). */
int relate_ppo(Recipe *r);

#define LL(x) ((long long)(x))

/* Requires cond of a pair of keys. */
#define RELATE(cond, key, other, ...)                                                                        \
    do {                                                                                                     \
        if (!(cond)) return recipe_blame(r, relate_culprit(r, key, other), __VA_ARGS__);                     \
    } while (0)

/* Requires cond of one key. */
#define DEMAND(cond, key, ...)                                                                               \
    do {                                                                                                     \
        if (!(cond)) return recipe_blame(r, key, __VA_ARGS__);                                               \
    } while (0)

#endif
