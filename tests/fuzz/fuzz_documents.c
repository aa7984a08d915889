/* Fuzz target: text as a user has it: packed or not, plain or JSON lines. Built with libFuzzer; the corpus is
 * beside it.
 *
 * The first byte of an input chooses format and separator; the rest is the file. A refusal must be the
 * user's and name the file. Documents must lie inside their batch, and plain text must lose nothing but its
 * separators.
 *
 * sources: src/file/stream.c src/file/parquet.c src/file/parquet_page.c src/file/parquet_values.c
 * src/file/snappy.c src/file/thrift.c src/data/documents.c src/data/inputs.c src/base/[a-z]*.c */
#define _GNU_SOURCE /* memfd_create, memmem */
#include "base/err.h"
#include "data/documents.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Bytes of all documents, or -1 for a refusal. */
static int64_t read_all(const DocumentsConfig *cfg)
{
    Documents    *d;
    DocumentBatch b   = { 0 };
    int64_t       sum = 0;
    int           rc  = 1;
    CHECK(documents_open(&d, cfg) == 0, "%s", err_get());
    while (rc > 0 && sum < 1 << 20 && (rc = documents_next(d, &b)) > 0) {
        for (int64_t i = 0; i < b.n && rc > 0; i++) {
            DocumentText t;
            CHECK(b.doc[i].at + b.doc[i].len <= b.len, "document %lld", (long long)i);
            int is = documents_text(cfg, &b, i, &t);
            if (is > 0) sum += (int64_t)t.n;
            if (is < 0) rc = -1;
            documents_text_free(&t);
        }
    }
    documents_batch_deinit(&b);
    documents_close(d);
    if (rc >= 0) return sum;
    CHECK(err_kind() == ERR_USER && strstr(err_get(), cfg->path[0]), "%s", err_get());
    err_clear();
    return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const separator[] = { NULL, "\n\n", "<|endoftext|>", "ab" };
    char                     name[64];
    if (n < 1) return 0;
    int fd = memfd_create("text", 0);
    CHECK(fd >= 0 && write(fd, bytes + 1, n - 1) == (ssize_t)(n - 1), "a file in memory");
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    const char     *path[] = { name };
    DocumentsConfig cfg    = { .path       = path,
                               .n_path     = 1,
                               .format     = bytes[0] & 4 ? DOCUMENTS_JSON : DOCUMENTS_TEXT,
                               .field      = "text",
                               .separator  = separator[bytes[0] & 3],
                               .keep_going = bytes[0] >> 3 & 1 };
    read_all(&cfg);
    /* Nothing is lost where nothing separates. */
    int is_packed = n >= 3 && (memcmp(bytes + 1, "\x1f\x8b", 2) == 0 || bytes[1] == 0x28);
    cfg.format    = DOCUMENTS_TEXT;
    cfg.separator = NULL;
    int64_t all   = read_all(&cfg);
    CHECK(is_packed || all == (int64_t)n - 1, "%lld of %zu bytes", (long long)all, n - 1);
    close(fd);
    return 0;
}
