#include "data/vocab.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/tokens.h"
#include "data/tokens_place.h"

#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- Beside the shards --------------------------------------------------------------------------------- */

static int is_there(char *buf, size_t n, const char *folder, const char *up, const char *name)
{
    buf[0] = '\0';
    return str_append(buf, n, "%s%s/%s", folder, up, name) == 0 && file_kind(buf) == FILE_REGULAR;
}

/* A file of that name in the folder of the shards, or above it. */
static int find_beside(const char *shards, const char *name, char *buf, size_t n)
{
    char folder[RECIPE_STR];
    int  rc = file_kind(shards) == FILE_FOLDER ? str_copy(folder, sizeof folder, shards)
                                               : file_folder_of(shards, folder, sizeof folder);
    return rc == 0 && (is_there(buf, n, folder, "", name) || is_there(buf, n, folder, "/..", name));
}

int vocab_path(const Recipe *r, char *buf)
{
    const RecipeData *d = &r->data;
    if (d->tokenizer[0]) return str_copy(buf, VOCAB_PATH, d->tokenizer) == 0;
    return d->kind == DATA_TOKENS && find_beside(d->train, "tokenizer.json", buf, VOCAB_PATH);
}

/* The hash that tokens.json has of the tokenizer that made the shards. 0: not known. */
static int read_hash(const char *shards, uint64_t *hash)
{
    char path[VOCAB_PATH];
    if (!find_beside(shards, "tokens.json", path, sizeof path)) return 0;
    json_t     *root = json_load_file(path, 0, NULL);
    const char *text = json_string_value(json_object_get(root, "tokenizer_hash"));
    int         has  = text && sscanf(text, "%16" SCNx64, hash) == 1;
    json_decref(root);
    return has;
}

/* ---- What follows from the data ------------------------------------------------------------------------ */

/* Refuses a tokenizer that is not the one of the shards: its text would be nonsense. */
static int check_tokenizer(const Recipe *r, const char *shards)
{
    char       beside[VOCAB_PATH], own[PATH_MAX], given[PATH_MAX];
    uint64_t   made_by = 0;
    Tokenizer *t;
    if (!shards[0] || !read_hash(shards, &made_by)) return 0;
    int has = find_beside(shards, "tokenizer.json", beside, sizeof beside);
    if (has && realpath(beside, own) && realpath(r->data.tokenizer, given) && strcmp(own, given) == 0)
        return 0; /* the usual case takes no time */
    if (tokenizer_open(&t, r->data.tokenizer) < 0) return recipe_blame_pending(r, "data.tokenizer");
    uint64_t hash = tokenizer_hash(t);
    tokenizer_close(t);
    if (hash == made_by) return 0;
    return recipe_blame(r, "data.tokenizer", "%s did not make the tokens of %s%s%s", r->data.tokenizer,
                        shards, has ? "; this one did: " : "", has ? beside : "");
}

/* The token that the shards name; -1: none. What is wrong with shards is said when they are read. */
static int64_t shards_end_token(const Recipe *r)
{
    TokensPlace p;
    Tokens     *s     = NULL;
    int64_t     token = -1;
    if (tokens_place_find(&p, r, 0) == 0 && tokens_open_path(&s, p.kind, p.path, INT32_MAX) == 0)
        token = tokens_end_token(s);
    err_clear();
    tokens_close(s);
    return token;
}

static int complete_shards(Recipe *r)
{
    RecipeData *d = &r->data;
    char        path[VOCAB_PATH], full[PATH_MAX];
    if (d->tokenizer[0] && file_kind(d->tokenizer) != FILE_NONE) {
        TRY(check_tokenizer(r, d->train));
        TRY(check_tokenizer(r, d->val));
    } else if (!d->tokenizer[0] && vocab_path(r, path) && realpath(path, full) && strlen(full) < RECIPE_STR) {
        str_copy(d->tokenizer, sizeof d->tokenizer, full);
    }
    int64_t token = shards_end_token(r);
    if (token >= 0 && d->document_token >= 0 && token != d->document_token)
        log_warn("data.document_token is %lld, but the documents of %s end with token %lld",
                 (long long)d->document_token, d->train, (long long)token);
    if (d->document_token < 0 && token < r->model.vocab) d->document_token = token;
    return 0;
}

static int complete_text(Recipe *r, int need_data)
{
    Tokenizer *t;
    if (r->data.document_token >= 0) return 0;
    if (tokenizer_open(&t, r->data.tokenizer) < 0) {
        if (need_data) return recipe_blame_pending(r, "data.tokenizer");
        err_clear(); /* the tokenizer is on another machine */
        return 0;
    }
    int32_t token = tokenizer_eos(t);
    if (token < r->model.vocab) r->data.document_token = token;
    tokenizer_close(t);
    return 0;
}

int vocab_complete(Recipe *r, int need_data)
{
    if (r->data.kind == DATA_TOKENS) return complete_shards(r);
    return r->data.kind == DATA_TEXT && r->data.tokenizer[0] ? complete_text(r, need_data) : 0;
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

int32_t vocab_document_token(const Recipe *r, const Tokenizer *t)
{
    if (r->data.document_token >= 0) return (int32_t)r->data.document_token;
    return t ? tokenizer_eos(t) : -1;
}

int vocab_ends(const Recipe *r, const Tokenizer *t, int32_t *id)
{
    const char *list = r->sample.eos;
    char        item[32];
    int64_t     one;
    int         n = 0;
    while (str_list_next(&list, item, sizeof item) > 0 && n < VOCAB_ENDS) {
        if (str_parse_int(item, &one) < 0 || one < 0 || one >= r->model.vocab)
            return recipe_blame(r, "sample.eos", "'%s' is not a token id from 0 to %lld", item,
                                (long long)r->model.vocab - 1);
        id[n++] = (int32_t)one;
    }
    int32_t end = vocab_document_token(r, t);
    if (n == 0 && end >= 0) id[n++] = end;
    return n;
}

int vocab_bytes(const Recipe *r, int64_t n, uint16_t **out)
{
    char       path[VOCAB_PATH];
    Tokenizer *t;
    if (!vocab_path(r, path)) return 0;
    TRY(tokenizer_open(&t, path));
    uint16_t *bytes = mem_zeroed((size_t)n, sizeof *bytes);
    int       rc    = bytes ? 1 : err_sys("memory for a vocabulary");
    for (int32_t id = 0; rc > 0 && id < MIN(n, tokenizer_size(t)); id++) {
        size_t len = 0;
        if (tokenizer_token(t, id, &len) && !tokenizer_is_special(t, id))
            bytes[id] = (uint16_t)MIN(len, UINT16_MAX);
    }
    tokenizer_close(t);
    if (rc > 0) *out = bytes;
    return rc;
}
