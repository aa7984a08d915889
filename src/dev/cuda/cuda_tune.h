/* The tune cache: measured choices in a text file a person can read.
 *
 * 1. One entry a line: `key | GPU | library version | value | note`. The key names the work (shape, types
 *    ...), the value is what was chosen, the note says how fast it was.
 * 2. A line for another GPU or library version is kept and not used. A line that cannot be read is dropped
 *    with a warning when the file is next written.
 * 3. The file is replaced by rename, so it is never half written. Entries that other processes have added
 *    since the file was read stay. */
#ifndef DEV_CUDA_CUDA_TUNE_H
#define DEV_CUDA_CUDA_TUNE_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CudaTune CudaTune;

/* path NULL: remembers nothing. A missing file is an empty cache, an unreadable one too (with a warning). */
CudaTune *cuda_tune_open(const char *path, const char *gpu, const char *version);
/* Saves and frees. */
void cuda_tune_close(CudaTune *t);

/* The value under key for this GPU and library version, or NULL. Valid until the next put. */
const char *cuda_tune_find(const CudaTune *t, const char *key);
/* Adds or replaces; written to the file by the next save. */
void cuda_tune_put(CudaTune *t, const char *key, const char *value, const char *note);
/* Writes the file if something was put since. A failure is a warning: tuning again costs only time. */
void cuda_tune_save(CudaTune *t);

#ifdef __cplusplus
}
#endif
#endif
