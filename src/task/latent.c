#include "task/latent.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "prog/record.h"

#include <stdlib.h>

/* ---- facts of a recipe -------------------------------------------------------------------------------- */

static int64_t latent_units(const Recipe *r) { return 1; }

/* Rows of the frozen model that one sample has: the student's. */
static int64_t latent_rows(const Recipe *r)
{
    return r->encoder.latents + r->latent.n_anchor + r->latent.answer - 1;
}

static int64_t latent_chunk_rows(const Recipe *r, DType compute, int64_t rows, double bytes)
{
    int64_t n = (int64_t)(bytes / ((double)net_vocab_stored(&r->model) * (double)dtype_bytes(compute)));
    return MIN(rows, MAX(n / 128 * 128, 128));
}

static int latent_is_noise(const Recipe *r) { return r->latent.pairs == PAIRS_RANDOM; }

/* Packed sequences have no window of their own; they are short. Learned positions have an end; what rotary
 * positions beyond the model's context mean, the model never learned. */
static int check_lengths(const Recipe *r, const RecipeModel *m, const PairShape *s)
{
    int64_t     most = MAX(s->full, s->student);
    const char *key  = s->full >= s->student ? "latent.prompt" : "encoder.latents";
    if (m->window > 0 && most > m->window)
        return recipe_blame(r, key, "prompt and answer have %lld tokens, the model's window %lld",
                            (long long)most, (long long)m->window);
    if (m->pos == POS_LEARNED && most > m->context)
        return recipe_blame(r, key, "prompt and answer have %lld tokens, the language model %lld positions",
                            (long long)most, (long long)m->context);
    if (m->rope_scaling == ROPE_LONG && most > m->rope_original)
        return recipe_blame(r, key, "prompt and answer have %lld tokens, longrope is computed up to %lld",
                            (long long)most, (long long)m->rope_original);
    if (most > m->context)
        log_warn("%s: prompt and answer have %lld tokens, the language model was trained on %lld", key,
                 (long long)most, (long long)m->context);
    return 0;
}

/* A file of the teacher has so many logits of a token. */
static int check_top(const Recipe *r, const RecipeModel *m, const PairShape *s)
{
    int64_t V = latent_is_noise(r) ? MIN(m->vocab, r->model.vocab) : m->vocab;
    if (s->top <= V) return 0;
    return recipe_blame(r, "latent.teacher_top", "is %lld, the language model has %lld tokens",
                        (long long)s->top, (long long)V);
}

static int latent_check(const Recipe *r)
{
    RecipeModel model;
    PairShape   s;
    if (r->latent.pairs != PAIRS_RANDOM && !r->latent.llm[0])
        return recipe_blame(r, "latent.llm",
                            "is missing: name the frozen language model, or set "
                            "latent.pairs: random");
    TRY(pairs_shape(&s, r));
    TRY(latent_model(r, &model));
    TRY(check_top(r, &model, &s));
    return check_lengths(r, &model, &s);
}

static double first_token_weight(const Recipe *r) { return r->latent.first_token_weight; }
static double first_weight(const Recipe *r) { return r->latent.first_weight; }
static double kl_weight(const Recipe *r)
{
    return r->latent.teacher == TEACHER_NONE ? 0 : r->latent.kl_weight;
}

/* ---- declaring ---------------------------------------------------------------------------------------- */

static int64_t rows_of(const Job *j, PairReader reader)
{
    return pairs_rows(&latent_of(j)->s, reader, j->fields.B, pairs_share(&j->recipe));
}

static Tensor *declare_rows(Job *j, const char *name, int64_t n)
{
    return job_declare_state(j, name, DT_I32, 1, &n, 0);
}

static void declare_constants(Job *j)
{
    Latent          *t = latent_of(j);
    const PairShape *s = &t->s;
    int64_t          B = j->fields.B;
    t->query_row       = declare_rows(j, "query rows", B * s->M);
    t->x_row           = declare_rows(j, "latent rows", B * s->student);
    t->h_row           = declare_rows(j, "answer rows", B * s->L);
    t->target_row      = declare_rows(j, "target rows", B * s->L);
    t->none_len        = declare_rows(j, "lengths without prompt", B);
}

