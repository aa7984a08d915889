/* Answers from latents, and what they say about the encoder.
 *
 *     prefill   encode, then [latents | anchor] through the caches; the first token
 *     decode    x L-1: one token more for every sample
 *     score     on the host: exact match and F1 of the answers' words, as SQuAD counts them; first tokens
 *     add       the scores go to their slots
 *
 * Signs of collapse, of each evaluation: how many different answers there are; the mean cosine between
 * different samples' latents, and between different latents of one sample; the effective rank of latents. The
 * first evaluation of a new run is not judged: little has been learned then. */
#include "task/latent.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "prog/record.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { TEXT_BYTES = 4096, WORDS = 512, RANK_ROWS = 64 };

/* ---- declaring ---------------------------------------------------------------------------------------- */

static Tensor *declare_ints(Job *j, const char *name, int64_t n)
{
    return job_declare_state(j, name, DT_I32, 1, &n, 0);
}

void latent_declare_answers(Job *j)
{
    Latent          *t = latent_of(j);
    const PairShape *s = &t->s;
    int64_t          B = j->fields.B, tok[2] = { B, 1 }, said[2] = { s->L, B }, score[2] = { 3, B },
            pooled[2]  = { B * s->M, j->recipe.encoder.width };
    t->prefix_row      = declare_ints(j, "prefix rows", B * (s->M + s->A));
    t->prefix_x_row    = declare_ints(j, "prefix latents", B * (s->M + s->A));
    t->prefix_end      = declare_ints(j, "prefix ends", B);
    t->turn            = declare_ints(j, "turn", 1);
    t->classes         = declare_ints(j, "classes", 2);
    t->decode.pos      = declare_ints(j, "answer position", 1);
    t->decode.tok      = job_declare_state(j, "answer token", DT_I32, 2, tok, 0);
    t->said            = job_declare_state(j, "answers", DT_I32, 2, said, 0);
    t->pooled          = job_declare_state(j, "pooled latents", DT_F32, 2, pooled, 0);
    t->score           = job_declare_state(j, "scores", DT_F32, 2, score, 0);
    int64_t latents[2] = { B * s->M, t->model.width };
    t->latents        = j->parts & JOB_SAMPLE ? job_declare_state(j, "latents", DT_F32, 2, latents, 0) : NULL;
    int64_t logits[2] = { B, net_vocab_stored(&t->model) };
    t->decode.logits =
        j->parts & JOB_SAMPLE ? job_declare_state(j, "answer logits", DT_F32, 2, logits, 0) : NULL;
    net_declare_caches(&t->llm, &j->store, &t->decode, B, s->student);
}

int latent_upload_answers(Job *j)
{
    const Latent    *t = latent_of(j);
    const PairShape *s = &t->s;
    int64_t          B = j->fields.B, P = s->M + s->A, n = B * P;
    int32_t         *v = mem_alloc(sizeof *v * (size_t)MAX(n, 2));
    if (!v) return err_sys("memory for rows");
    for (int64_t i = 0; i < n; i++) v[i] = (int32_t)(i / P * s->student + i % P);
    int rc = job_upload(j, t->prefix_row, v, tensor_bytes(t->prefix_row));
    for (int64_t i = 0; i < n; i++) v[i] = i % P < s->M ? (int32_t)(i / P * s->M + i % P) : -1;
    if (rc == 0) rc = job_upload(j, t->prefix_x_row, v, tensor_bytes(t->prefix_x_row));
    for (int64_t b = 0; b < B; b++) v[b] = (int32_t)(b * P + P - 1);
    if (rc == 0) rc = job_upload(j, t->prefix_end, v, tensor_bytes(t->prefix_end));
    v[0] = 0;
    v[1] = (int32_t)t->model.vocab;
    if (rc == 0) rc = job_upload(j, t->classes, v, tensor_bytes(t->classes));
    free(v);
    return rc;
}

/* ---- recording ---------------------------------------------------------------------------------------- */

