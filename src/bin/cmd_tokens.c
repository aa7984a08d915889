/* brim data tokens | inspect | verify. */
#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/hostmem.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "bin/cmd_data.h"
#include "data/tokenize.h"
#include "file/shard.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- tokens -------------------------------------------------------------------------------------------- */

/* A token by its name or number. */
static int find_token(const Tokenizer *t, const char *text, int32_t *out)
{
    int64_t id = tokenizer_find(t, text);
    if (strcmp(text, "none") == 0) {
        *out = -1;
        return 0;
    }
    if (id < 0 && str_parse_int(text, &id) < 0) id = -1;
    if (id < 0 || id >= tokenizer_size(t)) {
        return err_user("command line: --document-token: '%.64s' is no token of this tokenizer (a name, a "
                        "number from 0 to %d, or none)",
                        text, tokenizer_size(t) - 1);
    }
    *out = (int32_t)id;
    return 0;
}

typedef struct {
    const char *tokenizer, *out, *val, *field, *format, *split, *token, *shard, *threads;
    int         skip_bad;
    char        separator[256];
} Flags;

static int set_documents(Flags *f, const Tokenizer *t, TokenizeConfig *c)
{
    static const char *const name[] = { "auto", "text", "jsonl" };
    int                      k      = 0;
    while (k < ARRAY_LEN(name) && strcmp(f->format, name[k]) != 0) k++;
    if (k == ARRAY_LEN(name))
        return err_user("command line: --format: '%.32s' is none of auto, text, jsonl", f->format);
    c->text.format     = (DocumentsFormat)k;
    c->text.field      = f->field;
    c->text.keep_going = f->skip_bad;
    c->end_token       = tokenizer_eos(t);
    if (f->token) TRY(find_token(t, f->token, &c->end_token));
    if (!f->token && c->end_token < 0) {
        return err_user("%s: has no token that ends a text: name one by --document-token NAME, or none",
                        f->tokenizer);
    }
    size_t      len         = 0;
    const char *name_of_end = c->end_token < 0 ? NULL : tokenizer_token(t, c->end_token, &len);
    if (f->split) {
        if (!f->split[0]) return err_user("command line: --split: is empty");
        if (str_unescape(f->separator, sizeof f->separator, f->split) < 0)
            return err_user("command line: --split: '%.64s' has an escape other than \\n \\t \\r \\\\, or is "
                            "longer than %zu bytes",
                            f->split, sizeof f->separator - 1);
    } else if (name_of_end && len < sizeof f->separator && !memchr(name_of_end, 0, len)) {
        memcpy(f->separator, name_of_end, len);
    }
    c->text.separator = f->separator[0] ? f->separator : NULL;
    return 0;
}

static void print_part(const char *out, const char *name, const TokenizePart *p)
{
    char tokens[32], bytes[32];
    if (p->n_shard == 0) return;
    printf("%s/%s: %s tokens in %lld document%s, %d shard%s, %s of text, %.2f bytes a token\n", out, name,
           str_count(tokens, sizeof tokens, (double)p->n_token), (long long)p->n_doc, str_plural(p->n_doc),
           p->n_shard, str_plural(p->n_shard), str_bytes(bytes, sizeof bytes, (double)p->text_bytes),
           (double)p->text_bytes / (double)MAX(p->n_token, 1));
}

static void print_result(const TokenizeConfig *c, const TokenizeResult *r, double time_s)
{
    double  bytes = (double)(r->part[0].text_bytes + r->part[1].text_bytes);
    int64_t n_doc = r->part[0].n_doc;
    print_part(c->out, "train", &r->part[0]);
    print_part(c->out, "val", &r->part[1]);
    if (r->n_bad > 0) printf("%lld line%s left out\n", (long long)r->n_bad, str_plural(r->n_bad));
    if (r->n_null > 0) printf("%lld null%s left out\n", (long long)r->n_null, str_plural(r->n_null));
    printf("%d file%s in %.1f s, %.1f MB/s\n", r->n_file, str_plural(r->n_file), time_s,
           bytes / time_s / 1e6);
    if (c->val > 0 && r->part[1].n_doc == 0) {
        log_warn("no validation part: %lld document%s too few for a share of %g (--split makes more of them)",
                 (long long)n_doc, n_doc == 1 ? " is" : "s are", c->val);
        log_warn("a run validates on the end of the training part instead");
    }
}

