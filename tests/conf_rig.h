/* What test_conf.c and test_conf_bad.c share: a recipe from a text. Include behind <cmocka.h>. */
#ifndef CONF_RIG_H
#define CONF_RIG_H

#include "base/err.h"
#include "conf/recipe.h"

#include <stdint.h>
#include <string.h>

#define RANDOM "data: {kind: random}\n"

static inline int clean(void **state)
{
    err_clear();
    return 0;
}

static inline int parse(Recipe *r, const char *text, const char *override)
{
    char *list[1] = { (char *)(uintptr_t) override };
    err_clear();
    return recipe_parse(r, "t.yaml", text, strlen(text), override ? 1 : 0, list);
}

static inline void assert_parses(Recipe *r, const char *text, const char *override)
{
    if (parse(r, text, override) < 0) fail_msg("%s", err_get());
}

#endif
