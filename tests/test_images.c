/* Images: sets of every kind, albums, augmentation that does not depend on threads, refusals by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/image_convert.h"
#include "data/image_fill.h"
#include "data/image_ops.h"
#include "file/album.h"
#include "file/idx.h"
#include "file/image_write.h"
#include "file/tar.h"
#include "case_folder.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Files ----------------------------------------------------------------------------------------- */

/* A picture that no two numbers share: waves and a mark. */
static uint8_t *picture(int w, int h, int number)
{
    uint8_t *p = malloc((size_t)w * (size_t)h * 3);
    assert_non_null(p);
    for (int y = 0; y < h; y++) {
        for (int x = 0; x < w; x++) {
            uint8_t *at = p + ((int64_t)y * w + x) * 3;
            at[0]       = (uint8_t)(127 + 100 * sin((x + number) * 0.11));
            at[1]       = (uint8_t)(127 + 100 * cos((y * 2 + number) * 0.07));
            at[2]       = (uint8_t)((x + y + 37 * number) & 255);
        }
    }
    return p;
}

static void put_jpeg(const char *path, int w, int h, int number)
{
    uint8_t *rgb = picture(w, h, number), *data;
    size_t   n;
    assert_int_equal(image_encode_jpeg(rgb, w, h, 92, &data, &n), 0);
    write_file(path, data, n);
    free(data);
    free(rgb);
}

static void put_png(const char *path, int w, int h, int number)
{
    uint8_t *rgb = picture(w, h, number);
    assert_int_equal(image_write_png(path, rgb, w, h), 0);
    free(rgb);
}

enum { N_CAT = 9, N_DOG = 8 };

/* Two classes of images, a nested one among them. */
static const char *class_folders(void **state)
{
    char name[64];
    assert_int_equal(file_make_folders(in(state, "set/cat/more")), 0);
    assert_int_equal(file_make_folders(in(state, "set/dog")), 0);
    for (int i = 0; i < N_CAT; i++) {
        snprintf(name, sizeof name, i < 3 ? "set/cat/more/%d.jpg" : "set/cat/%d.JPEG", i);
        put_jpeg(in(state, name), 200 + 31 * i, 150 + 17 * i, i);
    }
    for (int i = 0; i < N_DOG; i++) {
        snprintf(name, sizeof name, "set/dog/%d.png", i);
        put_png(in(state, name), 90 + 13 * i, 120, 100 + i);
    }
    write_file(in(state, "set/dog/notes.txt"), "x", 1);
    return in(state, "set");
}

static ImageSet *open_set(const char *path)
{
    ImageSet *s;
    int       rc = image_set_open(&s, path);
    if (rc < 0) fail_msg("%s", err_get());
    return s;
}

/* ---- Sets ------------------------------------------------------------------------------------------ */

static void folder_has_classes_in_order(void **state)
{
    char      name[600];
    ImageSet *s = open_set(class_folders(state));
    assert_int_equal(image_set_len(s), N_CAT + N_DOG);
    assert_int_equal(image_set_classes(s), 2);
    assert_string_equal(image_set_class_name(s, 0), "cat");
    assert_string_equal(image_set_class_name(s, 1), "dog");
    assert_int_equal(image_set_label(s, N_CAT - 1), 0);
    assert_int_equal(image_set_label(s, N_CAT), 1);
    assert_non_null(strstr(image_set_name(s, 0, name, sizeof name), "set/cat/3.JPEG"));
    assert_non_null(strstr(image_set_name(s, N_CAT - 1, name, sizeof name), "set/cat/more/2.jpg"));
    image_set_close(s);
}

/* As ImageFolder numbers them: '-', '.' and ' ' come before the '/' of a path. */
static void classes_are_in_the_order_of_names(void **state)
{
    static const char *const name[] = { "cat", "cat big", "cat-small", "cat.old", "cat2" };
    for (int i = ARRAY_LEN(name) - 1; i >= 0; i--) {
        char path[64];
        snprintf(path, sizeof path, "set/%s", name[i]);
        assert_int_equal(file_make_folders(in(state, path)), 0);
        snprintf(path, sizeof path, "set/%s/one.png", name[i]);
        put_png(in(state, path), 8, 8, i);
    }
    ImageSet *s = open_set(in(state, "set"));
    assert_int_equal(image_set_classes(s), ARRAY_LEN(name));
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        char path[512];
        assert_string_equal(image_set_class_name(s, i), name[i]);
        assert_int_equal(image_set_label(s, i), i);
        assert_non_null(strstr(image_set_name(s, i, path, sizeof path), name[i]));
    }
    image_set_close(s);
}

static void fill(const ImageSet *s, int64_t i, const ImageOptions *o, uint8_t *out, int32_t *label)
{
    ImageScratch k;
    assert_int_equal(image_scratch_init(&k, 0), 0);
    int rc = image_sample_fill(s, i, 0, o, &k, out, label);
    if (rc != 0) fail_msg("sample %lld: %s %s", (long long)i, k.why, err_get());
    image_scratch_deinit(&k);
}

