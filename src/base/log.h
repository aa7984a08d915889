/* Log: lines for people on stderr, each with the seconds since the run began, optionally copied to a file.
 *
 * 1. One sink per process, like stderr itself; set once by log_open(), usable before that. Lines from several
 *    threads do not mix.
 * 2. On a terminal one transient status line (the progress bar) may stand below the log; a log line is
 *    printed above it.
 * 3. The one line of a user's error (exit code 2) is not a log line: main prints it bare. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the run's clock. out NULL: stderr. tee NULL: no copy. Both are borrowed until log_close(). */
void log_open(FILE *out, FILE *tee);
void log_close(void); /* removes the status line and forgets the files */

void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

int  log_is_terminal(void); /* 1 when the status line is shown */
int  log_columns(void);     /* the terminal's width; 80 when unknown */
void log_status(
    const char *line); /* draws or redraws the status line, "" removes it; nothing without a terminal */

#ifdef __cplusplus
}
#endif
#endif
