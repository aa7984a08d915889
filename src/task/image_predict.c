/* Predictions: what a net says about files and sets, and which classes of a labelled set it confuses. Samples
 * of a run that trains: what the net says about validation images. */
#include "task/image.h"

#include "base/arena.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/str.h"
#include "data/image_source.h"
#include "file/image_write.h"
#include "file/npy.h"
#include "task/image_picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MOST = 256, TABLE_MOST = 20, PAIRS_SHOWN = 10 };

typedef struct {
    Job               *j;
    const TaskPredict *opt;
    FILE              *out;
    ImageOptions       how;
    ImageScratch       scratch;
    Arena              arena;
    ClassNames         names;
    int                n_class, stored;
    unsigned char     *block;
    float             *logits;
    ImagePicture       picture;
    FILE              *npy;       /* for all logits; NULL: not wanted */
    int64_t           *confusion; /* [n_class][n_class]: how often a class (row) was called another */
    ImageSkips         skips;
    int64_t            n_labelled, n_first, n_five;
} Predict;

/* ---- names -------------------------------------------------------------------------------------------- */

/* The name of a class in one printable line. */
static const char *name_of(const Predict *p, int c, char buf[NAME_MOST])
{
    if (c < p->names.n) return str_quote(buf, NAME_MOST, p->names.name[c], strlen(p->names.name[c]));
    snprintf(buf, NAME_MOST, "class %d", c);
    return buf;
}

/* ---- one batch ---------------------------------------------------------------------------------------- */

/* Turns the logits of a sample into probabilities, and order[] into the most likely classes. */
static void rank(const Predict *p, float *row, int *order, int n)
{
    double sum = 0, most = -INFINITY;
    for (int c = 0; c < p->n_class; c++) most = MAX(most, (double)row[c]);
    for (int c = 0; c < p->n_class; c++) sum += exp((double)row[c] - most);
    for (int c = 0; c < p->n_class; c++) row[c] = (float)(exp((double)row[c] - most) / sum);
    for (int k = 0; k < n; k++) {
        int best = -1;
        for (int c = 0; c < p->n_class; c++) {
            int taken = 0;
            for (int q = 0; q < k; q++) taken |= order[q] == c;
            if (!taken && (best < 0 || row[c] > row[best])) best = c;
        }
        order[k] = best;
    }
}

static void count(Predict *p, int label, const int *order, int n)
{
    if (label < 0 || label >= p->n_class) return;
    p->n_labelled++;
    p->n_first += order[0] == label;
    for (int k = 0; k < MIN(n, 5); k++) p->n_five += order[k] == label;
    p->confusion[(int64_t)label * p->n_class + order[0]]++;
}

static void say(Predict *p, const char *file, int label, const float *row, const int *order)
{
    char buf[NAME_MOST];
    int  n        = (int)MIN(p->opt->top, p->n_class);
    int  is_known = label >= 0 && label < p->n_class;
    fprintf(p->out, "%s%s%s:", file, is_known ? " is " : "", is_known ? name_of(p, label, buf) : "");
    for (int k = 0; k < n; k++)
        fprintf(p->out, "%s %s %.1f %%", k ? "," : "", name_of(p, order[k], buf),
                100 * (double)row[order[k]]);
    fprintf(p->out, "\n");
}

static int draw(Predict *p, int64_t b, int label, const float *row, const int *order)
{
    ImageAnswer a = { .size = (int)p->j->recipe.image.seen_size, .right = order[0] == label };
    char        buf[NAME_MOST];
    a.rgb = fields_at(&p->j->fields, p->block, IMAGE_PIXELS, b);
    if (label >= 0 && label < p->n_class) a.label = arena_strdup(&p->arena, name_of(p, label, buf));
    for (int k = 0; k < MIN(IMAGE_ANSWERS, p->n_class); k++) {
        a.name[k]  = arena_strdup(&p->arena, name_of(p, order[k], buf));
        a.share[k] = (double)row[order[k]];
    }
    return image_picture_add(&p->picture, &a);
}

