/* Packing documents into windows (data/pack.h, data/windows.h): every token is a target once, windows hold
 * whole documents, any window can be had at any time, and the stream of samples does not depend on ranks,
 * threads, micro-batches or where a run was resumed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/folder.h"
#include "base/rng.h"
#include "data/loader.h"
#include "data/pack.h"
#include "data/windows.h"
#include "file/shard.h"
#include "file/shard_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VOCAB = 50000, END = 0, BEGIN = 1, MOST_DOC = 6000 };

typedef struct {
    char     dir[64];
    int64_t  n_doc, n_token;
    int64_t  first[MOST_DOC + 1];
    int32_t *tok;
} Set;

static uint32_t draw(uint64_t i, uint32_t n)
{
    uint32_t w[4];
    rng_philox(w, 7, 99, 0, i);
    return w[0] % n;
}

/* Documents of 1 to `longest` tokens in three shards; ids tell the place in the set. */
static void make_set(Set *s, int64_t n_doc, uint32_t longest, int begin)
{
    snprintf(s->dir, sizeof s->dir, "/tmp/brim_pack_XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    s->tok     = malloc(sizeof *s->tok * (size_t)n_doc * (longest + 2));
    s->n_doc   = n_doc;
    int64_t at = 0;
    for (int64_t d = 0; d < n_doc; d++) {
        int64_t n   = 1 + draw((uint64_t)d, d % 5 == 0 ? longest : 1 + longest / 8);
        s->first[d] = at;
        if (begin) s->tok[at++] = BEGIN;
        for (int64_t i = 0; i < n; i++, at++) s->tok[at] = (int32_t)(2 + at % (VOCAB - 2));
        s->tok[at++] = END;
    }
    s->first[n_doc] = s->n_token = at;
    for (int k = 0; k < 3; k++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%d.bin", s->dir, k);
        ShardWriter *w = shard_write_begin(path, VOCAB);
        assert_non_null(w);
        shard_write_marks(w, begin ? BEGIN : -1, END);
        for (int64_t d = n_doc * k / 3; d < n_doc * (k + 1) / 3; d++) {
            assert_int_equal(shard_write_add(w, s->tok + s->first[d], s->first[d + 1] - s->first[d]), 0);
            assert_int_equal(shard_write_end_document(w, 1), 0);
        }
        assert_int_equal(shard_write_publish(&w), 0);
    }
}

static void drop_set(Set *s)
{
    free(s->tok);
    folder_remove(s->dir);
    err_clear();
}

static Recipe recipe_of(const Set *s, int64_t T)
{
    Recipe r;
    memset(&r, 0, sizeof r);
    r.seed                = 5;
    r.model.vocab         = VOCAB;
    r.model.context       = T;
    r.model.mask          = MASKING_DOCUMENT;
    r.data.document_token = -1;
    r.data.kind           = DATA_TOKENS;
    r.data.pack           = PACK_BEST_FIT;
    snprintf(r.data.train, sizeof r.data.train, "%s", s->dir);
    return r;
}

static Source *open_train(const Recipe *r)
{
    Source *src = NULL;
    if (windows_open_train(&src, r) < 0) fail_msg("%s", err_get());
    return src;
}

typedef struct {
    int32_t *tok, *target, *doc;
    void    *field[3], *scratch;
} Room;

static Room room_of(const Source *s, int64_t T)
{
    Room m     = { calloc((size_t)T, 4), calloc((size_t)T, 4), calloc((size_t)T, 4), { 0 }, NULL };
    m.field[0] = m.tok;
    m.field[1] = m.target;
    m.field[2] = m.doc;
    m.scratch  = aligned_alloc(64, round_up((int64_t)s->scratch_bytes, 64));
    memset(m.scratch, 0, s->scratch_bytes);
    return m;
}

static void free_room(Room *m)
{
    free(m->tok);
    free(m->target);
    free(m->doc);
    free(m->scratch);
}

/* One window: what each token follows, and where its document begins. */
static void check_window(const Set *s, const Room *m, int64_t T, int begin, unsigned char *seen)
{
    for (int64_t t = 0; t < T; t++) {
        int32_t id = m->target[t];
        if (id < 0) {
            assert_int_equal(m->tok[t], 0);
            continue;
        }
        assert_true(m->doc[t] >= 0 && m->doc[t] <= t);
        if (t == 0) assert_int_equal(m->doc[t], 0);
        if (t > m->doc[t]) assert_int_equal(m->tok[t], m->target[t - 1]);
        if (t > 0 && m->doc[t] != t) assert_int_equal(m->doc[t], m->doc[t - 1]);
        if (id == END) continue;
        int64_t at = id - 2; /* the set is shorter than the vocabulary in these tests */
        assert_int_equal(s->tok[at], id);
        seen[at]++;
        int is_first = m->doc[t] == t && at > 0 && s->tok[at - 1] == (begin ? BEGIN : END);
        if (at == 0 || is_first) assert_int_equal(m->tok[t], begin ? BEGIN : END);
    }
}

static void cover(int64_t n_doc, uint32_t longest, int64_t T, int begin)
{
    Set s;
    make_set(&s, n_doc, longest, begin);
    assert_true(s.n_token < VOCAB - 2);
    Recipe         r    = recipe_of(&s, T);
    Source        *src  = open_train(&r);
    Room           m    = room_of(src, T);
    unsigned char *seen = calloc((size_t)s.n_token, 1);
    Tokens        *t;
    Pack          *p;
    assert_int_equal(tokens_open(&t, &r, 0), 0);
    assert_int_equal(pack_open(&p, t, T), 0);
    int64_t rows = pack_rows(p), targets = 0;
    for (int64_t g = 0; g < rows; g++) {
        int64_t n = source_targets(src, g, 0, m.scratch), is = 0;
        assert_int_equal(source_fill(src, g, m.field, m.scratch), 0);
        for (int64_t i = 0; i < T; i++) is += m.target[i] >= 0;
        assert_int_equal(n, is);
        targets += n;
        check_window(&s, &m, T, begin, seen);
    }
    assert_int_equal(targets, pack_targets(p));
    assert_int_equal(targets, s.n_token - (begin ? s.n_doc : 0)); /* all but the begin tokens */
    for (int64_t i = 0; i < s.n_token; i++) assert_int_equal(seen[i], s.tok[i] >= 2);
    print_message("%lld documents of up to %u tokens in windows of %lld: %.1f %% full\n", (long long)n_doc,
                  longest, (long long)T, 100.0 * (double)targets / (double)(rows * T));
    pack_close(p);
    tokens_close(t);
    source_close(src);
    free_room(&m);
    free(seen);
    drop_set(&s);
}

static void every_token_is_a_target_once(void **state)
{
    cover(300, 200, 64, 0);
    cover(300, 200, 64, 1);
    cover(5000, 9, 16, 0); /* blocks full of pieces before they are full of targets */
    cover(40, 2000, 1, 0); /* windows of one target */
    cover(3, 9000, 32, 1); /* blocks that begin within a document */
    cover(1500, 100, 4096, 0);
    (void)state;
}

/* Whole documents stay whole if they fit into a window. */
static void short_documents_are_not_cut(void **state)
{
    Set s;
    make_set(&s, 400, 60, 0);
    Recipe  r   = recipe_of(&s, 64);
    Source *src = open_train(&r);
    Room    m   = room_of(src, 64);
    for (int64_t g = 0; g < 50; g++) {
        assert_int_equal(source_fill(src, g, m.field, m.scratch), 0);
        for (int64_t t = 0; t < 64; t++) {
            if (m.target[t] >= 0 && m.doc[t] == t) assert_int_equal(m.tok[t], END);
        }
    }
    source_close(src);
    free_room(&m);
    drop_set(&s);
    (void)state;
}

/* ---- the stream of a run ------------------------------------------------------------------------------- */

enum { TT = 48, STEP = 8, N_STEP = 12 };

/* Samples [first, N_STEP * STEP) in the order of their numbers, from `world` loaders. */
static void stream(const Recipe *r, int world, int B, int threads, int64_t first, int32_t *out)
{
    for (int rank = 0; rank < world; rank++) {
        Source     *src = open_train(r);
        FieldRow    row[FIELDS_MAX];
        Fields      f;
        void       *slot[4];
        Loader     *l;
        LoaderBatch b;
        fields_init(&f, row, windows_fields(r, row), B);
        for (int i = 0; i < 4; i++) slot[i] = aligned_alloc(64, f.block_bytes);
        LoaderConfig cfg = { .fields       = f,
                             .threads      = threads,
                             .rank         = rank,
                             .world        = world,
                             .first_sample = first,
                             .slots        = slot,
                             .n_slot       = 4 };
        assert_int_equal(loader_create(&l, &cfg, src), 0);
        for (int64_t k = 0; k < (N_STEP * STEP - first) / (world * B); k++) {
            if (loader_next(l, &b) < 0) fail_msg("%s", err_get());
            for (int i = 0; i < 3; i++) {
                for (int j = 0; j < B; j++) {
                    int32_t *to = out + ((b.sample0 + j - first) * 3 + i) * TT;
                    memcpy(to, fields_at(&f, b.host, i, j), sizeof(int32_t) * TT);
                }
            }
            loader_release(l, b.slot);
        }
        loader_destroy(l);
        source_close(src);
        for (int i = 0; i < 4; i++) free(slot[i]);
    }
}

/* Resumed anywhere, by 1, 2 or 4 ranks, with any micro-batch and threads. */
static void ranks_and_resuming_do_not_matter(void **state)
{
    enum { N = N_STEP * STEP * 3 * TT };
    Set      s;
    int32_t *all = malloc(4 * N), *got = malloc(4 * N);
    make_set(&s, 500, 150, 0);
    for (int pack = 0; pack < 2; pack++) {
        Recipe r    = recipe_of(&s, TT);
        r.data.pack = pack ? PACK_BEST_FIT : PACK_CONCAT;
        stream(&r, 1, 4, 2, 0, all);
        for (int world = 1; world <= 4; world *= 2) {
            for (int cut = 0; cut < N_STEP; cut += 1 + (int)draw((uint64_t)(world * 100 + cut), 4)) {
                int64_t first = cut * STEP;
                memset(got, 0xee, 4 * N);
                stream(&r, world, world == 4 ? 2 : 1 + cut % 2, 1 + cut % 3, first, got);
                assert_memory_equal(got, all + first * 3 * TT, 4 * (N - (size_t)first * 3 * TT));
            }
        }
    }
    free(all);
    free(got);
    drop_set(&s);
    (void)state;
}

/* ---- validation, parts, refusals ----------------------------------------------------------------------- */

static void parts_have_whole_documents(void **state)
{
    Set s;
    make_set(&s, 300, 100, 0);
    Recipe r            = recipe_of(&s, 32);
    r.data.val_fraction = 0.3;
    int64_t bound[MOST_DOC + 1], n_doc = 0;
    for (int val = 0; val < 2; val++) {
        Tokens *t;
        assert_int_equal(tokens_open(&t, &r, val), 0);
        int64_t n = tokens_documents(t), base = val ? s.n_token - tokens_len(t) : 0;
        assert_true(n > 20);
        assert_int_equal(tokens_read_bounds(t, 0, n, bound), 0);
        assert_true(bound[0] >= 0 && bound[n] <= tokens_len(t));
        for (int64_t i = 0, d = 0; i < n; i++) {
            while (s.first[d] < base + bound[i]) d++;
            assert_int_equal(s.first[d], base + bound[i]);
            assert_int_equal(s.first[d + 1], base + bound[i + 1]);
        }
        n_doc += n;
        assert_int_equal(tokens_end_token(t), END);
        tokens_close(t);
    }
    assert_true(n_doc == s.n_doc || n_doc == s.n_doc - 1); /* one may lie across the border */
    Source *src;
    assert_int_equal(windows_open_val(&src, &r, 5, NULL), 0);
    assert_int_equal(src->n_sample, 5);
    assert_true(src->n_all > 5);
    source_close(src);
    drop_set(&s);
    (void)state;
}

/* Finding the documents of a part takes two searches through the index. No read that fails in them is passed
 * over: the part would begin with documents of the other one. */
static void parts_need_every_read(void **state)
{
    Set     s;
    int64_t n = 1;
    make_set(&s, 300, 100, 0);
    Recipe r            = recipe_of(&s, 32);
    r.data.val_fraction = 0.3;
    for (Tokens *t = NULL; !t; n++) {
        fault_arm(FAULT_READ, n, 0);
        int rc = tokens_open(&t, &r, 1);
        fault_disarm();
        if ((rc < 0) != (err_kind() != ERR_NONE)) fail_msg("read %d: %d, '%s'", (int)n, rc, err_get());
        err_clear();
        tokens_close(t);
    }
    assert_true(n > 12); /* headers of three shards, and two searches among 300 documents */
    drop_set(&s);
    (void)state;
}

static void poke(const Set *s, int64_t from_end, unsigned char byte)
{
    char path[128];
    snprintf(path, sizeof path, "%s/1.bin", s->dir);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -from_end, SEEK_END), 0);
    assert_int_equal(fputc(byte, f), byte);
    assert_int_equal(fclose(f), 0);
}

