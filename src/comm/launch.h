/* Launch: starts the processes of one run on this machine, one a GPU, where no other launcher does.
 *
 * 1. Each process gets this program's own arguments, and its place in BRIM_RANK, BRIM_WORLD_SIZE,
 *    BRIM_LOCAL_RANK and BRIM_MASTER_PORT (comm/place.h).
 * 2. Rank 0 has the terminal. What another rank says is kept, and shown only if rank 0 does not say why the
 *    run failed.
 * 3. Ctrl-C reaches all processes by itself. A signal that somebody sends to the launcher is passed on. If
 *    the launcher is killed, each process gets SIGTERM, which saves and stops.
 * 4. A rank that fails ends the others by their own connections (comm/comm.h). Ranks that outlive rank 0 by
 *    some seconds are killed. */
#ifndef COMM_LAUNCH_H
#define COMM_LAUNCH_H

/* How the ranks of a run are started. */
typedef struct {
    int          n;
    char *const *argv;   /* program's name and arguments, ends with NULL */
    int          divide; /* 1: ranks compute on CPUs, and each gets its part of them */
} Launch;

/* Returns the run's exit code: 0 when all ranks ended with 0. Negative after err_set() when not all ranks
 * could be started; none is left then. */
int launch_ranks(const Launch *l);

#endif
