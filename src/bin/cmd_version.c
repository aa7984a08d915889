#include "base/err.h"
#include "base/json.h"
#include "bin/cmd.h"
#include "dev/dev.h"

#ifdef __clang__
#define COMPILER __VERSION__ /* says its own name */
#else
#define COMPILER "gcc " __VERSION__
#endif

int cmd_version(const CmdArgs *a)
{
    int     json   = 0;
    CmdFlag flag[] = { { "--json", NULL, &json, "one JSON object instead" } };
    int     n      = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n > 0) return err_user("command line: %s: version takes no arguments", a->argv[0]);
    const char *why = "";
    int         gpu = dev_cuda(&why) != NULL;
    if (json) {
        JsonOut o;
        json_out_init_file(&o, stdout);
        json_out_object(&o, NULL);
        json_out_str(&o, "version", a->version);
        json_out_str(&o, "commit", a->commit);
        json_out_str(&o, "compiler", COMPILER);
        json_out_bool(&o, "cuda", gpu);
        json_out_str(&o, "why", gpu ? NULL : why);
        return json_out_end(&o);
    }
    printf("brim %s\ncommit    %s\ncompiler  %s\n", a->version, a->commit, COMPILER);
    printf("CUDA      %s%s\n", gpu ? "yes" : "no: ", gpu ? "" : why);
    return 0;
}
