#include "bench/ladder.h"

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "bench/bench.h"
#include "conf/schema.h"
#include "run/switches.h"

#include <stdlib.h>
#include <string.h>

/* One optimisation. The keys `off` are set on every rung below it, the keys `at` on its own rung only. If two
 * steps set one key, the setting of the lower step counts. "opt.linear_*" means every such key, "opt.*" all
 * keys that no other step names. %lld is the micro-batch of the bottom rung. */
typedef struct {
    const char *name, *off, *at, *guide;
} Step;

/* The guides' factors: TF32 from Hugging Face's guide to training on one GPU, bf16 over TF32 from NVIDIA's
 * data sheet, flash attention from its paper (its own figure at length 1024), tuning for a single product
 * (cuda_gemm_time.c). */
static const Step from_fp32[] = {
    { "fp32, stored attention", "", "", "" },
    { "TF32", "precision=fp32", "", "up to 3x" },
    { "bf16", "precision=tf32", "precision=bf16", "up to 2x" },
    { "larger batch", "micro_batch=%lld", "", "" },
    { "flash attention", "opt.flash=false", "", "up to 3x" },
    { "fused", "opt.*", "", "" },
    { "tuned products", "opt.tune=false", "", "up to 1.2x" },
    { "graphs", "opt.graphs=false", "", "" },
    { "prefetch", "opt.prefetch=false", "", "" },
};

static const Step from_torch[] = {
    { "as PyTorch", "", "", "" },
    { "larger batch", "micro_batch=%lld", "", "" },
    { "head in place", "opt.xent=false,opt.chunk_head=false", "", "" },
    { "fused into products", "opt.linear_*", "", "" },
    { "tuned products", "opt.tune=false", "", "up to 1.2x" },
    { "graphs", "opt.graphs=false", "", "" },
    { "prefetch", "opt.prefetch=false", "", "" },
};

static const Step *const starts[] = {
    [LADDER_FP32] = from_fp32, [LADDER_TORCH] = from_torch, [LADDER_RECIPE] = from_fp32
};

static const int n_step[] = { [LADDER_FP32]   = ARRAY_LEN(from_fp32),
                              [LADDER_TORCH]  = ARRAY_LEN(from_torch),
                              [LADDER_RECIPE] = ARRAY_LEN(from_fp32) };

/* The bottom rungs are there to be compared, not to be exact: a slow one ends after this many timed
 * seconds. */
static const double SLOW_RUNG_S = 8.0;

/* What the rungs are planned from. */
typedef struct {
    LadderOptions opt; /* with the bottom's batch settled */
    const Recipe *r;
    const DevVt  *vt;
} Basis;

/* ---- keys ---------------------------------------------------------------------------------------------- */

typedef struct {
    char item[LADDER_KEYS][LADDER_KEY];
    int  n;
} Keys;

static size_t name_len(const char *pair) { return strcspn(pair, "="); }

static int same_name(const char *a, const char *b)
{
    return name_len(a) == name_len(b) && memcmp(a, b, name_len(a)) == 0;
}

static int keys_have(const Keys *k, const char *pair)
{
    for (int i = 0; i < k->n; i++) {
        if (same_name(k->item[i], pair)) return 1;
    }
    return 0;
}

static void keys_add(Keys *k, const char *pair)
{
    if (keys_have(k, pair)) return;
    CHECK(k->n < LADDER_KEYS, "more overrides than a rung has room for");
    int n = snprintf(k->item[k->n++], LADDER_KEY, "%s", pair);
    CHECK(n < LADDER_KEY, "%s is too long", pair);
}

static int named_elsewhere(LadderStart start, const char *key)
{
    for (int i = 0; i < n_step[start]; i++) {
        const char *list = starts[start][i].off;
        char        item[LADDER_KEY];
        while (str_list_next(&list, item, sizeof item) > 0) {
            if (same_name(item, key)) return 1;
        }
    }
    return 0;
}

/* Switches that are on in the recipe: the one named, or all of a pattern. */
static void add_switches(Keys *k, LadderStart start, const char *item, const Recipe *r)
{
    size_t len     = strlen(item);
    int    pattern = item[len - 1] == '*';
    for (int i = 0; i < schema_count; i++) {
        const SchemaRow *row = schema_row(NULL, i);
        char             pair[LADDER_KEY];
        int              on = 0;
        if (pattern ? strncmp(row->name, item, len - 1) != 0 || named_elsewhere(start, row->name)
                    : !same_name(row->name, item))
            continue;
        memcpy(&on, (const char *)r + row->offset, sizeof on);
        snprintf(pair, sizeof pair, "%s=false", row->name);
        if (on) keys_add(k, pair);
    }
}

