/* brim data teacher: what the frozen model of task latent says about each training sample, into a file. */
#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/signals.h"
#include "base/str.h"
#include "bin/cmd_data.h"
#include "bin/tasks.h"
#include "run/setup.h"
#include "task/latent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The recipe as a fill wants it, whatever teacher it names. path: PAIRS_PATH bytes. */
static int load(const CmdTarget *t, const char *out, const char *top, Recipe *r, char *path)
{
    TRY(cmd_load_target(t, r));
    if (strcmp(r->task, task_latent.name) != 0)
        return recipe_blame(r, "task", "%s has no teacher, task latent has one", r->task);
    if (task_latent.is_noise(r))
        return recipe_blame(r, "latent.pairs",
                            "noise needs no file: latent.teacher=cached makes its numbers up");
    if (r->latent.kl_weight == 0)
        return recipe_blame(r, "latent.kl_weight", "is 0: nothing is compared with a teacher");
    r->latent.teacher = TEACHER_CACHED;
    if (top) TRY(cmd_int("--top", top, 1, 65536, &r->latent.teacher_top));
    TRY(task_complete(r, DATA_OPENED_NEXT));
    if (out) {
        str_copy(path, PAIRS_PATH, out);
    } else {
        pairs_teacher_path(r, path);
    }
    return cmd_out_file(out ? "--out" : "latent.teacher_file", path);
}

typedef struct {
    Progress bar;
    double   begin_s;
} Note;

static int take_note(void *ctx, int64_t done, int64_t all)
{
    Note  *n     = ctx;
    double per_s = (double)done / MAX(clock_now_s() - n->begin_s, 1e-3);
    if (done > 0) progress_update(&n->bar, done, NAN, per_s, 1 / per_s);
    return signals_pending() != 0;
}

static int fill(Job *j, const Source *each, const char *path)
{
    Note note = { .begin_s = clock_now_s() };
    TRY(signals_install());
    signals_hush(); /* nothing is kept of a part */
    progress_begin(&note.bar, "teacher", "samples/s", 0, each->n_sample);
    int rc = latent_teach(j, each, path, take_note, &note);
    progress_end(&note.bar);
    if (rc > 0) return err_set("%s received: %s was not written", signals_name(), path);
    TRY(rc);
    const PairShape *s = &latent_of(j)->s;
    char             size[32];
    printf("%s: %lld samples, %lld of %lld logits for each of %lld token%s, %s\n", path,
           (long long)each->n_sample, (long long)s->top, (long long)latent_of(j)->model.vocab,
           (long long)s->K, str_plural(s->K), str_bytes(size, sizeof size, (double)file_size(path)));
    return 0;
}

int cmd_data_teacher(const CmdArgs *a)
{
    const char   *out = NULL, *top = NULL;
    const CmdFlag flag[] = { { "--out", &out, NULL,
                               "FILE    default: latent.teacher_file, else data.train with "
                               ".teacher behind its name" },
                             { "--top", &top, NULL,
                               "N       logits of each token; default: latent.teacher_top" } };
    CmdTarget     t;
    Recipe        r;
    Setup         s;
    Source       *each;
    char          path[PAIRS_PATH];
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(cmd_need_recipe(&t));
    log_open(NULL);
    TRY(load(&t, out, top, &r, path));
    TRY(pairs_open_each(&each, &r));
    int rc = setup_open(&s, &task_latent, &r, JOB_TEACH | JOB_LOADED);
    if (rc == 0) log_info("%s: %s", s.info.name, s.why);
    if (rc == 0) rc = fill(s.job, each, path);
    setup_close(&s);
    source_close(each);
    return rc;
}
