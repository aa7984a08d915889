#include "toy.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "file/image_write.h"
#include "file/safetensors.h"
#include "optim/optim.h"
#include "prog/record.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- declaring ---------------------------------------------------------------------------------------- */

enum { TEACHER_SITES = 5000 };

static void declare_linear(ParamTable *t, const char *name, int64_t rows, int64_t cols, float std, int frozen)
{
    Param p = { .ndim   = 2,
                .rows   = rows,
                .cols   = cols,
                .init   = INIT_NORMAL,
                .std    = std,
                .decay  = 1,
                .region = REGION_COPY,
                .frozen = frozen };
    param_name(p.name, "%s.weight", name);
    param_declare(t, &p);
    p = (Param){
        .ndim = 1, .rows = 1, .cols = rows, .init = INIT_ZERO, .region = REGION_COPY, .frozen = frozen
    };
    param_name(p.name, "%s.bias", name);
    param_declare(t, &p);
}

static void declare_net(Job *j, ParamTable *t, const char *prefix, int site0, int frozen)
{
    const ToyKeys *k   = toy_keys(&j->recipe);
    ParamOptions   opt = job_param_options(j);
    param_table_init(t, prefix, site0);
    declare_linear(t, "up", k->width, TOY_DIM, 0.15f, frozen);
    declare_linear(t, "down", k->out, k->width, 0.25f, frozen);
    param_layout(t, &j->store, &opt);
    job_add_table(j, t);
}

static void declare_fields(Job *j)
{
    FieldRow row[TOY_FIELDS] = {
        [TOY_PIXELS] = { "pixels", DT_U8, 3, { TOY_SIDE, TOY_SIDE, 3 } },
        [TOY_ANCHOR] = { "anchor", DT_F32, 1, { toy_keys(&j->recipe)->out } },
        [TOY_COUNT]  = { "valid patches", DT_I32, 0, { 0 } },
    };
    job_declare_fields(j, row, TOY_FIELDS);
}

static int toy_declare(Job *j)
{
    Toy    *t   = ARENA_NEW(&j->store.arena, Toy);
    int64_t one = 1, out = toy_keys(&j->recipe)->out;
    int64_t x[2] = { TOY_TABLE, TOY_DIM }, y[2] = { TOY_TABLE, out };
    j->own     = t;
    j->n_block = 1;
    declare_net(j, &t->teacher, "teacher.", TEACHER_SITES, 1);
    declare_net(j, &t->student, "", 0, 0);
    declare_fields(j);
    if (!job_trains(j)) return 0;
    int64_t n  = t->student.region_elems[REGION_COPY];
    t->table_x = job_declare_state(j, "table x", DT_F32, 2, x, 0);
    t->table_y = job_declare_state(j, "table y", DT_F32, 2, y, 0);
    t->epoch   = job_declare_state(j, "epoch", DT_I32, 1, &one, 1);
    t->cursor  = job_declare_state(j, "cursor", DT_I32, 1, &one, 1);
    t->mean    = job_declare_state(j, "mean", DT_F32, 1, &n, 1);
    return 0;
}

static void toy_release(Job *j)
{
    param_table_deinit(&toy_of(j)->student);
    param_table_deinit(&toy_of(j)->teacher);
}

/* ---- constants ---------------------------------------------------------------------------------------- */

static int read_param(Job *j, const SafeFile *f, const Param *p, float *buf)
{
    const Recipe     *r    = &j->recipe;
    const char       *name = p->name + strlen(toy_of(j)->teacher.prefix);
    const SafeTensor *t    = safetensors_find(f, name);
    if (!t) return recipe_blame(r, "toy.teacher", "%s has no tensor %s", f->path, name);
    if (t->n_elem != p->rows * p->cols)
        return recipe_blame(r, "toy.teacher",
                            "%s: tensor %s has %lld numbers, toy.width and toy.out need %lld", f->path, name,
                            (long long)t->n_elem, (long long)(p->rows * p->cols));
    TRY(safetensors_read_f32(f, t, 0, t->n_elem, buf));
    return job_write_param(j, p, COL_WEIGHT, buf);
}

static int read_teacher(Job *j, const SafeFile *f)
{
    ParamTable *t   = &toy_of(j)->teacher;
    float      *buf = mem_alloc(sizeof *buf * (size_t)param_count(t));
    int         rc  = buf ? 0 : err_sys("memory for the teacher");
    for (int i = 0; i < t->n_param && rc == 0; i++) rc = read_param(j, f, &t->param[i], buf);
    free(buf);
    return rc;
}

