/* Logits and loss of a file of token ids: brim eval RUN --ids FILE [--logits OUT.npy]. */
#include "task/lm.h"

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "file/npy.h"

#include <limits.h>
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
    const char       *bad       = "";
    char             *text, shown[64];
    size_t            size;
    if (file_kind(path) == FILE_NONE) return err_user("command line: --ids: %s: no such file", path);
    TRY(file_read_all(path, IDS_BYTES, &text, &size));
    *out      = malloc(sizeof **out * (size / 2 + 1));
    int64_t n = *out ? str_parse_ids(text, size, between, vocab, *out, &bad) : err_sys("memory for %s", path);
    if (n < 0 && *out) {
        str_quote(shown, sizeof shown, bad, strcspn(bad, between));
        err_user("%s: byte %lld: '%s' is not a token id from 0 to %lld", path, (long long)(bad - text), shown,
                 (long long)vocab - 1);
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

static int check_folder(const char *path)
{
    char folder[PATH_MAX];
    if (file_folder_of(path, folder, sizeof folder) == 0 && file_kind(folder) == FILE_FOLDER) return 0;
    return err_user("command line: --logits: %s: no such folder", folder);
}

static void print_score(const Score *s, const TaskScore *opt, FILE *out)
{
    double loss = s->n > 1 ? s->loss / (double)(s->n - 1) : NAN;
    if (opt->json) {
        JsonOut o;
        json_out_init_file(&o, out);
        json_out_object(&o, NULL);
        json_out_num(&o, "loss", loss);
        json_out_num(&o, "perplexity", exp(loss));
        json_out_int(&o, "targets", s->n - 1);
        json_out_str(&o, "logits", opt->logits);
        json_out_end(&o);
        return;
    }
    if (s->n > 1)
        fprintf(out, "loss %.6f over %lld tokens, perplexity %.4f\n", loss, (long long)s->n - 1, exp(loss));
    if (opt->logits) fprintf(out, "%s: %lld x %lld logits\n", opt->logits, (long long)s->n, (long long)s->V);
}

int lm_ask_score(Recipe *r, const TaskScore *opt)
{
    int32_t *id;
    int64_t  n = read_ids(opt->ids, r->model.vocab, &id);
    if (n < 0) return -1;
    free(id);
    if (n == 1 && !opt->logits)
        return err_user("%s: one id has no next one to predict: two or more have a loss", opt->ids);
    if (opt->logits) TRY(check_folder(opt->logits));
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
    print_score(&s, opt, out);
    return 0;
}
