#include "run/step.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/str.h"
#include "run/signals.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Marks: one per held batch slot (by loader slot number), then one per step of the ring. */
enum { MARK_SLOT0 = 0, MARK_STEP0 = 32, MAX_HELD = 4, MAX_SLOTS = RECIPE_MOST_DEPTH + MAX_HELD };

typedef struct {
    StepIn in;
    double sum[LOSS_SLOTS],
        report[LOSS_SLOTS]; /* these and the rest are always 0: they clear those of StepOut */
    int32_t n_report, stop;
} Upload;

int stepper_init(Stepper *s, Build *b, int depth)
{
    memset(s, 0, sizeof *s);
    Dev *dev           = b->dev;
    s->build           = b;
    s->n_micro         = build_micro_per_step(b, comm_world(b->comm));
    s->sample_per_step = s->n_micro * b->batch.B * comm_world(b->comm);
    CHECK(MAX(b->choice.world, 1) == comm_world(b->comm), "built for %d ranks, run by %d", b->choice.world,
          comm_world(b->comm));
    LoaderLayout at = loader_layout(b->batch.B, b->batch.T, b->batch.doc != NULL);
    CHECK(at.tok == b->batch.tok->offset_bytes && at.target == b->batch.target->offset_bytes &&
              (!b->batch.doc || at.doc == b->batch.doc->offset_bytes) &&
              at.total_bytes >= tensor_bytes(b->batch.block),
          "the loader and the net disagree about the layout of a batch");
    s->n_slot = MIN(MAX(depth, 1) + MAX_HELD, MAX_SLOTS);
    s->slots  = mem_zeroed((size_t)s->n_slot, sizeof *s->slots);
    if (!s->slots) return err_sys("memory for batches");
    for (int i = 0; i < s->n_slot; i++) {
        s->slots[i] = dev->vt->host_alloc(dev, at.total_bytes);
        if (!s->slots[i]) return -1;
    }
    s->in  = dev->vt->host_alloc(dev, STEP_RING * sizeof(Upload));
    s->out = dev->vt->host_alloc(dev, STEP_RING * sizeof(StepOut));
    return s->in && s->out ? 0 : -1;
}

void stepper_deinit(Stepper *s)
{
    if (!s->build) return;
    Dev *dev = s->build->dev;
    dev->vt->sync(dev); /* uploads may still read the slots */
    loader_destroy(s->loader);
    for (int i = 0; s->slots && i < s->n_slot; i++) {
        if (s->slots[i]) dev->vt->host_free(dev, s->slots[i]);
    }
    if (s->in) dev->vt->host_free(dev, s->in);
    if (s->out) dev->vt->host_free(dev, s->out);
    free(s->slots);
    memset(s, 0, sizeof *s);
}

LoaderConfig stepper_loader_config(const Stepper *s, void *const *slots, int n_slot)
{
    const Recipe *r = &s->build->recipe;
    return (LoaderConfig){ .B              = s->build->batch.B,
                           .T              = s->build->batch.T,
                           .seed           = (uint64_t)r->seed,
                           .threads        = (int)r->data.threads,
                           .inline_fill    = !r->opt.prefetch,
                           .rank           = comm_rank(s->build->comm),
                           .world          = comm_world(s->build->comm),
                           .documents      = s->build->batch.doc != NULL,
                           .document_token = r->data.document_token,
                           .slots          = slots,
                           .n_slot         = n_slot };
}

int stepper_attach(Stepper *s, const Source *src, int64_t first_sample, const SampleRange *skip, int n_skip)
{
    loader_destroy(s->loader);
    s->loader        = NULL;
    s->n_held        = 0;
    LoaderConfig cfg = stepper_loader_config(s, s->slots, s->n_slot);
    cfg.first_sample = first_sample;
    cfg.skip         = skip;
    cfg.n_skip       = n_skip;
    return loader_create(&s->loader, &cfg, src);
}

/* Gives back the oldest batch once its upload has passed. */
static int release_oldest(Stepper *s)
{
    Dev *dev = s->build->dev;
    TRY(dev->vt->mark_wait(dev, MARK_SLOT0 + s->held[0]));
    loader_release(s->loader, s->held[0]);
    memmove(s->held, s->held + 1, sizeof *s->held * (size_t)--s->n_held);
    return 0;
}

/* What a rank says about its batches. */
typedef struct {
    int32_t failed;
    char    text[508];
} DataWord;

/* Fails on every rank when one had no batch, with its message. All call it once for each step and evaluation, before anything
 * in the list waits for another rank: one that left earlier would leave the others waiting, with their steps unsaved. */
static int agree_on_data(Stepper *s, int ok)
{
    Comm    *c   = s->build->comm;
    int64_t  any = !ok;
    DataWord own = { .failed = !ok };
    if (!c) return ok ? 0 : -1;
    str_copy(own.text, sizeof own.text, err_get());
    if (!ok) err_clear(); /* what the ranks say to each other may fail too */
    TRY(comm_max_i64(c, &any, 1));
    if (!any) return 0;
    DataWord *all = mem_zeroed((size_t)comm_world(c), sizeof *all);
    if (!all) return err_sys("memory for messages");
    int rc = comm_all_gather(c, all, &own, sizeof own), r = 0;
    while (rc == 0 && !all[r].failed) r++;
    if (rc == 0) {
        s->data_failed = 1;
        err_set("rank %d: %s", r, all[r].text);
    }
    free(all);
    return -1;
}