/* The overrides that take a step away from the recipe. */
static Keys step_off(const Step *s, const Basis *on)
{
    Keys        k    = { .n = 0 };
    const char *list = s->off;
    char        item[LADDER_KEY];
    while (str_list_next(&list, item, sizeof item) > 0) {
        if (str_starts_with(item, "opt.")) {
            add_switches(&k, on->opt.start, item, on->r);
        } else if (str_starts_with(item, "micro_batch")) {
            snprintf(item, sizeof item, "micro_batch=%lld", (long long)on->opt.batch);
            keys_add(&k, item);
        } else {
            keys_add(&k, item);
        }
    }
    return k;
}

/* What holds the recipe back, lifted in *r; returns the overrides that do so. The recipe's micro-batch is the
 * bottom's. */
static Keys lift(Recipe *r, LadderOptions *opt)
{
    Keys k = { .n = 0 };
    if (r->precision != PRECISION_AUTO) keys_add(&k, "precision=auto");
    r->precision = PRECISION_AUTO;
    if (r->micro_batch > 0) keys_add(&k, "micro_batch=0");
    if (r->micro_batch > 0 && opt->batch == 0) opt->batch = r->micro_batch;
    r->micro_batch = 0;
    for (int i = 0; i < schema_count; i++) {
        const SchemaRow *row = schema_row(NULL, i);
        int             *on  = (int *)((char *)r + row->offset);
        char             pair[LADDER_KEY];
        if (!str_starts_with(row->name, "opt.") || *on) continue;
        snprintf(pair, sizeof pair, "%s=true", row->name);
        keys_add(&k, pair);
        *on = 1;
    }
    return k;
}

/* ---- planning ------------------------------------------------------------------------------------------ */

/* As given, or else the largest power of two up to the usual one that divides the step's samples. */
static int settle_batch(LadderOptions *opt, const Recipe *r)
{
    int64_t seqs = r->step_samples, batch = 1;
    int64_t usual = opt->start == LADDER_TORCH ? MAX(32768 / opt->task->rows(r), 1) : 8;
    if (opt->batch > 0 && seqs % opt->batch != 0) {
        return err_user("command line: --batch: %lld does not divide the step's %lld samples",
                        (long long)opt->batch, (long long)seqs);
    }
    while (2 * batch <= usual && seqs % (2 * batch) == 0) batch *= 2;
    if (opt->batch == 0) opt->batch = batch;
    return 0;
}

/* Why a step is none for this recipe and backend, into buf; "" when it is one. */
static void step_refusal(char *buf, size_t n, const Step *s, const Keys *off, const Basis *on)
{
    const Recipe *r    = on->r;
    int           bf16 = strcmp(s->name, "bf16") == 0;
    snprintf(buf, n, "%s", "");
    if (str_starts_with(s->off, "precision") &&
        (r->precision == PRECISION_FP32 || (r->precision == PRECISION_TF32 && bf16))) {
        snprintf(buf, n, "the recipe asks for %s", r->precision == PRECISION_FP32 ? "fp32" : "tf32");
    } else if (str_starts_with(s->off, "micro_batch") && r->micro_batch > 0 &&
               r->micro_batch <= on->opt.batch) {
        snprintf(buf, n, "the recipe fixes micro_batch at %lld", (long long)r->micro_batch);
    } else if (str_starts_with(s->off, "opt.") && off->n == 0) {
        snprintf(buf, n, "off in the recipe");
    } else if (str_starts_with(s->off, "opt.")) {
        for (int i = 0; i < off->n; i++) {
            char name[LADDER_KEY];
            snprintf(name, sizeof name, "%.*s", (int)(name_len(off->item[i]) - 4), off->item[i] + 4);
            if (!switches_refused(on->vt, name, buf, n)) return; /* one that works makes it a step */
        }
    }
}

static void rung_keys(Rung *rung, const Keys *k)
{
    rung->n_key = k->n;
    memcpy(rung->key, k->item, sizeof rung->key);
}

