#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "dev/dev.h"

#include <stdio.h>

static void print_device(const char *spec)
{
    const char *why = "";
    DevOptions  opt = { .capture = 1, .tune = 1 };
    DevInfo     info;
    char        a[32], b[32];
    Dev        *dev = dev_open(spec, &opt, &why);
    if (!dev || dev->vt->info(dev, &info) < 0) {
        printf("%-6s not used: %s\n", spec, err_get());
        err_clear();
    } else {
        printf("%-6s %s\n       %s free of %s\n       %s\n", spec, info.name,
               str_bytes(a, sizeof a, (double)info.free_bytes),
               str_bytes(b, sizeof b, (double)info.total_bytes), info.versions);
    }
    if (dev) dev_close(dev);
}

int cmd_info(const CmdArgs *a)
{
    if (a->argc > 0) return err_user("command line: %s: info takes no arguments", a->argv[0]);
    print_device("cpu");
    print_device("cuda");
    const char *why = "";
    DevOptions  opt = { .capture = 1 };
    Dev        *dev = dev_open("auto", &opt, &why);
    if (!dev) return -1;
    printf("auto   %s\n", why);
    dev_close(dev);
    return 0;
}
