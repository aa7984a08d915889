/* How long the threads of the CPU backend wait for each other without going to sleep.
 *
 * OpenMP's threads wait at the end of every op: awake for some milliseconds, then asleep. If Brim has the
 * CPUs alone, waiting awake is right: waking 16 threads for every op costs some per cent of a step. If other
 * programs run, waiting awake is wrong. A waiting thread then keeps a CPU from the thread it waits for, and
 * every op takes a slice of the scheduler's time (14.6k -> 2.8k tokens/s, 2 threads beside a compiler).
 *
 * OpenMP has no call to change the wait. But libgomp waits awake only briefly while it has more threads than
 * there are CPUs. So one thread of Brim keeps a second team that does nothing: while the second team exists,
 * waits are brief. The second team exists from the start if other programs run on these CPUs. It ends when no
 * other program has taken a CPU for a second, and comes back when one does. The kernel tells how many threads
 * run, and how long each of Brim's threads was ready to run and did not. */
#ifndef DEV_CPU_CPU_WAIT_H
#define DEV_CPU_CPU_WAIT_H

/* For each open device with several threads, with their number. libgomp has one setting for the process, so
 * there is one watch for all. A user who set OMP_WAIT_POLICY or GOMP_SPINCOUNT is left alone. */
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
