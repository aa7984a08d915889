/* A language model as a Hugging Face folder: its family, its ends of text, its tokenizer. */
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "data/vocab.h"
#include "task/hf_export.h"
#include "task/lm.h"
#include "text/tokenizer.h"

#include <limits.h>

/* The run's tokenizer says what the recipe does not. */
static int ask_tokenizer(const Recipe *r, HfConfig *c)
{
    char       path[RECIPE_STR];
    Tokenizer *t;
    if (vocab_path(r, path, sizeof path) <= 0) return 0;
    TRY(tokenizer_open(&t, path));
    c->bos = tokenizer_bos(t);
    if (c->n_eos == 0 && tokenizer_eos(t) >= 0) c->eos[c->n_eos++] = tokenizer_eos(t);
    tokenizer_close(t);
    return 0;
}

static int describe(const Recipe *r, HfConfig *c)
{
    char        item[32];
    const char *list   = r->sample.eos;
    int         family = hfconf_family_of(&r->model);
    int64_t     id;
    if (family < 0) return -1;
    *c = (HfConfig){ .family = (HfFamily)family, .model = r->model, .bos = -1 };
    while (str_list_next(&list, item, sizeof item) > 0 && c->n_eos < HF_MAX_EOS) {
        if (str_parse_int(item, &id) == 0) c->eos[c->n_eos++] = id;
    }
    if (c->n_eos == 0 && r->data.document_token >= 0) c->eos[c->n_eos++] = r->data.document_token;
    return ask_tokenizer(r, c);
}

/* tokenizer.json of the run's tokenizer, if it is one. */
static int write_tokenizer(const Recipe *r, const HfConfig *c, const char *out)
{
    char vocab[RECIPE_STR], to[PATH_MAX];
    if (vocab_path(r, vocab, sizeof vocab) <= 0) return 0;
    if (file_kind(vocab) == FILE_FOLDER) str_append(vocab, sizeof vocab, "/tokenizer.json");
    if (file_kind(vocab) != FILE_REGULAR || !str_ends_with(vocab, ".json")) return 0;
    if (snprintf(to, sizeof to, "%s/tokenizer_config.json", out) >= (int)sizeof to)
        return err_user("%s: path too long", out);
    TRY(hf_export_text(to, "{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}\n"));
    snprintf(to, sizeof to, "%.4000s/tokenizer.json", out);
    return file_copy(vocab, to);
}

int lm_export(const Recipe *r, const TaskExport *opt)
{
    return hf_export(r, opt, &(HfExport){ "", describe, write_tokenizer });
}
