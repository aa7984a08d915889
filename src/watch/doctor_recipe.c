/* What the recipe forbids. */
#include "watch/doctor_case.h"

#include "base/err.h"
#include "base/str.h"
#include "conf/schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void find_precision(DoctorCase *c)
{
    const char *now = c->f->plan.precision;
    if (!doctor_is_gpu(c) || c->f->plan.capability < 80 || c->r->precision == PRECISION_AUTO) return;
    if (strcmp(now, "fp32") != 0 && strcmp(now, "tf32") != 0) return;
    Finding *x = doctor_add(c, "precision");
    doctor_change(x, "precision=auto");
    snprintf(x->verdict, sizeof x->verdict, "the step computes in %s", now);
    snprintf(x->evidence, sizeof x->evidence, "the recipe says precision: %s; this GPU has bf16 tensor cores",
             now);
    if (!isnan(c->w->tensor_active))
        str_append(x->evidence, sizeof x->evidence, ", and %.1f %% of their cycles are used",
                   100 * c->w->tensor_active);
    if (doctor_plan_change(c, x, BY_RATES, NULL) == 0) doctor_keep_if(c, x, DOCTOR_LEAST);
}

static void find_attention(DoctorCase *c)
{
    if (c->r->opt.flash) return;
    Finding *x = doctor_add(c, "attention");
    doctor_change(x, "opt.flash=true");
    str_copy(x->verdict, sizeof x->verdict, "attention stores its T x T weights");
    str_copy(x->evidence, sizeof x->evidence,
             "the recipe says opt.flash: false; every score is written to memory and read again");
    if (doctor_plan_change(c, x, BY_RATES, NULL) == 0) doctor_keep_if(c, x, DOCTOR_LEAST);
}

static void find_recompute(DoctorCase *c)
{
    char   a[32], plan[32] = "a plan without it";
    WhatIf then;
    if (c->r->recompute == RECOMPUTE_AUTO || strcmp(c->f->plan.recompute, "none") == 0) return;
    Finding *x = doctor_add(c, "recomputation");
    doctor_change(x, "recompute=auto");
    double again = c->f->trace.repeat_s > 0 ? c->f->trace.repeat_s : NAN;
    snprintf(x->verdict, sizeof x->verdict, "activations are computed again (recompute: %s)",
             c->f->plan.recompute);
    if (doctor_plan_change(c, x, BY_RATIO, &then) < 0) return;
    if (then.choice.level == LEVEL_NONE && again > 0)
        doctor_predict(c, x, MAX(c->w->step_s - again, doctor_load_s(c)));
    /* It may be that all of it cannot go. */
    if (then.choice.level != LEVEL_NONE)
        snprintf(plan, sizeof plan, "recompute %s", recompute_level_name(then.choice.level));
    snprintf(x->evidence, sizeof x->evidence,
             "%s a step go into it%s; %s needs %.1f GiB, and there is room for %.1f",
             doctor_ms(a, sizeof a, again > 0 ? again : c->f->plan.repeat_s), again > 0 ? "" : " by plan",
             plan, then.total_bytes / DOCTOR_GIB, c->f->plan.room_bytes / DOCTOR_GIB);
    doctor_keep_if(c, x, DOCTOR_LEAST);
}

static void find_micro_batch(DoctorCase *c)
{
    WhatIf then;
    if (c->r->micro_batch == 0) return;
    Finding *x = doctor_add(c, "batch too small");
    doctor_change(x, "micro_batch=0");
    if (doctor_plan_change(c, x, BY_RATES, &then) < 0) return;
    if (then.choice.micro_batch <= c->r->micro_batch) {
        c->d->n_finding--;
        return;
    }
    snprintf(x->verdict, sizeof x->verdict, "micro-batches of %lld %s fill the device",
             (long long)c->r->micro_batch, isnan(x->gain) ? "may not" : "do not");
    snprintf(x->evidence, sizeof x->evidence,
             "a step is %.0f micro-batches of %lld, %.0f ops in all; %lld at a time fit%s",
             c->f->plan.micro_per_step, (long long)c->r->micro_batch, c->f->plan.n_op,
             (long long)then.choice.micro_batch,
             isnan(x->gain) ? "; what an op costs a CPU beside its work was not measured"
                            : " and are faster");
    doctor_keep_if(c, x, 0.02);
}

/* Every other optimisation of the table that is off. */
static void find_switches(DoctorCase *c)
{
    Finding *x         = doctor_add(c, "optimisations off");
    char     list[200] = "";
    for (int i = 0; i < schema_rows(c->r); i++) {
        const SchemaRow *row = schema_row(c->r, i);
        int              on  = 0;
        if (!str_starts_with(row->name, "opt.")) continue;
        memcpy(&on, (const char *)c->r + row->offset, sizeof on);
        const char *leaf = row->name + strlen("opt.");
        if (on || strcmp(leaf, "flash") == 0 || strcmp(leaf, "graphs") == 0 || strcmp(leaf, "prefetch") == 0)
            continue;
        if (x->n_change < DOCTOR_CHANGES) doctor_change(x, "%s=true", row->name);
        str_append(list, sizeof list, "%s%s", list[0] ? ", " : "", leaf);
    }
    if (x->n_change == 0) {
        c->d->n_finding--;
        return;
    }
    snprintf(x->verdict, sizeof x->verdict, "%d optimisation%s switched off", x->n_change,
             x->n_change > 1 ? "s are" : " is");
    snprintf(x->evidence, sizeof x->evidence, "the recipe turns off: %s", list);
    if (doctor_plan_change(c, x, BY_RATIO, NULL) == 0) doctor_keep_if(c, x, DOCTOR_LEAST);
}

