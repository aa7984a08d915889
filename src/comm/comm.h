/* Comm: the processes that train one model together, and the messages between them outside the op list.
 *
 * Rank 0 is the hub of a star of TCP connections. The star serves to meet, to hand out NCCL's id, to agree on
 * decisions, and to carry the CPU backend's sums. Gradients on GPUs go through NCCL (dev/cuda/cuda_comm.h).
 *
 * 1. A NULL Comm stands for a process that is alone: every function accepts NULL and does nothing.
 * 2. Collective calls are made by all ranks in the same order with the same sizes. A rank that calls
 *    something else is noticed and named.
 * 3. A sum is taken in the order of ranks and handed out by rank 0: the same bits everywhere.
 * 4. When a rank leaves without comm_close(), the other ranks fail in their next call here. A rank may be
 *    stuck elsewhere, waiting on its GPU for the lost rank. Such a rank is ended with exit code 1 after a
 *    while, so no rank hangs.
 * 5. One thread at a time calls these. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "comm/place.h"
#include "dev/dev.h"

#include <stddef.h>
#include <stdint.h>

typedef struct Comm Comm;

/* How long ranks wait, in seconds. */
typedef struct {
    double meet_s;  /* for all to come */
    double call_s;  /* for a rank to answer within a call: the slowest may be writing a checkpoint */
    double grace_s; /* for this process to end by itself once another one was lost */
} CommWaits;

extern const CommWaits comm_waits; /* 300, 1800, 60 */

/* Finds this process's place and meets the others; *out is NULL when it is alone. BRIM_COMM_TIMEOUT=SECONDS
 * replaces comm_waits.meet_s. Negative after err_user()/err_set() naming ranks, host and port. */
int comm_open(Comm **out);
/* The same for a known place. */
int comm_meet(Comm **out, const Place *place, const CommWaits *waits);

/* Call this after a failure, before anything that may wait for the other ranks (a GPU's collectives and its
 * communicator wait). The other ranks then find that this rank has left. If this process is stuck when
 * another rank is gone, the process is ended, too. Only comm_close(c, 0) may follow. */
void comm_leave(Comm *c);
/* orderly 1: waits until every rank is here. 0: leaves at once, and the others stop. */
void comm_close(Comm *c, int orderly);

int comm_rank(const Comm *c);       /* 0 when alone */
int comm_world(const Comm *c);      /* 1 when alone */
int comm_local_rank(const Comm *c); /* 0 when alone */

/* Collectives on host memory. Negative after err_set() naming the rank that is gone, late or out of step. */

int comm_barrier(Comm *c);
int comm_broadcast(Comm *c, void *buf, size_t size_bytes); /* of rank 0 */
int comm_sum_f64(Comm *c, double *x, int64_t n_elem);
int comm_min_i64(Comm *c, int64_t *x, int64_t n_elem);
int comm_max_i64(Comm *c, int64_t *x, int64_t n_elem);
int comm_all_reduce(Comm *c, DType dtype, void *x, int64_t n_elem);      /* sum in place; f32 or f64 */
int comm_all_gather(Comm *c, void *y, const void *x, size_t part_bytes); /* x may be this rank's part of y */

/* Lets the collectives of a device run over these ranks. Call it before slabs are allocated; close the device
 * before the Comm. It does nothing when the process is alone. Negative after err_set(). */
int comm_attach(Comm *c, Dev *dev);

#endif