/* Checkpoints name the file and its hash instead of holding the frozen weights. */
static int note_origin(ParamTable *t, const char *path)
{
    enum { MOST = 64 << 20 };
    char  *bytes;
    size_t n;
    TRY(file_read_all(path, MOST, &bytes, &n));
    t->origin_hash = XXH64(bytes, n, 0);
    free(bytes);
    return str_copy(t->origin, sizeof t->origin, path) < 0 ? err_user("%s: the path is too long", path) : 0;
}

static int load_teacher(Job *j)
{
    SafeFile    f    = { 0 };
    const char *path = toy_keys(&j->recipe)->teacher;
    if (file_kind(path) != FILE_REGULAR)
        return recipe_blame(&j->recipe, "toy.teacher", "%s: no such file", path);
    TRY(safetensors_open(&f, path));
    int rc = read_teacher(j, &f);
    safetensors_close(&f);
    return rc < 0 ? -1 : note_origin(&toy_of(j)->teacher, path);
}

void toy_fill_table(const Recipe *r, float *x, float *y)
{
    enum { STREAM_TABLE = 7003 };
    int64_t out = toy_keys(r)->out;
    for (int64_t m = 0; m < TOY_TABLE; m++) {
        for (int64_t e = 0; e < TOY_DIM; e++)
            x[m * TOY_DIM + e] = 4 * rng_uniform(rng_draw((uint64_t)r->seed, STREAM_TABLE, 0, m, e)) - 2;
        for (int64_t e = 0; e < out; e++)
            y[m * out + e] = 2 * rng_uniform(rng_draw((uint64_t)r->seed, STREAM_TABLE, 1, m, e)) - 1;
    }
}

static int upload_table(Job *j)
{
    Toy   *t  = toy_of(j);
    size_t nx = tensor_bytes(t->table_x), ny = tensor_bytes(t->table_y);
    char  *xy = mem_alloc(nx + ny);
    if (!xy) return err_sys("memory for the table");
    toy_fill_table(&j->recipe, (float *)xy, (float *)(xy + nx));
    int rc = job_upload(j, t->table_x, xy, nx);
    if (rc == 0) rc = job_upload(j, t->table_y, xy + nx, ny);
    free(xy);
    return rc;
}

static int toy_init_constants(Job *j)
{
    TRY(load_teacher(j));
    return job_trains(j) ? upload_table(j) : 0;
}

/* ---- recording ---------------------------------------------------------------------------------------- */

static Tensor *weight(const ParamTable *t, const char *name) { return param_find(t, name)->w; }

/* What a net says about patches x [...,TOY_DIM]. block -1: never recomputed. */
static Tensor *record_net(Job *j, Prog *p, const ParamTable *t, Tensor *x, int block)
{
    int64_t dim[3]   = { x->dim[0], x->dim[1], x->dim[2] };
    DType   type     = j->choice.compute;
    dim[x->ndim - 1] = toy_keys(&j->recipe)->width;
    Tensor *pre = prog_tensor(p, "pre", type, x->ndim, dim), *hidden = prog_like(p, "hidden", pre);
    dim[x->ndim - 1] = toy_keys(&j->recipe)->out;
    Tensor *y        = prog_tensor(p, "y", type, x->ndim, dim);
    prog_at(p, block, -1, block >= 0 ? "up" : "teacher up");
    rec_linear_fwd(
        p, (LinearFwd){ .y = pre, .x = x, .w = weight(t, "up.weight"), .bias = weight(t, "up.bias") });
    prog_at(p, block, -1, block >= 0 ? "tanh" : "teacher tanh");
    rec_act_fwd(p, (ActFwd){ .y = hidden, .x = pre, .act = ACT_TANH });
    prog_at(p, block, -1, block >= 0 ? "down" : "teacher down");
    rec_linear_fwd(
        p, (LinearFwd){ .y = y, .x = hidden, .w = weight(t, "down.weight"), .bias = weight(t, "down.bias") });
    return y;
}

static Tensor *record_f32(Prog *p, const char *name, Tensor *x)
{
    Tensor *y = prog_tensor(p, name, DT_F32, x->ndim, x->dim);
    rec_cast(p, (Cast){ .y = y, .x = x });
    return y;
}

/* One row a sample: the mean over its valid patches. */
static Tensor *record_picture(Job *j, Prog *p, const ParamTable *t, Tensor *x, int block)
{
    int64_t dim[2] = { x->dim[0], toy_keys(&j->recipe)->out };
    Tensor *y = record_net(j, p, t, x, block), *mean = prog_tensor(p, "picture", j->choice.compute, 2, dim);
    prog_at(p, -1, -1, "mean of patches");
    rec_mean_rows_fwd(p, (MeanRowsFwd){ .y = mean, .x = y, .len = j->field[TOY_COUNT] });
    return mean;
}