/* Albums keep the bytes as they are: every sample decodes to the same pixels. */
static void albums_keep_every_pixel(void **state)
{
    const char    *from = class_folders(state), *to = in(state, "albums");
    ImageOptions   o = image_options_train(64);
    ConvertOptions c = { .quality = 90, .threads = 2, .album_bytes = 1 << 16 };
    ConvertResult  r;
    uint8_t       *a = malloc(64 * 64 * 3), *b = malloc(64 * 64 * 3);
    int32_t        la, lb;
    write_file(in(state, "set/dog/bad.png"), "\x89PNG\r\n\x1a\nwhat", 12);
    assert_int_equal(convert_images(from, to, &c, &r), 0);
    assert_int_equal(r.n_sample, N_CAT + N_DOG);
    assert_int_equal(r.n_skipped, 1);
    assert_true(r.n_album > 1);
    assert_int_equal(file_kind(in(state, "albums/skipped.txt")), FILE_REGULAR);
    ImageSet    *s = open_set(from), *t = open_set(to);
    ImageScratch k;
    assert_int_equal(image_set_len(t), N_CAT + N_DOG);
    /* A planned scratch has room for every sample. */
    assert_int_equal(image_scratch_init(&k, 0), 0);
    assert_int_equal(image_scratch_plan(&k, t, &o), 0);
    uint8_t *planned[2] = { k.bytes.data, k.pixels.data };
    for (int64_t i = 0; i < image_set_len(t); i++)
        assert_int_equal(image_sample_fill(t, i, 0, &o, &k, a, &la), 0);
    assert_true(planned[0] == k.bytes.data && planned[1] == k.pixels.data);
    image_scratch_deinit(&k);
    assert_string_equal(image_set_class_name(t, 1), "dog");
    for (int64_t i = 0; i < image_set_len(t); i++) {
        fill(s, i, &o, a, &la);
        fill(t, i, &o, b, &lb);
        assert_int_equal(la, lb);
        assert_memory_equal(a, b, 64 * 64 * 3);
    }
    image_set_close(s);
    image_set_close(t);
    /* A second conversion into the same folder would mix with the first. */
    assert_true(convert_images(from, to, &c, &r) < 0);
    assert_int_equal(err_kind(), ERR_USER);
    free(a);
    free(b);
}

/* Whichever call fails: nothing is left, or everything is there. */
static void failed_conversions_leave_nothing(void **state)
{
    static const FaultOp op[] = { FAULT_OPEN, FAULT_WRITE, FAULT_FSYNC, FAULT_RENAME };
    const char          *from = class_folders(state), *to = in(state, "broken");
    ConvertOptions       c = { .quality = 90, .threads = 2, .album_bytes = 1 << 16 };
    ConvertResult        r;
    write_file(in(state, "set/dog/bad.png"), "\x89PNG\r\n\x1a\nwhat", 12);
    for (int k = 0; k < ARRAY_LEN(op); k++) {
        int n_failed = 0;
        for (int n = 1; n <= 16; n++) {
            fault_arm(op[k], n, 0);
            int rc = convert_images(from, to, &c, &r);
            fault_disarm();
            int left = file_kind(to) != FILE_NONE, listed = file_kind(in(state, "broken/skipped.txt"));
            if ((rc < 0) != (err_kind() != ERR_NONE) || (rc < 0) == left || (rc == 0 && !listed))
                fail_msg("kind %d, call %d: %d '%s', something is left: %d", k, n, rc, err_get(), left);
            n_failed += rc < 0;
            err_clear();
            assert_int_equal(folder_remove(to), 0);
        }
        assert_true(n_failed > 3);
    }
}

/* A picture that can be read, but not written anew, is skipped like one that cannot be read. */
static void a_picture_too_wide_for_a_jpeg_is_skipped(void **state)
{
    const char    *from = class_folders(state), *to = in(state, "wide");
    ConvertOptions c = { .quality = 90, .threads = 2, .album_bytes = 1 << 30, .reencode = 1 };
    ConvertResult  r;
    put_png(in(state, "set/dog/wide.png"), IMAGE_JPEG_SIDE_MOST + 1, 1, 1);
    if (convert_images(from, to, &c, &r) < 0) fail_msg("%s", err_get());
    assert_int_equal(r.n_skipped, 1);
    assert_int_equal(r.n_sample, N_CAT + N_DOG);
}

