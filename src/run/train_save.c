/* Saving: what to do when it fails. */
#include "run/train_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"

#include <math.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* How long a finished run tries to save what it has before it gives up. */
static const double last_save_s = 600, first_pause_s = 0.1, longest_pause_s = 10;

/* What a failed save leaves behind. An error that is pending stays so. */
static const char *what_stays(const Run *run)
{
    int64_t step;
    int     pending = err_kind() != ERR_NONE;
    int     n       = ckpt_list(run->dir.checkpoints, &step, 1);
    if (!pending) err_clear();
    return n > 0 ? "the last good one stays" : n == 0 ? "there is none yet" : "others cannot be listed";
}

/* A failed save is loud and is tried again after 1, 2, 4 ... steps: a disk that stays full must not turn
 * training into copying. */
static void plan_retry(Run *run, const char *msg)
{
    Saving *s      = &run->save;
    int64_t most   = run->r->checkpoint.every > 0 ? run->r->checkpoint.every : INT64_MAX / 2;
    s->retry_after = s->has_failed ? MIN(2 * s->retry_after, most) : 1;
    s->retry_step  = run->at.step + s->retry_after;
    s->has_failed  = 1;
    if (run->is_over) {
        log_error("CHECKPOINT NOT SAVED: %s (%s has ended at step %lld, %s)", msg,
                  run->at.step == run->end && run->end < run->r->steps ? "the stage" : "training",
                  (long long)run->at.step, what_stays(run));
    } else if (s->retry_step < run->r->steps) {
        log_error("CHECKPOINT NOT SAVED: %s (training goes on, %s, trying again after step %lld)", msg,
                  what_stays(run), (long long)s->retry_step);
    } else {
        log_error("CHECKPOINT NOT SAVED: %s (training goes on, %s, trying again after the last step)", msg,
                  what_stays(run));
    }
}

/* result: of ckpt_poll or ckpt_wait. */
static void report_save(Run *run, int result, const char *msg)
{
    Saving *s = &run->save;
    if (result == 0) return;
    s->is_rejected = result == CKPT_NOT_FINITE;
    if (result < 0 && !s->is_rejected) {
        plan_retry(run, msg);
        return;
    }
    s->best_waits = s->has_failed = 0;
    if (result > 0) {
        log_info("%s", msg);
        return;
    }
    s->last = -1;
    log_error("CHECKPOINT NOT SAVED: %s (%s)", msg, what_stays(run));
}

void train_poll_save(Run *run)
{
    char msg[512];
    if (!run->save.writer) return;
    int result = ckpt_poll(run->save.writer, msg, sizeof msg);
    report_save(run, result, msg);
}

void train_wait_save(Run *run)
{
    char msg[512];
    if (!run->save.writer) return;
    int result = ckpt_wait(run->save.writer, msg, sizeof msg);
    report_save(run, result, msg);
}

/* Negative without an error pending when there is no directory to save into; it was reported. */
static int hold_dir(Run *run)
{
    int gone = file_kind(run->dir.checkpoints) == FILE_NONE && file_kind(run->dir.path) == FILE_FOLDER;
    int made = rundir_hold(&run->dir);
    if (gone && made == 0)
        log_error("%s was removed while this run was using it: made anew", run->dir.checkpoints);
    if (made > 0) {
        log_copy(run->dir.log);
        log_error("%s was removed or moved while this run was using it: made anew", run->dir.path);
        metrics_reopen(&run->metrics);
        made = train_write_texts(run);
    }
    if (made < 0) {
        report_save(run, -1, err_get());
        err_clear();
    }
    return made;
}

int train_save(Run *run)
{
    if (run->is_look) {
        run->save.last = run->at.step;
        return 0;
    }
    int is_best       = run->save.is_best;
    run->save.is_best = 0; /* on every rank, whatever becomes of the save: all rest at the same steps */
    if (!run->save.writer) return 0;
    train_wait_save(run);
    run->save.best_waits |= is_best;
    if (hold_dir(run) < 0) return 0;
    CkptState *now       = &run->at;
    double     before    = now->elapsed_s;
    now->elapsed_s       = train_elapsed(run);
    now->seed            = (uint64_t)run->r->seed;
    now->micro_batch     = run->setup.job->choice.micro_batch;
    now->recompute_level = run->setup.job->choice.level;
    now->head_rows       = run->setup.job->choice.head_rows;
    now->train_size      = run->train->size;
    now->val_size        = run->val ? run->val->size : 0;
    now->train_hash      = run->train->fingerprint;
    now->val_hash        = run->val ? run->val->fingerprint : 0;
    now->threads         = run->setup.dev->vt->hints->is_late ? 0 : run->setup.info.n_sm;
    if (run->task->before_save) TRY(run->task->before_save(run->setup.job));
    if (run->save.best_waits) ckpt_mark_best(run->save.writer);
    if (ckpt_begin(run->save.writer, run->setup.job, now) < 0) return -1;
    now->elapsed_s       = before;
    run->save.last       = run->at.step;
    run->save.retry_step = INT64_MAX; /* until this one's result is known */
    run->pace.last_s     = clock_now_s();
    return 0;
}

