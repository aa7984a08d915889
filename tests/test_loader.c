/* The loader: the same batches whatever the threads, the micro-batch, the ranks and the place of resuming. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hostmem.h"
#include "base/fault.h"
#include "conf/schema.h"
#include "data/loader.h"
#include "data/order.h"
#include "data/windows.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_TEXT = 5000, T = 16 };

static unsigned char text[N_TEXT];
static char          path[64];

static int text_setup(void **state)
{
    strcpy(path, "/tmp/brim_loader_XXXXXX");
    int fd = mkstemp(path);
    for (int i = 0; i < N_TEXT; i++) text[i] = (unsigned char)(i % 7 == 3 ? 0 : 1 + (i * 31 + i / 97) % 255);
    int ok = fd >= 0 && write(fd, text, N_TEXT) == N_TEXT;
    if (fd >= 0) close(fd);
    (void)state;
    return ok ? 0 : -1;
}

static int text_teardown(void **state)
{
    unlink(path);
    err_clear();
    fault_disarm();
    (void)state;
    return 0;
}

/* ---- A loader with its slots --------------------------------------------------------------------------- */

/* What a loader reads and how: the recipe's part, and the loader's own configuration. */
typedef struct {
    int64_t      B, T, seed, eval_most;
    int          documents, eval; /* documents: text is cut at zeros */
    double       val_fraction;
    LoaderConfig loader; /* without fields and slots */
} Config;

typedef struct {
    Source *src;
    Loader *loader;
    Fields  fields;
    void   *slot[16];
    int     n_slot;
} Bench;

static Recipe recipe_of(const Config *c)
{
    Recipe r;
    memset(&r, 0, sizeof r);
    r.seed                = c->seed;
    r.model.vocab         = 256;
    r.model.context       = c->T;
    r.model.mask          = c->documents ? MASKING_DOCUMENT : MASKING_CAUSAL;
    r.data.document_token = c->documents ? 0 : -1;
    r.data.kind           = DATA_TEXT;
    r.data.val_fraction   = c->val_fraction;
    snprintf(r.data.train, sizeof r.data.train, "%s", path);
    return r;
}

/* Makes slots and a loader for a source, which it takes. */
static int bench_on(Bench *b, const Config *c, const Recipe *r, Source *src)
{
    FieldRow     row[FIELDS_MAX];
    LoaderConfig cfg = c->loader;
    *b               = (Bench){ .src = src, .n_slot = cfg.n_slot };
    fields_init(&b->fields, row, windows_fields(r, row), c->B);
    for (int i = 0; i < cfg.n_slot; i++) {
        b->slot[i] = aligned_alloc(64, b->fields.block_bytes);
        assert_non_null(b->slot[i]);
        memset(b->slot[i], 0xee, b->fields.block_bytes);
    }
    cfg.fields = b->fields;
    cfg.slots  = b->slot;
    return loader_create(&b->loader, &cfg, src);
}

static int bench_try(Bench *b, Config c)
{
    Recipe  r   = recipe_of(&c);
    Source *src = NULL;
    *b          = (Bench){ 0 };
    TRY(c.eval ? windows_open_val(&src, &r, c.eval_most, NULL) : windows_open_train(&src, &r));
    return bench_on(b, &c, &r, src);
}

static void bench_close(Bench *b)
{
    loader_destroy(b->loader);
    for (int i = 0; i < b->n_slot; i++) free(b->slot[i]);
    source_close(b->src);
}

static void bench_open(Bench *b, Config c)
{
    if (bench_try(b, c) < 0) fail_msg("%s", err_get());
}

static Config config_of(int64_t B, int threads, int n_slot)
{
    return (Config){ .B = B, .T = T, .seed = 3, .loader = { .threads = threads, .n_slot = n_slot } };
}

/* Field i of all samples of a batch. */
static const int32_t *field_of(const Bench *b, const LoaderBatch *batch, int i)
{
    return fields_at(&b->fields, batch->host, i, 0);
}

/* Appends n batches: rows of tok, target and doc go to out, one row of 3*T after another. */
static void collect(Bench *b, int64_t B, int n, int32_t *out)
{
    for (int k = 0; k < n; k++) {
        LoaderBatch batch;
        if (loader_next(b->loader, &batch) < 0) fail_msg("%s", err_get());
        for (int64_t i = 0; i < B; i++, out += 3 * T) {
            memset(out, 0, 3 * T * sizeof *out);
            for (int f = 0; f < b->fields.n; f++) {
                memcpy(out + f * T, field_of(b, &batch, f) + i * T, T * sizeof *out);
            }
        }
        loader_release(b->loader, batch.slot);
    }
}

