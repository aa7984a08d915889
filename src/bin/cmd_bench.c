#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "run/bench.h"
#include "watch/nvml.h"
#include "watch/sampler.h"

#include <string.h>

static const char *const precision_names[] = { "auto", "fp32", "tf32", "bf16", "fp16", "fp8" };

/* ---- the GPU during the timed steps -------------------------------------------------------------------- */

typedef struct {
    Sampler      *sampler; /* NULL: nobody watches */
    SamplerResult seen;
} Watch;

static void watch_phase(void *ctx, int begin)
{
    Watch *w = (Watch *)ctx;
    if (begin) {
        sampler_begin(w->sampler);
    } else {
        sampler_end(w->sampler, &w->seen);
    }
}

/* "auto" may yet become the CPU; what was seen is used only if it did not. */
static Sampler *watch_device(const char *device)
{
    int64_t index = 0;
    if (str_starts_with(device, "cuda:") && str_parse_int(device + 5, &index) < 0) return NULL;
    if (!str_starts_with(device, "cuda") && strcmp(device, "auto") != 0) return NULL;
    return sampler_create((int)index, 0, NULL);
}

static void fill_gpu(BenchResult *b, const SamplerResult *seen)
{
    BenchGpu *g         = &b->gpu;
    g->utilisation      = seen->utilisation.mean / 100;
    g->power_w          = sampler_power_w(seen);
    g->sm_mhz           = seen->sm_mhz.mean;
    g->tensor_active    = seen->tensor_active.mean / 100;
    g->dram_active      = seen->dram_active.mean / 100;
    g->joules_per_token = g->power_w / b->per_s;
    if (seen->has_reasons) nvml_reasons_text(g->clock_reasons, sizeof g->clock_reasons, seen->reasons);
}

static void print_gpu(const BenchGpu *g, const SamplerResult *seen)
{
    char   a[32], b[32];
    double mj = 1e3 * g->joules_per_token;
    printf("GPU: utilisation %s %%, ", nvml_number(a, sizeof a, 100 * g->utilisation, 0));
    printf("power %s of %s W, ", nvml_number(a, sizeof a, g->power_w, 0),
           nvml_number(b, sizeof b, seen->power_limit_w, 0));
    printf("SM clock %s MHz", nvml_number(a, sizeof a, g->sm_mhz, 0));
    if (seen->reasons) printf(" (%s)", g->clock_reasons);
    printf(", tensor active %s %%, ", nvml_number(a, sizeof a, 100 * g->tensor_active, 0));
    printf("DRAM active %s %%, ", nvml_number(a, sizeof a, 100 * g->dram_active, 0));
    printf("%s C, ", nvml_number(a, sizeof a, seen->temperature_c.max, 0));
    printf("%s mJ/token\n", nvml_number(a, sizeof a, mj, mj < 10 ? 2 : mj < 100 ? 1 : 0));
}

/* ---- the command --------------------------------------------------------------------------------------- */

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
    Watch        watch = { .sampler = watch_device(r.device) };
    BenchHooks   hooks = { watch_phase, &watch };
    BenchOptions opt   = { a->begin_s, !no_limit, ops, stdout, &hooks };
    int          rc    = bench_run(&b, &r, &opt);
    sampler_destroy(watch.sampler); /* a failed step leaves it running */
    TRY(rc);
    printf("%s tokens/s, %.2f ms a step (median of %d), MFU %.1f %%, limit share %.2f, first step after %.1f s\n",
           str_count(rate, sizeof rate, b.per_s), b.step_s * 1e3, b.n_step, 100 * b.mfu, b.limit_share, b.startup_s);
    if (b.kind == DEV_CUDA) {
        fill_gpu(&b, &watch.seen);
        print_gpu(&b.gpu, &watch.seen);
    }
    if (!no_limit) {
        printf("measured: product %.1f TFLOP/s, attention %.1f forward / %.1f backward, copy %.0f GB/s\n",
               b.rate[UNIT_GEMM] * 1e-12, b.rate[UNIT_ATTN_FWD] * 1e-12, b.rate[UNIT_ATTN_BWD] * 1e-12, b.rate[UNIT_MEMORY] * 1e-9);
    }
    if (json) bench_print_json(&b, &r, r.device, precision_names[r.precision], stdout);
    return 0;
}
