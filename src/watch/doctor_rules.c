/* One function a bottleneck. Each looks at the evidence and adds a finding, or nothing. */
#include "watch/doctor.h"

#include "base/err.h"
#include "base/str.h"
#include "conf/schema.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- tools --------------------------------------------------------------------------------------------- */

typedef struct {
    Doctor           *d;
    const RecipeFrom *from;
    const FallWindow *w;
    const RunFacts   *f;
    const Recipe     *r;
    WhatIf            now; /* the recipe as it is; step_s 0: cannot be planned */
    int               cpu_is_short;
} Case;

static const double GIB = 1073741824.0;

static int is_gpu(const Case *c) { return c->f->plan.capability > 0; }

/* The rates of this machine were measured: its predictions hold as they are. */
static int is_known(const Case *c) { return is_gpu(c) && c->f->plan.machine[0] != '\0'; }

static Finding *add(Case *c, const char *cause)
{
    CHECK(c->d->n_finding < DOCTOR_FINDINGS, "too many findings");
    Finding *x = &c->d->finding[c->d->n_finding++];
    *x         = (Finding){ .cause = cause, .step_s = NAN, .gain = NAN };
    return x;
}

__attribute__((format(printf, 2, 3))) static void change(Finding *x, const char *fmt, ...)
{
    va_list ap;
    CHECK(x->n_change < DOCTOR_CHANGES, "too many changes");
    va_start(ap, fmt);
    vsnprintf(x->change[x->n_change++], WHATIF_KEY, fmt, ap);
    va_end(ap);
}

static void predict(Case *c, Finding *x, double step_s)
{
    if (!(step_s > 0)) return;
    x->step_s = MIN(step_s, c->w->step_s);
    x->gain   = 1 - x->step_s / c->w->step_s;
}

/* Takes the finding back when it promises less than `least`. */
static void keep_if(Case *c, Finding *x, double least)
{
    if (!(x->gain >= least)) c->d->n_finding--;
}

/* Seconds of a step in which the device computes. */
static double busy_s(const Case *c)
{
    if (c->f->trace.busy_s > 0) return MIN(c->f->trace.busy_s, c->w->step_s);
    return c->w->step_s * (1 - c->d->input_share - c->d->gap_share);
}

/* The loader cannot go faster than its threads. */
static double load_s(const Case *c)
{
    double n = c->f->host.loader_threads;
    return c->w->fill_s > 0 && n > 0 ? c->w->fill_s / n : 0;
}

/* Busy seconds at full load. A GPU that waits now and then is below its power limit, and its clock is higher
 * than it will be: an H200 fell from 1850 to 1535 MHz once its loader kept up, and computed 8 % longer. Known
 * rates are those at the limit. */
static double full_s(const Case *c, double busy)
{
    const double most = 1.15; /* a plan that is further off knows something else wrong */
    return is_known(c) && c->now.step_s > busy ? MIN(c->now.step_s, most * busy) : busy;
}

typedef enum { BY_RATES, BY_RATIO } How;

/* The step with the finding's changes. BY_RATES: as planned for a known machine, where the kernels will be
 * other ones. BY_RATIO: what is measured now, times planned then over planned now. */
static int plan_change(Case *c, Finding *x, How how, WhatIf *out)
{
    WhatIf then;
    int    rc = whatif_plan(&then, c->from, c->f, x->change, x->n_change, 0);
    if (rc < 0 || c->now.step_s <= 0) {
        err_clear();
        c->d->n_finding--;
        return -1;
    }
    double ratio = then.step_s / c->now.step_s;
    double rest  = c->w->step_s - busy_s(c);
    double step  = how == BY_RATES && is_known(c) ? then.step_s : busy_s(c) * ratio + rest;
    predict(c, x, MAX(step, load_s(c)));
    if (out) *out = then;
    return 0;
}

static const char *ms(char *buf, size_t n, double s)
{
    snprintf(buf, n, s < 0.1 ? "%.2f ms" : "%.0f ms", s * 1e3);
    return buf;
}

/* ---- what the recipe forbids --------------------------------------------------------------------------- */

