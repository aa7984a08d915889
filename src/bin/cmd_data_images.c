#include "base/err.h"
#include "base/file.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "base/str.h"
#include "bin/cmd_data.h"
#include "conf/relate_image.h"
#include "data/image_convert.h"
#include "data/image_sheet.h"
#include "data/image_source.h"

#include <stdio.h>
#include <string.h>

/* Values of flags as text; NULL: not given. */
typedef struct {
    const char *out, *size, *quality, *threads, *album, *frames, *stride, *augment, *count, *seed, *epoch,
        *measure, *part;
    int raw, reencode, eval, grey;
} Flags;

/* *out keeps its default when the flag is not there. */
static int take_int(const char *flag, const char *text, int64_t lo, int64_t hi, int *out)
{
    int64_t v = *out;
    if (text) TRY(cmd_int(flag, text, lo, hi, &v));
    *out = (int)v;
    return 0;
}

static int convert_options(const Flags *f, ConvertOptions *o)
{
    int album_mib = 1024;
    *o            = (ConvertOptions){ .quality = 90, .threads = hostmem_cpus(), .frames = 32, .stride = 1 };
    o->raw        = f->raw;
    o->reencode   = f->reencode;
    if (!f->out) return err_user("command line: --out: the folder for the albums is missing");
    TRY(take_int("--size", f->size, 8, 8192, &o->size));
    TRY(take_int("--quality", f->quality, 1, 100, &o->quality));
    TRY(take_int("--threads", f->threads, 1, 256, &o->threads));
    TRY(take_int("--frames", f->frames, 1, 4096, &o->frames));
    TRY(take_int("--stride", f->stride, 1, 1024, &o->stride));
    TRY(take_int("--album", f->album, 1, 1 << 20, &album_mib));
    o->album_bytes = (int64_t)album_mib << 20;
    return 0;
}

static int print_result(const char *what, const char *out, const ConvertResult *r)
{
    char size[32];
    printf("%s: %lld %s of %d class%s in %d album%s, %s", out, (long long)r->n_sample, what, r->n_class,
           r->n_class == 1 ? "" : "es", r->n_album, str_plural(r->n_album),
           str_bytes(size, sizeof size, (double)r->size_bytes));
    if (r->n_skipped > 0) printf("; %lld skipped, listed in %s/skipped.txt", (long long)r->n_skipped, out);
    printf("\n");
    if (r->n_sample == 0)
        return err_user("%s: none of the %lld files could be used", out, (long long)r->n_skipped);
    return 0;
}

int cmd_data_images(const CmdArgs *a)
{
    Flags         f      = { NULL };
    const CmdFlag flag[] = {
        { "--out", &f.out, NULL, "FOLDER  for the albums; created" },
        { "--size", &f.size, NULL, "N       shrink to a short side of N pixels, as JPEG" },
        { "--raw", NULL, &f.raw,
          "        raw uint8 pixels instead of JPEG: no decoding in a run, ten times the bytes" },
        { "--reencode", NULL, &f.reencode, "        as JPEG even where the size stays" },
        { "--quality", &f.quality, NULL, "N       of JPEGs that are encoded anew, default 90" },
        { "--album", &f.album, NULL, "MIB     size of one album, default 1024" },
        { "--threads", &f.threads, NULL, "N       default: one a CPU that it may use" },
    };
    CmdTarget      t;
    ConvertOptions o;
    ConvertResult  r;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (!t.target) return err_user("command line: data images: a folder or file of images is missing");
    if (t.n_override > 0) return err_user("command line: %s: data images takes no keys", t.override[0]);
    TRY(convert_options(&f, &o));
    log_open(NULL);
    TRY(convert_images(t.target, f.out, &o, &r));
    return print_result("images", f.out, &r);
}

/* ---- clips ----------------------------------------------------------------------------------------- */

/* "0:0.8"; NULL: the whole. */
static int take_part(const char *text, double part[2])
{
    char        first[32];
    const char *colon = text ? strchr(text, ':') : NULL;
    if (!text) return 0;
    snprintf(first, sizeof first, "%.*s", colon ? (int)(colon - text) : 0, text);
    if (!colon || str_parse_double(first, &part[0]) < 0 || str_parse_double(colon + 1, &part[1]) < 0 ||
        part[0] < 0 || part[1] > 1 || part[0] >= part[1])
        return err_user("command line: --part: '%s' is not two shares, as in 0:0.8", text);
    return 0;
}

