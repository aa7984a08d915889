/* Opens files and folders, and answers questions. */
#include "text/tokenizer.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "text/tokenizer_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

static int join(char *buf, const char *dir, const char *name)
{
    int n = snprintf(buf, PATH_BYTES, "%s/%s", dir, name);
    return n > 0 && n < PATH_BYTES ? 0 : err_user("%s: a path too long", dir);
}

static int open_pair(Tokenizer **t, const char *vocab, const char *merges)
{
    ReadFile v = { .path = vocab }, m = { .path = merges };
    char    *a = NULL, *b = NULL;
    int      rc = file_read_all(vocab, TOKENIZER_MAX_FILE, &a, &v.size_bytes);
    if (rc == 0) rc = file_read_all(merges, TOKENIZER_MAX_FILE, &b, &m.size_bytes);
    v.data = a;
    m.data = b;
    if (rc == 0) rc = read_vocab_merges(t, &v, &m);
    free(a);
    free(b);
    return rc;
}

/* The pairs of names under which a vocabulary and its merges go. 1: opened, 0: not here. */
static int open_folder_pair(Tokenizer **t, const char *dir)
{
    static const char *const pair[][2] = { { "encoder.json", "vocab.bpe" }, { "vocab.json", "merges.txt" } };
    for (int i = 0; i < ARRAY_LEN(pair); i++) {
        char vocab[PATH_BYTES], merges[PATH_BYTES];
        TRY(join(vocab, dir, pair[i][0]));
        TRY(join(merges, dir, pair[i][1]));
        if (file_kind(vocab) != FILE_REGULAR || file_kind(merges) != FILE_REGULAR) continue;
        return open_pair(t, vocab, merges) < 0 ? -1 : 1;
    }
    return 0;
}

/* By what is in it: JSON, or lines of ranks. */
static int open_file(Tokenizer **t, const char *path)
{
    char  *data;
    size_t n;
    if (file_kind(path) != FILE_REGULAR) return err_user("%s: not a regular file", path);
    if (file_size(path) > (int64_t)TOKENIZER_MAX_FILE) {
        return err_user("%s: larger than %zu MiB, which no tokenizer is", path, TOKENIZER_MAX_FILE >> 20);
    }
    TRY(file_read_all(path, TOKENIZER_MAX_FILE, &data, &n));
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", data[i]) && data[i]) i++;
    int is_json = (i < n && data[i] == '{') || str_ends_with(path, ".json");
    int rc      = is_json ? read_json_tokenizer(t, path, data, n) : read_ranks(t, path, data, n);
    free(data);
    return rc;
}

static int open_ranks_in(Tokenizer **t, const char *dir)
{
    Arena  a;
    char **names, path[PATH_BYTES] = "";
    arena_init(&a);
    int n = file_list(&a, dir, ".tiktoken", &names), rc = n < 0 ? -1 : 0;
    if (n == 1) rc = join(path, dir, names[0]);
    arena_deinit(&a);
    if (rc == 0 && n > 1) return err_user("%s: it has %d .tiktoken files; name one", dir, n);
    if (rc == 0 && n == 0) {
        TRY(join(path, dir, "tokenizer.model"));
        if (file_kind(path) != FILE_REGULAR) {
            return err_user(
                "%s: no tokenizer in it (tokenizer.json, *.tiktoken, encoder.json with vocab.bpe, or "
                "vocab.json with merges.txt)",
                dir);
        }
    }
    return rc < 0 ? -1 : open_file(t, path);
}

/* tokenizer_config.json says which tokens begin and end a text. Nobody needs it: what is wrong with it is
 * ignored. */
static int32_t config_token(const Tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? tokenizer_find(t, json_string_value(v)) : -1;
}

static int read_config(Tokenizer *t, const char *dir)
{
    char   path[PATH_BYTES], *data;
    size_t n;
    TRY(join(path, dir, "tokenizer_config.json"));
    if (file_kind(path) != FILE_REGULAR || file_size(path) > 16 << 20) return 0;
    TRY(file_read_all(path, 16 << 20, &data, &n));
    json_t *j   = json_loadb(data, n, 0, NULL);
    int32_t bos = config_token(t, j, "bos_token"), eos = config_token(t, j, "eos_token");
    if (bos >= 0) t->bos = bos;
    if (eos >= 0) t->eos = eos;
    json_decref(j);
    free(data);
    return 0;
}

static int open_folder(Tokenizer **t, const char *dir)
{
    char path[PATH_BYTES];
    TRY(join(path, dir, "tokenizer.json"));
    if (file_kind(path) == FILE_REGULAR) return open_file(t, path);
    int rc = open_folder_pair(t, dir);
    return rc == 0 ? open_ranks_in(t, dir) : rc < 0 ? -1 : 0;
}

int tokenizer_open(Tokenizer **t, const char *path)
{
    char     dir[PATH_BYTES];
    FileKind kind = file_kind(path);
    *t            = NULL;
    if (kind == FILE_NONE) return err_user("%s: no such file or folder", path);
    TRY(kind == FILE_FOLDER ? open_folder(t, path) : open_file(t, path));
    int rc = kind == FILE_FOLDER ? str_copy(dir, sizeof dir, path) : file_folder_of(path, dir, sizeof dir);
    if (rc == 0) rc = read_config(*t, dir);
    if (rc < 0) {
        tokenizer_close(*t);
        *t = NULL;
    }
    return rc;
}

/* ---- questions ---- */

int32_t tokenizer_size(const Tokenizer *t) { return t->n_id; }

int64_t tokenizer_longest(const Tokenizer *t) { return t->longest; }

int32_t tokenizer_bos(const Tokenizer *t) { return t->bos; }

int32_t tokenizer_eos(const Tokenizer *t) { return t->eos; }

int32_t tokenizer_find(const Tokenizer *t, const char *name)
{
    int32_t id = strmap_find(&t->added_names, name, strlen(name));
    return id >= 0 ? id : strmap_find(&t->names, name, strlen(name));
}

int tokenizer_is_special(const Tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_id && (t->flag[id] & TOKEN_SPECIAL) != 0;
}

const char *tokenizer_token(const Tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->n_id || t->name[id].len == 0) return NULL;
    *len = t->bytes[id].len;
    return t->byte_pool + t->bytes[id].at;
}

TokenizerFacts tokenizer_facts(const Tokenizer *t)
{
    TokenizerFacts f = { .kind           = t->kind,
                         .n_token        = t->n_token,
                         .n_merge        = t->n_merge,
                         .n_added        = t->n_added,
                         .byte_level     = t->byte_level,
                         .byte_fallback  = t->byte_fallback,
                         .n_frame_before = t->n_before,
                         .n_frame_after  = t->n_after,
                         .normalizer     = t->part[PART_NORMALIZER],
                         .pre_tokenizer  = t->part[PART_PRE_TOKENIZER],
                         .post_processor = t->part[PART_POST_PROCESSOR],
                         .decoder        = t->part[PART_DECODER] };
    for (int32_t i = 0; i < t->n_id; i++) f.n_special += (t->flag[i] & TOKEN_SPECIAL) != 0;
    return f;
}
