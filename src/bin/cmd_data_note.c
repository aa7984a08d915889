#include "bin/cmd_data.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NOTE_UNIT = 1 << 20 }; /* bars of bytes count in MiB */

static void begin_bar(DataNote *n, const char *what, int64_t all)
{
    if (n->what && strcmp(n->what, what) == 0) return;
    data_note_end(n);
    progress_begin(&n->bar, what, "bytes/s", 0, all);
    n->what    = what;
    n->begin_s = clock_now_s();
}

/* A pipe has no end that is known: no bar, only how much came. */
static void note_pipe(DataNote *n, int64_t done)
{
    static const double every_s[2] = { 5, 0.2 };
    char                size[32], rate[32], text[96];
    double              now_s = clock_now_s();
    if (n->begin_s == 0) n->begin_s = n->shown_s = now_s;
    if (now_s - n->shown_s < every_s[log_is_terminal()]) return;
    n->shown_s = now_s;
    snprintf(text, sizeof text, "%s of text read, %s/s", str_bytes(size, sizeof size, (double)done),
             str_bytes(rate, sizeof rate, (double)done / (now_s - n->begin_s)));
    if (log_is_terminal()) {
        log_status(text);
    } else {
        log_info("%s", text);
    }
}

void data_note_bytes(void *arg, int64_t done, int64_t all)
{
    DataNote *n = arg;
    if (all == 0) note_pipe(n, done);
    if (all < NOTE_UNIT) return;
    begin_bar(n, "MiB of text", all / NOTE_UNIT);
    double per_s = (double)done / MAX(clock_now_s() - n->begin_s, 1e-3);
    progress_update(&n->bar, MIN(done, all) / NOTE_UNIT, NAN, per_s, NOTE_UNIT / per_s);
}

void data_note_count(void *arg, const char *what, int64_t done, int64_t all)
{
    DataNote *n = arg;
    begin_bar(n, what, all);
    double per_s = (double)done / MAX(clock_now_s() - n->begin_s, 1e-3);
    progress_update(&n->bar, done, NAN, NAN, 1 / per_s);
}

void data_note_end(DataNote *n)
{
    if (n->what) {
        progress_end(&n->bar);
    } else if (n->begin_s > 0 && log_is_terminal()) {
        log_status("");
    }
    n->what    = NULL;
    n->begin_s = 0;
}
