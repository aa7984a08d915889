#include "data/tokens_place.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "data/text_cache.h"

#include <string.h>

/* Puts the folder of a set's part behind the path. 0: there is none. */
static int enter_set(char *path, size_t n, const char *part)
{
    size_t len = strlen(path);
    if (str_append(path, n, "/%s", part) == 0 && file_kind(path) == FILE_FOLDER) return 1;
    path[len] = '\0';
    return 0;
}

/* A part of a set is a folder of the set's folder. data.val may name a set, too. */
static void enter_part(TokensPlace *p, int validation)
{
    char val[sizeof p->path];
    str_copy(val, sizeof val, p->path);
    int has_val = enter_set(val, sizeof val, "val");
    if (has_val) p->is_separate = 1;
    if (has_val && validation) {
        str_copy(p->path, sizeof p->path, val);
    } else {
        enter_set(p->path, sizeof p->path, "train");
    }
}

int tokens_place_find(TokensPlace *p, const Recipe *r, int validation)
{
    const RecipeData *d    = &r->data;
    int               own  = validation && d->val[0] != '\0'; /* a validation file of its own */
    const char       *path = own ? d->val : d->train;
    *p                     = (TokensPlace){ .key = own ? "data.val" : "data.train", .kind = d->kind };
    p->is_separate         = d->val[0] != '\0';
    str_copy(p->path, sizeof p->path, path);
    if (d->kind == DATA_TEXT && d->tokenizer[0]) {
        p->kind = DATA_TOKENS;
        TRY(text_cache(r, p->key, p->is_separate ? 0 : d->val_fraction, p->path, sizeof p->path));
    }
    if (p->kind != DATA_TEXT) enter_part(p, validation);
    return 0;
}
