/* Paths: the files that the values of keys name (KeyPath in schema.h). */
#ifndef CONF_PATHS_H
#define CONF_PATHS_H

#include "conf/recipe.h"
#include "conf/schema.h"

/* May change the path. Negative after err_user(). */
typedef int (*PathFn)(void *ctx, const SchemaRow *row, char path[RECIPE_STR]);

/* Calls fn for each file that the text of a row names; what fn leaves in path replaces the file's name. The
 * text is a field of the row, or what schema_get() wrote. Negative when fn is; a text that would become too
 * long stays as it is. */
int paths_in_text(const SchemaRow *row, char text[RECIPE_STR], PathFn fn, void *ctx);

/* The same for every key of the recipe's task. */
int paths_in_recipe(Recipe *r, PathFn fn, void *ctx);

#endif
