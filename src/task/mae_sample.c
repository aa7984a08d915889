/* Samples of task mae: what the net makes of hidden patches of a validation sample, as numbers and as a
 * picture. */
#include "task/mae.h"

#include "base/err.h"
#include "base/mem.h"
#include "data/image_mask.h"
#include "file/image_write.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PANELS = 3, FRAMES_SHOWN = 4, SIDE_LEAST = 96, GAP = 4, QUALITY = 95 };

typedef struct {
    Job     *j;
    Fields  *f;
    int      size, frames, patch, tubelet, K;
    uint8_t *block;
    float   *guess;         /* of sample 0: [hidden, K] */
    uint8_t *panel[PANELS]; /* frames x size x size pixels: the sample, what is seen, with the guesses */
} Show;

/* ---- pixels of patches -------------------------------------------------------------------------------- */

/* Byte of number k of a patch, in a sample's pixels; numbers go by frame, row, column and channel. */
static size_t at_pixel(const Show *s, int64_t patch, int k)
{
    int64_t nx = s->size / s->patch, P = s->patch;
    int64_t x = k / 3 % P, y = k / (3 * P) % P, t = k / (3 * P * P);
    int64_t frame = patch / (nx * nx) * s->tubelet + t;
    int64_t row = patch / nx % nx * P + y, column = patch % nx * P + x;
    return (size_t)(((frame * s->size + row) * s->size + column) * 3 + k % 3);
}

/* Mean and deviation of a patch, as the targets have them; guesses are in these units. */
static void patch_scale(const Show *s, const float *x, double *mean, double *std)
{
    double sum = 0, square = 0;
    for (int k = 0; k < s->K; k++) sum += (double)x[k];
    *mean = sum / s->K;
    for (int k = 0; k < s->K; k++) square += ((double)x[k] - *mean) * ((double)x[k] - *mean);
    *std = sqrt(square / s->K + 1e-6);
}

/* Draws a hidden patch into the panels; returns the loss. x: room for a patch. */
static double draw_patch(const Show *s, int64_t patch, const float *guess, float *x)
{
    enum { GREY = 128 };
    const Vit     *v    = &mae_of(s->j)->mae.vit;
    const uint8_t *rgb  = s->panel[0];
    double         unit = sqrt(2.0 / s->K), loss = 0, mean, std;
    for (int k = 0; k < s->K; k++)
        x[k] = ((float)rgb[at_pixel(s, patch, k)] / 255 - v->mean[k % 3]) / v->std[k % 3];
    patch_scale(s, x, &mean, &std);
    for (int k = 0; k < s->K; k++) {
        double y = (double)guess[k] / unit, miss = y - ((double)x[k] - mean) / std;
        double back = ((y * std + mean) * (double)v->std[k % 3] + (double)v->mean[k % 3]) * 255;
        s->panel[1][at_pixel(s, patch, k)] = GREY;
        s->panel[2][at_pixel(s, patch, k)] = (uint8_t)(MIN(MAX(back, 0), 255) + 0.5);
        loss += miss * miss / s->K;
    }
    return loss;
}

static int draw_all(Show *s, FILE *out)
{
    const Mae     *m      = &mae_of(s->j)->mae;
    const int32_t *hidden = fields_at(s->f, s->block, MASK_HIDDEN, 0);
    float         *x      = mem_alloc(sizeof *x * (size_t)s->K);
    double         loss   = 0;
    if (!x) return err_sys("memory for a patch");
    if (hidden[0] < 0) {
        fprintf(out, "the sample could not be read\n");
    } else {
        for (int64_t i = 0; i < m->hidden; i++)
            loss += draw_patch(s, hidden[i], s->guess + i * s->K, x) / (double)m->hidden;
        fprintf(out, "loss %.4f of %lld hidden patches of %lld\n", loss, (long long)m->hidden,
                (long long)m->n);
    }
    free(x);
    return 0;
}

/* ---- the picture -------------------------------------------------------------------------------------- */

