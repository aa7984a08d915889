#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "run/bench.h"

static const char *const precision_names[] = { "auto", "fp32", "tf32", "bf16", "fp16", "fp8" };

int cmd_bench(const CmdArgs *a)
{
    int     ops = 0, json = 0, no_limit = 0;
    CmdFlag flag[] = { { "--ops", NULL, &ops, "time every op" },
                       { "--json", NULL, &json, "last line of stdout is one JSON object" },
                       { "--no-limit", NULL, &no_limit, "do not measure the device's own rates" } };
    Recipe      r;
    BenchResult b;
    char        rate[32];
    TRY(cmd_parse_recipe(a, flag, ARRAY_LEN(flag), &r));
    TRY(bench_run(&b, &r, a->begin_s, !no_limit, ops, stdout));
    printf("%s tokens/s, %.2f ms a step (median of %d), MFU %.1f %%, limit share %.2f, first step after %.1f s\n",
           str_count(rate, sizeof rate, b.per_s), b.step_s * 1e3, b.n_step, 100 * b.mfu, b.limit_share, b.startup_s);
    if (!no_limit) {
        printf("measured: product %.1f TFLOP/s, attention %.1f forward / %.1f backward, copy %.0f GB/s\n",
               b.rate[UNIT_GEMM] * 1e-12, b.rate[UNIT_ATTN_FWD] * 1e-12, b.rate[UNIT_ATTN_BWD] * 1e-12, b.rate[UNIT_MEMORY] * 1e-9);
    }
    if (json) bench_print_json(&b, &r, r.device, precision_names[r.precision], stdout);
    return 0;
}
