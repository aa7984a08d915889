/* What this process may use of the computer: memory before something is killed, and CPUs.
 *
 * 1. The one place that asks. A plan, the loader's threads and checkpoints all go by these numbers.
 * 2. Memory: what the machine has free, what is left under every control group above this process (version 1
 *    and 2, nested, with or without a namespace of its own), and what ulimit -v and -d leave.
 * 3. CPUs: the affinity mask, and the quota of every control group above.
 * 4. For tests BRIM_CGROUP names a folder that stands for "/" when control groups are looked for: it holds
 *    proc/self/cgroup, maybe proc/self/mountinfo, and sys/fs/cgroup. */
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
