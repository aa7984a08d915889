#include "conf/relate.h"

#include "base/err.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"
#include "conf/bind.h"
#include "conf/class_names.h"
#include "conf/hfconf.h"
#include "conf/paths.h"
#include "conf/relate_image.h"
#include "conf/relate_impl.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int relate_row(const Recipe *r, const char *key)
{
    int row = schema_find(r, key);
    CHECK(row >= 0, "no key %s", key);
    return row;
}

const char *relate_culprit(const Recipe *r, const char *key, const char *other)
{
    int a = r->origin[relate_row(r, key)], b = r->origin[relate_row(r, other)];
    if (a == ORIGIN_COMMAND_LINE) return key;
    if (b == ORIGIN_COMMAND_LINE) return other;
    return a != ORIGIN_DEFAULT || b == ORIGIN_DEFAULT ? key : other;
}

const char *relate_nearest(char *buf, size_t n, int64_t below, int64_t above)
{
    snprintf(buf, n, "%lld", LL(below > 0 ? below : above));
    if (below > 0 && above > below) str_append(buf, n, " or %lld", LL(above));
    return buf;
}

/* A number above 0 for each pair of a head's channels. */
static int check_pairs(const Recipe *r, const char *key, const char *list)
{
    float v[256]; /* model.head_dim is at most 512 */
    int   n = (int)(r->model.head_dim / 2);
    if (relate_floats(list, n, v) < 0)
        return recipe_blame(r, key, "needs %d numbers, one for each pair of a head's channels", n);
    for (int i = 0; i < n; i++) {
        if (!(v[i] > 0 && v[i] <= 1e12f)) return recipe_blame(r, key, "%g is not above 0", (double)v[i]);
    }
    return 0;
}

static int check_longrope(const Recipe *r)
{
    const RecipeModel *m = &r->model;
    RELATE(m->rope_original > 1, "model.rope_original", "model.rope_scaling",
           "model.rope_original must be above 1 for longrope");
    RELATE(m->context <= m->rope_original, "model.context", "model.rope_original",
           "model.context (%lld) is above model.rope_original (%lld): there the stretch would depend on a "
           "sequence's length (model.context=%lld would do)",
           LL(m->context), LL(m->rope_original), LL(m->rope_original));
    TRY(check_pairs(r, "model.rope_short", m->rope_short));
    return m->rope_long[0] ? check_pairs(r, "model.rope_long", m->rope_long) : 0;
}

static int check_rope(const Recipe *r)
{
    const RecipeModel *m       = &r->model;
    int                is_yarn = m->rope_scaling == ROPE_YARN, is_long = m->rope_scaling == ROPE_LONG;
    RELATE(m->rope_scaling == ROPE_NONE || m->pos == POS_ROPE, "model.rope_scaling", "model.pos",
           "model.rope_scaling needs model.pos rope");
    RELATE(m->rope_scaling != ROPE_NONE || m->rope_factor == 1, "model.rope_factor", "model.rope_scaling",
           "model.rope_factor (%g) needs model.rope_scaling linear, llama3, yarn or longrope",
           m->rope_factor);
    RELATE(m->rope_scaling != ROPE_LLAMA3 || m->rope_high > m->rope_low, "model.rope_high", "model.rope_low",
           "model.rope_high (%g) must be above model.rope_low (%g)", m->rope_high, m->rope_low);
    RELATE(!is_yarn || m->rope_fast >= m->rope_slow, "model.rope_fast", "model.rope_slow",
           "model.rope_fast (%g) must not be below model.rope_slow (%g)", m->rope_fast, m->rope_slow);
    RELATE(!is_yarn || m->rope_theta > 1, "model.rope_theta", "model.rope_scaling",
           "model.rope_theta must be above 1 for yarn");
    RELATE(is_yarn || is_long || m->rope_attention <= 0, "model.rope_attention", "model.rope_scaling",
           "model.rope_attention needs model.rope_scaling yarn or longrope");
    RELATE(is_long || !m->rope_short[0], "model.rope_short", "model.rope_scaling",
           "model.rope_short needs model.rope_scaling longrope");
    RELATE(is_long || !m->rope_long[0], "model.rope_long", "model.rope_scaling",
           "model.rope_long needs model.rope_scaling longrope");
    return is_long ? check_longrope(r) : 0;
}

