#include "data/vocab.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer.h"

static int is_there(char *buf, size_t n, const char *folder, const char *up)
{
    buf[0] = '\0';
    return str_append(buf, n, "%s%s/tokenizer.json", folder, up) == 0 && file_kind(buf) == FILE_REGULAR;
}

int vocab_path(const Recipe *r, char *buf, size_t n)
{
    const RecipeData *d = &r->data;
    if (d->tokenizer[0]) return str_copy(buf, n, d->tokenizer) == 0;
    if (d->kind != DATA_TOKENS) return 0;
    char folder[RECIPE_STR];
    if (file_kind(d->train) == FILE_FOLDER) {
        if (str_copy(folder, sizeof folder, d->train) < 0) return 0;
    } else if (file_folder_of(d->train, folder, sizeof folder) < 0) {
        return 0;
    }
    return is_there(buf, n, folder, "") || is_there(buf, n, folder, "/..");
}

int vocab_bytes(const Recipe *r, int64_t n, uint16_t **out)
{
    char       path[RECIPE_STR + 32];
    Tokenizer *t;
    if (!vocab_path(r, path, sizeof path)) return 0;
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
