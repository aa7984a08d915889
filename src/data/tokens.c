/* Tokens over files and over Philox. */
#include "data/tokens_impl.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "data/tokens_place.h"
#include "file/parquet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

/* Shards beyond this many are opened for each read, so that a folder of thousands stays within the usual
 * limit of 1024 descriptors. */
enum { MAX_OPEN = 256 };

enum { CHUNK_BYTES = 16384 };

/* Philox sites of the two random sources; recorded ops count theirs from 0. */
enum { SITE_TRAIN = 0x7f000001, SITE_VAL = 0x7f000002 };

static int64_t file_end(const TokenFile *f) { return f->first + f->h.n_token; }

/* Refuses shards and Parquet files that are given as text: their bytes would train without an error, but to
 * no use. A file that cannot be read is reported later, when it is read. */
static int refuse_packed(const Tokens *s, const TokenFile *f)
{
    unsigned char first[8];
    ssize_t       n = pread(f->fd, first, sizeof first, 0);
    if (parquet_is(f->path))
        return err_user("%s: is a Parquet file, whose text needs data.tokenizer", s->name);
    if (n < 0 || !shard_is_magic(first, (size_t)n)) return 0;
    return err_user("%s: is a token shard, not text: data.kind=tokens reads it", s->name);
}

static int open_text(Tokens *s, const char *path)
{
    struct stat st;
    if (s->vocab < 256) {
        return err_user("model.vocab: %lld is too small: text is read as bytes and needs 256",
                        (long long)s->vocab);
    }
    TokenFile *f = s->file = ARENA_NEW(&s->arena, TokenFile);
    *f    = (TokenFile){ .path = arena_strdup(&s->arena, path), .h.token_bytes = 1, .limit = 256 };
    f->fd = fault_hit(FAULT_OPEN) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) return err_user("%s: %s", s->name, strerror(errno));
    s->n_file = 1;
    if (fstat(f->fd, &st) != 0) return err_sys("%s: stat", s->name);
    if (!S_ISREG(st.st_mode)) return err_user("%s: not a regular file", s->name);
    f->h.n_token = st.st_size;
    return refuse_packed(s, f);
}

static int open_shard(Tokens *s, TokenFile *f, const char *path)
{
    ShardHeader h;
    int         fd = s->kind == DATA_UINT16 ? shard_open_plain(&h, path) : shard_open(&h, path);
    if (fd < 0) return -1;
    /* Other shards do not state their vocabulary; their ids are checked as they are read. */
    if (h.kind == SHARD_BRIM && h.vocab > s->vocab) {
        close(fd);
        return err_user("%s: made for a vocabulary of %lld, but model.vocab is %lld: %lld or more would do",
                        path, (long long)h.vocab, (long long)s->vocab, (long long)h.vocab);
    }
    *f = (TokenFile){ .path     = arena_strdup(&s->arena, path),
                      .fd       = fd,
                      .is_shard = 1,
                      .h        = h,
                      .limit    = MIN(h.vocab, s->vocab),
                      .stated   = h.kind == SHARD_BRIM };
    if (s->n_file++ >= MAX_OPEN) {
        close(fd);
        f->fd = -1;
    }
    return 0;
}

/* Files one behind the other. Documents count only if every file has an index. */
static void lay_out(Tokens *s)
{
    int64_t total = 0, n_doc = 0;
    int     all = 1;
    for (int k = 0; k < s->n_file; k++) {
        TokenFile *f = &s->file[k];
        f->first     = total;
        f->doc0      = n_doc;
        total += f->h.n_token;
        n_doc += f->h.n_doc;
        if (f->h.n_token > 0 && f->h.n_doc == 0) all = 0;
    }
    s->len   = total;
    s->n_doc = all ? n_doc : 0;
}

