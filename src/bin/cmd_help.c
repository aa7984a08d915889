#include "base/err.h"
#include "bin/cmd.h"

int cmd_help(const CmdArgs *a) { return recipe_help(a->argc > 0 ? a->argv[0] : NULL, stdout); }
