#include "watch/whatif.h"

#include "base/err.h"
#include "base/mem.h"
#include "watch/planfacts.h"

#include <stdlib.h>

Recipe *whatif_recipe(const RecipeFrom *from, const char (*key)[WHATIF_KEY], int n)
{
    char   *all[RECIPE_KEYS + WHATIF_KEYS];
    Recipe *r = mem_zeroed(1, sizeof *r);
    CHECK(n <= WHATIF_KEYS, "%d keys", n);
    if (!r) err_sys("memory for a recipe");
    if (from->n_override > RECIPE_KEYS) err_user("command line: more than %d keys", RECIPE_KEYS);
    if (!r || from->n_override > RECIPE_KEYS) {
        free(r);
        return NULL;
    }
    for (int i = 0; i < from->n_override; i++) all[i] = from->override[i];
    for (int i = 0; i < n; i++) all[from->n_override + i] = (char *)key[i];
    n += from->n_override;
    int rc = from->extra ? recipe_load_task(r, from->extra, from->path, n, all)
                         : recipe_load_without_data(r, from->path, n, all);
    if (rc == 0 && from->task->complete) rc = from->task->complete(r, DATA_ELSEWHERE);
    if (rc == 0) return r;
    free(r);
    return NULL;
}

static Machine machine_of(const RunFacts *f)
{
    const Machine *known = f->plan.machine[0] ? machine_find(f->plan.machine) : NULL;
    Machine        m;
    if (!(f->plan.capability > 0)) {
        m = machine_cpu(f->plan.threads >= 1 ? (int)f->plan.threads : 1, (size_t)f->plan.total_bytes);
    } else {
        m = known ? *known : machine_unmeasured(f->device, (int)f->plan.capability, 0);
    }
    m.mem_bytes = (size_t)f->plan.total_bytes;
    return m;
}

int whatif_plan(WhatIf *out, const RecipeFrom *from, const RunFacts *f, const char (*key)[WHATIF_KEY], int n,
                double room_bytes)
{
    Choice  c;
    Job    *j = NULL;
    Recipe *r = whatif_recipe(from, key, n);
    if (!r) return -1;
    Machine   m    = machine_of(f);
    size_t    room = (size_t)(room_bytes > 0 ? room_bytes : f->plan.room_bytes);
    ChooseFor what = { from->task, r, f->plan.capability > 0 ? dev_cuda_plan() : dev_cpu(),
                       (int)f->plan.capability, JOB_TRAIN };
    if (from->task->share && f->plan.data_share > 0) *from->task->share(r) = f->plan.data_share;
    if (f->plan.world > 1) r->step_samples /= (int64_t)f->plan.world;
    int rc = choose_plan(&c, &what, &m, (ChooseRoom){ room, recipe_memory_limit(r, m.mem_bytes) });
    if (rc == 0) rc = build_create(&j, from->task, r, &c.row[c.best].choice, JOB_TRAIN, what.vt);
    if (rc == 0) {
        Machine work   = m;
        work.op_s      = 0;
        work.product_s = 0;
        *out           = (WhatIf){ .step_s      = choose_step_cost(j, &m).step_s,
                                   .work_s      = choose_step_cost(j, &work).step_s,
                                   .repeat_s    = planfacts_repeat_s(j, &m),
                                   .total_bytes = (double)store_total_bytes(&j->store),
                                   .choice      = j->choice };
        if (!(f->plan.capability > 0)) divide_of(&out->divide, j);
    }
    build_destroy(j);
    free(r);
    return rc;
}