#ifndef __SANITIZE_ADDRESS__ /* whose shadow takes terabytes of address space */
/* In a child with so much memory more than it has: 0 encoded, 1 refused. */
static int encode_within(const uint8_t *rgb, int side, size_t more_bytes)
{
    int   status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        long     pages = 0;
        uint8_t *data;
        size_t   n;
        FILE    *f = fopen("/proc/self/statm", "r");
        if (!f || fscanf(f, "%ld", &pages) != 1) _exit(2);
        fclose(f);
        rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more_bytes;
        if (setrlimit(RLIMIT_AS, &(struct rlimit){ most, most }) != 0) _exit(2);
        _exit(image_encode_jpeg(rgb, side, side, 95, &data, &n) < 0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Wherever the memory ends while the bytes of a JPEG grow, that is an error and no more. */
static void encoding_survives_little_memory(void **state)
{
    enum { SIDE = 2000, STEP = 1 << 20 };
    uint8_t *rgb  = malloc((size_t)SIDE * SIDE * 3);
    uint32_t draw = 1;
    for (int i = 0; i < SIDE * SIDE * 3; i++) rgb[i] = (uint8_t)((draw = draw * 1664525 + 1013904223) >> 24);
    int seen[3] = { 0 };
    for (int i = 0; i < 40 && !seen[0]; i++) seen[encode_within(rgb, SIDE, (size_t)i * STEP)]++;
    if (seen[0] != 1 || seen[1] < 4 || seen[2])
        fail_msg("%d encoded, %d refused, %d", seen[0], seen[1], seen[2]);
    free(rgb);
    (void)state;
}
#else
static void encoding_survives_little_memory(void **state) { (void)state; }
#endif

/* Every byte of an album is under a checksum. */
static void albums_notice_every_flipped_byte(void **state)
{
    const char    *to = in(state, "flip");
    ConvertOptions c  = { .quality = 90, .threads = 1, .album_bytes = 1 << 30 };
    ConvertResult  r;
    ImageScratch   k;
    char          *data;
    size_t         n;
    assert_int_equal(file_make_folders(in(state, "one")), 0);
    put_png(in(state, "one/a.png"), 8, 8, 1);
    put_png(in(state, "one/b.png"), 8, 8, 2);
    assert_int_equal(convert_images(in(state, "one"), to, &c, &r), 0);
    const char *path = in(state, "flip/part-00000.brimg");
    assert_int_equal(file_read_all(path, 1 << 20, &data, &n), 0);
    assert_int_equal(image_scratch_init(&k, 0), 0);
    char copy[600];
    snprintf(copy, sizeof copy, "%s/damaged.brimg", (char *)*state);
    for (size_t i = 0; i < n; i += 3) {
        ImageSet   *s;
        ImageRecord rec;
        int         noticed = 0;
        data[i] ^= 4;
        write_file(copy, data, n);
        data[i] ^= 4;
        if (image_set_open(&s, copy) < 0) {
            assert_int_equal(err_kind(), ERR_USER);
            err_clear();
            continue;
        }
        for (int64_t j = 0; j < image_set_len(s); j++) noticed += image_set_read(s, j, &k, &rec) == 1;
        if (noticed != 1) fail_msg("byte %zu of %zu: %d samples noticed it", i, n, noticed);
        image_set_close(s);
    }
    /* And every cut. */
    for (size_t cut = 0; cut < n; cut += 7) {
        ImageSet *s;
        write_file(copy, data, cut);
        assert_true(image_set_open(&s, copy) < 0);
        err_clear();
    }
    image_scratch_deinit(&k);
    free(data);
}

static void put_idx(const char *path, int n_dim, const int *dim, const uint8_t *data, size_t n)
{
    uint8_t head[16] = { 0, 0, 8, (uint8_t)n_dim };
    FILE   *f        = fopen(path, "wb");
    assert_non_null(f);
    for (int i = 0; i < n_dim; i++) {
        head[4 + 4 * i + 2] = (uint8_t)(dim[i] >> 8);
        head[4 + 4 * i + 3] = (uint8_t)dim[i];
    }
    fwrite(head, 1, 4 + 4 * (size_t)n_dim, f);
    fwrite(data, 1, n, f);
    fclose(f);
}

static void idx_gives_pixels_and_labels(void **state)
{
    uint8_t      data[3 * 4 * 5], out[20];
    int32_t      label;
    ImageOptions o = image_options_eval(4);
    o.crop         = IMAGE_CROP_WHOLE;
    o.channels     = 1;
    for (int i = 0; i < 60; i++) data[i] = (uint8_t)(i * 4);
    put_idx(in(state, "x-images-idx3-ubyte"), 3, (int[]){ 3, 4, 4 }, data, 48);
    put_idx(in(state, "x-labels-idx1-ubyte"), 1, (int[]){ 3 }, (const uint8_t *)"\5\0\2", 3);
    ImageSet *s = open_set(in(state, "x-images-idx3-ubyte"));
    assert_int_equal(image_set_len(s), 3);
    assert_int_equal(image_set_classes(s), 6);
    fill(s, 2, &o, out, &label);
    assert_int_equal(label, 2);
    assert_memory_equal(out, data + 32, 16);
    image_set_close(s);
    /* Sizes that disagree. */
    put_idx(in(state, "x-labels-idx1-ubyte"), 1, (int[]){ 2 }, (const uint8_t *)"\5\0", 2);
    assert_true(image_set_open(&s, in(state, "x-images-idx3-ubyte")) < 0);
    assert_non_null(strstr(err_get(), "2 labels for 3 images"));
    err_clear();
    put_idx(in(state, "x-images-idx3-ubyte"), 3, (int[]){ 300, 4, 4 }, data, 48);
    assert_true(image_set_open(&s, in(state, "x-images-idx3-ubyte")) < 0);
    assert_non_null(strstr(err_get(), "truncated"));
}

static int tar_works(void) { return system("tar --version >/dev/null 2>&1") == 0; }

static void tar_gives_samples_by_key(void **state)
{
    char      command[2048], name[600], deep[200];
    ImageSet *s;
    if (!tar_works()) skip();
    memset(deep, 'd', 150);
    deep[150] = '\0';
    deep[80]  = '/';
    snprintf(name, sizeof name, "t/%s", deep);
    assert_int_equal(file_make_folders(in(state, name)), 0);
    put_jpeg(in(state, "t/0001.jpg"), 40, 30, 1);
    write_file(in(state, "t/0001.cls"), "7\n", 2);
    write_file(in(state, "t/0001.json"), "{}", 2);
    put_png(in(state, "t/0002.png"), 40, 30, 2);
    write_file(in(state, "t/0002.cls"), "3", 1);
    write_file(in(state, "t/0003.txt"), "no image", 8);
    snprintf(name, sizeof name, "t/%s/0004.seg.jpg", deep);
    write_file(in(state, name), "x", 1);
    snprintf(name, sizeof name, "t/%s/0004.jpg", deep);
    put_jpeg(in(state, name), 33, 44, 4);
    const char *format[] = { "gnu", "ustar", "pax" };
    for (int f = 0; f < 3; f++) {
        snprintf(command, sizeof command, "cd %s/t && tar --format=%s --sort=name -cf ../s.tar *",
                 (char *)*state, format[f]);
        assert_int_equal(system(command), 0);
        s = open_set(in(state, "s.tar"));
        assert_int_equal(image_set_len(s), 3);
        assert_int_equal(image_set_classes(s), 8);
        assert_int_equal(image_set_label(s, 0), 7);
        assert_int_equal(image_set_label(s, 1), 3);
        assert_int_equal(image_set_label(s, 2), -1);
        assert_non_null(strstr(image_set_name(s, 2, name, sizeof name), "/0004.jpg"));
        uint8_t      out[32 * 32 * 3];
        int32_t      label;
        ImageOptions o = image_options_eval(32);
        for (int i = 0; i < 3; i++) fill(s, i, &o, out, &label);
        image_set_close(s);
    }
    static const char *const bad[] = { "cat", "-1", "1048576", "99999999999999999999" };
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        write_file(in(state, "t/0001.cls"), bad[i], strlen(bad[i]));
        snprintf(command, sizeof command, "cd %s/t && tar -cf ../s.tar *", (char *)*state);
        assert_int_equal(system(command), 0);
        assert_true(image_set_open(&s, in(state, "s.tar")) < 0);
        assert_non_null(strstr(err_get(), "0001.cls: not a class number from 0 to 1048575"));
        err_clear();
    }
}

/* The largest size, the smallest fraction, and a picture as narrow as a decoder takes. */
static void a_sliver_has_a_middle(void **state)
{
    ImageOptions o  = image_options_eval(4096);
    o.crop_fraction = 0.1;
    for (int lies = 0; lies < 2; lies++) {
        int         w = lies ? IMAGE_SIDE_MOST : 1, h = lies ? 1 : IMAGE_SIDE_MOST;
        ImageParams p = image_augment_params(&o, 0, 0, w, h, 0);
        double      x = p.box.x1 - p.box.x0, y = p.box.y1 - p.box.y0;
        assert_true(p.box.x0 >= 0 && p.box.y0 >= 0 && p.box.x1 <= w && p.box.y1 <= h);
        assert_true(fabs(x - 0.1) < 1e-6 && fabs(y - 0.1) < 1e-6);
    }
}

static void refusals_name_the_path(void **state)
{
    ImageSet *s;
    assert_true(image_set_open(&s, in(state, "nothing")) < 0);
    assert_non_null(strstr(err_get(), "nothing: no such file or folder"));
    err_clear();
    assert_true(image_set_open(&s, *state) < 0);
    assert_non_null(strstr(err_get(), "no image in it"));
    err_clear();
    write_file(in(state, "text"), "hello", 5);
    assert_true(image_set_open(&s, in(state, "text")) < 0);
    assert_int_equal(err_kind(), ERR_USER);
}

/* ---- Augmentation ---------------------------------------------------------------------------------- */

static ImageOptions everything(int size)
{
    ImageOptions o = image_options_train(size);
    Recipe       usual;
    recipe_defaults(&usual);
    assert_int_equal(image_options_list(&o, "crop,flip,jitter,rand,erase,mixup,cutmix", &usual.data, "test"),
                     0);
    o.seed        = 12;
    o.rand_ops    = 3;
    o.erase       = 0.7;
    o.erase_noise = 1;
    return o;
}

enum { SIDE = 48, N_SAMPLE = (N_CAT + N_DOG) * 6 };

typedef struct {
    const ImageSet  *set;
    ImageOptions     o;
    _Atomic int64_t *next;
    uint8_t         *out;
    Thread           thread;
    ImageCounters    count;
} Team;

static void team_work(void *arg)
{
    Team        *t = arg;
    ImageScratch k;
    int32_t      label;
    CHECK(image_scratch_init(&k, 0) == 0, "%s", err_get());
    for (int64_t i = atomic_fetch_add(t->next, 1); i < N_SAMPLE; i = atomic_fetch_add(t->next, 1)) {
        int64_t n = image_set_len(t->set);
        CHECK(image_sample_fill(t->set, i % n, i / n, &t->o, &k, t->out + i * SIDE * SIDE * 3, &label) == 0,
              "%s", k.why);
    }
    t->count = k.count;
    image_scratch_deinit(&k);
}

static uint8_t *fill_with(const ImageSet *s, int threads, ImageCounters *sum)
{
    _Atomic int64_t next = 0;
    Team            t[7];
    uint8_t        *out = calloc(N_SAMPLE, SIDE * SIDE * 3);
    assert_non_null(out);
    memset(sum, 0, sizeof *sum);
    for (int i = 0; i < threads; i++) {
        t[i] = (Team){ .set = s, .o = everything(SIDE), .next = &next, .out = out };
        assert_int_equal(thread_start(&t[i].thread, "team", team_work, &t[i]), 0);
    }
    for (int i = 0; i < threads; i++) {
        thread_join(&t[i].thread);
        image_counters_add(sum, &t[i].count);
    }
    return out;
}

static void pixels_do_not_depend_on_threads(void **state)
{
    ImageCounters sum;
    ImageSet     *s   = open_set(class_folders(state));
    uint8_t      *one = fill_with(s, 1, &sum);
    assert_int_equal(sum.n_sample, N_SAMPLE);
    assert_int_equal(sum.n_skipped, 0);
    assert_true(sum.read_s > 0 && sum.decode_s > 0 && sum.resize_s > 0 && sum.augment_s > 0);
    for (int threads = 2; threads <= 7; threads += 5) {
        uint8_t *many = fill_with(s, threads, &sum);
        assert_int_equal(sum.n_sample, N_SAMPLE);
        assert_memory_equal(one, many, (size_t)N_SAMPLE * SIDE * SIDE * 3);
        free(many);
    }
    /* Epochs and samples differ. */
    for (int i = 1; i < N_SAMPLE; i++)
        assert_memory_not_equal(one, one + (int64_t)i * SIDE * SIDE * 3, SIDE * SIDE * 3);
    free(one);
    image_set_close(s);
}

/* Switching one change off leaves the draws of the others alone. */
static void sites_are_independent(void **state)
{
    ImageOptions o = everything(SIDE), p = o;
    p.flip = p.jitter_hue = p.erase = 0;
    p.rand_ops                      = 0;
    for (int i = 0; i < 50; i++) {
        ImageParams a = image_augment_params(&o, 3, i, 640, 480, 0);
        ImageParams b = image_augment_params(&p, 3, i, 640, 480, 0);
        assert_memory_equal(&a.box, &b.box, sizeof a.box);
        assert_memory_equal(a.jitter, b.jitter, 3 * sizeof a.jitter[0]);
    }
}

/* Means and bounds of what is drawn. 4000 draws: a mean of n uniform draws errs by 0.29 / sqrt(n) = 0.005;
 * 5 times that. */
static void draws_have_their_distribution(void **state)
{
    enum { N = 4000 };
    ImageOptions o = everything(224);
    o.flip         = 0.5;
    double area = 0, ratio = 0, flips = 0, erased = 0, lambda = 0, x = 0;
    int    seen[RAND_COUNT] = { 0 };
    for (int i = 0; i < N; i++) {
        ImageParams p = image_augment_params(&o, 1, i, 1000, 1000, 0);
        int         w = p.box.right - p.box.left, h = p.box.bottom - p.box.top;
        assert_true(p.box.left >= 0 && p.box.right <= 1000 && p.box.top >= 0 && p.box.bottom <= 1000);
        area += (double)w * h / 1e6 / N;
        ratio += log((double)w / h) / N;
        x += (p.box.left + w / 2.0) / 1000 / N;
        flips += (double)p.flip / N;
        erased += (p.erase_w > 0) / (double)N;
        for (int k = 0; k < p.n_rand; k++) seen[p.rand[k].op]++;
        ImageMix m = image_mix_params(&o, 1, i);
        assert_int_equal(m.partner, i ^ 1);
        assert_int_equal(image_mix_params(&o, 1, m.partner).partner, i);
        assert_true(m.lambda >= 0 && m.lambda <= 1 && m.x + m.w <= 224 && m.y + m.h <= 224);
        if (m.w > 0) assert_true(fabs(1 - m.lambda - m.w * m.h / (224.0 * 224)) < 1e-6);
        lambda += m.lambda / N;
    }
    /* The largest areas do not always fit with their ratio and are drawn again: below (0.08 + 1) / 2. */
    assert_true(area > 0.47 && area < 0.54);
    assert_true(fabs(ratio) < 0.02 && fabs(x - 0.5) < 0.02);
    assert_true(fabs(flips - 0.5) < 0.04 && fabs(erased - 0.7) < 0.04);
    assert_true(lambda > 0.5 && lambda < 0.72); /* a cut box at the edge is smaller than it was drawn */
    for (int k = 0; k < RAND_COUNT; k++) assert_true(abs(seen[k] - 3 * N / RAND_COUNT) < 150);
}

static void extreme_shapes_have_a_crop(void **state)
{
    ImageOptions o = everything(32), e = image_options_eval(32);
    int          side[][2] = { { 1, 1 }, { 1, 5000 }, { 5000, 1 }, { 2, 3 }, { 31, 33 }, { 65535, 2 } };
    for (int i = 0; i < ARRAY_LEN(side); i++) {
        for (int k = 0; k < 40; k++) {
            ImageParams p[2] = { image_augment_params(&o, 0, k, side[i][0], side[i][1], 0),
                                 image_augment_params(&e, 0, k, side[i][0], side[i][1], 0) };
            for (int j = 0; j < 2; j++) {
                assert_true(p[j].box.x1 > p[j].box.x0 && p[j].box.y1 > p[j].box.y0);
                assert_true(p[j].box.left >= 0 && p[j].box.right <= side[i][0]);
                assert_true(p[j].box.top >= 0 && p[j].box.bottom <= side[i][1]);
            }
        }
    }
}

static void lists_name_augmentations(void **state)
{
    ImageOptions o = image_options_eval(8);
    Recipe       usual;
    recipe_defaults(&usual);
    assert_int_equal(image_options_list(&o, "flip, erase", &usual.data, "k"), 0);
    assert_true(o.flip > 0 && o.erase > 0 && o.rand_ops == 0);
    assert_true(image_options_list(&o, "flip,jiter", &usual.data, "k") < 0);
    assert_non_null(strstr(err_get(), "k: jiter: no such augmentation (did you mean jitter?)"));
}

/* Training takes any part of a clip, whatever else is random; validation the middle. */
static void first_frame_is_random_in_training(void **state)
{
    ImageOptions o        = image_options_eval(8);
    int          seen[13] = { 0 }, n = 0;
    o.frames = 4;
    assert_int_equal(image_augment_params(&o, 0, 3, 20, 20, 16).first_frame, 6);
    o.any_frame = 1;
    for (int i = 0; i < 500; i++) seen[image_augment_params(&o, 0, i, 20, 20, 16).first_frame]++;
    for (int i = 0; i < ARRAY_LEN(seen); i++) n += seen[i] > 0;
    assert_int_equal(n, 13);
}

/* ---- Skips ----------------------------------------------------------------------------------------- */

static void bad_samples_are_black_and_counted(void **state)
{
    uint8_t      out[16 * 16 * 3];
    int32_t      label = 5;
    ImageOptions o     = image_options_eval(16);
    ImageSkips   skips;
    ImageScratch k;
    assert_int_equal(file_make_folders(in(state, "s/a")), 0);
    write_file(in(state, "s/a/0.jpg"), "no picture", 10);
    put_jpeg(in(state, "s/a/1.jpg"), 20, 20, 1);
    write_file(in(state, "s/a/2.png"), "", 0);
    write_file(in(state, "s/a/3.jpg"), "GIF89a", 6);
    ImageSet   *s      = open_set(in(state, "s"));
    const char *want[] = { "neither a JPEG nor a PNG", NULL, "empty", "GIF is not read" };
    assert_int_equal(image_scratch_init(&k, 0), 0);
    for (int i = 0; i < 4; i++) {
        memset(out, 7, sizeof out);
        int rc = image_sample_fill(s, i, 0, &o, &k, out, &label);
        assert_int_equal(rc, want[i] != NULL);
        assert_int_equal(label, want[i] ? -1 : 0);
        if (!want[i]) continue;
        if (!strstr(k.why, want[i])) fail_msg("'%s' instead of '%s'", k.why, want[i]);
        for (size_t b = 0; b < sizeof out; b++) assert_int_equal(out[b], 0);
    }
    assert_int_equal(k.count.n_sample, 4);
    assert_int_equal(k.count.n_skipped, 3);
    image_scratch_deinit(&k);
    image_set_close(s);
    /* 1 % of 1000 is allowed, more is not, and nothing is said before. */
    FILE *nowhere = fopen("/dev/null", "w");
    log_open(nowhere);
    assert_int_equal(image_skips_init(&skips), 0);
    for (int i = 0; i < 999; i++) image_skips_note(&skips, "file", i < 11 ? "damaged" : NULL);
    assert_int_equal(image_skips_check(&skips, 0.01), 0);
    image_skips_note(&skips, "file", NULL);
    assert_true(image_skips_check(&skips, 0.01) < 0);
    assert_non_null(strstr(err_get(), "11 of 1000 samples"));
    err_clear();
    assert_int_equal(image_skips_check(&skips, 0.011), 0);
    image_skips_deinit(&skips);
    log_close();
    fclose(nowhere);
}

/* Leaving out rows and columns changes no pixel: a box is what the same box of the whole image is. */
static void boxes_are_cut_exactly(void **state)
{
    enum { W = 203, H = 157, OUT = 24 };
    uint8_t      *rgb = picture(W, H, 3), *data, *all = malloc(W * H * 3), a[OUT * OUT * 3], b[OUT * OUT * 3];
    size_t        n;
    ImageDecoder *d;
    ImageInfo     info;
    ImageDecodeOptions opt = { RESIZE_BILINEAR, 1 };
    assert_int_equal(image_encode_jpeg(rgb, W, H, 60, &data, &n), 0);
    assert_int_equal(image_decoder_create(&d, 0), 0);
    ImageBytes jpeg = { data, n, 0, 0, 0 }, raw = { all, W * H * 3, W, H, 3 };
    assert_int_equal(image_begin(d, &jpeg, &info), 0);
    assert_int_equal(image_decode(d, NULL, &opt, W, H, all), 0);
    for (int i = 0; i < 300; i++) {
        int w = 1 + i * 7 % (W - 60), h = 1 + i * 11 % (H - 50), x = i * 13 % (W - w), y = i * 5 % (H - h);
        ResizeBox box = resize_crop(x, y, w, h);
        assert_int_equal(image_begin(d, &jpeg, &info), 0);
        assert_int_equal(image_decode(d, &box, &opt, OUT, OUT, a), 0);
        assert_int_equal(image_begin(d, &raw, &info), 0);
        assert_int_equal(image_decode(d, &box, &opt, OUT, OUT, b), 0);
        if (memcmp(a, b, sizeof a) != 0) fail_msg("box %d %d %d %d differs", x, y, w, h);
    }
    image_decoder_destroy(d);
    free(data);
    free(all);
    free(rgb);
}

/* A decoder forgets: a JPEG without quantisation tables is not decoded with those of the image before. */
static void decoders_keep_nothing_of_the_last_image(void **state)
{
    uint8_t           *rgb = picture(32, 32, 3), *data, out[32 * 32 * 3];
    size_t             n, at = 2, cut = 2;
    ImageDecoder      *d;
    ImageInfo          info;
    ImageDecodeOptions opt = { RESIZE_BILINEAR, 1 };
    assert_int_equal(image_encode_jpeg(rgb, 32, 32, 60, &data, &n), 0);
    assert_int_equal(image_decoder_create(&d, 0), 0);
    assert_int_equal(image_begin(d, &(ImageBytes){ data, n, 0, 0, 0 }, &info), 0);
    assert_int_equal(image_decode(d, NULL, &opt, 32, 32, out), 0);
    while (data[at + 1] != 0xda) { /* segments up to the scan, without DQT */
        size_t len = 2 + (size_t)(data[at + 2] << 8 | data[at + 3]);
        if (data[at + 1] != 0xdb) memmove(data + cut, data + at, len), cut += len;
        at += len;
    }
    memmove(data + cut, data + at, n - at);
    int rc = image_begin(d, &(ImageBytes){ data, n - at + cut, 0, 0, 0 }, &info);
    if (rc == 0) rc = image_decode(d, NULL, &opt, 32, 32, out);
    assert_int_equal(rc, 1);
    assert_non_null(strstr(image_why(d), "Quantization table"));
    image_decoder_destroy(d);
    free(data);
    free(rgb);
}

/* Sizes are refused before anything is decoded: the files have no pixels at all. */
static void bombs_are_refused_by_their_size(void **state)
{
    ImageDecoder *d;
    ImageInfo     info;
    uint8_t       png[33] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0,    0,    13, 'I',
                              'H',  'D', 'R', 0,   0,    0x75, 0x30, 0,    0, 0x75, 0x30, 8,  2 };
    uint8_t       jpeg[]  = { 0xff, 0xd8, 0xff, 0xc0, 0, 11, 8, 0x75, 0x30, 0x75, 0x30, 1,    1,   0x11,
                              0,    0xff, 0xda, 0,    8, 1,  1, 0,    0,    63,   0,    0xff, 0xd9 };
    assert_int_equal(image_decoder_create(&d, 0), 0);
    for (int i = 0; i < 2; i++) {
        ImageBytes b = { i ? jpeg : png, i ? sizeof jpeg : sizeof png, 0, 0, 0 };
        assert_int_equal(image_begin(d, &b, &info), 1);
        if (!strstr(image_why(d), "claims 30000 x 30000 pixels")) fail_msg("%s", image_why(d));
    }
    image_decoder_destroy(d);
    /* A limit of the caller's. */
    assert_int_equal(image_decoder_create(&d, 100), 0);
    uint8_t    pixels[11 * 10];
    ImageBytes raw = { pixels, sizeof pixels, 11, 10, 1 };
    assert_int_equal(image_begin(d, &raw, &info), 1);
    raw = (ImageBytes){ pixels, 100, 10, 10, 1 };
    assert_int_equal(image_begin(d, &raw, &info), 0);
    image_decoder_destroy(d);
}

