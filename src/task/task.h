/* Task: what is trained. One file a tenant (lm.c, ...), one const struct that is passed, not registered.
 *
 * 1. A task writes down nets, fields, programs and schedules into a Job (task/job.h). Plan, choose, step,
 *    bench, ladder, switches and checkpoints read the Job; none of them knows a task by name.
 * 2. A program is a flat list of ops. A schedule is rows of programs and loops. A step walks the step
 *    schedule once; an evaluation walks the eval schedule once a batch.
 * 3. A row with depth d belongs to the nearest row above with depth d-1. A row without program and host call
 *    is a loop.
 * 4. Each loss of a task has a slot in StepState. Its weight and its number of targets make the divisor, so
 *    micro-batch and ranks do not matter. */
#ifndef TASK_TASK_H
#define TASK_TASK_H

#include "conf/recipe.h"
#include "data/source.h"
#include "dev/dev.h"
#include "task/ask.h"

#include <stdio.h>

typedef struct Task Task;
typedef struct Job  Job;

/* ---- schedules ---- */

enum { SCHEDULE_ROWS = 32, SCHEDULE_DEPTH = 4 };

/* Marks of the device that are for host rows; the others are the frame's (run/step.h). */
enum { TASK_MARKS = 12, TASK_MARK0 = DEV_MARKS - TASK_MARKS };

typedef struct {
    const char *name;
    int         depth;
    int64_t     times; /* an upper bound, where a row below may end the loop */
    int         prog;  /* number in Job.prog; -1: none */
    int         feeds; /* 1: a batch is taken and uploaded before each run */
    int sums; /* 1: the program has collectives: ranks agree that all have their data before it runs */
    /* 1: StepOut.stop ends the loop: the row itself, if rows belong to it, or the loop that it belongs to.
     * Read UNTIL_LAG turns late. */
    int until;
    /* Called instead of a program; turn counts from 0. May wait for a mark, never synchronises. 1: given up,
     * as job_leaves() asked. NULL: none. */
    int (*host)(Job *j, int64_t turn);
} ScheduleRow;

/* The device decides the mathematics: updates after `stop` do nothing. The host only saves time, at a fixed
 * lag, so results never depend on timing and ranks leave together. */
enum { UNTIL_LAG = 2 };

typedef struct {
    ScheduleRow row[SCHEDULE_ROWS];
    int         n;
} Schedule;

/* ---- losses and measures ---- */

typedef struct {
    const char *name;                  /* in metrics.jsonl, where a task has several */
    double (*weight)(const Recipe *r); /* NULL: 1 */
    /* Targets in an update, of a loss over data born on the device; NULL: the source counts them. */
    int64_t (*targets)(const Recipe *r);
    int measure; /* 1: only reported, no part of the loss */
} TaskLoss;

/* A mean over the targets of a slot in an evaluation: "loss" is val_loss in metrics.jsonl. */
typedef struct {
    const char *name;
    int         slot;
    int         larger; /* 1: larger is better */
} TaskMetric;

/* Steps [from, until). */
typedef struct {
    int64_t from, until;
} TaskStage;

/* What an evaluation found. */
typedef struct {
    double     value[LOSS_SLOTS]; /* by TaskMetric */
    int64_t    n_target;          /* of the first one */
    int64_t    n_sample, n_all;
    const Job *job;              /* which was evaluated: what its host rows have found */
    double     bytes_per_target; /* of the source */
} TaskEval;

/* The same in another measure: "perplexity" is val_perplexity in metrics.jsonl. */
typedef struct {
    const char *name;
    double      value;
} TaskNumber;

enum { TASK_NUMBERS = 8, TASK_STEP_NUMBERS = 24 };

struct Task {
    const char *name;         /* value of the recipe's key `task` */
    const char *unit;         /* what rates count: "tokens" */
    const char *one;          /* the same in the singular: "token" */
    const char *unit_in_full; /* for a unit that a reader would confuse with a step of the run; NULL: unit */
    const char *const
               *halves; /* keys of whole numbers whose halves are offered when nothing fits; NULL: none */
    const char *lighter_net, *lighter_sample; /* keys that make weights, activations smaller; for advice */
    const char *noise; /* said of data that are noise, and cannot be learned; NULL: never */

    /* ---- losses and measures ---- */

    const TaskLoss   *loss; /* by slot */
    int               n_loss;
    const TaskMetric *metric;
    int               n_metric, best; /* best: the one that early stopping and the best checkpoint go by */
    int spikes; /* 1: a loss far above its running mean is a failed step; not for signed losses */
    /* What follows from the measures of an evaluation, at most TASK_NUMBERS; returns how many. NULL:
     * nothing. */
    int (*also)(const TaskEval *e, const Recipe *r, TaskNumber *out);
    /* The one of these that compares runs whose targets differ in size: the measure that counts, divided by
     * the size of a target and by a constant. NULL: none. */
    const char *fair;
    void (*print_eval)(const TaskEval *e, const Recipe *r, FILE *out);
    /* Units that an evaluation took, where its samples do not say so. NULL: `units` for each sample. */
    int64_t (*eval_units)(const TaskEval *e);

    /* ---- what a recipe means; no job is there yet ---- */