/* The most likely token of every sample goes to decode.tok and to said[turn]. */
static void record_pick(Job *j, Prog *p, Tensor *h)
{
    Latent *t = latent_of(j);
    Tensor *w = net_head_weight(&t->llm);
    int64_t B = j->fields.B, dim[2] = { B, tensor_rows(w) };
    Tensor *logits = prog_tensor(p, "logits", j->choice.compute, 2, dim);
    prog_at(p, -1, -1, "answer head");
    rec_linear_fwd(p, (LinearFwd){ .y = logits, .x = h, .w = w });
    prog_at(p, -1, -1, "answer token");
    rec_sample_cat(p, (SampleCat){ .action  = t->decode.tok,
                                   .logp    = prog_tensor(p, "logp", DT_F32, 1, &B),
                                   .entropy = prog_tensor(p, "entropy", DT_F32, 1, &B),
                                   .logits  = logits,
                                   .seg     = t->classes,
                                   .state   = j->state,
                                   .sample0 = j->sample0,
                                   .greedy  = 1 });
    rec_put(p, (Put){ .y = { t->said }, .x = { t->decode.tok }, .t = t->turn });
    rec_tick(p, (Tick){ .t = t->turn, .modulo = (int)t->s.L });
    if (t->decode.logits) rec_cast(p, (Cast){ .y = t->decode.logits, .x = logits });
}

static int record_prefill(Job *j)
{
    Latent          *t = latent_of(j);
    const PairShape *s = &t->s;
    Prog            *p = job_begin(j, "prefill");
    int64_t B = j->fields.B, P = s->M + s->A, n = B * P, dim[2] = { B, t->model.width }, one[2] = { n, 1 };
    Tensor *tok  = prog_tensor(p, "prefix", DT_I32, 2, one),
           *end  = prog_tensor(p, "end", j->choice.compute, 2, dim);
    EncoderOut z = latent_record_encoder(j, p);
    prog_at(p, -1, -1, "prefix");
    rec_cast(p, (Cast){ .y = t->pooled, .x = z.pooled });
    if (t->latents) rec_cast(p, (Cast){ .y = t->latents, .x = z.latents });
    rec_fill(p, (Fill){ .y = t->turn });
    rec_fill(p, (Fill){ .y = t->decode.pos });
    rec_rows_fwd(p, (RowsFwd){ .y = tok, .x = j->field[PAIR_TOK], .index = t->prefix_row });
    Tensor *x   = latent_record_x(j, p, z.latents, t->prefix_x_row, tok, P);
    NetRun  run = { .p = p, .batch = &(NetBatch){ .B = B, .T = P }, .mode = NET_EVAL, .decode = &t->decode };
    Tensor *h   = net_record_trunk(&t->llm, &run, x);
    prog_at(p, -1, -1, "prefix end");
    rec_rows_fwd(p, (RowsFwd){ .y = end, .x = h, .index = t->prefix_end });
    record_pick(j, p, end);
    rec_fill(p, (Fill){ .y = t->decode.pos, .value = (float)P });
    return job_end(j, p, 0);
}

static int record_decode(Job *j)
{
    Latent    *t      = latent_of(j);
    const Net *net    = &t->llm;
    Prog      *p      = job_begin(j, "decode");
    Param     *pos    = param_find(&net->table, "pos.weight");
    int64_t    dim[3] = { j->fields.B, 1, t->model.width };
    Tensor    *x      = prog_tensor(p, "embedding", j->choice.compute, 3, dim);
    prog_at(p, -1, -1, "answer embedding");
    rec_embed_fwd(p, (EmbedFwd){ .y    = x,
                                 .tok  = t->decode.tok,
                                 .wte  = param_find(&net->table, "embed.weight")->w,
                                 .wpe  = pos ? pos->w : NULL,
                                 .pos0 = pos ? t->decode.pos : NULL });
    NetBatch batch = { .B = j->fields.B, .T = 1 };
    NetRun   run   = { .p = p, .batch = &batch, .mode = NET_EVAL, .decode = &t->decode };
    record_pick(j, p, net_record_trunk(net, &run, x));
    rec_tick(p, (Tick){ .t = t->decode.pos, .modulo = INT32_MAX });
    return job_end(j, p, 0);
}

