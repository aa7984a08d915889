/* Memory from the heap, for callers that report when there is none. Small pieces that a run cannot do without
 * come from an Arena instead; an Arena aborts when there is no memory.
 *
 * 1. The result is NULL with errno set when there is no memory, or when a test injects that failure
 *    (base/fault.h). The caller says with err_sys() what the memory was for. free() gives the memory back. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void *mem_alloc(size_t size_bytes);
void *mem_zeroed(size_t n, size_t size_bytes); /* n items; never NULL for n == 0 */

#ifdef __cplusplus
}
#endif
#endif
