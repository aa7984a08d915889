/* How much memory this process may use before the system kills something, and how many CPUs.
 *
 * 1. Only this file asks the system. A plan, the loader's threads and checkpoints all use these numbers.
 * 2. Memory: the least of three. What the machine has free; what every control group above this process
 *    leaves; what ulimit -v and -d leave. Control groups may be of version 1 or 2, nested, and in a namespace
 *    of their own.
 * 3. CPUs: the affinity mask, and the quota of every control group above.
 * 4. For tests BRIM_CGROUP names a folder that takes the place of "/" in the search for control groups. The
 *    folder holds proc/self/cgroup, maybe proc/self/mountinfo, and sys/fs/cgroup. */
#ifndef BASE_HOSTMEM_H
#define BASE_HOSTMEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Once, before the first thread: where address space is limited, threads do not reserve more of it than they
 * need. */
void hostmem_begin(void);

size_t hostmem_available(void); /* bytes that may still be taken; 0 when unknown */
size_t hostmem_total(void);     /* of the machine, or the least limit if that is less; 0 when unknown */
int    hostmem_cpus(void);      /* that the calling thread may run on, within the quota; at least 1 */
int    hostmem_quota(void);     /* CPUs that quotas allow, at least 1; INT_MAX without one */

#ifdef __cplusplus
}
#endif
#endif