/* Scores of the samples of a batch, added up. */
static int record_scores(Job *j)
{
    static const int slot[3] = { PAIR_EVAL_EM, PAIR_EVAL_F1, PAIR_EVAL_HIT };
    Prog            *p       = job_begin(j, "scores");
    prog_at(p, -1, -1, "scores");
    for (int i = 0; i < 3; i++) {
        Tensor *row = prog_rows(p, latent_of(j)->score, i, 1);
        rec_loss_add(p, (LossAdd){ .state = j->state, .loss = row, .slot = slot[i] });
    }
    return job_end(j, p, 0);
}

void latent_record_answers(Job *j)
{
    Latent *t       = latent_of(j);
    t->prog_prefill = record_prefill(j);
    t->prog_decode  = record_decode(j);
    t->prog_scores  = record_scores(j);
}

/* ---- exact match and F1 ------------------------------------------------------------------------------- */

typedef struct {
    const char *word[WORDS];
    int         n;
} Words;

/* Words in lower case, without punctuation and articles; text is cut up. */
static void split_words(char *text, Words *w)
{
    char *to = text, *save = NULL;
    for (char *from = text; *from; from++) {
        if (!ispunct((unsigned char)*from)) *to++ = (char)tolower((unsigned char)*from);
    }
    *to  = '\0';
    w->n = 0;
    for (char *s = strtok_r(text, " \t\r\n", &save); s && w->n < WORDS;
         s       = strtok_r(NULL, " \t\r\n", &save)) {
        if (strcmp(s, "a") != 0 && strcmp(s, "an") != 0 && strcmp(s, "the") != 0) w->word[w->n++] = s;
    }
}

static double f1_of(const Words *said, const Words *gold)
{
    int common = 0, used[WORDS] = { 0 };
    for (int i = 0; i < said->n; i++) {
        for (int k = 0; k < gold->n; k++) {
            if (used[k] || strcmp(said->word[i], gold->word[k]) != 0) continue;
            used[k] = 1;
            common++;
            break;
        }
    }
    if (said->n == 0 || gold->n == 0) return said->n == gold->n;
    return 2.0 * common / (said->n + gold->n);
}

static int same_words(const Words *a, const Words *b)
{
    int same = a->n == b->n;
    for (int i = 0; i < a->n && same; i++) same = strcmp(a->word[i], b->word[i]) == 0;
    return same;
}

typedef struct {
    int    match;
    double f1;
} Score;

/* ---- collapse ----------------------------------------------------------------------------------------- */

static double cosine(const float *a, const float *b, int64_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 1;
}

/* Eigenvalues of a symmetric n x n matrix, left on its diagonal: Jacobi's rotations. */
static void eigenvalues(double *a, int n)
{
    enum { SWEEPS = 12 };
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        for (int p = 0; p < n; p++) {
            for (int q = p + 1; q < n; q++) {
                double pq = a[p * n + q];
                if (fabs(pq) < 1e-300) continue;
                double theta = (a[q * n + q] - a[p * n + p]) / (2 * pq);
                double t     = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
                double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int k = 0; k < n; k++) {
                    double x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y;
                    a[k * n + q] = s * x + c * y;
                }
                for (int k = 0; k < n; k++) {
                    double x = a[p * n + k], y = a[q * n + k];
                    a[p * n + k] = c * x - s * y;
                    a[q * n + k] = s * x + c * y;
                }
            }
        }
    }
}

/* Row i of n, taken evenly from n_row of them, each of another latent than the one before. */
static const float *spread_row(const float *rows, int64_t n_row, int64_t width, int n, int i)
{
    return rows + (i * n_row / n + i % (n_row / n)) * width;
}