/* Batches [0, n) of a configuration, each row 3*T; the caller frees them. */
static int32_t *batches_of(Config cfg, int n)
{
    Bench    b;
    int32_t *out = malloc(sizeof *out * (size_t)(n * cfg.B) * 3 * T);
    assert_non_null(out);
    bench_open(&b, cfg);
    collect(&b, cfg.B, n, out);
    bench_close(&b);
    return out;
}

static void assert_same_rows(const int32_t *a, const int32_t *b, int64_t n_row)
{
    for (int64_t i = 0; i < n_row; i++) {
        if (memcmp(a + i * 3 * T, b + i * 3 * T, 3 * T * sizeof *a) != 0)
            fail_msg("row %lld differs", (long long)i);
    }
}

/* ---- Contents ------------------------------------------------------------------------------------------ */

static void batches_follow_the_order(void **state)
{
    Config cfg = config_of(4, 1, 2);
    Bench  b;
    Order  o;
    order_init(&o, N_TEXT, T, (uint64_t)cfg.seed);
    cfg.documents = 1;
    bench_open(&b, cfg);
    assert_int_equal(b.fields.offset[WINDOW_TOK], 64);
    assert_int_equal(b.fields.offset[WINDOW_TARGET], 64 + 4 * T * 4);
    assert_int_equal(b.fields.offset[WINDOW_EXTRA], 64 + 2 * 4 * T * 4);
    assert_int_equal(b.fields.block_bytes, 64 + 3 * 4 * T * 4);
    for (int64_t k = 0; k < 200; k++) { /* 800 samples: more than two epochs */
        LoaderBatch batch;
        assert_int_equal(loader_next(b.loader, &batch), 0);
        assert_int_equal(batch.sample0, 4 * k);
        assert_int_equal(fields_sample0(batch.host), 4 * k);
        assert_int_equal(batch.n_target[0], 4 * T);
        assert_int_equal(batch.slot, k % 2);
        assert_ptr_equal(batch.host, b.slot[k % 2]);
        const int32_t *tok = field_of(&b, &batch, WINDOW_TOK), *target = field_of(&b, &batch, WINDOW_TARGET),
                      *doc = field_of(&b, &batch, WINDOW_EXTRA);
        for (int64_t i = 0; i < 4; i++) {
            int64_t start = order_start(&o, 4 * k + i), first = 0;
            for (int64_t t = 0; t < T; t++) {
                assert_int_equal(tok[i * T + t], text[start + t]);
                assert_int_equal(target[i * T + t], text[start + t + 1]);
                if (t > 0 && text[start + t - 1] == 0) first = t;
                assert_int_equal(doc[i * T + t], first);
            }
        }
        loader_release(b.loader, batch.slot);
    }
    bench_close(&b);
    (void)state;
}

static void threads_do_not_matter(void **state)
{
    Config cfg             = config_of(3, 0, 1);
    cfg.loader.inline_fill = 1;
    cfg.documents          = 1;
    int32_t *want          = batches_of(cfg, 250);
    cfg.loader.inline_fill = 0;
    const int threads[] = { 0, 1, 2, 5 }, slots[] = { 1, 2, 3, 8 };
    for (int i = 0; i < ARRAY_LEN(threads); i++) {
        for (int k = 0; k < ARRAY_LEN(slots); k++) {
            cfg.loader.threads = threads[i];
            cfg.loader.n_slot  = slots[k];
            int32_t *got       = batches_of(cfg, 250);
            assert_same_rows(want, got, 750);
            free(got);
        }
    }
    free(want);
    (void)state;
}

static void micro_batch_does_not_matter(void **state)
{
    int32_t *want = batches_of(config_of(1, 2, 4), 720);
    for (int64_t B = 2; B <= 16; B *= 2) {
        int32_t *got = batches_of(config_of(B, 2, 4), (int)(720 / B));
        assert_same_rows(want, got, 720);
        free(got);
    }
    Config cfg     = config_of(3, 1, 4);
    cfg.seed       = 4;
    int32_t *other = batches_of(cfg, 240);
    assert_memory_not_equal(want, other, 720 * 3 * T * sizeof *want);
    free(other);
    free(want);
    (void)state;
}

