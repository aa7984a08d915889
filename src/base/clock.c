#include "base/clock.h"

#include <stdlib.h>
#include <time.h>

static double clock_read(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t); /* cannot fail for the two ids below */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double clock_now_s(void) { return clock_read(CLOCK_MONOTONIC); }

double clock_wall_s(void) { return clock_read(CLOCK_REALTIME); }

const char *clock_date(char *buf, size_t n, const char *format)
{
    time_t    now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    if (strftime(buf, n, format, &tm) == 0) buf[0] = '\0';
    return buf;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double clock_median(double *time, int n)
{
    qsort(time, (size_t)n, sizeof *time, by_value);
    return time[n / 2];
}
