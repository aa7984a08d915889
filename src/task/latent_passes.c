/* The losses as published code takes them: a pass of the language model for each of their tokens.
 *
 *     answer       [latents | anchor | answer]                         1 pass
 *     first token  [latents | anchor]                                  1
 *     first K      [latents | anchor | first n-1 tokens], n = 1 .. K   K
 *     distance     the same once more                                  K, and the teacher's
 *
 * A pass over the whole answer already has all these logits, so task latent takes one. latent.one_pass=false
 * is there to compare: the same losses, in eleven passes with K = 4 and a teacher. */
#include "task/latent.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t pass_rows(const PairShape *s, int64_t n) { return s->M + s->A + n - 1; }

static Tensor *declare(Job *j, int64_t n, const char *what, int64_t rows)
{
    char name[64];
    snprintf(name, sizeof name, "pass %lld %s", (long long)n, what);
    return job_declare_state(j, name, DT_I32, 1, &rows, 0);
}

void latent_declare_passes(Job *j)
{
    Latent *t = latent_of(j);
    int64_t B = j->fields.B;
    if (j->recipe.latent.one_pass) return;
    t->pass = arena_alloc(&j->store.arena, sizeof *t->pass * (size_t)t->s.K);
    for (int64_t n = 1; n <= t->s.K; n++) {
        int64_t rows   = B * pass_rows(&t->s, n);
        t->pass[n - 1] = (LatentPass){ .tok_row = declare(j, n, "tokens", rows),
                                       .x_row   = declare(j, n, "latents", rows),
                                       .end     = declare(j, n, "ends", B),
                                       .target  = declare(j, n, "targets", B),
                                       .teacher = declare(j, n, "teacher", B) };
    }
}

static int upload_pass(Job *j, int64_t n, int32_t *v)
{
    const PairShape  *s    = &latent_of(j)->s;
    const LatentPass *pass = &latent_of(j)->pass[n - 1];
    int64_t           B = j->fields.B, T = pass_rows(s, n);
    for (int64_t i = 0; i < B * T; i++) v[i] = (int32_t)(i / T * s->student + i % T);
    TRY(job_upload(j, pass->tok_row, v, tensor_bytes(pass->tok_row)));
    for (int64_t i = 0; i < B * T; i++) v[i] = i % T < s->M ? (int32_t)(i / T * s->M + i % T) : -1;
    TRY(job_upload(j, pass->x_row, v, tensor_bytes(pass->x_row)));
    for (int64_t b = 0; b < B; b++) v[b] = (int32_t)(b * T + T - 1);
    TRY(job_upload(j, pass->end, v, tensor_bytes(pass->end)));
    for (int64_t b = 0; b < B; b++) v[b] = (int32_t)(b * s->L + n - 1);
    TRY(job_upload(j, pass->target, v, tensor_bytes(pass->target)));
    for (int64_t b = 0; b < B; b++) v[b] = (int32_t)(b * s->K + n - 1);
    return job_upload(j, pass->teacher, v, tensor_bytes(pass->teacher));
}

int latent_upload_passes(Job *j)
{
    const Latent *t = latent_of(j);
    if (!t->pass) return 0;
    int32_t *v  = mem_alloc(sizeof *v * (size_t)(j->fields.B * t->s.student));
    int      rc = v ? 0 : err_sys("memory for rows");
    for (int64_t n = 1; n <= t->s.K && rc == 0; n++) rc = upload_pass(j, n, v);
    free(v);
    return rc;
}

/* Logits of token n of the answers. */
static Tensor *record_pass(Job *j, Prog *p, Tensor *latents, int64_t n, Tensor **target)
{
    Latent           *t    = latent_of(j);
    const LatentPass *pass = &t->pass[n - 1];
    int64_t           B = j->fields.B, T = pass_rows(&t->s, n);
    prog_at(p, -1, -1, "pass rows");
    Tensor  *tok   = latent_record_rows(p, "tokens", j->field[PAIR_TOK], pass->tok_row, B, T);
    Tensor  *x     = latent_record_x(j, p, latents, pass->x_row, tok, T);
    NetBatch batch = { .B = B, .T = T, .read = pass->end };
    Net      net   = latent_student(j);
    Tensor  *h     = net_record_trunk(&net, &(NetRun){ .p = p, .batch = &batch, .mode = NET_EVAL }, x);
    prog_at(p, -1, -1, "pass head");
    *target = latent_record_rows(p, "targets", j->field[PAIR_TARGET], pass->target, 1, B);
    return latent_record_logits(j, p, h, 0, B);
}

static void record_xent(Job *j, Prog *p, Tensor *latents, int64_t n, int slot)
{
    Tensor *target, *logits = record_pass(j, p, latents, n, &target);
    Tensor *loss = latent_new_loss(p, "pass losses", j->fields.B);
    prog_at(p, -1, -1, "pass loss");
    latent_record_loss(j, p, loss, logits, target, slot);
    latent_record_sum(j, p, loss, slot);
}

void latent_record_passes(Job *j, Prog *p, Tensor *latents, Tensor *teacher)
{
    const Latent *t = latent_of(j);
    record_xent(j, p, latents, 1, PAIR_FIRST_TOKEN);
    for (int64_t n = 1; n <= t->s.K; n++) record_xent(j, p, latents, n, PAIR_FIRST_K);
    for (int64_t n = 1; n <= t->s.K && latent_compares(j); n++) {
        LatentTeacher want   = { .said = teacher, .index = t->pass[n - 1].teacher };
        Tensor       *logits = record_pass(j, p, latents, n, &want.target);
        latent_record_sum(j, p, latent_record_kl(j, p, logits, &want, -1), PAIR_KL);
    }
}
