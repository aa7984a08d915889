#include "base/log.h"

#include "base/clock.h"
#include "base/str.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    FILE           *out; /* NULL: stderr */
    FILE           *tee;
    double          start_s;
    int             terminal; /* of out; -1 until asked */
    char            status[512];
} sink = { .lock = PTHREAD_MUTEX_INITIALIZER, .terminal = -1 };

static const char erase_line[] = "\r\033[K";

static FILE *sink_out(void) { return sink.out ? sink.out : stderr; }

static int sink_is_terminal(void)
{
    if (sink.terminal < 0) {
        const char *term = getenv("TERM");
        int         fd   = fileno(sink_out());
        sink.terminal    = fd >= 0 && isatty(fd) && !(term && strcmp(term, "dumb") == 0);
    }
    return sink.terminal;
}

void log_open(FILE *out, FILE *tee)
{
    pthread_mutex_lock(&sink.lock);
    sink.out       = out;
    sink.tee       = tee;
    sink.start_s   = clock_now_s();
    sink.terminal  = -1;
    sink.status[0] = '\0';
    pthread_mutex_unlock(&sink.lock);
}

void log_close(void)
{
    log_status("");
    pthread_mutex_lock(&sink.lock);
    if (sink.tee) fflush(sink.tee);
    sink.out      = NULL;
    sink.tee      = NULL;
    sink.terminal = -1;
    pthread_mutex_unlock(&sink.lock);
}

static void log_line(const char *mark, const char *fmt, va_list ap)
{
    char text[2048];
    vsnprintf(text, sizeof text, fmt, ap);
    pthread_mutex_lock(&sink.lock);
    double now_s = clock_now_s();
    if (sink.start_s == 0) sink.start_s = now_s;
    FILE *out = sink_out();
    if (sink.status[0]) fputs(erase_line, out);
    fprintf(out, "[%8.2f] %s%s\n", now_s - sink.start_s, mark, text);
    if (sink.status[0]) fputs(sink.status, out);
    fflush(out);
    if (sink.tee) {
        fprintf(sink.tee, "[%8.2f] %s%s\n", now_s - sink.start_s, mark, text);
        fflush(sink.tee); /* a killed run must leave its last lines */
    }
    pthread_mutex_unlock(&sink.lock);
}

void log_info(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line("", fmt, ap);
    va_end(ap);
}

void log_warn(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line("warning: ", fmt, ap);
    va_end(ap);
}

void log_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_line("error: ", fmt, ap);
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
        fputs(sink.status, out);
        fflush(out);
    }
    pthread_mutex_unlock(&sink.lock);
}