static int open_tokens(Tokens *s, const char *path)
{
    char   **name = NULL;
    FileKind kind = file_kind(path);
    int      n = 1, folder = kind == FILE_FOLDER;
    if (kind == FILE_NONE) return err_user("%s: %s", s->name, strerror(errno));
    if (folder) n = file_list(&s->arena, path, ".bin", &name);
    if (n < 0) return -1;
    s->file = ARENA_ARRAY(&s->arena, TokenFile, n);
    for (int i = 0; i < n; i++) {
        if (folder && name[i][0] == '.') continue;
        const char *file = folder ? arena_printf(&s->arena, "%s/%s", path, name[i]) : path;
        TRY(open_shard(s, &s->file[s->n_file], file));
    }
    return s->n_file > 0 ? 0 : err_user("%s: no *.bin files in this folder", s->name);
}

/* A source over all tokens of path; key is put before it in messages, unless NULL. */
static int open_path(Tokens **out, DataKind kind, const char *key, const char *path, int64_t vocab)
{
    CHECK(vocab >= 1 && kind != DATA_RANDOM, "kind %d, vocabulary of %lld", (int)kind, (long long)vocab);
    Tokens *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("%s: memory for reading it", path);
    arena_init(&s->arena);
    s->kind  = kind;
    s->vocab = vocab;
    s->name  = arena_printf(&s->arena, "%s%s%s", key ? key : "", key ? ": " : "", path);
    int rc   = path[0] == '\0' ? err_user("%sno file is named", s->name) : 0;
    if (rc == 0) rc = kind == DATA_TEXT ? open_text(s, path) : open_tokens(s, path);
    if (rc == 0) lay_out(s);
    if (rc == 0 && s->len == 0) rc = err_user("%s: is empty", s->name);
    if (rc < 0) {
        tokens_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

int tokens_open_path(Tokens **out, DataKind kind, const char *path, int64_t vocab)
{
    return open_path(out, kind, NULL, path, vocab);
}

static int make_random(Tokens **out, uint64_t seed, uint32_t site, int64_t vocab)
{
    Tokens *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("memory for random data");
    arena_init(&s->arena);
    s->kind  = DATA_RANDOM;
    s->name  = "data.kind: random";
    s->seed  = seed;
    s->site  = site;
    s->vocab = vocab;
    s->len   = TOKENS_RANDOM_LEN;
    *out     = s;
    return 0;
}

/* The least number of tokens of a part: a window and the target after it. The windows of validation may be
 * cut short. */
static int64_t least_tokens(const Recipe *r, int validation)
{
    return validation && r->model.mask != MASKING_FULL ? 2 : r->model.context + 1;
}

static int64_t share_tokens(int64_t total, double share) { return (int64_t)((double)total * share); }

/* A share that keeps between least and most of the tokens: half a token away from the border that was missed,
 * with as few digits as keep the share on the right side. */
static const char *name_share(char *buf, size_t n, int64_t total, int64_t least, int64_t most, int validation)
{
    double fits = validation ? (double)least + 0.5 : MAX((double)most - 0.5, (double)least + 0.5);
    for (int digits = 4; digits <= 17; digits++) {
        snprintf(buf, n, "%.*g", digits, fits / (double)total);
        int64_t kept = share_tokens(total, strtod(buf, NULL));
        if (kept >= least && kept <= most) break;
    }
    return buf;
}

static int refuse_share(const Recipe *r, int64_t total, int64_t left, int validation)
{
    char    share[32], advice[96] = "too few for both, 0 for none would do";
    int64_t least = least_tokens(r, 1), most = total - least_tokens(r, 0);
    if (most >= least) {
        snprintf(advice, sizeof advice, "%s or %s would do, or 0 for none",
                 name_share(share, sizeof share, total, least, most, validation),
                 validation ? "more" : "less");
    }
    return recipe_blame(r, "data.val_fraction", "%g of the %lld tokens of %s leaves %lld for %s: %s",
                        r->data.val_fraction, (long long)total, r->data.train, (long long)left,
                        validation ? "validation" : "training", advice);
}

/* Narrows a source over a whole file to the part asked for, which is long enough then. separate: the
 * validation part is not in these files, or is all of them. */
static int take_part(Tokens *s, const Recipe *r, const char *key, int validation, int separate)
{
    int64_t total = s->len, least = least_tokens(r, validation);
    int64_t n_val = separate ? 0 : share_tokens(total, r->data.val_fraction);
    if (validation && !separate) {
        s->first = total - n_val;
        s->len   = n_val;
        least += least_tokens(r, 0); /* of the file: both parts */
    } else {
        s->len = total - n_val;
    }
    s->is_separate = validation && separate;
    if (s->len >= least_tokens(r, validation)) return tokens_narrow_documents(s, total);
    if (total < least) {
        return recipe_blame(r, key, "%s: %lld token%s too few: model.context %lld needs %lld at least",
                            s->file[0].path, (long long)total, total == 1 ? " is" : "s are",
                            (long long)r->model.context, (long long)least);
    }
    return refuse_share(r, total, s->len, validation);
}

int tokens_has_val(const Recipe *r) { return r->data.val[0] != '\0' || r->data.val_fraction > 0; }

/* A vocabulary is rounded up at most so far. A larger one has rows that no text ever trains. */
enum { VOCAB_PADDING = 128 };

static void note_vocabulary(const Recipe *r, const Tokens *s)
{
    int64_t vocab = s->file[0].h.vocab, spare = r->model.vocab - vocab;
    if (!s->file[0].stated || spare < VOCAB_PADDING) return;
    log_info("model.vocab is %lld, but the tokens of %s are of %lld: %lld rows are never trained",
             (long long)r->model.vocab, s->name, (long long)vocab, (long long)spare);
}

int tokens_open(Tokens **out, const Recipe *r, int validation)
{
    if (r->data.kind == DATA_RANDOM) {
        return make_random(out, (uint64_t)r->seed, validation ? SITE_VAL : SITE_TRAIN, r->model.vocab);
    }
    TokensPlace p;
    Tokens     *s = NULL;
    if (validation && !tokens_has_val(r)) {
        return recipe_blame(r, "data.val_fraction", "is 0, so there is no validation data: name data.val");
    }
    if (tokens_place_find(&p, r, validation) < 0 || open_path(&s, p.kind, p.key, p.path, r->model.vocab) < 0)
        return recipe_blame_pending(r, p.key);
    if (take_part(s, r, p.key, validation, p.is_separate) < 0) {
        tokens_close(s);
        return -1;
    }
    if (!validation) note_vocabulary(r, s);
    *out = s;
    return 0;
}

void tokens_close(Tokens *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_file; i++) {
        if (s->file[i].fd >= 0) close(s->file[i].fd);
    }
    arena_deinit(&s->arena);
    free(s);
}

int64_t tokens_len(const Tokens *s) { return s->len; }

const char *tokens_name(const Tokens *s) { return s->name; }

/* Token i of a random source is word i mod 4 of Philox block i / 4, scaled to the vocabulary. */
static void read_random(const Tokens *s, int64_t first, int64_t n, int32_t *out)
{
    int64_t i = first, end = first + n;
    while (i < end) {
        uint64_t block = (uint64_t)i / 4;
        uint32_t word[4];
        rng_philox(word, s->seed, s->site, 0, block);
        for (int lane = (int)(i & 3); lane < 4 && i < end; lane++, i++) {
            *out++ = (int32_t)(((uint64_t)word[lane] * (uint64_t)s->vocab) >> 32);
        }
    }
}

/* Copies ids [at, at+n) of one file; at counts from its first token. */
static int read_file(const TokenFile *f, int fd, int64_t at, int64_t n, int32_t *out)
{
    unsigned char raw[CHUNK_BYTES];
    int           unit  = f->h.token_bytes;
    int64_t       chunk = CHUNK_BYTES / unit;
    for (int64_t i = 0; i < n; i += chunk) {
        int64_t m = MIN(chunk, n - i);
        TRY(file_read_at(fd, f->path, raw, (size_t)(m * unit), f->h.payload_offset + (at + i) * unit));
        int64_t bad = shard_decode(out + i, raw, m, unit, f->limit);
        if (bad >= 0) {
            uint32_t id = (uint32_t)out[i + bad];
            return shard_refuse_id(f->path, at + i + bad, id, f->limit, f->stated, id);
        }
    }
    return 0;
}

/* The file must still be as long as it was: its header was checked then. */
int tokens_begin_use(const TokenFile *f)
{
    struct stat st;
    if (f->fd >= 0) return f->fd;
    int fd = fault_hit(FAULT_OPEN) ? -1 : open(f->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_sys("%s: opening it again", f->path);
    if (fstat(fd, &st) != 0) {
        err_sys("%s: stat", f->path);
    } else if (st.st_size != f->h.file_bytes) {
        err_set("%s: its size changed while it was in use", f->path);
    } else {
        return fd;
    }
    close(fd);
    return -1;
}

void tokens_end_use(const TokenFile *f, int fd)
{
    if (f->fd < 0) close(fd);
}

static int read_any_file(const TokenFile *f, int64_t at, int64_t n, int32_t *out)
{
    int fd = tokens_begin_use(f);
    if (fd < 0) return -1;
    int rc = read_file(f, fd, at, n, out);
    tokens_end_use(f, fd);
    return rc;
}

/* The last file that begins at or before token i of all files. */
static int find_file(const Tokens *s, int64_t i)
{
    int lo = 0, hi = s->n_file - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (s->file[mid].first <= i) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

int tokens_read(const Tokens *s, int64_t first, int64_t n, int32_t *out)
{
    CHECK(first >= 0 && n >= 0 && first <= s->len - n, "%s: tokens [%lld, +%lld) of %lld", s->name,
          (long long)first, (long long)n, (long long)s->len);
    if (s->kind == DATA_RANDOM) {
        read_random(s, first, n, out);
        return 0;
    }
    int64_t i = s->first + first, end = i + n;
    for (int k = find_file(s, i); i < end; k++) {
        const TokenFile *f = &s->file[k];
        int64_t          m = MIN(end, file_end(f)) - i;
        TRY(read_any_file(f, i - f->first, m, out));
        out += m;
        i += m;
    }
    return 0;
}

static void hash_blocks(XXH64_state_t *h, const TokenFile *f, int n_block)
{
    enum { BLOCK_BYTES = 4096 };
    char    block[BLOCK_BYTES];
    int64_t bytes = f->h.n_token * f->h.token_bytes, last = MAX(bytes - BLOCK_BYTES, 0);
    int     fd = f->fd >= 0 ? f->fd : open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    XXH64_update(h, &bytes, sizeof bytes);
    for (int i = 0; fd >= 0 && i < n_block; i++) {
        int64_t at = n_block > 1 ? last / (n_block - 1) * i : last / 2;
        ssize_t n  = pread(fd, block, (size_t)MIN(bytes - at, BLOCK_BYTES), f->h.payload_offset + at);
        if (n > 0) XXH64_update(h, block, (size_t)n);
    }
    if (fd >= 0 && fd != f->fd) close(fd);
}

uint64_t tokens_fingerprint(const Tokens *s)
{
    enum { BLOCKS = 64 };
    XXH64_state_t h;
    int64_t       part[3] = { s->kind, s->first, s->len };
    if (s->kind == DATA_RANDOM) return 0;
    XXH64_reset(&h, 0);
    XXH64_update(&h, part, sizeof part);
    for (int k = 0; k < s->n_file; k++) hash_blocks(&h, &s->file[k], MAX(BLOCKS / s->n_file, 1));
    return XXH64_digest(&h);
}

int64_t tokens_bytes(const Tokens *s)
{
    int64_t bytes = 0;
    for (int k = 0; k < s->n_file; k++) bytes += s->file[k].h.n_token * s->file[k].h.token_bytes;
    return bytes;
}

int tokens_verify(const Tokens *s)
{
    for (int k = 0; k < s->n_file; k++) {
        const TokenFile *f = &s->file[k];
        if (!f->is_shard) continue;
        int fd = tokens_begin_use(f);
        if (fd < 0) return -1;
        int rc = shard_verify_open(fd, f->path, &f->h, s->vocab);
        tokens_end_use(f, fd);
        TRY(rc);
    }
    return 0;
}

int tokens_is_separate(const Tokens *s) { return s->is_separate; }
