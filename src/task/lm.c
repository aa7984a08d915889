#include "task/lm.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/tokens.h"
#include "data/vocab.h"
#include "data/windows.h"
#include "task/weights.h"

#include <math.h>
#include <stdlib.h>

/* ---- facts of a recipe -------------------------------------------------------------------------------- */

static int64_t lm_tokens(const Recipe *r) { return r->model.context; }

/* As few chunks as the bytes allow, all about equal, in multiples of 128 rows. Each chunk is some ops in the
 * list: more than MOST_CHUNKS would make the list long for nothing. */
static int64_t lm_chunk_rows(const Recipe *r, DType compute, int64_t rows, double bytes)
{
    enum { MOST_CHUNKS = 256 };
    int64_t n      = (int64_t)(bytes / ((double)net_vocab_stored(&r->model) * (double)dtype_bytes(compute)));
    n              = MAX(MAX(n / 128 * 128, 128), rows / MOST_CHUNKS);
    int64_t chunks = (rows + n - 1) / n;
    return MIN(rows, round_up((rows + chunks - 1) / chunks, 128));
}

static int lm_is_noise(const Recipe *r) { return r->data.kind == DATA_RANDOM; }

/* ---- declaring ---------------------------------------------------------------------------------------- */

static void declare_batch(Job *j, Lm *lm)
{
    FieldRow row[FIELDS_MAX];
    int      n = windows_fields(&j->recipe, row);
    job_declare_fields(j, row, n);
    lm->batch = (NetBatch){ .B       = j->fields.B,
                            .T       = j->recipe.model.context,
                            .sample0 = j->sample0,
                            .tok     = j->field[WINDOW_TOK],
                            .target  = j->field[WINDOW_TARGET] };
    if (j->recipe.model.mask == MASKING_DOCUMENT) lm->batch.doc = j->field[WINDOW_EXTRA];
    if (j->recipe.model.mask == MASKING_PREFIX) lm->batch.prefix = j->field[WINDOW_EXTRA];
    net_declare_window(&lm->net, &j->store, &lm->batch);
}

/* Prompts are read in chunks of T tokens: enough rows to fill a device, few enough to stay small. */
static void declare_sample(Job *j, Lm *lm)
{
    enum { MOST_ROWS = 4096, MOST_CHUNK = 256, ALL_CHUNK = 64 };
    const RecipeAsk *ask = &j->recipe.ask;
    int64_t          B = MAX(ask->batch, 1), S = j->recipe.model.context;
    if (ask->context > 0) S = MIN(S, round_up(ask->context, 64));
    int64_t T = MAX(MIN(MOST_ROWS / B, (int64_t)MOST_CHUNK), 1);
    net_declare_decode(&lm->net, &j->store, &lm->decode, B, S);
    net_declare_prefill(&lm->net, &j->store, &lm->decode, &lm->prefill,
                        MIN(ask->all ? (int64_t)ALL_CHUNK : T, S), ask->all);
}

static int lm_declare(Job *j)
{
    const Recipe *r   = &j->recipe;
    Lm           *lm  = ARENA_NEW(&j->store.arena, Lm);
    ParamOptions  opt = job_param_options(j);
    j->own            = lm;
    net_declare(&lm->net, &j->store, &r->model, &opt, &(NetPlace){ 0 });
    lm->net.deterministic = r->deterministic;
    lm->net.stored_attn   = !r->opt.flash;
    job_add_table(j, &lm->net.table);
    j->n_block = (int)r->model.layers;
    if (j->parts & (JOB_TRAIN | JOB_EVAL)) declare_batch(j, lm);
    if (j->parts & JOB_SAMPLE) declare_sample(j, lm);
    return 0;
}

static void lm_release(Job *j) { net_deinit(&lm_of(j)->net); }

static int init_window(Job *j)
{
    const Lm *lm = lm_of(j);
    if (!lm->batch.first) return 0;
    size_t   n     = tensor_bytes(lm->batch.first);
    int32_t *first = mem_alloc(2 * n), *last = first + n / sizeof *first;
    if (!first) return err_sys("memory for the window");
    net_fill_window(&lm->net, &lm->batch, first, last);
    int rc = job_upload(j, lm->batch.first, first, n);
    if (rc == 0) rc = job_upload(j, lm->batch.last, last, n);
    free(first);
    return rc;
}

static int lm_init_constants(Job *j)
{
    TRY(init_window(j));
    return job_upload_rope(j, &lm_of(j)->net);
}

