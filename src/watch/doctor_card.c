/* What the card and its neighbours hold back. */
#include "watch/doctor_case.h"

#include "base/err.h"
#include "base/str.h"
#include "watch/nvml.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void find_shared(DoctorCase *c)
{
    /* Context and libraries of this process take some memory beside its slabs. */
    const double own     = 2.5e9;
    double       foreign = c->w->memory_bytes - c->f->plan.planned_bytes - own;
    int          listed  = c->w->processes > 1.5;
    if (!doctor_is_gpu(c) || (!listed && !(foreign > 1e9))) return;
    Finding *x = doctor_add(c, "another process");
    str_copy(x->verdict, sizeof x->verdict, "another program uses this GPU");
    if (listed) {
        snprintf(x->evidence, sizeof x->evidence,
                 "the driver lists %.0f programs; %.1f GiB are in use, %.1f of them planned by this run",
                 c->w->processes, c->w->memory_bytes / DOCTOR_GIB, c->f->plan.planned_bytes / DOCTOR_GIB);
    } else {
        snprintf(x->evidence, sizeof x->evidence, "%.1f GiB are in use beyond what this run planned",
                 foreign / DOCTOR_GIB);
    }
    str_copy(x->advice, sizeof x->advice, "end the other program, or take another GPU (brim top names it)");
    if (doctor_is_known(c) && c->now.step_s > 0) doctor_predict(c, x, MAX(c->now.step_s, doctor_load_s(c)));
    /* What one program loses to an idle one is nothing that can be told from an error of the plan. */
    if (x->gain < 0.12) x->gain = x->step_s = NAN;
}

static void find_power(DoctorCase *c)
{
    const FactsCard *card = &c->f->card;
    if (!doctor_is_gpu(c) || !strstr(c->w->reasons, "power") ||
        !nvml_is_at_limit(c->w->power_w, c->w->power_limit_w))
        return;
    Finding *x     = doctor_add(c, "power limit");
    double   limit = c->w->power_limit_w, usual = card->power_default_w;
    snprintf(x->verdict, sizeof x->verdict, "the card is at its power limit");
    snprintf(x->evidence, sizeof x->evidence,
             "%.0f of %.0f W; the clock is %.0f MHz, the data sheet counts on %.0f", c->w->power_w, limit,
             c->w->sm_mhz, c->f->plan.peak_mhz);
    if (limit < 0.98 * usual) {
        snprintf(x->advice, sizeof x->advice, "the limit was lowered: nvidia-smi -pl %.0f raises it", usual);
        doctor_predict(c, x, c->w->step_s - doctor_busy_s(c) * (1 - cbrt(limit / usual)));
    } else {
        str_copy(x->advice, sizeof x->advice,
                 "bf16 gets no further here: fewer joules an operation are what is left, which is fp8");
    }
}

static void find_thermal(DoctorCase *c)
{
    if (!doctor_is_gpu(c) || !strstr(c->w->reasons, "therm")) return;
    Finding *x = doctor_add(c, "thermal limit");
    snprintf(x->verdict, sizeof x->verdict, "heat holds the clock down");
    snprintf(x->evidence, sizeof x->evidence, "%.0f C, %.0f MHz", c->w->temp_c, c->w->sm_mhz);
    str_copy(x->advice, sizeof x->advice, "better cooling, or a lower power limit");
    doctor_predict(c, x, c->w->step_s * (1 - doctor_step_share(c->d, FALL_THROTTLE)));
}

/* The share of a step that products take; NAN: not measured. */
static double products_share(const Doctor *d)
{
    double slow = doctor_step_share(d, FALL_THROTTLE);
    return doctor_step_share(d, FALL_USEFUL) + doctor_step_share(d, FALL_BELOW) + (isnan(slow) ? 0 : slow);
}

/* Products take as long as the clock is slow; other kernels wait for memory, which has a clock of its own. */
static void find_clocks(DoctorCase *c)
{
    double max = c->f->card.max_sm_mhz, now = c->w->sm_mhz;
    /* The newest reason may be that of a short pause: a card at its power is no locked one. */
    int held = nvml_is_at_limit(c->w->power_w, c->w->power_limit_w) || strstr(c->w->reasons, "power") ||
               strstr(c->w->reasons, "therm") || strstr(c->w->reasons, "slowdown") ||
               strstr(c->w->reasons, "idle");
    int locked = strstr(c->w->reasons, "application clocks") != NULL;
    if (!doctor_is_gpu(c) || !(now < 0.85 * max) || (held && !locked) ||
        c->d->gap_share + c->d->input_share > 0.5)
        return;
    Finding *x = doctor_add(c, "clocks locked");
    snprintf(x->verdict, sizeof x->verdict, "the clock is locked at %.0f of %.0f MHz", now, max);
    snprintf(x->evidence, sizeof x->evidence, "the driver's reason: %s", c->w->reasons);
    str_copy(x->advice, sizeof x->advice, "nvidia-smi -rgc -rac gives the clocks free");
    double peak = MIN(max, c->f->plan.peak_mhz > 0 ? c->f->plan.peak_mhz : max);
    if (now < peak) doctor_predict(c, x, c->w->step_s * (1 - products_share(c->d) * (1 - now / peak)));
}

static void find_link(DoctorCase *c)
{
    const FactsCard *k = &c->f->card;
    if (!doctor_is_gpu(c) ||
        !(k->link_generation < k->link_generation_max || k->link_lanes < k->link_lanes_max))
        return;
    Finding *x = doctor_add(c, "slow PCIe link");
    snprintf(x->verdict, sizeof x->verdict, "the PCIe link is slower than it could be");
    snprintf(x->evidence, sizeof x->evidence, "generation %.0f x%.0f while training; the card has %.0f x%.0f",
             k->link_generation, k->link_lanes, k->link_generation_max, k->link_lanes_max);
    str_copy(x->advice, sizeof x->advice,
             "another slot or riser; batches are copied beside the step, so it may cost nothing");
}

static void find_comm(DoctorCase *c)
{
    double share = c->f->trace.comm_s / c->w->step_s;
    if (!(c->f->plan.world > 1) || !(share > 0.02)) return;
    Finding *x = doctor_add(c, "communication");
    str_copy(x->verdict, sizeof x->verdict, "sums over GPUs are not hidden");
    snprintf(x->evidence, sizeof x->evidence, "%.1f %% of a step has nothing but communication", 100 * share);
    str_copy(x->advice, sizeof x->advice, "more micro-batches a step, or a faster link between the GPUs");
    doctor_predict(c, x, c->w->step_s * (1 - share));
}

void doctor_find_card(DoctorCase *c)
{
    find_shared(c);
    find_power(c);
    find_thermal(c);
    find_clocks(c);
    find_link(c);
    find_comm(c);
}
