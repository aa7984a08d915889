#include "run/train.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/str.h"
#include "optim/schedule.h"
#include "run/bench.h"
#include "run/ckpt.h"
#include "run/metrics.h"
#include "run/rundir.h"
#include "run/setup.h"
#include "run/signals.h"
#include "run/step.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VAL_SLOTS = 3 };

/* Rollbacks without a good step beyond where the last one began: other samples did not help, so it is not them. */
enum { MAX_ROLLBACKS = 3 };

/* How long a finished run tries to save what it has before it gives up. */
static const double last_save_s = 600, last_save_pause_s = 2;

/* What only one rank may know. All must see it alike, or they would rest, evaluate or stop at different steps. */
typedef struct {
    int64_t signal;      /* a signal asks to stop */
    int64_t over_budget; /* the time is used up */
    int64_t retry_save;  /* the last save failed and it is time to try again */
} Asked;

typedef struct {
    const Recipe *r;
    double        begin_s;     /* program start */
    Comm         *comm;        /* NULL: one rank */
    Setup         setup;
    RunDir        dir;
    Source       *train, *val;
    Stepper       stepper;
    Loader       *val_loader;
    void         *val_slots[VAL_SLOTS];
    CkptWriter   *writer;
    Metrics       metrics;
    Progress      progress;
    CkptState     at;          /* what a checkpoint taken now would say; at.step = updates whose result was read */
    int64_t       queued;      /* steps handed to the device */
    int64_t       first_step;  /* of this process */
    double        last_s;      /* when the last result was read */
    double        step_s;      /* smoothed seconds a step */
    double        lr[STEP_RING];
    double        first_val, last_val, first_loss, last_loss;
    int           save_failed; /* of this rank; the others learn through asked when it tries again */
    int64_t       retry_step, retry_after; /* when that is, and how many steps it waited for it */
    int           save_due;    /* waits for a step that was not skipped */
    int64_t       last_saved;
    int           n_skip_row;  /* skipped steps in a row, up to the last result */
    int           n_rollback;  /* in a row, see MAX_ROLLBACKS */
    int64_t       bad_until;   /* the step that led to the last one */
    int           in_flux;     /* 1: the device's state is being replaced and must not be saved */
    Asked         asked;
} Run;

static double run_elapsed(const Run *run) { return run->at.elapsed_s + clock_now_s() - run->begin_s; }

/* ---- opening ----------------------------------------------------------------------------------------------- */

/* Whole or as before: without its recipe a run could not be evaluated any more. */
static int write_text(Run *run, const char *path, void (*print)(Run *run, FILE *f))
{
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    print(run, f);
    return file_publish(&f, path);
}

static void print_machine(Run *run, FILE *f) { setup_print_machine(&run->setup, f); }

static void print_plan(Run *run, FILE *f)
{
    build_print_plan(run->setup.build, f);
    fprintf(f, "\n");
    choose_print(&run->setup.choice, run->r, f);
    fprintf(f, "\noptimisations\n");
    setup_print_switches(&run->setup, run->r, f);
}

static void make_absolute(char path[RECIPE_STR])
{
    char full[PATH_MAX];
    if (path[0] && realpath(path, full) && strlen(full) < RECIPE_STR) str_copy(path, RECIPE_STR, full);
}

/* Data by absolute path: the recipe in the run directory works from any folder. */
static void print_recipe(Run *run, FILE *f)
{
    Recipe r = *run->r;
    make_absolute(r.data.train);
    make_absolute(r.data.val);
    recipe_write(&r, f);
}

static int open_val(Run *run)
{
    if (run->r->data.kind == DATA_RANDOM) return 0; /* nothing to learn, nothing to evaluate */
    Dev *dev = run->setup.dev;
    TRY(source_open(&run->val, run->r, 1));
    const NetBatch *b = &run->setup.build->batch;
    for (int i = 0; i < VAL_SLOTS; i++) {
        run->val_slots[i] = dev->vt->host_alloc(dev, loader_batch_bytes(b->B, b->T, b->doc != NULL));
        if (!run->val_slots[i]) return -1;
    }
    LoaderConfig cfg = stepper_loader_config(&run->stepper, run->val_slots, VAL_SLOTS);
    cfg.eval         = 1;
    cfg.inline_fill  = 1;
    return loader_create(&run->val_loader, &cfg, run->val);
}

