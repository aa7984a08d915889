#include "watch/waterfall.h"

#include "base/err.h"

#include <math.h>

enum { WINDOW = 100 /* rows */ };

/* Share of the time in which steps waited for data, over the last rows of one start. */
static double wait_share(const Series *s)
{
    int wait = series_find(s, "data_wait_s"), time = series_find(s, "time_s"), last = -1, first = -1;
    for (int r = s->n_row - 1; wait >= 0 && time >= 0 && r >= 0 && r >= s->n_row - WINDOW; r--) {
        if (isnan(s->column[wait][r]) || isnan(s->column[time][r])) continue;
        if (last < 0) last = r;
        if (first >= 0 && s->column[wait][r] > s->column[wait][first]) break; /* an earlier start */
        first = r;
    }
    if (last <= first || last < 0) return NAN;
    double dt = s->column[time][last] - s->column[time][first];
    double dw = s->column[wait][last] - s->column[wait][first];
    return dt > 0 ? MIN(1, MAX(0, dw / dt)) : NAN;
}

static double clamp(double x, double most) { return isnan(x) ? 0 : MIN(most, MAX(0, x)); }

int waterfall_of(const Series *s, WaterfallPart out[WATERFALL_PARTS])
{
    double wait = wait_share(s), mfu = series_mean(s, "mfu", WINDOW);
    double sm = series_mean(s, "sm_active", WINDOW), tensor = series_mean(s, "tensor_active", WINDOW);
    double util = series_mean(s, "gpu_util", WINDOW), left;
    int    n    = 0;
    if (isnan(wait)) return 0;
    wait     = clamp(wait, 1);
    out[n++] = (WaterfallPart){ "waiting for data", "slow storage, too few loader threads", wait };
    left     = 1 - wait;
    if (!isnan(sm) && !isnan(tensor)) {
        double busy = clamp(sm, left), product = clamp(tensor, busy), model = clamp(mfu, product);
        out[n++] = (WaterfallPart){ "GPU idle", "launch gaps, host work, small step", left - busy };
        out[n++] = (WaterfallPart){ "other kernels", "memory-bound ops: norms, activations, optimizer",
                                    busy - product };
        out[n++] =
            (WaterfallPart){ "products below peak", "clock under the data sheet's, recomputation, tile edges",
                             product - model };
        out[n++] = (WaterfallPart){ "model FLOPs", "what the model itself asks for (MFU)", model };
    } else if (!isnan(util)) {
        double busy = clamp(util, left), model = clamp(mfu, busy);
        out[n++] = (WaterfallPart){ "GPU idle", "launch gaps, host work, small step", left - busy };
        out[n++] = (WaterfallPart){ "some kernel runs", "activity is not known here: utilisation only",
                                    busy - model };
        out[n++] = (WaterfallPart){ "model FLOPs", "what the model itself asks for (MFU)", model };
    } else {
        out[n++] =
            (WaterfallPart){ "computing", "on the CPU: its peak is not known, so no finer parts", left };
    }
    return n;
}
