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
    uint32_t ctr[4] = { (uint32_t)i, (uint32_t)(i >> 32), 0, 0x5A5A }, key[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) }, r[4];
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

int sample_text(Build *b, const SampleOptions *opt, FILE *out)
{
    const RecipeModel *m = &b->recipe.model;
    int64_t n_prompt = (int64_t)strlen(opt->prompt), pos = 0, bytes = m->vocab == 256;
    if (n_prompt < 1) return err_user("command line: --prompt: needs at least one character");
    if (n_prompt >= m->context) return err_user("command line: --prompt: longer than the model's context of %lld", (long long)m->context);
    float *logits  = malloc(tensor_bytes(b->decode.logits));
    float *scratch = malloc(tensor_bytes(b->decode.logits));
    int    rc      = logits && scratch ? 0 : err_set("out of host memory");
    for (; rc == 0 && pos < n_prompt; pos++) {
        int32_t tok = (unsigned char)opt->prompt[pos];
        rc          = decode_token(b, tok, (int32_t)pos, logits);
        put(out, tok, (int)bytes);
    }
    /* The cache holds one context; a longer text stops there. */
    for (int64_t i = 0; rc == 0 && i < opt->n_token; i++) {
        int32_t tok = pick(logits, m->vocab, opt, i, scratch);
        put(out, tok, (int)bytes);
        if (pos >= m->context) break;
        rc = decode_token(b, tok, (int32_t)pos++, logits);
    }
    fputc('\n', out);
    free(logits);
    free(scratch);
    return rc;
}