static void find_graphs(DoctorCase *c)
{
    char a[32];
    if (!doctor_is_gpu(c) || c->r->opt.graphs) return;
    Finding *x = doctor_add(c, "launch gaps");
    doctor_change(x, "opt.graphs=true");
    str_copy(x->verdict, sizeof x->verdict, "each kernel is launched by itself");
    snprintf(x->evidence, sizeof x->evidence,
             "opt.graphs is false: the GPU is idle for %.1f %% of a step, %s, between %.0f launches",
             100 * c->d->gap_share, doctor_ms(a, sizeof a, c->d->gap_share * c->w->step_s), c->f->plan.n_op);
    doctor_predict(c, x, MAX(c->w->step_s * (1 - 0.9 * c->d->gap_share), doctor_load_s(c)));
    doctor_keep_if(c, x, DOCTOR_LEAST);
}

static void find_memory(DoctorCase *c)
{
    WhatIf then;
    if (!c->r->memory_limit[0]) return;
    Finding *x = doctor_add(c, "memory unused");
    /* A CPU shares its memory with other programs. */
    double share = doctor_is_gpu(c) ? 0.97 : 1 - 1.0 / dev_hints_cpu.margin_part;
    doctor_change(x, "memory_limit=%.0f%%", 100 * share);
    if (whatif_plan(&then, c->from, c->f, x->change, 1, share * c->f->plan.total_bytes) < 0 ||
        c->now.step_s <= 0) {
        err_clear();
        c->d->n_finding--;
        return;
    }
    doctor_predict_ratio(c, x, &then);
    snprintf(x->verdict, sizeof x->verdict, "memory_limit: %.40s leaves memory unused", c->r->memory_limit);
    snprintf(x->evidence, sizeof x->evidence,
             "the plan takes %.1f of %.1f GiB, with recompute %s; with %.0f %% of it recompute %s",
             c->f->plan.planned_bytes / DOCTOR_GIB, c->f->plan.total_bytes / DOCTOR_GIB, c->f->plan.recompute,
             100 * share, recompute_level_name(then.choice.level));
    doctor_keep_if(c, x, 0.02);
}

static void find_step(DoctorCase *c)
{
    enum { TIMES = 4 };
    WhatIf then;
    double lr = c->r->optim.lr * sqrt(TIMES);
    if (!doctor_is_known(c) || !c->r->step_key) return;
    Finding *x = doctor_add(c, "step too small");
    int      i = schema_find(c->r, c->r->step_key);
    char     now[128];
    int64_t  value = 0;
    if (i >= 0) schema_get(schema_row(c->r, i), c->r, now, sizeof now);
    if (i < 0 || str_parse_int(now, &value) < 0) {
        c->d->n_finding--;
        return;
    }
    doctor_change(x, "%s=%lld", c->r->step_key, (long long)value * TIMES);
    doctor_change(x, "optim.lr=%.6g", lr);
    doctor_change(x, "optim.warmup=%lld", (long long)(c->r->optim.warmup + TIMES - 1) / TIMES);
    if (doctor_plan_change(c, x, BY_RATIO, &then) < 0) return;
    /* Per unit: the plan's step has TIMES as many. */
    double each = then.step_s / TIMES;
    doctor_predict(c, x,
                   MAX(doctor_load_s(c),
                       doctor_busy_s(c) * each / c->now.step_s + (c->w->step_s - doctor_busy_s(c)) / TIMES));
    x->is_other = 1;
    snprintf(x->verdict, sizeof x->verdict, "a step of %.0f %s does not fill the card", c->f->units_per_step,
             c->f->units);
    snprintf(x->evidence, sizeof x->evidence,
             "a step takes %.2f ms for %.0f ops; %d times as many %s a step would cost less each; learning "
             "rate and warm-up follow",
             1e3 * c->w->step_s, c->f->plan.n_op, TIMES, c->f->units);
    doctor_keep_if(c, x, 0.1);
}

static void find_deterministic(DoctorCase *c)
{
    if (!c->r->deterministic || !doctor_is_gpu(c)) return;
    Finding *x = doctor_add(c, "deterministic");
    doctor_change(x, "deterministic=false");
    x->is_other = 1; /* other bits */
    str_copy(x->verdict, sizeof x->verdict, "only kernels that give the same bits are used");
    str_copy(x->evidence, sizeof x->evidence, "deterministic: true; nothing is timed, some fusions are off");
}

void doctor_find_recipe(DoctorCase *c)
{
    find_precision(c);
    find_attention(c);
    find_recompute(c);
    find_micro_batch(c);
    find_switches(c);
    find_graphs(c);
    find_memory(c);
    find_step(c);
    find_deterministic(c);
}