int cmd_data_clips(const CmdArgs *a)
{
    Flags         f      = { NULL };
    const CmdFlag flag[] = {
        { "--out", &f.out, NULL, "FOLDER  for the albums; created" },
        { "--frames", &f.frames, NULL, "N       of a clip, default 32" },
        { "--stride", &f.stride, NULL, "N       take every Nth frame of the video, default 1" },
        { "--part", &f.part, NULL, "A:B     only frames between these shares of each video, as in 0:0.8" },
        { "--size", &f.size, NULL, "N       shrink to a short side of N pixels, default 256" },
        { "--raw", NULL, &f.raw, "        raw uint8 pixels instead of JPEG frames" },
        { "--quality", &f.quality, NULL, "N       of JPEG frames, default 90" },
        { "--album", &f.album, NULL, "MIB     size of one album, default 1024" },
    };
    ConvertOptions o;
    ConvertResult  r;
    int            n = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n == 0) return err_user("command line: data clips: a video is missing");
    TRY(convert_options(&f, &o));
    if (!f.size) o.size = 256;
    TRY(take_part(f.part, o.part));
    log_open(NULL);
    TRY(convert_clips(a->argv, n, f.out, &o, &r));
    return print_result("clips", f.out, &r);
}

/* ---- show ------------------------------------------------------------------------------------------ */

static int show_options(const Flags *f, ImageOptions *o)
{
    int    seed = 0, size = 224;
    Recipe usual;
    recipe_defaults(&usual);
    TRY(take_int("--size", f->size, 8, 4096, &size));
    *o = f->eval || f->augment ? image_options_eval(size) : image_options_train(size);
    if (f->augment) TRY(image_options_list(o, f->augment, &usual.data, "command line: --augment"));
    o->any_frame = !f->eval;
    TRY(take_int("--frames", f->frames, 0, 4096, &o->frames));
    TRY(take_int("--stride", f->stride, 1, 1024, &o->stride));
    TRY(take_int("--seed", f->seed, 0, 1 << 30, &seed));
    o->seed     = (uint64_t)seed;
    o->channels = f->grey ? 1 : 3;
    return 0;
}

static int measure(const ImageSet *set, const ImageOptions *o, const Flags *f)
{
    ImageCounters c;
    double        seconds, per_s;
    int           threads = hostmem_cpus();
    TRY(cmd_double("--measure", f->measure, 0.1, 3600, &seconds));
    TRY(take_int("--threads", f->threads, 1, 256, &threads));
    TRY(image_sheet_measure(set, o, threads, seconds, &c, &per_s));
    double n = (double)MAX(c.n_sample, 1);
    printf("%.0f samples/s with %d thread%s; of one sample: read %.3f ms, decode %.3f ms, resize %.3f ms, "
           "augment %.3f ms; %.0f KB\n",
           per_s, threads, str_plural(threads), c.read_s / n * 1e3, c.decode_s / n * 1e3,
           c.resize_s / n * 1e3, c.augment_s / n * 1e3, (double)c.read_bytes / n / 1e3);
    if (c.n_skipped > 0) printf("%lld of %lld skipped\n", (long long)c.n_skipped, (long long)c.n_sample);
    return 0;
}

static int show(const ImageSet *set, const Flags *f, const ImageOptions *o, ImageSheet *sheet)
{
    int64_t n = image_set_len(set);
    printf("%s: %lld samples, %d classes\n", image_set_kind(set), (long long)n, image_set_classes(set));
    if (f->measure) TRY(measure(set, o, f));
    if (!f->out) return 0;
    sheet->n = (int)MIN(sheet->n, n);
    TRY(image_sheet_write(set, o, sheet));
    printf("%s: %d of %lld samples\n", f->out, sheet->n, (long long)n);
    return 0;
}

/* The same with the names that a recipe gives. */
static int show_named(ImageSet *set, const Flags *f, const ImageOptions *o, ImageSheet *sheet,
                      const Recipe *r)
{
    ClassNames  names;
    const char *stranger;
    class_names_init(&names);
    int rc = class_names_load(&names, &r->image);
    if (rc < 0) recipe_blame_pending(r, "image.names_file");
    int is_other = rc == 0 && names.n > 0 && relate_names_are_old(r) && /* as the task does */
                   image_set_compare(set, &names, &stranger) != MATCH_ALL;
    if (!is_other) sheet->names = &names;
    if (rc == 0 && !is_other) image_set_match(set, &names, &stranger);
    if (rc == 0) rc = show(set, f, o, sheet);
    class_names_deinit(&names);
    return rc;
}

/* A recipe says by its keys what flags say of a folder. */
static int refuse_flags(const Flags *f)
{
    const struct {
        const char *flag, *value, *key;
    } row[] = { { "--size", f->size, "image.size" },
                { "--augment", f->augment, "data.augment" },
                { "--frames", f->frames, "image.frames" },
                { "--stride", f->stride, "image.stride" },
                { "--seed", f->seed, "seed" } };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        if (row[i].value)
            return err_user("command line: %s: of a recipe say %s=%s", row[i].flag, row[i].key, row[i].value);
    }
    return f->grey ? err_user("command line: --grey: a recipe's images have three channels") : 0;
}

