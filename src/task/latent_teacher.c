/* The cached teacher: `brim data teacher` asks the frozen model once about every training pair and keeps the
 * largest logits (file/teacher.h); training then reads them as fields of a sample.
 *
 *     fill       one program, the teacher's part of a micro-step, over batches of pairs; while the device
 *                works on a batch, the host picks the largest logits of the batch before
 *     training   KL_TEACHER makes rows of logits again: the largest, and for the others the student's own,
 *                moved so that they have the share that the teacher gave them. The loss is the op that a text
 *                teacher has, too
 *
 * Rows are f32: in bf16 the share of all the others would be off by 3 % at logits of -10. */
#include "task/latent.h"

#include "base/err.h"
#include "base/hostmem.h"
#include "base/mem.h"
#include "prog/record.h"
#include "task/pick.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- recording ---------------------------------------------------------------------------------------- */

void latent_declare_teacher(Job *j)
{
    Latent *t      = latent_of(j);
    int64_t dim[2] = { j->fields.B * t->s.K, net_vocab_stored(&t->model) };
    if (j->parts & JOB_TEACH) t->teacher = job_declare_state(j, "teacher logits", DT_F32, 2, dim, 0);
}

void latent_record_teach(Job *j)
{
    Prog   *p      = job_begin(j, "teacher");
    Tensor *logits = latent_record_text_teacher(j, p);
    prog_at(p, -1, -1, "teacher logits");
    rec_cast(p, (Cast){ .y = latent_of(j)->teacher, .x = logits });
    int prog = job_end(j, p, 0);
    schedule_add(&j->eval, (ScheduleRow){ .name = "teacher", .times = 1, .prog = prog, .feeds = 1 });
}

static Tensor *take(Prog *p, Tensor *field, Tensor *index)
{
    return index ? latent_record_rows(p, field->name, field, index, 1, tensor_numel(index)) : field;
}

Tensor *latent_record_cached(Job *j, Prog *p, Tensor *logits, Tensor *index)
{
    Tensor **field = j->field + pairs_cached(&latent_of(j)->s);
    Tensor  *y     = prog_tensor(p, "teacher", DT_F32, logits->ndim, logits->dim);
    rec_kl_teacher(p, (KlTeacher){ .y       = y,
                                   .logits  = logits,
                                   .x       = take(p, field[PAIR_CACHED_LOGIT], index),
                                   .id      = take(p, field[PAIR_CACHED_ID], index),
                                   .rest    = take(p, field[PAIR_CACHED_REST], index),
                                   .n_class = latent_of(j)->model.vocab,
                                   .tau     = (float)j->recipe.latent.tau });
    return y;
}

int latent_check_teacher(const Job *j)
{
    const Latent *t = latent_of(j);
    const Recipe *r = &j->recipe;
    TeacherHeader h;
    char          path[PAIRS_PATH];
    if (!job_trains(j) || t->s.top == 0 || r->latent.pairs == PAIRS_RANDOM) return 0;
    int fd = teacher_open(&h, pairs_teacher_path(r, path));
    if (fd < 0) return recipe_blame_pending(r, "latent.teacher");
    close(fd);
    if (h.model == t->llm.table.origin_hash && h.vocab == t->model.vocab) return 0;
    return recipe_blame(r, "latent.llm", "%s was made with another language model", path);
}

/* ---- one sample --------------------------------------------------------------------------------------- */

/* What the file keeps of the logits that are not among the n of x, which are sorted by id. */
static void describe_rest(float rest[TEACHER_REST], const float *logits, int64_t V, const PickItem *x,
                          int64_t n)
{
    double  sum[TEACHER_REST] = { 0 }, many = (double)(V - n);
    float   most = -INFINITY;
    int64_t at   = 0;
    memset(rest, 0, sizeof *rest * TEACHER_REST);
    if (n == V) return;
    for (int64_t v = 0; v < V; v++) {
        int kept = at < n && x[at].id == v;
        at += kept;
        if (kept) continue;
        sum[0] += (double)logits[v];
        most = logits[v] > most ? logits[v] : most;
    }
    for (int64_t v = at = 0; v < V; v++) {
        int kept = at < n && x[at].id == v;
        at += kept;
        if (kept) continue;
        float e = expf((logits[v] - most) / (TEACHER_REST - 1)), power = e;
        for (int i = 1; i < TEACHER_REST; i++, power *= e) sum[i] += (double)power;
    }
    rest[0] = (float)(sum[0] / many);
    for (int i = 1; i < TEACHER_REST; i++)
        rest[i] = (float)((double)most * i / (TEACHER_REST - 1) + log(sum[i] / many));
}

/* -1: a logit is not finite. */
static int keep_row(const TeacherHeader *h, TeacherRecord *out, int64_t k, const float *logits, PickItem *x)
{
    if (pick_top(x, logits, h->vocab, h->top) < 0) return -1;
    for (int64_t i = 0; i < h->top; i++) {
        out->id[k * h->top + i]    = x[i].id;
        out->logit[k * h->top + i] = x[i].p;
    }
    describe_rest(out->rest + k * TEACHER_REST, logits, h->vocab, x, h->top);
    return 0;
}