static int resolve_model(Recipe *r)
{
    static const char *const derived[] = { "model.kv_heads", "model.head_dim", "model.ffn" };
    RecipeModel             *m         = &r->model;
    RELATE(m->head_dim > 0 || m->width % m->heads == 0, "model.heads", "model.width",
           "model.heads (%lld) must divide model.width (%lld), or give model.head_dim", LL(m->heads),
           LL(m->width));
    if (m->kv_heads == 0) m->kv_heads = m->heads;
    if (m->head_dim == 0) m->head_dim = m->width / m->heads;
    /* 8/3 of the width gives three matrices of a gated form as many weights as two of 4 x width have; 128
     * keeps matrix tiles full. */
    if (m->ffn == 0) m->ffn = m->act == FFN_SWIGLU ? round_up((8 * m->width + 2) / 3, 128) : 4 * m->width;
    for (int i = 0; i < ARRAY_LEN(derived); i++) {
        char why[160];
        int  row = relate_row(r, derived[i]);
        if (schema_check(schema_row(r, row), r, why, sizeof why) < 0) {
            return recipe_blame(r, relate_culprit(r, derived[i], "model.width"), "%s of %s", derived[i], why);
        }
    }
    RELATE(m->heads % m->kv_heads == 0, "model.kv_heads", "model.heads",
           "model.kv_heads (%lld) must divide model.heads (%lld)", LL(m->kv_heads), LL(m->heads));
    RELATE(m->pos != POS_ROPE || m->head_dim % 2 == 0, "model.head_dim", "model.width",
           "rope needs an even head size, not %lld (model.width %lld / model.heads %lld)", LL(m->head_dim),
           LL(m->width), LL(m->heads));
    /* Shards may name the token themselves. */
    int by_data = r->data.kind == DATA_TOKENS || (r->data.kind == DATA_TEXT && r->data.tokenizer[0]);
    RELATE(m->mask != MASKING_DOCUMENT || r->data.document_token >= 0 || by_data, "model.mask",
           "data.document_token", "mask document needs data.document_token, the token that ends a document");
    RELATE(m->mask != MASKING_PREFIX || r->data.prefix_token >= 0, "model.mask", "data.prefix_token",
           "mask prefix needs data.prefix_token, the token that ends a prefix");
    RELATE(m->window == 0 || m->mask == MASKING_CAUSAL, "model.window", "model.mask",
           "model.window needs model.mask causal");
    TRY(check_rope(r));
    RELATE(r->data.pack == PACK_CONCAT || m->mask == MASKING_CAUSAL || m->mask == MASKING_DOCUMENT,
           "data.pack", "model.mask", "data.pack best_fit goes with model.mask causal or document");
    RELATE(r->data.prefix_token < m->vocab, "data.prefix_token", "model.vocab",
           "data.prefix_token (%lld) must be below model.vocab (%lld)", LL(r->data.prefix_token),
           LL(m->vocab));
    RELATE(r->data.document_token < m->vocab, "data.document_token", "model.vocab",
           "data.document_token (%lld) must be below model.vocab (%lld)", LL(r->data.document_token),
           LL(m->vocab));
    return 0;
}

/* The step in samples, which everything behind the recipe counts in. */
static int derive_step(Recipe *r)
{
    char    near[48];
    int64_t context = r->model.context, sequences = r->step_tokens / context;
    RELATE(r->step_tokens % context == 0, "step_tokens", "model.context",
           "step_tokens (%lld) must be a multiple of model.context (%lld): %s would do", LL(r->step_tokens),
           LL(context), relate_nearest(near, sizeof near, sequences * context, (sequences + 1) * context));
    r->step_samples = sequences;
    r->step_key     = "step_tokens";
    return 0;
}

static int check_micro_batch(const Recipe *r)
{
    enum { FAR = 65536 }; /* the largest micro-batch */
    char    near[48];
    int64_t samples = r->step_samples, micro = r->micro_batch;
    int     derived = strcmp(r->step_key, "step_samples") != 0;
    if (micro == 0 || samples % micro == 0) return 0;
    if (strcmp(r->step_key, "ppo.envs") == 0) return 0; /* how many agents there are is not known yet */
    int64_t below = MIN(micro, samples), above = micro;
    while (samples % below != 0) below--;
    while (above <= FAR && samples % above != 0) above++;
    return recipe_blame(r, relate_culprit(r, "micro_batch", r->step_key),
                        "micro_batch (%lld) must divide the step's %lld %s: %s would do", LL(micro),
                        LL(samples),
                        derived ? "sequences (step_tokens / model.context)" : "samples (step_samples)",
                        relate_nearest(near, sizeof near, below, above <= FAR ? above : 0));
}

/* If steps comes from the command line and the warm-up from the file, the user tries out a recipe: the
 * warm-up is cut. If both come from the same place and do not fit together, that is a mistake. */
