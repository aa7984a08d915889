#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "bench/bench.h"
#include "bench/ladder.h"
#include "bin/run_target.h"
#include "bin/tasks.h"
#include "comm/place.h"
#include "run/rundir.h"
#include "watch/nvml.h"
#include "watch/sampler.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    BenchGpu *g        = &b->gpu;
    g->utilisation     = seen->utilisation.mean / 100;
    g->power_w         = sampler_power_w(seen);
    g->sm_mhz          = seen->sm_mhz.mean;
    g->sm_active       = seen->sm_active.mean / 100;
    g->tensor_active   = seen->tensor_active.mean / 100;
    g->dram_active     = seen->dram_active.mean / 100;
    g->joules_per_unit = g->power_w / b->per_s;
    if (seen->has_reasons) nvml_reasons_text(g->clock_reasons, sizeof g->clock_reasons, seen->reasons);
}

static void print_gpu(const BenchResult *bench, const SamplerResult *seen)
{
    const BenchGpu *g = &bench->gpu;
    char            a[32], b[32];
    double          mj = 1e3 * g->joules_per_unit;
    printf("GPU: utilisation %s %%, ", nvml_number(a, sizeof a, 100 * g->utilisation, 0));
    printf("power %s of %s W, ", nvml_number(a, sizeof a, g->power_w, 0),
           nvml_number(b, sizeof b, seen->power_limit_w, 0));
    printf("SM clock %s MHz", nvml_number(a, sizeof a, g->sm_mhz, 0));
    if (seen->reasons) printf(" (%s)", g->clock_reasons);
    if (!isnan(bench->gap_share)) printf(", gaps between kernels %.2f %%", 100 * bench->gap_share);
    printf(", SMs active %s %%", nvml_number(a, sizeof a, 100 * g->sm_active, 1));
    printf(", tensor active %s %%, ", nvml_number(a, sizeof a, 100 * g->tensor_active, 0));
    printf("DRAM active %s %%, ", nvml_number(a, sizeof a, 100 * g->dram_active, 0));
    printf("%s C, ", nvml_number(a, sizeof a, seen->temperature_c.max, 0));
    printf("%s mJ/%s\n", nvml_number(a, sizeof a, mj, mj < 10 ? 2 : mj < 100 ? 1 : 0), bench->one);
}

/* ---- the command --------------------------------------------------------------------------------------- */

typedef struct {
    int         ops, json, no_limit, ladder;
    const char *from, *batch, *picture, *seconds;
} Flags;

/* Where the picture goes unless the user says: beside the run's folder. */
static int default_picture(char *buf, size_t n, const Flags *f, const Recipe *r)
{
    RunDir d;
    TRY(rundir_paths(&d, r->run));
    int len = snprintf(buf, n, "%s.ladder%s%s.svg", d.path, f->from ? "-from-" : "", f->from ? f->from : "");
    return len >= 0 && (size_t)len < n ? 0 : err_user("BRIM_RUNS: path too long");
}

/* A mistyped absolute path must not grow folders somewhere in the file system. */
static int check_picture(const char *path)
{
    char folder[PATH_MAX];
    if (path[0] != '/' || file_folder_of(path, folder, sizeof folder) < 0) return 0;
    if (file_kind(folder) == FILE_FOLDER) return 0;
    return err_user("command line: --picture: %s: no such folder", folder);
}

/* A place that cannot be written is the user's to change, and better now than after the measuring. */
static int try_picture(const char *path)
{
    char cause[512];
    if (ladder_try_picture(path) == 0) return 0;
    snprintf(cause, sizeof cause, "%s", err_get());
    err_clear();
    return err_user("the ladder's picture (--picture): %s", cause);
}

/* What was measured is printed whether or not it can be drawn. */
static int show_ladder(const Ladder *l, const char *picture, int json)
{
    ladder_print(l, stdout);
    int rc = ladder_draw(l, picture);
    if (rc == 0) printf("\npicture: %s\n", picture);
    if (json) ladder_print_json(l, stdout);
    return rc;
}

static int bench_ladder(const Flags *f, const CmdTarget *t, const Recipe *r, double least_s)
{
    LadderOptions opt = { .task       = task_of(r),
                          .path       = t->target,
                          .override   = t->override,
                          .n_override = t->n_override,
                          .least_s    = least_s };
    char          usual[RUNDIR_PATH + 32];
    const char   *picture = f->picture ? f->picture : usual;
    opt.start = !f->from ? LADDER_FP32 : strcmp(f->from, "torch") == 0 ? LADDER_TORCH : LADDER_RECIPE;
    if (f->batch) TRY(cmd_int("--batch", f->batch, 1, 65536, &opt.batch));
    if (f->picture) TRY(check_picture(picture));
    if (!f->picture) TRY(default_picture(usual, sizeof usual, f, r));
    TRY(try_picture(picture));
    Ladder *l = calloc(1, sizeof *l);
    if (!l) return err_set("out of host memory");
    int rc = ladder_run(l, &opt);
    if (rc == 0) rc = show_ladder(l, picture, f->json);
    free(l);
    return rc;
}

