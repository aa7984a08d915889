/* The documents of a sequence of tokens, from the indexes of its files. */
#include "data/tokens_impl.h"

#include "base/err.h"

/* The file that holds document i of all files. */
static int find_document(const Tokens *s, int64_t i)
{
    int lo = 0, hi = s->n_file - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (s->file[mid].doc0 <= i) {
            lo = mid;
        } else {
            hi = mid - 1;
        }
    }
    return lo;
}

/* Ends of documents [first, first+n) of all files, in tokens of all files. */
static int read_ends(const Tokens *s, int64_t first, int64_t n, int64_t *end)
{
    for (int k = find_document(s, first); n > 0; k++) {
        const TokenFile *f = &s->file[k];
        int64_t          m = MIN(first + n, f->doc0 + f->h.n_doc) - first;
        if (m <= 0) continue; /* a file without documents */
        int fd = tokens_begin_use(f);
        if (fd < 0) return -1;
        int rc = shard_read_index(fd, f->path, &f->h, first - f->doc0, m, end);
        tokens_end_use(f, fd);
        TRY(rc);
        for (int64_t i = 0; i < m; i++) end[i] += f->first;
        first += m;
        end += m;
        n -= m;
    }
    return 0;
}

/* How many of the first n documents of all files end at or before a token. Negative after err_set(). */
static int64_t count_ended(const Tokens *s, int64_t n, int64_t token)
{
    int64_t lo = 0, hi = n, end;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        TRY(read_ends(s, mid, 1, &end));
        if (end <= token) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

int tokens_narrow_documents(Tokens *s, int64_t total)
{
    if (s->n_doc == 0 || (s->first == 0 && s->len == total)) return 0;
    int64_t last = count_ended(s, s->n_doc, s->first + s->len), first = 0;
    if (last < 0) return -1;
    if (s->first > 0) {
        int64_t ended = count_ended(s, s->n_doc, s->first - 1);
        if (ended < 0) return -1;
        /* The document that holds the token before the part, and maybe some of the part, belongs to the other
         * part. */
        first = ended + 1;
    }
    s->doc0  = MIN(first, last);
    s->n_doc = last - s->doc0;
    return 0;
}

int64_t tokens_documents(const Tokens *s) { return s->n_doc; }

int tokens_read_bounds(const Tokens *s, int64_t first, int64_t n, int64_t *bound)
{
    CHECK(first >= 0 && n >= 0 && first <= s->n_doc - n, "%s: documents [%lld, +%lld) of %lld", s->name,
          (long long)first, (long long)n, (long long)s->n_doc);
    int64_t i = s->doc0 + first;
    bound[0]  = 0;
    TRY(i > 0 ? read_ends(s, i - 1, n + 1, bound) : read_ends(s, 0, n, bound + 1));
    for (int64_t k = 0; k <= n; k++) bound[k] -= s->first;
    for (int64_t k = 0; k < n; k++) {
        if (bound[k] < bound[k + 1]) continue;
        return err_user("%s: damaged index: document %lld has no tokens", s->name, (long long)(first + k));
    }
    return 0;
}

int64_t tokens_end_token(const Tokens *s)
{
    int64_t token = s->n_file > 0 ? s->file[0].h.end_token : -1;
    for (int k = 1; k < s->n_file; k++) token = s->file[k].h.end_token == token ? token : -1;
    return s->kind == DATA_TOKENS ? token : -1;
}

int64_t tokens_begin_token(const Tokens *s)
{
    int64_t token = s->n_file > 0 ? s->file[0].h.begin_token : -1;
    for (int k = 1; k < s->n_file; k++) token = s->file[k].h.begin_token == token ? token : -1;
    return s->kind == DATA_TOKENS ? token : -1;
}