static void find_precision(Case *c)
{
    if (!is_gpu(c) || c->f->plan.capability < 80 || strcmp(c->f->plan.precision, "bf16") == 0) return;
    if (c->r->precision == PRECISION_AUTO) return;
    Finding *x = add(c, "precision");
    change(x, "precision=auto");
    snprintf(x->verdict, sizeof x->verdict, "the step computes in %s", c->f->plan.precision);
    snprintf(x->evidence, sizeof x->evidence, "the recipe says precision: %s; this GPU has bf16 tensor cores",
             c->f->plan.precision);
    if (!isnan(c->w->tensor_active))
        str_append(x->evidence, sizeof x->evidence, ", and %.1f %% of their cycles are used",
                   100 * c->w->tensor_active);
    if (plan_change(c, x, BY_RATES, NULL) == 0) keep_if(c, x, DOCTOR_LEAST);
}

static void find_attention(Case *c)
{
    if (c->r->opt.flash) return;
    Finding *x = add(c, "attention");
    change(x, "opt.flash=true");
    str_copy(x->verdict, sizeof x->verdict, "attention stores its T x T weights");
    str_copy(x->evidence, sizeof x->evidence,
             "the recipe says opt.flash: false; every score is written to memory and read again");
    if (plan_change(c, x, BY_RATES, NULL) == 0) keep_if(c, x, DOCTOR_LEAST);
}

static void find_recompute(Case *c)
{
    char   a[32];
    WhatIf then;
    if (c->r->recompute == RECOMPUTE_AUTO || strcmp(c->f->plan.recompute, "none") == 0) return;
    Finding *x = add(c, "recomputation");
    change(x, "recompute=auto");
    double again = c->f->trace.repeat_s > 0 ? c->f->trace.repeat_s : NAN;
    snprintf(x->verdict, sizeof x->verdict, "activations are computed again (recompute: %s)",
             c->f->plan.recompute);
    if (plan_change(c, x, BY_RATIO, &then) < 0) return;
    if (then.choice.level == LEVEL_NONE && again > 0) predict(c, x, MAX(c->w->step_s - again, load_s(c)));
    snprintf(x->evidence, sizeof x->evidence,
             "%s a step go into it%s; a plan without it needs %.1f GiB, and there is room for %.1f",
             ms(a, sizeof a, again > 0 ? again : c->f->plan.repeat_s), again > 0 ? "" : " by plan",
             then.total_bytes / GIB, c->f->plan.room_bytes / GIB);
    keep_if(c, x, DOCTOR_LEAST);
}

static void find_micro_batch(Case *c)
{
    WhatIf then;
    if (c->r->micro_batch == 0) return;
    Finding *x = add(c, "batch too small");
    change(x, "micro_batch=0");
    if (plan_change(c, x, BY_RATES, &then) < 0) return;
    snprintf(x->verdict, sizeof x->verdict, "micro-batches of %lld do not fill the device",
             (long long)c->r->micro_batch);
    snprintf(x->evidence, sizeof x->evidence,
             "a step is %.0f micro-batches of %lld, %.0f ops in all; %lld at a time fit and are faster",
             c->f->plan.micro_per_step, (long long)c->r->micro_batch, c->f->plan.n_op,
             (long long)then.choice.micro_batch);
    if (then.choice.micro_batch <= c->r->micro_batch) x->gain = NAN;
    keep_if(c, x, 0.02);
}

/* Every other optimisation of the table that is off. */
static void find_switches(Case *c)
{
    Finding *x         = add(c, "optimisations off");
    char     list[200] = "";
    for (int i = 0; i < schema_rows(c->r); i++) {
        const SchemaRow *row = schema_row(c->r, i);
        int              on  = 0;
        if (!str_starts_with(row->name, "opt.")) continue;
        memcpy(&on, (const char *)c->r + row->offset, sizeof on);
        const char *leaf = row->name + strlen("opt.");
        if (on || strcmp(leaf, "flash") == 0 || strcmp(leaf, "graphs") == 0 || strcmp(leaf, "prefetch") == 0)
            continue;
        if (x->n_change < DOCTOR_CHANGES) change(x, "%s=true", row->name);
        str_append(list, sizeof list, "%s%s", list[0] ? ", " : "", leaf);
    }
    if (x->n_change == 0) {
        c->d->n_finding--;
        return;
    }
    snprintf(x->verdict, sizeof x->verdict, "%d optimisation%s switched off", x->n_change,
             x->n_change > 1 ? "s are" : " is");
    snprintf(x->evidence, sizeof x->evidence, "the recipe turns off: %s", list);
    if (plan_change(c, x, BY_RATIO, NULL) == 0) keep_if(c, x, DOCTOR_LEAST);
}

