#define _GNU_SOURCE /* getrusage */
/* What the tests of token shards measure, in one program:
 *   sparse FILE TOKENS DOCUMENTS       a shard of so many tokens (all 0) with an index, as a file with a hole
 *   feed SECONDS RECIPE [KEY=VALUE]    takes batches of 16 samples for so long; prints tokens/s in millions,
 *                                      loader threads, and the peak of resident memory in MB
 *   stream SAMPLES RECIPE [KEY=VALUE]  a hash of the first samples of a recipe */
#include "base/clock.h"
#include "base/err.h"
#include "data/loader.h"
#include "data/windows.h"
#include "file/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { VOCAB = 50257, B = 16, SLOTS = 8 };

static int fail(void)
{
    fprintf(stderr, "%s\n", err_get());
    return err_kind() == ERR_USER ? 2 : 1;
}

static int write_sparse(const char *path, int64_t n_token, int64_t n_doc)
{
    unsigned char header[SHARD_HEADER_BYTES];
    ShardHeader   h    = { .token_bytes = 2,
                           .n_token     = n_token,
                           .vocab       = VOCAB,
                           .n_doc       = n_doc,
                           .end_token   = 0,
                           .begin_token = -1 };
    int64_t      *tail = calloc((size_t)n_doc + 2, sizeof *tail);
    FILE         *f    = fopen(path, "wb");
    CHECK(tail && f, "%s", path);
    for (int64_t i = 0; i < n_doc; i++) tail[i] = i + 1 == n_doc ? n_token : n_token / n_doc * (i + 1);
    tail[n_doc + 1] = (int64_t)XXH64(tail, sizeof *tail * (size_t)(n_doc + 1), 0);
    shard_format(&h, header);
    CHECK(fwrite(header, sizeof header, 1, f) == 1, "write");
    CHECK(fseeko(f, SHARD_HEADER_BYTES + 2 * n_token, SEEK_SET) == 0, "seek");
    CHECK(fwrite(tail, sizeof *tail, (size_t)n_doc + 2, f) == (size_t)n_doc + 2 && fclose(f) == 0, "write");
    free(tail);
    return 0;
}

typedef struct {
    Source *src;
    Loader *loader;
    Fields  f;
    void   *slot[SLOTS];
} Feed;

static int open_feed(Feed *w, const Recipe *r)
{
    FieldRow row[FIELDS_MAX];
    TRY(windows_open_train(&w->src, r));
    fields_init(&w->f, row, windows_fields(r, row), B);
    for (int i = 0; i < SLOTS; i++) w->slot[i] = aligned_alloc(64, w->f.block_bytes);
    LoaderConfig cfg = { .fields = w->f, .threads = (int)r->data.threads, .slots = w->slot, .n_slot = SLOTS };
    return loader_create(&w->loader, &cfg, w->src);
}

static void close_feed(Feed *w)
{
    loader_destroy(w->loader);
    source_close(w->src);
    for (int i = 0; i < SLOTS; i++) free(w->slot[i]);
}

static int feed(const Recipe *r, double seconds)
{
    Feed          w = { 0 };
    LoaderBatch   b;
    LoaderStats   s;
    struct rusage u;
    int64_t       n = 0;
    TRY(open_feed(&w, r));
    double begin_s = clock_now_s();
    while (clock_now_s() - begin_s < seconds) {
        TRY(loader_next(w.loader, &b));
        n += b.n_target[0];
        loader_release(w.loader, b.slot);
    }
    loader_stats(w.loader, &s);
    getrusage(RUSAGE_SELF, &u);
    printf("%.2f %d %.0f\n", (double)n / (clock_now_s() - begin_s) / 1e6, s.n_thread,
           (double)u.ru_maxrss / 1e3);
    close_feed(&w);
    return 0;
}

static int stream(const Recipe *r, int64_t n_sample)
{
    Feed          w = { 0 };
    LoaderBatch   b;
    XXH64_state_t h;
    TRY(open_feed(&w, r));
    XXH64_reset(&h, 0);
    for (int64_t g = 0; g < n_sample; g += B) {
        TRY(loader_next(w.loader, &b));
        XXH64_update(&h, b.host, w.f.block_bytes);
        loader_release(w.loader, b.slot);
    }
    printf("%016llx\n", (unsigned long long)XXH64_digest(&h));
    close_feed(&w);
    return 0;
}

int main(int argc, char **argv)
{
    Recipe r;
    if (argc < 4) return 2;
    if (strcmp(argv[1], "sparse") == 0) return write_sparse(argv[2], atoll(argv[3]), atoll(argv[4]));
    if (recipe_load(&r, argv[3], argc - 4, argv + 4) < 0) return fail();
    int rc = strcmp(argv[1], "feed") == 0 ? feed(&r, atof(argv[2])) : stream(&r, atoll(argv[2]));
    return rc < 0 ? fail() : 0;
}