static void cut_warmup(Recipe *r)
{
    int64_t was = r->optim.warmup;
    if (was < MAX(r->steps, 2) /* a warm-up of one step is none */ ||
        r->origin[relate_row(r, "steps")] != ORIGIN_COMMAND_LINE ||
        r->origin[relate_row(r, "optim.warmup")] == ORIGIN_COMMAND_LINE)
        return;
    r->optim.warmup = r->steps / 10;
}

static int check_optim(const Recipe *r)
{
    const RecipeOptim *p = &r->optim;
    RELATE(p->warmup <= r->steps, "optim.warmup", "steps",
           "optim.warmup (%lld) must not exceed steps (%lld): optim.warmup=%lld would do", LL(p->warmup),
           LL(r->steps), LL(r->steps / 10));
    double whole = exp2(round(log2(MAX(p->loss_scale, 1))));
    DEMAND(p->loss_scale == 0 || p->loss_scale == whole, "optim.loss_scale",
           "%.10g is no power of two from 1 on: %.10g would do", p->loss_scale, whole);
    RELATE(p->min_lr <= p->lr, "optim.min_lr", "optim.lr", "optim.min_lr (%g) must not exceed optim.lr (%g)",
           p->min_lr, p->lr);
    RELATE(p->schedule != SCHEDULE_TRAPEZOID ||
               (double)p->warmup + p->cooldown * (double)r->steps <= (double)r->steps,
           "optim.cooldown", "optim.warmup", "warm-up (%lld steps) and cooldown (%g of %lld steps) overlap",
           LL(p->warmup), p->cooldown, LL(r->steps));
    return 0;
}

static int check_eval(const Recipe *r)
{
    RELATE(r->eval.target == 0 || r->eval.every > 0, "eval.target", "eval.every",
           "eval.target needs eval.every above 0");
    RELATE(r->eval.patience == 0 || r->eval.every > 0, "eval.patience", "eval.every",
           "eval.patience needs eval.every above 0");
    return 0;
}

static int check_validation(const Recipe *r)
{
    int has_val = r->data.kind == DATA_RANDOM || r->data.val[0] || r->data.val_fraction > 0;
    RELATE(has_val || (r->eval.target == 0 && r->eval.patience == 0),
           r->eval.target != 0 ? "eval.target" : "eval.patience", "data.val_fraction",
           "needs validation data: data.val, or data.val_fraction above 0");
    return 0;
}

/* ---- Names --------------------------------------------------------------------------------------------- */

static int check_names(Recipe *r)
{
    static const char *const devices[] = { "auto", "cpu", "cuda" };
    StrNearest               near      = str_nearest_begin(r->device);
    int                      known     = 0;
    int64_t                  index;
    for (int i = 0; i < ARRAY_LEN(devices); i++) {
        known |= strcmp(r->device, devices[i]) == 0;
        str_nearest_offer(&near, devices[i]);
    }
    int is_numbered = str_starts_with(r->device, "cuda:") || str_starts_with(r->device, "late:"); /* tests' */
    known |= is_numbered && str_parse_int(r->device + 5, &index) == 0 && index >= 0 && index < 1024;
    if (strcmp(r->device, "gpu") == 0) near.best = "cuda";
    DEMAND(known || !near.best, "device", "'%.32s' is none of auto, cpu, cuda, cuda:N (did you mean %s?)",
           r->device, near.best);
    DEMAND(known, "device", "'%.32s' is none of auto, cpu, cuda, cuda:N", r->device);
    /* The name becomes a folder below runs/. */
    DEMAND(!strchr(r->run, '/') && r->run[0] != '.' && r->run[0] != '-', "run",
           "'%.64s' cannot name a folder (no '/', no leading '.' or '-')", r->run);
    return 0;
}

static int check_require(const Recipe *r)
{
    const char *list = r->require;
    char        item[64], key[80], value[RECIPE_STR];
    while (str_list_next(&list, item, sizeof item) > 0) {
        snprintf(key, sizeof key, "opt.%s", item);
        int row = schema_find(r, key);
        if (row >= 0) {
            schema_get(schema_row(r, row), r, value, sizeof value);
            RELATE(strcmp(value, "true") == 0, "require", key, "require lists %s, but %s is false", item,
                   key);
        } else {
            schema_get(schema_row(r, relate_row(r, "precision")), r, value, sizeof value);
            RELATE(r->precision == PRECISION_AUTO || strcmp(value, item) == 0, "require", "precision",
                   "require lists %s, but precision is %s", item, value);
        }
    }
    return 0;
}

