#include "text/buffer.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

int buffer_reserve(Buffer *b, size_t more)
{
    if (more <= b->cap - b->len) return 0;
    size_t         cap  = (b->len + more) / 2 * 3 + 256;
    unsigned char *data = realloc(b->data, cap);
    if (!data) return err_sys("a text of %zu bytes", cap);
    b->data = data;
    b->cap  = cap;
    return 0;
}

int buffer_add(Buffer *b, const void *data, size_t n)
{
    TRY(buffer_reserve(b, n));
    if (n > 0) memcpy(b->data + b->len, data, n);
    b->len += n;
    return 0;
}

void buffer_deinit(Buffer *b)
{
    free(b->data);
    *b = (Buffer){ 0 };
}
