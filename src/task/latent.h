/* Latent: a byte encoder learns vectors that replace the prompt of a frozen language model.
 *
 *     sample      a prompt and an answer (data/pairs.h)
 *     student     [M latents | anchor | answer] through the frozen model; gradients pass through the model to
 *                 the encoder, none is kept for the model
 *     losses      all from one pass: cross-entropy of the answer, of its first token, of its first K
 *                 tokens, and the distance to a teacher over the first K tokens
 *     teacher     the same model reads [prompt as text | anchor | first K-1 tokens of the answer]; it has no
 *                 gradient. Or a file says what it said (task/latent_teacher.c)
 *     evaluation  loss, baselines (whole text, first M tokens of it, no prompt), then greedy answers from the
 *                 latents: exact match and F1; and whether the latents have collapsed (task/latent_eval.c)
 *
 * 1. Only the head's rows that predict answers are computed. The first K rows of all samples come first: they
 *    have four losses, the others one.
 * 2. Prompts are packed side by side for encoder and teacher (PackRows), answers are not.
 * 3. Checkpoints hold encoder and pooler; they name file and hash of the language model
 *    and of its tokenizer. */
#ifndef TASK_LATENT_H
#define TASK_LATENT_H

#include "data/pairs.h"
#include "net/encoder.h"
#include "task/job.h"

extern const Task task_latent;

/* Different texts, by their hashes. */
typedef struct {
    int64_t  n;
    uint64_t hash[4096];
} LatentTexts;

/* What an evaluation says about collapse, over the samples that it has seen. */
typedef struct {
    int64_t     n_eval;            /* evaluations begun */
    int64_t     n_sample, n_batch; /* answers counted; batches with at least two samples */
    LatentTexts said, gold;        /* different answers of those samples, and what they should be */
    double      between;           /* sum over batches: mean cosine of different samples' latents */
    double      within;            /* the same of different latents of one sample */
    double      rank;              /* effective rank of latents */
    int         judged;
} LatentWatch;

/* Rows of one pass for token n of the answers alone: i32, constants (task/latent_passes.c). */
typedef struct {
    Tensor *tok_row, *x_row, *end, *target, *teacher;
} LatentPass;

/* Job.own. */
typedef struct {
    PairShape   s;
    RecipeModel model;
    Net         llm;
    ByteEncoder enc;
    PairText    text;  /* opened with the constants */
    ParamTable  vocab; /* no weights: checkpoints name the tokenizer and its hash, as a frozen part */

    /* Constants, i32: rows of the student's x that are latents (-1 elsewhere) and the query of each latent;
     * rows of h that predict answers, the first K of all samples first, and their targets. */
    Tensor     *query_row, *x_row, *h_row, *target_row;
    Tensor     *none_len; /* i32[B], all the same */
    LatentPass *pass;     /* for n = 1 .. K; NULL with latent.one_pass */

    /* Greedy answers: tokens and positions, caches, rows of the prefix. */
    NetDecode   decode;
    Tensor     *prefix_row, *prefix_x_row, *prefix_end; /* constants */
    Tensor     *turn, *said, *classes;                  /* i32[1], i32[L,B], i32[2] */
    Tensor     *pooled;                                 /* f32[B*M, width] */
    Tensor     *latents;                                /* f32[B*M, out], with JOB_SAMPLE */
    Tensor     *score;                                  /* f32[3,B]: exact match, F1, first token */
    int         prog_prefill, prog_decode, prog_scores;
    Tensor     *teacher; /* f32[B*K, classes], with JOB_TEACH */
    LatentWatch watch;
} Latent;

static inline Latent *latent_of(const Job *j) { return (Latent *)j->own; }

/* ---- latent.c ---- */

/* What the language model says about the first K tokens when it reads the text: [B*K, classes]. */
Tensor    *latent_record_text_teacher(Job *j, Prog *p);
EncoderOut latent_record_encoder(Job *j, Prog *p);
/* The language model as the student records it: with opt.flash off, attention stores its weights. Where
 * sequences are packed it never does: all rows of a micro-batch would be one T x T. */
Net latent_student(const Job *j);
/* x [B,T,C] = latents where row says so, else embeddings of tok; positions added. */
Tensor *latent_record_x(Job *j, Prog *p, Tensor *latents, Tensor *row, Tensor *tok, int64_t T);
/* y [B,T,cols of x] = rows of x by index. */
Tensor *latent_record_rows(Prog *p, const char *name, Tensor *x, Tensor *index, int64_t B, int64_t T);
/* Logits of rows [row0, row0+n) of h. */
Tensor *latent_record_logits(Job *j, Prog *p, Tensor *h, int64_t row0, int64_t n);
Tensor *latent_new_loss(Prog *p, const char *name, int64_t n);
void    latent_record_loss(Job *j, Prog *p, Tensor *loss, Tensor *logits, Tensor *target, int slot);
/* said: the text teacher's logits, NULL: it is cached; index: rows of the teacher, i32, NULL: all. */
typedef struct {
    Tensor *said, *index, *target;
} LatentTeacher;
int latent_compares(const Job *j); /* 1: there is a teacher */
/* The distance to the teacher; returns the losses. */
Tensor *latent_record_kl(Job *j, Prog *p, Tensor *logits, const LatentTeacher *t, int chunk);
void    latent_record_sum(Job *j, Prog *p, Tensor *loss, int slot);

/* ---- latent_passes.c ---- */

/* Nothing with latent.one_pass. */
void latent_declare_passes(Job *j);
int  latent_upload_passes(Job *j);
/* All losses but the answer's, a pass a token. */
void latent_record_passes(Job *j, Prog *p, Tensor *latents, Tensor *teacher);

/* ---- latent_llm.c ---- */

/* Shape of the language model: of the run that latent.llm names, else the recipe's. */
int latent_model(const Recipe *r, RecipeModel *m);
/* Uploads the frozen weights, notes where they came from; calibrates the adapter to the embedding, and aims
 * the queries. */
int latent_load_llm(Job *j);

/* ---- latent_teacher.c ---- */

/* With JOB_TEACH: the teacher alone, whose logits the host reads. */
void latent_declare_teacher(Job *j);
void latent_record_teach(Job *j);
/* Logits of a cached teacher beside the student's. index i32: the rows of the fields; NULL: all of them. */
Tensor *latent_record_cached(Job *j, Prog *p, Tensor *logits, Tensor *index);
/* Refuses a file that another language model made. Only a job that trains needs one. */
int latent_check_teacher(const Job *j);
/* Called now and then; 1: stop. */
typedef int (*LatentNote)(void *ctx, int64_t done, int64_t all);
/* Makes the file of the pairs in each (pairs_open_each()), complete or not at all. 1: note asked to stop.
 * Negative after err_set(). */
int latent_teach(Job *j, const Source *each, const char *path, LatentNote note, void *ctx);

/* ---- latent_eval.c ---- */

void latent_declare_answers(Job *j);
/* Records prefill and decoding. */
void latent_record_answers(Job *j);
void latent_schedule_eval(Job *j, int eval);
int  latent_upload_answers(Job *j);
/* A run that goes on is judged from its first evaluation on. */
int  latent_after_load(Job *j);
int  latent_also(const TaskEval *e, const Recipe *r, TaskNumber *out);
void latent_print_eval(const TaskEval *e, const Recipe *r, FILE *out);

/* ---- latent_sample.c ---- */

/* Refuses what an answer through latents cannot have. */
int latent_ask(Recipe *r, const TaskSample *opt);
int latent_sample(Job *j, const TaskSample *opt, FILE *out);

#endif
