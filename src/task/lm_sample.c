/* Sampling: prompts go through the prefill program in chunks, new tokens through the decode program.
 *
 * 1. Rows of a batch have lengths of their own. A chunk that is longer than what is left of a prompt is
 *    padded at its end: what the padding leaves in the cache is overwritten before any token sees it.
 * 2. The last chunk of a long prompt begins early instead, so that it is full. Rows that have ended are fed
 *    their last chunk again, which changes nothing. */
#include "task/lm.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "task/lm_prompt.h"
#include "task/pick.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_AT_ONCE = 64, FIRST_ROOM = 4096 };

/* One sequence. */
typedef struct {
    int32_t       *tok; /* prompt, then what was added */
    int64_t        n, n_prompt, cap;
    int64_t        first; /* the cache begins with this token */
    int            done;
    unsigned char *seen; /* by id, with a repetition penalty */
    Speaker        speaker;
    char          *text; /* of a batch: what the speaker wrote */
    size_t         text_bytes;
} Seq;

typedef struct {
    Job              *j;
    const TaskSample *opt;
    const Prompts    *prompts;
    int64_t           B, S, V, stride; /* sequences, cache rows, ids that may be picked, logits of a row */
    Seq              *seq;
    int32_t          *tok, *pos, *last; /* to upload: B*T, B, B */
    float            *logits;           /* B x stride */
    int32_t          *picked;           /* B */
    PickItem         *scratch;          /* B x stride, unless the most likely is taken */
    double            time_s;           /* prompts included */
    Arena             arena;
} Gen;

/* ---- the model ---------------------------------------------------------------------------------------- */

static int run_step(Gen *g, const NetDecode *d, int prog)
{
    Dev *dev = g->j->dev;
    TRY(dev->vt->upload(dev, LANE_COMPUTE, d->tok->data, g->tok, tensor_bytes(d->tok)));
    TRY(dev->vt->upload(dev, LANE_COMPUTE, d->pos->data, g->pos, tensor_bytes(d->pos)));
    if (d->last) TRY(dev->vt->upload(dev, LANE_COMPUTE, d->last->data, g->last, tensor_bytes(d->last)));
    TRY(prog_run(g->j->prog[prog], dev));
    TRY(dev->vt->download(dev, LANE_COMPUTE, g->logits, d->logits->data, tensor_bytes(d->logits)));
    return dev->vt->sync(dev);
}

/* Feeds tok[first..n) of the rows in `fresh`, from an empty cache; logits of what follows every row. */
static int prefill(Gen *g, const char *fresh)
{
    const Lm *lm = lm_of(g->j);
    int64_t   T = lm->prefill.T, rounds = 1;
    for (int64_t b = 0; b < g->B; b++) {
        if (fresh[b]) rounds = MAX(rounds, (g->seq[b].n - g->seq[b].first + T - 1) / T);
    }
    for (int64_t k = 0; k < rounds; k++) {
        for (int64_t b = 0; b < g->B; b++) {
            const Seq *s   = &g->seq[b];
            int64_t    len = s->n - s->first, from = MAX(len - T, 0);
            if (fresh[b]) from = MIN(k * T, from);
            for (int64_t t = 0; t < T; t++)
                g->tok[b * T + t] = from + t < len ? s->tok[s->first + from + t] : 0;
            g->pos[b]  = (int32_t)from;
            g->last[b] = (int32_t)(b * T + MIN(len - from, T) - 1);
        }
        TRY(run_step(g, &lm->prefill, lm->prog_prefill));
    }
    return 0;
}

/* Feeds the last token of every row. */
static int decode(Gen *g)
{
    const Lm *lm = lm_of(g->j);
    for (int64_t b = 0; b < g->B; b++) {
        const Seq *s = &g->seq[b];
        g->tok[b]    = s->tok[s->n - 1];
        g->pos[b]    = (int32_t)(s->n - 1 - s->first);
    }
    return run_step(g, &lm->decode, lm->prog_decode);
}

/* ---- one batch ---------------------------------------------------------------------------------------- */

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

/* One token for each row that has not ended. Rows share nothing, so threads take one each. */
static int pick_all(Gen *g, int64_t first_prompt)
{
    int bad = 0;
#pragma omp parallel for schedule(dynamic) reduction(| : bad) if (g->B > 1)
    for (int64_t b = 0; b < g->B; b++) {
        const Seq *s = &g->seq[b];
        if (s->done) continue;
        PickRow how  = { g->V, first_prompt + b, s->n - s->n_prompt, s->seen,
                        g->scratch ? g->scratch + b * g->stride : NULL };
        g->picked[b] = pick_token(g->logits + b * g->stride, g->opt, &how);
        bad |= g->picked[b] < 0;
    }
    if (!bad) return 0;
    return err_set("the model's output is not finite: training had diverged before this checkpoint");
}

/* Room for cap tokens. It grows with the text: --tokens is only an upper bound. */
static void seq_reserve(Gen *g, Seq *s, int64_t cap)
{
    int32_t *more = ARENA_ARRAY(&g->arena, int32_t, cap);
    if (s->cap > 0) memcpy(more, s->tok, sizeof *more * (size_t)s->n);
    s->tok = more;
    s->cap = cap;
}

