/* Process: one worker of remote.h: start, descriptors, frames with a time limit, end.
 *
 * 1. Functions return -1 after err_set() when the worker is gone, is too slow or answers 'e'. The message
 *    says what happened.
 * 2. The worker ends when its commands end, so no worker outlives this process. */
#ifndef ENV_PROCESS_H
#define ENV_PROCESS_H

#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    pid_t pid;         /* 0: none runs */
    int   command;     /* we write */
    int   reply;       /* we read */
    int   is_hopeless; /* it said 'f': a restart would not help */
    int   is_late;     /* it was killed because no answer came in time */
} Process;

/* argv ends in NULL; memory becomes descriptor 4. */
int  process_start(Process *p, char *const *argv, int memory);
void process_stop(Process *p); /* closes, waits a moment, kills; nothing for a zeroed one */

int process_send(Process *p, const void *bytes, int64_t n);
/* Waits for a frame of this kind. *data (malloc'ed, the caller's; terminated by a zero) may be NULL: then the
 * frame must be empty. */
int process_receive(Process *p, char kind, double timeout_s, char **data, uint32_t *n);

#ifdef __cplusplus
}
#endif
#endif