/* ---- Data files ---------------------------------------------------------------------------------------- */

static int refuse_missing(const Recipe *r, const char *key, const char *path)
{
    char   folder[RECIPE_STR];
    char **names;
    Arena  arena;
    arena_init(&arena);
    file_folder_of(path, folder, sizeof folder);
    int n = file_list(&arena, folder, "", &names);
    err_clear(); /* a folder that cannot be listed only costs the hint */
    StrNearest near = str_nearest_begin(file_name_of(path));
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], file_name_of(path)) != 0) str_nearest_offer(&near, names[i]);
    }
    char    to[PATH_MAX];
    ssize_t len = readlink(path, to, sizeof to - 1);
    if (len > 0) {
        to[len] = '\0';
        recipe_blame(r, key, "%s is a link to %s, which is not there", path, to);
    } else {
        recipe_blame(r, key, "%s: no such file%s", path, str_nearest_hint(&near, NULL, to, sizeof to));
    }
    arena_deinit(&arena);
    return -1;
}

/* Where files are looked for. */
typedef struct {
    const Recipe *r;
    const char   *folder;
} Beside;

/* Replaces a path that exists only beside the recipe by one that can be opened from here. */
static int beside_recipe(void *ctx, const SchemaRow *row, char path[RECIPE_STR])
{
    const Beside *b = ctx;
    const Recipe *r = b->r;
    char          beside[2 * RECIPE_STR];
    if (path[0] == '/' || file_kind(path) != FILE_NONE) return 0;
    snprintf(beside, sizeof beside, "%s/%s", b->folder, path);
    if (file_kind(beside) == FILE_NONE) return 0;
    DEMAND(strlen(beside) < RECIPE_STR, row->name, "the path is longer than %d bytes: %s", RECIPE_STR - 1,
           beside);
    str_copy(path, RECIPE_STR, beside);
    return 0;
}

/* The same for every key that names a file. */
static int find_files(Recipe *r, const char *folder)
{
    return paths_in_recipe(r, beside_recipe, &(Beside){ r, folder });
}

static int check_data(const Recipe *r, const char *path, const char *key)
{
    FileKind found = file_kind(path);
    if (found == FILE_NONE) return refuse_missing(r, key, path);
    DEMAND(found != FILE_OTHER, key, "%s is neither a file nor a folder", path);
    if (strcmp(r->task, "latent") == 0) {
        DEMAND(found != FILE_FOLDER, key, "%s is a folder; pairs are read from a file", path);
        DEMAND(!str_ends_with(path, ".gz") && !str_ends_with(path, ".zst"), key,
               "%s is packed; pairs are read from plain files: unpack it first", path);
    }
    DEMAND(found != FILE_FOLDER || r->data.kind != DATA_TEXT || r->data.tokenizer[0], key,
           "%s is a folder; data.kind text needs a file, or a data.tokenizer", path);
    return 0;
}

/* Text without a tokenizer is bytes. That is a slip if the model's vocabulary was chosen for other data: by
 * the folder of init, or by a recipe or a run whose data.kind the command line changes. */
static int check_text(const Recipe *r)
{
    int elsewhere = r->init[0] || (recipe_is_typed(r, "data.kind") && !recipe_is_typed(r, "model.vocab"));
    if (r->data.tokenizer[0] || r->model.vocab == 256 || !elsewhere) return 0;
    return recipe_blame(r, "data.tokenizer",
                        "is missing: text without one is bytes, but model.vocab is %lld, not 256",
                        LL(r->model.vocab));
}

/* 1: a path that can only be token shards. A folder of a set has them in its part. */
static int holds_shards(const char *path)
{
    char  part[RECIPE_STR + 16], **names;
    Arena arena;
    if (file_kind(path) != FILE_FOLDER) return str_ends_with(path, ".bin");
    arena_init(&arena);
    snprintf(part, sizeof part, "%s/train", path);
    const char *folder = file_kind(part) == FILE_FOLDER ? part : path;
    int         n      = file_list(&arena, folder, ".bin", &names);
    arena_deinit(&arena);
    err_clear(); /* a folder that cannot be listed is refused when it is opened */
    return n > 0;
}

/* A recipe for measuring and an imported run say data.kind random. Who types a path means that data, not
 * noise: the kind is then the path's. */
