/* Guard: names the environment that crashes or hangs inside this process, then ends the process with exit
 * code 1.
 *
 * 1. A crash is SIGSEGV, SIGBUS, SIGFPE, SIGILL or SIGABRT in a thread that is inside an environment. Signals
 *    elsewhere, and those that somebody else handles already (a sanitizer), are left alone.
 * 2. A hang is a call that takes longer than timeout_s. One thread looks four times per timeout.
 * 3. After a crash the memory of the process cannot be trusted, so nothing is saved. With `isolate: process`
 *    the run survives. */
#ifndef ENV_GUARD_H
#define ENV_GUARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Guard Guard;

/* timeout_s 0: hangs are not looked for. name is copied. Negative after err_set(). */
int  guard_open(Guard **g, const char *name, int n_slot, double timeout_s);
void guard_close(Guard *g); /* NULL is allowed */

/* Around the calls of one thread, into n environments from number env on; a message names them. */
void guard_enter(Guard *g, int slot, int64_t env, int n);
void guard_leave(Guard *g, int slot);

#ifdef __cplusplus
}
#endif
#endif