static int declare_vocab(Job *j)
{
    ParamTable *t = &latent_of(j)->vocab;
    param_table_init(t, "tokenizer.", 3 * NET_SITES);
    job_add_table(j, t);
    if (str_copy(t->origin, sizeof t->origin, j->recipe.latent.tokenizer) < 0)
        return recipe_blame(&j->recipe, "latent.tokenizer", "the path is too long");
    return 0;
}

static int latent_declare(Job *j)
{
    const Recipe *r   = &j->recipe;
    Latent       *t   = ARENA_NEW(&j->store.arena, Latent);
    ParamOptions  opt = job_param_options(j), frozen = opt;
    FieldRow      row[FIELDS_MAX];
    TRY(pairs_shape(&t->s, r));
    TRY(latent_model(r, &t->model));
    job_declare_fields(j, row, pairs_fields(&t->s, row));
    j->own = t; /* from here on release() frees */
    /* A packed row's position is its place in the pack: only differences of positions count for rotations. */
    int64_t positions = MAX(rows_of(j, READ_TEACHER), rows_of(j, READ_FULL));
    positions         = MAX(positions, rows_of(j, READ_BUDGET));
    frozen.freeze     = "llm";
    net_declare(&t->llm, &j->store, &t->model, &frozen,
                &(NetPlace){ .prefix = "llm.", .index = 2, .positions = positions });
    encoder_declare(&t->enc, &j->store, &r->encoder, t->model.width, &opt, 0, (int)t->model.layers);
    t->llm.deterministic = t->enc.trunk.deterministic = r->deterministic;
    if (r->latent.llm[0] && str_copy(t->llm.table.origin, sizeof t->llm.table.origin, r->latent.llm) < 0)
        return recipe_blame(r, "latent.llm", "the path is too long");
    job_add_table(j, &t->enc.trunk.table);
    job_add_table(j, &t->enc.pool);
    job_add_table(j, &t->llm.table);
    if (r->latent.tokenizer[0]) TRY(declare_vocab(j));
    j->n_block = (int)(t->model.layers + r->encoder.layers);
    declare_constants(j);
    latent_declare_passes(j);
    latent_declare_answers(j);
    latent_declare_teacher(j);
    return 0;
}

static void latent_release(Job *j)
{
    Latent *t = latent_of(j);
    encoder_deinit(&t->enc);
    net_deinit(&t->llm);
    param_table_deinit(&t->vocab);
    pair_text_close(&t->text);
}

/* ---- constants ---------------------------------------------------------------------------------------- */

static int upload_rows(Job *j, const Tensor *t, const int32_t *rows)
{
    return job_upload(j, t, rows, tensor_bytes(t));
}

/* Row i of the sorted answers: token t of sample b. */
static void sorted_at(const PairShape *s, int64_t B, int64_t i, int64_t *b, int64_t *t)
{
    int64_t first = B * s->K, rest = s->L - s->K;
    *b = i < first ? i / s->K : (i - first) / rest;
    *t = i < first ? i % s->K : s->K + (i - first) % rest;
}