static void find_graphs(Case *c)
{
    char a[32];
    if (!is_gpu(c) || c->r->opt.graphs) return;
    Finding *x = add(c, "launch gaps");
    change(x, "opt.graphs=true");
    str_copy(x->verdict, sizeof x->verdict, "each kernel is launched by itself");
    snprintf(x->evidence, sizeof x->evidence,
             "opt.graphs is false: the GPU is idle for %.1f %% of a step, %s, between %.0f launches",
             100 * c->d->gap_share, ms(a, sizeof a, c->d->gap_share * c->w->step_s), c->f->plan.n_op);
    predict(c, x, MAX(c->w->step_s * (1 - 0.9 * c->d->gap_share), load_s(c)));
    keep_if(c, x, DOCTOR_LEAST);
}

/* Graphs are on, and the GPU is idle all the same: it waits for the host's own part of a step. */
static void find_host(Case *c)
{
    char a[32];
    if (!is_gpu(c) || !c->r->opt.graphs || c->d->gap_share < 0.1 || c->cpu_is_short) return;
    Finding *x = add(c, "host work");
    str_copy(x->verdict, sizeof x->verdict, "the GPU waits for the host between programs");
    snprintf(
        x->evidence, sizeof x->evidence,
        "the GPU is idle for %.1f %% of a step, %s, and no step waits for data; the process keeps %.1f of "
        "%.0f CPUs busy",
        100 * c->d->gap_share, ms(a, sizeof a, c->d->gap_share * c->w->step_s), c->w->own_cpu,
        c->f->host.allowed);
    str_copy(x->advice, sizeof x->advice,
             "faster environments or other host work, more CPUs for it, or more work a step");
}

static void find_memory(Case *c)
{
    WhatIf then;
    if (!c->r->memory_limit[0]) return;
    Finding *x = add(c, "memory unused");
    change(x, "memory_limit=97%%");
    if (whatif_plan(&then, c->from, c->f, x->change, 1, 0.97 * c->f->plan.total_bytes) < 0 ||
        c->now.step_s <= 0) {
        err_clear();
        c->d->n_finding--;
        return;
    }
    predict(c, x, MAX(load_s(c), busy_s(c) * then.step_s / c->now.step_s + c->w->step_s - busy_s(c)));
    snprintf(x->verdict, sizeof x->verdict, "memory_limit: %.40s leaves memory unused", c->r->memory_limit);
    snprintf(x->evidence, sizeof x->evidence,
             "the plan takes %.1f of %.1f GiB, with recompute %s; with all of it recompute %s",
             c->f->plan.planned_bytes / GIB, c->f->plan.total_bytes / GIB, c->f->plan.recompute,
             recompute_level_name(then.choice.level));
    keep_if(c, x, 0.02);
}

static void find_step(Case *c)
{
    enum { TIMES = 4 };
    WhatIf then;
    double lr = c->r->optim.lr * sqrt(TIMES);
    if (!is_known(c) || !c->r->step_key) return;
    Finding *x = add(c, "step too small");
    int      i = schema_find(c->r, c->r->step_key);
    char     now[128];
    int64_t  value = 0;
    if (i >= 0) schema_get(schema_row(c->r, i), c->r, now, sizeof now);
    if (i < 0 || str_parse_int(now, &value) < 0) {
        c->d->n_finding--;
        return;
    }
    change(x, "%s=%lld", c->r->step_key, (long long)value * TIMES);
    change(x, "optim.lr=%.6g", lr);
    change(x, "optim.warmup=%lld", (long long)(c->r->optim.warmup + TIMES - 1) / TIMES);
    if (plan_change(c, x, BY_RATIO, &then) < 0) return;
    /* Per unit: the plan's step has TIMES as many. */
    double each = then.step_s / TIMES;
    predict(c, x, MAX(load_s(c), busy_s(c) * each / c->now.step_s + (c->w->step_s - busy_s(c)) / TIMES));
    x->is_other = 1;
    snprintf(x->verdict, sizeof x->verdict, "a step of %.0f %s does not fill the card", c->f->units_per_step,
             c->f->units);
    snprintf(x->evidence, sizeof x->evidence,
             "a step takes %.2f ms for %.0f ops; %d times as many %s a step would cost less each; learning "
             "rate and warm-up follow",
             1e3 * c->w->step_s, c->f->plan.n_op, TIMES, c->f->units);
    keep_if(c, x, 0.1);
}

