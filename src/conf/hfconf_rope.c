/* The definition is what transformers 5 computes. Of one value it may have several sources:
 *
 * 1. A rope_scaling that has keys counts alone, else rope_parameters.
 * 2. original_max_position_embeddings of the whole config goes before that of the map; Phi-3 has 4096 where
 *    neither is given, others have max_position_embeddings.
 * 3. A factor that is given counts. Without one it is max_position_embeddings / the original ones. */
#include "conf/hfconf_rope.h"

#include "base/err.h"
#include "base/str.h"
#include "conf/hfconf_part.h"

#include <math.h>
#include <string.h>

enum {
    LINEAR = 1 << ROPE_LINEAR,
    LLAMA3 = 1 << ROPE_LLAMA3,
    YARN   = 1 << ROPE_YARN,
    LONG   = 1 << ROPE_LONG,
    ANY    = LINEAR | LLAMA3 | YARN | LONG | 1 << ROPE_NONE
};

static const char *const type_names[] = { "default", "linear", "llama3", "yarn", "longrope" };

/* The numbers of a map; 0: not given. */
typedef struct {
    double        theta, factor, low, high, original, attention, fast, slow, mscale, mscale_all;
    int           truncate;
    const json_t *list[2]; /* short, long */
} RopeMap;

typedef enum {
    MAP_NUMBER,
    MAP_NULL,  /* null: none */
    MAP_MAYBE, /* null and 0: none */
    MAP_SWITCH,
    MAP_ONE,
    MAP_NOTHING
} RopeKind;

/* clang-format off */
static const struct {
    const char *key;
    unsigned    types; /* with others the key is refused */
    RopeKind    kind;
    size_t      offset; /* in RopeMap */
} map_keys[] = {
    { "rope_type",                        ANY,         MAP_NOTHING, 0 },
    { "type",                             ANY,         MAP_NOTHING, 0 },
    { "short_factor",                     LONG,        MAP_NOTHING, 0 }, /* read by itself, as the next */
    { "long_factor",                      LONG,        MAP_NOTHING, 0 },
    { "finetuned",                        YARN,        MAP_NOTHING, 0 }, /* how the file was made */
    { "partial_rotary_factor",            ANY,         MAP_ONE,     0 },
    { "rope_theta",                       ANY,         MAP_NUMBER,  offsetof(RopeMap, theta) },
    { "factor",                           YARN | LONG, MAP_NULL,    offsetof(RopeMap, factor) },
    { "factor",                           ANY,         MAP_NUMBER,  offsetof(RopeMap, factor) },
    { "low_freq_factor",                  ANY,         MAP_NUMBER,  offsetof(RopeMap, low) },
    { "high_freq_factor",                 ANY,         MAP_NUMBER,  offsetof(RopeMap, high) },
    { "original_max_position_embeddings", ANY,         MAP_NUMBER,  offsetof(RopeMap, original) },
    { "attention_factor",                 YARN | LONG, MAP_NULL,    offsetof(RopeMap, attention) },
    { "beta_fast",                        YARN,        MAP_MAYBE,   offsetof(RopeMap, fast) },
    { "beta_slow",                        YARN,        MAP_MAYBE,   offsetof(RopeMap, slow) },
    { "mscale",                           YARN,        MAP_MAYBE,   offsetof(RopeMap, mscale) },
    { "mscale_all_dim",                   YARN,        MAP_MAYBE,   offsetof(RopeMap, mscale_all) },
    { "truncate",                         YARN,        MAP_SWITCH,  offsetof(RopeMap, truncate) },
};
/* clang-format on */

/* ---- Reading ------------------------------------------------------------------------------------------- */

static int read_type(HfConfig *c, const char *name, const json_t *map)
{
    const json_t *value = json_object_get(map, "rope_type");
    if (!value) value = json_object_get(map, "type");
    c->model.rope_scaling = ROPE_NONE;
    if (!value) return 0;
    const char *text = json_is_string(value) ? json_string_value(value) : "";
    if (c->family == HF_PHI3) { /* which once called its one way of stretching so */
        if (strcmp(text, "su") == 0 || strcmp(text, "yarn") == 0) text = "longrope";
        if (strcmp(text, "default") != 0 && strcmp(text, "longrope") != 0)
            return hfconf_refuse(name, "rope_scaling.rope_type", value, "a phi3 has default and longrope");
    }
    for (int i = 0; i < ARRAY_LEN(type_names); i++) {
        if (strcmp(text, type_names[i]) != 0) continue;
        c->model.rope_scaling = (RopeScaling)i;
        return 0;
    }
    return hfconf_refuse(name, "rope_scaling.rope_type", value,
                         "Brim computes default, linear, llama3, yarn and longrope");
}