static void resume_continues(void **state)
{
    int32_t *want = batches_of(config_of(4, 2, 3), 200);
    for (int64_t at = 1; at < 800; at += 133) { /* anywhere, also inside what was a micro-batch */
        Config cfg              = config_of(3, 2, 3);
        cfg.loader.first_sample = at;
        int      n              = (int)((800 - at) / 3);
        int32_t *got            = batches_of(cfg, n);
        assert_same_rows(want + at * 3 * T, got, 3 * n);
        free(got);
    }
    Bench    b;
    int32_t *got = malloc(sizeof *got * 800 * 3 * T);
    assert_non_null(got);
    bench_open(&b, config_of(4, 2, 3));
    for (int k = 0; k < 20; k++) { /* restart after any number of batches */
        collect(&b, 4, k, got);
        assert_same_rows(want, got, 4 * k);
        assert_int_equal(loader_restart(b.loader, 300), 0);
        collect(&b, 4, 25, got);
        assert_same_rows(want + 300 * 3 * T, got, 100);
        assert_int_equal(loader_restart(b.loader, 0), 0);
    }
    bench_close(&b);
    free(got);
    free(want);
    (void)state;
}

static void ranks_share_exactly(void **state)
{
    int32_t *want = batches_of(config_of(2, 1, 2), 120);
    for (int world = 1; world <= 4; world++) {
        for (int rank = 0; rank < world; rank++) {
            Config cfg       = config_of(2, 2, 2);
            cfg.loader.rank  = rank;
            cfg.loader.world = world;
            int32_t *got     = batches_of(cfg, 120 / world);
            for (int k = 0; k < 120 / world; k++) {
                assert_same_rows(want + (int64_t)(k * world + rank) * 2 * 3 * T, got + (int64_t)k * 2 * 3 * T,
                                 2);
            }
            free(got);
        }
    }
    free(want);
    (void)state;
}

static void skipped_samples_are_passed_over(void **state)
{
    const SampleRange skip[] = { { 500, 3 }, { 10, 2 }, { 11, 20 } }; /* not sorted, overlapping */
    int32_t          *want   = batches_of(config_of(1, 2, 4), 720);
    Config            cfg    = config_of(4, 2, 4);
    cfg.loader.skip          = skip;
    cfg.loader.n_skip        = 3;
    int32_t *got             = batches_of(cfg, 170);
    int64_t  used            = 0;
    for (int64_t raw = 0; used < 680; raw++) {
        if ((raw >= 10 && raw < 31) || (raw >= 500 && raw < 503)) continue;
        assert_same_rows(want + raw * 3 * T, got + used * 3 * T, 1);
        used++;
    }
    /* Resuming counts used samples. */
    cfg.loader.first_sample = 477;
    int32_t *rest           = batches_of(cfg, 10);
    assert_same_rows(got + (int64_t)477 * 3 * T, rest, 40);
    free(rest);
    free(got);
    free(want);
    (void)state;
}

/* A cursor from a forged checkpoint: refused before anything is added to it. */
static void far_cursor_is_refused(void **state)
{
    static const int64_t at[] = { INT64_MAX, INT64_MAX - 3, ORDER_MOST + 1 };
    for (int i = 0; i < ARRAY_LEN(at); i++) {
        Config cfg = config_of(4, 2, 4);
        Bench  b;
        cfg.loader.first_sample = at[i];
        assert_int_equal(bench_try(&b, cfg), -1);
        assert_non_null(strstr(err_get(), "is too large"));
        err_clear();
        bench_close(&b);
    }
    Config cfg              = config_of(4, 2, 4);
    cfg.loader.first_sample = ORDER_MOST;
    free(batches_of(cfg, 10));
    (void)state;
}