static int attach_at(Run *run)
{
    return stepper_attach(&run->stepper, run->train, run->at.next_sample, run->at.skip, run->at.n_skip);
}

/* 1: continued from a checkpoint; 0: there is none. Rank 0 finds it, the others read the same one. */
static int resume(Run *run)
{
    Build  *b = run->setup.build;
    char    note[512] = "", path[RUNDIR_PATH + 32];
    int64_t got[2]    = { 0, 0 }; /* found, step */
    if (comm_rank(run->comm) == 0) {
        got[0] = ckpt_resume(b, run->dir.checkpoints, &run->at, note, sizeof note);
        got[1] = run->at.step;
    }
    TRY(comm_broadcast(run->comm, got, sizeof got));
    if (comm_rank(run->comm) > 0 && got[0] < 0) return err_set("rank 0 cannot read the checkpoints");
    if (comm_rank(run->comm) > 0 && got[0] > 0) {
        TRY(ckpt_path(run->dir.checkpoints, got[1], path, sizeof path));
        TRY(ckpt_load(b, path, &run->at, note, sizeof note));
    }
    if (got[0] > 0) log_info("resuming after step %lld%s%s", (long long)run->at.step, note[0] ? ": " : "", note);
    return (int)got[0];
}

static int open_dir(Run *run, int fresh)
{
    int rc = comm_rank(run->comm) == 0 ? rundir_open(&run->dir, run->r->run, fresh) : rundir_paths(&run->dir, run->r->run);
    if (rc < 0) return -1;
    return comm_barrier(run->comm); /* the others look into it only now */
}

static int write_texts(Run *run)
{
    TRY(write_text(run, run->dir.recipe, print_recipe));
    TRY(write_text(run, run->dir.machine, print_machine));
    return write_text(run, run->dir.plan, print_plan);
}

static int open_files(Run *run)
{
    if (comm_rank(run->comm) > 0) return 0;
    TRY(rundir_trim_metrics(&run->dir, run->at.step > 0 ? run->at.step + 1 : 0));
    TRY(write_texts(run));
    TRY(metrics_open(&run->metrics, run->dir.metrics));
    return ckpt_writer_create(&run->writer, run->setup.build, run->dir.checkpoints);
}

static int open_run(Run *run, const TrainOptions *opt)
{
    const Recipe *r = run->r;
    TRY(source_open(&run->train, r, 0)); /* first: data that cannot be used must not move an old run aside */
    TRY(open_dir(run, opt->fresh));
    TRY(setup_open_ranks(&run->setup, r, BUILD_TRAIN, run->comm));
    log_info("%s: %s", run->setup.info.name, run->setup.why);
    run->at = (CkptState){ .seed = (uint64_t)r->seed, .best_val = INFINITY };
    TRY(resume(run) < 0 ? -1 : 0);
    run->first_step = run->last_saved = run->queued = run->at.step;
    TRY(stepper_init(&run->stepper, run->setup.build, (int)r->data.depth));
    TRY(open_val(run));
    TRY(attach_at(run));
    return open_files(run);
}

static void close_run(Run *run)
{
    ckpt_writer_destroy(run->writer);
    if (run->setup.dev) {
        stepper_deinit(&run->stepper);
        loader_destroy(run->val_loader);
        for (int i = 0; i < VAL_SLOTS; i++) {
            if (run->val_slots[i]) run->setup.dev->vt->host_free(run->setup.dev, run->val_slots[i]);
        }
    }
    source_close(run->train);
    source_close(run->val);
    metrics_close(&run->metrics);
    setup_close(&run->setup);
    rundir_close(&run->dir);
}

