#include "base/err.h"
#include "base/file.h"
#include "bin/cmd.h"
#include "run/rundir.h"
#include "watch/compare.h"
#include "watch/report.h"

#include <stdio.h>
#include <string.h>

enum { RUNS_COMPARED = 16 };

/* "runs/NAME/" and "NAME" are the same run. */
static char *run_name(char *target)
{
    size_t n = strlen(target);
    while (n > 1 && target[n - 1] == '/') target[--n] = '\0';
    return target + (file_name_of(target) - target);
}

int cmd_compare(const CmdArgs *a)
{
    int       json = 0, n = 0;
    char     *name[RUNS_COMPARED];
    CmdFlag   flag[] = { { "--json", NULL, &json, "an object a line instead of a table" } };
    CmdTarget t;
    for (int i = 0; i < a->argc; i++) {
        if (a->argv[i][0] == '-') {
            CmdArgs one = { a->begin_s, 1, a->argv + i, a->version, a->commit };
            TRY(cmd_parse(&one, flag, ARRAY_LEN(flag), &t));
        } else if (n == RUNS_COMPARED) {
            return err_user("command line: %s: compare takes at most %d runs", a->argv[i], RUNS_COMPARED);
        } else {
            name[n++] = run_name(a->argv[i]);
        }
    }
    if (n == 0) return err_user("command line: a run is missing (for example runs/quickstart)");
    return compare_print(rundir_base(), name, n, json, stdout);
}

int cmd_report(const CmdArgs *a)
{
    const char *out    = NULL;
    CmdFlag     flag[] = { { "--out", &out, NULL, "where to write it (default: report.html of the run)" } };
    CmdTarget   t;
    char        name[256];
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (!t.target) return err_user("command line: a run is missing (for example runs/quickstart)");
    if (t.n_override > 0) return err_user("command line: %s: report takes no keys", t.override[0]);
    snprintf(name, sizeof name, "%s", t.target);
    TRY(report_write_run(rundir_base(), run_name(name), out));
    printf("%s%s%s%s\n", out ? out : rundir_base(), out ? "" : "/", out ? "" : run_name(name),
           out ? "" : "/report.html");
    return 0;
}
