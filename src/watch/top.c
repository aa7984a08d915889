/* Prints one screen as text. term.c draws the same in full-screen form. */
#include "watch/top.h"

#include "base/err.h"
#include "watch/top_draw.h"

#include <stdlib.h>
#include <unistd.h>

int top_once(const TopOptions *o, FILE *out)
{
    Screen   s;
    TopState t  = { 0 };
    Gpus    *g  = (Gpus *)calloc(1, sizeof *g);
    Runs    *r  = (Runs *)calloc(1, sizeof *r);
    int      rc = g && r ? runs_init(r, o->base) : err_sys("memory for the screen");
    if (rc == 0) rc = screen_init(&s, o->columns, o->rows, 0);
    if (rc == 0) {
        gpus_init(g, o->nvml_path);
        runs_refresh(r);
        usleep(200000); /* rates need two readings */
        gpus_refresh(g);
        int     at     = top_selected(r, &t);
        Series *series = at >= 0 ? runs_series(r, r->run[at]) : NULL;
        if (at >= 0 && !series) err_clear();
        top_draw(&s, r, g, &t, series);
        screen_write(&s, out);
        screen_deinit(&s);
        gpus_deinit(g);
        runs_deinit(r);
    }
    free(g);
    free(r);
    return rc;
}
