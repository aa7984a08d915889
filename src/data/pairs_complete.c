/* What a recipe of task latent leaves to its files: the tokenizer that goes with the frozen language model,
 * and the length of the anchor in its tokens.
 *
 * A language model that was trained on other tokens than bytes is never fed bytes: if its tokenizer cannot be
 * found, the recipe is refused. */
#include "data/pairs_impl.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "conf/hfconf.h"
#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>

int pairs_llm_run(const Recipe *r, Recipe **out)
{
    static const char *const places[] = { "recipe.yaml",
                                          "../../recipe.yaml" }; /* of a run, of a checkpoint */
    char                     path[RECIPE_STR + 32];
    *out = NULL;
    for (int i = 0; i < ARRAY_LEN(places) && r->latent.llm[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", r->latent.llm, places[i]);
        if (file_kind(path) != FILE_REGULAR) continue;
        *out = mem_alloc(sizeof **out);
        if (!*out) return err_sys("memory for a recipe");
        if (recipe_load_without_data(*out, path, 0, NULL) == 0) return 1;
        free(*out);
        *out = NULL;
        return recipe_blame_pending(r, "latent.llm");
    }
    return 0;
}

/* A folder of Hugging Face has its tokenizer in it; the data of a run of Brim say which one theirs is. */
static int find_tokenizer(Recipe *r)
{
    RecipeLatent *t = &r->latent;
    Recipe       *run;
    char          path[VOCAB_PATH] = "";
    if (t->tokenizer[0] || !t->llm[0] || t->pairs == PAIRS_RANDOM) return 0;
    if (hfconf_is_folder(t->llm)) return str_copy(t->tokenizer, sizeof t->tokenizer, t->llm);
    int rc = pairs_llm_run(r, &run);
    if (rc <= 0) return rc;
    int found = vocab_path(run, path);
    int bytes = run->data.kind == DATA_TEXT || run->data.kind == DATA_RANDOM;
    free(run);
    if (!found && !bytes)
        return recipe_blame(r, "latent.tokenizer", "is missing: %s was trained on tokens, not on bytes",
                            t->llm);
    if (found && str_copy(t->tokenizer, sizeof t->tokenizer, path) < 0)
        return recipe_blame(r, "latent.tokenizer", "the path is too long: %s", path);
    return 0;
}

static int count_anchor(Recipe *r)
{
    RecipeLatent  *t = &r->latent;
    PairText       text;
    const int32_t *ids;
    TRY(pair_text_open(&text, r));
    t->n_anchor = pair_text_encode(&text, t->anchor, strlen(t->anchor), 0, &ids);
    pair_text_close(&text);
    return t->n_anchor < 0 ? -1 : 0;
}

/* Data that cannot be read are everything but forgotten: the run opens them next. */
static void find_share(Recipe *r, int need_data)
{
    if (r->latent.room > 0 || (need_data != DATA_HERE && r->latent.pairs != PAIRS_RANDOM)) return;
    if (pairs_look(r) == 0) return;
    r->latent.share = 0;
    err_clear();
}

static int find_anchor(Recipe *r, int need_data)
{
    RecipeLatent *t = &r->latent;
    if (t->pairs != PAIRS_JSONL && t->pairs != PAIRS_SQUAD) return 0;
    int elsewhere = !need_data && t->anchor_tokens > 0 && file_kind(t->tokenizer) == FILE_NONE;
    if (t->tokenizer[0] && elsewhere) {
        t->n_anchor = t->anchor_tokens;
    } else if (t->tokenizer[0]) {
        TRY(count_anchor(r));
    }
    if (recipe_is_typed(r, "latent.anchor_tokens") && t->anchor_tokens != t->n_anchor && t->anchor_tokens > 0)
        return recipe_blame(
            r, "latent.anchor_tokens", "is %lld, but latent.anchor \"%.64s\" has %lld token%s",
            (long long)t->anchor_tokens, t->anchor, (long long)t->n_anchor, str_plural(t->n_anchor));
    return 0;
}

int pairs_complete(Recipe *r, int need_data)
{
    TRY(find_tokenizer(r));
    TRY(find_anchor(r, need_data));
    find_share(r, need_data);
    return 0;
}
