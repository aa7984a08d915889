/* Buffer: bytes that grow. One thread owns it; it is kept between texts, so nothing is allocated in the long
 * run. */
#ifndef TEXT_BUFFER_H
#define TEXT_BUFFER_H

#include <stddef.h>

typedef struct {
    unsigned char *data;
    size_t         len, cap;
} Buffer;

int  buffer_reserve(Buffer *b, size_t more); /* room for so many bytes behind len; negative after err_set() */
int  buffer_add(Buffer *b, const void *data, size_t n);
void buffer_deinit(Buffer *b);

#endif
