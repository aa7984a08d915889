#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/signals.h"
#include "base/str.h"
#include "bin/run_target.h"
#include "run/step.h"

#include <math.h>
#include <string.h>

/* 1: the command line has a value for key. The run's own recipe names every key, so it cannot tell. */
static int is_overridden(const CmdTarget *t, const char *key)
{
    for (int i = 0; i < t->n_override; i++) {
        const char *rest = t->override[i];
        if (str_starts_with(rest, key) && rest[strlen(key)] == '=') return 1;
    }
    return 0;
}

/* Only now do signals have a handler: until here the default action ends the command at once. */
static int evaluate(Setup *s, const Recipe *r, Source *val, TaskEval *out)
{
    Job    *j = s->job;
    Stepper stepper;
    Feed    feed = { 0 };
    TRY(signals_install());
    signals_hush(); /* there is no step to stop after */
    int rc = stepper_init(&stepper, j, 1);
    if (rc == 0) rc = feed_init(&feed, j, (int)r->data.depth, MARK_VAL);
    if (rc == 0) rc = feed_attach(&feed, val, &(FeedStart){ 0 });
    if (rc == 0) rc = step_evaluate(&stepper, &feed, val, out);
    stepper_deinit(&stepper); /* waits */
    feed_deinit(&feed);
    if (rc > 0) return err_set("%s received: the evaluation was stopped, there is no result", signals_name());
    return rc;
}

static void print_json(const CmdTarget *t, const Recipe *r, const Task *task, int64_t step, const TaskEval *e,
                       double per_s)
{
    JsonOut    o;
    TaskNumber also[TASK_NUMBERS];
    int        n = task->also ? task->also(e, r, also) : 0;
    json_out_init_file(&o, stdout);
    json_out_object(&o, NULL);
    json_out_str(&o, "run", t->target);
    json_out_int(&o, "step", step);
    for (int k = 0; k < task->n_metric; k++) json_out_num(&o, task->metric[k].name, e->value[k]);
    for (int k = 0; k < n; k++) json_out_num(&o, also[k].name, also[k].value);
    json_out_int(&o, "targets", e->n_target);
    json_out_int(&o, "samples", e->n_sample);
    json_out_int(&o, "samples_in_all", e->n_all);
    json_out_str(&o, "unit", task->unit);
    json_out_num(&o, "per_s", per_s);
    json_out_end(&o);
}

static int score(const CmdTarget *t, const char *which, const TaskScore *opt)
{
    Recipe r;
    Setup  s;
    TRY(run_target_score(t, which, opt, &r, &s));
    int rc = s.job->task->score(s.job, opt, stdout);
    setup_close(&s);
    return rc;
}

int cmd_eval(const CmdArgs *a)
{
    CmdTarget   t;
    Recipe      r;
    Setup       s;
    TaskEval    e   = { 0 };
    RunEval     run = { 0 };
    char        rate[32];
    const char *which = NULL;
    int         json  = 0;
    TaskScore   ids   = { 0 };
    CmdFlag flag[]    = { { "--step", &which, NULL, "best, last or the step of a checkpoint (default last)" },
                          { "--ids", &ids.ids, NULL, "loss of the token ids in this file instead" },
                          { "--logits", &ids.logits, NULL, "with --ids: writes their logits, as .npy" },
                          { "--json", NULL, &json, "one JSON object instead" } };
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (ids.logits && !ids.ids) return err_user("command line: --logits: needs --ids");
    ids.json = json;
    if (ids.ids) return score(&t, which, &ids);
    run.some = is_overridden(&t, "eval.sequences") || is_overridden(&t, "eval.samples");
    TRY(run_target_eval(&t, which, &run, &r, &s));
    const Task *task  = s.job->task;
    double      begin = clock_now_s();
    int         rc    = evaluate(&s, &r, run.val, &e);
    if (rc == 0 && !isfinite(e.value[task->best])) {
        rc = err_set("%s: the %s of step %lld is not finite: training had diverged", t.target,
                     task->metric[task->best].name, (long long)run.step);
    }
    if (rc == 0) {
        int64_t units = task->eval_units ? task->eval_units(&e) : e.n_sample * task->units(&r);
        double  per_s = (double)units / (clock_now_s() - begin);
        if (json) {
            print_json(&t, &r, task, run.step, &e, per_s);
        } else {
            printf("step %lld: ", (long long)run.step);
            task->print_eval(&e, &r, stdout);
            printf("%s %s/s\n", str_count(rate, sizeof rate, per_s), task->unit);
        }
    }
    source_close(run.val);
    setup_close(&s);
    return rc;
}
