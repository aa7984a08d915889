/* What the host holds back: CPUs, data, evaluation and checkpoints. */
#include "watch/doctor_case.h"

#include "base/err.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>

/* CPUs that other programs keep busy. own_cpu is rank 0's, and each other rank takes about as much. */
static double others_cpus(const DoctorCase *c)
{
    return c->w->cpu * c->f->host.cpus - c->w->own_cpu * fmax(c->f->plan.world, 1);
}

/* 1: some of these CPUs are siblings on one core. cores is NAN or 0 where it is not known. */
static int are_siblings(double cpus, double cores) { return cores > 0 && cores < cpus; }

/* Threads that compute at full speed: siblings share the arithmetic units of their core. */
static double at_full_speed(double threads, double cores)
{
    return are_siblings(threads, cores) ? cores : threads;
}

/* What so many threads save of a step, as a share of it. */
static double threads_gain(const DoctorCase *c, double threads, double wake)
{
    const Divide *d   = &c->now.divide;
    double        own = at_full_speed(c->f->plan.threads, c->f->host.allowed_cores);
    double        now = divide_step_s(d, own, wake), then = divide_step_s(d, threads, wake);
    double        most = 1 - doctor_load_s(c) / c->w->step_s;
    return MAX(0, MIN(most, doctor_busy_s(c) / c->w->step_s * (1 - then / now)));
}

/* Predicts the step of a CPU run with so many threads on so many cores, between two bounds
 * (watch/divide.h). */
static void predict_threads(DoctorCase *c, Finding *x, double threads, double cores)
{
    const Divide *d    = &c->now.divide;
    double        full = at_full_speed(threads, cores);
    if (!(d->n_op > 0)) return; /* the recipe cannot be planned */
    str_append(x->evidence, sizeof x->evidence, "; threads share %.0f of the %.0f ops of a step", d->n_shared,
               d->n_op);
    if (others_cpus(c) > 0.5) {
        str_append(x->evidence, sizeof x->evidence, "; other programs keep %.1f CPUs busy", others_cpus(c));
        return;
    }
    if (d->has_host && !(c->f->trace.busy_s > 0)) {
        str_append(x->evidence, sizeof x->evidence,
                   "; how much of a step the ops take was not measured (trace: 3 measures it)");
        return;
    }
    double least = threads_gain(c, full, 1), most = threads_gain(c, full, 0);
    str_append(x->evidence, sizeof x->evidence, ", the others are too small; %.0f threads", threads);
    if (full < threads)
        str_append(x->evidence, sizeof x->evidence, " on %.0f core%s", full, str_plural((int64_t)full));
    str_append(x->evidence, sizeof x->evidence, " save %.0f to %.0f %%", 100 * least, 100 * most);
    doctor_predict_between(c, x, c->w->step_s * (1 - most), c->w->step_s * (1 - least));
    doctor_keep_if(c, x, DOCTOR_LEAST);
}

void doctor_find_cpu(DoctorCase *c)
{
    double allowed = c->f->host.allowed, cpus = c->f->host.cpus, own = c->w->own_cpu;
    double lost = doctor_is_gpu(c) ? c->d->input_share + c->d->gap_share : 1 - allowed / cpus;
    if (!(allowed < cpus) || !(own > 0.8 * allowed) || lost < 0.02) return;
    Finding *x     = doctor_add(c, "CPU quota");
    int      quota = c->f->host.quota <= allowed;
    snprintf(x->verdict, sizeof x->verdict, "this process may use %.0f of %.0f CPUs", allowed, cpus);
    if (!quota && are_siblings(cpus, c->f->host.cores))
        str_append(x->verdict, sizeof x->verdict, " (%.0f of %.0f cores)", c->f->host.allowed_cores,
                   c->f->host.cores);
    snprintf(x->evidence, sizeof x->evidence, "%s; the process keeps %.1f of them busy%s",
             quota ? "a container's quota" : "CPU affinity", own,
             doctor_is_gpu(c) ? ", and the GPU waits" : "");
    snprintf(x->advice, sizeof x->advice, "%s",
             quota ? "give the container more CPUs (cpu.max, --cpus)"
                   : "start it without taskset or cpuset, or with more CPUs");
    if (doctor_is_gpu(c)) {
        double work = c->w->fill_s * allowed / MAX(1, c->f->host.loader_threads); /* seconds of one CPU */
        doctor_predict(
            c, x,
            MAX(doctor_full_s(c, doctor_busy_s(c)), work / MIN(cpus, MAX(1, c->f->host.loader_threads))));
    } else {
        predict_threads(c, x, cpus, c->f->host.cores);
    }
    c->cpu_is_short = doctor_is_gpu(c);
}