static int upload_constants(Job *j)
{
    const Latent    *t = latent_of(j);
    const PairShape *s = &t->s;
    int64_t          B = j->fields.B, b, k;
    int32_t         *v = mem_alloc(sizeof *v * (size_t)(B * MAX(s->student, s->L)));
    if (!v) return err_sys("memory for rows");
    encoder_fill_query_rows(&t->enc, B, v);
    int rc = upload_rows(j, t->query_row, v);
    for (int64_t i = 0; i < B * s->student; i++)
        v[i] = i % s->student < s->M ? (int32_t)(i / s->student * s->M + i % s->student) : -1;
    if (rc == 0) rc = upload_rows(j, t->x_row, v);
    for (int64_t i = 0; i < B * s->L; i++) {
        sorted_at(s, B, i, &b, &k);
        v[i] = (int32_t)(b * s->student + s->M + s->A - 1 + k);
    }
    if (rc == 0) rc = upload_rows(j, t->h_row, v);
    for (int64_t i = 0; i < B * s->L; i++) {
        sorted_at(s, B, i, &b, &k);
        v[i] = (int32_t)(b * s->L + k);
    }
    if (rc == 0) rc = upload_rows(j, t->target_row, v);
    for (int64_t b1 = 0; b1 < B; b1++) v[b1] = (int32_t)s->none;
    if (rc == 0) rc = upload_rows(j, t->none_len, v);
    free(v);
    return rc;
}

/* Every token that the data can have is one of the language model's. */
static int check_vocab(const Job *j)
{
    const Latent *t     = latent_of(j);
    int           noise = j->recipe.latent.pairs == PAIRS_RANDOM;
    int64_t n = noise ? j->recipe.model.vocab : t->text.tokenizer ? tokenizer_size(t->text.tokenizer) : 256;
    if (n <= t->model.vocab) return 0;
    return recipe_blame(&j->recipe, noise ? "model.vocab" : "latent.tokenizer",
                        "the data have %lld kinds of tokens, the language model has %lld", (long long)n,
                        (long long)t->model.vocab);
}

static int latent_init_constants(Job *j)
{
    Latent *t = latent_of(j);
    TRY(upload_constants(j));
    TRY(latent_upload_passes(j));
    TRY(latent_upload_answers(j));
    TRY(latent_load_llm(j));
    if (!t->text.scratch) TRY(pair_text_open(&t->text, &j->recipe));
    if (t->text.tokenizer) t->vocab.origin_hash = tokenizer_hash(t->text.tokenizer);
    TRY(check_vocab(j));
    TRY(latent_check_teacher(j));
    return job_upload_rope(j, &t->llm);
}

/* ---- recording ---------------------------------------------------------------------------------------- */

static Tensor *weight(const Net *net, const char *name)
{
    Param *p = param_find(&net->table, name);
    return p ? p->w : NULL;
}

Tensor *latent_record_rows(Prog *p, const char *name, Tensor *x, Tensor *index, int64_t B, int64_t T)
{
    int64_t dim[3] = { B, T, tensor_cols(x) };
    Tensor *y      = prog_tensor(p, name, x->dtype, 3, dim);
    rec_rows_fwd(p, (RowsFwd){ .y = y, .x = x, .index = index });
    return y;
}

static Tensor *record_positions(const Net *net, Prog *p, Tensor *x)
{
    if (net->model.pos != POS_LEARNED) return x;
    Tensor *y = prog_like(p, "positions", x);
    rec_add_pos(p, (AddPos){ .y = y, .x = x, .pos = weight(net, "pos.weight") });
    return y;
}

EncoderOut latent_record_encoder(Job *j, Prog *p)
{
    Latent      *t = latent_of(j);
    EncoderBatch b = { .B         = j->fields.B,
                       .R         = rows_of(j, READ_BYTES),
                       .bytes     = j->field[PAIR_BYTES],
                       .len       = j->field[PAIR_N_BYTES],
                       .query_row = t->query_row,
                       .align     = PAIRS_ALIGN,
                       .mean_len  = (int)MAX((double)t->s.S * pairs_share(&j->recipe), 1) };
    return encoder_record(&t->enc, p, &b);
}

Tensor *latent_record_x(Job *j, Prog *p, Tensor *latents, Tensor *row, Tensor *tok, int64_t T)
{
    const Net *net = &latent_of(j)->llm;
    int64_t    B   = j->fields.B;
    prog_at(p, -1, -1, "llm embedding");
    Tensor *e = latent_record_rows(p, "embedding", weight(net, "embed.weight"), tok, B, T);
    prog_at(p, -1, -1, "llm latents");
    Tensor *z = latent_record_rows(p, "latents", latents, row, B, T), *x = prog_like(p, "x", e);
    rec_add(p, (Add){ .y = x, .a = z, .b = e });
    prog_at(p, -1, -1, "llm positions");
    return record_positions(net, p, x);
}

