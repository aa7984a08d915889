#include "watch/planfacts.h"

#include "base/err.h"
#include "base/hostmem.h"
#include "base/str.h"
#include "watch/host.h"

#include <limits.h>
#include <math.h>

typedef struct {
    const Job     *job;
    const Machine *machine;
    double         flops, repeat_flops, inner_flops, repeat_s, n_op;
} PlanWalk;

/* FLOPs of an op that the model does not ask for, on a GPU. The backward half of flash attention has five
 * products, one of which makes the scores again. Stored attention computes the masked half of the square. */
static double inner_flops(const Op *op, int is_flash)
{
    MachineUnit unit   = op_table[op->kind].unit;
    double      flops  = op_flops(op->kind, &op->args);
    int         causal = (op->kind == OP_ATTN_FWD && op->args.attn_fwd.shape.mask == MASK_CAUSAL) ||
                 (op->kind == OP_ATTN_BWD && op->args.attn_bwd.shape.mask == MASK_CAUSAL);
    if (is_flash) return unit == UNIT_ATTN_BWD ? flops / 4 : 0;
    return causal ? flops : 0;
}

static void add_row(void *ctx, const ScheduleRow *row, double times)
{
    PlanWalk    *w     = ctx;
    const Prog  *p     = w->job->prog[row->prog];
    ProgStats    s     = prog_stats(p);
    MachineArith arith = job_arith(w->job);
    w->flops += times * s.flops;
    w->repeat_flops += times * s.flops_repeated;
    w->n_op += times * s.n_op;
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op *op = prog_op(p, i);
        w->inner_flops += times * inner_flops(op, w->job->recipe.opt.flash);
        if (!op->recompute) continue;
        MachineWork x = op_work(op->kind, &op->args, arith);
        w->repeat_s += times * machine_op_time(w->machine, &x);
    }
}

double planfacts_repeat_s(const Job *j, const Machine *m)
{
    PlanWalk w = { .job = j, .machine = m };
    schedule_each(&j->step, add_row, &w);
    return w.repeat_s;
}

static void fill_plan(FactsPlan *p, const Setup *s)
{
    const Job *j = s->job;
    PlanWalk   w = { .job = j, .machine = &s->machine };
    schedule_each(&j->step, add_row, &w);
    const Machine *known = machine_find(s->info.name);
    p->micro_batch       = (double)j->choice.micro_batch;
    p->micro_per_step    = (double)job_micro_per_step(j);
    p->world             = MAX(j->choice.world, 1);
    p->planned_bytes     = (double)store_total_bytes(&j->store);
    p->room_bytes        = (double)s->choice.budget_bytes;
    p->total_bytes       = (double)s->info.total_bytes;
    p->model_flops       = w.flops;
    p->repeat_flops      = w.repeat_flops;
    p->inner_flops       = w.inner_flops;
    p->predicted_s       = choose_step_cost(j, &s->machine).step_s;
    p->repeat_s          = w.repeat_s;
    p->n_op              = w.n_op;
    p->peak_flops        = s->machine.peak_flops > 0 ? s->machine.peak_flops : NAN;
    p->peak_mhz          = s->machine.peak_mhz > 0 ? s->machine.peak_mhz : NAN;
    p->data_share        = j->task->share ? *j->task->share((Recipe *)&j->recipe) : 0;
    p->capability        = s->info.capability;
    p->threads           = s->dev->vt->hints->is_late ? NAN : s->info.n_sm;
    str_copy(p->precision, sizeof p->precision, job_precision(j));
    str_copy(p->recompute, sizeof p->recompute, recompute_level_name(j->choice.level));
    str_copy(p->machine, sizeof p->machine, !s->dev->vt->hints->is_late ? "cpu" : known ? known->key : "");
}

void planfacts_fill(RunFacts *f, const Setup *s)
{
    const Task *t = s->job->task;
    f->n_metric   = MIN(t->n_metric, FACTS_METRICS);
    f->best       = t->best;
    for (int i = 0; i < f->n_metric; i++) {
        snprintf(f->metric[i].name, sizeof f->metric[i].name, "val_%s", t->metric[i].name);
        f->metric[i].larger = t->metric[i].larger;
    }
    if (t->fair) snprintf(f->fair, sizeof f->fair, "val_%s", t->fair);
    str_copy(f->unit, sizeof f->unit, t->one);
    str_copy(f->units, sizeof f->units, t->unit);
    fill_plan(&f->plan, s);
    int quota = hostmem_quota(), cores, allowed_cores;
    host_count_cores(&cores, &allowed_cores);
    f->host.cpus          = host_cpus();
    f->host.allowed       = hostmem_cpus();
    f->host.quota         = quota == INT_MAX ? NAN : quota;
    f->host.cores         = cores > 0 ? cores : NAN;
    f->host.allowed_cores = allowed_cores > 0 ? allowed_cores : NAN;
}
