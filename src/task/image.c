#include "task/image.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "conf/relate_image.h"
#include "data/image_source.h"
#include "prog/record.h"
#include "task/weights.h"
#include "tensor/number.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { SLOT_LOSS, SLOT_TOP1, SLOT_TOP5 };

/* ---- facts of a recipe -------------------------------------------------------------------------------- */

static int64_t image_units(const Recipe *r) { return 1; }
static int64_t image_rows(const Recipe *r) { return vit_tokens(&r->image) + r->image.registers; }
static int64_t image_together(const Recipe *r) { return relate_mixes(r) ? r->data.mix_group : 1; }

/* Names of another set, as of a recipe's default data, give way to those of the data. */
static int take_classes(Recipe *r, const ImageSet *set, ClassNames *names)
{
    const char *stranger, *key = relate_names_key(r);
    char        shown[80];
    int         n_set = image_set_classes(set), n = names->n;
    SetMatch    match = image_set_compare(set, names, &stranger);
    if (n > 0 && match != MATCH_ALL && relate_names_are_old(r)) {
        log_info("classes are named as the data name them: %s has no %s", key,
                 str_quote(shown, sizeof shown, stranger, strlen(stranger)));
        memset(r->image.names, 0, sizeof r->image.names);
        memset(r->image.names_file, 0, sizeof r->image.names_file);
        n = 0;
    }
    if (r->image.classes == 0) r->image.classes = MAX(n > 0 && match == MATCH_ALL ? n : n_set, 1);
    if (n > 0 && match == MATCH_SOME)
        return recipe_blame(r, key, "has %d name%s and no %s, but %s has %d classes", n, str_plural(n),
                            str_quote(shown, sizeof shown, stranger, strlen(stranger)), r->data.train, n_set);
    return 0;
}

/* There is a name for each class, or none at all. */
static int check_names(const Recipe *r, const ClassNames *names)
{
    int64_t     n = names->n, classes = r->image.classes;
    const char *key = relate_names_key(r);
    if (!key || n == 0 || n == classes) return 0;
    return recipe_blame(r, key, "has %lld name%s for %lld classes", (long long)n, str_plural(n),
                        (long long)classes);
}

/* The number of classes is that of the training data. */
static int count_classes(Recipe *r, int need_data, ClassNames *names)
{
    enum { WITHOUT_DATA = 1000 };
    ImageSet *set;
    if (r->image.classes > 0 && names->n > 0) return 0;
    if (image_source_is_noise(r)) {
        if (r->image.classes == 0) r->image.classes = names->n > 0 ? names->n : WITHOUT_DATA;
        return 0;
    }
    if (image_set_open_quiet(&set, r->data.train) < 0) {
        if (need_data) return recipe_blame_pending(r, "data.train");
        err_clear(); /* the data are on another machine */
        if (r->image.classes == 0) r->image.classes = names->n > 0 ? names->n : WITHOUT_DATA;
        return 0;
    }
    int rc = take_classes(r, set, names);
    image_set_close(set);
    return rc;
}

static int image_complete(Recipe *r, int need_data)
{
    ClassNames names;
    class_names_init(&names);
    int rc = class_names_load(&names, &r->image);
    if (rc < 0) recipe_blame_pending(r, "image.names_file");
    if (rc == 0) rc = count_classes(r, need_data, &names);
    if (rc == 0) rc = check_names(r, &names);
    class_names_deinit(&names);
    return rc;
}

/* classes.txt: what a prediction on another machine calls the classes. */
static int image_keep(Job *j, const Source *train, const char *folder)
{
    ClassNames names;
    char       path[PATH_MAX], full[PATH_MAX];
    Recipe    *r = &j->recipe;
    if (snprintf(path, sizeof path, "%s/" CLASS_NAMES_FILE, folder) >= (int)sizeof path)
        return err_set("%s: the path is too long", folder);
    class_names_init(&names);
    int rc = image_source_names(train, r, &names);
    if (rc == 0 && names.n > 0) rc = class_names_write(&names, path);
    int wrote = rc == 0 && names.n > 0;
    class_names_deinit(&names);
    if (wrote && !r->image.names[0] && realpath(path, full))
        str_copy(r->image.names_file, sizeof r->image.names_file, full);
    return rc;
}

