/* The source of images, through the loader: the same bytes whatever the threads, the ranks and where a run
 * begins; every augmentation, mixing included. Partners of mixed samples are neighbours; a split keeps every
 * class; damaged samples have no target. */
#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/recipe.h"
#include "data/image_source.h"
#include "data/loader.h"
#include "file/image_write.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PICTURES = 24, SIZE = 16, SAMPLES = 64, B = 8, SLOTS = 5 };

static char folder[64] = "/tmp/image_source_XXXXXX";

/* Pictures of noise in two classes, one of them cut short. */
static int make_pictures(void **state)
{
    static uint8_t rgb[40 * 30 * 3];
    char           path[128];
    assert_non_null(mkdtemp(folder));
    for (int c = 0; c < 2; c++) {
        snprintf(path, sizeof path, "%s/class%d", folder, c);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    for (int i = 0; i < PICTURES; i++) {
        for (size_t k = 0; k < sizeof rgb; k++) rgb[k] = (uint8_t)(rand() % 256);
        snprintf(path, sizeof path, "%s/class%d/%02d.png", folder, i % 2, i);
        assert_int_equal(image_write_png(path, rgb, 40, 30), 0);
    }
    assert_int_equal(truncate(path, 100), 0);
    return 0;
}

static int remove_pictures(void **state)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s %s.n %s.p", folder, folder, folder);
    return system(command);
}

static void load(Recipe *r, const char *augment)
{
    char text[512], train[128], list[128];
    snprintf(
        text, sizeof text,
        "task: image\nstep_samples: 8\nimage: {size: %d, patch: 8, classes: 2}\ndata: {val_fraction: 0}\n",
        SIZE);
    snprintf(train, sizeof train, "data.train=%s", folder);
    snprintf(list, sizeof list, "data.augment=%s", augment);
    char *pair[] = { train, list, "data.skip_limit=1" };
    if (recipe_parse(r, "t.yaml", text, strlen(text), 3, pair) != 0) fail_msg("%s", err_get());
}

/* Bytes of the fields of samples [first, SAMPLES), each at its own place in out. */
static void take_all(const Recipe *r, int threads, int world, int64_t first, unsigned char *out, size_t each)
{
    FieldRow row[FIELDS_MAX];
    Fields   f;
    Source  *src;
    int      n = image_source_fields(r, row);
    fields_init(&f, row, n, B);
    if (image_source_open_train(&src, r) != 0) fail_msg("%s", err_get());
    for (int rank = 0; rank < world; rank++) {
        void   *slot[SLOTS];
        Loader *l;
        for (int i = 0; i < SLOTS; i++) assert_non_null(slot[i] = aligned_alloc(64, f.block_bytes));
        LoaderConfig cfg = { .fields       = f,
                             .threads      = threads,
                             .rank         = rank,
                             .world        = world,
                             .first_sample = first,
                             .slots        = slot,
                             .n_slot       = SLOTS };
        assert_int_equal(loader_create(&l, &cfg, src), 0);
        for (int64_t k = 0; first + (k * world + rank) * B < SAMPLES; k++) {
            LoaderBatch batch;
            assert_int_equal(loader_next(l, &batch), 0);
            for (int64_t b = 0; b < B; b++) {
                unsigned char *to = out + (size_t)(batch.sample0 + b) * each;
                for (int i = 0; i < n; i++) {
                    memcpy(to, fields_at(&f, batch.host, i, b), f.sample_bytes[i]);
                    to += f.sample_bytes[i];
                }
            }
            loader_release(l, batch.slot);
        }
        loader_destroy(l);
        for (int i = 0; i < SLOTS; i++) free(slot[i]);
    }
    source_close(src);
}

static size_t sample_bytes(const Recipe *r)
{
    FieldRow row[FIELDS_MAX];
    Fields   f;
    size_t   sum = 0;
    fields_init(&f, row, image_source_fields(r, row), B);
    for (int i = 0; i < f.n; i++) sum += f.sample_bytes[i];
    return sum;
}

