/* Runs: the folders of runs on this machine; what each run is and how far it has come.
 *
 * 1. This file only reads. It never takes a lock, not even for a moment, because a start that finds a lock
 *    refuses to train.
 * 2. At most RUNS_MOST runs, those that changed last. The end of metrics.jsonl is followed for each run. The
 *    whole file is kept for at most RUNS_OPEN runs, those that were asked for last.
 * 3. Names come from the listing of the folder. A name that is not in the listing is not looked for on
 *    disk. */
#ifndef WATCH_RUNS_H
#define WATCH_RUNS_H

#include "watch/facts.h"
#include "watch/series.h"

#include <stdint.h>
#include <stdio.h>

enum { RUNS_MOST = 256, RUNS_OPEN = 8, RUNS_NAME = 256, RUNS_TAIL_ROWS = 240, RUNS_TAIL_BYTES = 1 << 17 };
enum { RUNS_LOSS_STEPS = 20, RUNS_RATE_STEPS = 100 };

typedef enum { RUN_TRAINING, RUN_DONE, RUN_STOPPED } RunState;

typedef struct {
    char     name[RUNS_NAME];
    RunState state;
    double   changed_s;           /* wall clock: last write to metrics.jsonl */
    int64_t  steps;               /* asked for; 0: not known */
    char     unit[32], units[33]; /* "image", "images" */
    char     device[160];         /* "" when not known */
    char     activity[160];       /* where SM, tensor and DRAM activity come from, or why there is none */
    RunFacts facts;               /* all of watch.json */
    Series   tail;                /* the end of the file */
    Series  *full;                /* all of it, or NULL */
    int64_t  asked;               /* when full was wanted last, a count */
    int      is_seen;             /* in the folder's newest listing */
    int64_t  log_bytes;           /* of log.txt; 0: there is none */
    char     facts_mark[64];      /* of the watch.json that the facts are from; "": not read yet */
} RunView;

typedef struct {
    char     base[1024];
    char     only[RUNS_NAME]; /* the one run to look at; "": all */
    RunView *run[RUNS_MOST];  /* newest first */
    int      n_run;
    int64_t  n_asked;
} Runs;

int  runs_init(Runs *r, const char *base);                       /* negative after err_set() */
int  runs_init_one(Runs *r, const char *base, const char *name); /* other runs are not looked at */
void runs_deinit(Runs *r);
/* Looks at the folders and follows the files. 1: something changed, 0: nothing; unreadable ones are passed
 * over. */
int         runs_refresh(Runs *r);
RunView    *runs_find(Runs *r, const char *name); /* NULL: there is none */
RunView    *runs_need(Runs *r, const char *name); /* the same; NULL after err_user() */
Series     *runs_series(Runs *r, RunView *v);     /* all of it, up to date; NULL after err_set() */
const char *runs_state_name(RunState s);          /* "training", "done", "stopped" */
/* The mean of a run's last steps: RUNS_LOSS_STEPS of the loss, which falls, RUNS_RATE_STEPS of what is to be
 * steady; or NAN. Report and compare say this one. */
double runs_recent(const RunView *v, const char *key);
/* The steps that runs_recent() of a rate is of, "51 to 150"; "" when there are none. */
const char *runs_recent_steps(const RunView *v, char *buf, size_t n);
int         runs_has_target(const RunView *v); /* 1: the newest evaluation is at the target, or beyond it */
/* The path of a file of the run into buf; negative when it does not fit. */
int runs_path(const Runs *r, const RunView *v, const char *file, char *buf, size_t n);
/* A text of the run of at most max bytes, its last ones if there are more; tokens in it are blotted out.
 * NULL: none. The caller frees it. */
char *runs_text(const Runs *r, const RunView *v, const char *file, size_t max);
/* What log.txt has from byte *from on: whole lines, the newest ones if there are more than max. Sets *from
 * and *to to where the text begins and ends; a log shorter than *from is another one, and begins at 0. NULL:
 * none. The caller frees it. */
char *runs_log(const Runs *r, const RunView *v, int64_t *from, int64_t *to, size_t max);
/* Blots out what follows "watch.token=" and "?token=", up to white space. */
void runs_blot(char *text);

#endif
