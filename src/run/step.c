#include "run/step.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* All but `in` is always 0: these fields clear those of StepOut. */
typedef struct {
    StepIn  in;
    double  sum[LOSS_SLOTS], report[LOSS_SLOTS];
    int32_t n_report, stop;
} Upload;

_Static_assert(sizeof(Upload) == STEP_UPLOAD_BYTES, "StepIn and the cleared sums travel together");
_Static_assert(offsetof(StepState, out.grad_sumsq) == STEP_UPLOAD_BYTES, "the sums are the first of StepOut");

/* Which losses a program adds up, and whether it is an update. */
static void note_losses(Stepper *s)
{
    const Job *j = s->job;
    for (int i = 0; i < j->n_prog; i++) {
        for (int k = 0; k < prog_n_op(j->prog[i]); k++) {
            const Op      *op  = prog_op(j->prog[i], k);
            const LossAdd *add = &op->args.loss_add;
            if (op->kind == OP_LOSS_ADD) s->adds[i] |= ((1u << MAX(add->n_slot, 1)) - 1) << add->slot;
            s->clips[i] |= op->kind == OP_CLIP;
        }
    }
}

int stepper_init(Stepper *s, Job *j, int depth)
{
    memset(s, 0, sizeof *s);
    Dev *dev           = j->dev;
    int  world         = comm_world(j->comm);
    s->job             = j;
    s->sample_per_step = job_micro_per_step(j) * j->choice.micro_batch * world;
    CHECK(MAX(j->choice.world, 1) == world, "built for %d ranks, run by %d", j->choice.world, world);
    s->in   = dev->vt->host_alloc(dev, STEP_RING * sizeof(Upload));
    s->out  = dev->vt->host_alloc(dev, STEP_RING * sizeof(StepOut));
    s->flag = dev->vt->host_alloc(dev, (UNTIL_LAG + 1) * sizeof *s->flag);
    if (!s->in || !s->out || !s->flag) return -1;
    s->own_before = mem_alloc(MAX(j->task->own_state_bytes, 1));
    if (!s->own_before) return err_sys("memory for the task's state");
    note_losses(s);
    return feed_init(&s->feed, j, depth, MARK_TRAIN);
}

static void end_scratch(Stepper *s)
{
    if (s->src) source_end_scratch(s->src, s->scratch);
    free(s->scratch);
    s->scratch = NULL;
}

void stepper_deinit(Stepper *s)
{
    if (!s->job) return;
    Dev *dev = s->job->dev;
    dev->vt->sync(dev); /* uploads may still read the slots */
    feed_deinit(&s->feed);
    if (s->in) dev->vt->host_free(dev, s->in);
    if (s->out) dev->vt->host_free(dev, s->out);
    if (s->flag) dev->vt->host_free(dev, s->flag);
    end_scratch(s);
    free(s->own_before);
    memset(s, 0, sizeof *s);
}

int stepper_attach(Stepper *s, const Source *src, int64_t first_sample, const SampleRange *skip, int n_skip)
{
    end_scratch(s);
    s->scratch     = mem_zeroed(1, MAX(src->scratch_bytes, 1));
    s->src         = src;
    s->next_sample = first_sample;
    s->skip        = skip;
    s->n_skip      = n_skip;
    if (!s->scratch) return err_sys("memory for reading samples");
    return feed_attach(&s->feed, src, &(FeedStart){ first_sample, skip, n_skip });
}

/* ---- ranks -------------------------------------------------------------------------------------------- */

/* What a rank says about its batches. */
typedef struct {
    int32_t failed;
    char    text[508];
} DataWord;

/* Fails on every rank when one had no batch, with its message. All call it before anything in the list waits
 * for another rank: one that left earlier would leave the others waiting, with their steps unsaved. */
static int agree_on_data(Stepper *s, int ok)
{
    Comm    *c   = s->job->comm;
    int64_t  any = !ok;
    DataWord own = { .failed = !ok };
    if (!c) return ok ? 0 : -1;
    str_copy(own.text, sizeof own.text, err_get());
    if (!ok) err_clear(); /* what the ranks say to each other may fail too */
    TRY(comm_max_i64(c, &any, 1));
    if (!any) return 0;
    DataWord *all = mem_zeroed((size_t)comm_world(c), sizeof *all);
    if (!all) return err_sys("memory for messages");
    int rc = comm_all_gather(c, all, &own, sizeof own), r = 0;
    while (rc == 0 && !all[r].failed) r++;
    if (rc == 0) {
        s->data_failed = 1;
        err_set("rank %d: %s", r, all[r].text);
    }
    free(all);
    return -1;
}

