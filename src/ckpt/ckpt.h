/* Checkpoints: a run's weights, optimizer state and position, on disk so that it can go on exactly.
 *
 * One checkpoint is a folder step-00000100 with model.safetensors (master weights), optim.safetensors
 * (NAME.m, NAME.v), state.json (ckpt/ckpt_state.h) and DONE (xxh64 of the other three, as xxhsum writes
 * them). docs/formats.md has the bytes.
 *
 * 1. A folder named step-* was complete and on disk before it got that name. What a killed writer leaves
 *    is .tmp-*.
 * 2. The caller holds the run's lock (run/rundir.h), so nobody else writes here: every .tmp-* is a
 *    leftover.
 *    `best` is a symbolic link to the best one by the task's measure, which is never removed.
 * 3. Old checkpoints are removed only after a newer one is published and its files have the promised
 *    sizes.
 * 4. Loading verifies every byte before the device is touched, and each tensor once more on its way there.
 * 5. Tensors are logical and named: padding, slab offsets, micro-batch, recomputation and device are not
 *    in the files.
 * 6. A damaged checkpoint is ERR_RUN and another one may be tried; one of another model is ERR_USER. */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include "task/job.h"
#include "ckpt/ckpt_state.h"

#include <stddef.h>

/* ---- Saving ---- */

typedef struct CkptWriter CkptWriter;

/* A writer of checkpoints of a job's model into folder dir, which is made if need be and cleared of
 * leftovers. Takes host memory for one snapshot; without enough of it, saving makes training wait (said once
 * in the log). keep and keep_every come from the job's recipe. The job's device must outlive the writer.
 * Negative after err_set(). */
int  ckpt_writer_create(CkptWriter **out, const Job *j, const char *dir);
void ckpt_writer_destroy(CkptWriter *w); /* waits; NULL is allowed */

/* Copies the device's state into the snapshot, then writes it from a thread. Waits for the save before, if
 * that still runs; a failure of that one that was not polled is logged. j is the job that the writer was made
 * for. Negative after err_set() when the device cannot be read. */
int ckpt_begin(CkptWriter *w, Job *j, const CkptState *s);
/* The next ckpt_begin() saves the best state so far: `best` will name it. */
void ckpt_mark_best(CkptWriter *w);

/* What a save ends with when a weight is not finite: nothing was published, and another try would end
 * alike. */
enum { CKPT_NOT_FINITE = -2 };

/* The result of a save, once: 1 it is on disk, -1 it failed (no error is pending; the next ckpt_begin() is
 * the retry), CKPT_NOT_FINITE, 0 nothing to report. msg has one line for all but 0. */
int ckpt_poll(CkptWriter *w, char *msg, size_t n);
/* The same after waiting for a save that runs. */
int ckpt_wait(CkptWriter *w, char *msg, size_t n);

/* About what one checkpoint of a job takes on disk. */
int64_t ckpt_size_bytes(const Job *j);

/* Weights that no device holds: those of another program's files. */
typedef struct {
    void *ctx;
    /* The type of a weight in the files; negative after err_set() or err_user(). */
    int (*dtype)(void *ctx, const char *name);
    /* Elements [first, first+n) of a weight, in that type. */
    int (*read)(void *ctx, const char *name, int64_t first, int64_t n, void *out);
} CkptSource;

/* Writes a checkpoint of weights alone, in the types of the source: a run goes on from it with new moments.
 * j need not be bound; s->step is 0. Negative after err_set() or err_user(). */
int ckpt_write_weights(const Job *j, const char *dir, const CkptState *s, const CkptSource *src);

/* ---- Finding ---- */

/* Steps of the checkpoints in dir, newest first, at most max. Returns how many; 0 when there is no such
 * folder. Negative after err_set(). */
int ckpt_list(const char *dir, int64_t *step, int max);

/* The folder of a step into buf. Negative after err_set(). */
int ckpt_path(const char *dir, int64_t step, char *buf, size_t n);

/* Takes the name from every checkpoint of a step above `after`: they led nowhere, and the run goes on without
 * them. They stay as abandoned-NNNNNNNN until one of their step or a later one is saved. `best` goes if it
 * names one of them. Returns how many; negative after err_set(). */
int ckpt_abandon(const char *dir, int64_t after);

/* The step that checkpoints/best names: the best one by the task's measure. -1: there is none. */
int64_t ckpt_best(const char *dir);

/* Removes what killed writers left in dir. Negative after err_set(). */
int ckpt_sweep(const char *dir);

/* ---- Loading ---- */

/* Verifies every byte of a checkpoint; needs no device. Negative after err_set() naming file and tensor. */
int ckpt_verify(const char *path);

/* Loads one checkpoint folder: weights, optimizer state and step state go to the device, the rest into *s.
 * note (one line, maybe empty) says what is not as it was: micro-batch, recomputation, head chunks, recipe
 * keys. Negative after err_set(), or err_user() for another model; the device is untouched unless the file
 * changed while it was read. */
int ckpt_load(Job *j, const char *path, CkptState *s, char *note, size_t n);

/* Loads the newest good checkpoint in dir of a step below `before` (INT64_MAX: of all). A warning names each
 * damaged one.
 *   1         loaded
 *   0         there is none
 *   negative  after err_set(): all are damaged; after err_user(): another model's */
int ckpt_resume(Job *j, const char *dir, int64_t before, CkptState *s, char *note, size_t n);

/* Loads weights alone from a checkpoint folder (verified) or a .safetensors file (f32, bf16 or f16, our
 * names). */
int ckpt_load_weights(Job *j, const char *path);

/* Loads weights alone from the newest good checkpoint in dir, also while a run saves and removes there. The
 * files of a checkpoint are held open from its first byte on. If a checkpoint went away before, a newer one
 * is there by then. The step goes to *step. Negative after err_set() or err_user(). */
int ckpt_load_newest(Job *j, const char *dir, int64_t *step);

#endif