static int leave_noise(Recipe *r, const char *folder)
{
    RecipeData *d    = &r->data;
    const char *key  = recipe_is_typed(r, "data.train") && d->train[0] ? "data.train" : "data.val";
    const char *path = strcmp(key, "data.train") == 0 ? d->train : d->val;
    if (d->kind != DATA_RANDOM || !path[0] || !recipe_is_typed(r, key)) return 0;
    DEMAND(!recipe_is_typed(r, "data.kind"), key,
           "has no effect while data.kind is random (data.kind=text or data.kind=tokens reads it)");
    TRY(find_files(r, folder));
    d->kind = file_kind(path) == FILE_NONE || holds_shards(path) ? DATA_TOKENS : DATA_TEXT;
    r->origin[relate_row(r, "data.kind")] = ORIGIN_COMMAND_LINE;
    return 0;
}

static int resolve_data(Recipe *r, const char *folder, int need_data)
{
    RecipeData *d = &r->data;
    if (d->kind == DATA_RANDOM) return 0;
    /* An imported run that is evaluated has no training data, and needs none. */
    RELATE(d->train[0] || (d->val[0] && !need_data), "data.train", "data.kind",
           "is missing: name the file to train on, or set data.kind: random");
    RELATE(d->kind != DATA_TEXT || d->tokenizer[0] || r->model.vocab >= 256, "model.vocab", "data.kind",
           "text without data.tokenizer needs 256 tokens, one a byte, and model.vocab is %lld",
           LL(r->model.vocab));
    TRY(find_files(r, folder));
    if (d->kind == DATA_TEXT) TRY(check_text(r));
    if (!need_data) return 0;
    TRY(check_data(r, d->train, "data.train"));
    if (d->val[0]) TRY(check_data(r, d->val, "data.val"));
    DEMAND(!d->tokenizer[0] || file_kind(d->tokenizer) != FILE_NONE, "data.tokenizer",
           "%s: no such file or folder", d->tokenizer);
    return 0;
}

