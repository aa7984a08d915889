/* Sampleview: the newest samples of a run (watch/samples.h), for the page and the report.
 *
 * 1. samples.jsonl is read from its end: memory is bounded however long it is.
 * 2. A picture's name must be one that samples.c writes. The picture becomes a data: address, so no request
 *    names a file. */
#ifndef WATCH_SAMPLEVIEW_H
#define WATCH_SAMPLEVIEW_H

#include "base/json.h"
#include "watch/runs.h"

/* PICTURES: bytes of all pictures together; older samples go without. */
enum { SAMPLEVIEW_PICTURES = 2 << 20, SAMPLEVIEW_MOST = 8, SAMPLEVIEW_PICTURE = 1 << 20 };

typedef struct {
    double step;
    char  *prompt, *text; /* NULL: none */
    char  *image;         /* "data:image/png;base64,..."; NULL: none */
} SampleView;

/* Newest first. Returns how many; the caller frees them. */
int  sampleview_read(const Runs *r, const RunView *v, SampleView out[SAMPLEVIEW_MOST]);
void sampleview_free(SampleView *s, int n);

/* "samples": [...], if one of them is of this step or a later one. */
void sampleview_put(JsonOut *o, const Runs *r, const RunView *v, double from);

/* "data:TYPE;base64,..." of some bytes; the caller frees it. NULL: no memory. */
char *sampleview_address(const char *type, const unsigned char *bytes, size_t n);

/* 1: a name that samples.c gives a picture. */
int sampleview_name_ok(const char *name);

#endif
