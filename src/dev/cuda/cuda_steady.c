/* A burst runs at the clock of a cool card. In a training step the card is at its power limit: the way that
 * uses less energy gets the higher clock. So if bursts are close, half a second at a steady clock decides
 * (docs/log.md, "Tuning at the power limit": 1,763 against 1,842 us in a burst were 2,010 against 1,785). */
#include "dev/cuda/cuda_steady.h"

#include "base/err.h"

int cuda_steady_is_close(const float us[2], float within)
{
    float fast = MIN(us[0], us[1]), slow = MAX(us[0], us[1]);
    return fast >= 100 && slow <= within * fast;
}

/* The clock follows the power of the running kernel within 50 to 100 ms. The better of two rounds counts: now
 * and then the card is slower for a tenth of a second, whatever it runs. */
int cuda_steady_time(CudaDev *d, CudaRunWay run, void *what, float us[2])
{
    enum { ROUNDS = 2, SETTLE_US = 80000, MEASURE_US = 60000 };
    float best[2] = { 1e30f, 1e30f };
    for (int round = 0; round < ROUNDS; round++) {
        for (int way = 0; way < 2; way++) {
            int   runs = (int)(MEASURE_US / us[way]) + 1;
            float all;
            TRY(run(d, what, way, (int)(SETTLE_US / us[way]) + 1));
            TRY(cuda_time_begin(d, 0));
            TRY(run(d, what, way, runs));
            TRY(cuda_time_end(d, &all));
            best[way] = MIN(best[way], all / (float)runs);
        }
    }
    us[0] = best[0];
    us[1] = best[1];
    return 0;
}