/* ---- Clips ----------------------------------------------------------------------------------------- */

enum { CLIP_W = 60, CLIP_H = 40, CLIP_FRAMES = 20 };

/* An album of two clips, raw and JPEG, whose frame f has the picture number 10*f. */
static void put_clips(const char *path)
{
    const char  *name[] = { "wave" };
    AlbumWriter *w      = album_write_begin(path);
    assert_non_null(w);
    for (int raw = 0; raw < 2; raw++) {
        size_t   n      = 4 * CLIP_FRAMES * (size_t)!raw;
        uint8_t *record = calloc(1, CLIP_FRAMES * (4 + CLIP_W * CLIP_H * 3));
        for (int f = 0; f < CLIP_FRAMES; f++) {
            uint8_t *rgb = picture(CLIP_W, CLIP_H, 10 * f), *data = rgb;
            size_t   bytes = CLIP_W * CLIP_H * 3;
            if (!raw) assert_int_equal(image_encode_jpeg(rgb, CLIP_W, CLIP_H, 95, &data, &bytes), 0);
            memcpy(record + n, data, bytes);
            if (!raw) memcpy(record + 4 * f, &(uint32_t){ (uint32_t)bytes }, 4);
            n += bytes;
            if (!raw) free(data);
            free(rgb);
        }
        AlbumEntry e = { .size_bytes = (int64_t)n,
                         .frames     = CLIP_FRAMES,
                         .w          = CLIP_W,
                         .h          = CLIP_H,
                         .name       = "clip",
                         .codec      = raw ? ALBUM_RGB : ALBUM_FILE };
        assert_int_equal(album_write_add(w, &e, record), 0);
        free(record);
    }
    assert_int_equal(album_write_publish(&w, name, 1), 0);
}

