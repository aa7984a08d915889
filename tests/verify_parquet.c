/* What the tests of Parquet ask, in one program:
 *   dump FILE [FIELD]    the documents of a file, each as its length in 4 bytes and its text; stderr says how
 *                        many documents and how many nulls there are
 *   speed FILE [FIELD]   megabytes of text that one thread reads in a second of its CPU, the best of three */
#include "base/err.h"
#include "data/documents.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int fail(void)
{
    fprintf(stderr, "%s\n", err_get());
    return err_kind() == ERR_USER ? 2 : 1;
}

typedef struct {
    int64_t n_doc, n_null, n_byte;
} Sum;

static int read_all(const char *path, const char *field, int dump, Sum *sum)
{
    DocumentsConfig cfg = { .path = &path, .n_path = 1, .field = field };
    Documents      *d   = NULL;
    DocumentBatch   b   = { 0 };
    *sum                = (Sum){ 0 };
    int rc              = documents_open(&d, &cfg);
    while (rc >= 0 && (rc = documents_next(d, &b)) > 0) {
        for (int64_t i = 0; i < b.n && rc >= 0; i++) {
            DocumentText t;
            rc = documents_text(&cfg, &b, i, &t);
            if (rc > 0) {
                uint32_t n = (uint32_t)t.n;
                if (dump) CHECK(fwrite(&n, sizeof n, 1, stdout) == 1, "write");
                if (dump) CHECK(fwrite(t.text, 1, t.n, stdout) == t.n, "write");
                sum->n_doc++;
                sum->n_byte += (int64_t)t.n;
            }
            documents_text_free(&t);
        }
    }
    if (rc == 0) sum->n_null = documents_nulls(d);
    documents_batch_deinit(&b);
    documents_close(d);
    return rc;
}

int main(int n, char **arg)
{
    Sum    s;
    double best_s = 1e9;
    CHECK(n >= 3, "dump or speed, and a file");
    const char *field = n > 3 ? arg[3] : "text";
    int         dump  = strcmp(arg[1], "dump") == 0;
    for (int i = 0; i < (dump ? 1 : 3); i++) {
        clock_t begin = clock(); /* of the CPU: others may use it, too */
        if (read_all(arg[2], field, dump, &s) < 0) return fail();
        best_s = MIN(best_s, (double)(clock() - begin) / CLOCKS_PER_SEC);
    }
    if (dump) {
        fprintf(stderr, "%lld documents, %lld nulls\n", (long long)s.n_doc, (long long)s.n_null);
    } else {
        printf("%.0f MB/s, %lld documents, %.1f MB\n", (double)s.n_byte / best_s / 1e6, (long long)s.n_doc,
               (double)s.n_byte / 1e6);
    }
    return 0;
}
