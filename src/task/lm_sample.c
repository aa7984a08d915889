#include "task/lm.h"

#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the prompt --------------------------------------------------------------------------------------- */

static int speaks_bytes(const Recipe *r)
{
    return (r->data.kind == DATA_TEXT && !r->data.tokenizer[0]) ||
           (r->data.kind == DATA_RANDOM && r->model.vocab == 256);
}

/* Takes one id off *s, spaces before it included. 1: done; 0: there is none; negative after err_user(). */
static int next_id(const char **s, int64_t vocab, int32_t *out)
{
    char    shown[64];
    int64_t id;
    *s += strspn(*s, " ");
    size_t n = strcspn(*s, " ");
    if (n == 0) return 0;
    str_quote(shown, sizeof shown, *s, n);
    if (str_parse_int(shown, &id) < 0 || id < 0 || id >= vocab) {
        return err_user("command line: --prompt: '%s' is not a token id: this model was not trained on text, "
                        "its prompt is numbers from 0 to %lld, separated by spaces",
                        shown, (long long)vocab - 1);
    }
    *s += n;
    *out = (int32_t)id;
    return 1;
}

/* Writes the tokens of a prompt to tok, unless that is NULL, and returns how many they are. Negative after
 * err_user(). */
static int64_t read_prompt(const Recipe *r, const char *prompt, int32_t *tok)
{
    int64_t n     = 0;
    int     bytes = speaks_bytes(r), more = 1;
    if (!prompt && !bytes) {
        if (tok) tok[0] = (int32_t)MAX(r->data.document_token, 0);
        return 1;
    }
    if (!prompt) prompt = "\n";
    while (more > 0) {
        int32_t id = (unsigned char)*prompt;
        more       = bytes ? id != 0 : next_id(&prompt, r->model.vocab, &id);
        if (more < 0) return -1;
        if (more && tok) tok[n] = id;
        n += more;
        prompt += bytes;
    }
    if (n < 1)
        return err_user("command line: --prompt: needs at least one %s", bytes ? "character" : "token id");
    return n;
}

/* ---- the model ---------------------------------------------------------------------------------------- */

/* Feeds one token at position pos; logits of the next one arrive in out. */
static int decode_token(Job *j, int32_t tok, int32_t pos, float *out)
{
    Dev      *dev = j->dev;
    const Lm *lm  = lm_of(j);
    TRY(dev->vt->upload(dev, LANE_COMPUTE, lm->decode.tok->data, &tok, sizeof tok));
    TRY(dev->vt->upload(dev, LANE_COMPUTE, lm->decode.pos->data, &pos, sizeof pos));
    TRY(prog_run(j->prog[lm->step1], dev));
    TRY(dev->vt->download(dev, LANE_COMPUTE, out, lm->decode.logits->data, tensor_bytes(lm->decode.logits)));
    return dev->vt->sync(dev);
}

/* Negative after err_set() if a logit is not finite. */
static int check_logits(const float *logits, int64_t V)
{
    for (int64_t v = 0; v < V; v++) {
        if (!isfinite(logits[v]))
            return err_set("the model's output is not finite: training had diverged before this checkpoint");
    }
    return 0;
}

static double uniform(uint64_t seed, int64_t i)
{
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0x5A5A };
    uint32_t key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, r[4];
    philox4x32(r, ctr, key);
    return (r[0] + 0.5) * 0x1p-32;
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int32_t pick(const float *logits, int64_t V, const TaskSample *opt, int64_t i, float *scratch)
{
    int32_t best = 0;
    for (int64_t v = 1; v < V; v++) {
        if (logits[v] > logits[best]) best = (int32_t)v;
    }
    if (opt->temperature <= 0) return best;
    float floor = -INFINITY;
    if (opt->top_k > 0 && opt->top_k < V) {
        memcpy(scratch, logits, sizeof *logits * (size_t)V);
        qsort(scratch, (size_t)V, sizeof *scratch, descending);
        floor = scratch[opt->top_k - 1];
    }
    double sum = 0, max = logits[best];
    for (int64_t v = 0; v < V; v++) {
        double p   = logits[v] >= floor ? exp((logits[v] - max) / opt->temperature) : 0;
        scratch[v] = (float)p;
        sum += scratch[v];
    }
    double u = uniform(opt->seed, i) * sum;
    for (int64_t v = 0; v < V; v++) {
        u -= scratch[v];
        if (u < 0) return (int32_t)v;
    }
    return best;
}

