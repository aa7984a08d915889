/* What the files of train share. Not for others. */
#ifndef RUN_TRAIN_IMPL_H
#define RUN_TRAIN_IMPL_H

#include "base/progress.h"
#include "ckpt/ckpt.h"
#include "run/metrics.h"
#include "run/rundir.h"
#include "run/setup.h"
#include "run/step.h"
#include "run/train.h"
#include "run/watchdog.h"

/* What only one rank may know. All must see it alike, or they would rest, evaluate or stop at different
 * steps. */
typedef struct {
    int64_t signal;      /* a signal asks to stop */
    int64_t over_budget; /* the time is used up */
    int64_t retry_save;  /* the last save failed and it is time to try again */
    int64_t enough;      /* who looks on has seen enough */
} Asked;

/* Saving, as far as it has come. */
typedef struct {
    CkptWriter *writer;      /* NULL: this rank saves nothing */
    int64_t     last;        /* the step of the last save; -1: no checkpoint has what is known now */
    int         is_due;      /* waits for a step that was not skipped */
    int         is_best;     /* the last evaluation was the best so far: it is to be saved */
    int         best_waits;  /* of this rank: no save that is named best has succeeded since then */
    int         is_rejected; /* the last one was refused: a weight is not finite */
    int         has_failed;  /* of this rank; the others learn through asked when it tries again */
    int64_t     retry_step, retry_after; /* when that is, and how many steps it waited for it */
} Saving;

/* Skipped steps, up to the last result. */
typedef struct {
    int n_row;      /* steps in a row */
    int n_update;   /* updates of the run */
    int n_overflow; /* and those whose gradient overflowed */
} Skips;

/* Rollbacks since the last step that was good beyond all bad ones. */
typedef struct {
    int     n;         /* see MAX_ROLLBACKS in train_back.c */
    int64_t to;        /* the step that the last one of them went back to */
    int64_t bad_until; /* the step that led to it */
} Rollbacks;

/* What steps take, of this start alone. */
typedef struct {
    int    n_step;         /* steps that were timed */
    double last_s;         /* when the last step whose result was read had ended, or what came after it */
    double step_s;         /* smoothed seconds a step; CkptState.step_s: of the run */
    double eval_s, save_s; /* evaluating, and the device at rest for checkpoints */
} Pace;

typedef struct {
    /* what it was asked for */
    const Task   *task;
    const Recipe *r;          /* the caller's, then fixed */
    Recipe        fixed;      /* the same with absolute paths */
    double        begin_s;    /* program start */
    int64_t       begin, end; /* steps of this stage: all of the run where the task has one */
    int           is_look;    /* of TrainOptions */
    /* Of the stage that went back to this one: what no checkpoint has. NULL: none did. */
    const CkptState *learned;

    /* what is open */
    Comm    *comm; /* NULL: one rank */
    Setup    setup;
    RunDir   dir;
    Source  *train, *val;
    Stepper  stepper;
    Feed     val_feed; /* opened by the first evaluation */
    Metrics  metrics;
    int      log_copied; /* to log.txt, from now on */
    Progress progress;
    Watchdog watchdog;

    /* how far it is */
    CkptState at;         /* what a checkpoint taken now would say; at.step = updates whose result was read */
    int64_t   queued;     /* steps handed to the device */
    int64_t   first_step; /* of this process */
    int       said_data;  /* by this stage, or one before it */
    int       idle;       /* it has nothing to do, and said why */
    int       is_over;    /* no step comes any more; only what was done is saved */
    Asked     asked;
    Saving    save;
    Skips     skips;
    Rollbacks back;    /* of all stages */
    int       in_flux; /* 1: the device's state is being replaced and must not be saved */

    /* what was measured */
    Pace   pace;
    double step_flops; /* of all ranks, as MFU counts them */
    double lr[STEP_RING];
    double first_loss, last_loss;
    struct {
        int64_t step;
        double  value; /* of the measure that counts */
    } last_eval;
} Run;

double train_elapsed(const Run *run);                  /* training seconds over all parts of the run */
double train_elapsed_at(const Run *run, double now_s); /* the same at another time of clock_now_s() */

/* ---- train.c ---- */

/* One stage on this rank, from opening to closing. The caller fills in what was asked for, and what earlier
 * stages left. */
int train_rank(Run *run, const TrainOptions *opt);
/* 1: the run goes on with another stage; every rank says the same. */
int train_has_next(const Run *run);

/* ---- train_stages.c ---- */

/* One stage after the other: each is opened from the checkpoint that the one before left, or went back to. */
int train_stages(const Task *task, const Recipe *r, const TrainOptions *first, Comm *comm);

/* ---- train_back.c ---- */

/* Too many skips in a row: back to a good checkpoint, and past the samples that did it. */
int train_roll_back(Run *run);

/* ---- train_open.c ---- */

int  train_open(Run *run, const TrainOptions *opt);
void train_close(Run *run); /* whatever of it is open */

/* Goes on from the newest good checkpoint of a step below `before`. 1: done; 0: there is none. Rank 0 finds
 * it, the others read the same one. */
int train_resume(Run *run, int64_t before);
/* Once a checkpoint was loaded: what was learned after it, about samples and time, stays known. */
int train_keep_learned(Run *run, const CkptState *later);
/* Begins log.txt, once it is known that this start belongs to the run. */
void train_copy_log(Run *run);
/* Starts reading samples at run->at. */
int train_attach(Run *run);
/* recipe.yaml, machine.txt and plan.txt, each whole or as before: without its recipe a run could not be
 * evaluated. */
int train_write_texts(Run *run);

/* ---- train_data.c ---- */

/* Says what the data hold and how often the run goes through them, and warns of too few. */
void train_say_data(const Run *run);

/* ---- train_until.c ---- */

int  train_over_budget(const Run *run);
void train_note_pace(Run *run, double dt_s); /* a step took so long */
/* Steps the schedule should count on: those of the recipe, or fewer when the time budget will end the run
 * first. */
int64_t train_schedule_steps(const Run *run, int64_t step);
/* 1: training should stop; at.stopped has the reason. */
int train_after_eval(Run *run, double val);
/* Sets run->idle when the run, as it was resumed, has what is asked for; says so. */
int train_find_idle(Run *run);

/* 1: the device rests after so many steps, because the trace begins, is warm, or ends there. Every rank says
 * the same. */
int train_is_trace_edge(const Run *run, int64_t done);

/* ---- train_save.c ---- */

/* Begins a checkpoint of the device at rest. A failure is loud and is tried again after 1, 2, 4 ... steps;
 * negative only when the device cannot be read. */
int train_save(Run *run);

/* Looks whether checkpoints will fit on the disk; a warning when not all that are kept do. fresh: none is
 * there yet. Negative after err_set() when not one fits: rank 0 alone. */
int train_check_room(const Run *run, int fresh);

void train_poll_save(Run *run); /* reports a save that has ended */
void train_wait_save(Run *run); /* the same after waiting for it */

/* 1: what the device holds is worth nothing, as far as the results of this step tell: its validation, or
 * without one its loss, is not finite. Such a state is not saved. */
int train_is_broken(const Run *run);

/* What was trained is only in memory now: a disk that is full or gone gets some time to come back. A signal
 * ends that, and a directory that another run has taken is not waited for. A broken state is not saved: an
 * error, unless a signal ended the run. */
int train_save_last(Run *run);

#endif