    int64_t (*units)(const Recipe *r); /* units in one sample */
    int64_t (*rows)(const Recipe *r);  /* rows of activations in one sample */
    /* Rows of the head whose logits take so many bytes, of n in all. NULL: the task has no chunks. */
    int64_t (*chunk_rows)(const Recipe *r, DType compute, int64_t n, double bytes);
    /* Samples that a micro-batch must hold together; the step has a multiple of them. NULL: 1. */
    int64_t (*together)(const Recipe *r);
    /* Samples of one update, where a step has several updates; a micro-batch divides them. NULL: all. */
    int64_t (*update_samples)(const Recipe *r);
    /* Fills in keys that follow from the data, after the recipe was read. need_data: DATA_*.
     * Negative after recipe_blame(). NULL: none. */
    int (*complete)(Recipe *r, int need_data);
    /* Sets what `brim plan --grow WHAT` grows to its n-th value, n = 1, 2, ...; returns the value, 0 when
     * there are no more, negative after err_user() for another WHAT. NULL: nothing grows. */
    int64_t (*grow)(Recipe *r, const char *what, int64_t n);
    /* The recipe in force at a step, and the steps it is for. Stages share all weights. NULL: one stage. */
    TaskStage (*stage)(const Recipe *r, int64_t step, Recipe *out);
    /* What a recipe may say and no plan can give: negative after recipe_blame(). NULL: nothing. */
    int (*check)(const Recipe *r);
    int (*is_noise)(const Recipe *r); /* NULL: never */
    int (*has_val)(const Recipe *r);  /* 0: nothing is kept for validation */

    /* ---- the job ---- */

    /* Declares nets and fields, then store_seal() is called; then records programs and schedules. Negative
     * after err_user()/err_set(). */
    int (*declare)(Job *j);
    int (*record)(Job *j);
    void (*release)(Job *j);       /* frees what declare took from the heap; NULL: nothing */
    int (*init_constants)(Job *j); /* uploads tables; NULL: none */

    /* ---- data ---- */

    int (*open_train)(Source **out, const Recipe *r);
    /* most > 0: only so many samples, evenly spread. train: the training source if it is open, or NULL. */
    int (*open_val)(Source **out, const Recipe *r, int64_t most, const Source *train);
    /* Fills in keys that follow from open sources, of which val may be NULL; complete() was called with
     * DATA_OPENED_NEXT. NULL: none. */
    void (*fit)(Recipe *r, const Source *train, const Source *val);
    /* Where fit() leaves the part of their longest rows that the data need: a plan for them can then be made
     * without them. 0: not known. NULL: none. */
    double *(*share)(Recipe *r);

    /* ---- a run ---- */

    /* Loads the weights that a new run begins with, if the recipe names some. Called when no checkpoint was
     * found. NULL: never any. */
    int (*begin)(Job *j);
    /* Writes what belongs beside the run's recipe into this folder, and notes in Job.recipe where it is.
     * Called before the recipe is written. train: the source; NULL: there is none. Negative after err_set().
     * NULL: nothing. */
    int (*keep)(Job *j, const Source *train, const char *folder);
    /* Numbers of the step that has just ended, for metrics.jsonl, at most TASK_STEP_NUMBERS; returns how
     * many. A task that has this function has nothing queued ahead, so the function may read the device.
     * Negative after err_set(). NULL: none. */
    int (*numbers)(Job *j, TaskNumber *out);
    /* What a line of progress shows of a step in place of the loss, where that says little: its name, and the
     * number, NAN while there is none. NULL: the loss. */
    const char *shown_name;
    double (*shown)(const Job *j);
    /* Says at the end of a run what was measured. mfu: share of the peak FLOP/s in the last steps, NAN when
     * unknown. NULL: nothing. */
    void (*summary)(Job *j, double mfu);
    /* What lives on the host goes into kept tensors before a checkpoint, and comes back after one was loaded.
     * The device is at rest. Negative after err_set(). NULL: nothing. */
    int (*before_save)(Job *j);
    int (*after_load)(Job *j);
    /* State of its own in the checkpoint: so many bytes at Job.own_state, beside Job.kept. */
    size_t own_state_bytes;

    /* ---- what commands ask for (task/ask.h) ---- */

    /* NULL: the task has nothing to show. ask: writes what a sample needs of the job into r->ask, before the
     * job is made; NULL: nothing. */
    int (*ask)(Recipe *r, const TaskSample *opt);
    int (*sample)(Job *j, const TaskSample *opt, FILE *out);
    /* Answers about samples that are not trained on. NULL: the task has none. */
    int (*predict)(Job *j, const TaskPredict *opt, FILE *out);
    /* Loss and logits of a given sequence, with what the task asks of the job before. NULL: none. */
    int (*ask_score)(Recipe *r, const TaskScore *opt);
    int (*score)(Job *j, const TaskScore *opt, FILE *out);
    /* Writes weights for other programs. NULL: none. Negative after err_user()/err_set(). */
    int (*export_to)(const Recipe *r, const TaskExport *opt);
    /* Episodes of a trained policy for people. NULL: the task has none. */
    int (*play)(Job *j, const TaskPlay *opt);
};

#endif
