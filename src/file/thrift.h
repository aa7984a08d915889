/* Thrift: reads structures in Thrift's compact protocol, in which a Parquet file describes itself.
 *
 * 1. Nothing in the bytes is trusted. A number, a length or a structure that does not fit sets `bad`; all
 *    that is read afterwards is 0, so a reader checks once, at its end.
 * 2. No memory is taken: binary values point into the bytes. */
#ifndef FILE_THRIFT_H
#define FILE_THRIFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    THRIFT_STOP   = 0,
    THRIFT_TRUE   = 1,
    THRIFT_FALSE  = 2,
    THRIFT_BYTE   = 3,
    THRIFT_I16    = 4,
    THRIFT_I32    = 5,
    THRIFT_I64    = 6,
    THRIFT_DOUBLE = 7,
    THRIFT_BINARY = 8,
    THRIFT_LIST   = 9,
    THRIFT_SET    = 10,
    THRIFT_MAP    = 11,
    THRIFT_STRUCT = 12,
    THRIFT_UUID   = 13
} ThriftType;

typedef struct {
    const uint8_t *p, *end;
    int            bad;
} Thrift;

/* Goes on to the next field of a structure: *id, 0 before the first, becomes the field's number. Its type;
 * THRIFT_STOP at the structure's end and in bad bytes. The caller then reads or skips the value. */
ThriftType thrift_field(Thrift *t, int *id);

/* The value of a field of that type. Another type than the wanted one is bad. */
int64_t        thrift_int(Thrift *t, ThriftType type);                 /* any integer type */
const uint8_t *thrift_binary(Thrift *t, ThriftType type, size_t *n);   /* never NULL */
int64_t        thrift_list(Thrift *t, ThriftType type, ThriftType of); /* number of elements that follow */
void           thrift_want(Thrift *t, ThriftType type, ThriftType want);
void           thrift_skip(Thrift *t, ThriftType type);

/* Numbers in 7-bit groups, lowest first, as other parts of Parquet have them, too. */
uint64_t thrift_varint(Thrift *t);
int64_t  thrift_zigzag(Thrift *t);

#ifdef __cplusplus
}
#endif
#endif
