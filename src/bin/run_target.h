/* A trained run as the target of a command: "runs/NAME", "NAME", or a checkpoint folder. */
#ifndef BIN_RUN_TARGET_H
#define BIN_RUN_TARGET_H

#include "bin/cmd.h"
#include "run/setup.h"

/* Opens the run's recipe (with overrides), builds `parts` and loads the newest good weights; *step, unless NULL, gets
 * theirs. On success *s must be closed by setup_close(). */
int run_target_open(const CmdTarget *t, unsigned parts, Recipe *r, Setup *s, int64_t *step);

#endif
