/* Source: where samples come from. A task opens one for training and one for validation; the loader's threads
 * fill from it.
 *
 * 1. A source for training is endless: sample g is any number from 0 on, and the same g always is the same
 *    sample. The source itself does the shuffling. A source for validation has n_sample samples.
 * 2. fill() depends on the sample alone, never on threads, micro-batch, ranks or where a run was resumed.
 *    place() then makes the sample fit into its row of a batch.
 * 3. targets() says how many targets of a loss a sample has, before the sample is filled. So the divisor of a
 *    step is known when the step begins. Sample -1, here and in fill(), is an empty row: it has no targets.
 * 4. A source does not change after it was opened; any number of threads may use it, each with scratch of its
 *    own. */
#ifndef DATA_SOURCE_H
#define DATA_SOURCE_H

#include "base/err.h"
#include "data/fields.h"
#include "dev/op.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Source Source;

/* What a recipe can ask of its data before a source is opened: nothing, they may be elsewhere; everything; or
 * all but what the sources say that are opened next, before anything is planned. */
enum { DATA_ELSEWHERE, DATA_HERE, DATA_OPENED_NEXT };

typedef struct {
    /* Writes sample g: field[i] points at the sample's place in field i. 1: the sample cannot be used and has
     * no target after all, which an evaluation counts. Negative after err_set(). */
    int (*fill)(const Source *s, int64_t g, void *const *field, void *scratch);
    /* For fields that name rows of a tensor in which each sample has some. fill() counts them from the
     * sample's first one, place() from that of the batch: the sample is number b there. NULL: nothing. */
    void (*place)(const Source *s, int64_t b, void *const *field);
    /* Rows with a target of the loss in `slot`. NULL: targets_each[slot] for every sample. Negative after
     * err_set(). */
    int64_t (*targets)(const Source *s, int64_t g, int slot, void *scratch);
    /* After all rows of a batch were filled, and some could not be used: puts rows in order that refer to
     * them. NULL: none do. */
    void (*settle)(const Source *s, const Fields *f, void *block);
    void (*close)(Source *s);
    /* Frees what fill() or targets() keep in a scratch, which begins as zeros. NULL: nothing. */
    void (*end_scratch)(const Source *s, void *scratch);
    /* Where the time of a sample went, and what was skipped, into buf. NULL: nothing to say. */
    void (*describe)(const Source *s, char *buf, size_t n);
} SourceVt;

enum { SOURCE_SLOTS = LOSS_SLOTS };

/* Every source begins with this. */
struct Source {
    const SourceVt *vt;
    const char     *name;     /* "data.train: FILE", for messages */
    int64_t         n_sample; /* of validation; INT64_MAX: endless */
    int64_t         n_all; /* samples there are: an epoch, or of which validation takes n_sample; 0: no end */
    int64_t         targets_each[SOURCE_SLOTS]; /* of a full sample */
    int64_t         size;          /* of the data, in the task's units: another one means that they changed */
    uint64_t        fingerprint;   /* of its content, by samples of it; 0: not known */
    int             is_work;       /* 1: a sample takes long (decoding): several threads share a batch */
    size_t          scratch_bytes; /* for each thread, zeros at first */
    double          bytes_per_target; /* of validation: text that a target stands for; 0: not known */
};

static inline int source_fill(const Source *s, int64_t g, void *const *field, void *scratch)
{
    return s->vt->fill(s, g, field, scratch);
}

static inline void source_place(const Source *s, int64_t b, void *const *field)
{
    if (s->vt->place) s->vt->place(s, b, field);
}

static inline int64_t source_targets(const Source *s, int64_t g, int slot, void *scratch)
{
    if (g < 0) return 0;
    return s->vt->targets ? s->vt->targets(s, g, slot, scratch) : s->targets_each[slot];
}

static inline void source_end_scratch(const Source *s, void *scratch)
{
    if (scratch && s->vt->end_scratch) s->vt->end_scratch(s, scratch);
}

/* buf, which is empty when there is nothing to say. */
static inline const char *source_describe(const Source *s, char *buf, size_t n)
{
    buf[0] = '\0';
    if (s && s->vt->describe) s->vt->describe(s, buf, n);
    return buf;
}

static inline void source_close(Source *s)
{
    if (s) s->vt->close(s);
}

#ifdef __cplusplus
}
#endif
#endif