Net latent_student(const Job *j)
{
    Net net         = latent_of(j)->llm;
    net.stored_attn = !j->recipe.opt.flash;
    return net;
}

/* The student's vectors that predict answers, sorted, and their targets. */
static Tensor *record_student(Job *j, Prog *p, Tensor *latents, Tensor **target)
{
    Latent          *t     = latent_of(j);
    const PairShape *s     = &t->s;
    int64_t          B     = j->fields.B;
    Tensor          *x     = latent_record_x(j, p, latents, t->x_row, j->field[PAIR_TOK], s->student);
    NetBatch         batch = { .B = B, .T = s->student, .read = t->h_row };
    Net              net   = latent_student(j);
    prog_at(p, -1, -1, "answer rows");
    *target = latent_record_rows(p, "targets", j->field[PAIR_TARGET], t->target_row, 1, B * s->L);
    return net_record_trunk(&net, &(NetRun){ .p = p, .batch = &batch, .mode = NET_EVAL }, x);
}

/* Vectors behind the last norm for the rows of sequences that are packed: the last n_tail of each. tok
 * i32[B,stride,1]; R: rows of the packed form. */
static Tensor *record_text(Job *j, Prog *p, Tensor *tok, Tensor *len, int64_t R, int64_t n_tail)
{
    const Net *net = &latent_of(j)->llm;
    int64_t    B = j->fields.B, stride = tok->dim[1], two[2] = { 1, R }, n = B * n_tail;
    Tensor    *index = prog_tensor(p, "index", DT_I32, 1, &R), *tail = prog_tensor(p, "tail", DT_I32, 1, &n);
    Tensor *first = prog_tensor(p, "first", DT_I32, 2, two), *last = prog_tensor(p, "last", DT_I32, 2, two),
           *x;
    prog_at(p, -1, -1, "text pack");
    rec_pack_rows(p, (PackRows){ .index  = index,
                                 .first  = first,
                                 .last   = last,
                                 .tail   = tail,
                                 .len    = len,
                                 .stride = stride,
                                 .align  = 1,
                                 .causal = 1,
                                 .n_tail = (int)n_tail });
    prog_at(p, -1, -1, "text embedding");
    if (net->model.pos == POS_LEARNED) {
        x = latent_record_rows(p, "embedding", weight(net, "embed.weight"), tok, B, stride);
        x = latent_record_rows(p, "rows", record_positions(net, p, x), index, 1, R);
    } else {
        Tensor *packed = latent_record_rows(p, "tokens", tok, index, 1, R);
        x              = latent_record_rows(p, "embedding", weight(net, "embed.weight"), packed, 1, R);
    }
    NetBatch batch  = { .B = 1, .T = R, .first = first, .last = last, .read = tail };
    batch.mean_keys = (int)MAX(R / (2 * B), 1);
    return net_record_trunk(net, &(NetRun){ .p = p, .batch = &batch, .mode = NET_EVAL }, x);
}

/* ---- losses ------------------------------------------------------------------------------------------- */

Tensor *latent_record_logits(Job *j, Prog *p, Tensor *h, int64_t row0, int64_t n)
{
    Tensor *w      = net_head_weight(&latent_of(j)->llm);
    int64_t dim[2] = { n, tensor_rows(w) };
    Tensor *y      = prog_tensor(p, "logits", j->choice.compute, 2, dim);
    rec_linear_fwd(p, (LinearFwd){ .y = y, .x = prog_rows(p, h, row0, n), .w = w });
    return y;
}

Tensor *latent_new_loss(Prog *p, const char *name, int64_t n)
{
    int64_t dim[2] = { n, 1 };
    return prog_tensor(p, name, DT_F32, 2, dim);
}