/* Seconds of a step that the CPUs need for all that this process does in it: samples that are work come no
 * faster. Others keep the CPUs that they use now, but for half of all: a scheduler is fair. */
static double cpu_bound_s(const DoctorCase *c)
{
    double own = c->w->own_cpu, allowed = c->f->host.allowed, others = others_cpus(c);
    double room = MAX(allowed - (others > 0 ? others : 0), allowed / 2);
    return own > 0 && room > 0 ? own * c->w->step_s / MAX(room, own) : 0;
}

/* The keys that let more threads fill batches. */
static void change_loader(DoctorCase *c, Finding *x)
{
    const double most = RECIPE_MOST_DEPTH + 4, margin = 1.3;
    double       n = c->f->host.loader_threads, fill = c->w->fill_s, bound = cpu_bound_s(c);
    double       rest = c->w->step_s * (1 - c->d->input_share);
    double       next = MIN(MAX(ceil(margin * fill / MAX(rest, bound)), n + 1), most);
    double       step = MAX(MAX(doctor_full_s(c, rest), fill / next), bound);
    if (step > (1 - DOCTOR_LEAST) * c->w->step_s) {
        str_copy(
            x->advice, sizeof x->advice,
            "samples are work, and no CPU is left for it: more CPUs, or samples that are prepared before");
        doctor_predict(c, x, doctor_full_s(c, rest));
        return;
    }
    if (!c->r->opt.prefetch) doctor_change(x, "opt.prefetch=true");
    if (next > n) doctor_change(x, "data.threads=%.0f", next);
    if (next > n && c->r->data.depth + 4 < next) doctor_change(x, "data.depth=%.0f", next - 4);
    if (x->n_change == 0)
        str_copy(x->advice, sizeof x->advice, "faster storage, or samples that cost less to read");
    if (x->n_change > 0) doctor_predict(c, x, step);
}

static void find_data(DoctorCase *c)
{
    char   a[32], b[32];
    double wait = c->d->input_share, n = c->f->host.loader_threads, fill = c->w->fill_s;
    /* Threads that rest half of the time are not too few: their batches come late for another reason. */
    int is_late = n > 0 && fill / n < 0.5 * c->w->step_s;
    if (wait < (is_late ? DOCTOR_GAIN : 0.02) || c->cpu_is_short) return;
    Finding *x = doctor_add(c, "data");
    str_copy(x->verdict, sizeof x->verdict, "steps wait for data");
    snprintf(x->evidence, sizeof x->evidence,
             "%s of each step is waiting; filling its batches takes %s of one thread, and ",
             doctor_ms(a, sizeof a, wait * c->w->step_s), doctor_ms(b, sizeof b, fill));
    if (n > 0) {
        str_append(x->evidence, sizeof x->evidence, "the loader has %.0f", n);
    } else {
        str_append(x->evidence, sizeof x->evidence, "nothing is read ahead");
    }
    if (is_late) {
        str_copy(x->advice, sizeof x->advice,
                 "these threads rest most of the time, so more of them gain nothing; CPUs that are busy, or "
                 "storage that stalls now and then, make batches late");
    } else {
        change_loader(c, x);
    }
}

static void find_threads(DoctorCase *c)
{
    double n = c->f->plan.threads, allowed = c->f->host.allowed, cores = c->f->host.allowed_cores;
    if (doctor_is_gpu(c) || c->r->threads == 0 || !(n < at_full_speed(allowed, cores))) return;
    Finding *x = doctor_add(c, "CPU threads");
    doctor_change(x, "threads=0");
    snprintf(x->verdict, sizeof x->verdict, "%.0f of %.0f CPUs", n, allowed);
    if (are_siblings(allowed, cores))
        str_append(x->verdict, sizeof x->verdict, " (%.0f core%s)", cores, str_plural((int64_t)cores));
    str_append(x->verdict, sizeof x->verdict, " compute%s", n == 1 ? "s" : "");
    snprintf(x->evidence, sizeof x->evidence, "the recipe says threads: %lld", (long long)c->r->threads);
    predict_threads(c, x, allowed, cores);
}

