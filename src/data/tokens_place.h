/* Tokens place: which files hold a part of a recipe's data.
 *
 * 1. A set is a folder with a folder train and maybe a folder val, as brim data tokens writes it. Text with a
 *    tokenizer becomes a set first (data/text_cache.h). */
#ifndef DATA_TOKENS_PLACE_H
#define DATA_TOKENS_PLACE_H

#include "conf/recipe.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *key;  /* of the recipe, that names it */
    DataKind    kind; /* of the files; text here means bytes */
    char        path[2 * RECIPE_STR];
    int         is_separate; /* validation has files of its own; 0: it is the end of the training files */
} TokensPlace;

/* Negative after err_user()/err_set(); p->key is set then, too. */
int tokens_place_find(TokensPlace *p, const Recipe *r, int validation);

#ifdef __cplusplus
}
#endif
#endif
