/* Opening and closing a run: directory, data, device, checkpoint, files. */
#include "run/train_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "conf/paths.h"
#include "optim/schedule.h"
#include "run/step.h"
#include "run/switches.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

double train_elapsed_at(const Run *run, double now_s) { return run->at.elapsed_s + now_s - run->begin_s; }

double train_elapsed(const Run *run) { return train_elapsed_at(run, clock_now_s()); }

/* ---- texts -------------------------------------------------------------------------------------------- */

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
    build_print_plan(run->setup.job, f);
    fprintf(f, "\n");
    choose_print(&run->setup.choice, run->setup.job, f);
    fprintf(f, "\noptimisations\n");
    switches_print(run->setup.job, run->setup.dev->vt, f);
}

static int make_absolute(void *ctx, const SchemaRow *row, char path[RECIPE_STR])
{
    char full[PATH_MAX];
    if (realpath(path, full) && strlen(full) < RECIPE_STR) str_copy(path, RECIPE_STR, full);
    return 0;
}

/* What the open data say is filled in. Files by absolute path from here on: so the recipe in the run's folder
 * works from any folder, and checkpoints of a run that goes on from another folder name the same files.
 * Messages about data that cannot be used come before, with the user's words. */
static int fix_recipe(Run *run)
{
    run->fixed = *run->r;
    run->r     = &run->fixed;
    if (run->task->fit) run->task->fit(&run->fixed, run->train, run->val);
    return paths_in_recipe(&run->fixed, make_absolute, NULL);
}

static void print_recipe(Run *run, FILE *f) { recipe_write(&run->setup.job->recipe, f); }

int train_write_texts(Run *run)
{
    if (run->task->keep) TRY(run->task->keep(run->setup.job, run->train, run->dir.path));
    TRY(write_text(run, run->dir.recipe, print_recipe));
    TRY(write_text(run, run->dir.machine, print_machine));
    return write_text(run, run->dir.plan, print_plan);
}

/* ---- opening ------------------------------------------------------------------------------------------ */

static int is_noise(const Run *run) { return run->task->is_noise && run->task->is_noise(run->r); }

static int open_sources(Run *run)
{
    const Task *t = run->task;
    TRY(t->open_train(&run->train, run->r));
    if (is_noise(run)) return 0; /* nothing to learn, nothing to evaluate */
    return t->has_val(run->r) ? t->open_val(&run->val, run->r, run->r->eval.samples, run->train) : 0;
}

int train_attach(Run *run)
{
    return stepper_attach(&run->stepper, run->train, run->at.next_sample, run->at.skip, run->at.n_skip);
}

/* The schedule ends with the run: with other steps the rate leaps. Silent where it stays as it was. What the
 * rate was is only known if no other key of it changed. */
static void say_schedule(const Run *run)
{
    const CkptState *at = &run->at;
    const Recipe    *r  = run->r;
    if (at->was_steps == 0 || at->step == 0 || at->step >= r->steps || r->budget_s > 0) return;
    double now     = schedule_lr(&r->optim, at->step, r->steps);
    char   was[64] = "";
    if (now == schedule_lr(&r->optim, at->step, at->was_steps)) return;
    if (!at->other_rate)
        snprintf(was, sizeof was, "%.3g in step %lld, ", schedule_lr(&r->optim, at->step - 1, at->was_steps),
                 (long long)at->step);
    log_info("the schedule ends at step %lld now, not %lld: optim.lr is %s%.3g in step %lld",
             (long long)r->steps, (long long)at->was_steps, was, now, (long long)at->step + 1);
}

