/* A language model as a Hugging Face folder: its family, its ends of text, its tokenizer. */
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "data/vocab.h"
#include "task/hf_export.h"
#include "task/lm.h"

#include <limits.h>

/* The run's tokenizer; *t is NULL if there is none. */
static int open_tokenizer(const Recipe *r, Tokenizer **t)
{
    char path[VOCAB_PATH];
    *t = NULL;
    if (!vocab_path(r, path)) return 0;
    return tokenizer_open(t, path) < 0 ? recipe_blame_pending(r, "data.tokenizer") : 0;
}

static int describe(const Recipe *r, HfConfig *c)
{
    Tokenizer *t;
    int32_t    end[VOCAB_ENDS];
    int        family = hfconf_family_of(&r->model);
    if (family < 0) return -1;
    *c = (HfConfig){ .family = (HfFamily)family, .model = r->model, .bos = -1 };
    TRY(open_tokenizer(r, &t));
    if (t) c->bos = tokenizer_bos(t);
    c->n_eos = vocab_ends(r, t, end);
    for (int i = 0; i < c->n_eos; i++) c->eos[i] = end[i];
    tokenizer_close(t);
    return c->n_eos < 0 ? -1 : 0;
}

/* A tokenizer.json goes as it is, with all that Brim does not read; any other kind becomes one. */
static int copy_tokenizer(const Recipe *r, const Tokenizer *t, int32_t eos, const char *out)
{
    char path[VOCAB_PATH + 32], to[PATH_MAX];
    vocab_path(r, path);
    if (file_kind(path) == FILE_FOLDER) str_append(path, sizeof path, "/tokenizer.json");
    if (file_kind(path) != FILE_REGULAR || !str_ends_with(path, ".json")) TRY(tokenizer_save(t, out));
    if (snprintf(to, sizeof to, "%s/tokenizer.json", out) >= (int)sizeof to)
        return err_user("%s: path too long", out);
    if (file_kind(to) == FILE_NONE) TRY(file_copy(path, to));
    return tokenizer_save_config(t, eos, out);
}

static int write_generation(const HfConfig *c, const char *out)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/generation_config.json", out) >= (int)sizeof path)
        return err_user("%s: path too long", out);
    FILE *f  = file_create_tmp(path);
    int   rc = f ? hfconf_write_generation(c, f) : -1;
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

static int write_beside(const Recipe *r, const HfConfig *c, const char *out)
{
    Tokenizer *t;
    TRY(write_generation(c, out));
    TRY(open_tokenizer(r, &t));
    int rc = t ? copy_tokenizer(r, t, c->n_eos > 0 ? (int32_t)c->eos[0] : -1, out) : 0;
    tokenizer_close(t);
    return rc;
}

int lm_export(const Recipe *r, const TaskExport *opt)
{
    return hf_export(r, opt, &(HfExport){ "", describe, write_beside });
}
