/* Cpus: the processors this process may use, and whether others use them too. */
#ifndef BASE_CPUS_H
#define BASE_CPUS_H

/* As affinity and OMP_NUM_THREADS allow (through OpenMP), and a container's quota, which OpenMP does not know: spinning on
 * more threads than the quota allows is several times slower. */
int cpus_usable(void);

/* Whether a thread on each CPU that OpenMP would take gets in someone's way: more is running on this machine than the
 * other CPUs can carry, or a quota holds this process to fewer. Looks for some milliseconds where something is running. */
int cpus_shared(void);

#endif
