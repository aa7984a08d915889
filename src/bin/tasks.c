#include "bin/tasks.h"

#include "base/err.h"
#include "task/image.h"
#include "task/latent.h"
#include "task/lm.h"
#include "task/mae.h"
#include "task/ppo.h"

#include <string.h>

const Task *task_of(const Recipe *r)
{
    static const Task *const tasks[] = { &task_lm, &task_ppo, &task_image, &task_mae, &task_latent };
    for (int i = 0; i < ARRAY_LEN(tasks); i++) {
        if (strcmp(tasks[i]->name, r->task) == 0) return tasks[i];
    }
    CHECK(0, "recipes may say task %s, but there is none", r->task);
    return NULL;
}

int task_complete(Recipe *r, int need_data)
{
    const Task *t = task_of(r);
    return t->complete ? t->complete(r, need_data) : 0;
}
