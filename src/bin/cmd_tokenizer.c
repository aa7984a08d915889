/* brim data tokenizer train | encode | decode | show. */
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/hostmem.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "bin/cmd_data.h"
#include "data/documents.h"
#include "text/known.h"
#include "text/tokenizer.h"
#include "text/train.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MOST ((size_t)1 << 32)

/* ---- input and output ---- */

/* All that a stream gives; *data is malloc'ed. */
static int read_stream(FILE *f, const char *name, char **data, size_t *n)
{
    size_t cap = 1 << 16, got;
    *n         = 0;
    *data      = malloc(cap);
    while (*data && (got = fread(*data + *n, 1, cap - *n, f)) > 0) {
        *n += got;
        if (*n < cap) continue;
        cap *= 2;
        char *more = realloc(*data, cap);
        if (!more) break;
        *data = more;
    }
    if (*data && !ferror(f) && *n < cap) return 0;
    free(*data);
    *data = NULL;
    return err_sys("%s", name);
}

/* A whole file or pipe, or standard input for NULL and "-". */
static int read_input(const char *path, char **data, size_t *n)
{
    if (!path || strcmp(path, "-") == 0) return read_stream(stdin, "standard input", data, n);
    FileKind kind = file_kind(path);
    if (kind == FILE_REGULAR) return file_read_all(path, TEXT_MOST, data, n);
    if (kind == FILE_FOLDER) return err_user("%s: is a folder: name a file", path);
    FILE *f = kind == FILE_OTHER ? fopen(path, "rb") : NULL;
    if (!f) return err_user("%s: no such file", path);
    int rc = read_stream(f, path, data, n);
    fclose(f);
    return rc;
}

static void print_ids(const int32_t *id, int64_t n, int raw)
{
    if (raw) {
        fwrite(id, sizeof *id, (size_t)n, stdout);
        return;
    }
    char   text[4096];
    size_t len = 0;
    for (int64_t i = 0; i < n; i++) {
        char     digit[12];
        int      k = 0;
        uint32_t v = (uint32_t)id[i];
        do digit[k++] = (char)('0' + v % 10);
        while (v /= 10);
        while (k > 0) text[len++] = digit[--k];
        text[len++] = i + 1 < n ? ' ' : '\n';
        if (len > sizeof text - 16) {
            fwrite(text, 1, len, stdout);
            len = 0;
        }
    }
    if (n == 0) text[len++] = '\n';
    fwrite(text, 1, len, stdout);
}

/* Opens the first word's tokenizer; the second word, if any, is a file. */
static int open_words(const CmdArgs *a, int n_word, Tokenizer **t, const char **file)
{
    if (n_word < 0) return -1;
    if (n_word == 0)
        return err_user("command line: a tokenizer is missing (a folder, or a file such as tokenizer.json)");
    if (n_word > 2) return err_user("command line: %s: one file at a time", a->argv[2]);
    *file = n_word > 1 ? a->argv[1] : NULL;
    return tokenizer_open(t, a->argv[0]);
}

/* ---- encode ---- */

int cmd_tokenizer_encode(const CmdArgs *a)
{
    int           raw = 0, plain = 0, literal = 0;
    const CmdFlag flag[] = {
        { "--raw", NULL, &raw, "write ids as 32-bit integers instead of text" },
        { "--plain", NULL, &plain, "without the tokens that the file puts around a text (BOS)" },
        { "--literal", NULL, &literal, "special tokens in the text are text like any other" }
    };
    Tokenizer  *t    = NULL;
    const char *path = NULL;
    char       *text = NULL;
    size_t      n    = 0;
    TRY(open_words(a, cmd_parse_words(a, flag, ARRAY_LEN(flag)), &t, &path));
    TokenizerScratch *s   = tokenizer_scratch_create(t);
    const int32_t    *ids = NULL;
    int               rc  = s ? read_input(path, &text, &n) : -1;
    if (rc == 0) {
        int     flags = (plain ? 0 : TOKENIZER_FRAME) | (literal ? TOKENIZER_LITERAL : 0);
        int64_t n_id  = tokenizer_encode(t, s, text, n, flags, &ids);
        if (n_id >= 0) print_ids(ids, n_id, raw);
        rc = n_id < 0 ? -1 : 0;
        free(text);
    }
    tokenizer_scratch_destroy(s);
    tokenizer_close(t);
    return rc;
}

/* ---- decode ---- */

static int parse_ids(const char *path, const char *text, size_t n, int32_t *id, int64_t *n_id)
{
    const char *bad = text;
    *n_id           = str_parse_ids(text, n, " \t\r\n,", (int64_t)INT32_MAX + 1, id, &bad);
    if (*n_id >= 0) return 0;
    return err_user("%s: byte %zu: not a token id (--raw reads 32-bit integers)",
                    path ? path : "standard input", (size_t)(bad - text));
}

