/* Signals: a request to stop is a flag that the loop looks at after each step, an evaluation before each
 * batch.
 *
 * 1. SIGINT, SIGTERM and SIGHUP (a closed terminal) ask the run to save and stop. SIGUSR1 means the same:
 *    batch systems send it ahead of a time limit. The handler sets the flag and answers the first of SIGINT,
 *    SIGTERM and SIGHUP on standard error. System calls are restarted. A run that was stopped in this way and
 *    has saved exits with 0: nothing was lost, and the next start continues the run.
 * 2. A SIGINT after one of these three ends the process at once with exit code 130. A SIGINT within 50 ms of
 *    the first does not count: timeout -s INT sends it twice. A second SIGTERM changes nothing: batch systems
 *    and launchers send it more than once, and it must not interrupt the save. If the process ends during a
 *    write, the next start removes the unfinished file.
 * 3. SIGPIPE is ignored: a run outlives the reader of its output. */
#ifndef BASE_SIGNALS_H
#define BASE_SIGNALS_H

/* Call once. Threads of thread_start() never run the handler. Negative after err_set(). */
int signals_install(void);

/* The signal that asked, 0 when none did. A request to stop is not replaced by SIGUSR1. */
int signals_pending(void);

/* How many signals have come so far: code that waits notices another signal. */
int signals_count(void);

/* From now on the handler answers nothing: for all ranks but the first, and after the last step. */
void signals_hush(void);

/* Forgets a request that was served without stopping. */
void signals_clear(void);

const char *signals_name(void); /* of the pending one: "SIGTERM"; "" when none is */

#endif