/* exp of the entropy of the shares that the directions have in the spread of n rows: 1 if all lie on a line,
 * up to n - 1. */
static double effective_rank(const float *rows, int64_t n_row, int64_t width)
{
    static const double tiny = 1e-12;
    int                 n    = (int)MIN(n_row, RANK_ROWS);
    double *mean = mem_zeroed((size_t)width, sizeof *mean), *gram = mem_zeroed((size_t)(n * n), sizeof *gram);
    double  sum = 0, entropy = 0;
    if (!mean || !gram) n = 0;
    for (int i = 0; i < n; i++) {
        const float *a = spread_row(rows, n_row, width, n, i);
        for (int64_t k = 0; k < width; k++) mean[k] += (double)a[k] / n;
    }
    for (int i = 0; i < n * n; i++) {
        const float *a = spread_row(rows, n_row, width, n, i / n);
        const float *b = spread_row(rows, n_row, width, n, i % n);
        for (int64_t k = 0; k < width; k++) gram[i] += ((double)a[k] - mean[k]) * ((double)b[k] - mean[k]);
    }
    if (n > 0) eigenvalues(gram, n);
    for (int i = 0; i < n; i++) sum += MAX(gram[i * n + i], 0);
    for (int i = 0; i < n && sum > tiny; i++) {
        double share = MAX(gram[i * n + i], 0) / sum;
        if (share > tiny) entropy -= share * log(share);
    }
    free(mean);
    free(gram);
    return exp(entropy);
}

static void note_latents(LatentWatch *w, const Latent *t, const float *pooled, int64_t n)
{
    int64_t M = t->s.M, d = t->enc.shape.width;
    double  between = 0, within = 0;
    int64_t n_between = 0, n_within = 0;
    for (int64_t b = 0; b + 1 < n; b++, n_between++)
        between += cosine(pooled + b * M * d, pooled + (b + 1) * M * d, M * d);
    for (int64_t b = 0; b < n && M > 1; b++) {
        for (int64_t m = 0; m + 1 < M; m++, n_within++)
            within += cosine(pooled + (b * M + m) * d, pooled + (b * M + m + 1) * d, d);
    }
    if (n_between == 0) return;
    w->n_batch++;
    w->between += between / (double)n_between;
    w->within += n_within ? within / (double)n_within : 0;
    w->rank += effective_rank(pooled, n * M, d);
}

static void note_text(LatentTexts *t, const char *text)
{
    uint64_t hash = XXH64(text, strlen(text), 0);
    int64_t  i    = 0;
    while (i < t->n && t->hash[i] != hash) i++;
    if (i == t->n) t->hash[t->n++] = hash;
}

/* Once a table is full, no further answer is counted. */
static void note_answer(LatentWatch *w, const char *said, const char *gold)
{
    if (MAX(w->said.n, w->gold.n) == ARRAY_LEN(w->said.hash)) return;
    w->n_sample++;
    note_text(&w->said, said);
    note_text(&w->gold, gold);
}

/* ---- scoring a batch ---------------------------------------------------------------------------------- */

typedef struct {
    int64_t  sample0;
    int32_t *said, *target, *n_byte, *other; /* [L,B], [B,L], [B], [B,G] */
    float   *pooled, *score;
} Batch;