static void announce(Run *run)
{
    const Recipe      *r = run->r;
    const BuildChoice *c = &run->setup.build->choice;
    char               n[32], mem[32], tok[32], ranks[32] = "";
    if (run->comm) snprintf(ranks, sizeof ranks, "%d ranks x ", comm_world(run->comm));
    log_info("%s parameters, %s tokens a step = %s%lld x %lld x %lld, recompute %s, %s planned",
             str_count(n, sizeof n, (double)param_count(&run->setup.build->net.table)),
             str_count(tok, sizeof tok, (double)r->step_tokens), ranks, (long long)run->stepper.n_micro, (long long)c->micro_batch,
             (long long)r->model.context, recompute_name(c->level),
             str_bytes(mem, sizeof mem, (double)store_total_bytes(&run->setup.build->store)));
    log_info("%s", run->setup.choice.why);
    log_info("everything else in %s/", run->dir.path);
}

/* ---- once in a while --------------------------------------------------------------------------------------- */

/* 1: training should stop. */
static int after_eval(Run *run, double val)
{
    const RecipeEval *e = &run->r->eval;
    run->last_val       = val;
    if (val < run->at.best_val) {
        run->at.best_val  = val;
        run->at.bad_evals = 0;
    } else {
        run->at.bad_evals++;
    }
    if (e->target > 0 && val <= e->target) {
        log_info("target reached: validation loss %.4f is at or below %.4f", val, e->target);
        return 1;
    }
    if (e->patience > 0 && run->at.bad_evals >= e->patience) {
        log_info("stopping early: %lld evaluations without improvement, best %.4f", (long long)run->at.bad_evals, run->at.best_val);
        return 1;
    }
    return 0;
}

static int evaluate(Run *run, int *stop)
{
    if (!run->val_loader) return 0;
    double val;
    TRY(loader_restart(run->val_loader, 0));
    int64_t B = run->setup.build->batch.B;
    TRY(step_evaluate(&run->stepper, run->val_loader, (run->r->eval.sequences + B - 1) / B, &val));
    metrics_eval(&run->metrics, run->at.step, val, run_elapsed(run));
    log_info("step %lld: validation loss %.4f", (long long)run->at.step, val);
    if (run->at.step == run->first_step) run->first_val = val;
    *stop |= after_eval(run, val);
    run->last_s = clock_now_s();
    return 0;
}

/* A failed save is loud and is tried again after 1, 2, 4 ... steps: a disk that stays full must not turn training into
 * copying. result: of ckpt_poll or ckpt_wait. */
static void report_save(Run *run, int result, const char *msg)
{
    if (result < 0) {
        int64_t most     = run->r->checkpoint.every > 0 ? run->r->checkpoint.every : INT64_MAX / 2;
        run->retry_after = run->save_failed ? MIN(2 * run->retry_after, most) : 1;
        run->retry_step  = run->at.step + run->retry_after;
        run->save_failed = 1;
        log_error("CHECKPOINT NOT SAVED: %s (training goes on, the last good one stays, trying again after step %lld)", msg,
                  (long long)run->retry_step);
    } else if (result > 0) {
        run->save_failed = 0;
        log_info("%s", msg);
    }
}

static void poll_save(Run *run)
{
    char msg[512];
    if (!run->writer) return;
    int  result = ckpt_poll(run->writer, msg, sizeof msg);
    report_save(run, result, msg);
}

static void wait_save(Run *run)
{
    char msg[512];
    if (!run->writer) return;
    int  result = ckpt_wait(run->writer, msg, sizeof msg);
    report_save(run, result, msg);
}

/* Negative without an error pending when there is no directory to save into; it was reported. */
static int hold_dir(Run *run)
{
    int made = rundir_hold(&run->dir);
    if (made > 0) {
        log_error("%s was removed or moved while this run was using it: made anew", run->dir.path);
        metrics_reopen(&run->metrics);
        made = write_texts(run);
    }
    if (made < 0) {
        report_save(run, -1, err_get());
        err_clear();
    }
    return made;
}

static int save(Run *run)
{
    if (!run->writer) return 0;
    wait_save(run);
    if (hold_dir(run) < 0) return 0;
    CkptState *now = &run->at;
    double     before = now->elapsed_s;
    now->elapsed_s   = run_elapsed(run);
    now->seed        = (uint64_t)run->r->seed;
    now->micro_batch = run->setup.build->choice.micro_batch;
    now->recompute_level = run->setup.build->choice.level;
    now->threads     = run->r->threads;
    if (ckpt_begin(run->writer, run->setup.build, now) < 0) return -1;
    now->elapsed_s  = before;
    run->last_saved = run->at.step;
    run->retry_step = INT64_MAX; /* until this one's result is known */
    run->last_s     = clock_now_s();
    return 0;
}