/* Adds the picked token to a row that has not ended. */
static int extend(Gen *g, int64_t b)
{
    Seq    *s  = &g->seq[b];
    int32_t id = g->picked[b];
    if (s->n == s->cap) seq_reserve(g, s, 2 * s->cap);
    s->tok[s->n++] = id;
    if (s->seen) s->seen[id] = 1;
    if (g->opt->ends && prompts_is_end(g->prompts, id)) {
        s->done = 1;
        return 0;
    }
    TRY(speaker_put(&s->speaker, id, 1));
    s->done = s->speaker.stopped || s->n - s->n_prompt == g->opt->n_unit;
    return 0;
}

/* Prepares the next logits. When a cache is full, the last half of it is read again from an empty one: the
 * text goes on with a shorter memory. */
static int advance(Gen *g)
{
    char fresh[MOST_AT_ONCE] = { 0 };
    int  any                 = 0;
    for (int64_t b = 0; b < g->B; b++) {
        Seq *s = &g->seq[b];
        if (s->done) s->first = MAX(s->first, s->n - g->S);
        if (s->done) continue;
        s->first = seen_from(&g->j->recipe, s->tok, s->first, s->n);
        if (s->n - s->first <= g->S) continue;
        s->first = s->n - MAX(g->S / 2, 1);
        fresh[b] = 1;
        any      = 1;
    }
    return any ? prefill(g, fresh) : decode(g);
}

static int run_batch(Gen *g, int first_prompt)
{
    char fresh[MOST_AT_ONCE];
    int  active = 1;
    memset(fresh, 1, sizeof fresh);
    double begin_s = clock_now_s();
    TRY(prefill(g, fresh));
    while (active) {
        active = 0;
        TRY(pick_all(g, first_prompt));
        for (int64_t b = 0; b < g->B; b++) {
            if (g->seq[b].done) continue;
            TRY(extend(g, b));
            if (!g->seq[b].done) active = 1;
        }
        if (g->B == 1 && isatty(STDOUT_FILENO)) fflush(g->seq[0].speaker.out);
        if (active) TRY(advance(g));
    }
    g->time_s += clock_now_s() - begin_s;
    return 0;
}

/* ---- batches ------------------------------------------------------------------------------------------ */

/* Row b of a batch; prompt -1: a row that only fills the batch. */
static int seq_open(Gen *g, int64_t b, int prompt, FILE *out)
{
    Seq           *s = &g->seq[b];
    const Prompts *p = g->prompts;
    int64_t        n = prompt < 0 ? 1 : p->n[prompt];
    *s               = (Seq){ .n = n, .n_prompt = n, .done = prompt < 0 };
    seq_reserve(g, s, n + MIN(g->opt->n_unit, (int64_t)FIRST_ROOM));
    if (prompt < 0) return 0;
    memcpy(s->tok, p->id[prompt], sizeof *s->tok * (size_t)n);
    s->first = seen_from(&g->j->recipe, s->tok, MAX(n - g->S, 0), n);
    if (g->opt->repetition > 0 && g->opt->repetition != 1) {
        s->seen = ARENA_ARRAY(&g->arena, unsigned char, g->stride);
        memset(s->seen, 0, (size_t)g->stride);
        for (int64_t i = 0; i < n; i++) s->seen[s->tok[i]] = 1;
    }
    FILE *to = p->n_prompt == 1 ? out : open_memstream(&s->text, &s->text_bytes);
    if (!to) return err_sys("memory for text");
    speaker_init(&s->speaker, p, to);
    for (int64_t i = 0; i < n; i++) TRY(speaker_put(&s->speaker, s->tok[i], 0));
    return 0;
}

static int seq_close(Gen *g, Seq *s, FILE *out)
{
    int rc = 0;
    if (!s->speaker.out) return 0;
    rc = speaker_end(&s->speaker);
    if (s->speaker.out != out) {
        fclose(s->speaker.out);
        if (rc == 0) fwrite(s->text, 1, s->text_bytes, out);
        free(s->text);
    }
    return rc;
}

static void print_ids(const Seq *s, FILE *out)
{
    for (int64_t i = s->n_prompt; i < s->n; i++) fprintf(out, "%s%d", i > s->n_prompt ? " " : "", s->tok[i]);
    fputc('\n', out);
}

