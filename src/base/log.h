/* Log: lines for people on stderr, each with the seconds since the run began, copied to a file of the run.
 *
 * 1. The process has one log, as it has one stderr. log_open() sets the log once; the log works before that,
 *    too. Lines from several threads do not mix.
 * 2. On a terminal one transient status line (the progress bar) may stand below the log; a log line is
 *    printed above it.
 * 3. The one line of a user's error (exit code 2) is not a log line: main prints it bare.
 * 4. A failed copy never ends a run. Lines that cannot be written are kept, as many as fit into LOG_KEPT
 *    bytes, and written as soon as writing works. The log reports such a failure once. Lines between
 *    log_open() and log_copy() are kept in the same way.
 * 5. A call prints one line of printable characters. Other bytes, as a file's name may have them, become
 *    '?'. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LOG_KEPT = 1 << 16, /* bytes */
    LOG_MOST = 1 << 24, /* bytes of one copy: a run that warns at every step must not fill the disk */
};

/* Starts the run's clock. out NULL: stderr; borrowed until log_close(). */
void log_open(FILE *out);
void log_close(void); /* removes the status line and forgets the files */

/* From now on every line is also appended to the file at path. The lines since log_open() come first. A
 * second call with another path, or after the file was replaced, goes on in the new file. Call log_copy()
 * only between log_open() and log_close(). */
void log_copy(const char *path);
/* A line for the copy alone: what stands on stderr already. */
void log_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* For a signal handler, before the process ends: the text goes to stderr and to the copy, without a lock. */
void log_last_words(const char *text);

int  log_is_terminal(void); /* 1 when the status line is shown */
int  log_columns(void);     /* the terminal's width; 80 when unknown */
void log_status(
    const char *line); /* draws or redraws the status line, "" removes it; nothing without a terminal */

#ifdef __cplusplus
}
#endif
#endif
