#include "base/cpus.h"

#include "base/err.h"

#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* CPUs' worth of time that a container's quota grants, INT_MAX without one. */
static int quota_cpus(void)
{
    FILE  *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    double quota, period;
    int    n = INT_MAX;
    if (!f) return n;
    if (fscanf(f, "%lf %lf", &quota, &period) == 2 && period > 0 && quota > 0) {
        n = MAX(1, (int)((quota + period - 1) / period));
    }
    fclose(f);
    return n;
}

int cpus_usable(void) { return MIN(omp_get_max_threads(), quota_cpus()); }

/* Threads that run or wait for a CPU, on the whole machine and without this one; 0 where the system does not say. */
static int others_running(void)
{
    FILE *f = fopen("/proc/loadavg", "r");
    int   n = 0;
    if (!f) return 0;
    if (fscanf(f, "%*f %*f %*f %d/", &n) != 1) n = 1;
    fclose(f);
    return MAX(0, n - 1);
}

int cpus_shared(void)
{
    enum { LOOKS = 5 };
    const struct timespec ms   = { .tv_nsec = 1000000 };
    int                   room = (int)sysconf(_SC_NPROCESSORS_ONLN) - omp_get_max_threads();
    if (quota_cpus() < omp_get_max_threads()) return 1;
    for (int i = 0; i < LOOKS; i++) { /* what is gone at the next look was housekeeping */
        if (others_running() <= MAX(room, 0)) return 0;
        nanosleep(&ms, NULL);
    }
    return 1;
}
