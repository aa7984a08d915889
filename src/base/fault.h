/* Fault: makes the n-th call of one kind fail, so that tests can walk every failure path.
 *
 * 1. Nothing fails unless a test called fault_arm() or the environment has BRIM_FAULT. Its forms: "op:n" (the
 *    n-th call fails, counting from 1), "op:n+" (the n-th and all later calls), "op:n-m" (the n-th to the
 *    m-th), or a comma list of these for different ops. A malformed BRIM_FAULT aborts: a test that injects
 *    nothing would pass for the wrong reason. For the same reason a fault from the environment is reported on
 *    stderr and in the log.
 * 2. The code under test asks fault_hit() just before the real call, and only where that code reports failure
 *    to its caller.
 * 3. The state belongs to the process, as the environment does. Counting is atomic. Without a fault a call
 *    costs one load. */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    FAULT_MALLOC,
    FAULT_OPEN,
    FAULT_READ,
    FAULT_WRITE,
    FAULT_FSYNC,
    FAULT_RENAME,
    FAULT_MMAP,
    FAULT_THREAD,
    FAULT_NAN,      /* counted in optimizer steps: this step's gradients are not finite */
    FAULT_SPIKE,    /* likewise: its loss is a hundred times too large */
    FAULT_DEVICE,   /* counted in lists run on a GPU: a kernel of this one fails */
    FAULT_OVERFLOW, /* counted in optimizer steps: this step's gradients overflow, its loss does not */
    FAULT_COUNT
} FaultOp;

/* 1 with errno set when this call must fail, else 0. */
int fault_hit(FaultOp op);

/* BRIM_SLOW makes every sample that a loader fills slow, so that tests can starve a run: "sleep:500" waits so
 * many microseconds, as slow storage does, and "work:500" keeps a CPU busy, as decoding does. The log says so
 * once. A malformed value aborts. */
void fault_slow(void);

/* For tests in the same process: the n-th fault_hit(op) from now fails, and all later ones if `onward`. */
void fault_arm(FaultOp op, int64_t n, int onward);
void fault_disarm(void);

#ifdef __cplusplus
}
#endif
#endif
