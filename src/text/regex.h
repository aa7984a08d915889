/* Regex: patterns of pre-tokenizers, through PCRE2 with its just-in-time compiler.
 *
 * 1. Patterns are written for Oniguruma. regex_compile() translates where the two differ, and refuses what
 *    PCRE2 lacks (classes within classes, &&).
 * 2. A pattern is compiled twice: as it stands, and with the classes of Unicode 16 spelled out. The second is
 *    slower and is used only for text that needs it (utf8_valid() tells).
 * 3. Text must be well-formed UTF-8. The work of one search is limited, so a bad pattern fails instead of
 *    hanging.
 * 4. Regex is constant once compiled; RegexScratch belongs to one thread. */
#ifndef TEXT_REGEX_H
#define TEXT_REGEX_H

#include <stddef.h>
#include <stdint.h>

typedef struct Regex        Regex;
typedef struct RegexScratch RegexScratch;

/* literal: the pattern is plain text. NULL after err_user(); `where` begins the message. */
Regex *regex_compile(const char *where, const char *pattern, size_t len, int literal);
void   regex_destroy(Regex *r);

RegexScratch *regex_scratch_create(void); /* NULL after err_set() */
void          regex_scratch_destroy(RegexScratch *s);
/* To be called once for each text: restarts the limit on work. */
void regex_begin(RegexScratch *s, size_t size_bytes);

typedef struct {
    const unsigned char *p;
    size_t               n;
    int                  unusual; /* utf8_valid() */
} RegexText;

typedef struct {
    size_t begin, end;
} RegexMatch;

/* The next match that is not empty, at or after `from`: 1, 0: none, negative after err_set(). */
int regex_next(const Regex *r, RegexScratch *s, const RegexText *text, size_t from, RegexMatch *m);

#endif
