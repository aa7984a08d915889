#include "base/err.h"
#include "base/str.h"
#include "bin/run_target.h"
#include "data/check.h"
#include "run/step.h"

#include <math.h>
#include <string.h>

typedef struct {
    double  loss;
    int64_t n_token, n_window, n_all; /* targets; windows that were taken, of so many */
} Evaluation;

/* 1: the command line has a value for key. The run's own recipe names every key, so it cannot tell. */
static int is_overridden(const CmdTarget *t, const char *key)
{
    for (int i = 0; i < t->n_override; i++) {
        const char *rest = t->override[i];
        if (str_starts_with(rest, key) && rest[strlen(key)] == '=') return 1;
    }
    return 0;
}

/* `most` validation windows, spread as in training; 0: every one, once. */
static int evaluate(Setup *s, const Recipe *r, int64_t most, Evaluation *out)
{
    Stepper stepper;
    Source *val    = NULL;
    Loader *loader = NULL;
    int     rc     = stepper_init(&stepper, s->build, 1);
    if (rc == 0) rc = source_open(&val, r, 1);
    if (rc == 0) rc = data_check(r, NULL, val);
    LoaderConfig cfg = { 0 };
    if (rc == 0) {
        cfg             = stepper_loader_config(&stepper, stepper.slots, stepper.n_slot);
        cfg.eval        = 1;
        cfg.eval_most   = most;
        cfg.inline_fill = 1;
        rc              = loader_create(&loader, &cfg, val);
    }
    if (rc == 0) {
        out->n_all    = order_eval_windows(source_len(val), cfg.T);
        out->n_window = most > 0 ? MIN(most, out->n_all) : out->n_all;
        /* Only the last window may be cut short, and some of the windows never have it among them. */
        out->n_token = out->n_window < out->n_all ? out->n_window * cfg.T : source_len(val) - 1;
        rc           = step_evaluate(&stepper, loader, (out->n_window + cfg.B - 1) / cfg.B, &out->loss);
    }
    loader_destroy(loader);
    stepper_deinit(&stepper);
    source_close(val);
    return rc;
}

static void print_result(int64_t step, const Evaluation *e, const Recipe *r)
{
    printf("step %lld: validation loss %.4f over %lld token%s (", (long long)step, e->loss,
           (long long)e->n_token, str_plural(e->n_token));
    if (e->n_window < e->n_all) {
        printf("%lld of %lld windows, evenly spread", (long long)e->n_window, (long long)e->n_all);
    } else {
        printf("the whole validation set");
    }
    printf("), perplexity %.3f", exp(e->loss));
    if (r->data.kind == DATA_TEXT) printf(", %.3f bits per byte", e->loss / log(2.0));
    printf("\n");
}

int cmd_eval(const CmdArgs *a)
{
    CmdTarget  t;
    Recipe     r;
    Setup      s;
    Evaluation e    = { 0 };
    int64_t    step = 0;
    TRY(cmd_parse(a, NULL, 0, &t));
    TRY(run_target_open(&t, BUILD_EVAL, &r, &s, &step));
    /* Noise has no end, and no loss worth knowing. */
    int rc =
        r.data.kind == DATA_RANDOM
            ? recipe_blame(&r, "data.kind", "random has nothing to evaluate (name data.kind and data.train)")
            : evaluate(&s, &r, is_overridden(&t, "eval.sequences") ? r.eval.sequences : 0, &e);
    if (rc == 0) print_result(step, &e, &r);
    setup_close(&s);
    return rc;
}
