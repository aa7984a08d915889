/* state.json of a checkpoint: everything about a run that is not a tensor, and the checksums of what is.
 *
 * 1. Floating-point numbers round-trip bit for bit: finite ones are text in hexadecimal ("0x1.8p+1"), the
 *    others "bits:7fc00000". 64-bit seeds and hashes are text in hexadecimal, because JSON readers may lose
 *    bits.
 * 2. Every field is named; one table (ckpt_state.c) serves writing and reading. A missing or strange field is
 *    refused; those that came later, step_s, head_rows, sizes and hashes of the data, stopped, own and
 *    frozen, may be missing.
 * 3. A parsed CkptManifest obeys the bounds of its fields; its texts are valid UTF-8 without line breaks. */
#ifndef CKPT_CKPT_STATE_H
#define CKPT_CKPT_STATE_H

#include "base/arena.h"
#include "base/json.h"
#include "conf/recipe.h"
#include "data/order.h"
#include "dev/op.h"

enum { CKPT_VERSION = 1, CKPT_MAX_SKIP = 1024 /* ranges */, CKPT_OWN = 256, CKPT_MAX_FROZEN = 4 };

/* Why an evaluation ended the run. */
typedef enum { CKPT_STOP_NONE, CKPT_STOP_TARGET, CKPT_STOP_PATIENCE, CKPT_STOPS } CkptStop;

/* What a run needs besides its tensors to go on as if it had never stopped. */
typedef struct {
    int64_t       step;        /* updates done; the next one has this number */
    int64_t       next_sample; /* used samples so far, over all ranks: the loader's cursor */
    uint64_t      seed;
    int64_t       micro_batch;          /* of the plan that ran; another one may resume */
    int64_t       recompute_level;      /* RecomputeLevel, likewise */
    int64_t       threads;              /* of the CPU that computed, likewise; 0: a GPU did */
    double        best_val;             /* best value of the task's measure; infinite before the first */
    int64_t       bad_evals;            /* evaluations since then */
    double        elapsed_s;            /* training time over all parts of the run */
    double        step_s;               /* seconds a step, smoothed; 0: not known */
    int64_t       head_rows;            /* rows of logits at a time, of the plan that ran; 0: not known */
    int64_t       train_size, val_size; /* of the data, as their source counts; 0: not known, or none */
    uint64_t      train_hash, val_hash; /* Source.fingerprint of them, likewise */
    int64_t       stopped;              /* CkptStop */
    StepState     device;               /* ckpt_begin() reads it from the device */
    SampleRange   skip[CKPT_MAX_SKIP];  /* raw samples to pass over */
    int           n_skip;
    unsigned char own[CKPT_OWN]; /* state of the task's own */
    int64_t       own_bytes;
    /* Not stored. After loading: 1 + the row of a key of the recipe that names other data than this was
     * trained on, and what it was; 0: none does. */
    int     other_data;
    char    was_data[2 * RECIPE_STR];
    int64_t was_steps;  /* the key `steps` of then; 0: as in the recipe */
    int     other_rate; /* 1: another key that the learning rate follows from changed, too */
} CkptState;

typedef enum { CKPT_MODEL, CKPT_OPTIM, CKPT_FILES } CkptFileKind;

extern const char *const ckpt_file_name[CKPT_FILES]; /* model.safetensors, optim.safetensors */

typedef struct {
    const char *name;
    uint64_t    hash; /* xxh64 of its bytes */
} CkptTensor;

typedef struct {
    int64_t     size_bytes;
    uint64_t    header_hash;
    CkptTensor *tensor; /* in the order of their bytes */
    int         n_tensor;
} CkptFile;

typedef struct {
    const char *key, *text; /* a recipe key and its value */
} CkptKey;

/* A frozen net whose weights are not in the checkpoint. */
typedef struct {
    const char *prefix, *path;
    uint64_t    hash;
} CkptFrozen;

typedef struct {
    CkptState  state;
    CkptKey   *key;
    int        n_key;
    CkptFile   file[CKPT_FILES];
    CkptFrozen frozen[CKPT_MAX_FROZEN];
    int        n_frozen;
    Arena      arena; /* of a parsed one: owns the lists */
} CkptManifest;

/* Writes it as one JSON object; errors come out of json_out_end(). */
void ckpt_state_write(JsonOut *o, const CkptManifest *m);

/* Reads it. name is used in messages. Negative after err_set(), or err_user() when a newer version wrote
 * it; m then needs no ckpt_state_deinit(). */
int  ckpt_state_parse(CkptManifest *m, const char *name, const char *text, size_t size_bytes);
void ckpt_state_deinit(CkptManifest *m);

#endif
