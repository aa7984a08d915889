#define _GNU_SOURCE /* CLOCK_THREAD_CPUTIME_ID */
/* What the tokenizer tests compare and measure, in one program:
 *   encode TOKENIZER DOCS OUT    ids of every document, framed as the file says
 *   both TOKENIZER DOCS IDS TEXT the same, and the bytes of every list of ids
 *   round TOKENIZER FILE         decode(encode(x)) == x for the file and for cuts of it
 *   bench TOKENIZER FILE N       MB/s of N threads over documents of 10 KB, by the clock and by CPU time
 * DOCS, IDS and OUT are lists: a 32-bit count, then so many bytes or 32-bit ids. */
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/thread.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DOC_BYTES = 10000, BENCH_S = 2 };

static int fail(void)
{
    fprintf(stderr, "%s\n", err_get());
    return err_kind() == ERR_USER ? 2 : 1;
}

static void write_list(FILE *out, const void *data, int64_t n, size_t item)
{
    uint32_t count = (uint32_t)n;
    CHECK(fwrite(&count, 4, 1, out) == 1 && fwrite(data, item, (size_t)n, out) == (size_t)n, "writing");
}

/* With a list of ids for to; the bytes of the same ids go into back, where one is named. */
static int convert(const Tokenizer *t, const char *from, const char *to, const char *back)
{
    FileMap           m;
    FILE             *out = fopen(to, "wb"), *text_out = back ? fopen(back, "wb") : NULL;
    TokenizerScratch *s = tokenizer_scratch_create(t), *s_back = tokenizer_scratch_create(t);
    if (!s || !s_back || !out || (back && !text_out) || file_map(&m, from) < 0) return fail();
    const char *p = m.data;
    for (size_t i = 0; i < m.size_bytes;) {
        uint32_t       n;
        const int32_t *ids;
        const char    *text;
        memcpy(&n, p + i, 4);
        int64_t n_id = tokenizer_encode(t, s, p + i + 4, n, TOKENIZER_FRAME, &ids);
        if (n_id < 0) return fail();
        write_list(out, ids, n_id, 4);
        int64_t len = back ? tokenizer_decode(t, s_back, ids, n_id, TOKENIZER_SKIP, &text) : 0;
        if (len < 0) return fail();
        if (back) write_list(text_out, text, len, 1);
        i += 4 + (size_t)n;
    }
    CHECK(fclose(out) == 0 && (!back || fclose(text_out) == 0), "writing %s", to);
    file_unmap(&m);
    tokenizer_scratch_destroy(s);
    tokenizer_scratch_destroy(s_back);
    return 0;
}

static int same(const Tokenizer *t, TokenizerScratch *s, const char *p, size_t n)
{
    const int32_t *ids;
    const char    *text;
    int64_t        n_id = tokenizer_encode(t, s, p, n, TOKENIZER_FRAME, &ids);
    int64_t        len  = n_id < 0 ? -1 : tokenizer_decode(t, s, ids, n_id, TOKENIZER_FRAME, &text);
    return len == (int64_t)n && memcmp(text, p, n) == 0;
}

static int round_trip(const Tokenizer *t, const char *path)
{
    FileMap           m;
    TokenizerScratch *s = tokenizer_scratch_create(t);
    if (!s || file_map(&m, path) < 0) return fail();
    const char *p   = m.data;
    int         bad = !same(t, s, p, m.size_bytes);
    for (size_t i = 0, n = 1; i + n < m.size_bytes && !bad; i += n, n = n % 997 + 13)
        bad = !same(t, s, p + i, n);
    file_unmap(&m);
    tokenizer_scratch_destroy(s);
    if (bad) printf("%s: not the same bytes %s\n", path, err_get());
    return bad;
}

/* ---- speed ---- */

typedef struct {
    const Tokenizer *t;
    const char      *p;
    size_t           n;
    double           bytes, time_s, cpu_s;
    Thread           thread;
} Bench;

/* Of this thread: what others do on the machine does not count. */
static double cpu_now_s(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0, "no CPU clock");
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void bench_body(void *arg)
{
    Bench            *b = arg;
    TokenizerScratch *s = tokenizer_scratch_create(b->t);
    const int32_t    *ids;
    double            begin_s = clock_now_s(), cpu_s = cpu_now_s();
    CHECK(s, "%s", err_get());
    for (size_t i = 0; b->time_s < BENCH_S; i = i + DOC_BYTES < b->n ? i + DOC_BYTES : 0) {
        size_t n = MIN((size_t)DOC_BYTES, b->n - i);
        CHECK(tokenizer_encode(b->t, s, b->p + i, n, 0, &ids) >= 0, "%s", err_get());
        b->bytes += (double)n;
        b->time_s = clock_now_s() - begin_s;
    }
    b->cpu_s = cpu_now_s() - cpu_s;
    tokenizer_scratch_destroy(s);
}

static int bench(const Tokenizer *t, const char *path, int n)
{
    FileMap m;
    Bench  *b    = calloc((size_t)n, sizeof *b);
    double  rate = 0, cpu = 0;
    if (!b || file_map(&m, path) < 0) return fail();
    for (int i = 0; i < n; i++) {
        size_t skip = m.size_bytes / (size_t)n * (size_t)i;
        b[i]        = (Bench){ .t = t, .p = (const char *)m.data + skip, .n = m.size_bytes - skip };
        if (thread_start(&b[i].thread, "bench", bench_body, &b[i]) < 0) return fail();
    }
    for (int i = 0; i < n; i++) {
        thread_join(&b[i].thread);
        rate += b[i].bytes / b[i].time_s;
        cpu += b[i].bytes / b[i].cpu_s;
    }
    printf("%.2f %.2f\n", rate / 1e6, cpu / 1e6);
    free(b);
    file_unmap(&m);
    return 0;
}

int main(int argc, char **argv)
{
    Tokenizer *t = NULL;
    if (argc < 4) return 2;
    if (tokenizer_open(&t, argv[2]) < 0) return fail();
    int rc = 2;
    if (strcmp(argv[1], "encode") == 0 && argc == 5) rc = convert(t, argv[3], argv[4], NULL);
    if (strcmp(argv[1], "both") == 0 && argc == 6) rc = convert(t, argv[3], argv[4], argv[5]);
    if (strcmp(argv[1], "round") == 0) rc = round_trip(t, argv[3]);
    if (strcmp(argv[1], "bench") == 0 && argc == 5) rc = bench(t, argv[3], atoi(argv[4]));
    tokenizer_close(t);
    return rc;
}
