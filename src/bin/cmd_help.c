#include "base/err.h"
#include "bin/cmd.h"

int cmd_help(const CmdArgs *a)
{
    if (a->argc > 1) return err_user("command line: %s: help takes one key or command", a->argv[1]);
    if (a->argc == 1) return recipe_help(a->argv[0], stdout);
    recipe_help_names(stdout);
    return 0;
}