/* ---- walking ------------------------------------------------------------------------------------------ */

/* One walk of a schedule. */
typedef struct {
    Stepper *s;
    Feed    *feed;
    int64_t  step;     /* -1: an evaluation */
    int64_t  n_until;  /* flags asked for so far */
    int64_t *n_target; /* of an evaluation, by slot */
    int      data_ok;  /* 0: a batch could not be had */
    int      mixed;    /* 1: a program ran that feeds nothing */
    unsigned pending;  /* losses since the last update, as bits */
    char     what[48]; /* of the bar */
    Progress bar;      /* of the outermost loop that is walked: on a CPU one step may take minutes */
    int      has_bar;  /* 1: taken by that loop */
} Walk;

enum { WALK_STOP = 1, WALK_LEAVE = 2 };

/* The step before has ended if its mark has passed; the host may have learned so by waiting for something
 * later. */
static void note_step_before(const Walk *w)
{
    Stepper *s = w->s;
    int      k = (int)((w->step + STEP_RING - 1) % STEP_RING);
    if (w->step <= 0 || s->done_s[k] != 0) return;
    if (s->job->dev->vt->mark_passed(s->job->dev, MARK_STEP + k) > 0) s->done_s[k] = clock_now_s();
}

static int take_batch(Walk *w, const ScheduleRow *row)
{
    LoaderBatch batch;
    int         waited = feed_make_room(w->feed);
    if (waited < 0) return -1;
    if (waited && w->step >= 0) note_step_before(w);
    w->data_ok = feed_take(w->feed, &batch) == 0;
    if (row->sums || !w->data_ok) TRY(agree_on_data(w->s, w->data_ok));
    for (int k = 0; w->n_target && k < LOSS_SLOTS; k++) w->n_target[k] += batch.n_target[k];
    return feed_upload(w->feed, &batch);
}

/* 1: the device said stop, UNTIL_LAG turns ago. */
static int ask_until(Walk *w)
{
    Stepper    *s    = w->s;
    Dev        *dev  = s->job->dev;
    int         slot = (int)(w->n_until % (UNTIL_LAG + 1));
    const char *stop = (const char *)s->job->state->data + offsetof(StepState, out.stop);
    TRY(dev->vt->download(dev, LANE_COMPUTE, &s->flag[slot], stop, sizeof *s->flag));
    TRY(dev->vt->mark(dev, LANE_COMPUTE, MARK_UNTIL + slot));
    if (w->n_until++ < UNTIL_LAG) return 0;
    slot = (int)((w->n_until - 1 - UNTIL_LAG) % (UNTIL_LAG + 1));
    TRY(dev->vt->mark_wait(dev, MARK_UNTIL + slot));
    return s->flag[slot] != 0;
}

/* 1: the bar is now that of the loop with so many turns. */
static int begin_bar(Walk *w, int64_t n_turn)
{
    if (w->has_bar || n_turn < 2) return 0;
    progress_begin_aside(&w->bar, w->what, NULL, n_turn);
    return w->has_bar = 1;
}

static void end_bar(Walk *w)
{
    progress_end(&w->bar);
    w->has_bar = 0;
}

static int walk_rows(Walk *w, const Schedule *sch, int first, int last);

static int run_program(Walk *w, const ScheduleRow *row)
{
    Stepper *s = w->s;
    w->mixed |= !row->feeds;
    w->pending |= s->adds[row->prog];
    if (s->clips[row->prog] && w->step >= 0) {
        for (int k = 0; k < LOSS_SLOTS; k++)
            s->n_report[w->step % STEP_RING][k] += (int)(w->pending >> k & 1);
        w->pending = 0;
    }
    return prog_run(s->job->prog[row->prog], s->job->dev);
}

/* One run of a row and of the rows that belong to it. WALK_* when its loop must end. */
static int walk_row(Walk *w, const Schedule *sch, int i, int end, int64_t turn)
{
    const ScheduleRow *row = &sch->row[i];
    Job               *j   = w->s->job;
    if (job_leaves(j)) return WALK_LEAVE;
    if (row->feeds) TRY(take_batch(w, row));
    if (row->sums && !row->feeds) TRY(agree_on_data(w->s, 1));
    int gave_up = row->host ? row->host(j, turn) : 0;
    if (gave_up != 0) return gave_up < 0 ? -1 : WALK_LEAVE;
    if (row->prog >= 0) TRY(run_program(w, row));
    int rc = i + 1 < end ? walk_rows(w, sch, i + 1, end) : 0;
    if (rc != 0) return rc;
    return row->until ? ask_until(w) : 0;
}

