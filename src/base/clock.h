/* Clock: time in seconds as double; 53 bits keep a microsecond exact for centuries. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

double clock_now_s(void);  /* monotonic, from an arbitrary start: for durations */
double clock_wall_s(void); /* since 1970-01-01 UTC: for time stamps that other programs read */

/* Local date and time as strftime() writes them into buf; returns buf. */
const char *clock_date(char *buf, size_t n, const char *format);

/* The middle of n > 0 measured times, the upper one of two; sorts them. */
double clock_median(double *time, int n);

#ifdef __cplusplus
}
#endif
#endif
