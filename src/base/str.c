#include "base/str.h"

#include "base/err.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int str_copy(char *dst, size_t n, const char *src)
{
    size_t len  = strlen(src);
    size_t take = MIN(len, n - 1);
    memcpy(dst, src, take);
    dst[take] = '\0';
    return take == len ? 0 : -1;
}

int str_append(char *dst, size_t n, const char *fmt, ...)
{
    size_t  used = strlen(dst);
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(dst + used, n - used, fmt, ap);
    va_end(ap);
    return len >= 0 && (size_t)len < n - used ? 0 : -1;
}

int str_starts_with(const char *s, const char *prefix) { return strncmp(s, prefix, strlen(prefix)) == 0; }

int str_ends_with(const char *s, const char *suffix)
{
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* Decodes one UTF-8 character of at most n bytes; returns its length, or 0 when it is malformed. */
static int utf8_decode(const unsigned char *s, size_t n, uint32_t *code)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 }; /* smaller: an overlong form */
    int                   len = s[0] < 0x80 ? 1 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
    if (len == 0 || (size_t)len > n || s[0] > 0xf4) return 0;
    uint32_t c = len == 1 ? s[0] : s[0] & (0xffu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
    *code = c;
    return len;
}

/* 0x2028 and 0x2029 are line breaks to YAML; 0xfeff is the byte order mark. */
static int is_printable(uint32_t c)
{
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return 0;
    return c != 0x2028 && c != 0x2029 && c != 0xfeff && c != 0xfffe && c != 0xffff;
}

static int printable_length(const char *s, size_t n)
{
    uint32_t code;
    int      len = utf8_decode((const unsigned char *)s, n, &code);
    return len > 0 && is_printable(code) ? len : 0;
}

int str_is_printable(const char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        int len = printable_length(s + i, n - i);
        if (len == 0) return 0;
        i += (size_t)len;
    }
    return 1;
}

int64_t str_char_begin(const char *s, int64_t at, int64_t n)
{
    int64_t most = MIN(at + 3, n);
    while (at > 0 && at < most && ((unsigned char)s[at] & 0xC0) == 0x80) at++;
    return at;
}

const char *str_quote(char *buf, size_t n, const char *s, size_t len)
{
    CHECK(n >= 8, "quote buffer of %zu bytes", n);
    size_t out = 0, cut = 0; /* cut: where the dots go if the text turns out too long */
    for (size_t i = 0; i < len;) {
        int step = printable_length(s + i, len - i);
        if (out + 4 <= n) cut = out;
        if (out + (size_t)MAX(step, 1) >= n) {
            memcpy(buf + cut, "...", 4);
            return buf;
        }
        if (step > 0) {
            memcpy(buf + out, s + i, (size_t)step);
        } else {
            buf[out] = '?';
        }
        out += (size_t)MAX(step, 1);
        i += (size_t)MAX(step, 1);
    }
    buf[out] = '\0';
    return buf;
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

int str_parse_int(const char *s, int64_t *out)
{
    const char *digit = *s == '-' || *s == '+' ? s + 1 : s;
    if (!isdigit((unsigned char)*digit)) return -1;
    char *end;
    errno       = 0;
    long long v = strtoll(s, &end, 10);
    if (errno != 0 || *end != '\0') return -1;
    *out = v;
    return 0;
}

/* Length of a decimal number at s, 0 when there is none. strtod alone would also take "nan", "0x1p3" and
 * leading space. */
static size_t number_length(const char *s)
{
    const char *p      = s;
    int         digits = 0;
    if (*p == '-' || *p == '+') p++;
    for (; isdigit((unsigned char)*p); p++) digits++;
    if (*p == '.') {
        for (p++; isdigit((unsigned char)*p); p++) digits++;
    }
    if (digits == 0) return 0;
    if (*p == 'e' || *p == 'E') {
        const char *q = p + 1;
        if (*q == '-' || *q == '+') q++;
        if (isdigit((unsigned char)*q)) {
            while (isdigit((unsigned char)*q)) q++;
            p = q;
        }
    }
    return (size_t)(p - s);
}

int str_parse_double(const char *s, double *out)
{
    size_t len = number_length(s);
    if (len == 0 || s[len] != '\0') return -1;
    double v = strtod(s, NULL);
    if (!isfinite(v)) return -1;
    *out = v;
    return 0;
}

int str_parse_size(const char *s, size_t *out)
{
    static const char letters[] = "kmgt";
    size_t            len       = number_length(s);
    if (len == 0) return -1;
    double      v    = strtod(s, NULL);
    const char *unit = s + len;
    if (*unit == ' ') unit++;
    const char *letter = *unit ? strchr(letters, tolower((unsigned char)*unit)) : NULL;
    if (letter) {
        unit++;
        int    decimal = strcasecmp(unit, "b") == 0;
        double base    = decimal ? 1000.0 : 1024.0;
        if (*unit != '\0' && !decimal && strcasecmp(unit, "ib") != 0) return -1;
        v *= pow(base, (double)(letter - letters + 1));
    } else if (*unit != '\0' && strcasecmp(unit, "b") != 0) {
        return -1;
    }
    if (!(v >= 0 && v < 0x1p63)) return -1;
    *out = (size_t)v;
    return 0;
}

int str_parse_bool(const char *s, int *out)
{
    static const char *const words[] = { "false", "true", "off", "on", "no", "yes" };
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        if (strcasecmp(s, words[i]) == 0) {
            *out = i & 1;
            return 0;
        }
    }
    return -1;
}

