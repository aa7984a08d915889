/* Run directory: runs/NAME, everything one run writes, held by one process at a time.
 *
 * 1. The lock is a flock() on NAME/lock, which ends with the process however that ends: a lock file that
 *    nobody holds is stale, whatever it says. Its text (pid, start, machine) is for the message to the second
 *    comer and for those who only look.
 * 2. Nothing is ever deleted here: a fresh start renames the old directory to NAME.old-YYYYmmdd-HHMMSS, and
 *    not before the new run can begin. A start that comes to nothing leaves everything as it was, and no
 *    empty directory.
 * 3. Nothing is written through a link or into a special file: a directory that has one where a file of the
 *    run belongs is refused.
 * 4. metrics.jsonl has each step once: resuming drops the lines of steps that will be done again. */
#ifndef RUN_RUNDIR_H
#define RUN_RUNDIR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { RUNDIR_PATH = 1024 };

typedef struct {
    char  path[RUNDIR_PATH];        /* runs/NAME */
    char  checkpoints[RUNDIR_PATH]; /* runs/NAME/checkpoints, made */
    char  metrics[RUNDIR_PATH];     /* metrics.jsonl: opened for appending by whoever writes it */
    char  log[RUNDIR_PATH];         /* log.txt, likewise */
    char  recipe[RUNDIR_PATH];      /* recipe.yaml, as resolved */
    char  plan[RUNDIR_PATH];        /* plan.txt */
    char  machine[RUNDIR_PATH];     /* machine.txt */
    char  lock[RUNDIR_PATH];
    int   lock_fd; /* valid while is_open */
    int   is_open;
    int   is_new; /* made by rundir_open(), and rundir_begin() was not called yet */
    dev_t device; /* with inode: which folder it was that was opened */
    ino_t inode;
} RunDir;

/* Where runs are: $BRIM_RUNS, or "runs". */
const char *rundir_base(void);

/* The file in that folder that keeps what was timed on a GPU, for all runs, into buf. Returns buf. */
const char *rundir_tune_cache(char *buf, size_t n);

/* Fills in the paths of run `name`; touches nothing. Negative after err_user() when the name cannot be a
 * folder's. */
int rundir_paths(RunDir *d, const char *name);

/* Locks the directory of run `name`, which is made if there is none. Negative after err_user() ("runs/x is in
 * use by pid N (started ...)"; a name that cannot be a folder's) or err_set(). */
int rundir_open(RunDir *d, const char *name);

/* The run begins: from here on the directory stays. fresh: one that was there before is moved aside, and
 * another one made and locked. Negative after err_set(), or err_user() when another process got the name in
 * between. */
int rundir_begin(RunDir *d, int fresh);

/* Gives the lock back, and removes a directory that was made for a run that did not begin, if nothing is in
 * it. Nothing for a zeroed or closed one. */
void rundir_close(RunDir *d);

/* Before something is written: makes sure that the directory is there and still belongs to this run.
 *   0         it is there
 *   1         somebody had removed or moved it; it was made anew, empty
 *   negative  after err_set(): it cannot be made, or another run has the name now */
int rundir_hold(RunDir *d);

/* 1: another directory has the name now, so rundir_hold() fails and will go on failing. */
int rundir_is_lost(const RunDir *d);

/* The pid that a lock file names, if it counts on this machine; 0: it does not, or is not known. */
int64_t rundir_owner(const char *lock);

/* Drops the lines of a file, such as metrics.jsonl, whose "step" is first_step or later: these will be
 * written again.
 * What a killed writer left of a line goes, too. The file is replaced whole, or not at all when there is
 * nothing to drop; open it for appending afterwards. Returns how many lines went; negative after
 * err_set(). */
int rundir_trim(const char *path, int64_t first_step);

/* The last step that metrics.jsonl has a loss of; 0: none, or the file cannot be read. */
int64_t rundir_last_step(const RunDir *d);

/* 1 when metrics.jsonl has a measure of an evaluation ("val_...") after this step; 0 also when the file
 * cannot be read. */
int rundir_has_eval(const RunDir *d, int64_t step);

#endif
