/* Inherit: what a run that goes on takes from its own recipe. What says which data and which model, and stood
 * on the command line of an earlier start, need not be typed again. */
#ifndef BIN_INHERIT_H
#define BIN_INHERIT_H

#include "bin/cmd.h"

/* Loads the recipe for training: the target is a recipe or, where there is none of that name, a run, whose
 * recipe it is then. BRIM_RUNS is set to that run's folder if the run lies elsewhere. fresh: nothing is
 * inherited. Negative after err_user()/err_set(). */
int inherit_load(const CmdTarget *t, int fresh, Recipe *r);

#endif
