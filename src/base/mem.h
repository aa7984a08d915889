/* Memory from the heap whose absence the caller reports. What a run cannot do without in small pieces comes
 * from an Arena instead, which aborts.
 *
 * 1. NULL with errno set when there is none, or when a test injects that (base/fault.h); the caller says what
 *    the memory was for with err_sys(). free() gives it back. */
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
