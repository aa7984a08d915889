/* Safetensors: Hugging Face's file format for named tensors, read with every number checked and written as
 * a stream.
 *
 * The bytes: u64 length N, N bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end)},
 * "__metadata__": {text: text}}, then the buffer that the offsets count from. Little-endian, row-major.
 *
 * 1. A SafeFile that was opened has unique names, known dtypes, shapes whose product does not overflow and
 *    agrees with their bytes, and tensors that tile the buffer without holes or overlaps: any read within
 *    a SafeTensor is in the file.
 * 2. Payloads are read by pread(), not through a mapping. So a disk error, or a file that is cut short
 *    meanwhile, gives an error with the file's name instead of a SIGBUS.
 * 3. A written header is padded with spaces to a multiple of 8, so that payloads of 8-byte types are
 *    aligned.
 * 4. A written file appears under its name only when it is complete and on disk. */
#ifndef FILE_SAFETENSORS_H
#define FILE_SAFETENSORS_H

#include "base/arena.h"
#include "tensor/tensor.h"

enum {
    SAFETENSORS_MAX_DIM    = 8,
    SAFETENSORS_MAX_HEADER = 100000000 /* as Hugging Face's own reader has it */
};

typedef struct {
    const char *name;
    DType       dtype;
    int         ndim; /* 0: a single number */
    int64_t     dim[SAFETENSORS_MAX_DIM];
    int64_t     n_elem; /* from here on filled by the reader, ignored by the writer */
    int64_t     offset; /* of its first byte, in the file */
    size_t      size_bytes;
} SafeTensor;

typedef struct {
    const char *key, *text;
} SafeMeta;

typedef struct {
    Arena              arena; /* owns all below */
    const char        *path;
    int                is_open; /* fd is a descriptor */
    int                fd;
    int64_t            file_bytes;
    int64_t            header_bytes; /* before the buffer: 8 + N */
    uint64_t           header_hash;  /* xxh64 of those */
    SafeTensor        *tensor;       /* in the order of their bytes */
    int                n_tensor;
    const SafeTensor **by_name;
    SafeMeta          *meta;
    int                n_meta;
} SafeFile;

/* ---- Reading ---- */

/* Both: negative after err_set() that begins with the path; the SafeFile then needs no close. */
int safetensors_open(SafeFile *f, const char *path);
/* A whole file in memory; safetensors_read() is not for it. name is used in messages. */
int  safetensors_parse(SafeFile *f, const char *name, const void *bytes, size_t size_bytes);
void safetensors_close(SafeFile *f); /* nothing for a zeroed or closed one */

const SafeTensor *safetensors_find(const SafeFile *f, const char *name); /* NULL when absent */

/* Reads size_bytes of the file at offset: all of them, or negative after err_set(). */
int safetensors_read(const SafeFile *f, int64_t offset, void *out, size_t size_bytes);
/* Reads elements [first, first+n_elem) of an f32, bf16 or f16 tensor as f32. Negative after err_set(). */
int safetensors_read_f32(const SafeFile *f, const SafeTensor *t, int64_t first, int64_t n_elem, float *out);

/* ---- Writing ---- */

typedef struct SafeWriter SafeWriter;

typedef struct {
    uint64_t file_hash, header_hash; /* xxh64 */
    int64_t  file_bytes;
} SafeSums;

/* Begins a file of these tensors, in this order. NULL after err_set(). */
SafeWriter *safetensors_write_begin(const char *path, const SafeTensor *tensor, int n_tensor,
                                    const SafeMeta *meta, int n_meta);
/* Appends the next bytes of the buffer; all tensors' bytes follow each other. Negative after err_set(). */
int safetensors_write_data(SafeWriter *w, const void *data, size_t size_bytes);
/* Completes the file and gives it its name; sums may be NULL. Frees *w, also on failure, and sets it to
 * NULL. */
int safetensors_write_publish(SafeWriter **w, SafeSums *sums);
/* Throws away what was written; nothing for NULL. Frees *w and sets it to NULL. */
void safetensors_write_discard(SafeWriter **w);

#endif
