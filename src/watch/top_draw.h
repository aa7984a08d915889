/* Top_draw: the terminal view as a pure function of what was read. */
#ifndef WATCH_TOP_DRAW_H
#define WATCH_TOP_DRAW_H

#include "watch/gpus.h"
#include "watch/runs.h"
#include "watch/screen.h"

typedef enum { TOP_OVERVIEW, TOP_RUN, TOP_GPUS, TOP_HELP, TOP_VIEWS } TopView;

typedef struct {
    TopView view;
    char    selected[RUNS_NAME]; /* name of the run, "" for the first */
} TopState;

/* Which run is selected; -1 when there is none. */
int top_selected(const Runs *r, const TopState *t);
/* Moves the selection by so many runs. */
void top_move(const Runs *r, TopState *t, int by);
/* s: the selected run's series, or NULL. */
void top_draw(Screen *s, const Runs *r, const Gpus *g, const TopState *t, const Series *series);

#endif
