#define _GNU_SOURCE /* PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP */
#include "base/log.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock; /* recursive: a fault that a test injects into the copy is itself a line of it */
    FILE           *out;  /* NULL: stderr */
    double          start_s;
    int             terminal; /* of out; -1 until asked */
    char            status[512];
} sink = { .lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, .terminal = -1 };

/* The copy, under the same lock. */
static struct {
    int    is_open; /* between log_open() and log_close() */
    int    fd;      /* valid while path is not empty */
    char   path[1100];
    char   kept[LOG_KEPT]; /* whole lines and the rest of one, not in the file yet */
    size_t n_kept;
    size_t n_written; /* into the file at path */
    long   n_lost;    /* lines that did not fit into kept */
    int    failing, flushing;
} copy;

static const char erase_line[] = "\r\033[K";

static FILE *sink_out(void) { return sink.out ? sink.out : stderr; }

static int sink_is_terminal(void)
{
    if (sink.terminal < 0) {
        const char *term = getenv("TERM");
        int         fd   = fileno(sink_out());
        sink.terminal    = fd >= 0 && isatty(fd) && term && *term && strcmp(term, "dumb") != 0;
    }
    return sink.terminal;
}

/* ---- The copy ------------------------------------------------------------------------------------------ */

static void copy_keep(const char *line)
{
    size_t n = strlen(line);
    if (!copy.is_open) return;
    if (copy.n_kept + n > sizeof copy.kept) {
        copy.n_lost++;
        return;
    }
    memcpy(copy.kept + copy.n_kept, line, n);
    copy.n_kept += n;
}

static int copy_write(void)
{
    while (copy.n_kept > 0) {
        ssize_t n = fault_hit(FAULT_WRITE) ? -1 : write(copy.fd, copy.kept, copy.n_kept);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        copy.n_kept -= (size_t)n; /* what is left of a line goes on where it stopped */
        copy.n_written += (size_t)n;
        memmove(copy.kept, copy.kept + n, copy.n_kept);
    }
    return 0;
}

static void copy_end(void)
{
    if (copy.path[0]) close(copy.fd);
    copy.path[0] = '\0';
}

static void copy_flush(void)
{
    char line[128];
    if (!copy.path[0] || copy.flushing) return;
    copy.flushing = 1;
    if (copy_write() < 0) {
        int cause = errno;
        if (!copy.failing) log_warn("%s: %s (lines are kept and tried again)", copy.path, strerror(cause));
        copy.failing = 1;
    } else if (copy.n_lost > 0) {
        snprintf(line, sizeof line, "warning: %ld lines are missing here\n", copy.n_lost);
        copy_keep(line);
        copy.n_lost  = 0;
        copy.failing = copy_write() < 0;
    } else {
        copy.failing = 0;
    }
    if (copy.n_written >= LOG_MOST) {
        snprintf(line, sizeof line, "warning: %d MiB by one start: no more lines are written here\n",
                 LOG_MOST >> 20);
        copy_keep(line);
        copy_write(); /* the last attempt */
        copy_end();
        copy.is_open = 0;
    }
    copy.flushing = 0;
}

void log_copy(const char *path)
{
    pthread_mutex_lock(&sink.lock);
    char why[1400];
    int  fd = file_open_own(path, O_WRONLY | O_CREAT | O_APPEND, why, sizeof why);
    if (fd < 0) {
        log_warn("%s (%s)", why,
                 copy.path[0] ? "going on with the file that was open" : "no copy of this log");
    } else if (!copy.is_open) {
        close(fd);
    } else {
        copy_end();
        copy.fd        = fd;
        copy.n_written = 0;
        str_copy(copy.path, sizeof copy.path, path);
        copy_flush();
    }
    pthread_mutex_unlock(&sink.lock);
}

void log_last_words(const char *text)
{
    ssize_t n = write(STDERR_FILENO, text, strlen(text));
    if (copy.path[0]) n = write(copy.fd, text, strlen(text));
    (void)n;
}

/* ---- Lines --------------------------------------------------------------------------------------------- */

void log_open(FILE *out)
{
    pthread_mutex_lock(&sink.lock);
    sink.out       = out;
    sink.start_s   = clock_now_s();
    sink.terminal  = -1;
    sink.status[0] = '\0';
    copy_end();
    copy.is_open = 1;
    copy.n_kept  = 0;
    copy.n_lost  = 0;
    copy.failing = 0;
    pthread_mutex_unlock(&sink.lock);
}

void log_close(void)
{
    log_status("");
    pthread_mutex_lock(&sink.lock);
    copy_flush();
    copy_end();
    copy.is_open  = 0;
    sink.out      = NULL;
    sink.terminal = -1;
    pthread_mutex_unlock(&sink.lock);
}

/* Cut where the terminal ends, which may be narrower by now: what wraps cannot be erased. */
static void put_status(FILE *out) { fprintf(out, "%.*s", log_columns() - 1, sink.status); }

/* seen 0: for the copy alone. */
static void log_line(int seen, const char *mark, const char *fmt, va_list ap)
{
    char text[2048], safe[2048], line[2100];
    vsnprintf(text, sizeof text, fmt, ap);
    str_quote(safe, sizeof safe, text, strlen(text)); /* names of files may hold escapes and line breaks */
    pthread_mutex_lock(&sink.lock);
    double now_s = clock_now_s();
    if (sink.start_s == 0) sink.start_s = now_s;
    snprintf(line, sizeof line, "[%8.2f] %s%s\n", now_s - sink.start_s, mark, safe);
    FILE *out = sink_out();
    if (seen && sink.status[0]) fputs(erase_line, out);
    if (seen) fputs(line, out);
    if (seen && sink.status[0]) put_status(out);
    if (seen) fflush(out);
    copy_keep(line);
    copy_flush(); /* at once: a killed run must leave its last lines */
    pthread_mutex_unlock(&sink.lock);
}

void log_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line(0, "", fmt, ap);
    va_end(ap);
}

void log_info(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line(1, "", fmt, ap);
    va_end(ap);
}

void log_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line(1, "warning: ", fmt, ap);
    va_end(ap);
}

void log_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line(1, "error: ", fmt, ap);
    va_end(ap);
}

int log_is_terminal(void)
{
    pthread_mutex_lock(&sink.lock);
    int yes = sink_is_terminal();
    pthread_mutex_unlock(&sink.lock);
    return yes;
}

int log_columns(void)
{
    struct winsize size;
    pthread_mutex_lock(&sink.lock);
    int fd = fileno(sink_out());
    pthread_mutex_unlock(&sink.lock);
    return fd >= 0 && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void log_status(const char *line)
{
    pthread_mutex_lock(&sink.lock);
    if (sink_is_terminal() && (sink.status[0] || *line)) {
        str_copy(sink.status, sizeof sink.status, line);
        FILE *out = sink_out();
        fputs(erase_line, out);
        put_status(out);
        fflush(out);
    }
    pthread_mutex_unlock(&sink.lock);
}