static void refused(const Set *s, DataVerify verify, const char *what)
{
    Source *src;
    Recipe  r     = recipe_of(s, 32);
    r.data.verify = verify;
    assert_int_equal(windows_open_train(&src, &r), -1);
    if (!strstr(err_get(), what) || err_kind() != ERR_USER) fail_msg("'%s' lacks '%s'", err_get(), what);
    err_clear();
}

static void damaged_indexes_are_refused(void **state)
{
    Set s;
    make_set(&s, 300, 100, 0);
    poke(&s, 12, 0x55); /* bytes of text: only the checksum knows */
    refused(&s, VERIFY_AUTO, "the checksum of its index does not match");
    drop_set(&s);
    make_set(&s, 300, 100, 0);
    poke(&s, 16 + 8 * 50 - 3, 0x55); /* the end of a document, far behind the shard's */
    refused(&s, VERIFY_FALSE, "damaged index");
    refused(&s, VERIFY_AUTO, "damaged index");
    drop_set(&s);
    make_set(&s, 300, 100, 0);
    char path[128];
    snprintf(path, sizeof path, "%s/1.bin", s.dir);
    ShardWriter *w = shard_write_begin(path, VOCAB); /* no documents: no index */
    assert_int_equal(shard_write_add(w, s.tok, 500), 0);
    assert_int_equal(shard_write_publish(&w), 0);
    refused(&s, VERIFY_AUTO, "has no index of documents");
    drop_set(&s);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_token_is_a_target_once),
        cmocka_unit_test(short_documents_are_not_cut),
        cmocka_unit_test(ranks_and_resuming_do_not_matter),
        cmocka_unit_test(parts_have_whole_documents),
        cmocka_unit_test(parts_need_every_read),
        cmocka_unit_test(damaged_indexes_are_refused),
    };
    return cmocka_run_group_tests_name("pack", tests, NULL, NULL);
}
