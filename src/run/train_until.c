/* Until when a run trains: steps, time, the task's measure; and whether a start has anything left to do.
 *
 * 1. Time counts over all starts. With a budget the schedule's length follows from the time left and the pace
 *    of the run, both of which a checkpoint has: the first step of a resumed run continues the curve of the
 *    last one.
 * 2. Why an evaluation ended a run is in its checkpoint. The same command again does nothing; with another
 *    target or patience what was learned is judged anew. */
#include "run/train_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

/* ---- time --------------------------------------------------------------------------------------------- */

int train_over_budget(const Run *run)
{
    return run->r->budget_s > 0 && train_elapsed(run) >= run->r->budget_s;
}

int train_is_trace_edge(const Run *run, int64_t done)
{
    const Recipe *r    = run->r;
    int64_t       from = run->first_step + r->trace_skip, kept = from + r->trace_warmup;
    return r->trace > 0 && (done == from || done == kept || done == kept + r->trace);
}

/* The first step of a start warms caches, loads code and captures graphs: it counts only while no better one
 * is known. */
void train_note_pace(Run *run, double dt_s)
{
    const double share = 0.1;
    int          n     = run->pace.n_step++;
    run->pace.step_s   = n < 2 ? dt_s : (1 - share) * run->pace.step_s + share * dt_s;
    if (run->first_step == 0) {
        run->at.step_s = run->pace.step_s;
    } else if (n > 0) {
        run->at.step_s = (1 - share) * run->at.step_s + share * dt_s;
    }
}

int64_t train_schedule_steps(const Run *run, int64_t step)
{
    if (run->r->budget_s <= 0 || run->at.step_s <= 0) return run->r->steps;
    double left = (run->r->budget_s - train_elapsed(run)) / run->at.step_s;
    if (left >= (double)(run->r->steps - step)) return run->r->steps;
    return step + MAX(1, (int64_t)left);
}

/* ---- validation --------------------------------------------------------------------------------------- */

/* 1: a is better than b by the task's measure. */
static int is_better(const Task *t, double a, double b) { return t->metric[t->best].larger ? a > b : a < b; }

/* At the target or beyond it. An evaluation that measured nothing (NAN) reaches no target. */
static int is_reached(const Run *run, double val)
{
    double target = run->r->eval.target;
    return target != 0 && (val == target || is_better(run->task, val, target));
}

static const char *measure(const Run *run) { return run->task->metric[run->task->best].name; }

int train_after_eval(Run *run, double val)
{
    const RecipeEval *e  = &run->r->eval;
    run->last_eval.value = val;
    run->last_eval.step  = run->at.step;
    run->save.best_waits = 0;        /* a best one that could not be saved is gone now */
    if (run->at.step == 0) return 0; /* an untrained model is no best one, and has reached nothing */
    if (is_better(run->task, val, run->at.best_val)) {
        run->at.best_val  = val;
        run->at.bad_evals = 0;
        run->save.is_best = run->r->checkpoint.best;
    } else {
        run->at.bad_evals++;
        run->save.is_best = 0;
    }
    if (is_reached(run, val)) {
        log_info("target reached: validation %s %.4f is at or %s %.4f", measure(run), val,
                 run->task->metric[run->task->best].larger ? "above" : "below", e->target);
        run->at.stopped = CKPT_STOP_TARGET;
    } else if (e->patience > 0 && run->at.bad_evals >= e->patience) {
        log_info("stopping early: %lld evaluation%s without improvement, best %.4f",
                 (long long)run->at.bad_evals, str_plural(run->at.bad_evals), run->at.best_val);
        run->at.stopped = CKPT_STOP_PATIENCE;
    }
    return run->at.stopped != CKPT_STOP_NONE;
}

/* ---- nothing to do ------------------------------------------------------------------------------------ */

/* 1 after saying why. A run that has its steps may still lack their evaluation. */
static int has_its_steps(Run *run)
{
    long long step = (long long)run->at.step, asked = (long long)run->r->steps;
    if (step > asked) {
        log_info(
            "%s has %lld steps, %lld asked: nothing to do (raise steps to go on, or start anew with --fresh)",
            run->dir.path, step, asked);
        return 1;
    }
    if (step < asked || (run->val && !rundir_has_eval(&run->dir, step))) return 0;
    log_info("%s has its %lld step%s: nothing to do (raise steps to go on, or start anew with --fresh)",
             run->dir.path, step, str_plural(step));
    return 1;
}

static int has_stopped(Run *run)
{
    const RecipeEval *e    = &run->r->eval;
    long long         step = (long long)run->at.step;
    if (run->at.stopped == CKPT_STOP_TARGET && is_reached(run, run->at.best_val)) {
        log_info("%s: target reached at step %lld, validation %s %.4f: nothing to do "
                 "(a %s eval.target goes on, or 0 for none)",
                 run->dir.path, step, measure(run), run->at.best_val,
                 run->task->metric[run->task->best].larger ? "higher" : "lower");
        return 1;
    }
    if (run->at.stopped == CKPT_STOP_PATIENCE && e->patience > 0 && run->at.bad_evals >= e->patience) {
        log_info("%s: stopped early at step %lld after %lld evaluation%s without improvement: nothing to do "
                 "(a larger eval.patience goes on, or 0 for none)",
                 run->dir.path, step, (long long)run->at.bad_evals, str_plural(run->at.bad_evals));
        return 1;
    }
    return 0;
}

int train_find_idle(Run *run)
{
    int64_t idle = 0;
    if (comm_rank(run->comm) == 0 && run->at.step > 0) {
        idle = has_its_steps(run) || has_stopped(run);
        if (!idle && run->at.step < run->r->steps && train_over_budget(run)) {
            log_info("%s has used its %g s: nothing to do (raise budget_s to go on)", run->dir.path,
                     run->r->budget_s);
            idle = 1;
        }
    }
    TRY(comm_broadcast(run->comm, &idle, sizeof idle));
    run->idle       = (int)idle;
    run->at.stopped = CKPT_STOP_NONE;
    if (run->at.step > 0 && run->at.step_s <= 0) /* of a checkpoint that does not say */
        run->at.step_s = run->at.elapsed_s / (double)run->at.step;
    return 0;
}