/* ---- results ----------------------------------------------------------------------------------------------- */

/* Reads the result of one finished step. */
static int take_result(Run *run, StepOut *out)
{
    Build  *b    = run->setup.build;
    int64_t step = run->at.step;
    TRY(step_result(&run->stepper, step, out));
    double now = clock_now_s(), dt = now - run->last_s;
    run->last_s = now;
    run->step_s = run->step_s > 0 ? 0.9 * run->step_s + 0.1 * dt : dt;
    run->at.step++;
    run->at.next_sample += run->stepper.sample_per_step;
    MetricsStep m = { .step = run->at.step, .lr = run->lr[step % STEP_RING], .time_s = run_elapsed(run) };
    m.per_s       = (double)run->r->step_tokens / run->step_s;
    double peak   = run->setup.machine.peak_flops * comm_world(run->comm);
    if (peak > 0) m.mfu = bench_step_flops(b) / run->step_s / peak;
    if (step == run->first_step) run->first_loss = out->loss;
    run->last_loss = out->loss;
    run->n_skip_row = out->n_skip_row;
    if (!out->skip && run->at.step > run->bad_until) run->n_rollback = 0;
    if (out->skip) {
        log_warn("step %lld skipped: %s (loss %g, gradient norm %g); %d skipped so far", (long long)run->at.step,
                 metrics_skip_name(out->skip), (double)out->loss, (double)out->grad_norm, out->n_skipped);
    }
    if (run->at.step % run->r->log_every == 0 || out->skip || run->at.step == run->r->steps) {
        metrics_step(&run->metrics, &m, out);
    }
    progress_update(&run->progress, run->at.step, out->loss, m.per_s);
    return 0;
}

/* ---- going back -------------------------------------------------------------------------------------------- */

static int may_roll_back(Run *run, const StepOut *out)
{
    if (run->at.n_skip >= CKPT_MAX_SKIP) return err_set("rolled back %d times; giving up", run->at.n_skip);
    if (run->n_rollback++ < MAX_ROLLBACKS) return 0;
    return err_set("%d steps in a row were skipped once more after %d rollbacks, each past other samples, so these are not "
                   "the cause: giving up at step %lld (what may help: a lower optim.lr; a larger spike_factor or max_skips; "
                   "going on from an earlier checkpoint, by removing the later ones in %s)", out->n_skip_row, MAX_ROLLBACKS,
                   (long long)run->at.step, run->dir.checkpoints);
}

/* Lines of the steps that will be done again. Failing costs the file its order, not the run its life. */
static void trim_metrics(Run *run)
{
    if (!run->metrics.is_open) return;
    if (rundir_trim_metrics(&run->dir, run->at.step + 1) < 0) {
        log_error("METRICS: %s (steps will be there twice)", err_get());
        err_clear();
    }
    metrics_reopen(&run->metrics); /* the trimmed file is a new one */
}

/* The last good checkpoint, with what was learned since about samples. */
static int load_last_good(Run *run, const StepOut *out)
{
    CkptState before = run->at; /* its skip list may be newer than the checkpoint's */
    int       found  = resume(run);
    if (found < 0) return -1;
    if (found == 0) return err_set("%d steps in a row were skipped and there is no checkpoint to go back to", out->n_skip_row);
    run->at.elapsed_s = before.elapsed_s;
    memcpy(run->at.skip, before.skip, sizeof before.skip);
    run->at.n_skip = before.n_skip;
    /* What the checkpoint has already used keeps its number: only samples after its cursor can be passed over. */
    int64_t end   = before.next_sample;
    int64_t first = MAX(run->at.next_sample, end - out->n_skip_row * run->stepper.sample_per_step);
    if (end > first) run->at.n_skip = order_skip_add(run->at.skip, run->at.n_skip, first, end - first);
    log_warn("rolled back to step %lld; the %lld samples of the skipped steps are passed over from now on",
             (long long)run->at.step, (long long)(end - first));
    /* A checkpoint taken on the way out may stand in the middle of a row of skips; the row begins anew. */
    run->at.device.out.n_skip_row = 0;
    return build_write_state(run->setup.build, &run->at.device);
}

