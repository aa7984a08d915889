/* What a plan costs, by its list, and how that is printed. */
#include "run/choose_impl.h"

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#include <math.h>

typedef struct {
    const Job     *job;
    const Machine *machine;
    StepCost       cost;
} CostWalk;

static void add_cost(void *ctx, const ScheduleRow *row, double times)
{
    CostWalk      *w     = ctx;
    StepCost      *c     = &w->cost;
    const Prog    *p     = w->job->prog[row->prog];
    const Machine *m     = w->machine;
    MachineArith   arith = job_arith(w->job);
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op   *op = prog_op(p, i);
        MachineWork x  = op_work(op->kind, &op->args, arith);
        c->flops += times * x.flops;
        c->bytes += times * x.bytes;
        c->bytes_s += times * machine_bytes_time(m, &x);
        c->flops_s += times * machine_flops_time(m, &x);
        c->step_s += times * machine_op_time(m, &x);
    }
}

StepCost choose_step_cost(const Job *j, const Machine *m)
{
    CostWalk w = { .job = j, .machine = m };
    schedule_each(&j->step, add_cost, &w);
    return w.cost;
}

double choose_rank_s(const Job *j, const Machine *m)
{
    CostWalk w = { .job = j, .machine = m };
    if (job_trains(j)) return choose_step_cost(j, m).step_s;
    schedule_each(&j->eval, add_cost, &w);
    return w.cost.step_s * (double)job_micro_per_step(j);
}

typedef struct {
    const Job *job;
    double     flops;
} FlopWalk;

static void add_flops(void *ctx, const ScheduleRow *row, double times)
{
    FlopWalk *w = ctx;
    w->flops += times * prog_stats(w->job->prog[row->prog]).flops;
}

double choose_step_flops(const Job *j)
{
    FlopWalk w = { .job = j };
    schedule_each(&j->step, add_flops, &w);
    return w.flops * MAX(j->choice.world, 1);
}

/* ---- for people, and for programs --------------------------------------------------------------------- */

static void print_row(const Choice *c, int i, int has_gives, double units, FILE *out)
{
    char             bytes[32], rate[32];
    const Candidate *k = &c->row[i];
    fprintf(out, "%s %11lld  %-9s ", i == c->best ? "->" : "  ", (long long)k->choice.micro_batch,
            recompute_level_name(k->choice.level));
    if (has_gives) fprintf(out, " %-16s ", k->choice.gives ? choose_gives(k->choice.gives) : "-");
    fprintf(out, "%10lld %11s  %7s/s%s\n", (long long)k->choice.head_rows,
            str_bytes(bytes, sizeof bytes, (double)k->total_bytes),
            str_count(rate, sizeof rate, units / k->step_s), k->fits ? "" : "  does not fit");
}

void choose_print(const Choice *c, const Job *j, FILE *out)
{
    char             bytes[32], rate[32];
    double           units     = (double)job_units_per_step(j) / MAX(j->choice.world, 1);
    const Candidate *could     = &c->could;
    int              has_gives = 0;
    for (int i = 0; i < c->n; i++) has_gives |= c->row[i].choice.gives != 0;
    fprintf(out, "precision   %s\n", c->why);
    if (j->choice.gives)
        fprintf(out, "gives way   %s: kept in bf16 alone, rounded at random\n",
                choose_gives(j->choice.gives));
    fprintf(out, "budget      %s\n", str_bytes(bytes, sizeof bytes, (double)c->budget_bytes));
    fprintf(out, "\n  micro-batch  recompute %shead rows       bytes    predicted\n",
            has_gives ? " gives way         " : " ");
    for (int i = 0; i < c->n; i++) print_row(c, i, has_gives, units, out);
    if (could->fits)
        fprintf(out, "\nwould help  give_way: [%s] (in bf16): %s %s/s in %s, recompute %s\n",
                choose_gives(could->choice.gives), str_count(rate, sizeof rate, units / could->step_s),
                j->task->unit, str_bytes(bytes, sizeof bytes, (double)could->total_bytes),
                recompute_level_name(could->choice.level));
}

