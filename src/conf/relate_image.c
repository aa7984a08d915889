/* Relations between the keys of tasks image and mae: sizes, positions, mixing, hidden patches. */
#include "conf/relate_image.h"

#include "base/log.h"
#include "base/str.h"
#include "conf/relate_impl.h"

#include <stdio.h>
#include <string.h>

int relate_floats(const char *list, int n, float *out)
{
    char   item[64];
    double v;
    for (int i = 0; i < n; i++) {
        if (str_list_next(&list, item, sizeof item) <= 0 || str_parse_double(item, &v) < 0) return -1;
        out[i] = (float)v;
    }
    return str_list_next(&list, item, sizeof item) == 0 ? 0 : -1;
}

ImageGrid relate_grid(const RecipeImage *m, int64_t size, int64_t frames)
{
    int64_t n = size / m->patch;
    return (ImageGrid){ frames > 0 ? frames / m->tubelet : 1, n, n };
}

/* value must be a multiple of unit; the nearest ones are named. */
static int need_multiple(const Recipe *r, const char *key, int64_t value, const char *of, int64_t unit)
{
    int64_t below = value / unit * unit;
    if (value % unit == 0) return 0;
    if (below == 0)
        return recipe_blame(r, key, "%lld is no multiple of %s (%lld): %lld would do", LL(value), of,
                            LL(unit), LL(unit));
    return recipe_blame(r, key, "%lld is no multiple of %s (%lld): %lld or %lld would do", LL(value), of,
                        LL(unit), LL(below), LL(below + unit));
}

static int check_sizes(Recipe *r)
{
    RecipeImage *m = &r->image;
    if (m->pos_size == 0) m->pos_size = m->size;
    if (m->pos_frames == 0) m->pos_frames = m->frames;
    TRY(need_multiple(r, "image.size", m->size, "image.patch", m->patch));
    TRY(need_multiple(r, "image.pos_size", m->pos_size, "image.patch", m->patch));
    TRY(need_multiple(r, "image.frames", m->frames, "image.tubelet", m->tubelet));
    TRY(need_multiple(r, "image.pos_frames", m->pos_frames, "image.tubelet", m->tubelet));
    if ((m->pos_frames == 0) != (m->frames == 0))
        return recipe_blame(r, "image.pos_frames", "positions of clips do not serve images, nor the reverse");
    int part = m->frames > 0 ? 6 : 4;
    if (m->pos == GRID_SINCOS) TRY(need_multiple(r, "model.width", r->model.width, "sincos's parts", part));
    return 0;
}

int relate_stage(const Recipe *r, int i, RecipeStage *out)
{
    const char *list = r->stages;
    char        item[64];
    long long   step, size, frames = r->image.frames;
    int         used = 0;
    for (int k = 0; k <= i; k++) {
        int rc = str_list_next(&list, item, sizeof item);
        if (rc == 0) return 0;
        if (rc < 0)
            return recipe_blame(r, "stages", "stage %d is longer than %zu bytes", k + 1, sizeof item - 1);
    }
    int n = sscanf(item, "%lld:%lld%nx%lld%n", &step, &size, &used, &frames, &used);
    if (n < 2 || item[used] || step <= 0)
        return recipe_blame(r, "stages", "'%s' is no stage: STEP:SIZE or STEP:SIZExFRAMES, as in 5000:384",
                            item);
    *out = (RecipeStage){ step, size, frames };
    return 1;
}

static int check_stages(const Recipe *r)
{
    RecipeStage s;
    int64_t     before = 0;
    for (int i = 0, rc; (rc = relate_stage(r, i, &s)) != 0; i++, before = s.step) {
        TRY(rc);
        if (s.step <= before)
            return recipe_blame(r, "stages", "step %lld does not come after %lld", LL(s.step), LL(before));
        if (s.size < r->image.patch || s.size > 4096)
            return recipe_blame(r, "stages", "%lld pixels are less than a patch, or more than 4096",
                                LL(s.size));
        TRY(need_multiple(r, "stages", s.size, "image.patch", r->image.patch));
        TRY(need_multiple(r, "stages", s.frames, "image.tubelet", r->image.tubelet));
        if ((s.frames == 0) != (r->image.frames == 0) || s.frames < 0 || s.frames > 4096)
            return recipe_blame(r, "stages", "%lld frames: images stay images, clips stay clips",
                                LL(s.frames));
    }
    return 0;
}

