#include "run/train.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "optim/schedule.h"
#include "run/train_impl.h"

#include <math.h>
#include <string.h>

/* A step predicted to take longer is announced: silence would look like a program that hangs. */
enum { LONG_STEP_S = 60 };

static void announce(Run *run)
{
    const Job       *j        = run->setup.job;
    const JobChoice *c        = &j->choice;
    int64_t          units    = run->task->units(run->r);
    int64_t          n_frozen = job_frozen_count(j);
    char             n[32], mem[32], t[32], ranks[32] = "", each[32] = "", frozen[48] = "";
    if (n_frozen > 0)
        snprintf(frozen, sizeof frozen, " (%s frozen)", str_count(t, sizeof t, (double)n_frozen));
    if (run->comm) snprintf(ranks, sizeof ranks, "%d ranks x ", comm_world(run->comm));
    if (units > 1) snprintf(each, sizeof each, " x %lld", (long long)units);
    log_info("%s parameters%s, %s, %lld %s a step = %s%lld x %lld%s, recompute %s, %s planned",
             str_count(n, sizeof n, (double)job_param_count(j)), frozen, job_optimizer(j),
             (long long)job_units_per_step(j), job_unit_in_full(j), ranks, (long long)job_micro_per_step(j),
             (long long)c->micro_batch, each, recompute_level_name(c->level),
             str_bytes(mem, sizeof mem, (double)store_total_bytes(&j->store)));
    log_info("%s", run->setup.choice.why);
    if (!run->is_look && !run->said_data) train_say_data(run);
    run->said_data = 1;
    if (!run->is_look) log_info("everything else in %s/", run->dir.path);
    double step_s = run->setup.choice.row[run->setup.choice.best].step_s;
    if (step_s > LONG_STEP_S) {
        log_info("a step will take about %s here: nothing more is shown before the first one",
                 str_duration(t, sizeof t, step_s));
    }
}

/* ---- once in a while ---------------------------------------------------------------------------------- */

/* What was measured beside the measure that counts: ", perplexity 12.3, bits per byte 3.62", or nothing. */
static const char *say_also(const Run *run, const TaskEval *e, char *buf, size_t n)
{
    const Task *t = run->task;
    TaskNumber  also[TASK_NUMBERS];
    int         n_also = t->also ? t->also(e, run->r, also) : 0;
    buf[0]             = '\0';
    for (int k = 0; k < t->n_metric; k++) {
        if (k != t->best && isfinite(e->value[k]))
            str_append(buf, n, ", %s %.4g", t->metric[k].name, e->value[k]);
    }
    for (int k = 0; k < n_also; k++) str_append(buf, n, ", %s %.4g", also[k].name, also[k].value);
    for (char *c = buf; *c; c++) *c = *c == '_' ? ' ' : *c;
    return buf;
}

static const char *asked_by(void) { return signals_pending() ? signals_name() : "signal by another rank"; }

/* Who looks on may look at the device, which rests. */
static void watch_rest(Run *run, int is_eval)
{
    const Watcher *w = &run->metrics.watcher;
    if (w->rest) w->rest(w->self, run->setup.job, run->at.step, is_eval);
}

static int evaluate(Run *run, int *stop)
{
    const Task *t = run->task;
    TaskEval    e;
    if (!run->val || run->is_look) return 0;
    double begin_s = clock_now_s();
    watchdog_note(&run->watchdog, "the evaluation after step", run->at.step);
    TRY(feed_attach(&run->val_feed, run->val, &(FeedStart){ 0 }));
    int left = step_evaluate(&run->stepper, &run->val_feed, run->val, &e);
    if (left < 0) return -1;
    if (left > 0) {
        run->asked.signal = 1;
        log_info("%s received: the evaluation of step %lld is left out", asked_by(), (long long)run->at.step);
        return 0;
    }
    metrics_eval(&run->metrics, t, run->r, run->at.step, &e, train_elapsed(run));
    double val = e.value[t->best];
    if (isfinite(val)) {
        char more[384];
        log_info("step %lld: validation %s %.4f%s", (long long)run->at.step, t->metric[t->best].name, val,
                 say_also(run, &e, more, sizeof more));
    } else {
        log_warn("step %lld: validation %s is not finite", (long long)run->at.step, t->metric[t->best].name);
    }
    *stop |= train_after_eval(run, val);
    watch_rest(run, 1);
    watchdog_note(&run->watchdog, "step", run->at.step + 1);
    run->pace.last_s = clock_now_s();
    run->pace.eval_s += run->pace.last_s - begin_s;
    loader_rest(run->stepper.feed.loader, run->pace.last_s - begin_s);
    return 0;
}