/* Every target of the validation part once, in order; then batches without targets. */
static void evaluation_covers_exactly(void **state)
{
    for (double fraction = 0.0004; fraction < 0.2; fraction *= 1.7) {
        Config cfg = config_of(3, 2, 3);
        Bench  b;
        cfg.eval         = 1;
        cfg.val_fraction = fraction;
        bench_open(&b, cfg);
        int64_t n = b.src->size, at = N_TEXT - n;
        int     n_batch = (int)((order_eval_windows(n, T) + 2) / 3) + 2;
        for (int round = 0; round < 2; round++) {
            int64_t seen = 0;
            for (int k = 0; k < n_batch; k++) {
                LoaderBatch batch;
                int64_t     valid = 0;
                assert_int_equal(loader_next(b.loader, &batch), 0);
                const int32_t *tok    = field_of(&b, &batch, WINDOW_TOK),
                              *target = field_of(&b, &batch, WINDOW_TARGET);
                for (int64_t i = 0; i < 3 * T; i++) {
                    int64_t token = (batch.sample0 * T) + i;
                    assert_int_equal(target[i], token < n - 1 ? text[at + token + 1] : -1);
                    assert_int_equal(tok[i], token < n - 1 ? text[at + token] : 0);
                    valid += target[i] >= 0;
                }
                assert_int_equal(batch.n_target[0], valid);
                seen += valid;
                loader_release(b.loader, batch.slot);
            }
            assert_int_equal(seen, n - 1);
            assert_int_equal(loader_restart(b.loader, 0), 0);
        }
        bench_close(&b);
    }
    (void)state;
}

/* Rows with targets of an evaluation of `most` windows by one rank; each holds the window it is to hold. */
static int64_t check_some_windows(int64_t B, int rank, int world, int64_t most)
{
    Config  cfg = config_of(B, 2, 3);
    Bench   b;
    int64_t rows = 0;
    int32_t want[T + 1];
    cfg.eval         = 1;
    cfg.eval_most    = most;
    cfg.loader.rank  = rank;
    cfg.loader.world = world;
    cfg.val_fraction = 0.2;
    bench_open(&b, cfg);
    int64_t              n_window = order_eval_windows(b.src->size, T);
    const unsigned char *part     = text + N_TEXT - b.src->size;
    assert_true(n_window > 12);
    for (int k = 0; k < 8; k++) {
        LoaderBatch batch;
        assert_int_equal(loader_next(b.loader, &batch), 0);
        const int32_t *tok = field_of(&b, &batch, WINDOW_TOK), *target = field_of(&b, &batch, WINDOW_TARGET);
        for (int64_t i = 0; i < B * T; i++) {
            assert_int_equal(target[i] >= 0, batch.sample0 + i / T < most);
        }
        for (int64_t i = 0; i < B && batch.sample0 + i < most; i++, rows++) {
            int64_t first = (batch.sample0 + i) * n_window / most * T;
            for (int t = 0; t <= T; t++) want[t] = part[first + t];
            assert_memory_equal(tok + i * T, want, sizeof *want * T);
            assert_memory_equal(target + i * T, want + 1, sizeof *want * T);
        }
        loader_release(b.loader, batch.slot);
    }
    bench_close(&b);
    return rows;
}

/* A number of windows that ends within a batch: the rows after it have no targets. Those before it are spread
 * over the source, the same ones whatever the micro-batch and the ranks. */
static void evaluation_of_some_windows(void **state)
{
    for (int64_t B = 1; B <= 4; B++) {
        for (int world = 1; world <= 3; world++) {
            int64_t rows = 0;
            for (int rank = 0; rank < world; rank++) rows += check_some_windows(B, rank, world, 7);
            assert_int_equal(rows, 7);
        }
    }
    (void)state;
}