static void keep_none(const TeacherHeader *h, TeacherRecord *out, int64_t k)
{
    for (int64_t i = 0; i < h->top; i++) {
        out->id[k * h->top + i]    = -1;
        out->logit[k * h->top + i] = 0;
    }
    for (int i = 0; i < TEACHER_REST; i++) out->rest[k * TEACHER_REST + i] = 0;
}

/* ---- all of them -------------------------------------------------------------------------------------- */

typedef struct {
    Job           *j;
    const Source  *each;
    TeacherHeader  h;
    TeacherWriter *out;
    char          *block;
    float         *logits; /* of a batch, whose first sample is `first`; -1: there is none yet */
    int64_t        first;
    char          *records;
    PickItem      *items; /* of each thread */
    int            n_thread;
} Teaching;

static int fill_alloc(Teaching *f)
{
    const Latent *t = latent_of(f->j);
    int64_t       B = f->j->fields.B;
    f->n_thread     = f->j->recipe.threads > 0 ? (int)f->j->recipe.threads : hostmem_cpus();
    f->n_thread     = (int)MIN((int64_t)f->n_thread, B * f->h.n_row);
    f->block        = mem_zeroed(1, f->j->fields.block_bytes);
    f->logits       = mem_alloc(tensor_bytes(t->teacher));
    f->records      = mem_zeroed((size_t)B, teacher_record_bytes(&f->h));
    f->items        = mem_alloc(sizeof *f->items * (size_t)(f->n_thread * f->h.vocab));
    return f->block && f->logits && f->records && f->items ? 0 : err_sys("memory for a teacher's batch");
}

static void fill_free(Teaching *f)
{
    teacher_write_discard(&f->out);
    free(f->block);
    free(f->logits);
    free(f->records);
    free(f->items);
}

/* Samples [first, first+B); empty rows behind the last one. */
static int upload_batch(Teaching *f, int64_t first)
{
    Job  *j = f->j;
    void *field[FIELDS_MAX];
    fields_set_sample0(f->block, first);
    for (int64_t b = 0; b < j->fields.B; b++) {
        for (int i = 0; i < j->fields.n; i++) field[i] = fields_at(&j->fields, f->block, i, b);
        TRY(source_fill(f->each, first + b < f->each->n_sample ? first + b : -1, field, NULL));
    }
    return job_upload(j, j->block, f->block, j->fields.block_bytes);
}

/* Rows of the batch in f->logits. Tokens that a short answer does not have have no target: no row is kept. */
static int keep_batch(Teaching *f)
{
    const Latent *t = latent_of(f->j);
    int64_t       K = f->h.n_row, n = MIN(f->j->fields.B, f->each->n_sample - f->first), bad = -1;
    size_t        size   = teacher_record_bytes(&f->h);
    int64_t       stride = tensor_cols(t->teacher);
    if (f->first < 0) return 0;
#pragma omp        parallel for num_threads(f->n_thread) schedule(dynamic)
    for (int64_t i = 0; i < n * K; i++) {
               TeacherRecord out = teacher_record(&f->h, f->records + (size_t)(i / K) * size);
               PickItem     *x   = f->items + omp_get_thread_num() * f->h.vocab;
               if (i % K >= source_targets(f->each, f->first + i / K, PAIR_KL, NULL)) {
                   keep_none(&f->h, &out, i % K);
        } else if (keep_row(&f->h, &out, i % K, f->logits + i * stride, x) < 0) {
#pragma omp atomic write
            bad = i;
        }
    }
    if (bad >= 0) return err_set("the teacher's output is not finite (precision=fp32 may help)");
    for (int64_t b = 0; b < n; b++)
        TRY(teacher_write_put(f->out, pairs_number(f->each, f->first + b), f->records + (size_t)b * size));
    return 0;
}

/* 1: note asked to stop. */
static int fill_all(Teaching *f, LatentNote note, void *ctx)
{
    Job          *j = f->j;
    const Latent *t = latent_of(j);
    Prog         *p = j->prog[j->eval.row[0].prog];
    int64_t       n = f->each->n_sample;
    for (int64_t first = 0; first < n; first += j->fields.B) {
        if (note(ctx, first, n)) return 1;
        TRY(upload_batch(f, first));
        TRY(prog_run(p, j->dev));
        TRY(keep_batch(f)); /* of the batch before, while the device works */
        TRY(job_download(j, t->teacher, f->logits, tensor_bytes(t->teacher)));
        f->first = first;
    }
    TRY(keep_batch(f));
    note(ctx, n, n);
    return 0;
}

int latent_teach(Job *j, const Source *each, const char *path, LatentNote note, void *ctx)
{
    const Latent *t = latent_of(j);
    Teaching      f = { .j = j, .each = each, .first = -1 };
    pairs_teacher_header(each, &j->recipe, &f.h);
    f.h.vocab = t->model.vocab;
    f.h.model = t->llm.table.origin_hash;
    int rc    = fill_alloc(&f);
    if (rc == 0 && !(f.out = teacher_write_begin(path, &f.h))) rc = -1;
    if (rc == 0) rc = fill_all(&f, note, ctx);
    if (rc == 0) rc = teacher_write_publish(&f.out);
    fill_free(&f);
    return rc;
}
