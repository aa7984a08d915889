/* Progress: how far a run is. A terminal shows one line that is redrawn in place; elsewhere plain lines go to
 * the log.
 *
 * 1. Everything goes through log.h, so log lines and the bar do not disturb each other.
 * 2. Drawing is limited to 10 times a second on a terminal, so progress_update() may be called at every step.
 *    Plain lines come at the first and the last update. Between them a line comes when a tenth of the steps
 *    and 5 seconds have passed, or 10 minutes.
 * 3. The line is never wider than the terminal. A wider line would wrap, and a redraw would leave half of
 *    it.
 * 4. An aside is the bar of work inside other work, such as an evaluation. It is drawn on a terminal alone,
 *    once the work has taken 2 seconds, and leaves no line. */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    const char *what; /* "train" */
    const char *unit; /* "tokens/s" */
    int64_t     first, total, step;
    const char *loss_name; /* "loss", unless set after begin; borrowed */
    double      loss, per_s, step_s;
    double      begin_s, shown_s;
    double      end_s; /* clock_now_s() when time is up, even if steps are left; 0: never. Set after begin */
    int64_t     shown_step;
    int         terminal;
    int         is_aside;
} Progress;

/* first: steps done by an earlier run (resume); total below 0: not known. what and unit are borrowed. */
void progress_begin(Progress *p, const char *what, const char *unit, int64_t first, int64_t total);
void progress_begin_aside(Progress *p, const char *what, const char *unit, int64_t total);
/* Draws the bar before the first step is done; nothing without a terminal. */
void progress_wait(const Progress *p);
/* step: how many steps are done. step_s: seconds a step takes, smoothed, for the time left. A number that is
 * not finite (NAN) is not shown. */
void progress_update(Progress *p, int64_t step, double loss, double per_s, double step_s);
/* The same where all steps take alike: seconds a step and the rate are those since the beginning. */
void progress_count(Progress *p, int64_t step);
/* Shows the last state for good (once as a plain line, an aside not at all) and removes the bar. */
void progress_end(Progress *p);

#ifdef __cplusplus
}
#endif
#endif
