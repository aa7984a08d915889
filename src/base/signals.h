/* Signals: a request to stop is a flag that the loop looks at after each step.
 *
 * 1. SIGINT, SIGTERM and SIGHUP (a terminal that is closed) ask to save and stop; SIGUSR1 is what batch systems send ahead of a time limit, and
 *    means the same. The handler sets the flag, and answers the first SIGINT or SIGTERM on standard error; system
 *    calls are restarted. A run that was stopped so and has saved exits with 0: nothing was lost, and starting it
 *    again continues it.
 * 2. A SIGINT after either of them ends the process at once with exit code 130, but not one that comes within 50 ms of the
 *    first: timeout -s INT sends it twice. A second SIGTERM changes nothing: batch
 *    systems and launchers send it more than once, and the save must not be lost to that. What was being written when
 *    the process ended is a leftover that the next start removes.
 * 3. SIGPIPE is ignored: a run outlives the reader of its output. */
#ifndef BASE_SIGNALS_H
#define BASE_SIGNALS_H

/* Call once, before threads are started. Negative after err_set(). */
int signals_install(void);

/* The signal that asked, 0 when none did. A request to stop is not replaced by SIGUSR1. */
int signals_pending(void);

/* How many signals have come so far: whoever waits notices another one. */
int signals_count(void);

/* From now on the handler answers nothing: for all ranks but the first, and after the last step. */
void signals_hush(void);

/* Forgets a request that was served without stopping. */
void signals_clear(void);

const char *signals_name(void); /* of the pending one: "SIGTERM"; "" when none is */

#endif
