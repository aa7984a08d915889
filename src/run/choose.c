/* The choice. The precision comes first (choose_precision.c); what a candidate costs is in choose_cost.c, and
 * what is said when nothing fits in choose_refuse.c. */
#include "run/choose.h"

#include "base/err.h"
#include "base/str.h"
#include "run/choose_impl.h"

#include <math.h>
#include <string.h>

/* What a recipe may say and no plan can give is refused: ignoring it would train something else. */
static int check_available(const ChooseFor *w)
{
    const Recipe *r = w->recipe;
    if (r->give_way[0] && r->optim.kind == OPTIM_MUON)
        return recipe_blame(r, "give_way", "is for AdamW: what Muon keeps stays in fp32");
    return w->task->check ? w->task->check(r) : 0;
}

/* ---- candidates --------------------------------------------------------------------------------------- */

/* What every candidate begins with; try_larger_chunks() comes after. */
static int64_t head_rows(const ChooseFor *w, DType compute, int64_t samples)
{
    int64_t rows = samples * w->task->rows(w->recipe);
    if (!w->task->chunk_rows) return 0;
    if (!w->recipe->opt.chunk_head) return rows;
    return w->task->chunk_rows(w->recipe, compute, rows, w->vt->hints->chunk_bytes);
}

static int try_candidate(Choice *c, const ChooseFor *w, const JobChoice *choice, const Machine *m)
{
    Job *j = NULL;
    TRY(build_create(&j, w->task, w->recipe, choice, w->parts, w->vt));
    Candidate *row     = &c->row[c->n++];
    row->choice        = *choice;
    row->total_bytes   = store_total_bytes(&j->store);
    row->act_bytes     = j->store.slab_bytes[SLAB_ACT];
    row->scratch_bytes = j->store.slab_bytes[SLAB_SCRATCH];
    row->step_s        = choose_rank_s(j, m);
    row->fits          = row->total_bytes <= c->budget_bytes;
    build_destroy(j);
    return 0;
}

static int64_t divisor_up_to(int64_t n, int64_t most)
{
    while (n % most != 0) most--;
    return most;
}

/* Divisors of the step's samples, each about twice the one before, and the step itself; all multiples of what
 * must stay together. */
static int micro_candidates(const ChooseFor *w, int64_t *out, int cap)
{
    const Recipe *r    = w->recipe;
    int64_t       unit = w->task->together ? w->task->together(r) : 1;
    int64_t       seqs = (w->task->update_samples ? w->task->update_samples(r) : r->step_samples) / unit;
    int64_t       most = w->vt->hints->most_rows / w->task->rows(r) / unit;
    int           n    = 0;
    if (r->micro_batch > 0) {
        out[n++] = r->micro_batch;
        return n;
    }
    for (int64_t b = 1; b == 1 || (b <= MIN(most, seqs) && n < cap - 1); b *= 2) {
        int64_t divisor = divisor_up_to(seqs, b);
        if (n == 0 || divisor * unit != out[n - 1]) out[n++] = divisor * unit;
    }
    if (seqs <= most && seqs * unit != out[n - 1]) out[n++] = seqs * unit;
    return n;
}

/* Of those as fast as the fastest, give or take CHOOSE_TIE: least recomputation, then fewest bytes. */
static int pick(const Choice *c)
{
    double fastest = INFINITY;
    int    best    = -1;
    for (int i = 0; i < c->n; i++) {
        if (c->row[i].fits) fastest = MIN(fastest, c->row[i].step_s);
    }
    for (int i = 0; i < c->n; i++) {
        const Candidate *a = &c->row[i], *b = &c->row[MAX(best, 0)];
        if (!a->fits || a->step_s > CHOOSE_TIE * fastest) continue;
        int is_less = a->choice.level != b->choice.level ? a->choice.level < b->choice.level
                                                         : a->total_bytes < b->total_bytes;
        if (best < 0 || is_less) best = i;
    }
    return best;
}

/* Bytes of logits where memory is left: the least of three numbers.
 *   10 GB                     hold the logits of 32,768 rows of 151,936 classes whole
 *   a twelfth of the budget   leaves a small card most of its memory
 *   half of what is left      products are timed on scratch of their own size beside the plan */
static double larger_logits_bytes(const Choice *c)
{
    size_t left = c->budget_bytes - c->row[c->best].total_bytes;
    return MIN(10e9, MIN((double)c->budget_bytes / 12, (double)left / 2));
}

/* Tries the picked candidate with larger chunks of the head, and takes them if they are faster. Each chunk
 * reads and writes the whole f32 gradient of the head's weight, and larger products run at a higher rate
 * (docs/log.md). This comes after pick(): logits never take memory from a larger micro-batch, and never cause
 * recomputation. On a CPU chunks stay in cache. */
