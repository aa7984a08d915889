/* Relate: what follows from a recipe's keys taken together. */
#ifndef CONF_RELATE_H
#define CONF_RELATE_H

#include "conf/recipe.h"
#include "conf/schema.h"

enum { ORIGIN_DEFAULT = 0, ORIGIN_COMMAND_LINE = -1 }; /* above 0: a line of the recipe */

/* Where each key's value came from, for messages. */
typedef struct {
    const char *name; /* the recipe's, safe to print */
    int         line[SCHEMA_MAX];
} Origin;

/* Reports "NAME:LINE: KEY: text", "command line: KEY: text" or, of a key that is not given, "NAME: KEY: text"; always
 * negative. */
int relate_blame(const Origin *o, int row, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Fills in derived values and finds the data files, then verifies every relation between keys. folder: the
 * recipe's; need_data 0: the data may be elsewhere. Negative after err_user(). */
int relate_resolve(Recipe *r, const Origin *o, const char *folder, int need_data);

#endif