/* ---- a set -------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t sample;
    int     label, skipped, shown;
} Placed;

static int run_batch(Predict *p)
{
    Job *j = p->j;
    TRY(job_upload(j, j->block, p->block, j->fields.block_bytes));
    TRY(prog_run(j->prog[image_of(j)->predict], j->dev));
    return job_download(j, image_of(j)->logits, p->logits, tensor_bytes(image_of(j)->logits));
}

/* A sample that could not be used has NaN. */
static int keep_logits(const Predict *p, const Placed *at, float *row)
{
    for (int c = 0; c < p->n_class && at->skipped; c++) row[c] = NAN;
    return p->npy ? npy_write(p->npy, row, p->n_class) : 0;
}

static int answer(Predict *p, const ImageSet *set, const Placed *at, int n)
{
    char file[1024];
    int  top = MIN(MAX((int)p->opt->top, 5), p->n_class), *order = mem_alloc(sizeof *order * (size_t)top);
    if (!order) return err_sys("memory for answers");
    int rc = run_batch(p);
    for (int b = 0; b < n && rc == 0; b++) {
        float *row = p->logits + (int64_t)b * p->stored;
        image_set_name(set, at[b].sample, file, sizeof file);
        rc = keep_logits(p, &at[b], row);
        if (at[b].skipped || rc < 0) continue;
        rank(p, row, order, top);
        count(p, at[b].label, order, top);
        if (!at[b].shown) continue;
        log_status(""); /* the answer stands where the bar was */
        say(p, file, at[b].label, row, order);
        if (p->opt->picture) rc = draw(p, b, at[b].label, row, order);
    }
    free(order);
    return rc;
}

static int fill(Predict *p, const ImageSet *set, int64_t i, int64_t b, Placed *at)
{
    const Fields *f = &p->j->fields;
    char          file[1024];
    int32_t       label;
    int           rc =
        image_sample_fill(set, i, 0, &p->how, &p->scratch, fields_at(f, p->block, IMAGE_PIXELS, b), &label);
    TRY(rc);
    *at = (Placed){ i, image_set_label(set, i), rc, 0 };
    image_skips_note(&p->skips, rc ? image_set_name(set, i, file, sizeof file) : NULL,
                     rc ? p->scratch.why : NULL);
    return 0;
}

/* Samples of a set are shown where they are spread evenly. */
static int is_shown(int64_t i, int64_t n, int64_t n_shown)
{
    return n_shown >= n || i * n_shown / n != (i + 1) * n_shown / n;
}

static int predict_set(Predict *p, const ImageSet *set)
{
    int64_t  n = image_set_len(set), B = p->j->fields.B, k = 0;
    Placed  *at = mem_alloc(sizeof *at * (size_t)B);
    int      rc = at ? 0 : err_sys("memory for answers");
    Progress bar;
    progress_begin_aside(&bar, "predict", "samples/s", n);
    for (int64_t i = 0; i < n && rc == 0; i++) {
        rc          = fill(p, set, i, k, &at[k]);
        at[k].shown = is_shown(i, n, p->opt->n_shown);
        k++;
        if (rc == 0 && (k == B || i + 1 == n)) {
            rc = answer(p, set, at, (int)k);
            k  = 0;
            progress_count(&bar, i + 1);
        }
    }
    progress_end(&bar);
    free(at);
    if (rc == 0 && p->opt->n_shown > 0 && p->opt->n_shown < n)
        fprintf(p->out, "%lld of %lld samples are shown (--show N)\n", (long long)p->opt->n_shown,
                (long long)n);
    return rc;
}

/* ---- what a labelled set says -------------------------------------------------------------------------- */

static double class_accuracy(const Predict *p, int c, int64_t *n)
{
    *n = 0;
    for (int k = 0; k < p->n_class; k++) *n += p->confusion[(int64_t)c * p->n_class + k];
    return *n > 0 ? (double)p->confusion[(int64_t)c * p->n_class + c] / (double)*n : 0;
}