void relate_note_stages(const Recipe *r)
{
    RecipeStage s;
    for (int i = 0; relate_stage(r, i, &s) > 0; i++) {
        if (s.step >= r->steps)
            log_info("stages: the run has %lld step%s, so the stage of step %lld is never reached",
                     LL(r->steps), str_plural(r->steps), LL(s.step));
    }
}

static int check_colours(const Recipe *r)
{
    float v[3];
    if (relate_floats(r->image.mean, 3, v) < 0)
        return recipe_blame(r, "image.mean", "expected three numbers, as in [0.485, 0.456, 0.406]");
    if (relate_floats(r->image.std, 3, v) < 0)
        return recipe_blame(r, "image.std", "expected three numbers, as in [0.229, 0.224, 0.225]");
    for (int i = 0; i < 3; i++) {
        if (!(v[i] > 1e-4f)) return recipe_blame(r, "image.std", "%g is not above 0", (double)v[i]);
    }
    return 0;
}

int relate_mixes(const Recipe *r)
{
    return str_list_has(r->data.augment, "mixup") || str_list_has(r->data.augment, "cutmix");
}

int relate_names_are_old(const Recipe *r)
{
    return recipe_is_typed(r, "data.train") && !recipe_is_typed(r, "image.names") &&
           !recipe_is_typed(r, "image.names_file");
}

const char *relate_names_key(const Recipe *r)
{
    if (r->image.names[0]) return "image.names";
    return r->image.names_file[0] ? "image.names_file" : NULL;
}

/* One of the two keys counts: what the command line says, else the list. */
static int choose_names(Recipe *r)
{
    int list = recipe_is_typed(r, "image.names"), file = recipe_is_typed(r, "image.names_file");
    if (!r->image.names[0] || !r->image.names_file[0]) return 0;
    if (list && file) return recipe_blame(r, "image.names_file", "not together with image.names");
    memset(file ? r->image.names : r->image.names_file, 0, RECIPE_STR);
    return 0;
}

static int check_mixing(const Recipe *r)
{
    int64_t group = r->data.mix_group;
    if (!relate_mixes(r)) return 0;
    if ((group & (group - 1)) != 0)
        return recipe_blame(r, "data.mix_group", "%lld is no power of two", LL(group));
    TRY(need_multiple(r, "step_samples", r->step_samples, "data.mix_group", group));
    return need_multiple(r, "micro_batch", r->micro_batch, "data.mix_group", group);
}

int relate_image(Recipe *r)
{
    RecipeImage *m = &r->image;
    r->model.mask  = MASKING_FULL;
    TRY(check_sizes(r));
    m->seen_size   = m->size;
    m->seen_frames = m->frames;
    TRY(check_stages(r));
    TRY(check_colours(r));
    TRY(choose_names(r));
    return check_mixing(r);
}

/* Of each frame as many patches are hidden. */
static int count_hidden(Recipe *r)
{
    RecipeImage *m      = &r->image;
    ImageGrid    g      = relate_grid(m, m->size, m->frames);
    int64_t      places = g.y * g.x, hidden = (int64_t)(r->mae.ratio * (double)places + 1e-9);
    if (hidden == 0 || hidden == places)
        return recipe_blame(r, "mae.ratio", "%g hides %s of %lld patches", r->mae.ratio,
                            hidden == 0 ? "none" : "all", LL(places));
    m->seen_patches = g.t * (places - hidden);
    return 0;
}

int relate_mae(Recipe *r)
{
    if (r->mae.ratio == 0) r->mae.ratio = r->image.frames > 0 ? 0.9 : 0.75;
    if (relate_mixes(r))
        return recipe_blame(r, "data.augment", "mixup and cutmix mix labels, and task mae has none");
    TRY(relate_image(r));
    TRY(need_multiple(r, "mae.width", r->mae.width, "mae.heads", r->mae.heads));
    return count_hidden(r);
}
