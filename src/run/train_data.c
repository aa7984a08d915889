/* What a run has to learn from and to be judged by, in the task's units. */
#include "run/train_impl.h"

#include "base/log.h"
#include "base/str.h"

#include <string.h>

/* Fewer targets than this, and chance decides which of two models looks better: a share of right answers
 * among 30 is known to about 9 in 100. */
enum { TELLING = 30 };

static const char *unit_of(const Run *run, int64_t n) { return n == 1 ? run->task->one : run->task->unit; }

/* ", 111k for validation, 16.4k of them taken" */
static void describe_val(const Run *run, char *buf, size_t n)
{
    const Source *v = run->val;
    char          all[32], taken[32];
    snprintf(buf, n, ", %s for validation", str_count(all, sizeof all, (double)v->size));
    if (v->n_sample < v->n_all)
        str_append(buf, n, ", %s of them taken",
                   str_count(taken, sizeof taken, (double)(v->n_sample * run->task->units(run->r))));
}

static void warn_few(const Run *run)
{
    const Source *v     = run->val;
    int64_t       each  = v->targets_each[run->task->metric[run->task->best].slot];
    int           asked = v->n_sample < v->n_all; /* the recipe wants no more */
    if (asked || v->n_all == 0 || each == 0 || v->n_sample * each >= TELLING) return;
    log_warn("%lld %s for validation: too little to tell a good model from a bad one (data.val_fraction or "
             "data.val gives more)",
             (long long)v->size, unit_of(run, v->size));
}

/* Allowed, to try something out, but such a step is no larger than one that takes each sample once. */
static void warn_repeats(const Run *run, int64_t a_step)
{
    const Recipe *r = run->r;
    int64_t       n = run->train->n_all;
    if (a_step <= n) return;
    int64_t once = strcmp(r->step_key, "step_samples") == 0 ? n : n * run->task->units(r);
    log_warn("%s: %lld sample%s, and a step takes %lld: it sees each %.1f times (once with %s=%lld)",
             run->train->name, (long long)n, str_plural(n), (long long)a_step, (double)a_step / (double)n,
             r->step_key, (long long)once);
}

void train_say_data(const Run *run)
{
    const Source *t = run->train;
    char          all[32], val[128] = ", no validation", epochs[32];
    if (t->n_all == 0 || (run->task->is_noise && run->task->is_noise(run->r))) return;
    int64_t a_step = run->setup.job->recipe.step_samples;
    double  n      = (double)a_step * (double)run->r->steps / (double)t->n_all;
    snprintf(epochs, sizeof epochs, "%.2g", n);
    if (n >= 1) str_count(epochs, sizeof epochs, n);
    if (run->val) describe_val(run, val, sizeof val);
    log_info("%s %s to train on%s; %lld step%s: %s epoch%s", str_count(all, sizeof all, (double)t->size),
             unit_of(run, t->size), val, (long long)run->r->steps, str_plural(run->r->steps), epochs,
             strcmp(epochs, "1") == 0 ? "" : "s");
    warn_repeats(run, a_step);
    if (run->val) warn_few(run);
}
