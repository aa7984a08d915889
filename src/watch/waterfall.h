/* Waterfall: how a run spends its wall time, as shares that add up to 1, from the newest rows of its
 * metrics. */
#ifndef WATCH_WATERFALL_H
#define WATCH_WATERFALL_H

#include "watch/series.h"

enum { WATERFALL_PARTS = 5 };

typedef struct {
    const char *name, *note; /* note: what makes the part large */
    double      share;
} WaterfallPart;

/* Returns how many parts there are; 0 when too little is known. What was not measured is no part of its
 * own. */
int waterfall_of(const Series *s, WaterfallPart out[WATERFALL_PARTS]);

#endif