static void same_bytes(void **state)
{
    static const int way[][3] = { { 2, 1, 0 }, { 7, 1, 0 },  { 1, 2, 0 },
                                  { 3, 4, 0 }, { 2, 1, 24 }, { 2, 2, 32 } };
    Recipe           r;
    load(&r, "crop,flip,jitter,rand,erase,mixup,cutmix");
    size_t         each = sample_bytes(&r);
    unsigned char *want = calloc(SAMPLES + B, each), *got = calloc(SAMPLES + B, each);
    assert_true(want && got);
    take_all(&r, 1, 1, 0, want, each);
    for (int i = 0; i < ARRAY_LEN(way); i++) {
        size_t from = (size_t)way[i][2] * each;
        memset(got, 0, (SAMPLES + B) * each);
        take_all(&r, way[i][0], way[i][1], way[i][2], got, each);
        if (memcmp(got + from, want + from, SAMPLES * each - from) != 0)
            fail_msg("%d threads, %d ranks, from sample %d: other bytes", way[i][0], way[i][1], way[i][2]);
    }
    free(want);
    free(got);
}

static void partners_are_neighbours(void **state)
{
    FieldRow row[FIELDS_MAX];
    Fields   f;
    Recipe   r;
    Source  *src;
    load(&r, "mixup,cutmix");
    fields_init(&f, row, image_source_fields(&r, row), 1);
    unsigned char *block = aligned_alloc(64, f.block_bytes);
    assert_int_equal(image_source_open_train(&src, &r), 0);
    void *scratch = calloc(1, src->scratch_bytes), *field[FIELDS_MAX];
    for (int i = 0; i < f.n; i++) field[i] = fields_at(&f, block, i, 0);
    for (int64_t g = 0; g < SAMPLES; g++) {
        assert_true(source_fill(src, g, field, scratch) >= 0);
        int32_t distance = *(int32_t *)field[IMAGE_PARTNER];
        float   share    = *(float *)field[IMAGE_SHARE];
        assert_int_equal((g + distance) / 2, g / 2);
        assert_true(distance != 0 && share >= 0 && share <= 1);
        assert_int_equal(*(int32_t *)field[IMAGE_LABEL2], image_source_label(src, g + distance));
    }
    source_end_scratch(src, scratch);
    free(scratch);
    free(block);
    source_close(src);
}

/* One of 24 pictures is damaged: it comes once an epoch, and only it has no label. */
static void damage_has_no_target(void **state)
{
    FieldRow row[FIELDS_MAX];
    Fields   f;
    Recipe   r;
    Source  *src;
    int      n_bad = 0;
    load(&r, "none");
    fields_init(&f, row, image_source_fields(&r, row), 1);
    unsigned char *block = aligned_alloc(64, f.block_bytes);
    assert_int_equal(image_source_open_train(&src, &r), 0);
    void *scratch = calloc(1, src->scratch_bytes), *field[FIELDS_MAX];
    for (int i = 0; i < f.n; i++) field[i] = fields_at(&f, block, i, 0);
    for (int64_t g = 0; g < 2 * PICTURES; g++) {
        assert_true(source_fill(src, g, field, scratch) >= 0);
        n_bad += *(int32_t *)field[IMAGE_LABEL] < 0;
    }
    assert_int_equal(n_bad, 2);
    source_end_scratch(src, scratch);
    free(scratch);
    free(block);
    source_close(src);
}