static void put(FILE *out, int32_t tok, int bytes)
{
    if (bytes) {
        fputc(tok, out);
    } else {
        fprintf(out, "%d ", tok);
    }
}

/* Feeds tok[first..n) from an empty cache; logits of what follows. */
static int prefill(Job *j, const int32_t *tok, int64_t first, int64_t n, float *logits)
{
    for (int64_t i = first; i < n; i++) TRY(decode_token(j, tok[i], (int32_t)(i - first), logits));
    return 0;
}

/* Where the part of tok[first..n) begins that its last token sees. Decoding is causal, so a document is kept
 * apart from those before it by an empty cache. As in training (data/loader.c) a document token is the last
 * of its own document. Positions count from the document's first token, as in a window that begins there. */
static int64_t seen_from(const Recipe *r, const int32_t *tok, int64_t first, int64_t n)
{
    if (r->model.mask != MASKING_DOCUMENT) return first;
    int64_t i = n - 1;
    while (i > first && tok[i - 1] != r->data.document_token) i--;
    return i;
}

/* tok holds n_prompt tokens and room for n_token more. When the context is full, the last half of it is read
 * again from an empty cache: the text goes on with a shorter memory. */
static int generate(Job *j, const TaskSample *opt, int32_t *tok, int64_t n_prompt, float *logits,
                    float *scratch, FILE *out)
{
    const Recipe *r = &j->recipe;
    int64_t       T = r->model.context, n = n_prompt, first = seen_from(r, tok, MAX(n - T, 0), n);
    int           bytes = speaks_bytes(r);
    /* Text has no other tokens, whatever room there is for them. */
    int64_t V = bytes ? 256 : r->model.vocab;
    TRY(prefill(j, tok, first, n, logits));
    TRY(check_logits(logits, V));
    for (int64_t i = 0; i < n; i++) put(out, tok[i], bytes);
    for (int64_t i = 0; i < opt->n_unit; i++) {
        tok[n] = pick(logits, V, opt, i, scratch);
        put(out, tok[n++], bytes);
        first = seen_from(r, tok, first, n);
        if (n - first <= T) {
            TRY(decode_token(j, tok[n - 1], (int32_t)(n - 1 - first), logits));
        } else {
            first = n - MAX(T / 2, 1);
            TRY(prefill(j, tok, first, n, logits));
        }
        TRY(check_logits(logits, V));
    }
    fputc('\n', out);
    return 0;
}

int lm_sample(Job *j, const TaskSample *opt, FILE *out)
{
    if (j->recipe.model.mask == MASKING_FULL) {
        return err_user("model.mask: a model trained with full predicts a token from both sides of it; it "
                        "cannot continue a text");
    }
    int64_t n_prompt = read_prompt(&j->recipe, opt->prompt, NULL);
    if (n_prompt < 0) return -1;
    if (n_prompt > j->recipe.model.context)
        log_warn("--prompt: %lld tokens, and the model sees %lld (model.context): what comes before the last "
                 "of them has no influence",
                 (long long)n_prompt, (long long)j->recipe.model.context);
    float   *logits  = malloc(tensor_bytes(lm_of(j)->decode.logits));
    float   *scratch = malloc(tensor_bytes(lm_of(j)->decode.logits));
    int32_t *tok     = malloc(sizeof *tok * (size_t)(n_prompt + opt->n_unit));
    int      rc      = logits && scratch && tok ? 0 : err_set("out of host memory");
    if (rc == 0) {
        read_prompt(&j->recipe, opt->prompt, tok);
        rc = generate(j, opt, tok, n_prompt, logits, scratch, out);
    }
    free(logits);
    free(scratch);
    free(tok);
    return rc;
}
