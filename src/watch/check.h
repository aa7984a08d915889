/* Check: this machine in a minute: devices, versions, rates against what the card should have, links, memory
 * errors, disk, and one step on the CPU against the same step on the GPU.
 *
 * 1. What is missing is said, and is no failure: a machine without a GPU trains on its CPU.
 * 2. Only a step that comes out differently on the GPU is a failure. */
#ifndef WATCH_CHECK_H
#define WATCH_CHECK_H

#include "conf/recipe.h"
#include "task/task.h"

typedef enum { CHECK_OK, CHECK_NOTE, CHECK_SLOW, CHECK_MISSING, CHECK_BAD } CheckState;

enum { CHECK_ROWS = 48 };

typedef struct {
    CheckState state;
    char       what[40], text[320];
} CheckRow;

typedef struct {
    CheckRow row[CHECK_ROWS];
    int      n, n_bad, n_slow;
    double   took_s;
} Check;

typedef struct {
    const Task   *task;
    const Recipe *recipe;    /* a small one, whose data need no file; for the step */
    const char   *folder;    /* where the disk is measured */
    const char   *nvml_path; /* as in nvml_open() */
    int           is_quick;  /* rates are not measured */
} CheckOptions;

/* Negative after err_set() only when nothing could be looked at. */
int check_machine(Check *c, const CheckOptions *opt);

void check_print(const Check *c, FILE *out);
int  check_print_json(const Check *c, FILE *out);

#endif