/* Sums come behind all chunks: nothing else may stand between those. */
void latent_record_sum(Job *j, Prog *p, Tensor *loss, int slot)
{
    prog_at(p, -1, -1, "loss sum");
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = loss, .slot = slot });
}

/* One loss of the rows of one chunk. */
void latent_record_loss(Job *j, Prog *p, Tensor *loss, Tensor *logits, Tensor *target, int slot)
{
    int64_t n   = tensor_rows(logits);
    Tensor *lse = prog_tensor(p, "lse", DT_F32, 1, &n);
    rec_xent_fwd(p, (XentFwd){ .loss    = loss,
                               .lse     = lse,
                               .logits  = logits,
                               .target  = target,
                               .n_class = latent_of(j)->model.vocab,
                               .slot    = slot });
}

/* Losses of rows [row0, N) in chunks, numbered from first_chunk on. NULL: there are none. */
static Tensor *record_chunks(Job *j, Prog *p, Tensor *h, Tensor *target, int64_t row0, int first_chunk,
                             int slot)
{
    int64_t N = tensor_rows(h), n = MAX(j->choice.head_rows, 1), begin = row0;
    Tensor *loss = row0 < N ? latent_new_loss(p, "losses", N - row0) : NULL;
    for (int chunk = first_chunk; row0 < N; chunk++, row0 += n) {
        int64_t rows = MIN(n, N - row0);
        prog_at(p, -1, chunk, "llm head");
        Tensor *logits = latent_record_logits(j, p, h, row0, rows);
        prog_at(p, -1, chunk, "loss");
        latent_record_loss(j, p, prog_rows(p, loss, row0 - begin, rows), logits,
                           prog_rows(p, target, row0, rows), slot);
    }
    return loss;
}

static void record_xent(Job *j, Prog *p, Tensor *h, Tensor *target, int slot)
{
    latent_record_sum(j, p, record_chunks(j, p, h, target, 0, 0, slot), slot);
}

/* A cached teacher comes beside the student's logits, a text teacher from its own pass. */
static Tensor *record_wanted(Job *j, Prog *p, Tensor *logits, Tensor *teacher, Tensor *index)
{
    if (!teacher) return latent_record_cached(j, p, logits, index);
    if (!index) return teacher;
    return latent_record_rows(p, "teacher", teacher, index, 1, tensor_numel(index));
}

Tensor *latent_record_kl(Job *j, Prog *p, Tensor *logits, const LatentTeacher *t, int chunk)
{
    int64_t n    = tensor_rows(logits);
    Tensor *loss = latent_new_loss(p, "kl", n), *lse = prog_tensor(p, "lse", DT_F32, 1, &n),
           *tlse = prog_tensor(p, "teacher lse", DT_F32, 1, &n);
    prog_at(p, -1, chunk, t->said ? "kl teacher" : "cached teacher");
    Tensor *teacher = record_wanted(j, p, logits, t->said, t->index);
    prog_at(p, -1, chunk, "kl");
    rec_kl_fwd(p, (KlFwd){ .loss    = loss,
                           .lse     = lse,
                           .tlse    = tlse,
                           .logits  = logits,
                           .teacher = teacher,
                           .target  = t->target,
                           .n_class = latent_of(j)->model.vocab,
                           .tau     = (float)j->recipe.latent.tau,
                           .slot    = PAIR_KL });
    return loss;
}