static int encode_all(const CmdArgs *a, int n_path, Flags *f, const Tokenizer *t)
{
    int64_t        threads = hostmem_cpus();
    double         begin_s = clock_now_s();
    DataNote       n       = { 0 };
    TokenizeResult r;
    TokenizeConfig c = { .text     = { .path = (const char *const *)a->argv, .n_path = n_path },
                         .out      = f->out,
                         .note     = data_note_bytes,
                         .note_arg = &n };
    TRY(set_documents(f, t, &c));
    TRY(cmd_double("--val", f->val, 0, 0.5, &c.val));
    TRY(cmd_int("--shard", f->shard, 1, INT64_C(1) << 40, &c.shard_tokens));
    if (f->threads) TRY(cmd_int("--threads", f->threads, 1, TOKENIZE_THREADS, &threads));
    c.threads = (int)threads;
    int rc    = tokenize(t, &c, &r);
    data_note_end(&n);
    if (rc == 0) print_result(&c, &r, clock_now_s() - begin_s);
    return rc;
}

int cmd_data_tokens(const CmdArgs *a)
{
    Flags         f      = { .val = "0.01", .field = "text", .format = "auto", .shard = "100000000" };
    const CmdFlag flag[] = {
        { "--tokenizer", &f.tokenizer, NULL, "a folder or file, as brim data tokenizer trains or reads" },
        { "--out", &f.out, NULL, "the folder for the shards; created" },
        { "--val", &f.val, NULL, "share of the documents for validation, default 0.01; 0: none" },
        { "--split", &f.split, NULL,
          "text between two documents of plain text, such as '\\n\\n'; default: the end token's own name" },
        { "--format", &f.format, NULL,
          "text, jsonl, or auto: Parquet by its first bytes, JSON lines by the name *.jsonl" },
        { "--field", &f.field, NULL, "of JSON lines, or column of Parquet, that is the text; default text" },
        { "--skip-bad", NULL, &f.skip_bad, "leave lines out that are no such JSON, and count them" },
        { "--document-token", &f.token, NULL, "that ends each document: a name, a number, or none" },
        { "--shard", &f.shard, NULL, "tokens of a shard, default 100000000" },
        { "--threads", &f.threads, NULL, "that encode; all CPUs" }
    };
    Tokenizer *t      = NULL;
    int        n_path = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n_path < 0) return -1;
    if (n_path == 0)
        return err_user("command line: text is missing: files, folders, or - for standard input");
    if (!f.tokenizer) return err_user("command line: --tokenizer is missing (a folder or file)");
    if (!f.out) return err_user("command line: --out is missing (a folder)");
    log_open(NULL);
    TRY(tokenizer_open(&t, f.tokenizer));
    int rc = encode_all(a, n_path, &f, t);
    tokenizer_close(t);
    return rc;
}

/* ---- inspect and verify -------------------------------------------------------------------------------- */

typedef struct {
    int     raw, json, check;
    int64_t n_shard, n_token, n_doc, text_bytes, size_bytes;
    JsonOut out;
} Look;

static void print_shard(Look *l, const char *path, const ShardHeader *h, int64_t text_bytes)
{
    static const char *const kind[] = { "brim", "llm.c", "uint16", "npy" };
    if (l->json) {
        json_out_object(&l->out, NULL);
        json_out_str(&l->out, "file", path);
        json_out_str(&l->out, "kind", kind[h->kind]);
        json_out_int(&l->out, "tokens", h->n_token);
        json_out_int(&l->out, "token_bytes", h->token_bytes);
        json_out_int(&l->out, "vocab", h->vocab);
        json_out_int(&l->out, "documents", h->n_doc);
        json_out_int(&l->out, "text_bytes", text_bytes);
        json_out_int(&l->out, "begin_token", h->begin_token);
        json_out_int(&l->out, "end_token", h->end_token);
        json_out_close(&l->out);
        return;
    }
    printf("%s: %s, %lld tokens of %d bytes, vocabulary %lld", path, kind[h->kind], (long long)h->n_token,
           h->token_bytes, (long long)h->vocab);
    if (h->n_doc > 0) {
        printf(", %lld document%s of %lld bytes of text", (long long)h->n_doc, str_plural(h->n_doc),
               (long long)text_bytes);
    }
    if (h->end_token >= 0) printf(", each ends with token %lld", (long long)h->end_token);
    printf("%s\n", l->check ? ": sound" : "");
}