static void print_table(const Predict *p)
{
    char buf[NAME_MOST];
    fprintf(p->out, "\n%-16s  right", "is \\ was called");
    for (int c = 0; c < p->n_class; c++) fprintf(p->out, " %6d", c);
    fprintf(p->out, "\n");
    for (int c = 0; c < p->n_class; c++) {
        int64_t n;
        double  right = class_accuracy(p, c, &n);
        fprintf(p->out, "%2d ", c);
        str_print_padded(p->out, name_of(p, c, buf), 13);
        if (n > 0) {
            fprintf(p->out, " %5.1f%%", 100 * right);
        } else {
            fprintf(p->out, " %6s", "-");
        }
        for (int k = 0; k < p->n_class; k++)
            fprintf(p->out, " %6lld", (long long)p->confusion[(int64_t)c * p->n_class + k]);
        fprintf(p->out, "\n");
    }
}

/* The pairs of classes that are taken for each other most often. */
static void print_pairs(Predict *p)
{
    char a[NAME_MOST], b[NAME_MOST];
    for (int line = 0; line < PAIRS_SHOWN; line++) {
        int64_t best = -1, most = 0, n = (int64_t)p->n_class * p->n_class;
        for (int64_t i = 0; i < n; i++) {
            if (i / p->n_class != i % p->n_class && p->confusion[i] > most) most = p->confusion[best = i];
        }
        if (best < 0) return;
        fprintf(p->out, "%s%s was called %s %lld times\n", line ? "" : "\n",
                name_of(p, (int)(best / p->n_class), a), name_of(p, (int)(best % p->n_class), b),
                (long long)most);
        p->confusion[best] = 0; /* the table was read before */
    }
}

