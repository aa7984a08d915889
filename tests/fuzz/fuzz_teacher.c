/* Fuzz target: the file of a cached teacher, read from a file in memory. Built with libFuzzer; the corpus is
 * beside it.
 *
 * Each input is read as it is, and once more with all checksums put right, since no fuzzer finds them. What
 * is accepted has ids below its vocabulary, which rise, and finite numbers.
 *
 * sources: src/file/teacher.c src/base/[a-z]*.c */
#define _GNU_SOURCE /* memfd_create */
#include "base/err.h"
#include "file/teacher.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void refused(void)
{
    CHECK(err_kind() == ERR_USER && strstr(err_get(), "input"), "not a user's error that names the file: %s",
          err_get());
    err_clear();
}

static void look_at(const TeacherHeader *h, TeacherRecord r)
{
    for (int64_t i = 0; i < h->n_row * h->top; i++) {
        CHECK(r.id[i] >= -1 && r.id[i] < h->vocab && isfinite(r.logit[i]), "id %d", r.id[i]);
        CHECK(i % h->top == 0 || r.id[i] > r.id[i - 1] || (r.id[i] == -1 && r.id[i - 1] == -1), "ids fall");
    }
    for (int64_t k = 0; k < h->n_row; k++) teacher_rest(h, r.rest + k * TEACHER_REST, 2);
}

static void read_all(const TeacherHeader *h, const uint8_t *bytes, size_t n)
{
    int fd = memfd_create("teacher", 0);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "a file in memory");
    int   good   = teacher_verify(fd, "input", h) == 0;
    void *record = malloc(teacher_record_bytes(h));
    CHECK(record, "out of memory");
    if (!good) refused();
    for (int64_t i = 0; i < h->n_sample; i++) {
        if (teacher_read(fd, "input", h, i, record) == 0) {
            look_at(h, teacher_record(h, record));
        } else {
            CHECK(!good, "verified, and not read: %s", err_get());
            refused();
        }
    }
    free(record);
    close(fd);
}

static int parse(TeacherHeader *h, const uint8_t *bytes, size_t n)
{
    if (teacher_parse(h, "input", bytes, MIN(n, TEACHER_HEADER_BYTES), (int64_t)n) < 0) {
        refused();
        return -1;
    }
    CHECK(err_kind() == ERR_NONE, "accepted with a message: %s", err_get());
    CHECK((size_t)h->n_sample * teacher_record_bytes(h) + TEACHER_HEADER_BYTES == n,
          "header and size disagree");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    TeacherHeader h;
    if (parse(&h, bytes, n) == 0) read_all(&h, bytes, n);
    if (n < TEACHER_HEADER_BYTES) return 0;
    uint8_t *copy = malloc(n);
    CHECK(copy, "out of memory");
    memcpy(copy, bytes, n);
    uint64_t check = XXH64(copy, TEACHER_HEADER_BYTES - 8, 0);
    memcpy(copy + TEACHER_HEADER_BYTES - 8, &check, sizeof check);
    if (parse(&h, copy, n) == 0) {
        size_t each = teacher_record_bytes(&h);
        for (int64_t i = 0; i < h.n_sample; i++) {
            uint8_t *record = copy + TEACHER_HEADER_BYTES + (size_t)i * each;
            check           = XXH64(record, each - 8, (uint64_t)i);
            memcpy(record + each - 8, &check, sizeof check);
        }
        read_all(&h, copy, n);
    }
    free(copy);
    return 0;
}
