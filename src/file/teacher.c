#include "file/teacher.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "file/words.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read without swapping bytes");

static const char teacher_magic[8] = { 'B', 'R', 'I', 'M', 'T', 'C', 'H', '1' };

/* Where each field of the header is; what is reserved is zero. */
enum {
    AT_VERSION   = 8,
    AT_ROWS      = 12,
    AT_TOP       = 16,
    AT_VOCAB     = 20,
    AT_SAMPLES   = 24,
    AT_MODEL     = 32,
    AT_TOKENIZER = 40,
    AT_DATA      = 48,
    AT_TOKENS    = 56,
    AT_SEED      = 64,
    AT_PROMPT    = 72,
    AT_RESERVED  = 76,
    AT_CHECK     = 120
};

enum { MOST_ROWS = 1 << 16, MOST_TOP = 1 << 20, CHECK_BYTES = 8 };

/* ---- records ------------------------------------------------------------------------------------------ */

static size_t payload_bytes(const TeacherHeader *h)
{
    return (size_t)h->n_row *
           ((size_t)h->top * (sizeof(int32_t) + sizeof(float)) + TEACHER_REST * sizeof(float));
}

/* A multiple of 8: the checksum stands behind a gap of zeros. */
size_t teacher_record_bytes(const TeacherHeader *h)
{
    return (size_t)round_up((int64_t)payload_bytes(h), CHECK_BYTES) + CHECK_BYTES;
}

TeacherRecord teacher_record(const TeacherHeader *h, void *bytes)
{
    TeacherRecord r = { .id = bytes };
    r.logit         = (float *)(r.id + h->n_row * h->top);
    r.rest          = r.logit + h->n_row * h->top;
    return r;
}

static uint64_t record_check(const TeacherHeader *h, int64_t sample, const void *bytes)
{
    return XXH64(bytes, teacher_record_bytes(h) - CHECK_BYTES, (uint64_t)sample);
}

/* 1: ids rise and are below vocab, or all are -1. */
static int ids_are_good(const int32_t *id, int64_t top, int64_t vocab)
{
    int none = id[0] == -1;
    if (!none && (id[0] < 0 || id[top - 1] >= vocab)) return 0;
    for (int64_t i = 1; i < top; i++) {
        if (none ? id[i] != -1 : id[i] <= id[i - 1]) return 0;
    }
    return 1;
}

static int all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) return 0;
    }
    return 1;
}

static int check_record(const char *name, const TeacherHeader *h, int64_t sample, unsigned char *bytes)
{
    TeacherRecord r = teacher_record(h, bytes);
    if (get_u64(bytes + teacher_record_bytes(h) - CHECK_BYTES) != record_check(h, sample, bytes))
        return err_user("%s: sample %lld is damaged: its checksum does not match", name, (long long)sample);
    for (int64_t k = 0; k < h->n_row; k++) {
        if (!ids_are_good(r.id + k * h->top, h->top, h->vocab))
            return err_user("%s: sample %lld: ids of row %lld do not rise within %lld tokens", name,
                            (long long)sample, (long long)k, (long long)h->vocab);
    }
    if (!all_finite(r.logit, h->n_row * h->top) || !all_finite(r.rest, h->n_row * TEACHER_REST))
        return err_user("%s: sample %lld: a logit is not finite", name, (long long)sample);
    return 0;
}

/* With b = 1/tau, L(b) = log of the mean of exp(b x) is what counts. L(0) is 0, its slope there is the mean
 * of x, and L is known at four more places. So L(b) = mean b + q(b) b^2, where q is a cubic through these
 * places. Beyond b = 1 a straight line goes on. */
float teacher_rest(const TeacherHeader *h, const float rest[TEACHER_REST], double tau)
{
    enum { PLACES = TEACHER_REST - 1 };
    if (h->vocab == h->top) return 0;
    double b = 1 / tau, in = fmin(b, 1), q = 0, mean = rest[0];
    for (int i = 1; i <= PLACES; i++) {
        double at = (double)i / PLACES, term = (rest[i] - mean * at) / (at * at);
        for (int k = 1; k <= PLACES; k++) {
            if (k != i) term *= (in * PLACES - k) / (i - k);
        }
        q += term;
    }
    double L = (q * in + mean) * in;
    if (b > 1) L += (double)(rest[PLACES] - rest[PLACES - 1]) * PLACES * (b - 1);
    return (float)(L + log((double)(h->vocab - h->top)));
}