static int decode_text(const Tokenizer *t, const char *path, const char *data, size_t n, int raw, int flags)
{
    if (raw && n % 4 != 0)
        return err_user("%s: %zu bytes are no whole number of 32-bit ids", path ? path : "standard input", n);
    int32_t          *id   = malloc((n / (raw ? 4 : 2) + 2) * sizeof *id);
    TokenizerScratch *s    = id ? tokenizer_scratch_create(t) : NULL;
    int64_t           n_id = (int64_t)n / 4;
    int               rc   = s ? 0 : err_sys("memory for ids");
    if (rc == 0 && raw) memcpy(id, data, n);
    if (rc == 0 && !raw) rc = parse_ids(path, data, n, id, &n_id);
    if (rc == 0) {
        const char *text;
        int64_t     len = tokenizer_decode(t, s, id, n_id, flags, &text);
        if (len >= 0) fwrite(text, 1, (size_t)len, stdout);
        rc = len < 0 ? -1 : 0;
    }
    tokenizer_scratch_destroy(s);
    free(id);
    return rc;
}

int cmd_tokenizer_decode(const CmdArgs *a)
{
    int           raw = 0, all = 0, none = 0;
    const CmdFlag flag[] = { { "--raw", NULL, &raw, "read ids as 32-bit integers instead of text" },
                             { "--all", NULL, &all, "also the tokens that encode puts around a text (BOS)" },
                             { "--no-special", NULL, &none, "drop every special token" } };
    Tokenizer    *t      = NULL;
    const char   *path   = NULL;
    char         *data   = NULL;
    size_t        n      = 0;
    TRY(open_words(a, cmd_parse_words(a, flag, ARRAY_LEN(flag)), &t, &path));
    int rc = read_input(path, &data, &n);
    if (rc == 0)
        rc = decode_text(t, path, data, n, raw, (all ? 0 : TOKENIZER_FRAME) | (none ? TOKENIZER_SKIP : 0));
    free(data);
    tokenizer_close(t);
    return rc;
}

/* ---- show ---- */

static void show_json(const Tokenizer *t, const TokenizerFacts *f, const char *hash)
{
    JsonOut o;
    json_out_init_file(&o, stdout);
    json_out_object(&o, NULL);
    json_out_str(&o, "kind", f->kind);
    json_out_int(&o, "vocab", tokenizer_size(t));
    json_out_int(&o, "tokens", f->n_token);
    json_out_int(&o, "merges", f->n_merge);
    json_out_int(&o, "added", f->n_added);
    json_out_int(&o, "special", f->n_special);
    json_out_int(&o, "longest_bytes", tokenizer_longest(t));
    json_out_int(&o, "bos", tokenizer_bos(t));
    json_out_int(&o, "eos", tokenizer_eos(t));
    json_out_bool(&o, "byte_level", f->byte_level);
    json_out_str(&o, "hash", hash);
    json_out_end(&o);
}

static void show_token(const Tokenizer *t, const char *what, int32_t id)
{
    char        quoted[64];
    size_t      len;
    const char *p = tokenizer_token(t, id, &len);
    if (p) {
        printf("%-15s %d %s\n", what, id, str_quote(quoted, sizeof quoted, p, len));
    } else {
        printf("%-15s none\n", what);
    }
}

int cmd_tokenizer_show(const CmdArgs *a)
{
    int           json   = 0;
    const CmdFlag flag[] = { { "--json", NULL, &json, "one JSON object" } };
    Tokenizer    *t      = NULL;
    const char   *file   = NULL;
    char          hash[24];
    int           n = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n > 1) return err_user("command line: %s: one tokenizer at a time", a->argv[1]);
    TRY(open_words(a, n, &t, &file));
    TokenizerFacts f = tokenizer_facts(t);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(t));
    if (json) {
        show_json(t, &f, hash);
    } else {
        printf("kind            %s, %s\n", f.kind,
               f.byte_level      ? "byte-level BPE"
               : f.byte_fallback ? "character-level BPE with byte fallback"
                                 : "character-level BPE");
        printf("vocabulary      %d ids, %lld tokens, %lld merges, longest token %lld bytes\n",
               tokenizer_size(t), (long long)f.n_token, (long long)f.n_merge,
               (long long)tokenizer_longest(t));
        printf("added tokens    %lld, %lld of them special\n", (long long)f.n_added, (long long)f.n_special);
        show_token(t, "begins a text", tokenizer_bos(t));
        show_token(t, "ends a text", tokenizer_eos(t));
        printf("adds by itself  %d before a text, %d behind it\n", f.n_frame_before, f.n_frame_after);
        printf("normalizer      %s\npre-tokenizer   %s\ndecoder         %s\nhash            %s\n",
               f.normalizer, f.pre_tokenizer, f.decoder, hash);
    }
    tokenizer_close(t);
    return 0;
}

/* ---- train ---- */

/* Before the process's number: text that waits for the trainer, in the result's folder. */
#define TMP_PREFIX ".tmp-text-"