int train_resume(Run *run, int64_t before)
{
    Job    *j         = run->setup.job;
    char    note[512] = "", path[RUNDIR_PATH + 32], why[1024];
    int64_t got[2]    = { 0, 0 }; /* found, step */
    if (comm_rank(run->comm) == 0) {
        got[0] = ckpt_resume(j, run->dir.checkpoints, before, &run->at, note, sizeof note);
        got[1] = run->at.step;
    }
    TRY(comm_broadcast(run->comm, got, sizeof got));
    if (got[0] < 0 && comm_rank(run->comm) == 0 && err_kind() == ERR_USER) {
        str_copy(why, sizeof why, err_get());
        err_clear();
        return err_user("%s (run=NAME makes another run, --fresh begins this one anew)", why);
    }
    if (comm_rank(run->comm) > 0 && got[0] < 0) return err_set("rank 0 cannot read the checkpoints");
    if (comm_rank(run->comm) > 0 && got[0] > 0) {
        TRY(ckpt_path(run->dir.checkpoints, got[1], path, sizeof path));
        TRY(ckpt_load(j, path, &run->at, note, sizeof note));
    }
    if (got[0] > 0 && run->task->after_load) TRY(run->task->after_load(j));
    if (got[0] > 0) {
        run->skips.n_update   = run->at.device.out.n_skipped;
        run->skips.n_overflow = run->at.device.out.n_overflow;
        run->skips.n_row =
            run->at.device.out.n_skip_row; /* in updates: with several a step, more than there were */
        log_info("resuming after step %lld%s%s", (long long)run->at.step, note[0] ? ": " : "", note);
        say_schedule(run);
    }
    return (int)got[0];
}

int train_keep_learned(Run *run, const CkptState *later)
{
    CkptState *at = &run->at;
    at->elapsed_s = later->elapsed_s;
    at->step_s    = later->step_s;
    at->stopped   = later->stopped;
    at->n_skip    = later->n_skip;
    memcpy(at->skip, later->skip, sizeof at->skip);
    /* A checkpoint taken on the way out may stand in the middle of a row of skips; the row begins anew. */
    at->device.out.n_skip_row = 0;
    return job_write_state(run->setup.job, &at->device);
}

/* 1: a part of the data has another content than it had; 0 also where that is not known. */
static int is_other(const Source *s, uint64_t was, int64_t was_size)
{
    if (!s) return was_size != 0;
    if (was != 0 && s->fingerprint != 0) return was != s->fingerprint;
    return was_size != s->size;
}

static void warn_changed(const Run *run, int of_val)
{
    const CkptState *at  = &run->at;
    const Source    *s   = of_val ? run->val : run->train;
    int64_t          was = of_val ? at->val_size : at->train_size, now = s ? s->size : 0;
    char             how[96];
    if (was == now) {
        snprintf(how, sizeof how, "as many %s, other content", run->task->unit);
    } else {
        snprintf(how, sizeof how, "%lld %s%s are %lld now", (long long)was, run->task->unit,
                 of_val ? " for validation" : "", (long long)now);
    }
    log_warn("%s: changed since step %lld: %s; other samples follow, and validation may not compare",
             (s ? s : run->train)->name, (long long)at->step, how);
}

/* A file that grew or was replaced: allowed, but other samples follow, and what was held back for validation
 * may be among them. Another file is most often a slip: it must be asked for. One with the same content is
 * the same. */
static int check_data(const Run *run, const TrainOptions *opt)
{
    const CkptState *at    = &run->at;
    int64_t          train = run->train->size, val = run->val ? run->val->size : 0;
    int              new_train = is_other(run->train, at->train_hash, at->train_size);
    int              new_val   = is_other(run->val, at->val_hash, at->val_size);
    if (at->step == 0 || at->train_size == 0) return 0;
    const SchemaRow *row = at->other_data ? schema_row(run->r, at->other_data - 1) : NULL;
    if (row && !opt->change_data && (new_train || new_val || row->type != KEY_TEXT)) {
        char now[2 * RECIPE_STR];
        schema_get(row, run->r, now, sizeof now);
        return recipe_blame(run->r, row->name,
                            "is %.300s, but %s was trained with %.300s (--change-data goes on all the same, "
                            "run=NAME makes another run)",
                            now, run->dir.path, at->was_data);
    }
    if (!new_train && !new_val) return 0;
    warn_changed(run, at->train_size == train && (at->val_size != val || !new_train));
    return 0;
}

static int lock_dir(Run *run)
{
    int rc = comm_rank(run->comm) == 0 ? rundir_open(&run->dir, run->r->run)
                                       : rundir_paths(&run->dir, run->r->run);
    if (rc < 0) return -1;
    return comm_barrier(run->comm); /* the others look into it only now */
}

