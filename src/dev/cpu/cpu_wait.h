/* How long the CPU backend's threads wait for each other awake.
 *
 * OpenMP's threads wait at the end of every op: awake for some milliseconds, then asleep. Awake is right
 * where the CPUs are ours: to wake 16 threads for every op costs some per cent of a step. Beside others it is
 * wrong: who waits awake keeps a CPU from the thread he waits for, and every op takes a slice of the
 * scheduler's time (14.6k -> 2.8k tokens/s, 2 threads beside a compiler).
 *
 * OpenMP has no call for it. But libgomp waits awake only briefly while it has more threads than there are
 * CPUs. So a thread of ours keeps a second team that does nothing: while it exists, waits are brief. It is
 * there from the start if others run on our CPUs, goes when for a second nobody took one from us, and comes
 * back when someone does. The kernel tells: how many run, and how long each of our threads was ready to run
 * and did not. */
#ifndef DEV_CPU_CPU_WAIT_H
#define DEV_CPU_CPU_WAIT_H

/* For each open device, with its number of threads, if it has several. libgomp has one setting for the
 * process, so there is one watch for all. A user who set OMP_WAIT_POLICY or GOMP_SPINCOUNT is left alone. */
void cpu_wait_open(int threads);
void cpu_wait_close(int threads);

typedef struct {
    int brief; /* waits are */
    int quiet; /* looks in a row at which nobody was kept waiting */
} CpuWait;

/* Whether waits begin brief, with `running` threads on this machine, the caller among them; 0: not known. */
int cpu_wait_begin(int running, int threads, int cpus);

/* A look: `share` of the time since the last one that the most delayed thread was kept from running. Whether
 * waits are to be brief. */
int cpu_wait_look(CpuWait *w, double share);

#endif
