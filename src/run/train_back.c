/* Going back: to a good checkpoint after too many skipped steps, past the samples of these steps. */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "data/order.h"
#include "run/train_impl.h"

/* Rollbacks without a good step beyond where the last one began: each goes to an older checkpoint than the
 * one before. Where there are fewer, the oldest is tried so often: each time other samples follow it. */
enum { MAX_ROLLBACKS = 3 };

static const char what_helps[] =
    "what may help: a lower optim.lr, a longer optim.warmup; for spikes a larger spike_factor";

/* Loads the checkpoint to go back to: the newest good one, or when that was tried the one before it. */
static int find_good(Run *run)
{
    long long at = (long long)run->at.step;
    if (run->at.n_skip >= CKPT_MAX_SKIP) return err_set("rolled back %d times; giving up", run->at.n_skip);
    int found = train_resume(run, run->back.n > 0 ? run->back.to : INT64_MAX);
    if (found < 0) return -1;
    if (found == 0 && run->back.n == 0) {
        return err_set("%d step%s in a row skipped and there is no checkpoint to go back to (%s)",
                       run->skips.n_row, str_plural(run->skips.n_row), what_helps);
    }
    if (found == 0 && run->back.n >= MAX_ROLLBACKS) {
        return err_set("giving up at step %lld: %d step%s in a row skipped again after %d rollbacks, the "
                       "last to step %lld (%s)",
                       at, run->skips.n_row, str_plural(run->skips.n_row), run->back.n,
                       (long long)run->back.to, what_helps);
    }
    if (run->back.n > 0) {
        log_warn("the same failure after going back to step %lld: %s", (long long)run->back.to,
                 found ? "trying the checkpoint before it"
                       : "there is no older checkpoint, trying other samples");
    }
    if (found == 0 && train_resume(run, run->back.to + 1) <= 0) {
        return err_set("%s: the checkpoint of step %lld is gone", run->dir.checkpoints,
                       (long long)run->back.to);
    }
    run->back.n++;
    run->back.to = run->at.step;
    return 0;
}

/* Lines of the steps that will be done again. Failing costs the file its order, not the run its life. */
static void trim_metrics(Run *run)
{
    if (!run->metrics.is_open) return;
    if (rundir_trim(run->dir.metrics, run->at.step + 1) < 0) {
        log_error("METRICS: %s (steps will be there twice)", err_get());
        err_clear();
    }
    metrics_reopen(&run->metrics); /* the trimmed file is a new one */
    const Watcher *w = &run->metrics.watcher;
    if (w->rewind) w->rewind(w->self, run->at.step);
}

/* Checkpoints beyond the one gone back to are not of this run any more: a restart must not go on from
 * them. */
static void abandon_newer(Run *run)
{
    if (!run->save.writer) return;
    int n = ckpt_abandon(run->dir.checkpoints, run->at.step);
    if (n > 0) {
        log_warn("%d newer checkpoint%s in %s: abandoned-*", n, n > 1 ? "s are" : " is",
                 run->dir.checkpoints);
    }
    if (n < 0) {
        log_error("%s (a restart would go on from the newest checkpoint, not from this one)", err_get());
        err_clear();
    }
}

/* A good checkpoint, with what was learned since about samples. */
static int load_last_good(Run *run)
{
    CkptState before = run->at; /* its skip list may be newer than the checkpoint's */
    int       n_row  = run->skips.n_row;
    TRY(find_good(run));
    abandon_newer(run);
    TRY(train_keep_learned(run, &before));
    /* What the checkpoint has already used keeps its number: only samples after its cursor can be passed
     * over. */
    int64_t end   = before.next_sample;
    int64_t first = MAX(run->at.next_sample, end - n_row * run->stepper.sample_per_step);
    if (end > first) run->at.n_skip = order_skip_add(run->at.skip, run->at.n_skip, first, end - first);
    log_warn("rolled back to step %lld; the %lld samples of the skipped steps are passed over from now on",
             (long long)run->at.step, (long long)(end - first));
    return 0;
}

int train_roll_back(Run *run)
{
    run->in_flux        = 1;
    run->back.bad_until = run->at.step;
    TRY(run->setup.dev->vt->sync(run->setup.dev));
    train_wait_save(run);
    TRY(load_last_good(run));
    trim_metrics(run);
    run->queued         = run->at.step;
    run->save.last      = -1; /* no checkpoint has the list of samples to pass over */
    run->last_eval.step = -1;
    run->skips.n_row = run->save.is_due = 0;
    run->save.is_best = run->save.best_waits = 0; /* what was evaluated is given up */
    TRY(train_attach(run));
    run->in_flux     = 0;
    run->pace.last_s = clock_now_s(); /* going back is no part of a step */
    return 0;
}
