/* Unicode: where the libraries at hand and the tokenizers that models were trained with differ.
 *
 * 1. Pre-tokenizer patterns use the classes of Unicode 16. PCRE2 10.42 knows Unicode 14 and counts U+180E as
 *    white space. unicode_class() lists what a class lacks.
 * 2. Normal forms follow Unicode 9, because the Rust crate behind tokenizer.json does. utf8proc knows Unicode
 *    15. unicode_is_late_mark() names the combining marks that count as plain letters.
 * 3. Both tables were compared with the reference tokenizer for every code point. */
#ifndef TEXT_UNICODE_H
#define TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

/* 1: a pattern must use the patched classes for text with this character. */
int unicode_is_unusual(uint32_t code);

/* Appends the ranges ("\x{897}\x{10d40}-\x{10d49}") that class `name` ("L", "Lu") lacks; "" for others.
 * Returns the length, or negative when they do not fit. */
int unicode_class(const char *name, char *buf, size_t n);

/* 1: a mark that Unicode 9 did not know. */
int unicode_is_late_mark(uint32_t code);

#endif