static int check_watch(const Recipe *r)
{
    const RecipeWatch *w = &r->watch;
    if (w->token[0]) {
        size_t plain = strspn(w->token, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~");
        DEMAND(!w->token[plain] && plain >= BIND_TOKEN_LEAST && plain <= BIND_TOKEN_MOST, "watch.token",
               "needs %d to %d letters, digits, - _ . ~", BIND_TOKEN_LEAST, BIND_TOKEN_MOST);
    }
    DEMAND(bind_is_local(w->bind) >= 0, "watch.bind",
           "\"%s\" is not an address (for example 127.0.0.1, 0.0.0.0 or ::1)", w->bind);
    return 0;
}

/* ---- The model of `init` ------------------------------------------------------------------------------- */

/* Model keys that another run of the same weights may choose. */
static int is_free(const char *key)
{
    static const char *const free_keys[] = { "model.dropout",   "model.mask",   "model.init_std",
                                             "model.drop_path", "image.smooth", "image.ema",
                                             "image.stride" };
    for (int i = 0; i < ARRAY_LEN(free_keys); i++) {
        if (strcmp(free_keys[i], key) == 0) return 1;
    }
    return 0;
}

/* Keys whose 0 leaves the value to others. 0 of any other key is a value like the rest. */
static int is_derived(const char *key)
{
    return str_list_has("model.kv_heads,model.head_dim,model.ffn,image.classes,image.pos_size,"
                        "image.pos_frames",
                        key);
}

/* 1: the recipe may say other than the folder. A shorter context where positions are computed; any size of
 * images and length of clips, because their positions are resampled; any names of classes; another way to a
 * square. */
static int may_differ(const Recipe *r, const Recipe *theirs, const char *key)
{
    if (strcmp(key, "model.context") == 0)
        return theirs->model.pos == POS_ROPE && r->model.context < theirs->model.context;
    if (strcmp(key, "image.frames") == 0) return theirs->image.frames > 0 && r->image.frames > 0;
    return str_list_has("image.size,image.names,image.names_file,image.fit,image.filter", key);
}

/* Keys of the model that the recipe does not give come from the folder; those it gives must agree. */
static int take_model(Recipe *r, const Recipe *theirs)
{
    int rc = 0;
    for (int i = 0; i < schema_rows(r) && rc == 0; i++) {
        const SchemaRow *row = schema_row(r, i);
        char             ours[RECIPE_STR], wanted[RECIPE_STR], why[160];
        int is_model = str_starts_with(row->name, "model.") || str_starts_with(row->name, "image.");
        if (!is_model || is_free(row->name) || !schema_applies(r, row) || !schema_applies(theirs, row))
            continue;
        schema_get(row, theirs, wanted, sizeof wanted);
        schema_get(row, r, ours, sizeof ours);
        int derived = is_derived(row->name) && strcmp(ours, "0") == 0;
        if (r->origin[i] == ORIGIN_DEFAULT && (row->type == KEY_LIST || row->type == KEY_TEXT)) {
            memcpy((char *)r + row->offset, (char *)theirs + row->offset, RECIPE_STR);
        } else if (r->origin[i] == ORIGIN_DEFAULT || derived) {
            int is_set = schema_set(row, r, wanted, 0, why, sizeof why) == 0;
            CHECK(is_set, "%s: %s", row->name, why);
        } else if (strcmp(ours, wanted) != 0) {
            if (!may_differ(r, theirs, row->name))
                rc =
                    recipe_blame(r, row->name, "is %s, but %s has %s (what the folder gives may be left out)",
                                 ours, r->init, wanted);
        }
    }
    return rc;
}

/* The model of a Hugging Face folder as a recipe. */
static int read_config(const Recipe *r, Recipe *theirs)
{
    HfConfig c;
    if (hfconf_read(&c, r->init) < 0) return recipe_blame_pending(r, "init");
    DEMAND(strcmp(hfconf_task(c.family), r->task) == 0, "init", "%s: a %s model is for task %s", r->init,
           hfconf_family_name[c.family], hfconf_task(c.family));
    str_copy(theirs->task, sizeof theirs->task, r->task);
    theirs->model = c.model;
    theirs->image = c.image;
    return 0;
}

/* The recipe of a run, which has every key: what that run began with no longer counts. The classes are the
 * new run's own, because its head is. */
static int read_run(const Recipe *r, const char *path, Recipe *theirs)
{
    char *none = "init=";
    if (recipe_load_without_data(theirs, path, 1, &none) < 0) return recipe_blame_pending(r, "init");
    DEMAND(strcmp(theirs->task, "mae") == 0 || strcmp(theirs->task, "image") == 0, "init",
           "%s: a run of task %s has no weights for task %s (runs of mae and image do)", r->init,
           theirs->task, r->task);
    theirs->image.classes = r->image.classes;
    memset(theirs->image.names, 0, sizeof theirs->image.names);
    memset(theirs->image.names_file, 0, sizeof theirs->image.names_file);
    return 0;
}

/* A folder of Hugging Face's has its tokenizer in it: tokenizer[RECIPE_STR] is that one unless given. */
static void find_tokenizer(const char *folder, char *tokenizer)
{
    static const char *const names[] = { "tokenizer.json", "merges.txt", "vocab.bpe" };
    char                     path[RECIPE_STR + 32];
    for (int i = 0; folder[0] && !tokenizer[0] && i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (file_kind(path) == FILE_REGULAR) str_copy(tokenizer, RECIPE_STR, folder);
    }
}

static int resolve_init(Recipe *r, const char *folder, int need_data)
{
    char path[RECIPE_STR + 16];
    if (!r->init[0]) return 0;
    TRY(find_files(r, folder));
    snprintf(path, sizeof path, "%s/recipe.yaml", r->init);
    int is_config = hfconf_is_folder(r->init), sees = strcmp(r->task, "lm") != 0;
    if (!is_config && (!sees || file_kind(path) != FILE_REGULAR)) {
        /* A run that has begun needs the folder no more. */
        DEMAND(!need_data, "init", "%s: no folder with a config.json%s", r->init, sees ? ", and no run" : "");
        return 0;
    }
    Recipe *theirs = calloc(1, sizeof *theirs);
    if (!theirs) return err_sys("memory for a recipe");
    int rc = is_config ? read_config(r, theirs) : read_run(r, path, theirs);
    if (rc == 0) rc = take_model(r, theirs);
    free(theirs);
    return rc;
}

/* ---- Tasks --------------------------------------------------------------------------------------------- */

static int resolve_lm(Recipe *r, const char *folder, int need_data)
{
    TRY(resolve_init(r, folder, need_data));
    TRY(leave_noise(r, folder));
    if (r->data.kind == DATA_TEXT) find_tokenizer(r->init, r->data.tokenizer);
    TRY(resolve_model(r));
    TRY(derive_step(r));
    TRY(check_validation(r));
    r->eval.samples = r->eval.sequences;
    return resolve_data(r, folder, need_data);
}

/* The names of a run lie beside its recipe, wherever the run was moved to. */
static int find_names(Recipe *r, const char *folder, int need_data)
{
    char *path = r->image.names_file, beside[2 * RECIPE_STR];
    if (!path[0]) return 0;
    snprintf(beside, sizeof beside, "%s/%s", folder, file_name_of(path));
    int is_own = strcmp(file_name_of(path), CLASS_NAMES_FILE) == 0 && !recipe_is_typed(r, "image.names_file");
    if (is_own && file_kind(beside) == FILE_REGULAR && strlen(beside) < RECIPE_STR) {
        memset(path, 0, RECIPE_STR);
        memcpy(path, beside, strlen(beside));
    }
    if (file_kind(path) == FILE_REGULAR) return 0;
    if (need_data || recipe_is_typed(r, "image.names_file"))
        return refuse_missing(r, "image.names_file", path);
    memset(path, 0, RECIPE_STR); /* on another machine: classes have only numbers */
    return 0;
}

/* Without data.train the pixels are noise, for measuring speed. */
static int find_images(Recipe *r, const char *folder, int need_data)
{
    TRY(find_files(r, folder));
    TRY(find_names(r, folder, need_data));
    if (!r->data.train[0] || !need_data) return 0;
    if (file_kind(r->data.train) == FILE_NONE) return refuse_missing(r, "data.train", r->data.train);
    if (r->data.val[0] && file_kind(r->data.val) == FILE_NONE)
        return refuse_missing(r, "data.val", r->data.val);
    return 0;
}

static int resolve_image(Recipe *r, const char *folder, int need_data)
{
    TRY(resolve_init(r, folder, need_data));
    TRY(resolve_model(r));
    TRY(relate_image(r));
    return find_images(r, folder, need_data);
}

static int resolve_mae(Recipe *r, const char *folder, int need_data)
{
    TRY(resolve_init(r, folder, need_data));
    TRY(resolve_model(r));
    TRY(relate_mae(r));
    return find_images(r, folder, need_data);
}

static int resolve_ppo(Recipe *r, const char *folder, int need_data)
{
    TRY(relate_ppo(r));
    return find_files(r, folder);
}

/* Noise may have an anchor of any length. A text's anchor is its own last tokens. */
static int64_t anchor_tokens(const RecipeLatent *t)
{
    if (t->pairs == PAIRS_TEXT) return MAX(t->anchor_tokens, 1);
    if (t->pairs == PAIRS_RANDOM && t->anchor_tokens > 0) return t->anchor_tokens;
    return (int64_t)strlen(t->anchor);
}

static int resolve_latent(Recipe *r, const char *folder, int need_data)
{
    RecipeEncoder *e = &r->encoder;
    RecipeLatent  *t = &r->latent;
    TRY(resolve_model(r));
    RELATE(e->head_dim > 0 || e->width % e->heads == 0, "encoder.heads", "encoder.width",
           "encoder.heads (%lld) must divide encoder.width (%lld), or give encoder.head_dim", LL(e->heads),
           LL(e->width));
    if (e->head_dim == 0) e->head_dim = e->width / e->heads;
    RELATE(t->first <= t->answer, "latent.first", "latent.answer",
           "latent.first (%lld) must not exceed latent.answer (%lld)", LL(t->first), LL(t->answer));
    RELATE(t->least_bytes <= e->bytes, "latent.least_bytes", "encoder.bytes",
           "latent.least_bytes (%lld) must not exceed encoder.bytes (%lld)", LL(t->least_bytes),
           LL(e->bytes));
    if (t->least_bytes == 0) t->least_bytes = e->bytes;
    t->n_anchor  = anchor_tokens(t);
    r->data.kind = t->pairs == PAIRS_RANDOM ? DATA_RANDOM : DATA_TEXT;
    TRY(check_validation(r));
    TRY(find_files(r, folder));
    DEMAND(t->pairs != PAIRS_RANDOM || !recipe_is_typed(r, "data.train") || !r->data.train[0], "data.train",
           "has no effect while latent.pairs is random (latent.pairs=text, jsonl or squad reads it)");
    if (t->pairs == PAIRS_RANDOM) return 0;
    DEMAND(r->data.train[0], "data.train", "is missing: name the file to train on");
    if (!need_data) return 0;
    TRY(check_data(r, r->data.train, "data.train"));
    return r->data.val[0] ? check_data(r, r->data.val, "data.val") : 0;
}

static const struct {
    const char *name;
    int (*resolve)(Recipe *r, const char *folder, int need_data);
} tasks[] = {
    { "lm", resolve_lm },   { "ppo", resolve_ppo },       { "image", resolve_image },
    { "mae", resolve_mae }, { "latent", resolve_latent },
};

static int refuse_task(const Recipe *r)
{
    char       names[200] = "";
    StrNearest near       = str_nearest_begin(r->task);
    for (int i = 0; i < ARRAY_LEN(tasks); i++) {
        str_append(names, sizeof names, "%s%s", i ? ", " : "", tasks[i].name);
        str_nearest_offer(&near, tasks[i].name);
    }
    if (r->extra) {
        str_append(names, sizeof names, ", %s", r->extra->name);
        str_nearest_offer(&near, r->extra->name);
    }
    return recipe_blame(r, "task", "'%.32s' is none of %s%s%s%s", r->task, names,
                        near.best ? " (did you mean " : "", near.best ? near.best : "",
                        near.best ? "?)" : "");
}

/* A key of another task would be ignored in silence. */
static int check_keys(const Recipe *r)
{
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row = schema_row(r, i);
        if (r->origin[i] == ORIGIN_DEFAULT || schema_applies(r, row)) continue;
        return recipe_blame(r, row->name, "task %s has no such key", r->task);
    }
    return 0;
}

