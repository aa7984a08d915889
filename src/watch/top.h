/* Top: GPUs and runs on a terminal. */
#ifndef WATCH_TOP_H
#define WATCH_TOP_H

#include <stdio.h>

typedef struct {
    const char *base, *nvml_path;
    int         columns, rows; /* of the one screen of top_once */
} TopOptions;

/* Full screen until q or Ctrl-C. Negative after err_user() (not a terminal, built without ncurses). */
int top_run(const TopOptions *o);
/* One screen as plain text. */
int top_once(const TopOptions *o, FILE *out);

#endif
