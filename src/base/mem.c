#include "base/mem.h"

#include "base/fault.h"

#include <stdlib.h>

void *mem_alloc(size_t size_bytes)
{
    return fault_hit(FAULT_MALLOC) ? NULL : malloc(size_bytes ? size_bytes : 1);
}

void *mem_zeroed(size_t n, size_t size_bytes)
{
    return fault_hit(FAULT_MALLOC) ? NULL : calloc(n ? n : 1, size_bytes);
}
