#include "run/metrics.h"

#include "base/json.h"

const char *metrics_skip_name(int skip) { return skip == 1 ? "not finite" : "loss spike"; }

int metrics_step(FILE *f, const MetricsStep *m, const StepOut *out)
{
    JsonOut o;
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", m->step);
    json_out_num(&o, "loss", out->loss);
    json_out_num(&o, "lr", m->lr);
    json_out_num(&o, "grad_norm", out->grad_norm);
    json_out_num(&o, "per_s", m->per_s);
    json_out_num(&o, "mfu", m->mfu);
    json_out_num(&o, "time_s", m->time_s);
    if (out->skip) json_out_str(&o, "skipped", metrics_skip_name(out->skip));
    return json_out_end(&o);
}

int metrics_eval(FILE *f, int64_t step, double val_loss, double time_s)
{
    JsonOut o;
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", step);
    json_out_num(&o, "val_loss", val_loss);
    json_out_num(&o, "time_s", time_s);
    return json_out_end(&o);
}
