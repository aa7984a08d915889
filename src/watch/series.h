/* Series: metrics.jsonl as columns of numbers, followed while another process writes it.
 *
 * 1. Memory is bounded, however long the run: at most SERIES_KEYS columns and n_cap rows. A full table keeps
 *    every second step row, and from then on only every second line is added (stride). Rows of evaluations
 *    are thinned last. A table that begins near the file's end drops its oldest rows instead.
 * 2. The newest value of every key is kept, even if its row was thinned out.
 * 3. A file that was replaced or became shorter is read anew; `epoch` counts these. A line is skipped if it
 *    is not a JSON object with an integer "step", or if it is longer than SERIES_LINE. */
#ifndef WATCH_SERIES_H
#define WATCH_SERIES_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    SERIES_KEYS  = 96,
    SERIES_NAME  = 40,
    SERIES_LINE  = 1 << 16,
    SERIES_TEXTS = 4,
    SERIES_WORD  = 160,
    SERIES_ROWS  = 8192, /* n_cap for plots */
};

typedef struct {
    char    path[1024];
    int64_t from_end; /* bytes before the end to begin at; below 0: at the beginning */
    off_t   offset;
    dev_t   device;
    ino_t   inode;
    int     epoch;

    int     n_cap, n_row, stride;
    int64_t n_line; /* step lines seen */
    int64_t n_bad;  /* lines passed over */
    int     n_key;
    char    key[SERIES_KEYS][SERIES_NAME];
    double *column[SERIES_KEYS]; /* of n_cap; NAN where a line has no such key */
    double  last[SERIES_KEYS];
    int     n_text; /* keys whose values are text: the newest of each */
    char    text_key[SERIES_TEXTS][SERIES_NAME], text[SERIES_TEXTS][SERIES_WORD];
} Series;

/* from_end: see above. Nothing is read yet. Negative after err_set(). */
int  series_init(Series *s, const char *path, int n_cap, int64_t from_end);
void series_deinit(Series *s);

/* Reads what is new. 1: something was; 0: nothing, also without a file; negative after err_set(). */
int series_follow(Series *s);

/* Takes one line; for tests and fuzzing. 1: a row, 0: passed over. */
int series_line(Series *s, const char *line, size_t n);

/* 1: no curve worth a plot of its own, on page and report: counters, and what other plots have in them. */
int series_is_plain(const char *key);

int         series_find(const Series *s, const char *key);   /* column, -1: none */
double      series_first(const Series *s, const char *key);  /* oldest value that is kept, or NAN */
double      series_last(const Series *s, const char *key);   /* newest value, or NAN */
double      series_step(const Series *s);                    /* updates done: 0 of a file without lines */
const char *series_text(const Series *s, const char *key);   /* newest text, or "" */
double      series_at(const Series *s, int column, int row); /* NAN for column -1 */
/* The lowest, or with larger the highest; that of step 0, of an untrained model, only while there is no
 * other. NAN: none. */
double series_extreme(const Series *s, const char *key, int larger, double *at_step);
double series_mean(const Series *s, const char *key, int n_last); /* of the last n values, or NAN */
/* The steps of the first and the last of these; 0: there is none. */
int series_span(const Series *s, const char *key, int n_last, double *first, double *last);
/* The last n values of a key, oldest first; returns how many there are. */
int series_tail(const Series *s, const char *key, double *out, int n);

#endif
