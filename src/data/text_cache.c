#include "data/text_cache.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "base/str.h"
#include "data/tokenize.h"
#include "data/vocab.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include <xxhash.h>

enum { SHARD_TOKENS = 100000000 };

static int name_set(const Tokenizer *t, const TokenizeConfig *c, int split, char *buf, size_t n)
{
    const char     *base = folder_of_runs();
    Documents      *docs;
    DocumentsConfig text = c->text;
    text.quiet           = 1;
    TRY(documents_open(&docs, &text));
    uint64_t fact[4] = { tokenizer_hash(t), documents_fingerprint(docs), (uint64_t)c->end_token, 0 };
    documents_close(docs);
    memcpy(&fact[3], &c->val, sizeof c->val);
    /* A field or a separator that is not the default makes another set. */
    uint64_t seed = strcmp(text.field, "text") == 0 ? 0 : XXH64(text.field, strlen(text.field), 0);
    if (split) seed = XXH64(c->text.separator, strlen(c->text.separator), seed + 1);
    buf[0] = '\0';
    if (str_append(buf, n, "%s/.tokens/%016llx", base, (unsigned long long)XXH64(fact, sizeof fact, seed)) <
        0)
        return err_user("%s: the path is too long", base);
    return 0;
}

/* Opens and locks DIR.lock; waits for whoever holds it. */
static int lock_set(const char *dir)
{
    char path[PATH_MAX], why[PATH_MAX + 128];
    snprintf(path, sizeof path, "%s.lock", dir);
    int fd = file_open_own(path, O_RDWR | O_CREAT, why, sizeof why);
    if (fd < 0) return err_set("%s", why);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    log_info("%s: another process makes it: waiting", dir);
    while (flock(fd, LOCK_EX) != 0) {
        if (errno == EINTR) continue;
        close(fd);
        return err_sys("%s: lock", path);
    }
    return fd;
}

static int make_set(const Tokenizer *t, const TokenizeConfig *c)
{
    TokenizeResult r;
    char           tokens[32], size[32];
    double         begin_s = clock_now_s();
    log_info("%s: text becomes tokens in %s", c->text.path[0], c->out);
    TRY(tokenize(t, c, &r));
    double  bytes = (double)(r.part[0].text_bytes + r.part[1].text_bytes), time_s = clock_now_s() - begin_s;
    int64_t n_doc = r.part[0].n_doc + r.part[1].n_doc;
    log_info("%s: %s of text are %s tokens in %lld document%s, %.1f MB/s; the next start finds them there",
             c->text.path[0], str_bytes(size, sizeof size, bytes),
             str_count(tokens, sizeof tokens, (double)(r.part[0].n_token + r.part[1].n_token)),
             (long long)n_doc, str_plural(n_doc), bytes / MAX(time_s, 1e-3) / 1e6);
    if (r.n_null > 0)
        log_info("%s: %lld null%s left out", c->text.path[0], (long long)r.n_null, str_plural(r.n_null));
    return 0;
}

static int find_or_make(const Tokenizer *t, TokenizeConfig *c, int split, char *buf, size_t n)
{
    char summary[PATH_MAX], parent[PATH_MAX];
    TRY(name_set(t, c, split, buf, n));
    c->out = buf;
    if (snprintf(summary, sizeof summary, "%s/tokens.json", buf) >= PATH_MAX - 16)
        return err_user("%s: the path is too long", buf);
    if (file_kind(summary) == FILE_REGULAR) return 0;
    TRY(file_folder_of(buf, parent, sizeof parent));
    TRY(file_make_folders(parent));
    int fd = lock_set(buf);
    if (fd < 0) return -1;
    int rc = file_kind(summary) == FILE_REGULAR ? 0 : make_set(t, c);
    close(fd);
    return rc;
}

/* What lies between two documents: data.split, else the name of the token that ends one. */
static int find_separator(const Recipe *r, const Tokenizer *t, int32_t end, char *out, size_t n)
{
    size_t      len  = 0;
    const char *name = end < 0 ? NULL : tokenizer_token(t, end, &len);
    if (r->data.split[0] && str_unescape(out, n, r->data.split) < 0)
        return recipe_blame(r, "data.split", "has an escape other than \\n \\t \\r \\\\, or is too long");
    if (!r->data.split[0] && name && len < n) memcpy(out, name, len);
    return 0;
}

static int make_from(const Recipe *r, const Tokenizer *t, TokenizeConfig *c, char *buf, size_t n)
{
    char separator[256] = "";
    if (tokenizer_size(t) > r->model.vocab)
        return recipe_blame(r, "model.vocab", "%lld is too small: %s has %d tokens",
                            (long long)r->model.vocab, r->data.tokenizer, tokenizer_size(t));
    c->end_token = vocab_document_token(r, t);
    TRY(find_separator(r, t, c->end_token, separator, sizeof separator));
    c->text.separator = separator[0] ? separator : NULL;
    return find_or_make(t, c, r->data.split[0] != '\0', buf, n);
}

int text_cache(const Recipe *r, const char *key, double val, char *buf, size_t n)
{
    const char    *path = strcmp(key, "data.val") == 0 ? r->data.val : r->data.train;
    Tokenizer     *t;
    TokenizeConfig c = {
        .text         = { .path = &path, .n_path = 1, .field = r->data.field, .field_key = "data.field=" },
        .val          = val,
        .shard_tokens = SHARD_TOKENS,
        .threads      = hostmem_cpus()
    };
    if (tokenizer_open(&t, r->data.tokenizer) < 0) return recipe_blame_pending(r, "data.tokenizer");
    int rc = make_from(r, t, &c, buf, n);
    tokenizer_close(t);
    return rc;
}
