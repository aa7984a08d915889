/* How much host memory this process may still take before something is killed. */
#ifndef BASE_HOSTMEM_H
#define BASE_HOSTMEM_H

#include <stddef.h>

/* The machine's available bytes, or what is left of a container's or batch job's limit if that is less; 0
 * when unknown. */
size_t hostmem_available(void);

#endif