static void clips_share_one_crop(void **state)
{
    enum { T = 5, S = 32 };
    static uint8_t out[T * S * S * 3], one[S * S * 3];
    int32_t        label;
    ImageOptions   o = everything(S);
    put_clips(in(state, "c.brimg"));
    ImageSet *s   = open_set(in(state, "c.brimg"));
    o.frames      = T;
    o.stride      = 3;
    o.erase_noise = 0;
    for (int i = 0; i < 2; i++) {
        fill(s, i, &o, out, &label);
        assert_int_equal(label, 0);
        ImageParams p = image_augment_params(&o, 0, i, CLIP_W, CLIP_H, CLIP_FRAMES);
        assert_true(p.first_frame >= 0 && p.first_frame + 3 * (T - 1) < CLIP_FRAMES);
        /* Each frame by itself, with these parameters, is the frame of the clip. */
        ImageScratch k;
        ImageRecord  r;
        assert_int_equal(image_scratch_init(&k, 0), 0);
        assert_int_equal(image_set_read(s, i, &k, &r), 0);
        for (int f = 0; f < T; f++) {
            ImageBytes         bytes;
            ImageInfo          info;
            ImageDecodeOptions opt = { RESIZE_BILINEAR, 0 };
            uint8_t            tmp[S * S * 3];
            assert_int_equal(image_set_frame(&r, &k, (int)p.first_frame + 3 * f, &bytes), 0);
            assert_int_equal(image_begin(k.decoder, &bytes, &info), 0);
            assert_int_equal(image_decode(k.decoder, &p.box, &opt, S, S, one), 0);
            image_augment_apply(&o, &p, 0, i, one, tmp);
            assert_memory_equal(one, out + f * S * S * 3, S * S * 3);
        }
        image_scratch_deinit(&k);
    }
    /* Longer than the clip: the last frame stays. */
    o.stride = 10;
    fill(s, 0, &o, out, &label);
    assert_memory_equal(out + 3 * S * S * 3, out + 4 * S * S * 3, S * S * 3);
    assert_memory_not_equal(out, out + S * S * 3, S * S * 3);
    /* A clip is no image. */
    ImageScratch k;
    o.frames = 0;
    assert_int_equal(image_scratch_init(&k, 0), 0);
    assert_int_equal(image_sample_fill(s, 0, 0, &o, &k, out, &label), 1);
    image_scratch_deinit(&k);
    image_set_close(s);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(encoding_survives_little_memory), /* the first: later ones leave memory to be used again */
        CASE(folder_has_classes_in_order),
        CASE(classes_are_in_the_order_of_names),
        CASE(a_sliver_has_a_middle),
        CASE(albums_keep_every_pixel),
        CASE(failed_conversions_leave_nothing),
        CASE(a_picture_too_wide_for_a_jpeg_is_skipped),
        CASE(albums_notice_every_flipped_byte),
        CASE(idx_gives_pixels_and_labels),
        CASE(tar_gives_samples_by_key),
        CASE(refusals_name_the_path),
        CASE(pixels_do_not_depend_on_threads),
        CASE(sites_are_independent),
        CASE(draws_have_their_distribution),
        CASE(extreme_shapes_have_a_crop),
        CASE(lists_name_augmentations),
        CASE(first_frame_is_random_in_training),
        CASE(bad_samples_are_black_and_counted),
        CASE(boxes_are_cut_exactly),
        CASE(decoders_keep_nothing_of_the_last_image),
        CASE(bombs_are_refused_by_their_size),
        CASE(clips_share_one_crop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