static int gen_batches(Gen *g, FILE *out)
{
    const Prompts *p   = g->prompts;
    Seq           *all = ARENA_ARRAY(&g->arena, Seq, p->n_prompt + g->B);
    int            rc  = 0;
    for (int at = 0; at < p->n_prompt && rc == 0; at += (int)g->B) {
        g->seq = all + at;
        for (int64_t b = 0; b < g->B && rc == 0; b++)
            rc = seq_open(g, b, at + b < p->n_prompt ? at + (int)b : -1, out);
        if (rc == 0) rc = run_batch(g, at);
        for (int64_t b = 0; b < g->B; b++) {
            int one = seq_close(g, &g->seq[b], out);
            if (rc == 0) rc = one;
        }
    }
    int64_t added = 0;
    for (int i = 0; i < p->n_prompt; i++) added += all[i].n - all[i].n_prompt;
    fflush(out); /* the rate stands behind the text, also where both go to one place */
    if (rc == 0 && g->opt->rate)
        fprintf(stderr, "%lld new tokens in %.3f s: %.1f tokens/s\n", (long long)added, g->time_s,
                (double)added / g->time_s);
    for (int i = 0; i < p->n_prompt && rc == 0 && g->opt->ids; i++) print_ids(&all[i], out);
    return rc;
}

/* Host memory that copies to and from the device like. */
static int gen_alloc(Gen *g, int64_t n_tok, int64_t n_logit)
{
    Dev *dev  = g->j->dev;
    g->tok    = dev->vt->host_alloc(dev, sizeof *g->tok * (size_t)(n_tok + 2 * g->B));
    g->logits = dev->vt->host_alloc(dev, sizeof *g->logits * (size_t)n_logit);
    if (!g->tok || !g->logits) return err_set("host memory for %lld logits", (long long)n_logit);
    g->pos  = g->tok + n_tok;
    g->last = g->pos + g->B;
    return 0;
}

static void gen_free(Gen *g)
{
    Dev *dev = g->j->dev;
    if (g->tok) dev->vt->host_free(dev, g->tok);
    if (g->logits) dev->vt->host_free(dev, g->logits);
    arena_deinit(&g->arena);
}

static int gen_run(Job *j, const TaskSample *opt, const Prompts *p, FILE *out)
{
    const Lm *lm = lm_of(j);
    Gen       g  = { .j = j, .opt = opt, .prompts = p, .B = lm->decode.B, .S = lm->decode.kcache[0]->dim[1] };
    g.stride     = tensor_cols(lm->decode.logits);
    /* Text has no other tokens, whatever room there is for them. */
    g.V = p->speech == SPEAKS_BYTES ? 256 : j->recipe.model.vocab;
    CHECK(g.B <= MOST_AT_ONCE, "%lld sequences", (long long)g.B);
    arena_init(&g.arena);
    g.picked = ARENA_ARRAY(&g.arena, int32_t, g.B);
    if (opt->temperature > 0) g.scratch = ARENA_ARRAY(&g.arena, PickItem, g.B * g.stride);
    int rc = gen_alloc(&g, g.B * lm->prefill.T, g.B * g.stride);
    if (rc == 0) rc = gen_batches(&g, out);
    gen_free(&g);
    return rc;
}

/* ---- what the task shows ------------------------------------------------------------------------------ */

static int refuse_full(const Recipe *r)
{
    if (r->model.mask != MASKING_FULL) return 0;
    return err_user("model.mask: a model trained with full predicts a token from both sides of it; it "
                    "cannot continue a text");
}

int lm_ask(Recipe *r, const TaskSample *opt)
{
    Prompts p;
    TRY(refuse_full(r));
    TRY(prompts_open(&p, r, opt));
    int64_t most   = opt->batch > 0 ? MIN(opt->batch, (int64_t)MOST_AT_ONCE) : MOST_AT_ONCE;
    r->ask.batch   = MIN((int64_t)p.n_prompt, most);
    r->ask.context = p.longest + opt->n_unit;
    prompts_close(&p);
    return 0;
}

int lm_sample(Job *j, const TaskSample *opt, FILE *out)
{
    Prompts p;
    TRY(refuse_full(&j->recipe));
    TRY(prompts_open(&p, &j->recipe, opt));
    if (p.longest > j->recipe.model.context)
        log_warn("--prompt: %lld tokens, and the model sees %lld (model.context): what comes before the last "
                 "of them has no influence",
                 (long long)p.longest, (long long)j->recipe.model.context);
    int rc = gen_run(j, opt, &p, out);
    prompts_close(&p);
    return rc;
}

/* ---- logits ------------------------------------------------------------------------------------------- */

int lm_score(Job *j, const int32_t *tok, int64_t n, LmRows put, void *ctx)
{
    const Lm *lm = lm_of(j);
    int64_t   T = lm->prefill.T, stride = tensor_cols(lm->prefill.logits);
    Gen       g  = { .j = j };
    int       rc = 0;
    CHECK(!lm->prefill.last && lm->prefill.B == 1, "the job was not made for scores");
    arena_init(&g.arena);
    g.B = 1;
    rc  = gen_alloc(&g, T, T * stride);
    for (int64_t at = 0; at < n && rc == 0; at += T) {
        int64_t from = MIN(at, MAX(n - T, 0)), end = MIN(at + T, n);
        for (int64_t t = 0; t < T; t++) g.tok[t] = from + t < n ? tok[from + t] : 0;
        g.pos[0] = (int32_t)from;
        rc       = run_step(&g, &lm->prefill, lm->prog_prefill);
        if (rc == 0) rc = put(ctx, at, end - at, g.logits + (at - from) * stride, stride);
    }
    gen_free(&g);
    return rc;
}
