/* Watchdog: says which step hangs. A kernel that never ends leaves the host waiting without a word.
 *
 * 1. A thread of its own looks at what the loop last noted. After limit_s without a note it says so in the
 *    log, and again after twice, four times ... that time. It ends nothing: a step may only be slow.
 * 2. The thread touches neither device nor job. */
#ifndef RUN_WATCHDOG_H
#define RUN_WATCHDOG_H

#include "base/thread.h"

typedef struct {
    Thread          thread;
    pthread_mutex_t lock;
    pthread_cond_t  wake; /* the end */
    int             is_open, is_over;
    double          limit_s, noted_s, next_s; /* of silence: when the next line is due */
    const char     *what;                     /* "step", "the evaluation after step" */
    int64_t         step;
} Watchdog;

/* limit_s 0: never says anything. A thread that cannot be had costs only this. w stays in place until
 * watchdog_end(). */
void watchdog_begin(Watchdog *w, double limit_s);
/* From now on the loop waits for this; what is borrowed. */
void watchdog_note(Watchdog *w, const char *what, int64_t step);
void watchdog_end(Watchdog *w); /* nothing for a zeroed one */

#endif