/* The loss of slot 0; *target is what the student should say. */
static Tensor *record_distance(Job *j, Prog *p, Tensor **target)
{
    int64_t B = j->fields.B, dim[3] = { B, TOY_PARTS, TOY_DIM };
    Tensor *x    = prog_tensor(p, "patches", j->choice.compute, 3, dim),
           *loss = prog_tensor(p, "loss", DT_F32, 1, &B);
    prog_at(p, -1, -1, "patches");
    rec_patches(p, (Patches){ .y          = x,
                              .img        = j->field[TOY_PIXELS],
                              .frames     = 1,
                              .src_height = TOY_SIDE,
                              .src_width  = TOY_SIDE,
                              .height     = TOY_SIDE,
                              .width      = TOY_SIDE,
                              .tubelet    = 1,
                              .patch      = TOY_PATCH,
                              .mean       = { TOY_MEAN, TOY_MEAN, TOY_MEAN },
                              .std        = { TOY_STD, TOY_STD, TOY_STD } });
    Tensor *teacher = record_picture(j, p, &toy_of(j)->teacher, x, -1);
    Tensor *student = record_picture(j, p, &toy_of(j)->student, x, 0);
    prog_at(p, -1, -1, "target");
    teacher = record_f32(p, "teacher", teacher);
    *target = prog_like(p, "target", teacher);
    rec_add(p, (Add){ .y = *target, .a = teacher, .b = j->field[TOY_ANCHOR] });
    prog_at(p, -1, -1, "distance");
    rec_mse_fwd(p, (MseFwd){ .loss = loss, .x = student, .target = *target, .slot = TOY_DISTANCE });
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = loss, .slot = TOY_DISTANCE });
    return student;
}

static int record_micro(Job *j, const char *name, int sums)
{
    Tensor *target;
    Prog   *p = job_begin(j, name);
    record_distance(j, p, &target);
    job_differentiate(j, p);
    return job_end(j, p, sums);
}

/* halts: after a look at the loss of the table's rows. */
static int record_update(Job *j, const char *name, int halts)
{
    const Toy *t = toy_of(j);
    Prog      *p = job_begin(j, name);
    prog_at(p, -1, -1, "halt");
    if (halts)
        rec_halt(p,
                 (Halt){ .state = j->state, .slot = TOY_REPEL, .limit = (float)toy_keys(&j->recipe)->halt });
    OptimOptions opt = job_optim_options(j);
    optim_record(j->table, j->n_table, p, j->state, &opt);
    prog_at(p, -1, -1, "running mean");
    rec_ema(p, (Ema){ .e     = t->mean,
                      .w     = t->student.flat[COL_WEIGHT][REGION_COPY],
                      .state = j->state,
                      .decay = TOY_DECAY });
    return job_end(j, p, 0);
}

/* Rows of the table in an order drawn here. It is the same on every rank, so nothing is summed. */
static int record_repel(Job *j)
{
    const Toy *t = toy_of(j);
    int64_t    n = TOY_TABLE, N = TOY_PICK, out = toy_keys(&j->recipe)->out;
    int64_t    x[2] = { N, TOY_DIM }, y[2] = { N, out };
    Prog      *p     = job_begin(j, "repel");
    Tensor    *order = prog_tensor(p, "order", DT_I32, 1, &n), *loss = prog_tensor(p, "loss", DT_F32, 1, &N);
    Tensor    *rows = prog_tensor(p, "rows", DT_F32, 2, x), *target = prog_tensor(p, "target", DT_F32, 2, y);
    Tensor    *narrow = prog_tensor(p, "rows", j->choice.compute, 2, x);
    prog_at(p, -1, -1, "order");
    rec_perm(p, (Perm){ .index = order, .state = j->state, .epoch = t->epoch, .site = TOY_ORDER_SITE });
    prog_at(p, -1, -1, "rows");
    rec_rows_fwd(p, (RowsFwd){ .y = rows, .x = t->table_x, .index = order, .at = t->cursor });
    rec_rows_fwd(p, (RowsFwd){ .y = target, .x = t->table_y, .index = order, .at = t->cursor });
    rec_cast(p, (Cast){ .y = narrow, .x = rows });
    Tensor *student = record_net(j, p, &t->student, narrow, 0);
    prog_at(p, -1, -1, "repel");
    rec_mse_fwd(p, (MseFwd){ .loss = loss, .x = student, .target = target, .slot = TOY_REPEL });
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = loss, .slot = TOY_REPEL });
    job_differentiate(j, p);
    prog_at(p, -1, -1, "next rows");
    rec_tick(p, (Tick){ .t = t->epoch, .modulo = INT32_MAX });
    rec_tick(p, (Tick){ .t = t->cursor, .modulo = TOY_TABLE / TOY_PICK });
    return job_end(j, p, 0);
}