static int download_batch(Job *j, Batch *x)
{
    Latent          *t = latent_of(j);
    const PairShape *s = &t->s;
    size_t B = (size_t)j->fields.B, L = (size_t)s->L, G = (size_t)s->G, pooled = tensor_bytes(t->pooled);
    x->said = mem_alloc(sizeof(int32_t) * (2 * L + 1 + G) * B + pooled + 3 * sizeof(float) * B);
    if (!x->said) return err_sys("memory for answers");
    x->target = x->said + L * B;
    x->n_byte = x->target + L * B;
    x->other  = x->n_byte + B;
    x->pooled = (float *)(x->other + G * B);
    x->score  = (float *)((char *)x->pooled + pooled);
    memset(x->score, 0, 3 * sizeof(float) * B);
    TRY(job_download(j, j->sample0, &x->sample0, sizeof x->sample0));
    TRY(job_download(j, t->said, x->said, sizeof(int32_t) * L * B));
    TRY(job_download(j, j->field[PAIR_TARGET], x->target, sizeof(int32_t) * L * B));
    TRY(job_download(j, j->field[PAIR_N_BYTES], x->n_byte, sizeof(int32_t) * B));
    if (G > 0) TRY(job_download(j, j->field[PAIR_OTHER], x->other, sizeof(int32_t) * G * B));
    return job_download(j, t->pooled, x->pooled, pooled);
}

/* Of several answers that are right, the one that is nearest counts. */
static int score_text(Latent *t, const Words *said, const int32_t *gold, int64_t n, Score *out)
{
    char  text[TEXT_BYTES];
    Words words;
    TRY(pair_text_decode(&t->text, gold, n, text, sizeof text));
    split_words(text, &words);
    out->match = MAX(out->match, same_words(said, &words));
    out->f1    = MAX(out->f1, f1_of(said, &words));
    return 0;
}

static int score_sample(Job *j, Batch *x, int64_t b)
{
    Latent  *t = latent_of(j);
    int64_t  B = j->fields.B, L = t->s.L, n = 0;
    int32_t  ids[TEXT_BYTES];
    char     said[TEXT_BYTES], gold[TEXT_BYTES];
    Words    words;
    Score    score  = { 0, 0 };
    int32_t *target = x->target + b * L, *other = x->other + b * t->s.G;
    while (n < L && target[n] >= 0) n++;
    /* Where answers have no end, they are as long as what they are compared with. */
    int64_t m = t->text.end >= 0 ? L : n;
    for (int64_t i = 0; i < MIN(m, TEXT_BYTES); i++) ids[i] = x->said[i * B + b];
    TRY(pair_text_decode(&t->text, ids, MIN(m, TEXT_BYTES), said, sizeof said));
    TRY(pair_text_decode(&t->text, target, n, gold, sizeof gold));
    note_answer(&t->watch, said, gold);
    split_words(said, &words);
    TRY(score_text(t, &words, target, n, &score));
    for (int64_t at = 0, end; at < t->s.G && other[at] >= 0; at = end + 1) {
        for (end = at; other[end] >= 0;) end++;
        TRY(score_text(t, &words, other + at, end - at, &score));
    }
    x->score[b]         = (float)score.match;
    x->score[B + b]     = (float)score.f1;
    x->score[2 * B + b] = n > 0 && x->said[b] == target[0];
    return 0;
}

/* A new evaluation begins with its first batch on this rank. */
static void begin_watch(Job *j, const Batch *x)
{
    LatentWatch *w = &latent_of(j)->watch;
    if (x->sample0 >= j->fields.B * MAX(j->choice.world, 1)) return;
    int64_t n_eval = w->n_eval + 1;
    memset(w, 0, sizeof *w);
    w->n_eval = n_eval;
}

static int score_batch(Job *j, int64_t turn)
{
    Latent *t  = latent_of(j);
    Batch   x  = { 0 };
    int     rc = download_batch(j, &x);
    int64_t n  = 0;
    if (rc == 0) begin_watch(j, &x);
    for (; rc == 0 && n < j->fields.B && x.n_byte[n] > 0; n++) rc = score_sample(j, &x, n);
    if (rc == 0) note_latents(&t->watch, t, x.pooled, n);
    if (rc == 0) rc = job_upload(j, t->score, x.score, tensor_bytes(t->score));
    free(x.said);
    return rc;
}