/* ---- the header --------------------------------------------------------------------------------------- */

static int check_counts(const TeacherHeader *h, const char *name, uint64_t n_sample, int64_t file_bytes)
{
    if (h->n_row < 1 || h->n_row > MOST_ROWS || h->top < 1 || h->top > MOST_TOP)
        return err_user("%s: %lld rows of %lld logits in a sample", name, (long long)h->n_row,
                        (long long)h->top);
    if (h->vocab < h->top || h->vocab > INT32_MAX)
        return err_user("%s: %lld logits of a vocabulary of %lld", name, (long long)h->top,
                        (long long)h->vocab);
    uint64_t have = (uint64_t)file_bytes - TEACHER_HEADER_BYTES, each = teacher_record_bytes(h);
    if (have / each == n_sample && have % each == 0 && n_sample > 0) return 0;
    const char *what = have / each < n_sample ? "truncated" : "has bytes that belong to no sample";
    return err_user(
        "%s: %s: its header promises %llu samples of %llu bytes, the file holds %llu bytes of them", name,
        what, (unsigned long long)n_sample, (unsigned long long)each, (unsigned long long)have);
}

int teacher_parse(TeacherHeader *out, const char *name, const void *bytes, size_t n, int64_t file_bytes)
{
    const unsigned char *p = bytes;
    if (n < sizeof teacher_magic || memcmp(p, teacher_magic, sizeof teacher_magic) != 0)
        return err_user("%s: not a file of a teacher: it does not begin with BRIMTCH1", name);
    if (n < TEACHER_HEADER_BYTES || file_bytes < TEACHER_HEADER_BYTES)
        return err_user("%s: truncated: %lld bytes, the header alone has %d", name, (long long)file_bytes,
                        TEACHER_HEADER_BYTES);
    if (get_u32(p + AT_VERSION) != TEACHER_VERSION)
        return err_user("%s: version %u, this program reads version %d", name, get_u32(p + AT_VERSION),
                        TEACHER_VERSION);
    if (get_u64(p + AT_CHECK) != XXH64(p, AT_CHECK, 0))
        return err_user("%s: damaged header: its checksum does not match", name);
    for (int i = AT_RESERVED; i < AT_CHECK; i++) {
        if (p[i] != 0) return err_user("%s: reserved byte %d of the header is not zero", name, i);
    }
    TeacherHeader h = { .n_sample  = (int64_t)MIN(get_u64(p + AT_SAMPLES), INT64_MAX / 4),
                        .n_row     = get_u32(p + AT_ROWS),
                        .top       = get_u32(p + AT_TOP),
                        .vocab     = get_u32(p + AT_VOCAB),
                        .prompt    = get_u32(p + AT_PROMPT),
                        .seed      = get_u64(p + AT_SEED),
                        .model     = get_u64(p + AT_MODEL),
                        .tokenizer = get_u64(p + AT_TOKENIZER),
                        .data      = get_u64(p + AT_DATA),
                        .samples   = get_u64(p + AT_TOKENS) };
    TRY(check_counts(&h, name, get_u64(p + AT_SAMPLES), file_bytes));
    *out = h;
    return 0;
}

