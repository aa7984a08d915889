/* Logits and loss of a file of token ids: brim eval RUN --ids FILE [--logits OUT.npy]. */
#include "task/lm.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "file/npy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_BYTES = 256 << 20 };

typedef struct {
    const int32_t *id;
    int64_t        n, V;
    double         loss; /* sum over n - 1 targets */
    FILE          *npy;  /* NULL: none */
} Score;

/* Whole numbers between spaces, commas and line breaks. Returns how many; negative after err_user(). */
static int64_t read_ids(const char *path, int64_t vocab, int32_t **out)
{
    static const char between[] = " ,\t\r\n";
    char             *text;
    size_t            size;
    int64_t           n = 0, id;
    if (file_kind(path) == FILE_NONE) return err_user("command line: --ids: no such file: %s", path);
    TRY(file_read_all(path, IDS_BYTES, &text, &size));
    *out = malloc(sizeof **out * (size / 2 + 1));
    if (!*out) n = err_sys("memory for %s", path);
    for (const char *s = text + strspn(text, between); n >= 0 && s < text + size;) {
        char   shown[64];
        size_t len = strcspn(s, between);
        str_quote(shown, sizeof shown, s, len);
        if (str_parse_int(shown, &id) < 0 || id < 0 || id >= vocab) {
            n = err_user("%s: byte %lld: '%s' is not a token id from 0 to %lld", path, (long long)(s - text),
                         shown, (long long)vocab - 1);
            break;
        }
        (*out)[n++] = (int32_t)id;
        s += len;
        s += strspn(s, between);
    }
    free(text);
    if (n == 0) n = err_user("%s: has no token ids", path);
    if (n < 0) free(*out);
    return n;
}

static double row_loss(const float *logits, int64_t V, int32_t target)
{
    double max = logits[0], sum = 0;
    for (int64_t v = 1; v < V; v++) max = MAX(max, logits[v]);
    for (int64_t v = 0; v < V; v++) sum += exp(logits[v] - max);
    return log(sum) + max - logits[target];
}

static int take_rows(void *ctx, int64_t first, int64_t n, const float *logits, int64_t stride)
{
    Score *s = ctx;
    for (int64_t i = 0; i < n; i++) {
        const float *row = logits + i * stride;
        if (first + i + 1 < s->n) s->loss += row_loss(row, s->V, s->id[first + i + 1]);
        if (s->npy) TRY(npy_write(s->npy, row, s->V));
    }
    return 0;
}

int lm_ask_score(Recipe *r, const TaskScore *opt)
{
    int32_t *id;
    int64_t  n = read_ids(opt->ids, r->model.vocab, &id);
    if (n < 0) return -1;
    free(id);
    if (r->model.mask == MASKING_FULL) return err_user("model.mask: full has no logits of a next token");
    if (n > r->model.context)
        return err_user("%s: %lld ids, and the model sees %lld (model.context)", opt->ids, (long long)n,
                        (long long)r->model.context);
    r->ask = (RecipeAsk){ .batch = 1, .context = n, .all = 1 };
    return 0;
}

int lm_score_file(Job *j, const TaskScore *opt, FILE *out)
{
    int32_t *id;
    Score    s = { .V = j->recipe.model.vocab };
    s.n        = read_ids(opt->ids, s.V, &id);
    if (s.n < 0) return -1;
    s.id   = id;
    int rc = 0;
    if (opt->logits) {
        s.npy = npy_begin(opt->logits, s.n, s.V);
        rc    = s.npy ? 0 : -1;
    }
    if (rc == 0) rc = lm_score(j, id, s.n, take_rows, &s);
    if (rc == 0 && s.npy) rc = npy_publish(&s.npy, opt->logits);
    file_discard(&s.npy);
    free(id);
    if (rc < 0) return -1;
    if (s.n > 1) {
        double loss = s.loss / (double)(s.n - 1);
        fprintf(out, "loss %.6f over %lld tokens, perplexity %.4f\n", loss, (long long)s.n - 1, exp(loss));
    }
    if (opt->logits) fprintf(out, "%s: %lld x %lld logits\n", opt->logits, (long long)s.n, (long long)s.V);
    return 0;
}