static void too_short_is_refused(void **state)
{
    Bench  b;
    Config cfg = config_of(1, 1, 1);
    cfg.T      = N_TEXT;
    assert_int_equal(bench_try(&b, cfg), -1);
    assert_non_null(strstr(err_get(), "too few"));
    assert_non_null(strstr(err_get(), path));
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
    bench_close(&b);
    cfg.T = N_TEXT - 1; /* exactly one window */
    assert_int_equal(bench_try(&b, cfg), 0);
    LoaderBatch batch;
    assert_int_equal(loader_next(b.loader, &batch), 0);
    for (int i = 0; i < N_TEXT - 1; i++)
        assert_int_equal(field_of(&b, &batch, WINDOW_TARGET)[i], text[i + 1]);
    bench_close(&b);
    (void)state;
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

static void destroy_never_hangs(void **state)
{
    alarm(60); /* a hang becomes a failure */
    for (int i = 0; i < 400; i++) {
        Bench       b;
        LoaderBatch batch;
        bench_open(&b, config_of(1 + i % 3, 1 + i % 5, 1 + i % 4));
        for (int k = 0; k < i % 7 && k < 1 + i % 4; k++) { /* some slots stay held */
            assert_int_equal(loader_next(b.loader, &batch), 0);
        }
        if (i % 3 == 0) usleep(200); /* all threads asleep in a full ring */
        bench_close(&b);
    }
    loader_destroy(NULL);
    alarm(0);
    (void)state;
}

/* Several slots held, a tiny ring, more threads than slots: 20000 batches without a slip. */
static void tiny_rings_stress(void **state)
{
    Order o;
    order_init(&o, N_TEXT, T, 3);
    alarm(120);
    for (int n_slot = 1; n_slot <= 4; n_slot++) {
        Bench b;
        int   held[4], n_held = 0;
        bench_open(&b, config_of(1, 5, n_slot));
        for (int64_t k = 0; k < 5000; k++) {
            LoaderBatch batch;
            if (loader_next(b.loader, &batch) < 0) fail_msg("%s", err_get());
            if (batch.sample0 != k || field_of(&b, &batch, WINDOW_TOK)[0] != text[order_start(&o, k)])
                fail_msg("batch %lld", (long long)k);
            held[n_held++] = batch.slot;
            int keep       = (int)(k * 7 % n_slot); /* release all but some */
            while (n_held > keep) {
                loader_release(b.loader, held[0]);
                memmove(held, held + 1, sizeof *held * (size_t)--n_held);
            }
        }
        bench_close(&b);
    }
    alarm(0);
    (void)state;
}

static void failures_reach_the_consumer(void **state)
{
    for (int threads = 0; threads <= 3; threads++) {
        Bench       b;
        LoaderBatch batch;
        Config      cfg        = config_of(2, threads, 3);
        cfg.loader.inline_fill = threads == 0;
        int n                  = 0;
        bench_open(&b, cfg);
        assert_int_equal(truncate(path, 100), 0);
        while (loader_next(b.loader, &batch) == 0) {
            assert_int_equal(batch.sample0, 2 * n++); /* what was filled before is handed out, in order */
            loader_release(b.loader, batch.slot);
            assert_true(n < 1000);
        }
        assert_non_null(strstr(err_get(), path));
        assert_non_null(strstr(err_get(), "shorter"));
        err_clear();
        assert_int_equal(loader_next(b.loader, &batch), -1); /* and again */
        assert_non_null(strstr(err_get(), "shorter"));
        err_clear();
        text_teardown(state);
        text_setup(state); /* a new file; the open one stays short */
        assert_int_equal(loader_restart(b.loader, 0), 0);
        assert_int_equal(loader_next(b.loader, &batch), -1);
        err_clear();
        bench_close(&b);
    }
}

/* The seventh read fails, whichever thread meets it; at most six good samples come before. */
static void injected_read_failure(void **state)
{
    for (int threads = 1; threads <= 4; threads++) {
        Bench       b;
        LoaderBatch batch;
        int         n = 0;
        fault_arm(FAULT_READ, 8, 1); /* the first read looks whether the file is text */
        bench_open(&b, config_of(1, threads, 4));
        while (loader_next(b.loader, &batch) == 0) {
            assert_int_equal(batch.sample0, n++);
            loader_release(b.loader, batch.slot);
            assert_true(n <= 6);
        }
        /* With 4 slots a batch waits for at most 3 later ones, so the 7th, 8th ... of these reads belong to
         * batches 3, 4 ... or later. */
        assert_true(threads == 1 ? n == 6 : n >= 3);
        assert_non_null(strstr(err_get(), path));
        assert_int_equal(err_kind(), ERR_RUN);
        err_clear();
        fault_disarm();
        assert_int_equal(loader_restart(b.loader, 0), 0); /* a passing fault is over */
        assert_int_equal(loader_next(b.loader, &batch), 0);
        bench_close(&b);
    }
    (void)state;
}

static void injected_thread_failure(void **state)
{
    for (int nth = 1; nth <= 3; nth++) {
        Bench b;
        fault_arm(FAULT_THREAD, nth, 0);
        assert_int_equal(bench_try(&b, config_of(1, 3, 4)), -1);
        assert_non_null(strstr(err_get(), "loader"));
        assert_null(b.loader);
        err_clear();
        fault_disarm();
        bench_close(&b);
    }
    Bench b;
    bench_open(&b, config_of(1, 3, 4));
    fault_arm(FAULT_THREAD, 2, 0);
    assert_int_equal(loader_restart(b.loader, 0), -1);
    err_clear();
    bench_close(&b);
    (void)state;
}

/* Runs f in a child and expects CHECK to abort it. */
static void assert_aborts(void (*f)(Bench *))
{
    Bench b;
    bench_open(&b, config_of(1, 0, 2));
    loader_destroy(b.loader);
    b.loader  = NULL;
    pid_t pid = fork(); /* without threads, which a fork would lose */
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        LoaderConfig cfg = { .fields = b.fields, .inline_fill = 1, .slots = b.slot, .n_slot = 2 };
        if (loader_create(&b.loader, &cfg, b.src) == 0) f(&b);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    bench_close(&b);
}

static void hold_all(Bench *b)
{
    LoaderBatch batch;
    for (int i = 0; i < 3; i++) loader_next(b->loader, &batch);
}

static void release_twice(Bench *b)
{
    LoaderBatch batch;
    loader_next(b->loader, &batch);
    loader_release(b->loader, batch.slot);
    loader_release(b->loader, batch.slot);
}

static void release_in_disorder(Bench *b)
{
    LoaderBatch x, y;
    loader_next(b->loader, &x);
    loader_next(b->loader, &y);
    loader_release(b->loader, y.slot);
}

static void restart_while_holding(Bench *b)
{
    LoaderBatch batch;
    loader_next(b->loader, &batch);
    loader_restart(b->loader, 0);
}

static void misuse_aborts(void **state)
{
    assert_aborts(hold_all);
    assert_aborts(release_twice);
    assert_aborts(release_in_disorder);
    assert_aborts(restart_while_holding);
    (void)state;
}

static void stats_add_up(void **state)
{
    Bench       b;
    LoaderStats s;
    LoaderBatch batch;
    bench_open(&b, config_of(8, 2, 4));
    loader_stats(b.loader, &s);
    assert_int_equal(s.batches, 0);
    assert_true(loader_headroom(&s) == 0);
    double begin_s = clock_now_s();
    for (int k = 0; k < 50; k++) {
        assert_int_equal(loader_next(b.loader, &batch), 0);
        usleep(1000); /* a consumer that is slower than the loader */
        loader_release(b.loader, batch.slot);
    }
    loader_stats(b.loader, &s);
    double took_s = clock_now_s() - begin_s;
    assert_int_equal(s.batches, 50);
    assert_int_equal(s.n_thread, 2);
    assert_true(s.elapsed_s >= 0.05 && s.elapsed_s <= took_s);
    assert_true(s.waited_s >= 0 && s.waited_s < took_s);
    assert_true(s.fill_s > 0);
    assert_true(loader_headroom(&s) > 1);
    bench_close(&b);
    (void)state;
}

/* A source that takes 4 ms a sample, whatever the CPU does. */
static int slow_fill(const Source *s, int64_t g, void *const *field, void *scratch)
{
    usleep(4000);
    memset(field[0], (int)(g % 100), sizeof(int32_t) * T);
    (void)s;
    (void)scratch;
    return 0;
}

static void slow_close(Source *s) { free(s); }

static const SourceVt slow_vt = { .fill = slow_fill, .close = slow_close };

static void slow_open(Bench *b, int threads)
{
    Config  cfg = config_of(1, threads, 8);
    Recipe  r   = recipe_of(&cfg);
    Source *src = calloc(1, sizeof *src);
    assert_non_null(src);
    *src = (Source){ .vt = &slow_vt, .name = "slow", .n_sample = INT64_MAX, .targets_each = { T } };
    assert_int_equal(bench_on(b, &cfg, &r, src), 0);
}

/* 1: the headroom of 16 batches is what one batch takes the consumer and the thread, within a fifth. */
static int has_true_headroom(void)
{
    enum { N = 16, REST_US = 100000 };
    Bench       b;
    LoaderStats s;
    LoaderBatch batch;
    double      took_s = 0;
    slow_open(&b, 1);
    for (int k = 0; k < N; k++) {
        double begin_s = clock_now_s();
        assert_int_equal(loader_next(b.loader, &batch), 0);
        loader_release(b.loader, batch.slot);
        usleep(12000);
        took_s += clock_now_s() - begin_s;
        if (k % 6 != 5) continue;
        begin_s = clock_now_s();
        usleep(REST_US);
        loader_rest(b.loader, clock_now_s() - begin_s);
    }
    usleep(REST_US);
    loader_stats(b.loader, &s);
    bench_close(&b);
    double truth = took_s / s.fill_s, headroom = loader_headroom(&s);
    print_message("headroom %.2f, of %.2f\n", headroom, truth);
    return truth > 2 && headroom > truth / 1.2 && headroom < truth * 1.2 && s.elapsed_s >= took_s &&
           s.elapsed_s < took_s + 1.5 * REST_US * 1e-6;
}

/* Headroom compares the threads' time with the time between two batches taken, and with no other: neither an
 * evaluation in between nor the steps that are still under way when the last batch was taken count. Other
 * programs may take the CPU meanwhile: of five tries one has to be true. */
static void headroom_is_true(void **state)
{
    int is_true = 0;
    for (int k = 0; k < 5 && !is_true; k++) is_true = has_true_headroom();
    assert_true(is_true);
}

/* While the consumer waits, threads are added; a number that the user gave stays. */
static void threads_follow_the_wait(void **state)
{
    const char *help = schema_row(NULL, schema_find(NULL, "data.threads"))->help;
    assert_non_null(strstr(help, "0: a quarter of the CPUs, 1 to 4, and more while steps wait"));
    for (int threads = 0; threads < 2; threads++) {
        Bench       b;
        LoaderBatch batch;
        LoaderStats s;
        slow_open(&b, threads);
        int begun = MIN(MAX(hostmem_cpus() / 4, 1), 4);
        loader_stats(b.loader, &s);
        assert_int_equal(s.n_thread, threads == 0 ? begun : 1);
        for (int k = 0; k < 250; k++) {
            assert_int_equal(loader_next(b.loader, &batch), 0);
            assert_int_equal(field_of(&b, &batch, 0)[0] & 0xff, k % 100);
            loader_release(b.loader, batch.slot);
        }
        loader_stats(b.loader, &s);
        if (threads == 0) assert_true(s.n_thread > begun || hostmem_cpus() == 1);
        if (threads == 1) assert_int_equal(s.n_thread, 1);
        assert_int_equal(loader_restart(b.loader, 7), 0);
        assert_int_equal(loader_next(b.loader, &batch), 0);
        assert_int_equal(field_of(&b, &batch, 0)[0] & 0xff, 7);
        loader_release(b.loader, batch.slot);
        bench_close(&b);
    }
    (void)state;
}

/* The rate of one thread, for the record: the loader must be far ahead of the roughly 2M tokens/s of a
 * small model. */
static void rate_of_one_thread(void **state)
{
    for (int random = 0; random < 2; random++) {
        Config cfg             = config_of(8, 0, 1);
        cfg.T                  = 1024;
        cfg.loader.inline_fill = 1;
        Recipe r               = recipe_of(&cfg);
        r.model.vocab          = 50257;
        r.data.kind            = random ? DATA_RANDOM : DATA_TEXT;
        Source *src            = NULL;
        assert_int_equal(windows_open_train(&src, &r), 0);
        Bench       b;
        LoaderBatch batch;
        LoaderStats s;
        assert_int_equal(bench_on(&b, &cfg, &r, src), 0);
        for (int k = 0; k < 100; k++) {
            assert_int_equal(loader_next(b.loader, &batch), 0);
            loader_release(b.loader, batch.slot);
        }
        loader_stats(b.loader, &s);
        print_message("%s: %.0f M tokens/s a thread\n", random ? "random" : "text",
                      100 * 8 * 1024 / s.fill_s / 1e6);
        bench_close(&b);
    }
    (void)state;
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, text_setup, text_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(batches_follow_the_order),
        CASE(threads_do_not_matter),
        CASE(micro_batch_does_not_matter),
        CASE(resume_continues),
        CASE(ranks_share_exactly),
        CASE(skipped_samples_are_passed_over),
        CASE(far_cursor_is_refused),
        CASE(evaluation_covers_exactly),
        CASE(evaluation_of_some_windows),
        CASE(too_short_is_refused),
        CASE(destroy_never_hangs),
        CASE(tiny_rings_stress),
        CASE(failures_reach_the_consumer),
        CASE(injected_read_failure),
        CASE(injected_thread_failure),
        CASE(misuse_aborts),
        CASE(stats_add_up),
        CASE(headroom_is_true),
        CASE(threads_follow_the_wait),
        CASE(rate_of_one_thread),
    };
    return cmocka_run_group_tests_name("loader", tests, NULL, NULL);
}