static void find_deterministic(Case *c)
{
    if (!c->r->deterministic || !is_gpu(c)) return;
    Finding *x = add(c, "deterministic");
    change(x, "deterministic=false");
    x->is_other = 1; /* other bits */
    str_copy(x->verdict, sizeof x->verdict, "only kernels that give the same bits are used");
    str_copy(x->evidence, sizeof x->evidence, "deterministic: true; nothing is timed, some fusions are off");
}

/* ---- host ---------------------------------------------------------------------------------------------- */

static void find_cpu(Case *c)
{
    double allowed = c->f->host.allowed, cpus = c->f->host.cpus, own = c->w->own_cpu;
    double lost = is_gpu(c) ? c->d->input_share + c->d->gap_share : 1 - allowed / cpus;
    if (!(allowed < cpus) || !(own > 0.8 * allowed) || lost < 0.02) return;
    Finding *x     = add(c, "CPU quota");
    int      quota = c->f->host.quota <= allowed;
    snprintf(x->verdict, sizeof x->verdict, "this process may use %.0f of %.0f CPUs", allowed, cpus);
    snprintf(x->evidence, sizeof x->evidence, "%s; the process keeps %.1f of them busy%s",
             quota ? "a container's quota" : "CPU affinity", own, is_gpu(c) ? ", and the GPU waits" : "");
    snprintf(x->advice, sizeof x->advice, "%s",
             quota ? "give the container more CPUs (cpu.max, --cpus)"
                   : "start it without taskset or cpuset, or with more CPUs");
    if (is_gpu(c)) {
        double work = c->w->fill_s * allowed / MAX(1, c->f->host.loader_threads); /* seconds of one CPU */
        predict(c, x, MAX(full_s(c, busy_s(c)), work / MIN(cpus, MAX(1, c->f->host.loader_threads))));
    } else {
        predict(c, x, c->w->step_s * allowed / cpus / 0.9);
    }
    c->cpu_is_short = is_gpu(c);
}

static void find_data(Case *c)
{
    char   a[32], b[32];
    double wait = c->d->input_share, n = c->f->host.loader_threads, rest = c->w->step_s * (1 - wait);
    if (wait < 0.02 || c->cpu_is_short) return;
    Finding *x    = add(c, "data");
    double   most = RECIPE_MOST_DEPTH + 4, need = ceil(1.3 * c->w->fill_s / rest);
    double   next = MIN(MAX(need, n + 1), most);
    snprintf(x->verdict, sizeof x->verdict, "steps wait for data");
    snprintf(x->evidence, sizeof x->evidence,
             "%s of each step is waiting; filling its batches takes %s of one thread, and %s",
             ms(a, sizeof a, wait * c->w->step_s), ms(b, sizeof b, c->w->fill_s),
             n > 0 ? (n > 1 ? "the loader has a few" : "the loader has one") : "nothing is read ahead");
    if (!c->r->opt.prefetch) change(x, "opt.prefetch=true");
    if (next > n) change(x, "data.threads=%.0f", next);
    if (next > n && c->r->data.depth + 4 < next) change(x, "data.depth=%.0f", next - 4);
    if (x->n_change == 0)
        str_copy(x->advice, sizeof x->advice, "faster storage, or samples that cost less to read");
    if (x->n_change > 0) predict(c, x, MAX(full_s(c, rest), c->w->fill_s / next));
}

static void find_threads(Case *c)
{
    double n = c->f->plan.threads, allowed = c->f->host.allowed;
    if (is_gpu(c) || c->r->threads == 0 || !(n < allowed)) return;
    Finding *x = add(c, "CPU threads");
    change(x, "threads=0");
    snprintf(x->verdict, sizeof x->verdict, "%.0f of %.0f CPUs compute", n, allowed);
    snprintf(x->evidence, sizeof x->evidence, "the recipe says threads: %lld", (long long)c->r->threads);
    predict(c, x, c->w->step_s * (c->d->input_share + (1 - c->d->input_share) * n / allowed / 0.9));
}