static TaskStage image_stage(const Recipe *r, int64_t step, Recipe *out)
{
    RecipeStage s;
    TaskStage   range = { 0, r->steps };
    if (out != r) *out = *r;
    out->image.seen_size   = r->image.size;
    out->image.seen_frames = r->image.frames;
    for (int i = 0; relate_stage(r, i, &s) > 0; i++) {
        if (s.step > step) {
            range.until = MIN(s.step, r->steps);
            break;
        }
        range.from             = s.step;
        out->image.seen_size   = s.size;
        out->image.seen_frames = s.frames;
    }
    return range;
}

/* Pixels by patches, frames by tubelets. Positions are resampled, so the weights stay what they are. */
static int64_t image_grow(Recipe *r, const char *what, int64_t n)
{
    enum { MOST = 4096 };
    RecipeImage *m = &r->image;
    if (strcmp(what, "pixels") == 0) {
        m->size = m->seen_size = n * m->patch;
        return m->size <= MOST ? m->size : 0;
    }
    if (strcmp(what, "frames") != 0)
        return err_user("command line: --grow: '%s' does not grow (pixels and frames do)", what);
    if (m->frames == 0) return err_user("command line: --grow: frames: the recipe is for still images");
    m->frames = m->seen_frames = n * m->tubelet;
    return m->frames <= MOST ? m->frames : 0;
}

/* ---- declaring ---------------------------------------------------------------------------------------- */

static void declare_batch(Job *j, Image *m)
{
    FieldRow row[FIELDS_MAX];
    int      n = image_source_fields(&j->recipe, row);
    job_declare_fields(j, row, n);
    m->batch = (VitBatch){ .B       = j->fields.B,
                           .sample0 = j->sample0,
                           .pixels  = j->field[IMAGE_PIXELS],
                           .label   = j->field[IMAGE_LABEL] };
    if (n <= IMAGE_LABEL2) return;
    m->batch.label2  = j->field[IMAGE_LABEL2];
    m->batch.share   = j->field[IMAGE_SHARE];
    m->batch.partner = j->field[IMAGE_PARTNER];
    m->batch.blend   = j->field[IMAGE_BLEND];
    m->batch.box     = j->field[IMAGE_BOX];
}

static void declare_net(Job *j, Vit *v, const ParamOptions *opt, const NetPlace *place)
{
    vit_declare(v, &j->store, &j->recipe, opt, place, j->choice.micro_batch);
    v->net.deterministic = j->recipe.deterministic;
    v->net.stored_attn   = !j->recipe.opt.flash;
    job_add_table(j, &v->net.table);
}

/* The mean of the weights: frozen rows of a net of the same shape, and the mean itself in f32. */
static void declare_ema(Job *j, Image *m)
{
    ParamOptions opt = job_param_options(j);
    opt.freeze       = "ema";
    opt.fp8          = 0; /* it only evaluates */
    declare_net(j, &m->ema, &opt, &(NetPlace){ .prefix = "ema.", .index = 1, .block0 = j->n_block });
    for (int k = 0; k < IMAGE_MEANS && job_trains(j); k++) {
        int64_t n = m->ema.net.table.region_elems[REGION_FROZEN_COPY + k];
        if (n > 0) m->mean[k] = job_declare_state(j, k == 0 ? "ema 0" : "ema 1", DT_F32, 1, &n, 1);
    }
}

