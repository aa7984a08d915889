/* Scan: a JSON reader for large tables. jansson would build half a million objects for a vocabulary. This
 * reader returns one value after the other and copies nothing but strings.
 *
 * 1. The text is untrusted: every read is checked against its end, depth is limited, strings must be UTF-8.
 * 2. The first error is kept in err.h as "NAME:LINE: what is wrong"; every later call fails, too.
 * 3. Numbers are whole and not negative: these tables have no others. */
#ifndef TEXT_SCAN_H
#define TEXT_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { SCAN_MAX_DEPTH = 64 };

typedef struct {
    const char *name; /* of the file, for messages */
    const char *data; /* the whole text */
    size_t      at, size_bytes;
} Scan;

typedef struct {
    size_t at, size_bytes; /* of a value within data */
} ScanSlice;

void scan_init(Scan *s, const char *name, const char *data, size_t size_bytes);

int scan_blame(const Scan *s, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* always -1 */

/* The first byte of the next value: '{' '[' '"', a digit, 't' 'f' 'n'; negative at the end. */
int scan_peek(Scan *s);

/* Enters an object or array. *more: 1 when it has an item. */
int scan_open(Scan *s, char open, int *more);
/* After an item: *more is 0 when the object or array that ends in `close` ended. */
int scan_more(Scan *s, char close, int *more);

/* Decodes a string into out, which must have room for the rest of the text (strings never grow). Returns the
 * length. */
int64_t scan_string(Scan *s, char *out);
/* The same for a key, with its colon. */
int64_t scan_key(Scan *s, char *out);
/* Copies a short key, cut off where it does not fit. */
int scan_key_short(Scan *s, char *buf, size_t n);
int scan_int(Scan *s, int64_t *out);
/* Passes over any value. */
int scan_skip(Scan *s, ScanSlice *slice);
int scan_end(Scan *s); /* negative when anything but space follows */

#endif