/* The first K tokens of all answers are one chunk with all losses. */
static void record_first(Job *j, Prog *p, Tensor *h, Tensor *target, Tensor *teacher, Tensor **loss)
{
    int64_t n = j->fields.B * latent_of(j)->s.K;
    Tensor *k = prog_rows(p, target, 0, n);
    for (int i = 0; i < PAIR_KL; i++) loss[i] = latent_new_loss(p, "first losses", n);
    prog_at(p, -1, 0, "llm head");
    Tensor *logits = latent_record_logits(j, p, h, 0, n);
    prog_at(p, -1, 0, "loss");
    latent_record_loss(j, p, loss[PAIR_LOSS], logits, k, PAIR_LOSS);
    latent_record_loss(j, p, loss[PAIR_FIRST_TOKEN], logits, j->field[PAIR_FIRST], PAIR_FIRST_TOKEN);
    latent_record_loss(j, p, loss[PAIR_FIRST_K], logits, k, PAIR_FIRST_K);
    LatentTeacher t = { .said = teacher, .target = k };
    loss[PAIR_KL]   = latent_compares(j) ? latent_record_kl(j, p, logits, &t, 0) : NULL;
}

Tensor *latent_record_text_teacher(Job *j, Prog *p)
{
    int64_t K = latent_of(j)->s.K;
    Tensor *h = record_text(j, p, j->field[PAIR_TEXT], j->field[PAIR_N_TEACHER], rows_of(j, READ_TEACHER), K);
    prog_at(p, -1, -1, "teacher head");
    return latent_record_logits(j, p, h, 0, j->fields.B * K);
}

int latent_compares(const Job *j) { return kl_weight(&j->recipe) > 0; }

static void record_losses(Job *j, Prog *p)
{
    const PairShape *s       = &latent_of(j)->s;
    int64_t          first   = j->fields.B * s->K;
    Tensor          *teacher = NULL, *target, *loss[PAIR_LOSSES];
    if (latent_compares(j) && s->top == 0) teacher = latent_record_text_teacher(j, p);
    EncoderOut z = latent_record_encoder(j, p);
    Tensor    *h = record_student(j, p, z.latents, &target);
    if (!j->recipe.latent.one_pass) {
        record_xent(j, p, h, target, PAIR_LOSS);
        latent_record_passes(j, p, z.latents, teacher);
        return;
    }
    record_first(j, p, h, target, teacher, loss);
    Tensor *rest = record_chunks(j, p, h, target, first, 1, PAIR_LOSS);
    for (int i = 0; i < PAIR_LOSSES; i++) {
        if (loss[i]) latent_record_sum(j, p, loss[i], i);
    }
    if (rest) latent_record_sum(j, p, rest, PAIR_LOSS);
}

static int record_micro(Job *j, const char *name, int sums)
{
    Prog *p = job_begin(j, name);
    record_losses(j, p);
    job_differentiate(j, p);
    return job_end(j, p, sums);
}

static void record_training(Job *j)
{
    OptimOptions opt   = job_optim_options(j);
    int          micro = record_micro(j, "micro-step", 0);
    int          last  = j->choice.world > 1 ? record_micro(j, "last micro", 1) : -1;
    Prog        *p     = job_begin(j, "update");
    optim_record(j->table, j->n_table, p, j->state, &opt);
    job_schedule_step(j, micro, last, job_end(j, p, 0));
}

/* What the model says with the whole text, with the first M tokens of it, and without a prompt. */
static void record_baselines(Job *j, Prog *p)
{
    Latent          *t = latent_of(j);
    const PairShape *s = &t->s;
    Tensor *h = record_text(j, p, j->field[PAIR_TEXT], j->field[PAIR_N_FULL], rows_of(j, READ_FULL), s->L);
    record_xent(j, p, h, j->field[PAIR_TARGET], PAIR_EVAL_FULL);
    h = record_text(j, p, j->field[PAIR_BUDGET], j->field[PAIR_N_BUDGET], rows_of(j, READ_BUDGET), s->L);
    record_xent(j, p, h, j->field[PAIR_TARGET], PAIR_EVAL_BUDGET);
    h = record_text(j, p, j->field[PAIR_NONE], t->none_len, rows_of(j, READ_NONE), s->L);
    record_xent(j, p, h, j->field[PAIR_TARGET], PAIR_EVAL_NONE);
}

