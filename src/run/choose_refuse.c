/* Nothing fits: the smallest plan, what takes its bytes, and what would help. */
#include "run/choose_impl.h"

#include "base/err.h"
#include "base/str.h"
#include "conf/relate.h"

typedef struct {
    Slab        slab; /* the largest */
    size_t      slab_bytes;
    const char *half;     /* the first key of the task's whose half is enough, or NULL */
    int         by_limit; /* 1: memory_limit is less than the device's memory */
    int         limited;  /* 1: without memory_limit this candidate would fit */
} Lack;

/* The slabs of one candidate, one line each. */
static int list_slabs(const ChooseFor *w, const Candidate *k, char *buf, size_t n, Lack *out)
{
    Job *j = NULL;
    char bytes[32];
    TRY(build_create(&j, w->task, w->recipe, &k->choice, w->parts, w->vt));
    for (int i = 0; i < SLAB_COUNT; i++) {
        size_t size = j->store.slab_bytes[i];
        if (size > out->slab_bytes) {
            out->slab       = (Slab)i;
            out->slab_bytes = size;
        }
        if (size > 0)
            str_append(buf, n, "  %-16s %16zu  %s\n", slab_name((Slab)i), size,
                       str_bytes(bytes, sizeof bytes, (double)size));
    }
    build_destroy(j);
    return 0;
}

/* Bytes that the candidate needs with half of a key; 0 when half of it does not go with the other keys. */
static size_t bytes_with_half(const ChooseFor *w, const Candidate *k, const char *key)
{
    Recipe           half  = *w->recipe;
    Job             *j     = NULL;
    const SchemaRow *row   = schema_row(&half, schema_find(&half, key));
    int64_t         *x     = (int64_t *)((char *)&half + row->offset);
    size_t           total = 0;
    *x /= 2;
    int rc = *x > 0 ? relate_resolve(&half, ".", 0) : -1;
    if (rc == 0) rc = build_create(&j, w->task, &half, &k->choice, w->parts, w->vt);
    if (rc == 0) total = store_total_bytes(&j->store);
    if (rc < 0) err_clear();
    build_destroy(j);
    return total;
}

/* What else could give way, in the task's order, one line each; the first key whose half is enough, or
 * NULL. */
static const char *list_halves(const ChooseFor *w, const Candidate *k, const Choice *c, char *buf, size_t n)
{
    const char *enough = NULL;
    char        bytes[32];
    for (const char *const *key = w->task->halves; key && *key; key++) {
        size_t total = bytes_with_half(w, k, *key);
        if (total == 0 || total >= k->total_bytes) continue;
        str_append(buf, n, "half of %s saves %s\n", *key,
                   str_bytes(bytes, sizeof bytes, (double)(k->total_bytes - total)));
        if (!enough && total <= c->budget_bytes) enough = *key;
    }
    return enough;
}

/* What concessions that the recipe does not allow would bring; the line of the error has no room for the rate
 * beside memory_limit. */
static void describe_could(const ChooseFor *w, const Candidate *could, int has_rate, char *buf, size_t n)
{
    char   bytes[32], rate[32];
    double units = (double)(w->recipe->step_samples * w->task->units(w->recipe));
    snprintf(buf, n, "give_way: [%s] fits in %s", choose_gives(could->choice.gives),
             str_bytes(bytes, sizeof bytes, (double)could->total_bytes));
    if (has_rate)
        str_append(buf, n, ", %s %s/s", str_count(rate, sizeof rate, units / could->step_s), w->task->unit);
}

/* What would really help, in keys of the recipe. A key that leaves the mathematics alone comes first, unless
 * half of one of the task's keys is known to be enough. A smaller model comes last. */
static void advise(const ChooseFor *w, const Candidate *k, const Choice *c, const Lack *lack, char *buf,
                   size_t n)
{
    const Recipe *r        = w->recipe;
    const char   *half     = lack->half;
    int           is_state = k->total_bytes - k->act_bytes > c->budget_bytes; /* whatever a micro-batch has */
    const char   *free     = !is_state && r->micro_batch > 1 ? "a smaller micro_batch" : NULL;
    if (!is_state && r->recompute != RECOMPUTE_AUTO && r->recompute != RECOMPUTE_BLOCK)
        free = "recompute: auto";
    if (k->total_bytes - k->scratch_bytes <= c->budget_bytes) { /* each thread has scratch of its own */
        snprintf(buf, n, "fewer threads%s would help", lack->limited ? " or a larger memory_limit" : "");
    } else if (lack->limited) {
        snprintf(buf, n, "a larger memory_limit%s%s would help", half ? " or half of " : "",
                 half ? half : "");
    } else if (free && !half) {
        snprintf(buf, n, "%s would help", free);
    } else if (c->could.fits) {
        describe_could(w, &c->could, !lack->by_limit, buf, n);
    } else if (half) {
        snprintf(buf, n, "half of %s would help", half);
    } else {
        snprintf(buf, n, "%s would help", is_state ? w->task->lighter_net : w->task->lighter_sample);
    }
}

/* The rest of what is known when nothing fits, for `brim plan`. */
static int explain(Choice *c, const ChooseFor *w, const Candidate *k, Lack *out)
{
    char *text = c->refusal, have[32], need[32], cards[64], could[128];
    snprintf(text, sizeof c->refusal, "smallest    micro-batch %lld, recompute %s: %s of %s%s\n",
             (long long)k->choice.micro_batch, recompute_level_name(k->choice.level),
             str_bytes(need, sizeof need, (double)k->total_bytes),
             str_bytes(have, sizeof have, (double)c->budget_bytes), out->by_limit ? " (memory_limit)" : "");
    TRY(list_slabs(w, k, text, sizeof c->refusal, out));
    out->half = list_halves(w, k, c, text, sizeof c->refusal);
    if (c->could.fits) {
        describe_could(w, &c->could, 1, could, sizeof could);
        str_append(text, sizeof c->refusal, "%s (kept in bf16 alone, rounded at random)\n", could);
    }
    if (w->vt->hints->is_late && !out->by_limit &&
        machine_list_fitting(cards, sizeof cards, k->total_bytes) > 0)
        str_append(text, sizeof c->refusal, "cards on which it fits: %s\n", cards);
    return 0;
}

/* One line: the largest part, and the one change that would help. */
int choose_refuse(Choice *c, const ChooseFor *w, ChooseRoom room)
{
    const Candidate *k    = &c->row[0];
    Lack             lack = { .by_limit = room.limit_bytes < room.room_bytes };
    char             have[32], need[32], most[32], help[160];
    for (int i = 1; i < c->n; i++) {
        if (c->row[i].total_bytes < k->total_bytes) k = &c->row[i];
    }
    c->least_bytes = k->total_bytes;
    lack.limited   = k->total_bytes <= room.room_bytes;
    TRY(explain(c, w, k, &lack));
    advise(w, k, c, &lack, help, sizeof help);
    return err_user("this model does not fit: it needs %s (%s %s) and %s are available%s; %s "
                    "(brim plan shows all)",
                    str_bytes(need, sizeof need, (double)k->total_bytes), slab_name(lack.slab),
                    str_bytes(most, sizeof most, (double)lack.slab_bytes),
                    str_bytes(have, sizeof have, (double)c->budget_bytes),
                    lack.by_limit ? " (memory_limit)" : "", help);
}
