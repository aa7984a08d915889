/* Teacher file: what a frozen language model says about each sample, computed once.
 *
 * 1. A header of 128 bytes, then a record for each sample (docs/formats.md). All records have the same size.
 *    A record has n_row rows: the `top` largest logits with their ids, and three numbers about the rest.
 * 2. The header has a checksum, and so has each record. A record's checksum is seeded by its number, so a
 *    record in another one's place is found.
 * 3. A TeacherHeader that teacher_parse() accepted agrees with the size of its file.
 * 4. Records are read by pread(): a file that becomes shorter gives an error with its name. */
#ifndef FILE_TEACHER_H
#define FILE_TEACHER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TEACHER_VERSION = 1, TEACHER_HEADER_BYTES = 128, TEACHER_REST = 5 };

/* Hashes are xxh64; 0: there is no such thing. */
typedef struct {
    int64_t  n_sample, n_row, top, vocab; /* top <= vocab; ids are below vocab */
    int64_t  prompt;                      /* tokens of a prompt that the model read, at most */
    uint64_t seed;                        /* of the recipe; texts are cut by it */
    uint64_t model, tokenizer;
    uint64_t data;    /* the file that samples come from */
    uint64_t samples; /* all tokens that the model read */
} TeacherHeader;

/* A record in memory, n_row rows. id i32[n_row,top] rises within a row; a row that the sample does not have
 * is all -1. rest f32[n_row,TEACHER_REST], of the logits x that are not among the largest: their mean, then
 * the log of the mean of exp(x b) for b = 1/4, 1/2, 3/4, 1; zeros where there are none. */
typedef struct {
    int32_t *id;
    float   *logit, *rest;
} TeacherRecord;

size_t        teacher_record_bytes(const TeacherHeader *h);
TeacherRecord teacher_record(const TeacherHeader *h, void *bytes);

/* Log of the sum of exp(x/tau) over the logits that are not in the file: exact for tau 1, 4/3, 2 and 4, close
 * elsewhere. 0 where there are none. */
float teacher_rest(const TeacherHeader *h, const float rest[TEACHER_REST], double tau);

/* Reads a header out of the first n bytes of a file that is file_bytes long. name is used in messages.
 * Negative after err_user(). */
int  teacher_parse(TeacherHeader *out, const char *name, const void *bytes, size_t n, int64_t file_bytes);
void teacher_format(const TeacherHeader *h, unsigned char out[TEACHER_HEADER_BYTES]);

/* Opens a file and parses its header. Returns a descriptor that the caller closes; negative after
 * err_user(). */
int teacher_open(TeacherHeader *out, const char *path);
/* Reads record number `sample` into bytes (teacher_record_bytes()) and checks it. Negative after
 * err_user()/err_set(). */
int teacher_read(int fd, const char *path, const TeacherHeader *h, int64_t sample, void *bytes);
/* Reads and checks all records. */
int teacher_verify(int fd, const char *path, const TeacherHeader *h);

/* ---- writing: a complete file, or nothing ---- */

typedef struct TeacherWriter TeacherWriter;

/* NULL after err_set(). */
TeacherWriter *teacher_write_begin(const char *path, const TeacherHeader *h);
/* Puts the checksum into a record and writes it; each sample once, in any order. Negative after err_sys(). */
int teacher_write_put(TeacherWriter *w, int64_t sample, void *bytes);
/* Gives the file its name; all samples were put. Frees *w, also on failure, and sets it to NULL. */
int teacher_write_publish(TeacherWriter **w);
/* Throws away what was written; nothing for NULL. Frees *w and sets it to NULL. */
void teacher_write_discard(TeacherWriter **w);

#ifdef __cplusplus
}
#endif
#endif