/* A sample whose partner is damaged is not mixed; a batch counts only what can be used. */
static void damage_is_not_mixed(void **state)
{
    FieldRow row[FIELDS_MAX];
    Fields   f;
    Recipe   r;
    Source  *src;
    Loader  *l;
    void    *slot[SLOTS];
    int64_t  n_target = 0, n_alone = 0;
    load(&r, "mixup,cutmix");
    fields_init(&f, row, image_source_fields(&r, row), B);
    assert_int_equal(image_source_open_train(&src, &r), 0);
    for (int i = 0; i < SLOTS; i++) assert_non_null(slot[i] = aligned_alloc(64, f.block_bytes));
    LoaderConfig cfg = { .fields = f, .threads = 2, .slots = slot, .n_slot = SLOTS };
    assert_int_equal(loader_create(&l, &cfg, src), 0);
    for (int k = 0; k < PICTURES / B; k++) {
        LoaderBatch batch;
        assert_int_equal(loader_next(l, &batch), 0);
        n_target += batch.n_target[0];
        for (int64_t b = 0; b < B; b++) {
            int32_t partner = *(int32_t *)fields_at(&f, batch.host, IMAGE_PARTNER, b);
            assert_true(*(int32_t *)fields_at(&f, batch.host, IMAGE_LABEL, b + partner) >= 0 || partner == 0);
            if (partner != 0 || *(int32_t *)fields_at(&f, batch.host, IMAGE_LABEL, b) < 0) continue;
            n_alone++;
            assert_true(*(float *)fields_at(&f, batch.host, IMAGE_SHARE, b) == 1);
            assert_true(*(float *)fields_at(&f, batch.host, IMAGE_BLEND, b) == 1);
        }
        loader_release(l, batch.slot);
    }
    assert_int_equal(n_alone, 1);
    assert_int_equal(n_target, PICTURES - 1);
    loader_destroy(l);
    for (int i = 0; i < SLOTS; i++) free(slot[i]);
    source_close(src);
}

/* Labels of the first and the last sample, which are of class0 and class1, after a match. */
static void match(const char *list, SetMatch want, int first, int last, const char *who)
{
    ImageSet   *set;
    ClassNames  names;
    RecipeImage m = { .size = 0 };
    const char *stranger;
    assert_int_equal(image_set_open(&set, folder), 0);
    class_names_init(&names);
    str_copy(m.names, sizeof m.names, list);
    assert_int_equal(class_names_load(&names, &m), 0);
    assert_int_equal(image_set_match(set, &names, &stranger), want);
    assert_int_equal(image_set_label(set, 0), first);
    assert_int_equal(image_set_label(set, image_set_len(set) - 1), last);
    if (who) assert_string_equal(stranger, who);
    if (want == MATCH_ALL) assert_string_equal(image_set_class_name(set, last), "class1");
    class_names_deinit(&names);
    image_set_close(set);
}

static void classes_by_name(void **state)
{
    match("", MATCH_KEPT, 0, 1, NULL);
    match("class0,class1", MATCH_ALL, 0, 1, NULL);
    match("class1, other, class0", MATCH_ALL, 2, 0, NULL);
    match("cat,dog", MATCH_NUMBERS, 0, 1, "class0");
    match("class1,other,more", MATCH_SOME, -1, 0, "class0");
}

/* Folders named by numbers sort as text. A set that lacks some means the same by a name. */
static void numbers_are_names(void **state)
{
    static const char *const all[] = { "0", "1", "10", "11", "2" };
    char                     command[600], root[128];
    ImageSet                *set, *part;
    ClassNames               names;
    const char              *stranger;
    for (int i = 0; i < ARRAY_LEN(all); i++) {
        snprintf(command, sizeof command, "mkdir -p %s.n/%s && cp %s/class0/00.png %s.n/%s/", folder, all[i],
                 folder, folder, all[i]);
        assert_int_equal(system(command), 0);
    }
    snprintf(command, sizeof command, "mkdir -p %s.p && cp -r %s.n/0 %s.n/1 %s.n/2 %s.p/", folder, folder,
             folder, folder, folder);
    assert_int_equal(system(command), 0);
    snprintf(root, sizeof root, "%s.n", folder);
    assert_int_equal(image_set_open(&set, root), 0);
    snprintf(root, sizeof root, "%s.p", folder);
    assert_int_equal(image_set_open(&part, root), 0);
    class_names_init(&names);
    image_set_names(set, &names);
    assert_int_equal(image_set_match(part, &names, &stranger), MATCH_ALL);
    assert_int_equal(image_set_label(part, 2), 4);
    class_names_deinit(&names);
    image_set_close(set);
    image_set_close(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes),           cmocka_unit_test(partners_are_neighbours),
        cmocka_unit_test(classes_by_name),      cmocka_unit_test(numbers_are_names),
        cmocka_unit_test(damage_has_no_target), cmocka_unit_test(damage_is_not_mixed)
    };
    return cmocka_run_group_tests(tests, make_pictures, remove_pictures);
}
