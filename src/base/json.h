/* Json: a streaming writer for metrics lines and --json output. Reading is jansson's job.
 *
 * 1. Output is always valid JSON: numbers that are not finite become null, bytes that are not UTF-8 become
 *    U+FFFD.
 * 2. No allocation; errors (a full buffer, a failed write) are kept and come out of json_out_end().
 * 3. Functions are named json_out_*, because jansson owns json_*. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { JSON_MAX_DEPTH = 16 };

typedef struct {
    FILE  *file; /* or */
    char  *buf;
    size_t cap, len;
    int    depth;
    char   close[JSON_MAX_DEPTH];    /* '}' or ']' */
    int    has_item[JSON_MAX_DEPTH]; /* a comma is due */
    int    failed;
} JsonOut;

void json_out_init_file(JsonOut *o, FILE *file);           /* borrows file */
void json_out_init_buf(JsonOut *o, char *buf, size_t cap); /* buf is kept terminated */

/* key is NULL inside an array and at the top. */
void json_out_object(JsonOut *o, const char *key); /* opens */
void json_out_array(JsonOut *o, const char *key);  /* opens */
void json_out_close(JsonOut *o);                   /* the innermost open one */
void json_out_num(JsonOut *o, const char *key, double x);
void json_out_int(JsonOut *o, const char *key, int64_t x);
void json_out_str(JsonOut *o, const char *key, const char *s); /* NULL: null */
void json_out_bool(JsonOut *o, const char *key, int x);

/* Closes whatever is open and, to a file, ends the line and flushes. Negative after err_set(). */
int json_out_end(JsonOut *o);

#ifdef __cplusplus
}
#endif
#endif
