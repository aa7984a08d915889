/* Samples: what the model writes, sees or plays while it trains (watch.samples). The task itself makes them:
 * its `sample`, or its `play`, where it has that alone.
 *
 * 1. A sample is a line of samples.jsonl: {"step","prompt","text"}, and "picture", the name of a file in the
 *    folder samples/ of the run, where the task drew one.
 * 2. TensorBoard gets the text and the picture, which is a PNG, JPEG or GIF.
 * 3. Nothing here fails a run. After a failure of the task itself no more samples are taken. */
#ifndef WATCH_SAMPLES_H
#define WATCH_SAMPLES_H

#include "file/events.h"
#include "task/job.h"

enum { SAMPLES_UNITS = 160, SAMPLES_PICTURE_BYTES = 4 << 20, SAMPLES_NAME = 64 };

typedef struct {
    char          dir[1024];
    const Recipe *r;
    int           is_off;
} Samples;

void samples_begin(Samples *s, const char *dir, const Recipe *r); /* borrows r */
/* Drops samples of this step and later ones: they will be taken again. */
void samples_rewind(const Samples *s, int64_t first_step);
/* After an evaluation. events may be NULL. */
void samples_take(Samples *s, Job *job, int64_t step, EventWriter *events);

/* "image/png", "image/jpeg" or "image/gif" by the first bytes; NULL: none of these. */
const char *samples_type(const void *bytes, size_t n);

#endif
