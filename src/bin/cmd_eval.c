#include "base/err.h"
#include "bin/run_target.h"
#include "run/step.h"

#include <math.h>
#include <stdlib.h>

/* Every validation window once. */
static int eval_all(Setup *s, const Recipe *r, double *loss, int64_t *n_token)
{
    Stepper stepper;
    Source *val    = NULL;
    Loader *loader = NULL;
    int     rc     = stepper_init(&stepper, s->build, 1);
    if (rc == 0) rc = source_open(&val, r, 1);
    LoaderConfig cfg = { 0 };
    if (rc == 0) {
        cfg             = stepper_loader_config(&stepper, stepper.slots, stepper.n_slot);
        cfg.eval        = 1;
        cfg.inline_fill = 1;
        rc              = loader_create(&loader, &cfg, val);
    }
    if (rc == 0) {
        int64_t windows = order_eval_windows(source_len(val), cfg.T);
        *n_token        = source_len(val) - 1;
        rc              = step_evaluate(&stepper, loader, (windows + cfg.B - 1) / cfg.B, loss);
    }
    loader_destroy(loader);
    stepper_deinit(&stepper);
    source_close(val);
    return rc;
}

int cmd_eval(const CmdArgs *a)
{
    CmdTarget t;
    Recipe    r;
    Setup     s;
    double    loss = 0;
    int64_t   n    = 0;
    TRY(cmd_parse(a, NULL, 0, &t));
    TRY(run_target_open(&t, BUILD_EVAL, &r, &s));
    /* Noise has no end, and no loss worth knowing. */
    int rc = r.data.kind == DATA_RANDOM
                 ? err_user("data.kind: random has nothing to evaluate (name data.kind and data.train)")
                 : eval_all(&s, &r, &loss, &n);
    if (rc == 0) {
        printf("validation loss %.4f over %lld tokens, perplexity %.3f", loss, (long long)n, exp(loss));
        if (r.data.kind == DATA_TEXT) printf(", %.3f bits per byte", loss / log(2.0));
        printf("\n");
    }
    setup_close(&s);
    return rc;
}