/* Rows [first, last), which have the depth of the first one or more. */
static int walk_rows(Walk *w, const Schedule *sch, int first, int last)
{
    for (int i = first; i < last;) {
        int end = i + 1;
        while (end < last && sch->row[end].depth > sch->row[i].depth) end++;
        int is_loop = end > i + 1, has_bar = begin_bar(w, sch->row[i].times), rc = 0;
        for (int64_t turn = 0; turn < sch->row[i].times && rc == 0; turn++) {
            if (has_bar) progress_count(&w->bar, turn);
            rc = walk_row(w, sch, i, end, turn);
        }
        if (has_bar) end_bar(w);
        if (rc == WALK_STOP && is_loop) rc = 0;
        if (rc != 0) return rc; /* WALK_STOP ends the loop that this row belongs to */
        i = end;
    }
    return 0;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

/* Rows of a loss with a target in the step that begins at s->next_sample, over all ranks. */
static int count_targets(Stepper *s, int slot, double *out)
{
    const Source *src = s->src;
    *out              = (double)s->sample_per_step * (double)src->targets_each[slot];
    if (!src->vt->targets) return 0;
    int64_t sum = 0;
    for (int64_t i = 0; i < s->sample_per_step; i++) {
        int64_t n = source_targets(src, order_skip(s->skip, s->n_skip, s->next_sample + i), slot, s->scratch);
        if (n < 0) return -1;
        sum += n;
    }
    *out = (double)sum;
    return 0;
}

static int upload_in(Stepper *s, const StepIn *in, int ring)
{
    Job    *j  = s->job;
    Upload *up = (Upload *)s->in + ring;
    memset(up, 0, sizeof *up);
    up->in = *in;
    return j->dev->vt->upload(j->dev, LANE_COMPUTE, j->state->data, up, sizeof *up);
}

static int begin_state(Stepper *s, int64_t step, double lr)
{
    const Task   *task = s->job->task;
    const Recipe *r    = &s->job->recipe;
    StepIn        in   = { .step = step, .seed = (uint64_t)r->seed, .lr = (float)lr, .loss_scale = 1.0f };
    int           nan = fault_hit(FAULT_NAN), spike = fault_hit(FAULT_SPIKE);
    if (fault_hit(FAULT_OVERFLOW)) in.loss_scale = INFINITY;
    for (int k = 0; k < task->n_loss; k++) {
        double n, weight = task->loss[k].weight ? task->loss[k].weight(r) : 1;
        if (task->loss[k].targets) {
            n = (double)task->loss[k].targets(r);
        } else {
            TRY(count_targets(s, k, &n));
        }
        if (task->loss[k].measure) in.measures |= 1 << k;
        if (nan) n = NAN;
        if (spike) n /= 100;
        in.inv[k] = n == 0 ? 0.0f : (float)(weight / n);
    }
    return upload_in(s, &in, (int)(step % STEP_RING));
}

int step_begin(Stepper *s, int64_t step, double lr)
{
    Job *j          = s->job;
    Dev *dev        = j->dev;
    int  ring       = (int)(step % STEP_RING);
    s->done_s[ring] = 0;
    memset(s->n_report[ring], 0, sizeof s->n_report[ring]);
    TRY(begin_state(s, step, lr));
    Walk w = { .s = s, .feed = &s->feed, .step = step };
    snprintf(w.what, sizeof w.what, "step %lld of %lld", (long long)step + 1, (long long)j->recipe.steps);
    if (j->own_state) memcpy(s->own_before, j->own_state, j->task->own_state_bytes);
    int rc = walk_rows(&w, &j->step, 0, j->step.n);
    if (rc < 0 && j->own_state) memcpy(j->own_state, s->own_before, j->task->own_state_bytes);
    if (rc < 0 || rc == WALK_LEAVE) s->is_mixed |= w.mixed;
    if (rc < 0) return -1;
    CHECK(rc != WALK_STOP, "%s: a row with until belongs to no loop", j->task->name);
    if (rc == WALK_LEAVE) return 1;
    s->next_sample += s->sample_per_step;
    TRY(dev->vt->download(dev, LANE_COMPUTE, &s->out[ring], (char *)j->state->data + offsetof(StepState, out),
                          sizeof(StepOut)));
    if (!dev->vt->hints->is_late) s->done_s[ring] = clock_now_s(); /* all was done by the calls above */
    return dev->vt->mark(dev, LANE_COMPUTE, MARK_STEP + ring);
}

int step_result(Stepper *s, int64_t step, StepOut *out)
{
    Dev *dev  = s->job->dev;
    int  ring = (int)(step % STEP_RING);
    TRY(dev->vt->mark_wait(dev, MARK_STEP + ring));
    *out = s->out[ring];
    if (s->done_s[ring] == 0) s->done_s[ring] = clock_now_s();
    return 0;
}

int step_reports(const Stepper *s, int64_t step, int slot) { return s->n_report[step % STEP_RING][slot]; }

double step_done_s(const Stepper *s, int64_t step) { return s->done_s[step % STEP_RING]; }

/* ---- evaluation --------------------------------------------------------------------------------------- */

static int sum_up(Stepper *s, const int64_t *n_target, const Source *src, TaskEval *out)
{
    const Task *task = s->job->task;
    StepState   st;
    double      sum[2 * LOSS_SLOTS];
    TRY(job_read_state(s->job, &st));
    for (int k = 0; k < LOSS_SLOTS; k++) {
        sum[k]              = st.out.sum[k];
        sum[LOSS_SLOTS + k] = (double)n_target[k];
    }
    TRY(comm_sum_f64(s->job->comm, sum, 2 * LOSS_SLOTS));
    *out = (TaskEval){ .n_sample         = src->n_sample,
                       .n_all            = src->n_all,
                       .bytes_per_target = src->bytes_per_target,
                       .job              = s->job };
    CHECK(task->n_metric <= ARRAY_LEN(out->value), "%d measures", task->n_metric);
    for (int k = 0; k < task->n_metric; k++) {
        int    slot   = task->metric[k].slot;
        double n      = sum[LOSS_SLOTS + slot];
        out->value[k] = n > 0 ? sum[slot] / n : NAN; /* nothing was measured */
        /* No logit is above one that is no number, so each such row is a hit. */
        if (task->metric[k].larger && !isfinite(out->value[0])) out->value[k] = NAN;
        if (k == 0) out->n_target = (int64_t)n;
    }
    return 0;
}

/* One turn of all ranks, each with a batch of its own if has_batch. 1: a rank gave up because of a signal. */
static int evaluate_turn(Walk *w, int has_batch)
{
    Job *j  = w->s->job;
    int  rc = has_batch ? walk_rows(w, &j->eval, 0, j->eval.n) : 0;
    CHECK(rc != WALK_STOP, "%s: a row with until belongs to no loop", j->task->name);
    if (rc < 0) return -1; /* a batch that is missing was agreed on in take_batch() */
    TRY(agree_on_data(w->s, 1));
    int64_t left = rc == WALK_LEAVE;
    TRY(comm_max_i64(j->comm, &left, 1));
    return (int)left;
}

int step_evaluate(Stepper *s, Feed *val, const Source *src, TaskEval *out)
{
    Job    *j                    = s->job;
    int64_t n_target[LOSS_SLOTS] = { 0 }, rank = comm_rank(j->comm), world = comm_world(j->comm);
    int64_t n_batch = (src->n_sample + j->fields.B - 1) / j->fields.B;
    Walk    w = { .s = s, .feed = val, .step = -1, .n_target = n_target, .data_ok = 1, .what = "evaluation" };
    int     rc = 0, has_bar = begin_bar(&w, n_batch);
    TRY(j->dev->vt->sync(j->dev)); /* the ring's entry is free */
    TRY(upload_in(s, &(StepIn){ .loss_scale = 1.0f }, 0));
    j->may_leave = 1; /* a part of an evaluation is dropped: nothing is lost */
    for (int64_t i = 0; i < n_batch && rc == 0; i += world) {
        if (has_bar) progress_count(&w.bar, i);
        rc = evaluate_turn(&w, i + rank < n_batch);
    }
    if (has_bar) end_bar(&w);
    j->may_leave = 0;
    if (rc < 0) return -1;
    TRY(feed_drain(val));
    return rc > 0 ? 1 : sum_up(s, n_target, src, out);
}
