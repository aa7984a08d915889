#include "task/mae.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "data/image_mask.h"
#include "prog/record.h"
#include "task/image.h"
#include "task/weights.h"

#include <stdlib.h>

/* ---- facts of a recipe -------------------------------------------------------------------------------- */

static int64_t mae_units(const Recipe *r) { return 1; }

/* The decoder has a row for every patch. */
static int64_t mae_rows(const Recipe *r)
{
    ImageMask m = image_mask_of(r);
    return m.seen + m.hidden;
}

/* ---- declaring ---------------------------------------------------------------------------------------- */

static void declare_batch(Job *j, MaeJob *m)
{
    FieldRow row[FIELDS_MAX];
    job_declare_fields(j, row, image_mask_fields(&j->recipe, row));
    m->batch = (MaeBatch){ .image  = { .B       = j->fields.B,
                                       .sample0 = j->sample0,
                                       .pixels  = j->field[IMAGE_PIXELS],
                                       .label   = j->field[IMAGE_LABEL],
                                       .seen    = j->field[MASK_SEEN],
                                       .place   = j->field[MASK_PLACE] },
                           .hidden = j->field[MASK_HIDDEN],
                           .slot   = j->field[MASK_SLOT],
                           .hole   = j->field[MASK_HOLE] };
}

static void set_up_net(Job *j, Net *net)
{
    net->deterministic = j->recipe.deterministic;
    net->stored_attn   = !j->recipe.opt.flash;
    job_add_table(j, &net->table);
}

static int mae_declare_job(Job *j)
{
    MaeJob      *m   = ARENA_NEW(&j->store.arena, MaeJob);
    ParamOptions opt = job_param_options(j);
    j->own           = m;
    m->guess         = -1;
    j->n_block       = (int)(j->recipe.model.layers + j->recipe.mae.layers);
    mae_declare(&m->mae, &j->store, &j->recipe, &opt, j->choice.micro_batch);
    set_up_net(j, &m->mae.vit.net);
    set_up_net(j, &m->mae.decoder);
    declare_batch(j, m);
    if (j->parts & JOB_SAMPLE) {
        int64_t dim[2] = { j->fields.B * m->mae.hidden, m->mae.numbers };
        m->guesses     = store_tensor(&j->store, SLAB_IO, "guesses", DT_F32, 2, dim);
    }
    return 0;
}

static void mae_release(Job *j) { mae_deinit(&mae_of(j)->mae); }

static int mae_init_constants(Job *j)
{
    const Mae *m = &mae_of(j)->mae;
    TRY(image_upload_constants(j, &m->vit));
    float *x = mem_alloc(sizeof *x * (size_t)MAX(tensor_numel(m->pos), m->numbers));
    if (!x) return err_sys("memory for positions");
    mae_fill_pos(m, x);
    int rc = image_upload_floats(j, m->pos, x);
    mae_fill_unit(m, x);
    if (rc == 0) rc = image_upload_floats(j, m->unit, x);
    free(x);
    return rc;
}

static int mae_load_init(Job *j)
{
    const Mae *m = &mae_of(j)->mae;
    TRY(weights_load_init(j, &m->vit.net.table));
    return weights_load_init(j, &m->decoder.table);
}

/* ---- recording ---------------------------------------------------------------------------------------- */

static Prog *record_forward(Job *j, const char *name, NetMode mode)
{
    MaeJob *m     = mae_of(j);
    Prog   *p     = job_begin(j, name);
    Tensor *guess = mae_record(&m->mae, p, &m->batch, j->state, mode);
    mae_record_loss(&m->mae, p, &m->batch, guess, j->state);
    return p;
}

static int record_micro(Job *j, const char *name, int sums)
{
    Prog *p = record_forward(j, name, NET_TRAIN);
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

static int mae_record_job(Job *j)
{
    MaeJob *m = mae_of(j);
    if (job_trains(j)) record_training(j);
    if (j->parts & (JOB_TRAIN | JOB_EVAL)) {
        int eval = job_end(j, record_forward(j, "eval", NET_EVAL), 0);
        schedule_add(&j->eval, (ScheduleRow){ .name = "eval", .times = 1, .prog = eval, .feeds = 1 });
    }
    if (j->parts & JOB_SAMPLE) {
        Prog   *p     = job_begin(j, "guess");
        Tensor *guess = mae_record(&m->mae, p, &m->batch, j->state, NET_EVAL);
        prog_at(p, -1, -1, "guesses");
        rec_cast(p, (Cast){ .y = m->guesses, .x = guess });
        m->guess = job_end(j, p, 0);
    }
    return 0;
}

/* ---- what an evaluation says -------------------------------------------------------------------------- */

static void mae_print_eval(const TaskEval *e, const Recipe *r, FILE *out)
{
    fprintf(out, "validation loss %.4f of hidden patches, %lld sample%s", e->value[0], (long long)e->n_sample,
            str_plural(e->n_sample));
    if (e->n_sample < e->n_all) fprintf(out, " (of %lld, evenly spread)", (long long)e->n_all);
    fprintf(out, "\n");
}

static const TaskLoss   losses[]  = { { .name = "loss" } };
static const TaskMetric metrics[] = { { .name = "loss" } };

const Task task_mae = {
    .name           = "mae",
    .unit           = "samples",
    .one            = "sample",
    .lighter_net    = "a smaller model.layers or model.width",
    .lighter_sample = "a smaller image.size or image.frames",
    .noise          = "no data.train: pixels are noise, nothing will be learned",
    .loss           = losses,
    .n_loss         = ARRAY_LEN(losses),
    .metric         = metrics,
    .n_metric       = ARRAY_LEN(metrics),
    .spikes         = 1,
    .units          = mae_units,
    .rows           = mae_rows,
    .declare        = mae_declare_job,
    .record         = mae_record_job,
    .release        = mae_release,
    .init_constants = mae_init_constants,
    .begin          = mae_load_init,
    .is_noise       = image_source_is_noise,
    .has_val        = image_source_has_val,
    .open_train     = image_mask_open_train,
    .open_val       = image_mask_open_val,
    .sample         = mae_sample,
    .print_eval     = mae_print_eval,
};
