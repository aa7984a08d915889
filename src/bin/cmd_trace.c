#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "bin/run_target.h"
#include "watch/tracesum.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 256 << 20 };

/* The trace of a run, or a file of that name. */
static int find_file(const char *target, char *buf, size_t n)
{
    char base[RUNDIR_PATH], name[RUN_NAME];
    if (file_kind(target) == FILE_REGULAR) return str_copy(buf, n, target);
    if (str_ends_with(target, ".json")) return err_user("command line: %s: no such file", target);
    TRY(run_target_split(target, base, name));
    snprintf(buf, n, "%s/%s/trace.json", base, name);
    if (file_kind(buf) == FILE_REGULAR) return 0;
    return err_user("%s: this run has no trace (trace=3 makes one)", target);
}

static int read_all(const char *path, char **text, size_t *size)
{
    FILE *f = fopen(path, "re");
    if (!f) return err_sys("%s", path);
    int  rc = fseek(f, 0, SEEK_END) == 0 ? 0 : err_sys("%s", path);
    long n  = rc == 0 ? ftell(f) : 0;
    rewind(f);
    if (rc == 0 && (n < 0 || n > MOST_BYTES)) rc = err_user("%s: larger than 256 MiB", path);
    if (rc == 0 && !(*text = malloc((size_t)n + 1))) rc = err_set("out of host memory");
    if (rc == 0) *size = fread(*text, 1, (size_t)n, f);
    fclose(f);
    return rc;
}

static int no_verb(const char *verb)
{
    StrNearest near = str_nearest_begin(verb);
    str_nearest_offer(&near, "summarize");
    char hint[80];
    return err_user("command line: trace: %s: no such command%s", verb,
                    str_nearest_hint(&near, "brim trace summarize RUN, or a trace.json", hint, sizeof hint));
}

int cmd_trace(const CmdArgs *a)
{
    int       json   = 0;
    CmdFlag   flag[] = { { "--json", NULL, &json, "one JSON object instead" } };
    char      path[RUNDIR_PATH + RUN_NAME + 32], *text = NULL;
    size_t    n     = 0;
    int       words = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    TraceSum *t;
    if (words < 0) return -1;
    if (words > 0 && strcmp(a->argv[0], "summarize") != 0) return no_verb(a->argv[0]);
    if (words != 2) return err_user("command line: brim trace summarize RUN, or a trace.json");
    TRY(find_file(a->argv[1], path, sizeof path));
    TRY(read_all(path, &text, &n));
    t      = calloc(1, sizeof *t);
    int rc = t ? tracesum_read(t, path, text, n) : err_set("out of host memory");
    if (rc == 0 && json) rc = tracesum_print_json(t, stdout);
    if (rc == 0 && !json) tracesum_print(t, stdout);
    free(t);
    free(text);
    return rc;
}