/* What is not known (no data-sheet peak, no measured rates) is left out. */
static void print_step(const BenchResult *b)
{
    char rate[32];
    printf("%s %s/s, %.2f ms a step (median of %d)", str_count(rate, sizeof rate, b->per_s), b->unit,
           b->step_s * 1e3, b->n_step);
    if (b->mfu > 0) printf(", MFU %.1f %%", 100 * b->mfu);
    if (b->limit_share > 0) printf(", limit share %.2f", b->limit_share);
    printf(", first step after %.1f s\n", b->startup_s);
}

static void print_data(const BenchResult *b)
{
    printf("data: waited %.1f s of %.1f s, %d thread%s, headroom %.1fx%s%s\n", b->data.waited_s,
           b->data.elapsed_s, b->data.n_thread, str_plural(b->data.n_thread), loader_headroom(&b->data),
           b->data_words[0] ? "; " : "", b->data_words);
}

static void print_rates(const BenchResult *b)
{
    double unit = b->hints->flops_unit;
    printf("measured: product %.1f %s, attention %.1f forward / %.1f backward, copy %.0f GB/s\n",
           b->rate[UNIT_GEMM] / unit, b->hints->flops_name, b->rate[UNIT_ATTN_FWD] / unit,
           b->rate[UNIT_ATTN_BWD] / unit, b->rate[UNIT_MEMORY] * 1e-9);
    if (b->rate[UNIT_FP8] > 0)
        printf("in fp8: product %.1f %s\n", b->rate[UNIT_FP8] / unit, b->hints->flops_name);
}

/* Ladder's own options make no sense without it. */
static int check_flags(const Flags *f)
{
    if (f->from && strcmp(f->from, "torch") != 0 && strcmp(f->from, "recipe") != 0)
        return err_user("command line: --from: '%s' is not a start (there are torch and recipe)", f->from);
    if (f->ladder && (f->ops || f->no_limit))
        return err_user("command line: %s: not together with --ladder", f->ops ? "--ops" : "--no-limit");
    if (f->ops && f->no_limit)
        return err_user("command line: --ops: not together with --no-limit, whose rates it compares with");
    if (f->ladder || !(f->from || f->batch || f->picture)) return 0;
    const char *flag = f->from ? "--from" : f->batch ? "--batch" : "--picture";
    return err_user("command line: %s: belongs to --ladder", flag);
}

/* Several would each measure a whole step beside the others, and call it theirs. */
static int refuse_ranks(void)
{
    Place p;
    TRY(place_find(&p));
    if (p.world <= 1) return 0;
    return err_user(
        "command line: bench measures one process, and %s started %d: brim train has the rate of all "
        "in its metrics",
        p.launcher, p.world);
}

int cmd_bench(const CmdArgs *a)
{
    Flags   f      = { 0 };
    CmdFlag flag[] = { { "--ops", NULL, &f.ops, "time every op" },
                       { "--json", NULL, &f.json, "stdout ends with a JSON line; with --ladder one a rung" },
                       { "--no-limit", NULL, &f.no_limit, "do not measure the device's own rates" },
                       { "--seconds", &f.seconds, NULL, "time steps for so long at least; 3 unless said" },
                       { "--ladder", NULL, &f.ladder, "every optimisation switched on in turn" },
                       { "--from", &f.from, NULL,
                         "torch: start at what a PyTorch user has; recipe: at the recipe as it is" },
                       { "--batch", &f.batch, NULL, "micro-batch of the bottom rung" },
                       { "--picture", &f.picture, NULL, "where the ladder's picture goes" } };

    CmdTarget   t;
    Recipe      r;
    BenchResult b;
    int64_t     seconds = 0;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(refuse_ranks());
    TRY(run_target_refuse(t.target, "bench"));
    TRY(cmd_load_target(&t, &r));
    TRY(task_complete(&r, DATA_HERE));
    TRY(check_flags(&f));
    if (f.seconds) TRY(cmd_int("--seconds", f.seconds, 1, 3600, &seconds));
    if (f.ladder) return bench_ladder(&f, &t, &r, (double)seconds);
    Watch        watch = { .sampler = watch_device(r.device) };
    BenchHooks   hooks = { watch_phase, &watch };
    BenchOptions opt   = { a->begin_s, !f.no_limit, f.ops, stdout, &hooks, (double)seconds, 0 };
    int          rc    = bench_run(&b, task_of(&r), &r, &opt);
    sampler_destroy(watch.sampler); /* a failed step leaves it running */
    TRY(rc);
    print_step(&b);
    print_data(&b);
    if (b.hints->is_late) {
        fill_gpu(&b, &watch.seen);
        print_gpu(&b, &watch.seen);
    }
    if (!f.no_limit) print_rates(&b);
    if (f.json) bench_print_json(&b, &r, stdout);
    return 0;
}