static void find_neighbours(DoctorCase *c)
{
    double others = others_cpus(c), wait = c->d->input_share;
    double want = c->f->plan.threads * (1 - wait); /* who waits for data needs no CPU */
    if (doctor_is_gpu(c) || !(others > 0.5) || !(c->w->own_cpu < 0.85 * want)) return;
    Finding *x = doctor_add(c, "other programs");
    str_copy(x->verdict, sizeof x->verdict, "other programs use the CPUs of this run");
    snprintf(x->evidence, sizeof x->evidence, "%.1f CPUs are busy with others; this run gets %.1f of %.1f",
             others, c->w->own_cpu, want);
    str_copy(x->advice, sizeof x->advice, "end them, or give each its own CPUs (taskset)");
    doctor_predict(c, x, c->w->step_s * (wait + (1 - wait) * c->w->own_cpu / want));
    doctor_keep_if(c, x, 0.02);
}

/* What happens between steps, and how much of the time it takes. */
static Finding *add_share(DoctorCase *c, const char *cause, const char *what, double share)
{
    Finding *x = doctor_add(c, cause);
    x->is_wall = 1;
    snprintf(x->verdict, sizeof x->verdict, "%s takes %.0f %% of the time", what, 100 * share);
    return x;
}

/* So many times as rare leaves 2 % of the time. */
static int64_t times_rarer(double share) { return (int64_t)ceil(share / (1 - share) / 0.02); }

/* Never rarer than once a run: the last step is evaluated and saved anyway. */
static void change_every(DoctorCase *c, Finding *x, const char *key, int64_t every, double share)
{
    int64_t next = MIN(every * times_rarer(share), c->r->steps);
    doctor_change(x, "%s=%lld", key, (long long)next);
    snprintf(x->evidence, sizeof x->evidence, "%s: %lld", key, (long long)every);
    x->gain = share * (1 - (double)every / (double)next);
}

static void find_eval(DoctorCase *c)
{
    const RecipeEval *e     = &c->r->eval;
    double            share = c->w->eval_share;
    if (!(share > DOCTOR_GAIN) || e->every <= 0 || e->every >= c->r->steps) return;
    Finding *x = add_share(c, "evaluation", "evaluation", share);
    change_every(c, x, "eval.every", e->every, share);
    x->is_other = e->target != 0 || e->patience > 0; /* the run would end at another step */
    if (x->is_other)
        str_append(x->evidence, sizeof x->evidence, "; evaluations decide when this run ends (eval.%s)",
                   e->target != 0 ? "target" : "patience");
}

static void find_save(DoctorCase *c)
{
    double  share = c->w->save_share;
    int64_t every = c->r->checkpoint.every, eval = c->r->eval.every;
    int     is_best = c->r->checkpoint.best && eval > 0 && (every <= 0 || eval < every);
    if (!(share > DOCTOR_GAIN) || (!is_best && (every <= 0 || every >= c->r->steps))) return;
    Finding *x = add_share(c, "checkpoints", "saving", share);
    if (!is_best) {
        change_every(c, x, "checkpoint.every", every, share);
        return;
    }
    x->gain = share * (1 - 1 / (double)times_rarer(share));
    snprintf(x->evidence, sizeof x->evidence,
             "checkpoint.best saves after each evaluation that is the best; "
             "eval.every: %lld",
             (long long)eval);
    snprintf(x->advice, sizeof x->advice, "a larger eval.every, or checkpoint.best: false");
}

/* Graphs are on, and the GPU is idle all the same: it waits for the host's own part of a step. */
static void find_host(DoctorCase *c)
{
    char a[32];
    if (!doctor_is_gpu(c) || !c->r->opt.graphs || c->d->gap_share < 0.1 || c->cpu_is_short) return;
    Finding *x = doctor_add(c, "host work");
    str_copy(x->verdict, sizeof x->verdict, "the GPU waits for the host between programs");
    snprintf(
        x->evidence, sizeof x->evidence,
        "the GPU is idle for %.1f %% of a step, %s, and no step waits for data; the process keeps %.1f of "
        "%.0f CPUs busy",
        100 * c->d->gap_share, doctor_ms(a, sizeof a, c->d->gap_share * c->w->step_s), c->w->own_cpu,
        c->f->host.allowed);
    str_copy(x->advice, sizeof x->advice,
             "faster environments or other host work, more CPUs for it, or more work a step");
}

void doctor_find_host(DoctorCase *c)
{
    find_host(c);
    find_data(c);
    find_threads(c);
    find_neighbours(c);
    find_eval(c);
    find_save(c);
}