/* What a run of the recipe does to its samples, and where they are. */
static int recipe_options(const CmdTarget *t, const Flags *f, Recipe *r, ImageOptions *o)
{
    TRY(refuse_flags(f));
    TRY(cmd_load_target(t, r));
    if (strcmp(r->task, "image") != 0 && strcmp(r->task, "mae") != 0)
        return recipe_blame(r, "task", "%s has no images to show", r->task);
    if (!r->data.train[0])
        return recipe_blame(r, "data.train", "is missing: say data.train=DIR (noise is nothing to look at)");
    *o = image_source_options(r, !f->eval);
    return 0;
}

int cmd_data_show(const CmdArgs *a)
{
    Flags         f      = { NULL };
    const CmdFlag flag[] = {
        { "--out", &f.out, NULL, "FILE    the sheet, a PNG" },
        { "--size", &f.size, NULL, "N       pixels a side, default 224; of a recipe image.size=N" },
        { "--augment", &f.augment, NULL,
          "LIST    of crop, flip, jitter, rand, erase, mixup, cutmix; default crop,flip" },
        { "--eval", NULL, &f.eval, "        as in validation: the middle, nothing random" },
        { "--grey", NULL, &f.grey, "        one channel" },
        { "--frames", &f.frames, NULL, "N       of a clip; for sets of clips" },
        { "--stride", &f.stride, NULL, "N       take every Nth frame of a clip" },
        { "--count", &f.count, NULL, "N       samples, spread over the set; default 32, or 8 clips" },
        { "--seed", &f.seed, NULL, "N       default 0" },
        { "--epoch", &f.epoch, NULL, "N       default 0" },
        { "--measure", &f.measure, NULL, "S       fill samples for S seconds and say how fast that was" },
        { "--threads", &f.threads, NULL, "N       for --measure; default: one a CPU that it may use" },
    };
    CmdTarget    t;
    ImageSet    *set;
    ImageOptions o;
    Recipe       r;
    ImageSheet   sheet = { .list = stdout };
    int          epoch = 0;
    const char  *path;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (!t.target)
        return err_user("command line: data show: a recipe, a folder or file of images is missing");
    int is_recipe =
        str_ends_with(t.target, ".yaml") || (file_kind(t.target) == FILE_NONE && recipe_exists(t.target));
    if (!is_recipe && t.n_override > 0)
        return err_user("command line: %s: data show takes keys only of a recipe", t.override[0]);
    if (!f.out && !f.measure) return err_user("command line: --out: a PNG file is missing (or --measure)");
    if (f.out && !str_ends_with(f.out, ".png"))
        return err_user("command line: --out: '%s': the sheet is a PNG file: FILE.png", f.out);
    if (is_recipe) {
        TRY(recipe_options(&t, &f, &r, &o));
        path = f.eval && r.data.val[0] ? r.data.val : r.data.train;
    } else {
        TRY(show_options(&f, &o));
        path = t.target;
    }
    sheet.path = f.out;
    sheet.n    = o.frames > 0 ? 8 : 32;
    TRY(take_int("--epoch", f.epoch, 0, 1 << 30, &epoch));
    TRY(take_int("--count", f.count, 1, 1024, &sheet.n));
    sheet.epoch = epoch;
    log_open(NULL);
    TRY(image_set_open(&set, path));
    int rc = is_recipe ? show_named(set, &f, &o, &sheet, &r) : show(set, &f, &o, &sheet);
    image_set_close(set);
    return rc;
}

/* ---- verify ---------------------------------------------------------------------------------------- */

int cmd_is_albums(const char *path)
{
    char **names;
    Arena  arena;
    if (file_kind(path) != FILE_FOLDER) return str_ends_with(path, ALBUM_SUFFIX);
    arena_init(&arena);
    int n = file_list(&arena, path, ALBUM_SUFFIX, &names);
    arena_deinit(&arena);
    err_clear(); /* a folder that cannot be listed is refused later */
    return n > 0;
}

/* Reads every record of a set; the checksum of each is checked on the way. */
static int verify_set(const ImageSet *set, const char *path)
{
    ImageScratch s;
    ImageRecord  record;
    char         name[1024];
    int64_t      n_bad = 0, n = image_set_len(set);
    int          rc = image_scratch_init(&s, 0);
    for (int64_t i = 0; i < n && rc == 0; i++) {
        rc = image_set_read(set, i, &s, &record);
        if (rc != 1) continue;
        printf("%s: %s\n", image_set_name(set, i, name, sizeof name), s.why);
        n_bad++;
        rc = 0;
    }
    image_scratch_deinit(&s);
    TRY(rc);
    if (n_bad > 0)
        return err_set("%s: %lld of %lld records are damaged", path, (long long)n_bad, (long long)n);
    printf("%s: %lld records of %d classes, all checksums are right\n", path, (long long)n,
           image_set_classes(set));
    return 0;
}

int cmd_verify_albums(char *const *path, int n)
{
    for (int i = 0; i < n; i++) {
        ImageSet *set;
        TRY(image_set_open(&set, path[i]));
        int rc = verify_set(set, path[i]);
        image_set_close(set);
        TRY(rc);
    }
    return 0;
}
