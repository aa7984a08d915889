#include "run/sample.h"

#include "base/err.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Feeds one token at position pos; logits of the next one arrive in out. */
static int decode_token(Build *b, int32_t tok, int32_t pos, float *out)
{
    Dev *dev = b->dev;
    TRY(dev->vt->upload(dev, LANE_COMPUTE, b->decode.tok->data, &tok, sizeof tok));
    TRY(dev->vt->upload(dev, LANE_COMPUTE, b->decode.pos->data, &pos, sizeof pos));
    TRY(prog_run(b->step1, dev));
    TRY(dev->vt->download(dev, LANE_COMPUTE, out, b->decode.logits->data, tensor_bytes(b->decode.logits)));
    return dev->vt->sync(dev);
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

static int32_t pick(const float *logits, int64_t V, const SampleOptions *opt, int64_t i, float *scratch)
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
static int prefill(Build *b, const int32_t *tok, int64_t first, int64_t n, float *logits)
{
    for (int64_t i = first; i < n; i++) TRY(decode_token(b, tok[i], (int32_t)(i - first), logits));
    return 0;
}

/* tok holds n_prompt tokens and room for n_token more. When the context is full, the last half of it is read again from an
 * empty cache: the text goes on with a shorter memory. */
static int generate(Build *b, const SampleOptions *opt, int32_t *tok, int64_t n_prompt, float *logits,
                    float *scratch, FILE *out)
{
    int64_t T = b->recipe.model.context, n = n_prompt, first = 0;
    int     bytes = b->recipe.model.vocab == 256;
    TRY(prefill(b, tok, 0, n, logits));
    for (int64_t i = 0; i < n; i++) put(out, tok[i], bytes);
    for (int64_t i = 0; i < opt->n_token; i++) {
        tok[n] = pick(logits, b->recipe.model.vocab, opt, i, scratch);
        put(out, tok[n++], bytes);
        if (n - first <= T) {
            TRY(decode_token(b, tok[n - 1], (int32_t)(n - 1 - first), logits));
        } else {
            first = n - MAX(T / 2, 1);
            TRY(prefill(b, tok, first, n, logits));
        }
    }
    fputc('\n', out);
    return 0;
}

int sample_text(Build *b, const SampleOptions *opt, FILE *out)
{
    int64_t n_prompt = (int64_t)strlen(opt->prompt), T = b->recipe.model.context;
    if (n_prompt < 1) return err_user("command line: --prompt: needs at least one character");
    if (n_prompt >= T)
        return err_user("command line: --prompt: longer than the model's context of %lld", (long long)T);
    float   *logits  = malloc(tensor_bytes(b->decode.logits));
    float   *scratch = malloc(tensor_bytes(b->decode.logits));
    int32_t *tok     = malloc(sizeof *tok * (size_t)(n_prompt + opt->n_token));
    int      rc      = logits && scratch && tok ? 0 : err_set("out of host memory");
    for (int64_t i = 0; rc == 0 && i < n_prompt; i++) tok[i] = (unsigned char)opt->prompt[i];
    if (rc == 0) rc = generate(b, opt, tok, n_prompt, logits, scratch, out);
    free(logits);
    free(scratch);
    free(tok);
    return rc;
}