/* Too many skips in a row: back to the last good checkpoint, and past the samples that did it. */
static int roll_back(Run *run, const StepOut *out)
{
    run->in_flux = 1;
    TRY(may_roll_back(run, out));
    run->bad_until = run->at.step;
    TRY(run->setup.dev->vt->sync(run->setup.dev));
    wait_save(run);
    TRY(load_last_good(run, out));
    trim_metrics(run);
    run->queued = run->last_saved = run->at.step;
    run->n_skip_row = run->save_due = 0;
    TRY(attach_at(run));
    run->in_flux = 0;
    return 0;
}

/* ---- the loop ---------------------------------------------------------------------------------------------- */

/* Steps the schedule should count on: those of the recipe, or fewer when the time budget will end the run first. */
static int64_t schedule_steps(const Run *run, int64_t step)
{
    if (run->r->budget_s <= 0 || run->step_s <= 0) return run->r->steps;
    double left = run->r->budget_s - run_elapsed(run);
    return MIN(run->r->steps, step + MAX(1, (int64_t)(left / run->step_s)));
}

static int due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

static int queue_step(Run *run, int64_t step)
{
    double lr = schedule_lr(&run->r->optim, step, schedule_steps(run, step));
    if (run->r->budget_s > 0) TRY(comm_broadcast(run->comm, &lr, sizeof lr)); /* clocks differ */
    run->lr[step % STEP_RING] = lr;
    return step_begin(&run->stepper, step, lr);
}

static int ask_ranks(Run *run)
{
    run->asked = (Asked){ .signal = signals_pending(), .retry_save = run->save_failed && run->at.step >= run->retry_step,
                          .over_budget = run->r->budget_s > 0 && run_elapsed(run) >= run->r->budget_s };
    return comm_max_i64(run->comm, (int64_t *)&run->asked, sizeof run->asked / sizeof(int64_t));
}

/* What must see the device at rest after the step just read. */
static int at_boundary(Run *run, int *stop)
{
    const Recipe *r = run->r;
    if (due(run->at.step, r->eval.every)) TRY(evaluate(run, stop));
    run->save_due |= due(run->at.step, r->checkpoint.every) || run->asked.retry_save;
    /* Amid skipped steps the weights may be what is wrong; a good step must come first. */
    if (run->save_due && run->n_skip_row == 0) {
        run->save_due = 0;
        TRY(save(run));
    }
    if (run->asked.over_budget) {
        log_info("time budget of %.0f s used up", r->budget_s);
        *stop = 1;
    }
    return 0;
}

static int is_boundary(const Run *run, int64_t done)
{
    const Recipe *r = run->r;
    return due(done, r->eval.every) || due(done, r->checkpoint.every) || run->save_due || run->asked.retry_save ||
           run->asked.signal || done >= r->steps || run->asked.over_budget;
}

static int train_loop(Run *run)
{
    int stop = 0;
    TRY(ask_ranks(run));
    while (!stop && run->at.step < run->r->steps) {
        StepOut out;
        /* One step is always queued ahead, except across a boundary, where the device must come to rest. */
        while (run->queued < run->r->steps && run->queued - run->at.step < 2 &&
               (run->queued == run->at.step || !is_boundary(run, run->queued))) {
            TRY(queue_step(run, run->queued));
            run->queued++;
        }
        TRY(take_result(run, &out));
        poll_save(run);
        TRY(ask_ranks(run));
        if (run->r->max_skips > 0 && out.n_skip_row >= run->r->max_skips) {
            TRY(roll_back(run, &out));
            continue;
        }
        if (run->queued == run->at.step) TRY(at_boundary(run, &stop));
        if (run->asked.signal && run->queued == run->at.step) {
            log_info("%s received: saving and leaving", signals_pending() ? signals_name() : "signal by another rank");
            stop = 1;
        }
    }
    return 0;
}

