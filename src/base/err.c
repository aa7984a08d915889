#include "base/err.h"

#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Per thread, because a loader thread must be able to fail without garbling the trainer's message. */
static _Thread_local char    err_text[1024];
static _Thread_local ErrKind err_pending = ERR_NONE;

static int err_vset(ErrKind kind, const char *fmt, va_list ap, int errnum)
{
    if (err_pending != ERR_NONE) return -1;
    int n = vsnprintf(err_text, sizeof err_text, fmt, ap);
    if (errnum != 0 && n >= 0 && (size_t)n < sizeof err_text) {
        snprintf(err_text + n, sizeof err_text - (size_t)n, ": %s", strerror(errnum));
    }
    err_pending = kind;
    return -1;
}

int err_set(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_vset(ERR_RUN, fmt, ap, 0);
    va_end(ap);
    return -1;
}

int err_sys(const char *fmt, ...)
{
    int     errnum = errno;
    va_list ap;
    va_start(ap, fmt);
    err_vset(ERR_RUN, fmt, ap, errnum);
    va_end(ap);
    return -1;
}

int err_user(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_vset(ERR_USER, fmt, ap, 0);
    va_end(ap);
    return -1;
}

const char *err_get(void) { return err_pending == ERR_NONE ? "" : err_text; }

ErrKind err_kind(void) { return err_pending; }

void err_clear(void)
{
    err_pending = ERR_NONE;
    err_text[0] = '\0';
}

void err_abort(const char *file, int line, const char *cond, const char *fmt, ...)
{
    char    text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fflush(stdout);
    fprintf(stderr, "brim: bug: %s:%d: %s: %s\n", file, line, cond, text);
    log_note("bug: %s:%d: %s: %s", file, line, cond, text);
    abort();
}