static int resolve_task(Recipe *r, const char *folder, int need_data)
{
    int i = 0, is_extra = r->extra && strcmp(r->task, r->extra->name) == 0;
    while (i < ARRAY_LEN(tasks) && strcmp(tasks[i].name, r->task) != 0) i++;
    if (!is_extra && i == ARRAY_LEN(tasks)) return refuse_task(r);
    TRY(check_keys(r));
    if (is_extra) {
        TRY(find_files(r, folder));
        return r->extra->resolve ? r->extra->resolve(r) : 0;
    }
    return tasks[i].resolve(r, folder, need_data);
}

/* Other data than the file's: its validation data would measure something else. */
static void drop_val(Recipe *r)
{
    if (!r->data.val[0] || !recipe_is_typed(r, "data.train") || recipe_is_typed(r, "data.val")) return;
    memset(r->data.val, 0, sizeof r->data.val);
}

/* Why a key changes nothing in this recipe; NULL: it may change something. */
static const char *why_unused(const Recipe *r, const char *key)
{
    static const char *const of_muon[] = { "optim.muon_lr", "optim.momentum", "optim.nesterov" };
    for (int i = 0; i < ARRAY_LEN(of_muon); i++) {
        if (strcmp(key, of_muon[i]) == 0 && r->optim.kind != OPTIM_MUON) return "optim.kind is not muon";
    }
    if (str_starts_with(key, "fp8.") && r->precision != PRECISION_FP8) return "precision is not fp8";
    /* Of noise model.vocab counts. */
    int by_folder = r->latent.llm[0] && r->latent.pairs != PAIRS_RANDOM && hfconf_is_folder(r->latent.llm);
    return by_folder && str_starts_with(key, "model.") ? "the folder of latent.llm gives the model" : NULL;
}

