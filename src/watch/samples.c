#include "watch/samples.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "run/rundir.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a task left, in memory. */
typedef struct {
    char  *text, *picture;
    size_t n_text, n_picture;
} Sample;

void samples_begin(Samples *s, const char *dir, const Recipe *r)
{
    *s = (Samples){ .r = r };
    str_copy(s->dir, sizeof s->dir, dir);
}

static void lines_path(const Samples *s, char path[1100])
{
    snprintf(path, 1100, "%s/samples.jsonl", s->dir);
}

void samples_rewind(const Samples *s, int64_t first_step)
{
    char path[1100];
    lines_path(s, path);
    if (rundir_trim(path, first_step) >= 0) return;
    log_warn("%s (samples will be there twice)", err_get());
    err_clear();
}

const char *samples_type(const void *bytes, size_t n)
{
    if (n >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0) return "image/png";
    if (n >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0) return "image/jpeg";
    if (n >= 6 && (memcmp(bytes, "GIF87a", 6) == 0 || memcmp(bytes, "GIF89a", 6) == 0)) return "image/gif";
    return NULL;
}

static int make_one(Job *job, int i, Sample *out)
{
    FILE *text = open_memstream(&out->text, &out->n_text);
    FILE *pic  = open_memstream(&out->picture, &out->n_picture);
    int   rc   = text && pic ? 0 : err_sys("memory for a sample");
    if (rc == 0) {
        const char *prompt = job->recipe.watch.prompt;
        TaskSample  opt    = { .prompt      = prompt[0] ? prompt : NULL,
                               .n_unit      = SAMPLES_UNITS,
                               .temperature = 0.8,
                               .seed        = (uint64_t)job->recipe.seed + (uint64_t)i,
                               .picture     = pic };
        rc                 = job->task->sample(job, &opt, text);
    }
    if (text) fclose(text);
    if (pic) fclose(pic);
    return rc;
}

/* Where a picture of this kind goes: its name in the run's folder, and its path. */
static int place_picture(const Samples *s, int64_t step, int i, const char *kind, char *name, char path[1300])
{
    char folder[1100];
    snprintf(folder, sizeof folder, "%s/samples", s->dir);
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return err_sys("%s", folder);
    snprintf(name, SAMPLES_NAME, "samples/%08lld-%d.%s", (long long)step, i, kind);
    snprintf(path, 1300, "%s/%s", s->dir, name);
    return 0;
}

/* An episode as the task plays it: a GIF, and what came of it. */
static int play_one(const Samples *s, Job *job, int64_t step, int i, Sample *out, char *name)
{
    char     path[1300], text[256] = "";
    TaskPlay opt = { .n_episode = 1, .out = path, .seed = (uint64_t)job->recipe.seed + (uint64_t)i };
    TRY(place_picture(s, step, i, "gif", name, path));
    opt.text = open_memstream(&out->text, &out->n_text);
    if (!opt.text) return err_sys("memory for a sample");
    int rc = job->task->play(job, &opt);
    fclose(opt.text);
    /* The first line is the episode. */
    snprintf(text, sizeof text, "%.*s", (int)strcspn(out->text, "\n"), out->text);
    out->n_text = strlen(text);
    memcpy(out->text, text, out->n_text + 1);
    if (rc == 0 && file_read_all(path, SAMPLES_PICTURE_BYTES, &out->picture, &out->n_picture) < 0)
        err_clear(); /* TensorBoard goes without a picture that large */
    return rc;
}

/* The picture's file. Its name into `name`, "" when there is none. */
static int keep_picture(const Samples *s, const Sample *x, int64_t step, int i, char *name)
{
    char        path[1300];
    const char *type = samples_type(x->picture, x->n_picture);
    name[0]          = '\0';
    if (!type || x->n_picture > SAMPLES_PICTURE_BYTES) return 0;
    TRY(place_picture(s, step, i, type + strlen("image/"), name, path));
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    int rc = fwrite(x->picture, 1, x->n_picture, f) == x->n_picture ? 0 : err_sys("%s", path);
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

static int keep_line(const Samples *s, const Sample *x, int64_t step, const char *picture)
{
    char    path[1100];
    JsonOut o;
    lines_path(s, path);
    FILE *f = fopen(path, "ae");
    if (!f) return err_sys("%s", path);
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", step);
    const char *prompt = s->r->watch.prompt, *text = x->n_text > 0 ? x->text : "";
    if (prompt[0]) json_out_str(&o, "prompt", prompt);
    json_out_str(&o, "text", text + (str_starts_with(text, prompt) ? strlen(prompt) : 0)); /* said once */
    if (picture[0]) json_out_str(&o, "picture", picture);
    int rc = json_out_end(&o);
    if (fclose(f) != 0 && rc == 0) rc = err_sys("%s", path);
    return rc;
}

static unsigned big_endian(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;
    return (unsigned)b[0] << 24 | (unsigned)b[1] << 16 | (unsigned)b[2] << 8 | b[3];
}

static void show_tensorboard(const Sample *x, int64_t step, int i, EventWriter *events)
{
    enum { PNG_SIZE_AT = 16, PNG_HEAD = 24 };
    char        tag[48];
    const char *type = samples_type(x->picture, x->n_picture);
    event_begin(events, clock_wall_s(), step);
    snprintf(tag, sizeof tag, "samples/text/%d", i);
    if (x->n_text > 0) event_text(events, tag, x->text);
    snprintf(tag, sizeof tag, "samples/picture/%d", i);
    if (type && x->n_picture > PNG_HEAD) { /* TensorBoard takes the size of other kinds from their bytes */
        int      is_png = strcmp(type, "image/png") == 0;
        unsigned w      = is_png ? big_endian(x->picture + PNG_SIZE_AT) : 0;
        unsigned h      = is_png ? big_endian(x->picture + PNG_SIZE_AT + 4) : 0;
        event_image(events, tag, x->picture, x->n_picture, (int)w, (int)h);
    }
    if (event_end(events) < 0) err_clear();
}

void samples_take(Samples *s, Job *job, int64_t step, EventWriter *events)
{
    const Task *t     = job->task;
    int         shows = t->sample && (job->parts & JOB_SAMPLE), plays = t->play && (job->parts & JOB_PLAY);
    if (s->r->watch.samples == 0 || !(shows || plays)) return;
    for (int i = 0; i < s->r->watch.samples && !s->is_off; i++) {
        Sample x                     = { 0 };
        char   picture[SAMPLES_NAME] = "";
        int    rc                    = shows ? make_one(job, i, &x) : play_one(s, job, step, i, &x, picture);
        if (rc == 0 && shows) rc = keep_picture(s, &x, step, i, picture);
        if (rc == 0) rc = keep_line(s, &x, step, picture);
        if (rc == 0 && events) show_tensorboard(&x, step, i, events);
        if (rc < 0) {
            log_warn("no more samples are taken: %s (the run itself is not affected)", err_get());
            err_clear();
            s->is_off = 1;
        }
        free(x.text);
        free(x.picture);
    }
}