static int image_declare(Job *j)
{
    Image       *m   = ARENA_NEW(&j->store.arena, Image);
    ParamOptions opt = job_param_options(j);
    j->own           = m;
    m->predict       = -1;
    j->n_block       = (int)j->recipe.model.layers;
    declare_net(j, &m->vit, &opt, &(NetPlace){ 0 });
    if (j->recipe.image.ema > 0) declare_ema(j, m);
    declare_batch(j, m);
    if (j->parts & (JOB_PREDICT | JOB_SAMPLE)) {
        int64_t dim[2] = { j->fields.B, m->vit.stored_class };
        m->logits      = store_tensor(&j->store, SLAB_IO, "answers", DT_F32, 2, dim);
    }
    return 0;
}

static void image_release(Job *j)
{
    Image *m = image_of(j);
    vit_deinit(&m->vit);
    if (j->recipe.image.ema > 0) vit_deinit(&m->ema);
}

/* ---- constants ---------------------------------------------------------------------------------------- */

int image_upload_floats(Job *j, const Tensor *t, float *values)
{
    int64_t n = tensor_numel(t);
    number_convert(t->dtype, values, DT_F32, values, n);
    return job_upload(j, t, values, dtype_bytes(t->dtype) * (size_t)n);
}

static int upload_positions(Job *j, const Vit *v)
{
    const Tensor *t = v->sincos ? v->sincos : v->resample;
    if (!t) return 0;
    float *x = mem_alloc(sizeof *x * (size_t)tensor_numel(t));
    if (!x) return err_sys("memory for positions");
    if (v->sincos) {
        vit_fill_sincos(v, x);
    } else {
        vit_fill_resample(v, x);
    }
    int rc = image_upload_floats(j, t, x);
    free(x);
    return rc;
}

/* Fills three constants by rows, of n, n and B numbers; nothing if there are none. */
static int upload_rows(Job *j, const Vit *v, Tensor *const t[3],
                       void (*fill)(const Vit *v, int64_t B, int32_t *a, int32_t *b, int32_t *c))
{
    if (!t[0]) return 0;
    int64_t  B = j->fields.B, n = tensor_numel(t[0]);
    int32_t *x = mem_alloc(sizeof *x * (size_t)(2 * n + B));
    if (!x) return err_sys("memory for rows of tokens");
    fill(v, B, x, x + n, x + 2 * n);
    int rc = 0;
    for (int i = 0; i < 3 && rc == 0; i++) rc = job_upload(j, t[i], x + i * n, tensor_bytes(t[i]));
    free(x);
    return rc;
}

static int begin_means(Job *j, int k, float *x)
{
    Image            *m = image_of(j);
    const ParamTable *e = &m->ema.net.table;
    const Tensor     *w = e->flat[COL_WEIGHT][REGION_FROZEN_COPY + k];
    if (!w) return 0;
    memset(x, 0, sizeof *x * (size_t)tensor_numel(w));
    for (int i = 0; i < e->n_param; i++) {
        const Param *row = &e->param[i];
        if ((int)row->region != REGION_FROZEN_COPY + k) continue;
        TRY(job_read_param(j, &m->vit.net.table.param[i], COL_WEIGHT, x + row->offset));
    }
    if (m->mean[k]) TRY(job_upload(j, m->mean[k], x, tensor_bytes(m->mean[k])));
    return image_upload_floats(j, w, x);
}

/* The mean of weights begins as the weights. */
static int begin_ema(Job *j)
{
    const int64_t *n = &image_of(j)->ema.net.table.region_elems[REGION_FROZEN_COPY];
    float         *x = mem_alloc(sizeof *x * (size_t)MAX(n[0], n[1]));
    if (!x) return err_sys("memory for the mean of weights");
    int rc = 0;
    for (int k = 0; k < IMAGE_MEANS && rc == 0; k++) rc = begin_means(j, k, x);
    free(x);
    return rc;
}