static int read_number(const char *name, const char *key, const json_t *value, RopeKind kind, double *out)
{
    double x = json_number_value(value);
    if (json_is_null(value) && (kind == MAP_NULL || kind == MAP_MAYBE)) return 0;
    if (json_is_number(value) && x == 0 && kind == MAP_MAYBE) return 0;
    if (!json_is_number(value) || !(x > 0) || x > 1e12)
        return hfconf_refuse(name, key, value, "Brim needs a positive number here");
    *out = x;
    return 0;
}

static int read_key(RopeMap *m, const char *name, int i, const json_t *value)
{
    const char *key   = map_keys[i].key;
    char       *field = (char *)m + map_keys[i].offset;
    switch (map_keys[i].kind) {
    case MAP_NUMBER:
    case MAP_NULL:
    case MAP_MAYBE: return read_number(name, key, value, map_keys[i].kind, (double *)field);
    case MAP_SWITCH:
        if (!json_is_boolean(value)) return hfconf_refuse(name, key, value, "Brim needs true or false here");
        *(int *)field = json_is_true(value);
        return 0;
    case MAP_ONE:
        return json_number_value(value) == 1 ? 0 : hfconf_refuse(name, key, value, "Brim computes only 1");
    default: return 0;
    }
}

static int read_map(RopeMap *m, RopeScaling type, const char *name, const json_t *map)
{
    const char *key;
    json_t     *value;
    *m = (RopeMap){ .truncate = 1 };
    json_object_foreach((json_t *)map, key, value)
    {
        int i = 0, known = 0;
        for (; i < ARRAY_LEN(map_keys); i++) {
            if (strcmp(key, map_keys[i].key) != 0) continue;
            known = 1;
            if (map_keys[i].types & (1u << type)) break;
        }
        if (known && i == ARRAY_LEN(map_keys))
            return hfconf_refuse(name, key, value, "this rope_type has no such key");
        if (!known) return hfconf_refuse(name, key, value, "rope_scaling has no such key that Brim computes");
        TRY(read_key(m, name, i, value));
    }
    m->list[0] = json_object_get(map, "short_factor");
    m->list[1] = json_object_get(map, "long_factor");
    return 0;
}

/* One number for each pair, as a comma list into out[RECIPE_STR]. */
static int read_list(const HfConfig *c, const char *name, const char *key, const json_t *list, char *out)
{
    int64_t head = c->model.head_dim > 0 ? c->model.head_dim : c->model.width / c->model.heads;
    char    item[32];
    size_t  i;
    json_t *value;
    if (!list) return err_user("%s: %s: missing, and longrope needs it", name, key);
    if (!json_is_array(list)) return hfconf_refuse(name, key, list, "Brim needs a list of numbers here");
    if ((int64_t)json_array_size(list) != head / 2)
        return err_user("%s: %s: has %zu numbers, not one for each of %lld pairs", name, key,
                        json_array_size(list), (long long)head / 2);
    out[0] = '\0';
    json_array_foreach((json_t *)list, i, value)
    {
        double x = 0;
        TRY(read_number(name, key, value, MAP_NUMBER, &x));
        str_double(item, sizeof item, x);
        if ((float)x <= 0 || str_append(out, RECIPE_STR, "%s%s", i ? "," : "", item) < 0)
            return hfconf_refuse(name, key, value, "Brim has no room for such numbers");
    }
    return 0;
}

/* The context before the stretch, into *out. */
static int find_original(const HfConfig *c, const RopeMap *m, const char *name, const json_t *root,
                         double *out)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t     *own   = json_object_get(root, key);
    double            whole = c->family == HF_PHI3 ? 4096 : m->original;
    if (own) TRY(read_number(name, key, own, MAP_NUMBER, &whole));
    if (own && m->original > 0 && whole != m->original && c->family != HF_PHI3)
        return hfconf_refuse(name, key, own, "rope_scaling has another one");
    *out = whole > 0 ? whole : (double)c->model.context;
    if (*out != (double)(int64_t)*out) return err_user("%s: %s: %g is not whole", name, key, *out);
    return 0;
}

