/* Writes tokenizer.json and tokenizer_config.json, and hashes what the former would hold. */
#define XXH_INLINE_ALL
#include "base/err.h"
#include "base/file.h"
#include "text/tokenizer_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* Text goes to a file or into a hash. */
typedef struct {
    FILE         *file;
    XXH3_state_t *hash;
    int           failed;
} Sink;

static void put(Sink *s, const char *p, size_t n)
{
    if (s->hash) XXH3_64bits_update(s->hash, p, n);
    if (s->file && !s->failed) s->failed = file_write(s->file, p, n) < 0;
}

__attribute__((format(printf, 2, 3))) static void say(Sink *s, const char *fmt, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    CHECK(n >= 0 && (size_t)n < sizeof text, "a line of %d bytes", n);
    put(s, text, (size_t)n);
}

/* Names are UTF-8 already. */
static void put_string(Sink *s, const char *p, size_t n)
{
    put(s, "\"", 1);
    for (size_t i = 0, from = 0; i <= n; i++) {
        int plain = i < n && (unsigned char)p[i] >= 0x20 && p[i] != '"' && p[i] != '\\';
        if (plain) continue;
        put(s, p + from, i - from);
        from = i + 1;
        if (i == n) break;
        if (p[i] == '"' || p[i] == '\\') {
            put(s, (char[]){ '\\', p[i] }, 2);
        } else {
            say(s, "\\u%04x", (unsigned char)p[i]);
        }
    }
    put(s, "\"", 1);
}

static void put_name(Sink *s, const Tokenizer *t, int32_t id)
{
    put_string(s, t->pool + t->name[id].at, t->name[id].len);
}

static const char *yes_no(int x) { return x ? "true" : "false"; }

static void put_added(Sink *s, const Tokenizer *t)
{
    for (int64_t i = 0; i < t->n_added; i++) {
        const AddedToken *a = &t->added[i];
        say(s, "%s\n    {\"id\": %d, \"content\": ", i ? "," : "", a->id);
        put_string(s, a->content, a->len);
        say(s, ", \"single_word\": %s, \"lstrip\": %s, \"rstrip\": %s, \"normalized\": %s, \"special\": %s}",
            yes_no(a->single_word), yes_no(a->left_strip), yes_no(a->right_strip), yes_no(a->normalized),
            yes_no(a->special));
    }
}

static void put_model(Sink *s, const Tokenizer *t)
{
    int first = 1;
    say(s, "{\n    \"type\": \"BPE\", \"dropout\": null, \"unk_token\": ");
    if (t->unknown >= 0) {
        put_name(s, t, t->unknown);
    } else {
        say(s, "null");
    }
    say(s,
        ", \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": %s, "
        "\"byte_fallback\": %s, \"ignore_merges\": %s,\n    \"vocab\": {",
        yes_no(t->fuse_unknown), yes_no(t->byte_fallback), yes_no(t->whole));
    for (int32_t i = 0; i < t->n_id; i++) {
        if (!(t->flag[i] & TOKEN_MODEL)) continue;
        say(s, "%s\n      ", first ? "" : ",");
        put_name(s, t, i);
        say(s, ": %d", i);
        first = 0;
    }
    say(s, "\n    },\n    \"merges\": [");
    for (int64_t i = 0; i < t->n_merge; i++) {
        say(s, "%s\n      [", i == 0 ? "" : ",");
        put_name(s, t, t->merge[i].left);
        put(s, ", ", 2);
        put_name(s, t, t->merge[i].right);
        put(s, "]", 1);
    }
    say(s, "\n    ]\n  }");
}

static void put_all(Sink *s, const Tokenizer *t)
{
    say(s,
        "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [");
    put_added(s, t);
    say(s, "\n  ],\n");
    for (int i = 0; i < PART_COUNT; i++) {
        say(s, "  \"%s\": ", tokenizer_part_name[i]);
        put(s, t->part[i], strlen(t->part[i]));
        put(s, ",\n", 2);
    }
    say(s, "  \"model\": ");
    put_model(s, t);
    say(s, "\n}\n");
}

static int save_path(char path[4096], const char *dir, const char *name)
{
    TRY(file_make_folders(dir));
    return snprintf(path, 4096, "%s/%s", dir, name) < 4096 ? 0 : err_user("%s: a path too long", dir);
}

/* Takes f, and publishes it unless the writing failed. */
static int finish(FILE *f, const Sink *s, const char *path)
{
    int rc = s->failed ? -1 : file_publish(&f, path);
    file_discard(&f);
    return rc;
}

int tokenizer_save_config(const Tokenizer *t, int32_t eos, const char *dir)
{
    char path[4096];
    TRY(save_path(path, dir, "tokenizer_config.json"));
    FILE *f = file_create_tmp(path);
    Sink  s = { .file = f };
    if (!f) return -1;
    say(&s,
        "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false");
    if (t->bos >= 0) {
        say(&s, ",\n  \"bos_token\": ");
        put_name(&s, t, t->bos);
    }
    if (eos >= 0) {
        say(&s, ",\n  \"eos_token\": ");
        put_name(&s, t, eos);
    }
    say(&s, "\n}\n");
    return finish(f, &s, path);
}

int tokenizer_save(const Tokenizer *t, const char *dir)
{
    char path[4096];
    TRY(save_path(path, dir, "tokenizer.json"));
    FILE *f = file_create_tmp(path);
    Sink  s = { .file = f };
    if (!f) return -1;
    put_all(&s, t);
    TRY(finish(f, &s, path));
    return tokenizer_save_config(t, t->eos, dir);
}

uint64_t tokenizer_hash(const Tokenizer *t)
{
    XXH3_state_t state;
    Sink         s = { .hash = &state };
    XXH3_64bits_reset(&state);
    put_all(&s, t);
    return XXH3_64bits_digest(&state);
}
