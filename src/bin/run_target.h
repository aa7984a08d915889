/* A trained run as the target of a command: "runs/NAME", "NAME", or a checkpoint folder. */
#ifndef BIN_RUN_TARGET_H
#define BIN_RUN_TARGET_H

#include "bin/cmd.h"
#include "run/setup.h"

/* Opens the run's recipe (with overrides), builds `parts` and loads weights. which: the value of --step,
 * "best", "last" or a number; NULL is "last", the newest good ones. *step, unless NULL, gets theirs. On
 * success *s must be closed by setup_close(). */
int run_target_open(const CmdTarget *t, const char *which, unsigned parts, Recipe *r, Setup *s,
                    int64_t *step);

#endif