void latent_schedule_eval(Job *j, int eval)
{
    const Latent *t = latent_of(j);
    Schedule     *s = &j->eval;
    schedule_add(s, (ScheduleRow){ .name = "eval", .times = 1, .prog = eval, .feeds = 1 });
    schedule_add(s, (ScheduleRow){ .name = "prefill", .times = 1, .prog = t->prog_prefill });
    if (t->s.L > 1)
        schedule_add(s, (ScheduleRow){ .name = "decode", .times = t->s.L - 1, .prog = t->prog_decode });
    schedule_add(s, (ScheduleRow){ .name = "score", .times = 1, .prog = -1, .host = score_batch });
    schedule_add(s, (ScheduleRow){ .name = "scores", .times = 1, .prog = t->prog_scores });
}

/* ---- what an evaluation says -------------------------------------------------------------------------- */

/* Latents that agree to this cosine carry nothing: LatentWire's collapsed encoder had 0.999. */
static const double ALIKE = 0.995, SAME_PROMPT = 0.999, FEW_ANSWERS = 0.02;

int latent_after_load(Job *j)
{
    latent_of(j)->watch.n_eval = 1;
    return 0;
}

static void judge(const Job *j)
{
    LatentWatch *w = &latent_of(j)->watch;
    double       n = (double)MAX(w->n_batch, 1), within = w->within / n, between = w->between / n;
    if (w->judged || (w->n_eval < 2 && job_trains(j))) return;
    w->judged = 1;
    if (within > ALIKE)
        log_warn(
            "COLLAPSE: the latents of a sample are all alike (mean cosine %.4f): the pooler's queries do "
            "not differ",
            within);
    if (between > SAME_PROMPT)
        log_warn("COLLAPSE: different prompts have the same latents (mean cosine %.4f): the encoder says "
                 "nothing about the prompt",
                 between);
    if (w->n_sample >= 32 && w->gold.n > 1 && (double)w->said.n <= MAX(1, FEW_ANSWERS * (double)w->gold.n))
        log_warn("COLLAPSE: %lld samples have %lld different answer%s, and should have %lld",
                 (long long)w->n_sample, (long long)w->said.n, str_plural(w->said.n), (long long)w->gold.n);
}

int latent_also(const TaskEval *e, const Recipe *r, TaskNumber *out)
{
    int n    = 0;
    out[n++] = (TaskNumber){ "perplexity", exp(e->value[PAIR_EVAL_LOSS]) };
    if (!e->job) return n;
    const LatentWatch *w    = &latent_of(e->job)->watch;
    double             many = (double)MAX(w->n_batch, 1);
    judge(e->job);
    out[n++] = (TaskNumber){ "distinct", (double)w->said.n / (double)MAX(w->n_sample, 1) };
    out[n++] = (TaskNumber){ "cosine", w->between / many };
    out[n++] = (TaskNumber){ "alike", w->within / many };
    out[n++] = (TaskNumber){ "rank", w->rank / many };
    return n;
}

void latent_print_eval(const TaskEval *e, const Recipe *r, FILE *out)
{
    TaskNumber also[TASK_NUMBERS];
    int        n = latent_also(e, r, also);
    fprintf(out, "validation loss %.4f over %lld answer token%s", e->value[PAIR_EVAL_LOSS],
            (long long)e->n_target, str_plural(e->n_target));
    if (r->latent.baselines)
        fprintf(out, " (whole text %.4f, its first %lld tokens %.4f, no prompt %.4f)",
                e->value[PAIR_EVAL_FULL], (long long)r->encoder.latents, e->value[PAIR_EVAL_BUDGET],
                e->value[PAIR_EVAL_NONE]);
    fprintf(out, "\nexact match %.4f, F1 %.4f, first token %.4f\n", e->value[PAIR_EVAL_EM],
            e->value[PAIR_EVAL_F1], e->value[PAIR_EVAL_HIT]);
    for (int i = 0; i < n; i++) fprintf(out, "%s%s %.4g", i ? ", " : "", also[i].name, also[i].value);
    fprintf(out, "\n");
}