int ladder_plan(Ladder *l, const LadderOptions *opt, const Recipe *r, const DevVt *vt)
{
    const Step *step = starts[opt->start];
    int         n    = n_step[opt->start];
    Recipe      full = *r; /* with all that the ladder ends at */
    Basis       on   = { *opt, &full, vt };
    Keys        off[LADDER_RUNGS], lifted = { .n = 0 };
    memset(l, 0, sizeof *l);
    snprintf(l->recipe, sizeof l->recipe, "%s", r->run);
    l->unit = opt->task->unit;
    CHECK(n < LADDER_RUNGS, "more rungs than a ladder has room for");
    if (opt->start == LADDER_RECIPE) lifted = lift(&full, &on.opt);
    TRY(settle_batch(&on.opt, r));
    for (int i = 0; i < n; i++) {
        Rung *rung  = &l->rung[l->n_rung++];
        rung->name  = step[i].name;
        rung->guide = step[i].guide;
        off[i]      = step_off(&step[i], &on);
        if (i > 0) step_refusal(rung->refused, sizeof rung->refused, &step[i], &off[i], &on);
        if (rung->refused[0]) off[i].n = 0;
    }
    for (int i = 0; i < n; i++) {
        Keys k = { .n = 0 };
        if (step[i].at[0] && full.precision == PRECISION_AUTO) keys_add(&k, step[i].at);
        for (int later = i + 1; later < n; later++) {
            for (int j = 0; j < off[later].n; j++) keys_add(&k, off[later].item[j]);
        }
        /* What the recipe requires, a lower rung cannot have. */
        if (k.n > 0 && r->require[0]) keys_add(&k, "require=");
        for (int j = 0; j < lifted.n; j++) keys_add(&k, lifted.item[j]);
        rung_keys(&l->rung[i], &k);
        l->rung[i].is_slow = i + 1 < n && k.n > 0;
    }
    if (!vt->hints->times || r->deterministic) return 0; /* it gives the same bits anyway */
    Rung *cost    = &l->rung[l->n_rung++];
    cost->name    = "deterministic";
    cost->guide   = "";
    cost->is_cost = 1;
    keys_add(&lifted, "deterministic=true");
    rung_keys(cost, &lifted);
    return 0;
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

/* The user's overrides, then the rung's: of two settings of a key the last counts. */
static int rung_recipe(Recipe *r, const LadderOptions *opt, const Rung *rung)
{
    char **all = calloc((size_t)(opt->n_override + LADDER_KEYS), sizeof *all);
    if (!all) return err_set("out of host memory");
    for (int i = 0; i < opt->n_override; i++) all[i] = opt->override[i];
    for (int i = 0; i < rung->n_key; i++) all[opt->n_override + i] = (char *)rung->key[i];
    int rc = recipe_load_task(r, opt->extra, opt->path, opt->n_override + rung->n_key, all);
    free(all);
    if (rc == 0 && opt->task->complete) rc = opt->task->complete(r, DATA_HERE);
    return rc;
}

/* A configuration that is refused is part of the answer; a device that fails is not. */
static int measure(Rung *rung, const LadderOptions *opt)
{
    Recipe       r;
    BenchResult  b;
    BenchOptions bench = { .least_s = opt->least_s, .most_s = rung->is_slow ? SLOW_RUNG_S : 0 };
    int          rc    = rung_recipe(&r, opt, rung);
    if (rc == 0) rc = bench_run(&b, opt->task, &r, &bench);
    if (rc < 0 && err_kind() == ERR_USER) {
        static const char place[] = "command line: "; /* the rung's keys came that way, not from the user */
        const char       *why     = err_get();
        if (str_starts_with(why, place)) why += strlen(place);
        snprintf(rung->refused, sizeof rung->refused, "%s", why);
        err_clear();
        return 0;
    }
    if (rc < 0) return -1;
    rung->per_s         = b.per_s;
    rung->step_s        = b.step_s;
    rung->planned_bytes = b.planned_bytes;
    rung->micro_batch   = b.micro_batch;
    return 0;
}

int ladder_run(Ladder *l, const LadderOptions *opt)
{
    Recipe      r;
    DevInfo     info;
    const char *why;
    TRY(recipe_load_task(&r, opt->extra, opt->path, opt->n_override, opt->override));
    if (opt->task->complete) TRY(opt->task->complete(&r, DATA_HERE));
    Dev *dev = dev_open(r.device, &(DevOptions){ .threads = (int)r.threads }, &why);
    if (!dev) return -1;
    int rc = ladder_plan(l, opt, &r, dev->vt);
    if (rc == 0) rc = dev->vt->info(dev, &info);
    if (rc == 0) snprintf(l->device, sizeof l->device, "%s", info.name);
    dev_close(dev);
    TRY(rc);
    const Rung *bottom = NULL, *before = NULL;
    for (int i = 0; i < l->n_rung; i++) {
        Rung *rung = &l->rung[i];
        char  rate[32];
        log_info("rung %d of %d: %s", i + 1, l->n_rung, rung->name);
        if (!rung->refused[0]) TRY(measure(rung, opt));
        if (rung->refused[0]) {
            log_info("  refused: %s", rung->refused);
            continue;
        }
        if (!bottom) bottom = rung;
        rung->over_before = before ? rung->per_s / before->per_s : 1;
        rung->over_bottom = rung->per_s / bottom->per_s;
        before            = rung;
        log_info("  %s %s/s, %.2fx the rung before, %.2fx the bottom",
                 str_count(rate, sizeof rate, rung->per_s), l->unit, rung->over_before, rung->over_bottom);
    }
    return bottom ? 0 : err_user("%s: every rung was refused: %s", r.file, l->rung[0].refused);
}