int image_upload_constants(Job *j, const Vit *v)
{
    TRY(upload_positions(j, v));
    TRY(upload_rows(j, v, (Tensor *[]){ v->spread, v->put, v->pick }, vit_fill_rows));
    return upload_rows(j, v, (Tensor *[]){ v->before, v->extra, v->len }, vit_fill_registers);
}

static int image_init_constants(Job *j)
{
    Image *m = image_of(j);
    TRY(image_upload_constants(j, &m->vit));
    if (j->recipe.image.ema == 0) return 0;
    TRY(image_upload_constants(j, &m->ema));
    return begin_ema(j);
}

static int image_load_init(Job *j)
{
    if (!j->recipe.init[0]) return 0;
    TRY(weights_load_init(j, &image_of(j)->vit.net.table));
    return j->recipe.image.ema > 0 ? begin_ema(j) : 0;
}

/* ---- recording ---------------------------------------------------------------------------------------- */

static int record_micro(Job *j, const char *name, int sums)
{
    Image  *m      = image_of(j);
    Prog   *p      = job_begin(j, name);
    Tensor *logits = vit_record(&m->vit, p, &m->batch, j->state, NET_TRAIN);
    vit_record_loss(&m->vit, p, &m->batch, logits, j->state, NET_TRAIN);
    job_differentiate(j, p);
    return job_end(j, p, sums);
}

/* Rows that lie side by side among the weights and in their mean: n elements of both. */
typedef struct {
    Region  region;
    int64_t from, to, n;
} EmaRun;

static void record_ema_run(Job *j, Prog *p, Tensor *mean, const EmaRun *run)
{
    if (run->n == 0) return;
    Tensor *all = image_of(j)->vit.net.table.flat[COL_WEIGHT][run->region];
    Tensor *w   = prog_part(p, all, run->from, 1, &run->n);
    if (w->dtype != DT_F32) {
        Tensor *wide = prog_tensor(p, "wide weights", DT_F32, 1, &run->n);
        rec_cast(p, (Cast){ .y = wide, .x = w });
        w = wide;
    }
    rec_ema(p, (Ema){ .e      = prog_part(p, mean, run->to, 1, &run->n),
                      .w      = w,
                      .state  = j->state,
                      .decay  = (float)j->recipe.image.ema,
                      .warmup = 1 });
}

/* Rows are paired one by one, because the nets differ in their regions: optimizer and `freeze` choose those
 * of the weights. Weights in bf16 are converted row by row, so that their f32 copy stays small. */
static void record_mean(Job *j, Prog *p, int k)
{
    Image            *m = image_of(j);
    const ParamTable *t = &m->vit.net.table, *e = &m->ema.net.table;
    EmaRun            run = { 0 };
    if (!m->mean[k]) return;
    for (int i = t->n_param - 1; i >= 0; i--) { /* the order of the flat ranges */
        const Param *w = &t->param[i], *to = &e->param[i];
        if ((int)to->region != REGION_FROZEN_COPY + k || w->frozen) continue;
        int follows = w->region == run.region && w->offset == run.from + run.n &&
                      to->offset == run.to + run.n && w->col[COL_WEIGHT]->dtype == DT_F32;
        if (!follows) {
            record_ema_run(j, p, m->mean[k], &run);
            run = (EmaRun){ .region = w->region, .from = w->offset, .to = to->offset };
        }
        run.n += round_up(w->rows_stored * w->cols, PARAM_ALIGN);
    }
    record_ema_run(j, p, m->mean[k], &run);
    rec_cast(p, (Cast){ .y = e->flat[COL_WEIGHT][REGION_FROZEN_COPY + k], .x = m->mean[k] });
}

static void record_training(Job *j)
{
    OptimOptions opt        = job_optim_options(j);
    int          micro      = record_micro(j, "micro-step", 0);
    int          micro_last = j->choice.world > 1 ? record_micro(j, "last micro", 1) : -1;
    Prog        *p          = job_begin(j, "update");
    optim_record(j->table, j->n_table, p, j->state, &opt);
    prog_at(p, -1, -1, "mean of weights");
    for (int k = 0; k < IMAGE_MEANS; k++) record_mean(j, p, k);
    job_schedule_step(j, micro, micro_last, job_end(j, p, 0));
}

