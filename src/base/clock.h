/* Clock: time in seconds as double; 53 bits keep a microsecond exact for centuries. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#ifdef __cplusplus
extern "C" {
#endif

double clock_now_s(void);  /* monotonic, from an arbitrary start: for durations */
double clock_wall_s(void); /* since 1970-01-01 UTC: for time stamps that other programs read */

#ifdef __cplusplus
}
#endif
#endif