/* Panels side by side, a row for each frame that is shown. Small images are magnified, pixel by pixel. */
static int write_picture(const Show *s, FILE *to)
{
    int      rows = MIN(s->frames, FRAMES_SHOWN), zoom = MAX(SIDE_LEAST / s->size, 1), side = s->size * zoom;
    int      w = PANELS * (side + GAP) - GAP, h = rows * (side + GAP) - GAP;
    uint8_t *rgb = mem_alloc((size_t)w * (size_t)h * 3), *jpeg;
    size_t   n;
    if (!rgb) return err_sys("memory for a picture");
    memset(rgb, 255, (size_t)w * (size_t)h * 3);
    for (int i = 0; i < rows * side * PANELS * side; i++) {
        int x = i % side, k = i / side % PANELS, y = i / side / PANELS % side, row = i / side / PANELS / side;
        int frame = row * s->frames / rows;
        memcpy(rgb + ((size_t)(row * (side + GAP) + y) * (size_t)w + (size_t)(k * (side + GAP) + x)) * 3,
               s->panel[k] +
                   ((size_t)(frame * s->size + y / zoom) * (size_t)s->size + (size_t)(x / zoom)) * 3,
               3);
    }
    int rc = image_encode_jpeg(rgb, w, h, QUALITY, &jpeg, &n);
    free(rgb);
    TRY(rc);
    rc = fwrite(jpeg, 1, n, to) == n ? 0 : err_sys("a picture of %zu bytes", n);
    free(jpeg);
    return rc;
}

/* ---- the whole ---------------------------------------------------------------------------------------- */

/* Fills row 0 of the block with a validation sample; the other rows keep zeros. */
static int fill_block(Show *s, uint64_t seed)
{
    enum { SPREAD = 16 };
    const Recipe *r = &s->j->recipe;
    Source       *val;
    void         *field[FIELDS_MAX];
    TRY(image_mask_open_val(&val, r, SPREAD, NULL));
    void *scratch = mem_zeroed(1, val->scratch_bytes + 1);
    for (int i = 0; i < s->f->n; i++) field[i] = fields_at(s->f, s->block, i, 0);
    int64_t g  = (int64_t)((seed - (uint64_t)r->seed) % (uint64_t)val->n_sample);
    int     rc = scratch ? source_fill(val, g, field, scratch) : err_sys("memory for a sample");
    source_end_scratch(val, scratch);
    free(scratch);
    source_close(val);
    return rc;
}

static int guess_one(Show *s, const TaskSample *opt, FILE *out)
{
    Job          *j = s->j;
    const MaeJob *m = mae_of(j);
    size_t        n = (size_t)s->frames * (size_t)s->size * (size_t)s->size * 3;
    TRY(fill_block(s, opt->seed));
    TRY(job_upload(j, j->block, s->block, j->fields.block_bytes));
    TRY(prog_run(j->prog[m->guess], j->dev));
    TRY(job_download(j, m->guesses, s->guess, tensor_bytes(m->guesses)));
    for (int k = 0; k < PANELS; k++) {
        s->panel[k] = mem_alloc(n);
        if (!s->panel[k]) return err_sys("memory for a picture");
        memcpy(s->panel[k], fields_at(s->f, s->block, IMAGE_PIXELS, 0), n);
    }
    TRY(draw_all(s, out));
    return opt->picture ? write_picture(s, opt->picture) : 0;
}

int mae_sample(Job *j, const TaskSample *opt, FILE *out)
{
    const RecipeImage *m = &j->recipe.image;
    if (image_source_is_noise(&j->recipe) || !image_source_has_val(&j->recipe)) {
        fprintf(out, "no validation images to show\n");
        return 0;
    }
    Show s  = { .j       = j,
                .f       = &j->fields,
                .size    = (int)m->seen_size,
                .frames  = (int)MAX(m->seen_frames, 1),
                .patch   = (int)m->patch,
                .tubelet = m->frames > 0 ? (int)m->tubelet : 1,
                .K       = (int)mae_of(j)->mae.numbers };
    s.block = mem_zeroed(1, j->fields.block_bytes);
    s.guess = mem_alloc(tensor_bytes(mae_of(j)->guesses));
    int rc  = s.block && s.guess ? guess_one(&s, opt, out) : err_sys("memory for a sample");
    for (int k = 0; k < PANELS; k++) free(s.panel[k]);
    free(s.block);
    free(s.guess);
    return rc;
}
