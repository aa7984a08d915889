#include "base/err.h"
#include "bin/cmd.h"
#include "dev/dev.h"

#ifdef __clang__
#define COMPILER __VERSION__ /* says its own name */
#else
#define COMPILER "gcc " __VERSION__
#endif

int cmd_version(const CmdArgs *a)
{
    if (a->argc > 0) return err_user("command line: %s: version takes no arguments", a->argv[0]);
    const char *why = "";
    int         gpu = dev_cuda(&why) != NULL;
    printf("brim %s\ncommit    %s\ncompiler  %s\n", a->version, a->commit, COMPILER);
    printf("CUDA      %s%s\n", gpu ? "yes" : "no: ", gpu ? "" : why);
    return 0;
}