/* ---- For people ---------------------------------------------------------------------------------------- */

/* Three significant digits: 1.42, 14.2, 142. */
static int decimals(double v) { return v < 9.995 ? 2 : v < 99.95 ? 1 : 0; }

int str_unescape(char *buf, size_t n, const char *s)
{
    static const char named[] = "ntr\\", is[] = "\n\t\r\\";
    size_t            len = 0;
    for (; *s && len + 1 < n; s++) {
        const char *found = *s == '\\' && s[1] ? strchr(named, s[1]) : NULL;
        if (*s == '\\' && !found) return -1;
        buf[len++] = found ? is[found - named] : *s;
        s += found != NULL;
    }
    buf[len] = '\0';
    return *s ? -1 : 0;
}

int64_t str_parse_ids(const char *s, size_t n, const char *between, int64_t limit, int32_t *id,
                      const char **bad)
{
    int64_t count = 0;
    for (size_t i = 0; i < n;) {
        if (s[i] && strchr(between, s[i])) {
            i++;
            continue;
        }
        int64_t v     = 0;
        size_t  begin = i;
        while (i < n && s[i] >= '0' && s[i] <= '9' && v < limit) v = v * 10 + (s[i++] - '0');
        *bad = s + begin;
        if (i == begin || v >= limit || (i < n && !(s[i] && strchr(between, s[i])))) return -1;
        id[count++] = (int32_t)v;
    }
    return count;
}

const char *str_bytes(char *buf, size_t n, double bytes)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int                      u      = 0;
    for (; fabs(bytes) >= 1023.5 && u < ARRAY_LEN(unit) - 1; u++) bytes /= 1024;
    snprintf(buf, n, "%.*f %s", u == 0 ? 0 : decimals(fabs(bytes)), bytes, unit[u]);
    return buf;
}

const char *str_count(char *buf, size_t n, double count)
{
    static const char *const unit[] = { "", "k", "M", "G", "T", "P" };
    int                      u      = 0;
    for (; fabs(count) >= 999.5 && u < ARRAY_LEN(unit) - 1; u++) count /= 1000;
    int whole = u == 0 && count == floor(count);
    snprintf(buf, n, "%.*f%s", whole ? 0 : decimals(fabs(count)), count, unit[u]);
    return buf;
}

const char *str_duration(char *buf, size_t n, double time_s)
{
    if (!(time_s >= 0 && time_s < 3.6e8)) {
        snprintf(buf, n, "-:--");
        return buf;
    }
    long s = lround(time_s);
    if (s < 3600) {
        snprintf(buf, n, "%ld:%02ld", s / 60, s % 60);
    } else if (s >= 48 * 3600) {
        snprintf(buf, n, "%ldd %ldh", s / 86400, s / 3600 % 24);
    } else {
        snprintf(buf, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    }
    return buf;
}

const char *str_double(char *buf, size_t n, double x)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, n, "%.*g", digits, x);
        if (strtod(buf, NULL) == x) break;
    }
    return buf;
}

const char *str_plural(int64_t n) { return n == 1 ? "" : "s"; }

/* Up to the next space, or all of a short "[--option VALUE]". */
static int word_length(const char *s)
{
    enum { SHORT = 30 };
    const char *end = s[0] == '[' ? strchr(s, ']') : NULL;
    if (!end || end - s > SHORT) end = s;
    return (int)(end - s) + (int)strcspn(end, " ");
}

