#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/run_target.h"
#include "bin/tasks.h"
#include "watch/compare.h"
#include "watch/report.h"

#include <stdio.h>

int cmd_compare(const CmdArgs *a)
{
    int         json = 0;
    char        base[COMPARE_RUNS][RUNDIR_PATH], name[COMPARE_RUNS][RUN_NAME];
    CompareRun  run[COMPARE_RUNS];
    const char *picture = NULL;
    CmdFlag     flag[]  = { { "--json", NULL, &json, "an object a line instead of a table" },
                            { "--picture", &picture, NULL, "also draw loss, measure and rate: FILE.svg" } };
    int         n       = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n == 0) return err_user("command line: a run is missing (for example runs/quickstart)");
    if (picture && !str_ends_with(picture, ".svg"))
        return err_user("command line: --picture: %s does not end in .svg", picture);
    TRY(cmd_out_file("--picture", picture));
    if (n > COMPARE_RUNS)
        return err_user("command line: %s: compare takes at most %d runs", a->argv[COMPARE_RUNS],
                        COMPARE_RUNS);
    for (int i = 0; i < n; i++) {
        TRY(run_target_split(a->argv[i], base[i], name[i]));
        run[i] = (CompareRun){ base[i], name[i] };
    }
    if (picture) TRY(compare_picture(run, n, picture));
    TRY(compare_print(run, n, json, stdout));
    if (picture && !json) printf("picture: %s\n", picture);
    return 0;
}

int cmd_report(const CmdArgs *a)
{
    const char *out    = NULL;
    CmdFlag     flag[] = { { "--out", &out, NULL, "where to write it (default: report.html of the run)" } };
    CmdTarget   t;
    char        base[RUNDIR_PATH], name[RUN_NAME], path[RUNDIR_PATH + RUN_NAME + 32];
    Recipe      r;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (!t.target) return err_user("command line: a run is missing (for example runs/quickstart)");
    if (t.n_override > 0) return err_user("command line: %s: report takes no keys", t.override[0]);
    TRY(cmd_out_file("--out", out));
    TRY(run_target_split(t.target, base, name));
    snprintf(path, sizeof path, "%s/%s/recipe.yaml", base, name);
    TRY(recipe_load_without_data(&r, path, 0, NULL));
    RecipeFrom from = { .task = task_of(&r), .path = path };
    TRY(report_write_run(base, name, &from, out));
    if (out) {
        printf("%s\n", out);
    } else {
        printf("%s/%s/report.html\n", base, name);
    }
    return 0;
}
