#include "base/err.h"
#include "base/file.h"
#include "bin/cmd.h"
#include "bin/tasks.h"
#include "run/rundir.h"
#include "watch/check.h"

#include <stdlib.h>
#include <string.h>

/* Small enough for any CPU, with every kind of op of a transformer in it; the data are drawn. */
static const char recipe_text[] = "run: check\nsteps: 8\nstep_tokens: 2048\nprecision: fp32\nmodel:\n"
                                  "  layers: 2\n  width: 128\n  heads: 4\n  vocab: 256\n  context: 128\n"
                                  "  norm: rmsnorm\n  pos: rope\n  act: swiglu\ndata:\n  kind: random\n";

int cmd_check(const CmdArgs *a)
{
    int     json = 0, quick = 0;
    CmdFlag flag[] = { { "--json", NULL, &json, "one JSON object instead" },
                       { "--quick", NULL, &quick, "do not measure rates" } };
    Recipe  r;
    Check   c;
    int     n = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n > 0) return err_user("command line: %s: check takes no arguments", a->argv[0]);
    TRY(recipe_parse(&r, "check", recipe_text, strlen(recipe_text), 0, NULL));
    const char  *runs = rundir_base();
    CheckOptions opt  = { .task      = task_of(&r),
                          .recipe    = &r,
                          .folder    = file_kind(runs) == FILE_FOLDER ? runs : ".",
                          .nvml_path = getenv("BRIM_NVML"),
                          .is_quick  = quick };
    TRY(check_machine(&c, &opt));
    if (json) {
        TRY(check_print_json(&c, stdout));
    } else {
        check_print(&c, stdout);
    }
    return c.n_bad > 0 ? err_set("%d of these must not be", c.n_bad) : 0;
}