void choose_print_cost(const Job *j, const Machine *m, FILE *out)
{
    StepCost c = choose_step_cost(j, m);
    int      n = MAX(j->choice.world, 1);
    char     rate[32];
    fprintf(out, "a step      %.4g TFLOP, %.1f ms of arithmetic; %.4g GB moved, %.1f ms of traffic\n",
            c.flops * 1e-12, c.flops_s * 1e3, c.bytes * 1e-9, c.bytes_s * 1e3);
    fprintf(out, "predicted   %.1f ms a step, %s %s/s", c.step_s * 1e3,
            str_count(rate, sizeof rate, (double)job_units_per_step(j) / c.step_s), j->task->unit);
    if (m->peak_flops > 0)
        fprintf(out, ", MFU %.1f %%", 100 * choose_step_flops(j) / n / c.step_s / m->peak_flops);
    fprintf(out, "%s\n", m->peak_flops <= 0 ? " (roughly: this device's rates were not measured)" : "");
    if (n > 1) fprintf(out, "            with %d GPUs; what they wait for each other is not counted\n", n);
    fprintf(out, "the run     %lld step%s, about %s, evaluations and checkpoints not counted",
            (long long)j->recipe.steps, str_plural(j->recipe.steps),
            str_duration(rate, sizeof rate, (double)j->recipe.steps * c.step_s));
    if (j->recipe.budget_s > 0)
        fprintf(out, "; budget_s ends it after %s", str_duration(rate, sizeof rate, j->recipe.budget_s));
    fprintf(out, "\n");
}

void choose_print_json(const Choice *c, const Job *j, const Machine *m, const char *machine, FILE *out)
{
    StepCost cost = choose_step_cost(j, m);
    int      n    = MAX(j->choice.world, 1);
    JsonOut  o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "recipe", j->recipe.run);
    json_out_str(&o, "device", machine);
    json_out_bool(&o, "fits", 1);
    json_out_int(&o, "parameters", job_param_count(j));
    json_out_str(&o, "unit", j->task->unit);
    json_out_int(&o, "step_units", job_units_per_step(j));
    json_out_int(&o, "micro_batch", j->choice.micro_batch);
    json_out_str(&o, "recompute", recompute_level_name(j->choice.level));
    json_out_str(&o, "precision", c->why);
    json_out_int(&o, "planned_bytes", (int64_t)store_total_bytes(&j->store));
    json_out_int(&o, "budget_bytes", (int64_t)c->budget_bytes);
    json_out_num(&o, "step_flops", cost.flops);
    json_out_num(&o, "step_bytes", cost.bytes);
    json_out_num(&o, "step_ms", cost.step_s * 1e3);
    json_out_num(&o, "per_s", (double)job_units_per_step(j) / cost.step_s);
    json_out_num(&o, "mfu", m->peak_flops > 0 ? choose_step_flops(j) / n / cost.step_s / m->peak_flops : NAN);
    json_out_int(&o, "steps", j->recipe.steps);
    json_out_num(&o, "run_s", (double)j->recipe.steps * cost.step_s);
    json_out_end(&o);
}

void choose_print_json_refusal(const Choice *c, const Recipe *r, const char *machine, FILE *out)
{
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "recipe", r->run);
    json_out_str(&o, "device", machine);
    json_out_bool(&o, "fits", 0);
    json_out_int(&o, "needed_bytes", (int64_t)c->least_bytes);
    json_out_int(&o, "budget_bytes", (int64_t)c->budget_bytes);
    json_out_str(&o, "fits_with_give_way", c->could.fits ? choose_gives(c->could.choice.gives) : NULL);
    json_out_str(&o, "why", err_get());
    json_out_end(&o);
}