static int record_eval(Job *j)
{
    Tensor *target;
    Prog   *p       = job_begin(j, "eval");
    Tensor *student = record_f32(p, "student", record_distance(j, p, &target)), *product;
    product         = prog_like(p, "product", student);
    prog_at(p, -1, -1, "agreement");
    rec_mul(p, (Mul){ .y = product, .a = student, .b = target });
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = product, .slot = TOY_AGREEMENT });
    return job_end(j, p, 0);
}

static int count_turn(Job *j, int64_t turn)
{
    ((ToyState *)j->own_state)->turns++;
    return 0;
}

static int toy_record(Job *j)
{
    if (job_trains(j)) {
        int micro = record_micro(j, "micro-step", 0);
        int last  = j->choice.world > 1 ? record_micro(j, "last micro", 1) : -1;
        job_schedule_step(j, micro, last, record_update(j, "update", 0));
        int repel = record_repel(j), push = record_update(j, "push", 1);
        schedule_add(
            &j->step,
            (ScheduleRow){ .name = "table", .times = toy_keys(&j->recipe)->rounds, .prog = -1, .until = 1 });
        schedule_add(&j->step, (ScheduleRow){
                                   .name = "count", .depth = 1, .times = 1, .prog = -1, .host = count_turn });
        schedule_add(&j->step, (ScheduleRow){ .name = "repel", .depth = 1, .times = 1, .prog = repel });
        schedule_add(&j->step, (ScheduleRow){ .name = "push", .depth = 1, .times = 1, .prog = push });
    }
    int eval = record_eval(j);
    schedule_add(&j->eval, (ScheduleRow){ .name = "eval", .times = 1, .prog = eval, .feeds = 1 });
    return 0;
}

/* ---- facts -------------------------------------------------------------------------------------------- */

static int64_t toy_units(const Recipe *r) { return 1; }
static int64_t toy_rows(const Recipe *r) { return TOY_PARTS; }
static int     toy_has_val(const Recipe *r) { return 1; }
static double  repel_weight(const Recipe *r) { return -toy_keys(r)->weight; }
static int64_t repel_targets(const Recipe *r) { return TOY_PICK; }

static void toy_print_eval(const TaskEval *e, const Recipe *r, FILE *out)
{
    fprintf(out, "distance %.6f, agreement %.6f over %lld pictures\n", e->value[0], e->value[1],
            (long long)e->n_target);
}

static const TaskLoss losses[] = {
    [TOY_DISTANCE] = { .name = "distance" }, [TOY_REPEL] = { "repel", repel_weight, repel_targets }
};
static const TaskMetric metrics[] = { { .name = "distance", .slot = TOY_DISTANCE },
                                      { .name = "agreement", .slot = TOY_AGREEMENT, .larger = 1 } };

/* ---- what it shows ------------------------------------------------------------------------------------ */

/* The table as a picture, brightest where it is largest, and the student's mean. */
int toy_sample(Job *j, const TaskSample *opt, FILE *out)
{
    float      x[TOY_TABLE * TOY_DIM], mean        = 0;
    uint8_t    rgb[3 * TOY_TABLE * TOY_DIM], *jpeg = NULL;
    size_t     n = 0;
    const Toy *t = toy_of(j);
    TRY(job_download(j, t->table_x, x, sizeof x));
    for (int i = 0; i < TOY_TABLE * TOY_DIM; i++) {
        mean += x[i] / (TOY_TABLE * TOY_DIM);
        memset(rgb + 3 * i, (int)MAX(0, MIN(255, 128 + 60 * x[i])), 3);
    }
    fprintf(out, "%d rows, mean %.4f, seed %d", TOY_TABLE, (double)mean, (int)opt->seed);
    if (!opt->picture) return 0;
    TRY(image_encode_jpeg(rgb, TOY_DIM, TOY_TABLE, 90, &jpeg, &n));
    fwrite(jpeg, 1, n, opt->picture);
    free(jpeg);
    return 0;
}

const Task task_toy = {
    .name            = "toy",
    .unit            = "pictures",
    .one             = "picture",
    .lighter_net     = "a smaller toy.width",
    .lighter_sample  = "a smaller toy.width",
    .loss            = losses,
    .n_loss          = ARRAY_LEN(losses),
    .metric          = metrics,
    .n_metric        = ARRAY_LEN(metrics),
    .best            = 1,
    .units           = toy_units,
    .rows            = toy_rows,
    .declare         = toy_declare,
    .record          = toy_record,
    .release         = toy_release,
    .init_constants  = toy_init_constants,
    .has_val         = toy_has_val,
    .open_train      = toy_open_train,
    .open_val        = toy_open_val,
    .sample          = toy_sample,
    .print_eval      = toy_print_eval,
    .own_state_bytes = sizeof(ToyState),
};
