/* Events: TensorBoard's event files, written and trimmed without TensorFlow.
 *
 * 1. A file is a row of records: u64 length, u32 masked CRC-32C of the length, the bytes, u32 masked CRC-32C
 *    of the bytes. The bytes are one Event in protobuf's wire format. docs/formats.md has the fields.
 * 2. Each start writes a file of its own. Records of steps that will be done again are first cut off the
 *    older files. So every step is in the folder once, also for readers that do not know TensorBoard's rules
 *    for restarts.
 * 3. A record is in the file whole or not at all. */
#ifndef FILE_EVENTS_H
#define FILE_EVENTS_H

#include <stddef.h>
#include <stdint.h>

typedef struct EventWriter EventWriter;

/* Begins a file in folder for the steps from first_step on, and trims the others (event_trim). NULL after
 * err_set(). */
EventWriter *event_writer_open(const char *folder, int64_t first_step);
/* Writes what is buffered. NULL is allowed. Negative after err_set(). */
int event_writer_close(EventWriter *w);

/* One record with any number of values: begin, add, end. */
void event_begin(EventWriter *w, double wall_s, int64_t step);
void event_scalar(EventWriter *w, const char *tag, double x);
void event_text(EventWriter *w, const char *tag, const char *text); /* Markdown, as TensorBoard shows it */
void event_image(EventWriter *w, const char *tag, const void *png, size_t size_bytes, int width, int height);
/* Writes the record and hands it to the system. Negative after err_set(); the next record is tried all the
 * same. */
int event_end(EventWriter *w);

/* Cuts every event file of the folder before its first record of first_step or later, and before what a
 * killed writer left of a record. Links, and files with a second name elsewhere, stay as they are. Returns
 * how many bytes went; negative after err_set(). */
int64_t event_trim(const char *folder, int64_t first_step);

/* ---- Reading: for trimming and for tests. ---- */

typedef struct {
    double               wall_s;
    int64_t              step;
    const unsigned char *summary; /* inside the record; NULL: none */
    size_t               n_summary;
} EventRecord;

/* The record at bytes[0..n). Returns its length, 0 when it is not complete, negative when it is damaged
 * (no message). */
int64_t event_parse(const unsigned char *bytes, size_t n, EventRecord *out);

typedef struct {
    const char *tag; /* not terminated */
    size_t      n_tag;
    int         has_scalar;
    float       scalar;
    size_t      n_image, n_text; /* bytes of the first text and of the encoded picture; 0: none */
} EventValue;

/* The next value of a record's summary; *at counts from 0. 1: one is in out, 0: no more, negative:
 * damaged. */
int event_next_value(const EventRecord *r, size_t *at, EventValue *out);

uint32_t event_crc32c(const void *bytes, size_t n); /* not masked */

#endif
