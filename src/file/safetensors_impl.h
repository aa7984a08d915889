/* What the reader and the writer of safetensors share. Not for others. */
#ifndef FILE_SAFETENSORS_IMPL_H
#define FILE_SAFETENSORS_IMPL_H

#include "tensor/tensor.h"

extern const char *const safetensors_dtype[DT_COUNT]; /* names in the file */

#endif