static int lm_begin(Job *j) { return weights_load_init(j, &lm_of(j)->net.table); }

/* ---- recording ---------------------------------------------------------------------------------------- */

static int record_micro(Job *j, const char *name, int sums)
{
    Lm   *lm = lm_of(j);
    Prog *p  = job_begin(j, name);
    net_record(&lm->net, p, &lm->batch, j->state, NET_TRAIN, j->choice.head_rows);
    job_differentiate(j, p);
    return job_end(j, p, sums);
}

static void record_training(Job *j)
{
    OptimOptions opt        = job_optim_options(j);
    int          micro      = record_micro(j, "micro-step", 0);
    int          micro_last = j->choice.world > 1 ? record_micro(j, "last micro", 1) : -1;
    Prog        *p          = job_begin(j, "update");
    optim_record(j->table, j->n_table, p, j->state, &opt);
    job_schedule_step(j, micro, micro_last, job_end(j, p, 0));
}

static int lm_record(Job *j)
{
    Lm *lm = lm_of(j);
    if (job_trains(j)) record_training(j);
    if (j->parts & (JOB_TRAIN | JOB_EVAL)) {
        Prog *p = job_begin(j, "eval");
        net_record(&lm->net, p, &lm->batch, j->state, NET_EVAL, j->choice.head_rows);
        schedule_add(&j->eval,
                     (ScheduleRow){ .name = "eval", .times = 1, .prog = job_end(j, p, 0), .feeds = 1 });
    }
    if (j->parts & JOB_SAMPLE) {
        Prog *p = job_begin(j, "decode");
        net_record_decode(&lm->net, p, &lm->decode);
        lm->prog_decode = job_end(j, p, 0);
        p               = job_begin(j, "prefill");
        net_record_decode(&lm->net, p, &lm->prefill);
        lm->prog_prefill = job_end(j, p, 0);
    }
    return 0;
}

/* ---- what an evaluation says -------------------------------------------------------------------------- */

static double bits_per_byte(const TaskEval *e) { return e->value[0] / log(2.0) / e->bytes_per_target; }

static int lm_also(const TaskEval *e, const Recipe *r, TaskNumber *out)
{
    int n    = 0;
    out[n++] = (TaskNumber){ "perplexity", exp(e->value[0]) };
    if (e->bytes_per_target > 0) out[n++] = (TaskNumber){ "bits_per_byte", bits_per_byte(e) };
    return n;
}

static void lm_print_eval(const TaskEval *e, const Recipe *r, FILE *out)
{
    fprintf(out, "validation loss %.4f over %lld token%s (", e->value[0], (long long)e->n_target,
            str_plural(e->n_target));
    if (e->n_sample < e->n_all) {
        fprintf(out, "%lld of %lld windows, evenly spread", (long long)e->n_sample, (long long)e->n_all);
    } else {
        fprintf(out, "the whole validation set");
    }
    fprintf(out, "), perplexity %.3f", exp(e->value[0]));
    if (e->bytes_per_target > 0) fprintf(out, ", %.3f bits per byte", bits_per_byte(e));
    fprintf(out, "\n");
}

static const TaskLoss   losses[]  = { { .name = "loss" } };
static const TaskMetric metrics[] = { { .name = "loss" } };

const Task task_lm = {
    .name           = "lm",
    .unit           = "tokens",
    .one            = "token",
    .lighter_net    = "a smaller model.layers or model.width",
    .lighter_sample = "a smaller model.context",
    .noise          = "data.kind random: noise, nothing will be learned",
    .loss           = losses,
    .n_loss         = ARRAY_LEN(losses),
    .metric         = metrics,
    .n_metric       = ARRAY_LEN(metrics),
    .spikes         = 1,
    .units          = lm_tokens,
    .rows           = lm_tokens,
    .chunk_rows     = lm_chunk_rows,
    .complete       = vocab_complete,
    .declare        = lm_declare,
    .record         = lm_record,
    .release        = lm_release,
    .init_constants = lm_init_constants,
    .begin          = lm_begin,
    .is_noise       = lm_is_noise,
    .has_val        = tokens_has_val,
    .open_train     = windows_open_train,
    .open_val       = windows_open_val,
    .ask            = lm_ask,
    .sample         = lm_sample,
    .ask_score      = lm_ask_score,
    .score          = lm_score_file,
    .export_to      = lm_export,
    .also           = lm_also,
    .fair           = "bits_per_byte",
    .print_eval     = lm_print_eval,
};