static void find_neighbours(Case *c)
{
    double others = c->w->cpu * c->f->host.cpus - c->w->own_cpu, wait = c->d->input_share;
    double want = c->f->plan.threads * (1 - wait); /* who waits for data needs no CPU */
    if (is_gpu(c) || !(others > 0.5) || !(c->w->own_cpu < 0.85 * want)) return;
    Finding *x = add(c, "other programs");
    str_copy(x->verdict, sizeof x->verdict, "other programs use the CPUs of this run");
    snprintf(x->evidence, sizeof x->evidence, "%.1f CPUs are busy with others; this run gets %.1f of %.1f",
             others, c->w->own_cpu, want);
    str_copy(x->advice, sizeof x->advice, "end them, or give each its own CPUs (taskset)");
    predict(c, x, c->w->step_s * (wait + (1 - wait) * c->w->own_cpu / want));
    keep_if(c, x, 0.02);
}

static void find_share(Case *c, FallPart part, const char *cause, const char *key, int64_t every)
{
    double share = part == FALL_EVAL ? c->w->eval_share : c->w->save_share;
    if (!(share > DOCTOR_GAIN) || every <= 0) return;
    Finding *x     = add(c, cause);
    int64_t  times = (int64_t)ceil(share / (1 - share) / 0.02);
    change(x, "%s=%lld", key, (long long)(every * times));
    snprintf(x->verdict, sizeof x->verdict, "%s takes %.0f %% of the time",
             part == FALL_EVAL ? "evaluation" : "saving", 100 * share);
    snprintf(x->evidence, sizeof x->evidence, "%s: %lld", key, (long long)every);
    x->is_wall = 1;
    x->gain    = share - share / (double)times;
}

/* ---- card ---------------------------------------------------------------------------------------------- */

static void find_shared(Case *c)
{
    /* Context and libraries of this process take some memory beside its slabs. */
    const double own     = 2.5e9;
    double       foreign = c->w->memory_bytes - c->f->plan.planned_bytes - own;
    int          listed  = c->w->processes > 1.5;
    if (!is_gpu(c) || (!listed && !(foreign > 1e9))) return;
    Finding *x = add(c, "another process");
    str_copy(x->verdict, sizeof x->verdict, "another program uses this GPU");
    if (listed) {
        snprintf(x->evidence, sizeof x->evidence,
                 "the driver lists %.0f programs; %.1f GiB are in use, %.1f of them planned by this run",
                 c->w->processes, c->w->memory_bytes / GIB, c->f->plan.planned_bytes / GIB);
    } else {
        snprintf(x->evidence, sizeof x->evidence, "%.1f GiB are in use beyond what this run planned",
                 foreign / GIB);
    }
    str_copy(x->advice, sizeof x->advice, "end the other program, or take another GPU (brim top names it)");
    if (is_known(c) && c->now.step_s > 0) predict(c, x, MAX(c->now.step_s, load_s(c)));
    /* What one program loses to an idle one is nothing that can be told from an error of the plan. */
    if (x->gain < 0.12) x->gain = x->step_s = NAN;
}

static void find_power(Case *c)
{
    const FactsCard *card = &c->f->card;
    /* A card that waits most of the time reaches its limit only now and then. */
    if (!is_gpu(c) || !strstr(c->w->reasons, "power") || c->w->power_w < 0.85 * c->w->power_limit_w) return;
    Finding *x     = add(c, "power limit");
    double   limit = c->w->power_limit_w, usual = card->power_default_w;
    snprintf(x->verdict, sizeof x->verdict, "the card is at its power limit");
    snprintf(x->evidence, sizeof x->evidence,
             "%.0f of %.0f W; the clock is %.0f MHz, the data sheet counts on %.0f", c->w->power_w, limit,
             c->w->sm_mhz, c->f->plan.peak_mhz);
    if (limit < 0.98 * usual) {
        snprintf(x->advice, sizeof x->advice, "the limit was lowered: nvidia-smi -pl %.0f raises it", usual);
        predict(c, x, c->w->step_s - busy_s(c) * (1 - cbrt(limit / usual)));
    } else {
        str_copy(x->advice, sizeof x->advice,
                 "bf16 gets no further here: fewer joules an operation are what is left, which is fp8");
    }
}

static void find_thermal(Case *c)
{
    if (!is_gpu(c) || !strstr(c->w->reasons, "therm")) return;
    Finding *x = add(c, "thermal limit");
    snprintf(x->verdict, sizeof x->verdict, "heat holds the clock down");
    snprintf(x->evidence, sizeof x->evidence, "%.0f C, %.0f MHz", c->w->temp_c, c->w->sm_mhz);
    str_copy(x->advice, sizeof x->advice, "better cooling, or a lower power limit");
    predict(c, x, c->w->step_s * (1 - doctor_share(c->d, FALL_THROTTLE)));
}