static int try_larger_chunks(Choice *c, const ChooseFor *w, const Machine *m)
{
    const Recipe *r      = w->recipe;
    JobChoice     choice = c->row[c->best].choice;
    int64_t       rows = choice.micro_batch * w->task->rows(r), before = choice.head_rows;
    if (!w->vt->hints->grows_chunks || !r->opt.chunk_head || !w->task->chunk_rows || c->n >= CHOOSE_MAX)
        return 0;
    choice.head_rows = w->task->chunk_rows(r, c->compute, rows, larger_logits_bytes(c));
    if (choice.head_rows <= before) return 0;
    TRY(try_candidate(c, w, &choice, m));
    const Candidate *larger = &c->row[c->n - 1];
    if (larger->fits && larger->step_s < c->row[c->best].step_s) c->best = c->n - 1;
    return 0;
}

/* ---- the choice --------------------------------------------------------------------------------------- */

/* What the recipe allows to give way and this precision has, as GIVE_* bits: weights are alone in bf16 only
 * where products read bf16. */
static unsigned may_give(const Recipe *r, DType compute)
{
    char        item[32];
    unsigned    gives = 0;
    const char *list  = r->give_way;
    while (str_list_next(&list, item, sizeof item) > 0)
        gives |= strcmp(item, "moments") == 0 ? GIVE_MOMENTS : GIVE_WEIGHTS;
    return compute == DT_BF16 ? gives : gives & ~(unsigned)GIVE_WEIGHTS;
}

/* The same of a recipe that allows all. */
static unsigned could_give(const ChooseFor *w, DType compute)
{
    if (!(w->parts & JOB_TRAIN) || w->recipe->optim.kind == OPTIM_MUON) return 0;
    return compute == DT_BF16 ? GIVE_MOMENTS | GIVE_WEIGHTS : GIVE_MOMENTS;
}

const char *choose_gives(unsigned gives)
{
    return gives == GIVE_MOMENTS ? "moments" : gives == GIVE_WEIGHTS ? "weights" : "moments, weights";
}

/* The least recomputation that the recipe allows. */
static RecomputeLevel least_level(const Recipe *r)
{
    return r->recompute == RECOMPUTE_AUTO ? LEVEL_NONE : (RecomputeLevel)(r->recompute - RECOMPUTE_NONE);
}

/* Micro-batches from small to large at each level of recomputation. */
static int try_candidates(Choice *c, const ChooseFor *what, const Machine *m, unsigned gives)
{
    const Recipe *r = what->recipe;
    int64_t       micro[24];
    int           n_micro = micro_candidates(what, micro, ARRAY_LEN(micro)), n_fit = 0;
    for (int level = LEVEL_NONE; level <= LEVEL_BLOCK; level++) {
        if (r->recompute != RECOMPUTE_AUTO && level != (int)r->recompute - RECOMPUTE_NONE) continue;
        /* Recomputation only ever costs time: a micro-batch that fits with less is not looked at again. */
        for (int i = n_fit; i < n_micro && c->n < CHOOSE_MAX; i++) {
            JobChoice choice = { .micro_batch = micro[i],
                                 .level       = (RecomputeLevel)level,
                                 .compute     = c->compute,
                                 .gives       = gives,
                                 .fp8         = c->fp8 };
            choice.head_rows = head_rows(what, c->compute, micro[i]);
            TRY(try_candidate(c, what, &choice, m));
            if (!c->row[c->n - 1].fits) break; /* a larger micro-batch needs more */
            n_fit = i + 1;
        }
    }
    return 0;
}

/* 1: nothing fits, or only because activations are computed again. */
static int is_short(const Choice *c, const Recipe *r)
{
    return c->best < 0 || c->row[c->best].choice.level > least_level(r);
}

/* What other concessions would bring, for advice alone: nothing is taken that the recipe does not allow. */
static int try_not_allowed(Choice *c, const ChooseFor *what, const Machine *m, unsigned gives)
{
    Choice other = *c;
    other.n      = 0;
    TRY(try_candidates(&other, what, m, gives));
    other.best = pick(&other);
    if (other.best < 0) return 0;
    const Candidate *k = &other.row[other.best];
    if (c->best < 0 || CHOOSE_TIE * k->step_s < c->row[c->best].step_s) c->could = *k;
    return 0;
}

int choose_plan(Choice *c, const ChooseFor *what, const Machine *m, ChooseRoom room)
{
    const Recipe *r = what->recipe;
    memset(c, 0, sizeof *c);
    c->budget_bytes = MIN(room.room_bytes, room.limit_bytes);
    c->best         = -1;
    TRY(check_available(what));
    TRY(choose_precision(c, what));
    unsigned gives = may_give(r, c->compute), could = could_give(what, c->compute);
    TRY(try_candidates(c, what, m, 0));
    c->best = pick(c);
    if (gives && is_short(c, r)) { /* now all that may give way does */
        TRY(try_candidates(c, what, m, gives));
        c->best = pick(c);
    }
    if ((could & ~gives) && is_short(c, r)) TRY(try_not_allowed(c, what, m, could));
    return c->best >= 0 ? try_larger_chunks(c, what, m) : choose_refuse(c, what, room);
}