static int look_at_shard(Look *l, const char *path)
{
    ShardHeader h;
    int         fd = l->raw ? shard_open_plain(&h, path) : shard_open(&h, path);
    if (fd < 0) return -1;
    int64_t text = shard_text_bytes(fd, path, &h);
    int     rc   = text < 0 ? -1 : 0;
    if (rc == 0 && l->check) rc = shard_verify_open(fd, path, &h, INT64_MAX);
    close(fd);
    if (rc < 0) return rc;
    print_shard(l, path, &h, text);
    l->n_shard++;
    l->n_token += h.n_token;
    l->n_doc += h.n_doc;
    l->text_bytes += text;
    return 0;
}

/* A shard, a folder of shards, or a folder of such folders (train, val). */
static int look_at(Look *l, Arena *a, const char *path, int depth)
{
    char **name;
    if (file_kind(path) != FILE_FOLDER) return look_at_shard(l, path);
    int n = file_list(a, path, "", &name);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) {
        const char *one = arena_printf(a, "%s/%s", path, name[i]);
        if (name[i][0] == '.') continue;
        int is_folder = file_kind(one) == FILE_FOLDER;
        if (is_folder ? depth == 0 : str_ends_with(name[i], ".bin")) TRY(look_at(l, a, one, depth + 1));
    }
    return 0;
}

static void print_sum(const Look *l)
{
    char tokens[32], text[32];
    printf("%lld shard%s, %s tokens", (long long)l->n_shard, str_plural(l->n_shard),
           str_count(tokens, sizeof tokens, (double)l->n_token));
    if (l->n_doc > 0) {
        printf(", %lld documents, %s of text, %.2f bytes a token", (long long)l->n_doc,
               str_bytes(text, sizeof text, (double)l->text_bytes),
               (double)l->text_bytes / (double)MAX(l->n_token, 1));
    }
    printf("\n");
}

static int look_all(const CmdArgs *a, int n_path, Look *l)
{
    Arena arena;
    int   rc = 0;
    if (n_path == 0) return err_user("command line: a shard, or a folder of shards, is missing");
    arena_init(&arena);
    if (l->json) {
        json_out_init_file(&l->out, stdout);
        json_out_array(&l->out, NULL);
    }
    for (int i = 0; rc == 0 && i < n_path; i++) {
        int64_t before = l->n_shard;
        rc             = look_at(l, &arena, a->argv[i], 0);
        if (rc == 0 && l->n_shard == before) rc = err_user("%s: no *.bin files in this folder", a->argv[i]);
    }
    if (rc == 0 && l->json) rc = json_out_end(&l->out);
    if (rc == 0 && !l->json && l->n_shard > 1) print_sum(l);
    arena_deinit(&arena);
    return rc;
}

int cmd_data_inspect(const CmdArgs *a)
{
    Look          l      = { 0 };
    const CmdFlag flag[] = { { "--raw", NULL, &l.raw, "files of 2-byte ids without a header (nanoGPT)" },
                             { "--json", NULL, &l.json, "one JSON array" } };
    int           n      = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    return n < 0 ? -1 : look_all(a, n, &l);
}

int cmd_data_verify(const CmdArgs *a)
{
    Look          l      = { .check = 1 };
    const CmdFlag flag[] = { { "--raw", NULL, &l.raw, "files of 2-byte ids without a header (nanoGPT)" } };
    int           n      = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n > 0 && cmd_is_albums(a->argv[0])) return cmd_verify_albums(a->argv, n);
    return n < 0 ? -1 : look_all(a, n, &l);
}