/* Checkpoints that lie there together: those that are kept, the best, and one that is being written. */
static int64_t most_checkpoints(const Run *run)
{
    const RecipeCheckpoint *c = &run->r->checkpoint;
    return c->keep + (c->best && run->val) + (c->keep_every > 0 ? run->r->steps / c->keep_every : 0) + 1;
}

int train_check_room(const Run *run, int fresh)
{
    enum { MANY = 4096 };
    struct statvfs fs;
    int64_t        step[MANY];
    char           free_text[32], one_text[32], all_text[32];
    double         one = (double)ckpt_size_bytes(run->setup.job);
    if (comm_rank(run->comm) > 0) return 0;
    int n = fresh ? 0 : ckpt_list(run->dir.checkpoints, step, MANY); /* those of an old run stay beside */
    if (n < 0) return -1;
    if (statvfs(run->dir.checkpoints, &fs) != 0 || fs.f_blocks == 0) return 0; /* it does not say */
    double  room = (double)fs.f_bavail * (double)fs.f_frsize;
    int64_t more = MAX(most_checkpoints(run) - n, 1);
    str_bytes(free_text, sizeof free_text, room);
    str_bytes(one_text, sizeof one_text, one);
    if (room < one)
        return err_set("%s: a checkpoint takes %s, and the disk has %s free", run->dir.checkpoints, one_text,
                       free_text);
    if (room < one * (double)more) {
        log_warn(
            "%s: %lld more checkpoints of %s will take %s, and the disk has %s free: saving may fail (what "
            "may help: a smaller checkpoint.keep)",
            run->dir.checkpoints, (long long)more, one_text,
            str_bytes(all_text, sizeof all_text, one * (double)more), free_text);
    } else {
        log_info("checkpoints: %s each, at most %lld more, %s free on the disk", one_text, (long long)more,
                 free_text);
    }
    return 0;
}

int train_is_broken(const Run *run)
{
    if (run->last_eval.step == run->at.step) return !isfinite(run->last_eval.value);
    return run->skips.n_row > 0 && !isfinite(run->last_loss);
}

/* The end of a run whose state is not worth saving. */
static int end_broken(Run *run)
{
    int64_t     good      = -1;
    long long   step      = (long long)run->at.step;
    const char *what      = run->save.is_rejected                 ? "weights"
                            : run->last_eval.step == run->at.step ? "the validation"
                                                                  : "the loss";
    char        stays[96] = "no checkpoint is left";
    if (run->save.writer && ckpt_list(run->dir.checkpoints, &good, 1) > 0)
        snprintf(stays, sizeof stays, "the checkpoint of step %lld stays", (long long)good);
    err_clear();
    if (run->asked.signal) {
        log_warn("%s of step %lld %s not finite: not saved, %s", what, step,
                 run->save.is_rejected ? "are" : "is", stays);
        return 0;
    }
    return err_set(
        "training has diverged: %s of step %lld %s not finite; %s (what may help: --fresh with a lower "
        "optim.lr or a longer optim.warmup)",
        what, step, run->save.is_rejected ? "are" : "is", stays);
}

int train_save_last(Run *run)
{
    double begin_s = clock_now_s(), pause_s = first_pause_s;
    int    n_signal = signals_count();
    run->is_over    = 1;
    watchdog_end(&run->watchdog);
    train_wait_save(run);
    if (train_is_broken(run)) return end_broken(run);
    while (run->save.last != run->at.step || run->save.has_failed) {
        if (run->save.writer && rundir_is_lost(&run->dir)) {
            return err_set(
                "%s is the directory of another run now: what was trained up to step %lld is not saved",
                run->dir.path, (long long)run->at.step);
        }
        TRY(train_save(run));
        train_wait_save(run);
        if (run->save.is_rejected) return end_broken(run);
        if (!run->save.has_failed) break;
        double left_s = begin_s + last_save_s - clock_now_s();
        if (left_s <= 0 || signals_count() != n_signal)
            return err_set("the last checkpoint could not be saved");
        log_error("TRYING TO SAVE FOR ANOTHER %.0f s: make room, or send a signal to give up", left_s);
        double end_s = clock_now_s() + pause_s;
        pause_s      = MIN(2 * pause_s, longest_pause_s);
        while (clock_now_s() < end_s && signals_count() == n_signal) usleep(50000);
    }
    return 0;
}
