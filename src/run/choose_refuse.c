/* Nothing fits: the smallest plan, what takes its bytes, and what would help. */
#include "run/choose_impl.h"

#include "base/err.h"
#include "base/str.h"
#include "conf/relate.h"

/* The slabs of one candidate, "activations 4.1 GiB, gradients ...". */
static int list_slabs(const ChooseFor *w, const Candidate *k, char *buf, size_t n)
{
    Job *j = NULL;
    char bytes[32];
    TRY(build_create(&j, w->task, w->recipe, &k->choice, w->parts, w->vt));
    buf[0] = '\0';
    for (int i = 0; i < SLAB_COUNT; i++) {
        if (j->store.slab_bytes[i] < k->total_bytes / 1000) continue;
        str_append(buf, n, "%s%s %s", buf[0] ? ", " : "", slab_name((Slab)i),
                   str_bytes(bytes, sizeof bytes, (double)j->store.slab_bytes[i]));
    }
    build_destroy(j);
    return 0;
}

/* Only what would really help. */
static void advise(const ChooseFor *w, const Candidate *k, ChooseRoom room, char *buf, size_t n)
{
    const Recipe *r = w->recipe;
    char          cards[64];
    int           limited = k->total_bytes <= room.room_bytes;
    if (k->total_bytes - k->scratch_bytes <= MIN(room.room_bytes, room.limit_bytes)) {
        str_copy(buf, n,
                 limited ? "fewer threads, which have scratch each, or a larger memory_limit would help"
                         : "fewer threads would help, each has scratch of its own");
        return;
    }
    if (limited) {
        str_copy(buf, n, "a larger memory_limit would help");
        return;
    }
    if (k->total_bytes - k->act_bytes > MIN(room.room_bytes, room.limit_bytes)) {
        snprintf(buf, n, "%s would help, activations are not the cause", w->task->lighter_net);
    } else if (r->recompute != RECOMPUTE_AUTO && r->recompute != RECOMPUTE_BLOCK) {
        str_copy(buf, n, "recompute: auto may help");
    } else if (r->micro_batch > 1) {
        str_copy(buf, n, "a smaller micro_batch would help");
    } else {
        snprintf(buf, n, "%s would help, it is the activations that do not fit", w->task->lighter_sample);
    }
    if (!w->vt->hints->is_late || room.limit_bytes < room.room_bytes) return;
    if (machine_list_fitting(cards, sizeof cards, k->total_bytes) > 0)
        str_append(buf, n, "; cards on which it fits: %s", cards);
}

/* "; half of KEY saves 1.2 GiB, ...": what else could give way, in the task's order. */
static void list_halves(const ChooseFor *w, const Candidate *k, char *buf, size_t n)
{
    buf[0] = '\0';
    for (const char *const *key = w->task->halves; key && *key; key++) {
        Recipe           half = *w->recipe;
        Job             *j    = NULL;
        const SchemaRow *row  = schema_row(&half, schema_find(&half, *key));
        int64_t         *x    = (int64_t *)((char *)&half + row->offset);
        char             bytes[32];
        *x /= 2;
        int rc = *x > 0 ? relate_resolve(&half, ".", 0) : -1;
        if (rc == 0) rc = build_create(&j, w->task, &half, &k->choice, w->parts, w->vt);
        if (rc < 0) {
            err_clear(); /* half of it does not go with the other keys */
            continue;
        }
        size_t total = store_total_bytes(&j->store);
        if (total < k->total_bytes)
            str_append(buf, n, "%shalf of %s saves %s", buf[0] ? ", " : "; ", *key,
                       str_bytes(bytes, sizeof bytes, (double)(k->total_bytes - total)));
        build_destroy(j);
    }
}

int choose_refuse(const Choice *c, const ChooseFor *w, ChooseRoom room)
{
    const Candidate *k = &c->row[0];
    char             have[32], need[32], slabs[400], what[300], halves[300];
    for (int i = 1; i < c->n; i++) {
        if (c->row[i].total_bytes < k->total_bytes) k = &c->row[i];
    }
    TRY(list_slabs(w, k, slabs, sizeof slabs));
    advise(w, k, room, what, sizeof what);
    list_halves(w, k, halves, sizeof halves);
    return err_user(
        "this model does not fit: the smallest plan (micro-batch %lld, recompute %s) needs %s and %s "
        "are available%s: %s (%s%s)",
        (long long)k->choice.micro_batch, recompute_level_name(k->choice.level),
        str_bytes(need, sizeof need, (double)k->total_bytes),
        str_bytes(have, sizeof have, (double)c->budget_bytes),
        room.limit_bytes < room.room_bytes ? " (memory_limit)" : "", slabs, what, halves);
}