static int is_inside_char(char c) { return ((unsigned char)c & 0xc0) == 0x80; }

int str_columns(const char *s)
{
    int n = 0;
    for (; *s; s++) n += !is_inside_char(*s);
    return n;
}

void str_print_padded(FILE *out, const char *text, int width)
{
    int n = 0;
    for (; *text && (n < width || is_inside_char(*text)); text++) {
        n += !is_inside_char(*text);
        fputc(*text, out);
    }
    fprintf(out, "%*s", MAX(width - n, 0), "");
}

void str_print_wrapped(FILE *out, const char *text, int column, int indent)
{
    enum { WIDTH = 80 };
    for (int first = 1; *text; first = 0) {
        int gap = (int)strspn(text, " "), n = word_length(text + gap);
        if (!first && column + gap + n > WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
        } else {
            fwrite(text, 1, (size_t)gap, out);
            column += gap;
        }
        fwrite(text + gap, 1, (size_t)n, out);
        column += n;
        text += gap + n;
    }
    fputc('\n', out);
}

/* ---- Comma lists --------------------------------------------------------------------------------------- */

int str_list_next(const char **s, char *buf, size_t n)
{
    const char *p = *s;
    while (*p == ',' || *p == ' ') p++;
    size_t len = strcspn(p, ",");
    *s         = p + len;
    while (len > 0 && p[len - 1] == ' ') len--;
    if (len == 0) return 0;
    if (len >= n) return -1;
    memcpy(buf, p, len);
    buf[len] = '\0';
    return 1;
}

int str_list_has(const char *list, const char *item)
{
    char one[128];
    for (int rc; (rc = str_list_next(&list, one, sizeof one)) != 0;) {
        if (rc > 0 && strcmp(one, item) == 0) return 1;
    }
    return 0;
}

/* ---- Base64 ------------------------------------------------------------------------------------------- */

size_t str_base64(char *out, const void *bytes, size_t n)
{
    static const char    letter[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *b        = (const unsigned char *)bytes;
    char                *p        = out;
    for (size_t i = 0; i < n; i += 3) {
        unsigned x =
            (unsigned)b[i] << 16 | (i + 1 < n ? (unsigned)b[i + 1] << 8 : 0) | (i + 2 < n ? b[i + 2] : 0);
        *p++ = letter[x >> 18];
        *p++ = letter[x >> 12 & 63];
        *p++ = i + 1 < n ? letter[x >> 6 & 63] : '=';
        *p++ = i + 2 < n ? letter[x & 63] : '=';
    }
    *p = '\0';
    return (size_t)(p - out);
}

/* ---- Did you mean -------------------------------------------------------------------------------------- */

enum { EDIT_MAX = 63 };

int str_edit_distance(const char *a, const char *b)
{
    int n = (int)strnlen(a, EDIT_MAX), m = (int)strnlen(b, EDIT_MAX);
    int row[3][EDIT_MAX + 1]; /* row[i % 3][j]: first i characters of a against first j of b */
    for (int i = 0; i <= n; i++) {
        int *now = row[i % 3], *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            if (i == 0) {
                now[j] = j;
                continue;
            }
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            int best = MIN(last[j], now[j - 1]) + 1;
            best     = MIN(best, last[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                tolower((unsigned char)a[i - 2]) == cb) {
                best = MIN(best, before[j - 2] + 1);
            }
            now[j] = best;
        }
    }
    return row[n % 3][m];
}

StrNearest str_nearest_begin(const char *word)
{
    int limit = 1 + (int)strnlen(word, EDIT_MAX) / 4;
    return (StrNearest){ .word = word, .best = NULL, .distance = limit + 1 };
}

void str_nearest_offer_as(StrNearest *s, const char *candidate, const char *best)
{
    int d = str_edit_distance(s->word, candidate);
    /* Replacing every character is no slip. */
    if (d >= s->distance || d >= (int)strlen(candidate)) return;
    s->best     = best;
    s->distance = d;
}

void str_nearest_offer(StrNearest *s, const char *candidate)
{
    str_nearest_offer_as(s, candidate, candidate);
}

const char *str_nearest_hint(const StrNearest *s, const char *list, char *buf, size_t n)
{
    buf[0] = '\0';
    if (s->best) {
        snprintf(buf, n, " (did you mean %s?)", s->best);
    } else if (list) {
        snprintf(buf, n, " (%s)", list);
    }
    return buf;
}
