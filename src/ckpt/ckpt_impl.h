/* What the files of ckpt share. Not for others. */
#ifndef CKPT_CKPT_IMPL_H
#define CKPT_CKPT_IMPL_H

#include "ckpt/ckpt.h"
#include "file/safetensors.h"

enum {
    CKPT_CHUNK_BYTES = 1 << 20, /* hashed and written (or uploaded) while it is in the processor's cache */
    CKPT_STATE_MAX   = 64 << 20
};

extern const char ckpt_tmp_prefix[]; /* ".tmp-" */
extern const char ckpt_state_name[]; /* "state.json" */
extern const char ckpt_done_name[];  /* "DONE" */

/* One stored tensor: a row of a column that is kept, or device state of the task. */
typedef struct {
    CkptFileKind  file;
    SafeTensor    spec; /* logical name, dtype and shape */
    const Tensor *t;    /* on the device; its root is what a snapshot copies */
    int64_t       n_elem;
} CkptItem;

/* What checkpoints hold of a job, in the order of the files; names and list live in the arena. Frozen weights
 * that came from a file of their own are not among them. Returns how many. */
int ckpt_items(const Job *j, Arena *a, CkptItem **out);

/* Folder and name joined into buf. Negative after err_set(). */
int ckpt_join(char *buf, size_t n, const char *folder, const char *name);

/* One line of DONE: "hash  name\n", as `xxhsum -c` reads it. */
void ckpt_done_line(char *buf, size_t n, uint64_t hash, const char *name);

/* What a writer knows of the checkpoints beside its own: each is verified at most once. */
enum { CKPT_KNOWN = 64 };
typedef struct {
    struct {
        int64_t step;
        int     is_good;
    } row[CKPT_KNOWN];
    int n;
} CkptKnown;
/* step was written, or found damaged. */
void ckpt_known_set(CkptKnown *k, int64_t step, int is_good);

/* Removes checkpoints at or below step that are neither among the newest `keep` good ones of those nor
 * multiples of keep_every. Later ones are not counted: they are damaged, or of a future that was given up. A
 * damaged one is not counted, either: one that is not in *known is verified before another is removed on its
 * account. Files that Brim did not write stay, in a folder left-NNNNNNNN. */
int ckpt_prune(const char *dir, int64_t step, int64_t keep, int64_t keep_every, CkptKnown *known);

/* Makes `best` name a step that was published: the old name stays until the new one is there. */
int ckpt_set_best(const char *dir, int64_t step);

/* Negative after err_user() when something that is not a folder has a checkpoint's name: a save could not
 * replace it. */
int ckpt_check_names(const char *dir);

#endif
