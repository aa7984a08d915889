/* Errors: bugs abort, the world returns -1 with one line of text.
 *
 * 1. CHECK is for bugs in Brim. It is never compiled out and never has side effects.
 * 2. A function that can fail because of the world returns a negative int (or NULL) after err_set().
 * 3. The message is per thread; the first cause wins until err_clear(), so cleanup cannot hide it.
 * 4. ERR_USER marks wrong input (exit code 2); everything else is ERR_RUN (exit code 1). */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { ERR_NONE = 0, ERR_RUN = 1, ERR_USER = 2 } ErrKind;

/* Records a failure of the run; always returns -1. Keeps the earlier message if one is pending. */
int err_set(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The same with ": strerror(errno)" appended. */
int err_sys(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Records wrong input by the user (exit code 2); always returns -1. */
int err_user(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

const char *err_get(void);  /* the pending message, or "" */
ErrKind     err_kind(void); /* its kind, ERR_NONE when nothing is pending */
void        err_clear(void);

/* Prints file, line and message, then aborts. */
void err_abort(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) err_abort(__FILE__, __LINE__, #cond, __VA_ARGS__);                                      \
    } while (0)

#define TRY(call)                                                                                            \
    do {                                                                                                     \
        if ((call) < 0) return -1;                                                                           \
    } while (0)

#define ARRAY_LEN(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define MIN(a, b)    ((a) < (b) ? (a) : (b))
#define MAX(a, b)    ((a) > (b) ? (a) : (b))

static inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

#ifdef __cplusplus
}
#endif
#endif
