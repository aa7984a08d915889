/* Utf8: stepping through UTF-8 that may be malformed, and the byte alphabet of byte-level vocabularies.
 *
 * 1. Nothing here reads past the given end.
 * 2. Well-formed means what Unicode says: no overlong forms, no surrogates, nothing above U+10FFFF.
 * 3. Byte-level files write every byte as one printable character: the printable Latin-1 bytes as themselves,
 *    the other 68 as U+0100 to U+0143. */
#ifndef TEXT_UTF8_H
#define TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed character at p (n bytes are there), 0 when it is malformed; *code is set. */
int utf8_next(const unsigned char *p, size_t n, uint32_t *code);

/* Bytes of the longest well-formed beginning of p. *unusual: 1 when it has a character whose class PCRE2 does
 * not know as Unicode 16 does (unicode.h). */
size_t utf8_valid(const unsigned char *p, size_t n, int *unusual);

int utf8_put(unsigned char *out, uint32_t code); /* writes 1 to 4 bytes, returns how many */

/* How many bytes at the end of p begin a character that is not complete yet: 0 to 3. */
size_t utf8_pending(const unsigned char *p, size_t n);

/* 1 for characters with the property White_Space. */
int utf8_is_space(uint32_t code);

/* ---- byte alphabet ---- */
uint32_t utf8_byte_char(unsigned char byte); /* the character that stands for byte */
int      utf8_char_byte(uint32_t code);      /* the byte that a character stands for, -1: none */

/* Text in the byte alphabet to bytes; out may be p. Returns the length, -1 when a character stands for no
 * byte. */
int64_t utf8_from_alphabet(const unsigned char *p, size_t n, unsigned char *out);
/* Bytes to text in the byte alphabet; out holds 2 n bytes. Returns the length. */
size_t utf8_to_alphabet(const unsigned char *p, size_t n, unsigned char *out);

#endif
