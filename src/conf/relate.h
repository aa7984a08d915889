/* Relate: rules between several keys of a recipe, and values that follow from several keys. */
#ifndef CONF_RELATE_H
#define CONF_RELATE_H

#include "conf/recipe.h"
#include "conf/schema.h"

/* Fills in derived values and finds the data files, then verifies every relation between keys. folder: the
 * recipe's; need_data 0: the data may be elsewhere. Negative after err_user(). */
int relate_resolve(Recipe *r, const char *folder, int need_data);

/* Logs what relate_resolve() changed, and which keys have no effect. given: the recipe before
 * relate_resolve(). A recipe that is refused has no notes, so this is a call of its own. */
void relate_notes(const Recipe *given, const Recipe *r);

#endif