static void summarise(Predict *p)
{
    double  sum = 0, n_seen = 0;
    int64_t n;
    if (p->n_labelled == 0) return;
    for (int c = 0; c < p->n_class; c++) {
        double right = class_accuracy(p, c, &n);
        sum += n > 0 ? right : 0;
        n_seen += n > 0;
    }
    fprintf(p->out, "\n%lld labelled sample%s: top-1 %.2f %%, top-5 %.2f %%, mean over classes %.2f %%\n",
            (long long)p->n_labelled, str_plural(p->n_labelled),
            100 * (double)p->n_first / (double)p->n_labelled, 100 * (double)p->n_five / (double)p->n_labelled,
            100 * sum / n_seen);
    if (p->skips.skipped > 0) fprintf(p->out, "%lld could not be used\n", (long long)p->skips.skipped);
    if (p->n_class <= TABLE_MOST) {
        print_table(p);
    } else {
        print_pairs(p);
    }
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

static int begin(Predict *p)
{
    Job *j     = p->j;
    p->n_class = (int)j->recipe.image.classes;
    p->stored  = (int)image_of(j)->vit.stored_class;
    p->how     = image_source_options(&j->recipe, 0);
    class_names_init(&p->names);
    if (class_names_load(&p->names, &j->recipe.image) < 0)
        return recipe_blame_pending(&j->recipe, "image.names_file");
    p->block     = mem_zeroed(1, j->fields.block_bytes);
    p->logits    = mem_alloc(tensor_bytes(image_of(j)->logits));
    p->confusion = mem_zeroed((size_t)p->n_class * (size_t)p->n_class, sizeof *p->confusion);
    if (!p->block || !p->logits || !p->confusion) return err_sys("memory for predictions");
    TRY(image_skips_init(&p->skips));
    return image_scratch_init(&p->scratch, 0);
}

/* Classes of a set mean those of the run by name. */
static void match_classes(Predict *p, ImageSet *set, const char *path)
{
    const char *stranger;
    char        name[NAME_MOST] = "";
    SetMatch    match           = image_set_match(set, &p->names, &stranger);
    if (stranger) str_quote(name, sizeof name, stranger, strlen(stranger));
    if (match == MATCH_SOME)
        log_warn("%s: a class %s is not known to the run: samples of such classes are not counted", path,
                 name);
    if (match == MATCH_NUMBERS)
        log_warn("%s: a class %s is not known to the run: classes are taken by number, not by name", path,
                 name);
}

static int each_path(Predict *p)
{
    for (int i = 0; i < p->opt->n_path; i++) {
        ImageSet *set;
        TRY(image_set_open(&set, p->opt->path[i]));
        match_classes(p, set, p->opt->path[i]);
        int rc = predict_set(p, set);
        image_set_close(set);
        TRY(rc);
    }
    return 0;
}

static void end(Predict *p)
{
    image_picture_deinit(&p->picture);
    image_scratch_deinit(&p->scratch);
    image_skips_deinit(&p->skips);
    arena_deinit(&p->arena);
    class_names_deinit(&p->names);
    free(p->block);
    free(p->logits);
    free(p->confusion);
}

/* The file's head says how many rows there are, so the sets are counted first. */
static int begin_logits(Predict *p)
{
    int64_t n = 0;
    if (!p->opt->logits) return 0;
    for (int i = 0; i < p->opt->n_path; i++) {
        ImageSet *set;
        TRY(image_set_open(&set, p->opt->path[i]));
        n += image_set_len(set);
        image_set_close(set);
    }
    p->npy = npy_begin(p->opt->logits, n, p->n_class);
    return p->npy ? 0 : -1;
}

int image_predict(Job *j, const TaskPredict *opt, FILE *out)
{
    Predict p = { .j = j, .opt = opt, .out = out };
    arena_init(&p.arena);
    int rc = begin(&p);
    if (rc == 0) rc = begin_logits(&p);
    if (rc == 0) rc = each_path(&p);
    if (rc == 0 && p.skips.skipped == p.skips.seen)
        rc = err_user("%s: nothing to predict: none of %lld samples could be used", opt->path[0],
                      (long long)p.skips.seen);
    if (rc == 0 && p.npy) rc = npy_publish(&p.npy, opt->logits);
    file_discard(&p.npy);
    if (rc == 0) summarise(&p);
    if (rc == 0 && opt->picture) rc = image_picture_write(&p.picture, opt->picture);
    if (rc == 0 && opt->picture) fprintf(out, "\n%s: the samples above as a picture\n", opt->picture);
    end(&p);
    return rc;
}

/* ---- one sample, while a run trains -------------------------------------------------------------------- */

/* Fills row 0 of the block with sample g; the other rows keep zeros. */
static int fill_from(Predict *p, const Source *val, int64_t g)
{
    const Fields *f = &p->j->fields;
    void         *field[FIELDS_MAX], *scratch = mem_zeroed(1, val->scratch_bytes + 1);
    if (!scratch) return err_sys("memory for a sample");
    for (int i = 0; i < f->n; i++) field[i] = fields_at(f, p->block, i, 0);
    int rc = source_fill(val, g, field, scratch);
    source_end_scratch(val, scratch);
    free(scratch);
    return MIN(rc, 0); /* one that cannot be used is black */
}

/* The first frame of the sample. */
static int write_jpeg(Predict *p, FILE *out)
{
    enum { QUALITY = 90 };
    uint8_t *data;
    size_t   n;
    int      size = (int)p->j->recipe.image.seen_size;
    TRY(image_encode_jpeg(fields_at(&p->j->fields, p->block, IMAGE_PIXELS, 0), size, size, QUALITY, &data,
                          &n));
    int rc = fwrite(data, 1, n, out) == n ? 0 : err_sys("a picture of %zu bytes", n);
    free(data);
    return rc;
}

static int answer_one(Predict *p, const TaskSample *opt)
{
    enum { SPREAD = 16 };
    const Recipe *r = &p->j->recipe;
    Source       *val;
    int           order[5], top = MIN(5, p->n_class);
    TRY(image_source_open_val(&val, r, SPREAD, NULL));
    int rc = fill_from(p, val, (int64_t)((opt->seed - (uint64_t)r->seed) % (uint64_t)val->n_sample));
    source_close(val);
    if (rc == 0) rc = run_batch(p);
    TRY(rc);
    int32_t label = *(const int32_t *)fields_at(&p->j->fields, p->block, IMAGE_LABEL, 0);
    rank(p, p->logits, order, top);
    say(p, "this", label, p->logits, order);
    return opt->picture ? write_jpeg(p, opt->picture) : 0;
}

int image_sample(Job *j, const TaskSample *opt, FILE *out)
{
    Predict p = { .j = j, .opt = &(TaskPredict){ .top = 3 }, .out = out };
    if (image_source_is_noise(&j->recipe) || !image_source_has_val(&j->recipe)) {
        fprintf(out, "no validation images to show\n");
        return 0;
    }
    arena_init(&p.arena);
    int rc = begin(&p);
    if (rc == 0) rc = answer_one(&p, opt);
    end(&p);
    return rc;
}