static int due(int64_t step, int64_t every) { return every > 0 && step % every == 0; }

/* The evaluation of the step a run is opened at, unless it was done: the first of all, or one that the run
 * ended before or in, because data could not be read or a signal came. */
static int evaluate_missing(Run *run, int *stop)
{
    int64_t step    = run->at.step;
    int64_t missing = step == 0 || step >= run->r->steps || due(step, run->r->eval.every);
    if (comm_rank(run->comm) == 0 && missing) missing = !rundir_has_eval(&run->dir, step);
    TRY(comm_broadcast(run->comm, &missing, sizeof missing));
    if (missing) TRY(evaluate(run, stop));
    if (*stop) run->save.last = -1; /* the checkpoint of this step does not know why it is the last */
    if (run->save.is_best) TRY(train_save(run)); /* nor that it is the best */
    return 0;
}

/* ---- results ------------------------------------------------------------------------------------------ */

/* Counts in steps, each of which may have several updates. 1: one of them was skipped. Updates that the task
 * itself ended early are no failure. */
static int note_skips(Run *run, const StepOut *out)
{
    int is_bad          = out->n_skipped > run->skips.n_update;
    run->skips.n_update = out->n_skipped;
    run->skips.n_row    = is_bad ? run->skips.n_row + 1 : 0;
    return is_bad;
}

/* 1: an update was skipped because the scaled gradient overflowed. That is how the scale is found, no
 * failure. */
static int note_overflow(Run *run, const StepOut *out)
{
    int overflowed        = out->n_overflow > run->skips.n_overflow;
    run->skips.n_overflow = out->n_overflow;
    if (overflowed)
        log_info("step %lld: the gradient overflowed; its update is skipped, the loss scale is %g now",
                 (long long)run->at.step, ldexp(1, out->scale_exp));
    return overflowed;
}

/* NAN when the peak of this machine is not known. */
static double mfu_now(const Run *run)
{
    double peak = run->setup.machine.peak_flops * comm_world(run->comm);
    return peak > 0 ? run->step_flops / run->pace.step_s / peak : NAN;
}

/* x, but a NAN without its sign, which means nothing and would be printed. */
static double bare_nan(double x) { return isnan(x) ? fabs(x) : x; }

