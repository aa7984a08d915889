/* Fault: makes the n-th call of one kind fail, so that tests can walk every failure path.
 *
 * 1. Nothing fails unless the environment has BRIM_FAULT="op:n" (the n-th call fails, counting from 1),
 *    "op:n+" (that one and all later ones), "op:n-m" (the n-th to the m-th) or a comma list of these for
 *    different ops, or a test called fault_arm(). A malformed BRIM_FAULT aborts: a test that injects nothing
 *    would pass for the wrong reason. For the same reason a fault from the environment says so on stderr and
 *    in the log.
 * 2. The code under test asks fault_hit() just before the real call, and only where it reports failure to its
 *    caller.
 * 3. State is one per process, since the environment is; counting is atomic. Unset, a call costs one load. */
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
    FAULT_NAN,    /* counted in optimizer steps: this step's gradients are not finite */
    FAULT_SPIKE,  /* likewise: its loss is a hundred times too large */
    FAULT_DEVICE, /* counted in lists run on a GPU: a kernel of this one fails */
    FAULT_COUNT
} FaultOp;

/* 1 with errno set when this call must fail, else 0. */
int fault_hit(FaultOp op);

/* For tests in the same process: the n-th fault_hit(op) from now fails, and all later ones if `onward`. */
void fault_arm(FaultOp op, int64_t n, int onward);
void fault_disarm(void);

#ifdef __cplusplus
}
#endif
#endif