void teacher_format(const TeacherHeader *h, unsigned char out[TEACHER_HEADER_BYTES])
{
    memset(out, 0, TEACHER_HEADER_BYTES);
    memcpy(out, teacher_magic, sizeof teacher_magic);
    put_u32(out + AT_VERSION, TEACHER_VERSION);
    put_u32(out + AT_ROWS, (uint32_t)h->n_row);
    put_u32(out + AT_TOP, (uint32_t)h->top);
    put_u32(out + AT_VOCAB, (uint32_t)h->vocab);
    put_u64(out + AT_SAMPLES, (uint64_t)h->n_sample);
    put_u64(out + AT_MODEL, h->model);
    put_u64(out + AT_TOKENIZER, h->tokenizer);
    put_u64(out + AT_DATA, h->data);
    put_u64(out + AT_TOKENS, h->samples);
    put_u64(out + AT_SEED, h->seed);
    put_u32(out + AT_PROMPT, (uint32_t)h->prompt);
    put_u64(out + AT_CHECK, XXH64(out, AT_CHECK, 0));
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static int read_header(TeacherHeader *out, int fd, const char *path)
{
    unsigned char bytes[TEACHER_HEADER_BYTES];
    struct stat   st;
    if (fstat(fd, &st) != 0) return err_sys("%s", path);
    if (!S_ISREG(st.st_mode)) return err_user("%s: not a file", path);
    size_t n = (size_t)MIN(st.st_size, TEACHER_HEADER_BYTES);
    TRY(file_read_at(fd, path, bytes, n, 0));
    return teacher_parse(out, path, bytes, n, st.st_size);
}

int teacher_open(TeacherHeader *out, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_refuse_open(path);
    if (read_header(out, fd, path) == 0) return fd;
    close(fd);
    return -1;
}

static int64_t offset_of(const TeacherHeader *h, int64_t sample)
{
    return TEACHER_HEADER_BYTES + sample * (int64_t)teacher_record_bytes(h);
}

int teacher_read(int fd, const char *path, const TeacherHeader *h, int64_t sample, void *bytes)
{
    CHECK(sample >= 0 && sample < h->n_sample, "sample %lld of %lld", (long long)sample,
          (long long)h->n_sample);
    TRY(file_read_at(fd, path, bytes, teacher_record_bytes(h), offset_of(h, sample)));
    return check_record(path, h, sample, bytes);
}

int teacher_verify(int fd, const char *path, const TeacherHeader *h)
{
    enum { BLOCK = 4 << 20 };
    int64_t        each = (int64_t)teacher_record_bytes(h), per = MAX(BLOCK / each, 1);
    unsigned char *bytes = mem_alloc((size_t)(MIN(per, h->n_sample) * each));
    int            rc    = bytes ? 0 : err_sys("memory for %s", path);
    for (int64_t at = 0; at < h->n_sample && rc == 0; at += per) {
        int64_t n = MIN(per, h->n_sample - at);
        rc        = file_read_at(fd, path, bytes, (size_t)(n * each), offset_of(h, at));
        for (int64_t i = 0; i < n && rc == 0; i++) rc = check_record(path, h, at + i, bytes + i * each);
    }
    free(bytes);
    return rc;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

struct TeacherWriter {
    FILE         *file;
    char         *path;
    TeacherHeader h;
    int64_t       n_put;
};

TeacherWriter *teacher_write_begin(const char *path, const TeacherHeader *h)
{
    unsigned char  header[TEACHER_HEADER_BYTES];
    TeacherWriter *w = mem_zeroed(1, sizeof *w);
    if (w) w->path = strdup(path);
    if (!w || !w->path) {
        free(w);
        err_sys("memory for %s", path);
        return NULL;
    }
    w->h = *h;
    teacher_format(h, header);
    w->file = file_create_tmp(path);
    if (!w->file || file_write(w->file, header, sizeof header) < 0) teacher_write_discard(&w);
    return w;
}

int teacher_write_put(TeacherWriter *w, int64_t sample, void *bytes)
{
    size_t   size = teacher_record_bytes(&w->h), used = payload_bytes(&w->h);
    uint64_t check;
    CHECK(sample >= 0 && sample < w->h.n_sample, "sample %lld", (long long)sample);
    memset((char *)bytes + used, 0, size - used);
    check = record_check(&w->h, sample, bytes);
    memcpy((char *)bytes + size - CHECK_BYTES, &check, sizeof check);
    if (fseeko(w->file, offset_of(&w->h, sample), SEEK_SET) != 0) return err_sys("%s: seek", w->path);
    w->n_put++;
    return file_write(w->file, bytes, size);
}

int teacher_write_publish(TeacherWriter **pw)
{
    TeacherWriter *w = *pw;
    CHECK(w->n_put == w->h.n_sample, "%lld of %lld samples", (long long)w->n_put, (long long)w->h.n_sample);
    int rc = file_publish(&w->file, w->path);
    teacher_write_discard(pw);
    return rc;
}

void teacher_write_discard(TeacherWriter **w)
{
    if (!*w) return;
    file_discard(&(*w)->file);
    free((*w)->path);
    free(*w);
    *w = NULL;
}
