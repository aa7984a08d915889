#include "optim/schedule.h"

#include "base/err.h"

#include <math.h>

/* Fraction 0..1 of the way from the end of warm-up to the last step. */
static double after_warmup(const RecipeOptim *o, int64_t step, int64_t steps)
{
    double span = (double)(steps - o->warmup);
    return span <= 0 ? 1.0 : MIN(1.0, (double)(step - o->warmup) / span);
}

static double cosine(double from, double to, double x)
{
    return to + 0.5 * (from - to) * (1.0 + cos(3.14159265358979323846 * x));
}

/* One cycle: cosine up from lr/25 over the warm-up, cosine down to min_lr. */
static double onecycle(const RecipeOptim *o, int64_t step, int64_t steps)
{
    if (step < o->warmup) return cosine(o->lr / 25.0, o->lr, (double)step / (double)o->warmup);
    return cosine(o->lr, o->min_lr, after_warmup(o, step, steps));
}

double schedule_lr(const RecipeOptim *o, int64_t step, int64_t steps)
{
    if (o->schedule == SCHEDULE_ONECYCLE) return onecycle(o, step, steps);
    if (step < o->warmup) return o->lr * (double)(step + 1) / (double)o->warmup;
    double x = after_warmup(o, step, steps);
    switch (o->schedule) {
    case SCHEDULE_COSINE: return cosine(o->lr, o->min_lr, x);
    case SCHEDULE_LINEAR: return o->lr + (o->min_lr - o->lr) * x;
    case SCHEDULE_TRAPEZOID: {
        double start = 1.0 - o->cooldown, done = steps > 0 ? (double)step / (double)steps : 1.0;
        return done < start ? o->lr : o->lr + (o->min_lr - o->lr) * MIN(1.0, (done - start) / o->cooldown);
    }
    default: return o->lr;
    }
}
