/* An outlier in an fp8 run on a GPU, with real text: one gain is a thousand times too large for one step.
 *
 *     test_gpu_fp8 [TEXT [DEVICE]]
 *
 * 1. The scale of the activation behind that gain falls at once, and is back 20 steps later at the latest.
 * 2. The loss is back as well: over the last five of those steps it is at most 2 % above that of a bf16 run
 *    with the same outlier. Both runs see the same batches, and bf16 has the same damage from the update of
 *    that step, so what differs is what fp8 adds. Two bf16 runs of this length differ by up to 0.6 % at one
 *    step (docs/performance.md, "The same losses"); the mean of five steps differs less. */
#include "check.h"

#include "base/rng.h"
#include "jobs.h"
#include "run/build.h"

#include <stdint.h>

enum { BEFORE = 60, AFTER = 20, LAST = 5, ROWS = 32 };

static const char recipe[] =
    "model: {layers: 4, width: 256, heads: 4, vocab: 256, context: 128, act: swiglu, "
    "norm: rmsnorm, pos: rope}\n"
    "step_tokens: 4096\ndata: {kind: random}\n";
static const char gain[] = "block.1.norm2.weight", behind[] = "block.1.up.weight";

typedef struct {
    uint8_t *text;
    int64_t  size;
} Text;

static Text read_text(const char *path)
{
    Text  t = { 0 };
    FILE *f = fopen(path, "rb");
    CHECK(f && fseek(f, 0, SEEK_END) == 0, "cannot read %s", path);
    t.size = ftell(f);
    t.text = malloc((size_t)t.size);
    rewind(f);
    CHECK(fread(t.text, 1, (size_t)t.size, f) == (size_t)t.size, "cannot read %s", path);
    fclose(f);
    return t;
}

static Job *open_job(Dev *dev, int fp8)
{
    Recipe    r;
    Job      *j;
    DType     compute = dev->vt->hints->is_late ? DT_BF16 : DT_F32;
    JobChoice c       = { .micro_batch = ROWS, .head_rows = ROWS * 128, .compute = compute, .fp8 = fp8 };
    CHECK(recipe_parse(&r, "t.yaml", recipe, strlen(recipe), 0, NULL) == 0, "%s", err_get());
    CHECK(build_create(&j, &task_lm, &r, &c, JOB_TRAIN, dev->vt) == 0, "%s", err_get());
    CHECK(build_bind(j, dev) == 0 && build_init(j) == 0, "%s", err_get());
    return j;
}

/* One step on windows of the text that depend on its number. Returns the loss. */
static double train_step(Job *j, const Text *t, int64_t step)
{
    char    *raw    = calloc(1, tensor_bytes(j->block));
    int32_t *tok    = (int32_t *)(raw + j->fields.offset[WINDOW_TOK]);
    int32_t *target = (int32_t *)(raw + j->fields.offset[WINDOW_TARGET]);
    int64_t  T      = j->recipe.model.context;
    for (int64_t b = 0; b < ROWS; b++) {
        uint32_t r[4];
        rng_philox(r, 7, 1, (uint64_t)step, (uint64_t)b);
        const uint8_t *from = t->text + r[0] % (uint64_t)(t->size - T - 1);
        for (int64_t i = 0; i < T; i++) {
            tok[b * T + i]    = from[i];
            target[b * T + i] = from[i + 1];
        }
    }
    StepState s;
    CHECK(job_read_state(j, &s) == 0, "%s", err_get());
    s.in =
        (StepIn){ .step = step, .seed = 1, .lr = 2e-3f, .inv[0] = 1.0f / (float)(ROWS * T), .loss_scale = 1 };
    s.out.sum[0] = 0;
    CHECK(job_write_state(j, &s) == 0 && job_upload(j, j->block, raw, tensor_bytes(j->block)) == 0 &&
              prog_run(job_prog(j, "micro-step"), j->dev) == 0 &&
              prog_run(job_prog(j, "update"), j->dev) == 0 && j->dev->vt->sync(j->dev) == 0 &&
              job_read_state(j, &s) == 0,
          "%s", err_get());
    free(raw);
    return s.out.loss;
}

/* The same with one gain a thousand times too large; what the step itself changes stays. */
static double outlier_step(Job *j, const Text *t, int64_t step)
{
    const Param *p = param_find(j->table[0], gain);
    float       *g = calloc((size_t)p->cols, sizeof *g);
    CHECK(job_read_param(j, p, COL_WEIGHT, g) == 0, "%s", err_get());
    float was = g[3], much = g[3] * 1000;
    g[3] = much;
    CHECK(job_write_param(j, p, COL_WEIGHT, g) == 0 && job_refresh_copies(j) == 0, "%s", err_get());
    double loss = train_step(j, t, step);
    CHECK(job_read_param(j, p, COL_WEIGHT, g) == 0, "%s", err_get());
    g[3] = was + (g[3] - much);
    CHECK(job_write_param(j, p, COL_WEIGHT, g) == 0 && job_refresh_copies(j) == 0, "%s", err_get());
    free(g);
    return loss;
}

static float scale_of(Job *j)
{
    float         site[FP8_SITE];
    const Tensor *t = param_find(j->table[0], behind)->fp8->x_site;
    CHECK(job_download(j, t, site, sizeof site) == 0, "%s", err_get());
    return site[FP8_SITE_SCALE];
}

/* Mean loss of the last steps. back: steps until the scale is what it was, 0: never; NULL for a job without
 * scales. */
static double run(Job *j, const Text *t, const char *name, int *back)
{
    double loss = 0, end = 0;
    for (int s = 0; s < BEFORE; s++) loss = train_step(j, t, s);
    float before = back ? scale_of(j) : 0;
    printf("# %s: loss %.4f before", name, loss);
    printf(", %.4f with the outlier", outlier_step(j, t, BEFORE));
    if (back) printf(", scale %g -> %g", (double)before, (double)scale_of(j));
    for (int s = 1; s <= AFTER; s++) {
        loss = train_step(j, t, BEFORE + s);
        if (s == 1 || s % 5 == 0) printf(", %.4f after %d", loss, s);
        if (s > AFTER - LAST) end += loss / LAST;
        if (back && !*back && scale_of(j) >= before / 2) *back = s;
    }
    printf("\n");
    return end;
}

int main(int argc, char **argv)
{
    const char *why;
    Tally       t    = { 0, 0 };
    Text        text = read_text(argc > 1 ? argv[1] : "recipes/data/tinyshakespeare.txt");
    Dev        *dev  = dev_open(argc > 2 ? argv[2] : "cuda", &(DevOptions){ .capture = 1 }, &why);
    tally(&t, dev != NULL, "a device");
    if (!dev) return tally_end(&t);
    int    back   = 0;
    Job   *wide   = open_job(dev, 0);
    double loss_w = run(wide, &text, "wide", NULL);
    build_destroy(wide);
    Job   *fp8    = open_job(dev, 1);
    double loss_8 = run(fp8, &text, "fp8", &back);
    build_destroy(fp8);
    tally(&t, back > 0 && back <= AFTER, "the scale is back after %d steps", back);
    tally(&t, loss_8 / loss_w <= 1.02, "the loss is back: %.4f, without fp8 %.4f, ratio %.4f", loss_8, loss_w,
          loss_8 / loss_w);
    dev_close(dev);
    free(text.text);
    return tally_end(&t);
}