/* Text that the trainer cannot map is written out first, into a file beside the result. 1: path names it. */
static int spool_text(const TrainConfig *c, const char *out, const char *field, char path[PATH_MAX])
{
    int is_more = 0;
    for (int i = 0; i < c->n_path; i++) is_more |= documents_is_more(c->path[i]) || !strcmp(c->path[i], "-");
    if (!is_more) return 0;
    DocumentsConfig text = { .path = c->path, .n_path = c->n_path, .field = field };
    if (snprintf(path, PATH_MAX, "%s/" TMP_PREFIX "%d", out, (int)getpid()) >= PATH_MAX)
        return err_user("%s: the path is too long", out);
    FILE *f = fopen(path, "wb");
    if (!f) return err_sys("%s", path);
    int rc = documents_spool(&text, f, data_note_bytes, c->note_arg);
    data_note_end(c->note_arg);
    if (fclose(f) != 0 && rc == 0) rc = err_sys("%s: write", path);
    return rc < 0 ? rc : 1;
}

/* Trains into the folder out; a folder that was made for this is gone again after a failure. A tokenizer that
 * is there already may belong to shards and to a model. */
static int train_into(TrainConfig *c, const char *out, const char *field, Tokenizer **t)
{
    char        path[PATH_MAX] = "", old[PATH_MAX];
    const char *one[]          = { path };
    int         is_new;
    if (snprintf(old, sizeof old, "%s/tokenizer.json", out) >= (int)sizeof old)
        return err_user("%s: the path is too long", out);
    if (file_kind(old) != FILE_NONE)
        return err_user("%s: is there already; name another folder, or remove it", old);
    TRY(folder_make_out(out, &is_new));
    folder_sweep(out, TMP_PREFIX);
    int spooled = spool_text(c, out, field, path);
    if (spooled > 0) {
        c->path   = one;
        c->n_path = 1;
    }
    int rc = spooled < 0 ? -1 : train_tokenizer(t, c);
    data_note_end(c->note_arg);
    if (path[0]) unlink(path);
    if (rc == 0) rc = tokenizer_save(*t, out);
    if (rc < 0 && is_new) rmdir(out);
    return rc;
}

static void print_trained(const Tokenizer *t, const TrainConfig *c, const char *out, double time_s)
{
    TokenizerFacts f = tokenizer_facts(t);
    if (tokenizer_size(t) < c->vocab)
        log_warn("--vocab %lld: the text gives only %d tokens", (long long)c->vocab, tokenizer_size(t));
    printf("%s/tokenizer.json: %d tokens, %lld merges, %.1f s, hash %016llx\n", out, tokenizer_size(t),
           (long long)f.n_merge, time_s, (unsigned long long)tokenizer_hash(t));
}

int cmd_tokenizer_train(const CmdArgs *a)
{
    const char   *vocab = NULL, *out = NULL, *threads = NULL, *min_count = "0", *field = "text";
    TrainConfig   c      = { .pattern = "gpt2", .special = "<|endoftext|>" };
    const CmdFlag flag[] = {
        { "--vocab", &vocab, NULL, "ids in all, special tokens and 256 bytes included" },
        { "--out", &out, NULL, "the folder for tokenizer.json" },
        { "--pattern", &c.pattern, NULL, "how text is cut into words: gpt2, cl100k, llama3, qwen2, o200k" },
        { "--special", &c.special, NULL, "special tokens, separated by commas (<|endoftext|>)" },
        { "--min-count", &min_count, NULL, "pairs that are rarer are not merged" },
        { "--whole", NULL, &c.whole, "a file is one text (without it a line is)" },
        { "--field", &field, NULL, "of JSON lines, or column of Parquet, that is the text; default text" },
        { "--threads", &threads, NULL, "that count words; all CPUs" }
    };
    int64_t    n_thread = hostmem_cpus();
    DataNote   n        = { 0 };
    Tokenizer *t        = NULL;
    c.n_path            = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (c.n_path < 0) return -1;
    if (c.n_path == 0) return err_user("command line: text files are missing");
    if (!vocab) return err_user("command line: --vocab is missing (for example --vocab 32768)");
    if (!out) return err_user("command line: --out is missing (a folder)");
    if (!known_pre_tokenizer(c.pattern))
        return err_user("command line: --pattern: '%.64s' is none of %s", c.pattern,
                        known_pre_tokenizer_list());
    TRY(cmd_int("--vocab", vocab, 256, 1 << 22, &c.vocab));
    TRY(cmd_int("--min-count", min_count, 0, INT64_MAX, &c.min_count));
    if (threads) TRY(cmd_int("--threads", threads, 1, 256, &n_thread));
    c.path         = (const char *const *)a->argv;
    c.threads      = (int)n_thread;
    c.note         = data_note_count;
    c.note_arg     = &n;
    double begin_s = clock_now_s();
    int    rc      = train_into(&c, out, field, &t);
    if (rc == 0) print_trained(t, &c, out, clock_now_s() - begin_s);
    tokenizer_close(t);
    return rc;
}