static int run_micro(Stepper *s, const LoaderBatch *batch, int last)
{
    Build *b   = s->build;
    Dev   *dev = b->dev;
    CHECK(batch->n_valid == b->batch.B * b->batch.T, "a training batch with missing targets");
    TRY(dev->vt->upload(dev, LANE_COMPUTE, b->batch.block->data, batch->host, tensor_bytes(b->batch.block)));
    TRY(dev->vt->mark(dev, LANE_COMPUTE, MARK_SLOT0 + batch->slot));
    s->held[s->n_held++] = batch->slot;
    return prog_run(last && b->micro_last ? b->micro_last : b->micro, dev);
}

static int upload_in(Stepper *s, int64_t step, double lr, double inv_targets)
{
    Build  *b  = s->build;
    Upload *up = (Upload *)s->in + step % STEP_RING;
    memset(up, 0, sizeof *up);
    up->in = (StepIn){ .step       = step,
                       .seed       = (uint64_t)b->recipe.seed,
                       .lr         = (float)lr,
                       .inv        = { (float)inv_targets },
                       .loss_scale = 1.0f };
    _Static_assert(sizeof(Upload) == STEP_UPLOAD_BYTES, "StepIn and the cleared sums travel together");
    return b->dev->vt->upload(b->dev, LANE_COMPUTE, b->state->data, up, sizeof *up);
}

/* Makes room for another batch. One of this step that has passed, on the lane where all work is queued, means that the step
 * before has ended; n_old: batches of earlier steps among those held. */
static int make_room(Stepper *s, int64_t step, int *n_old)
{
    double *before_s = &s->done_s[(step + STEP_RING - 1) % STEP_RING];
    if (s->n_held < MAX_HELD) return 0;
    TRY(release_oldest(s));
    if ((*n_old)-- <= 0 && *before_s == 0) *before_s = clock_now_s();
    return 0;
}

int step_begin(Stepper *s, int64_t step, double lr)
{
    Build *b     = s->build;
    Dev   *dev   = b->dev;
    double n     = (double)s->sample_per_step * (double)b->batch.T;
    int    n_old = s->n_held, slot = (int)(step % STEP_RING);
    s->done_s[slot] = 0;
    if (fault_hit(FAULT_NAN)) n = NAN;
    if (fault_hit(FAULT_SPIKE)) n /= 100;
    TRY(upload_in(s, step, lr, 1.0 / n));
    for (int64_t i = 0; i < s->n_micro; i++) {
        LoaderBatch batch;
        int         last = i == s->n_micro - 1; /* the one that sums over ranks */
        if (s->may_leave && signals_pending()) return 1;
        TRY(make_room(s, step, &n_old));
        int ok = loader_next(s->loader, &batch) == 0;
        if (last || !ok) TRY(agree_on_data(s, ok));
        TRY(run_micro(s, &batch, last));
    }
    TRY(prog_run(b->update, dev));
    TRY(dev->vt->download(dev, LANE_COMPUTE, &s->out[slot], (char *)b->state->data + offsetof(StepState, out),
                          sizeof(StepOut)));
    if (dev->vt->kind != DEV_CUDA) s->done_s[slot] = clock_now_s(); /* all was done by the calls above */
    return dev->vt->mark(dev, LANE_COMPUTE, MARK_STEP0 + slot);
}

int step_result(Stepper *s, int64_t step, StepOut *out)
{
    Dev *dev  = s->build->dev;
    int  slot = (int)(step % STEP_RING);
    TRY(dev->vt->mark_wait(dev, MARK_STEP0 + slot));
    *out = s->out[slot];
    if (s->done_s[slot] == 0) s->done_s[slot] = clock_now_s();
    return 0;
}

double step_done_s(const Stepper *s, int64_t step) { return s->done_s[step % STEP_RING]; }

int step_evaluate(Stepper *s, Loader *val, int64_t n_batch, double *loss)
{
    Build    *b   = s->build;
    Dev      *dev = b->dev;
    StepState st;
    int64_t   n_valid = 0, first = comm_rank(b->comm), by = comm_world(b->comm);
    int       ok = 1;
    TRY(dev->vt->sync(dev));
    TRY(upload_in(s, 0, 0, 0)); /* clears the sums */
    for (int64_t i = first; i < n_batch; i += by) {
        LoaderBatch batch;
        ok = loader_next(val, &batch) == 0;
        if (!ok) break;
        n_valid += batch.n_valid;
        TRY(dev->vt->upload(dev, LANE_COMPUTE, b->batch.block->data, batch.host,
                            tensor_bytes(b->batch.block)));
        TRY(prog_run(b->eval, dev));
        TRY(dev->vt->sync(dev));
        loader_release(val, batch.slot);
        if (batch.n_valid == 0) break; /* past the end of the validation part */
    }
    TRY(agree_on_data(s, ok));
    TRY(build_read_state(b, &st));
    double sum[2] = { st.out.sum[0], (double)n_valid };
    TRY(comm_sum_f64(b->comm, sum, 2));
    *loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
    return 0;
}