/* As transformers computes it, for one of its two scales. */
static double yarn_growth(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static int use_map(HfConfig *c, const RopeMap *m, const char *name, const json_t *root)
{
    RecipeModel *to       = &c->model;
    double       original = m->original;
    int          is_yarn = to->rope_scaling == ROPE_YARN, is_long = to->rope_scaling == ROPE_LONG;
    if (is_yarn || is_long || to->rope_scaling == ROPE_LLAMA3)
        TRY(find_original(c, m, name, root, &original));
    if (original > 0) to->rope_original = (int64_t)original;
    if (m->theta > 0) to->rope_theta = m->theta;
    if (m->low > 0) to->rope_low = m->low;
    if (m->high > 0) to->rope_high = m->high;
    if (m->fast > 0) to->rope_fast = m->fast;
    if (m->slow > 0) to->rope_slow = m->slow;
    to->rope_truncate  = m->truncate;
    to->rope_attention = m->attention;
    if (m->factor > 0) to->rope_factor = m->factor;
    if ((is_yarn || is_long) && m->factor <= 0) to->rope_factor = (double)to->context / original;
    if (is_yarn && m->attention <= 0 && m->mscale > 0 && m->mscale_all > 0)
        to->rope_attention =
            yarn_growth(to->rope_factor, m->mscale) / yarn_growth(to->rope_factor, m->mscale_all);
    if (to->rope_scaling == ROPE_LLAMA3 && !(to->rope_high > to->rope_low))
        return err_user("%s: high_freq_factor: must be above low_freq_factor", name);
    if (is_yarn && to->rope_fast < to->rope_slow)
        return err_user("%s: beta_fast: must not be below beta_slow", name);
    if (is_yarn && !(to->rope_theta > 1)) return err_user("%s: rope_theta: must be above 1 for yarn", name);
    if (!is_long) return 0;
    if (!(original > 1)) return err_user("%s: original_max_position_embeddings: must be above 1", name);
    TRY(read_list(c, name, "short_factor", m->list[0], to->rope_short));
    return read_list(c, name, "long_factor", m->list[1], to->rope_long);
}

int hfconf_rope_read(HfConfig *c, const char *name, const json_t *root)
{
    static const char *const sources[] = { "rope_scaling", "rope_parameters" };
    RopeMap                  m;
    for (int i = 0; i < ARRAY_LEN(sources); i++) {
        const json_t *map = json_object_get(root, sources[i]);
        if (!map || json_is_null(map)) continue;
        if (!json_is_object(map)) return hfconf_refuse(name, sources[i], map, "Brim needs a map here");
        if (json_object_size(map) == 0) continue;
        TRY(read_type(c, name, map));
        TRY(read_map(&m, c->model.rope_scaling, name, map));
        return use_map(c, &m, name, root);
    }
    return 0;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

int64_t hfconf_rope_positions(const RecipeModel *m)
{
    enum { MOST_POSITIONS = 1048576 /* as model.context */ };
    double all = m->rope_factor * (double)m->rope_original;
    if (m->rope_scaling != ROPE_YARN && m->rope_scaling != ROPE_LONG) return m->context;
    if (all < (double)m->context || all > MOST_POSITIONS || all != floor(all)) return m->context;
    return (int64_t)all;
}

static void write_yarn(JsonOut *o, const RecipeModel *m)
{
    json_out_num(o, "beta_fast", m->rope_fast);
    json_out_num(o, "beta_slow", m->rope_slow);
    if (!m->rope_truncate) json_out_bool(o, "truncate", 0);
}

void hfconf_rope_write(JsonOut *o, const HfConfig *c)
{
    static const char  original[] = "original_max_position_embeddings";
    const RecipeModel *m          = &c->model;
    int                is_long    = m->rope_scaling == ROPE_LONG;
    json_out_num(o, "rope_theta", m->rope_theta);
    if (is_long) json_out_int(o, original, m->rope_original); /* where Phi-3 has it */
    if (m->rope_scaling == ROPE_NONE) return;
    json_out_object(o, "rope_scaling");
    json_out_str(o, "rope_type", type_names[m->rope_scaling]);
    json_out_num(o, "factor", m->rope_factor);
    if (m->rope_scaling == ROPE_LLAMA3) {
        json_out_num(o, "low_freq_factor", m->rope_low);
        json_out_num(o, "high_freq_factor", m->rope_high);
    }
    if (m->rope_scaling != ROPE_LINEAR) json_out_int(o, original, m->rope_original);
    if (m->rope_scaling == ROPE_YARN) write_yarn(o, m);
    if (m->rope_attention > 0) json_out_num(o, "attention_factor", m->rope_attention);
    if (is_long) {
        hfconf_write_list(o, "short_factor", m->rope_short);
        hfconf_write_list(o, "long_factor", m->rope_long[0] ? m->rope_long : m->rope_short);
    }
    json_out_close(o);
}