/* The net that answers. */
static const Vit *answering(const Job *j)
{
    return j->recipe.image.ema > 0 ? &image_of(j)->ema : &image_of(j)->vit;
}

static int image_record(Job *j)
{
    Image     *m = image_of(j);
    const Vit *v = answering(j);
    if (job_trains(j)) record_training(j);
    if (j->parts & (JOB_TRAIN | JOB_EVAL)) {
        Prog   *p      = job_begin(j, "eval");
        Tensor *logits = vit_record(v, p, &m->batch, j->state, NET_EVAL);
        vit_record_loss(v, p, &m->batch, logits, j->state, NET_EVAL);
        schedule_add(&j->eval,
                     (ScheduleRow){ .name = "eval", .times = 1, .prog = job_end(j, p, 0), .feeds = 1 });
    }
    if (j->parts & (JOB_PREDICT | JOB_SAMPLE)) {
        Prog   *p      = job_begin(j, "predict");
        Tensor *logits = vit_record(v, p, &m->batch, j->state, NET_EVAL);
        prog_at(p, -1, -1, "answers");
        rec_cast(p, (Cast){ .y = m->logits, .x = logits });
        m->predict = job_end(j, p, 0);
    }
    return 0;
}

/* ---- what an evaluation says -------------------------------------------------------------------------- */

static void image_print_eval(const TaskEval *e, const Recipe *r, FILE *out)
{
    fprintf(out, "validation top-1 %.2f %%, top-5 %.2f %%, loss %.4f over %lld sample%s",
            100 * e->value[SLOT_TOP1], 100 * e->value[SLOT_TOP5], e->value[SLOT_LOSS], (long long)e->n_target,
            str_plural(e->n_target));
    if (e->n_sample < e->n_all) fprintf(out, " (of %lld, evenly spread)", (long long)e->n_all);
    fprintf(out, "%s\n", r->image.ema > 0 ? "; mean of weights" : "");
}

static const TaskLoss   losses[]  = { { .name = "loss" } };
static const TaskMetric metrics[] = { [SLOT_LOSS] = { .name = "loss", .slot = SLOT_LOSS },
                                      [SLOT_TOP1] = { .name = "top1", .slot = SLOT_TOP1, .larger = 1 },
                                      [SLOT_TOP5] = { .name = "top5", .slot = SLOT_TOP5, .larger = 1 } };

/* No rule for spikes: once the mean loss is small, a batch of hard samples has many times that. */
const Task task_image = {
    .name           = "image",
    .unit           = "samples",
    .one            = "sample",
    .lighter_net    = "a smaller model.layers or model.width",
    .lighter_sample = "a smaller image.size or image.frames",
    .noise          = "no data.train: pixels are noise, nothing will be learned",
    .loss           = losses,
    .n_loss         = ARRAY_LEN(losses),
    .metric         = metrics,
    .n_metric       = ARRAY_LEN(metrics),
    .best           = SLOT_TOP1,
    .units          = image_units,
    .rows           = image_rows,
    .together       = image_together,
    .complete       = image_complete,
    .keep           = image_keep,
    .stage          = image_stage,
    .grow           = image_grow,
    .declare        = image_declare,
    .record         = image_record,
    .release        = image_release,
    .init_constants = image_init_constants,
    .begin          = image_load_init,
    .is_noise       = image_source_is_noise,
    .has_val        = image_source_has_val,
    .open_train     = image_source_open_train,
    .open_val       = image_source_open_val,
    .predict        = image_predict,
    .sample         = image_sample,
    .export_to      = image_export,
    .print_eval     = image_print_eval,
};
