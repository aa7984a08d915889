/* Job: all that a task wrote down for one recipe and one choice of micro-batch, recomputation and precision.
 *
 * 1. A Job that is not bound has no device memory: plans are made of Jobs. run/build.h creates and binds one.
 * 2. The order of work in a task: job_add_table() and job_declare_fields() while the store is open; then for
 *    each program job_begin(), the recorders, job_end(); then the rows of the schedules.
 * 3. Functions at the end read and write tensors of a bound Job; they wait. */
#ifndef TASK_JOB_H
#define TASK_JOB_H

#include "comm/comm.h"
#include "data/fields.h"
#include "net/net.h"
#include "optim/optim.h"
#include "plan/machine.h"
#include "prog/prog.h"
#include "task/task.h"

/* The chosen numbers. They never change the mathematics beyond summation order. */
typedef struct {
    int64_t        micro_batch; /* samples */
    RecomputeLevel level;       /* of every block */
    int64_t        head_rows;   /* rows of the head at a time; 0: the task has no chunks */
    DType          compute;
    unsigned       gives; /* GIVE_* bits (net/param.h): these change the mathematics, and were allowed */
    int            fp8;   /* 1: products in fp8 where they may be */
    int            world; /* ranks that share a step; 0 counts as 1 */
    int            rank;  /* the one of them that this is for */
} JobChoice;

/* JOB_LOADED: weights come from a file, no initial values are drawn. JOB_TEACH: what a frozen teacher says
 * about samples, and nothing else. */
typedef enum {
    JOB_TRAIN   = 1,
    JOB_EVAL    = 2,
    JOB_SAMPLE  = 4,
    JOB_LOADED  = 8,
    JOB_PLAY    = 16,
    JOB_PREDICT = 32,
    JOB_TEACH   = 64
} JobParts;

enum { JOB_TABLES = 6, JOB_PROGS = 32, JOB_KEPT = 16 };

struct Job {
    const Task  *task;
    const DevVt *vt; /* what it was planned for */
    Recipe       recipe;
    JobChoice    choice;
    unsigned     parts; /* JobParts */

    Store       store;
    Tensor     *state; /* StepState */
    Tensor     *sums;  /* f64[LOSS_SLOTS], its out.sum */
    ParamTable *table[JOB_TABLES];
    int         n_table;
    int         n_block; /* of all nets */

    Fields  fields;
    Tensor *landing; /* u8, where the copy lane writes a batch; NULL: batches are written to block */
    Tensor *block;   /* u8, the batch that programs read; NULL: nothing is fed */
    Tensor *sample0; /* i64[1], its head */
    Tensor *field[FIELDS_MAX];

    Prog    *prog[JOB_PROGS];
    int      n_prog;
    int      unpack; /* program that moves landing to block; -1: none */
    int      copies; /* program that makes compute copies of weights */
    Schedule step, eval;

    Tensor *kept[JOB_KEPT]; /* device state of the task that checkpoints hold, by name */
    int     n_kept;
    int     kept_in_model[JOB_KEPT]; /* 1: beside the weights, also without training */
    void   *own;                     /* the task's own struct, from store.arena */
    void   *own_state;               /* Task.own_state_bytes, from store.arena */

    Dev  *dev;       /* once bound */
    Comm *comm;      /* borrowed; the other ranks, NULL when there are none */
    int   may_leave; /* 1: what runs may be given up anywhere: an evaluation, or a step that is done again */
};

/* ---- for tasks: declaring ---- */

void job_add_table(Job *j, ParamTable *t);
/* Options for the parameters of a net of this job. */
ParamOptions job_param_options(const Job *j);
/* What the job computes in, also where the recipe says auto: "bf16". */
const char  *job_precision(const Job *j);
MachineArith job_arith(const Job *j);
/* What trains the job's weights: "AdamW", "Muon" (hidden matrices) "and AdamW". */
const char *job_optimizer(const Job *j);
/* Numbers in weights that are not trained. */
int64_t job_frozen_count(const Job *j);
/* Refuses items of `freeze` and `fp8.wide` that name no weight of any table, and a training run in which
 * every weight is frozen. */
int job_check_names(const Job *j);
/* The sample, and its block on the device. */
void job_declare_fields(Job *j, const FieldRow *row, int n);
/* A device tensor of the task that stays from step to step. is_kept 1: checkpoints hold it; 2: it is part of
 * the model, so a job that does not train has it, too. */
Tensor *job_declare_state(Job *j, const char *name, DType dtype, int ndim, const int64_t *dim, int is_kept);

/* ---- for tasks: recording ---- */

Prog *job_begin(Job *j, const char *name);
/* Options for an update of this job: losses that may be negative have no spikes (Task.spikes). */
OptimOptions job_optim_options(const Job *j);
/* Appends the backward half with the chosen recomputation. */
void job_differentiate(Job *j, Prog *p);
/* Lowers, plans and keeps p; sums: gradients and losses are summed over ranks behind their last use. Returns
 * its number. */
int job_end(Job *j, Prog *p, int sums);

void schedule_add(Schedule *s, ScheduleRow row);
/* Rows of a step that is micro-batches and one update: micro x n-1, micro_last [sums], update. */
void job_schedule_step(Job *j, int micro, int micro_last, int update);

/* ---- facts ---- */

int64_t job_micro_per_step(const Job *j); /* of one rank */
int64_t job_units_per_step(const Job *j); /* of all ranks */
/* What these units are called: "environment steps". */
const char *job_unit_in_full(const Job *j);
int64_t     job_param_count(const Job *j);
int         job_trains(const Job *j);
/* The logarithm of the loss scale that a run begins with; 0: gradients are not scaled. */
int job_first_scale(const Job *j);
/* 1: a signal asks to stop, and the step need not be finished. A host row that takes long asks often. */
int job_leaves(const Job *j);
int job_has_host_rows(const Job *j); /* in its step: then nothing is queued ahead */
/* What lowering may fuse: the recipe's switches, less what a deterministic run does without. */
RecipeOpt job_lower_options(const Recipe *r, const DevVt *vt);

/* Calls f for every row with a program of a schedule, with the times that it runs in one walk. */
void schedule_each(const Schedule *s, void (*f)(void *ctx, const ScheduleRow *row, double times), void *ctx);

/* ---- host access ---- */

int job_upload(Job *j, const Tensor *t, const void *src, size_t size_bytes);
/* The table of rotations of a net; nothing for a net that has none. */
int job_upload_rope(Job *j, const Net *net);
int job_download(Job *j, const Tensor *t, void *dst, size_t size_bytes);
/* Host copies of logical tensors: f32, rows*cols numbers; a column of another dtype is converted. */
int job_read_param(Job *j, const Param *p, Column c, float *out);
int job_write_param(Job *j, const Param *p, Column c, const float *in);
/* Refreshes compute copies after job_write_param on weights. */
int job_refresh_copies(Job *j);
/* Before job_refresh_copies() where weights were replaced: fp8 takes all scales from the tensors anew. */
int job_forget_scales(Job *j);
int job_write_state(Job *j, const StepState *s);
int job_read_state(Job *j, StepState *s);

#endif
