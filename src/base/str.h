/* Str: bounded text, strict number parsing, sizes and counts for people, and "did you mean".
 *
 * 1. Nothing here allocates; results go into the caller's buffer, always terminated.
 * 2. Parsers accept the whole string or nothing. They assume the "C" numeric locale: Brim never sets another.
 * 3. K, M, G, T (and KiB ... TiB) are powers of 1024, KB ... TB powers of 1000. */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

int str_copy(char *dst, size_t n, const char *src); /* negative when it did not fit (dst holds what did) */
int str_append(char *dst, size_t n, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* the same */
int str_starts_with(const char *s, const char *prefix);
int str_ends_with(const char *s, const char *suffix);

/* 1 when s is UTF-8 of printable characters only: no controls, no line breaks, nothing YAML refuses. */
int str_is_printable(const char *s);

/* The first place at or behind `at`, at most n, where no character of UTF-8 is cut. Of bytes that are no
 * UTF-8: at most three places on. */
int64_t str_char_begin(const char *s, int64_t at, int64_t n);

/* Copies untrusted text into one safe line of at most n-1 bytes: unprintable bytes become '?', long text ends
 * in "...". Returns buf. */
const char *str_quote(char *buf, size_t n, const char *s, size_t len);

/* ---- Numbers: 0, or negative when s is not exactly one number (no message). ---------------------------- */
int str_parse_int(const char *s, int64_t *out);   /* [+-]digits, in range */
int str_parse_double(const char *s, double *out); /* decimal, optional exponent; finite */
int str_parse_size(const char *s, size_t *out);   /* 1024, 60G, 1.5TiB, 80GB */
int str_parse_bool(const char *s, int *out);      /* true/false, on/off, yes/no */

/* Text of a command line: \n, \t, \r and \\ become what they stand for. Negative: another escape, or no
 * room. */
int str_unescape(char *buf, size_t n, const char *s);
/* Whole numbers from 0 to limit - 1, with any of `between` around them, into id (room: n / 2 + 1). Returns
 * how many; negative when there is something else, which begins at *bad. */
int64_t str_parse_ids(const char *s, size_t n, const char *between, int64_t limit, int32_t *id,
                      const char **bad);

/* ---- For people; each returns buf. --------------------------------------------------------------------- */
const char *str_bytes(char *buf, size_t n, double bytes);     /* "1.42 GiB" */
const char *str_count(char *buf, size_t n, double count);     /* "553k", "1.31M" */
const char *str_duration(char *buf, size_t n, double time_s); /* "0:42", "1:02:03", "11d 19h" */
const char *str_double(char *buf, size_t n, double x);        /* shortest text that reads back to x */
const char *str_plural(int64_t n);                            /* "", or "s" unless n is 1 */

/* Characters of UTF-8 text, which is how many columns most of them take. */
int str_columns(const char *s);
/* Prints at most `width` characters of text, and spaces up to there. */
void str_print_padded(FILE *out, const char *text, int width);
/* Prints text in lines of at most 80 columns, broken at spaces, and ends the last one. The first line goes on
 * at `column`, the others begin at `indent`. A word that is too long has a line of its own. */
void str_print_wrapped(FILE *out, const char *text, int column, int indent);

/* ---- Comma lists --------------------------------------------------------------------------------------- */
/* Copies the next item of the list at *s (spaces around it dropped) into buf and moves *s on; 0 at the end,
 * 1 for an item, negative when the item does not fit. */
int str_list_next(const char **s, char *buf, size_t n);
int str_list_has(const char *list, const char *item);

/* ---- Base64 ------------------------------------------------------------------------------------------- */
/* n bytes as letters into out, which has room for (n + 2) / 3 * 4 + 1. Returns how many there are before the
 * terminator. */
size_t str_base64(char *out, const void *bytes, size_t n);

/* ---- Did you mean -------------------------------------------------------------------------------------- */
/* Insertions, deletions, replacements and swaps of neighbours, ignoring case; looks at the first 63 bytes. */
int str_edit_distance(const char *a, const char *b);

/* Finds the candidate nearest to word. Begin, then offer each candidate; then .best is the nearest one, or
 * NULL if none is near enough to be a likely slip (one edit, plus one for every four characters). Pointers
 * are borrowed. */
typedef struct {
    const char *word;
    const char *best;
    int         distance;
} StrNearest;

StrNearest str_nearest_begin(const char *word);
void       str_nearest_offer(StrNearest *s, const char *candidate);
/* The same, suggesting `best` when `candidate` is near. */
void str_nearest_offer_as(StrNearest *s, const char *candidate, const char *best);
/* What stands behind "WORD: no such KIND", as every message has it: " (did you mean X?)", or " (LIST)" where
 * nothing is near, or "" if list is NULL. Returns buf. */
const char *str_nearest_hint(const StrNearest *s, const char *list, char *buf, size_t n);

#ifdef __cplusplus
}
#endif
#endif
