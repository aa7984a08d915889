/* A trained run as the target of a command: "runs/NAME", "NAME", or a checkpoint folder. */
#ifndef BIN_RUN_TARGET_H
#define BIN_RUN_TARGET_H

#include "bin/cmd.h"
#include "run/rundir.h"
#include "run/setup.h"

/* Opens the run's recipe (with overrides), builds `parts` and loads weights. which: the value of --step,
 * "best", "last" or a number; NULL is "last", the newest good ones. On success *s must be closed by
 * setup_close(). */
int run_target_open(const CmdTarget *t, const char *which, unsigned parts, Recipe *r, Setup *s);

typedef struct {
    int     some; /* eval.samples of the validation data; 0: all, once */
    int64_t step; /* whose weights were loaded */
    Source *val;  /* the caller closes it */
} RunEval;
/* The same for an evaluation: its data are open, too. */
int run_target_eval(const CmdTarget *t, const char *which, RunEval *e, Recipe *r, Setup *s);
/* The same for sampling: the job has room for what opt asks for. */
int run_target_sample(const CmdTarget *t, const char *which, const TaskSample *opt, Recipe *r, Setup *s);
/* The same for logits of a given sequence. */
int run_target_score(const CmdTarget *t, const char *which, const TaskScore *opt, Recipe *r, Setup *s);

enum { RUN_CHECKPOINT_PATH = RUNDIR_PATH + 64, RUN_NAME = 256 };
/* Only finds the run: its recipe, its folder into run[RUNDIR_PATH], the checkpoint's folder into
 * checkpoint[RUN_CHECKPOINT_PATH] and the checkpoint's step. */
int run_target_find(const CmdTarget *t, const char *which, Recipe *r, char *run, char *checkpoint,
                    int64_t *step);

/* Only says where the run is: the folder above it into base[RUNDIR_PATH], its own name into name[RUN_NAME].
 * Negative after err_user(). */
int run_target_split(const char *target, char *base, char *name);
int run_target_exists(const char *target);
/* For commands that take either. Negative after err_user() if the target is neither; the message names what
 * is called most alike. A name in .yaml can only be a recipe: loading that recipe says what is wrong. */
int run_target_or_recipe(const char *target);
/* For a command that takes recipes alone. Negative after err_user() if the target is a run's name. */
int run_target_refuse(const char *target, const char *command);

#endif