void train_copy_log(Run *run)
{
    if (!run->log_copied) log_copy(run->dir.log);
    run->log_copied = 1;
}

/* A run that was killed before its first checkpoint looks to its user like one that goes on. */
static void say_lost(const Run *run, int fresh)
{
    int64_t lost = fresh || run->at.step > 0 ? 0 : rundir_last_step(&run->dir);
    if (lost > 0)
        log_warn("%s had come to step %lld without a checkpoint: beginning anew (checkpoint.every is %lld)",
                 run->dir.path, (long long)lost, (long long)run->r->checkpoint.every);
}

static int open_files(Run *run, int fresh)
{
    if (comm_rank(run->comm) > 0) return 0;
    TRY(rundir_begin(&run->dir, fresh));
    train_copy_log(run);
    say_lost(run, fresh);
    TRY(rundir_trim(run->dir.metrics, run->at.step > 0 ? run->at.step + 1 : 0));
    if (run->at.step < run->r->steps) TRY(train_write_texts(run)); /* else it is only evaluated */
    TRY(metrics_open(&run->metrics, run->dir.metrics));
    return ckpt_writer_create(&run->save.writer, run->setup.job, run->dir.checkpoints);
}

/* All that is left to do for a run that was killed in the removal after its last save. A disk that refuses is
 * no failure. */
static void clear_leftovers(Run *run)
{
    if (comm_rank(run->comm) > 0 || ckpt_sweep(run->dir.checkpoints) == 0) return;
    log_warn("what a killed process left cannot be removed: %s", err_get());
    err_clear();
}

/* What may be wrong with recipe, data or device is found while the directory is only locked: the last step
 * moves an old run aside and writes. */
int train_open(Run *run, const TrainOptions *opt)
{
    TRY(open_sources(run));
    TRY(fix_recipe(run));
    const Recipe *r = run->r;
    TRY(lock_dir(run)); /* before the device: a second process must not take memory from the first */
    unsigned parts = JOB_TRAIN;
    if (r->watch.samples > 0)
        parts |= (run->task->sample ? JOB_SAMPLE : 0) | (run->task->play ? JOB_PLAY : 0);
    TRY(setup_open_ranks(&run->setup, run->task, r, parts, run->comm));
    run->step_flops = choose_step_flops(run->setup.job); /* once: a walk over every op */
    log_info("%s: %s", run->setup.info.name, run->setup.why);
    if (is_noise(run)) {
        log_info("%s", run->task->noise);
    }
    int larger = run->task->metric[run->task->best].larger;
    run->at    = (CkptState){ .seed = (uint64_t)r->seed, .best_val = larger ? -INFINITY : INFINITY };
    int found  = opt->fresh ? 0 : train_resume(run, INT64_MAX);
    if (found < 0) return -1;
    if (found == 0 && run->task->begin) TRY(run->task->begin(run->setup.job));
    run->first_step = run->save.last = run->queued = run->at.step;
    if (run->learned) {
        TRY(train_keep_learned(run, run->learned));
        run->skips.n_row = 0;
        run->save.last   = -1; /* no checkpoint has the list of samples to pass over */
    }
    TRY(train_find_idle(run));
    if (run->idle) { /* the directory stays as it is, but for this */
        clear_leftovers(run);
        return 0;
    }
    TRY(check_data(run, opt));
    if (!run->is_look) TRY(train_check_room(run, opt->fresh));
    TRY(stepper_init(&run->stepper, run->setup.job, (int)r->data.depth));
    if (run->val) TRY(feed_init(&run->val_feed, run->setup.job, 1, MARK_VAL));
    TRY(train_attach(run));
    return open_files(run, opt->fresh);
}

void train_close(Run *run)
{
    ckpt_writer_destroy(run->save.writer);
    if (run->setup.dev) {
        stepper_deinit(&run->stepper); /* waits */
        feed_deinit(&run->val_feed);
    }
    source_close(run->train);
    source_close(run->val);
    metrics_close(&run->metrics);
    setup_close(&run->setup);
    rundir_close(&run->dir);
}