/* Reads the result of one finished step. */
static int take_result(Run *run, StepOut *out)
{
    Job    *j    = run->setup.job;
    int64_t step = run->at.step;
    TRY(step_result(&run->stepper, step, out));
    double now = step_done_s(&run->stepper, step), dt = now - run->pace.last_s;
    run->pace.last_s = now;
    train_note_pace(run, dt);
    run->at.step++;
    watchdog_note(&run->watchdog, "step", run->at.step + 1);
    run->at.next_sample += run->stepper.sample_per_step;
    LoaderStats stats;
    loader_stats(run->stepper.feed.loader, &stats);
    MetricsStep m = { .step        = run->at.step,
                      .lr          = run->lr[step % STEP_RING],
                      .time_s      = train_elapsed_at(run, now),
                      .data_wait_s = stats.waited_s };
    m.per_s       = (double)job_units_per_step(j) / run->pace.step_s;
    m.mfu         = mfu_now(run);
    if (step == run->first_step) run->first_loss = out->loss;
    run->last_loss = out->loss;
    m.is_bad       = note_skips(run, out);
    m.overflowed   = note_overflow(run, out);
    for (int k = 0; k < LOSS_SLOTS; k++) m.n_report[k] = step_reports(&run->stepper, step, k);
    if (!m.is_bad && run->at.step > run->back.bad_until) run->back.n = 0;
    if (m.is_bad) {
        log_warn("step %lld skipped: %s (loss %g, gradient norm %g); %d update%s skipped so far",
                 (long long)run->at.step, metrics_skip_name(out->skip), bare_nan(out->loss),
                 bare_nan(out->grad_norm), out->n_skipped, str_plural(out->n_skipped));
    }
    const Watcher *w     = &run->metrics.watcher;
    WatcherStep    times = {
           run->at.step, now, stats.fill_s, run->pace.eval_s, run->pace.save_s, stats.n_thread
    };
    if (w->step) w->step(w->self, &times);
    if (run->at.step % run->r->log_every == 0 || m.is_bad || m.overflowed || run->at.step == run->r->steps) {
        if (run->task->numbers) m.n_number = run->task->numbers(j, m.number);
        if (m.n_number < 0) return -1;
        metrics_step(&run->metrics, run->task, &m, out);
    }
    /* The first step of a start takes longer than the others will. */
    double shown = run->task->shown ? run->task->shown(j) : out->loss;
    progress_update(&run->progress, run->at.step, shown, m.per_s,
                    run->pace.n_step > 1 ? run->pace.step_s : NAN);
    return 0;
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static int queue_step(Run *run, int64_t step)
{
    double lr = schedule_lr(&run->r->optim, step, train_schedule_steps(run, step));
    if (run->r->budget_s > 0) TRY(comm_broadcast(run->comm, &lr, sizeof lr)); /* clocks differ */
    run->lr[step % STEP_RING] = lr;
    return step_begin(&run->stepper, step, lr);
}

static int ask_ranks(Run *run)
{
    const Watcher *w = &run->metrics.watcher;
    run->asked       = (Asked){ .signal      = signals_pending(),
                                .retry_save  = run->save.has_failed && run->at.step >= run->save.retry_step,
                                .over_budget = train_over_budget(run),
                                .enough      = w->enough && w->enough(w->self) };
    return comm_max_i64(run->comm, (int64_t *)&run->asked, sizeof run->asked / sizeof(int64_t));
}

/* What must see the device at rest after the step just read. */
static int at_boundary(Run *run, int *stop)
{
    const Recipe *r = run->r;
    if (due(run->at.step, r->eval.every)) TRY(evaluate(run, stop));
    run->save.is_due |= due(run->at.step, r->checkpoint.every) || run->asked.retry_save || run->save.is_best;
    /* Amid skipped steps the weights may be what is wrong; a good step must come first. The checkpoint of the
     * last step waits for the last evaluation. */
    if (run->save.is_due && run->skips.n_row == 0 && run->at.step < run->end && !train_is_broken(run) &&
        !run->is_look) {
        double begin_s   = clock_now_s();
        run->save.is_due = 0;
        TRY(train_save(run));
        double took_s = clock_now_s() - begin_s;
        run->pace.save_s += took_s;
        loader_rest(run->stepper.feed.loader, took_s);
    }
    if (train_is_trace_edge(run, run->at.step)) watch_rest(run, 0);
    if (run->asked.over_budget) {
        log_info("time budget of %g s used up", r->budget_s);
        *stop = 1;
    }
    *stop |= run->asked.enough != 0;
    return 0;
}

static int is_boundary(const Run *run, int64_t done)
{
    const Recipe *r = run->r;
    return due(done, r->eval.every) || due(done, r->checkpoint.every) || run->save.is_due ||
           run->asked.retry_save || run->asked.signal || done >= run->end || run->asked.over_budget ||
           run->asked.enough || train_is_trace_edge(run, done);
}

/* One step is always queued ahead, with two exceptions. At a boundary the device must come to rest. And some
 * tasks have host rows, or numbers that they read from the device after each step.
 *
 * 1: a signal came while there was nothing to save. One rank alone then leaves in the middle of the step,
 * which may take minutes; a later start does the step again. */
static int fill_queue(Run *run)
{
    if (run->asked.signal && run->at.step == run->first_step && run->queued == run->at.step) return 1;
    int ahead = job_has_host_rows(run->setup.job) || run->task->numbers ? 1 : 2;
    while (run->queued < run->end && run->queued - run->at.step < ahead &&
           (run->queued == run->at.step || !is_boundary(run, run->queued))) {
        int is_saved = run->queued == run->at.step && run->save.last == run->at.step && !run->save.has_failed;
        run->setup.job->may_leave =
            is_saved && !run->comm && run->r->budget_s == 0; /* time must be counted */
        int rc = queue_step(run, run->queued);
        if (rc < 0) return -1;
        if (rc > 0) return 1;
        run->queued++;
    }
    return 0;
}

static int train_loop(Run *run, int stop)
{
    TRY(ask_ranks(run));
    while (!stop && run->at.step < run->end) {
        StepOut out;
        int     left = fill_queue(run);
        if (left < 0) return -1;
        if (left > 0) {
            log_info("%s received: leaving after step %lld; brim train %s goes on from here", asked_by(),
                     (long long)run->at.step, run->dir.path);
            return ask_ranks(run);
        }
        TRY(take_result(run, &out));
        train_poll_save(run);
        TRY(ask_ranks(run));
        if (run->r->max_skips > 0 && run->skips.n_row >= run->r->max_skips) {
            TRY(train_roll_back(run));
            if (run->at.step < run->begin) return 0; /* of a stage before */
            continue;
        }
        if (run->queued == run->at.step) TRY(at_boundary(run, &stop));
        if (run->asked.signal && run->queued == run->at.step) {
            log_info("%s received: saving and leaving; brim train %s goes on from here", asked_by(),
                     run->dir.path);
            stop = 1;
        }
    }
    return 0;
}

/* After a failure that is not the device's (data that cannot be read, say): saves the steps that were done.
 * Several ranks do so when all know of it; then the others wait for rank 0, which a rank that leaves would
 * take along. */
static void save_what_is(Run *run)
{
    char    why[1024];
    StepOut out;
    if (run->is_over || run->in_flux || (run->comm ? !run->stepper.data_failed : !run->save.writer)) return;
    str_copy(why, sizeof why, err_get());
    err_clear();
    run->is_over = 1;
    int rc       = 0;
    while (rc == 0 && run->at.step < run->queued) rc = take_result(run, &out);
    train_wait_save(run);
    int whole = run->skips.n_row == 0 && !run->stepper.is_mixed;
    if (rc == 0 && whole && run->at.step > run->save.last) rc = train_save(run);
    train_wait_save(run);
    err_clear();
    comm_barrier(run->comm);
    err_clear();
    err_set("%s", why);
}

/* An earlier stage is opened whatever is asked: the samples to pass over are saved there. */
int train_has_next(const Run *run)
{
    if (run->idle || run->is_look) return 0;
    if (run->at.step < run->begin) return 1;
    if (run->asked.signal || run->asked.over_budget || run->at.stopped != CKPT_STOP_NONE) return 0;
    return run->at.step >= run->end && run->end < run->r->steps;
}

static int save_last(Run *run)
{
    if (!train_has_next(run)) signals_hush(); /* no step comes that a signal could end */
    return train_save_last(run);
}

/* The last line is about this start, whatever the run had done before it. */
static int finish(Run *run)
{
    int ignored = 0;
    progress_end(&run->progress);
    if (run->at.step == run->first_step && run->at.step >= run->r->steps)
        return save_last(run); /* only evaluated: it may have been the best */
    if (!due(run->at.step, run->r->eval.every) && !run->asked.signal) TRY(evaluate(run, &ignored));
    TRY(save_last(run));
    if (run->at.step <= run->first_step) return 0;
    if (run->task->summary) run->task->summary(run->setup.job, mfu_now(run));
    LoaderStats stats;
    char        t[32], all[48] = "", can[32], takes[32], data[256];
    loader_stats(run->stepper.feed.loader, &stats);
    int64_t done    = run->at.step - run->first_step;
    double  rate    = (double)job_units_per_step(run->setup.job) / run->pace.step_s,
           headroom = loader_headroom(&stats);
    if (run->first_step > 0) snprintf(all, sizeof all, " (%lld in all)", (long long)run->at.step);
    log_info("%lld step%s%s done in %s; loss %.4f -> %.4f", (long long)done, str_plural(done), all,
             str_duration(t, sizeof t, clock_now_s() - run->begin_s), run->first_loss, run->last_loss);
    if (stats.batches == 0) return 0; /* this task feeds nothing */
    log_info("waited %.1f s for data: the loader (%d thread%s) can feed %s %s/s, the %s takes %s (%.1fx)",
             stats.waited_s, stats.n_thread, str_plural(stats.n_thread),
             str_count(can, sizeof can, rate * headroom), run->task->unit,
             run->setup.info.capability > 0 ? "GPU" : "CPU", str_count(takes, sizeof takes, rate), headroom);
    if (source_describe(run->train, data, sizeof data)[0]) log_info("loader: %s", data);
    return 0;
}

/* Rank 0 alone, once its files are open. */
static void watch_begin(Run *run, const TrainOptions *opt)
{
    if (comm_rank(run->comm) > 0 || !opt->watcher) return;
    const DevInfo *info  = &run->setup.info;
    int64_t        index = comm_rank(run->comm); /* what setup.c takes where the recipe names none */
    if (str_starts_with(run->r->device, "cuda:") && str_parse_int(run->r->device + 5, &index) < 0) index = 0;
    LoaderStats stats;
    loader_stats(run->stepper.feed.loader, &stats);
    WatcherRun w         = { .name           = run->r->run,
                             .dir            = run->dir.path,
                             .device         = info->name,
                             .cuda_index     = info->capability > 0 ? (int)index : -1,
                             .world          = comm_world(run->comm),
                             .first_step     = run->first_step,
                             .steps          = run->r->steps,
                             .unit           = run->task->one,
                             .units_per_step = (double)job_units_per_step(run->setup.job),
                             .loader_threads = stats.n_thread,
                             .setup          = &run->setup };
    run->metrics.watcher = *opt->watcher;
    if (opt->watcher->begin) opt->watcher->begin(opt->watcher->self, &w);
}

static void watch_end(Run *run)
{
    const Watcher *w = &run->metrics.watcher;
    if (w->end) w->end(w->self);
    run->metrics.watcher = (Watcher){ 0 };
}

static int run_to_end(Run *run, const TrainOptions *opt)
{
    int stop = 0;
    TRY(train_open(run, opt));
    if (run->idle) return comm_barrier(run->comm);
    if (run->at.step < run->begin || run->at.step > run->end) return 0; /* a checkpoint of another stage */
    announce(run);
    watch_begin(run, opt);
    watchdog_begin(&run->watchdog, run->r->watchdog_s);
    watchdog_note(&run->watchdog, "step", run->at.step + 1);
    run->pace.last_s = clock_now_s();
    TRY(evaluate_missing(run, &stop));
    char rate[48];
    snprintf(rate, sizeof rate, "%s/s", run->task->unit);
    /* A look ends when the watcher has seen enough. */
    progress_begin(&run->progress, run->is_look ? "look" : "train", rate, run->at.step,
                   run->is_look ? -1 : run->r->steps);
    if (run->r->budget_s > 0) run->progress.end_s = run->begin_s + run->r->budget_s - run->at.elapsed_s;
    if (run->task->shown) run->progress.loss_name = run->task->shown_name;
    progress_wait(&run->progress); /* the first step may take minutes */
    if (train_loop(run, stop) < 0 || (run->at.step >= run->begin && finish(run) < 0)) {
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

/* main prints the message; here it goes into log.txt, also of a start that did not get as far as having one.
 * Wrong input has nothing to do there, and a directory that was made for a start that came to nothing is
 * taken away. */
static void note_failure(Run *run)
{
    log_note("error: %s", err_get());
    if (run->dir.is_open && !run->dir.is_new && err_kind() == ERR_RUN) train_copy_log(run);
}

int train_rank(Run *run, const TrainOptions *opt)
{
    char when[64];
    log_note("start %s, brim %s: %s", clock_date(when, sizeof when, "%Y-%m-%d %H:%M:%S"),
             opt->version ? opt->version : "unknown", opt->command ? opt->command : run->r->run);
    int rc = run_to_end(run, opt);
    if (rc < 0) {
        name_rank(run);
        note_failure(run);
        comm_leave(run->comm); /* the GPU is given up only when the others have let go of it */
    }
    watchdog_end(&run->watchdog);
    watch_end(run);
    train_close(run);
    return rc;
}

int train_run(const Task *task, const Recipe *r, const TrainOptions *opt)
{
    Comm *comm  = NULL;
    FILE *quiet = NULL; /* where all ranks but the first talk to */
    TRY(signals_install());
    TRY(comm_open(&comm));
    if (comm_rank(comm) > 0) {
        quiet = fopen("/dev/null", "w");
        signals_hush();
    }
    log_open(quiet);
    int rc = train_stages(task, r, opt, comm);
    comm_close(comm, rc == 0);
    log_close();
    if (quiet) fclose(quiet);
    return rc;
}