/* What was trained is only in memory now: a disk that is full or gone gets some time to come back. A signal ends that. */
static int save_last(Run *run)
{
    double begin_s = clock_now_s();
    int    sig     = signals_pending();
    wait_save(run);
    while (run->last_saved != run->at.step || run->save_failed) {
        TRY(save(run));
        wait_save(run);
        if (!run->save_failed) break;
        double left_s = begin_s + last_save_s - clock_now_s();
        if (left_s <= 0 || signals_pending() != sig) return err_set("the last checkpoint could not be saved");
        log_error("TRYING TO SAVE FOR ANOTHER %.0f s: make room, or send a signal to give up", left_s);
        for (double end_s = clock_now_s() + last_save_pause_s; clock_now_s() < end_s && signals_pending() == sig;) usleep(50000);
    }
    return 0;
}

/* After a failure that is not the device's (data that cannot be read, say): saves the steps that were done. */
static void save_what_is(Run *run)
{
    char    why[1024];
    ErrKind kind = err_kind();
    StepOut out;
    if (!run->writer || run->comm || run->in_flux) return;
    str_copy(why, sizeof why, err_get());
    err_clear();
    int rc = 0;
    while (rc == 0 && run->at.step < run->queued) rc = take_result(run, &out);
    wait_save(run);
    if (rc == 0 && run->n_skip_row == 0 && run->at.step > run->last_saved) rc = save(run);
    wait_save(run);
    err_clear();
    kind == ERR_USER ? err_user("%s", why) : err_set("%s", why);
}

static int finish(Run *run)
{
    int ignored = 0;
    progress_end(&run->progress);
    if (run->at.step == run->first_step && run->at.step >= run->r->steps) {
        log_info("%s has its %lld steps: nothing to do (more steps=... go on, --fresh starts anew)", run->dir.path,
                 (long long)run->at.step);
        return 0;
    }
    if (!due(run->at.step, run->r->eval.every) && !run->asked.signal) TRY(evaluate(run, &ignored));
    TRY(save_last(run));
    LoaderStats stats;
    char        t[32];
    loader_stats(run->stepper.loader, &stats);
    log_info("%lld steps done in %s; loss %.4f -> %.4f; waited %.1f s for data (loader headroom %.1fx)", (long long)run->at.step,
             str_duration(t, sizeof t, run_elapsed(run)), run->first_loss, run->last_loss, stats.waited_s, loader_headroom(&stats));
    return 0;
}

static int run_to_end(Run *run, const TrainOptions *opt)
{
    int ignored = 0; /* an untrained model cannot have reached anything */
    TRY(open_run(run, opt));
    announce(run);
    run->last_s = clock_now_s();
    if (run->at.step == 0) TRY(evaluate(run, &ignored));
    progress_begin(&run->progress, "train", "tokens/s", run->at.step, run->r->steps);
    if (train_loop(run) < 0 || finish(run) < 0) {
        save_what_is(run);
        return -1;
    }
    return comm_barrier(run->comm); /* no rank gives up its GPU while another one still talks to it */
}

/* Says which rank failed; a message about the user's input is the same on all of them. */
static void name_rank(const Run *run)
{
    char text[1024];
    if (!run->comm || err_kind() != ERR_RUN || str_starts_with(err_get(), "rank ")) return;
    str_copy(text, sizeof text, err_get());
    err_clear();
    err_set("rank %d: %s", comm_rank(run->comm), text);
}

int train_run(const Recipe *r, const TrainOptions *opt)
{
    Run   run   = { .r = r, .begin_s = opt->begin_s };
    FILE *quiet = NULL; /* where all ranks but the first talk to */
    TRY(signals_install());
    TRY(comm_open(&run.comm));
    if (comm_rank(run.comm) > 0) quiet = fopen("/dev/null", "w");
    if (quiet) log_open(quiet, NULL);
    int rc = run_to_end(&run, opt);
    close_run(&run);
    if (rc < 0) name_rank(&run);
    comm_close(run.comm, rc == 0);
    if (quiet) {
        log_close();
        fclose(quiet);
    }
    return rc;
}