/* Who types a key that changes nothing would draw wrong conclusions from the run. */
static void name_unused(const Recipe *r)
{
    for (int i = 0; i < schema_rows(r); i++) {
        const char *key = schema_row(r, i)->name;
        const char *why = r->origin[i] == ORIGIN_COMMAND_LINE ? why_unused(r, key) : NULL;
        if (why) log_warn("%s has no effect: %s", key, why);
    }
}

void relate_notes(const Recipe *given, const Recipe *r)
{
    const RecipeData *d = &given->data;
    if (d->val[0] && !r->data.val[0])
        log_info(
            "data.val: %s belongs to the data of %s, not to %s: left out (data.val=FILE names other data)",
            d->val, r->file, d->train);
    relate_note_stages(r);
    if (given->data.kind == DATA_RANDOM && r->data.kind != DATA_RANDOM)
        log_info("data.kind: %s, not random: it follows from the data that are named",
                 r->data.kind == DATA_TOKENS ? "tokens" : "text");
    if (r->optim.warmup != given->optim.warmup)
        log_info("optim.warmup: cut from %lld to %lld, a tenth of the %lld step%s", LL(given->optim.warmup),
                 LL(r->optim.warmup), LL(r->steps), str_plural(r->steps));
    if (r->optim.warmup == r->steps && r->steps > 1)
        log_warn("optim.warmup: all %lld steps are warm-up: optim.lr is reached only in the last one",
                 LL(r->steps));
    name_unused(r);
}

int relate_resolve(Recipe *r, const char *folder, int need_data)
{
    r->step_key = "step_samples";
    drop_val(r);
    TRY(resolve_task(r, folder, need_data));
    TRY(check_micro_batch(r));
    cut_warmup(r);
    TRY(check_optim(r));
    TRY(check_eval(r));
    TRY(check_names(r));
    TRY(check_require(r));
    return check_watch(r);
}