static void find_clocks(Case *c)
{
    double max = c->f->card.max_sm_mhz, now = c->w->sm_mhz;
    /* The newest reason may be that of a short pause: a card at its power is no locked one. */
    int held = c->w->power_w > 0.85 * c->w->power_limit_w || strstr(c->w->reasons, "power") ||
               strstr(c->w->reasons, "therm") || strstr(c->w->reasons, "slowdown") ||
               strstr(c->w->reasons, "idle");
    int locked = strstr(c->w->reasons, "application clocks") != NULL;
    if (!is_gpu(c) || !(now < 0.85 * max) || (held && !locked) || c->d->gap_share + c->d->input_share > 0.5)
        return;
    Finding *x = add(c, "clocks locked");
    snprintf(x->verdict, sizeof x->verdict, "the clock is locked at %.0f of %.0f MHz", now, max);
    snprintf(x->evidence, sizeof x->evidence, "the driver's reason: %s", c->w->reasons);
    str_copy(x->advice, sizeof x->advice, "nvidia-smi -rgc -rac gives the clocks free");
    double peak = MIN(max, c->f->plan.peak_mhz > 0 ? c->f->plan.peak_mhz : max);
    if (now < peak)
        predict(c, x, c->w->step_s - doctor_share(c->d, FALL_USEFUL) * c->w->step_s * (1 - now / peak));
}

static void find_link(Case *c)
{
    const FactsCard *k = &c->f->card;
    if (!is_gpu(c) || !(k->link_generation < k->link_generation_max || k->link_lanes < k->link_lanes_max))
        return;
    Finding *x = add(c, "slow PCIe link");
    snprintf(x->verdict, sizeof x->verdict, "the PCIe link is slower than it could be");
    snprintf(x->evidence, sizeof x->evidence, "generation %.0f x%.0f while training; the card has %.0f x%.0f",
             k->link_generation, k->link_lanes, k->link_generation_max, k->link_lanes_max);
    str_copy(x->advice, sizeof x->advice,
             "another slot or riser; batches are copied beside the step, so it may cost nothing");
}

static void find_comm(Case *c)
{
    double share = c->f->trace.comm_s / c->w->step_s;
    if (!(c->f->plan.world > 1) || !(share > 0.02)) return;
    Finding *x = add(c, "communication");
    str_copy(x->verdict, sizeof x->verdict, "sums over GPUs are not hidden");
    snprintf(x->evidence, sizeof x->evidence, "%.1f %% of a step has nothing but communication", 100 * share);
    str_copy(x->advice, sizeof x->advice, "more micro-batches a step, or a faster link between the GPUs");
    predict(c, x, c->w->step_s * (1 - share));
}

/* ---- all ----------------------------------------------------------------------------------------------- */

/* Known gains first, the largest first; what trains something else behind what does not. */
static int by_gain(const void *a, const void *b)
{
    const Finding *x = a, *y = b;
    double         p = isnan(x->gain) ? -1 : x->gain, q = isnan(y->gain) ? -1 : y->gain;
    if (x->is_other != y->is_other) return x->is_other - y->is_other;
    return p < q ? 1 : p > q ? -1 : 0;
}

void doctor_find(Doctor *d, const RecipeFrom *from)
{
    Case c = { .d = d, .from = from, .w = &d->window, .f = &d->facts, .r = d->recipe };
    if (whatif_plan(&c.now, from, &d->facts, NULL, 0, 0) < 0) err_clear();
    find_precision(&c);
    find_attention(&c);
    find_recompute(&c);
    find_micro_batch(&c);
    find_switches(&c);
    find_graphs(&c);
    find_memory(&c);
    find_step(&c);
    find_deterministic(&c);
    find_cpu(&c);
    find_host(&c);
    find_data(&c);
    find_threads(&c);
    find_neighbours(&c);
    find_share(&c, FALL_EVAL, "evaluation", "eval.every", d->recipe->eval.every);
    find_share(&c, FALL_SAVE, "checkpoints", "checkpoint.every", d->recipe->checkpoint.every);
    find_shared(&c);
    find_power(&c);
    find_thermal(&c);
    find_clocks(&c);
    find_link(&c);
    find_comm(&c);
    qsort(d->finding, (size_t)d->n_finding, sizeof d->finding[0], by_gain);
}