static int record_eval(Job *j)
{
    Tensor    *target;
    Prog      *p = job_begin(j, "eval");
    EncoderOut z = latent_record_encoder(j, p);
    Tensor    *h = record_student(j, p, z.latents, &target);
    record_xent(j, p, h, target, PAIR_EVAL_LOSS);
    if (j->recipe.latent.baselines) record_baselines(j, p);
    return job_end(j, p, 0);
}

static int latent_record(Job *j)
{
    if (j->parts & JOB_TEACH) {
        latent_record_teach(j);
        return 0;
    }
    if (job_trains(j)) record_training(j);
    latent_record_answers(j);
    if (j->parts & (JOB_TRAIN | JOB_EVAL)) latent_schedule_eval(j, record_eval(j));
    return 0;
}

/* A collapse is judged at the second evaluation after it at the latest. */
static int latent_begin(Job *j)
{
    enum { SEEN_WITHIN = 200 /* steps */ };
    const Recipe *r = &j->recipe;
    if (2 * r->eval.every > SEEN_WITHIN && r->steps > SEEN_WITHIN && !latent_is_noise(r))
        log_warn(
            "eval.every: %lld: a collapse is looked for at evaluations; eval.every=%d finds it within %d "
            "steps",
            (long long)r->eval.every, SEEN_WITHIN / 2, SEEN_WITHIN);
    return 0;
}

static double *latent_share(Recipe *r) { return &r->latent.share; }

/* ---- the task ----------------------------------------------------------------------------------------- */

static const TaskLoss losses[] = { [PAIR_LOSS]        = { .name = "answer" },
                                   [PAIR_FIRST_TOKEN] = { "first_token", first_token_weight, NULL },
                                   [PAIR_FIRST_K]     = { "first_k", first_weight, NULL },
                                   [PAIR_KL]          = { "kl", kl_weight, NULL } };

/* In the order of their slots: TaskEval.value is by slot, too. */
static const TaskMetric metrics[PAIR_EVALS] = {
    [PAIR_EVAL_LOSS]   = { .name = "loss", .slot = PAIR_EVAL_LOSS },
    [PAIR_EVAL_EM]     = { .name = "em", .slot = PAIR_EVAL_EM, .larger = 1 },
    [PAIR_EVAL_F1]     = { .name = "f1", .slot = PAIR_EVAL_F1, .larger = 1 },
    [PAIR_EVAL_HIT]    = { .name = "first_token_accuracy", .slot = PAIR_EVAL_HIT, .larger = 1 },
    [PAIR_EVAL_FULL]   = { .name = "loss_full", .slot = PAIR_EVAL_FULL },
    [PAIR_EVAL_BUDGET] = { .name = "loss_budget", .slot = PAIR_EVAL_BUDGET },
    [PAIR_EVAL_NONE]   = { .name = "loss_none", .slot = PAIR_EVAL_NONE },
};

const Task task_latent = {
    .name           = "latent",
    .unit           = "samples",
    .one            = "sample",
    .lighter_net    = "a smaller language model",
    .lighter_sample = "a smaller latent.prompt, latent.answer or encoder.latents",
    .noise          = "latent.pairs random: noise, nothing will be learned",
    .loss           = losses,
    .n_loss         = ARRAY_LEN(losses),
    .metric         = metrics,
    .n_metric       = ARRAY_LEN(metrics),
    .spikes         = 1,
    .units          = latent_units,
    .rows           = latent_rows,
    .chunk_rows     = latent_chunk_rows,
    .complete       = pairs_complete,
    .check          = latent_check,
    .declare        = latent_declare,
    .record         = latent_record,
    .release        = latent_release,
    .init_constants = latent_init_constants,
    .begin          = latent_begin,
    .is_noise       = latent_is_noise,
    .has_val        = pairs_has_val,
    .open_train     = pairs_open_train,
    .open_val       = pairs_open_val,
    .fit            = pairs_fit,
    .share          = latent_share,
    .ask            = latent_ask,
    .sample         = latent_sample,
    .after_load     = latent_after_load,
    .also           = latent_also,
    .print_eval     = latent_print_eval,
};
