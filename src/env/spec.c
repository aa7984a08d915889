#include "env/spec.h"

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    size_t      bytes;
} type_table[] = {
    [ENV_F32] = { "f32", 4 }, [ENV_U8] = { "u8", 1 }, [ENV_I8] = { "i8", 1 }, [ENV_I32] = { "i32", 4 }
};

static const char *type_name(EnvType type)
{
    return (int)type >= 0 && (int)type < ARRAY_LEN(type_table) ? type_table[type].name : "?";
}

static int take_block(EnvSpec *s, Arena *a, int i, const EnvBlock *from, const char *who)
{
    EnvBlock *b = &s->block[i];
    *b          = *from;
    if (!b->name || !b->name[0] || !str_is_printable(b->name))
        return err_user("%s: observation block %d has no printable name", who, i);
    b->name = arena_strdup(a, b->name);
    for (int k = 0; k < i; k++) {
        if (strcmp(s->block[k].name, b->name) == 0)
            return err_user("%s: two observation blocks are named %s", who, b->name);
    }
    if ((int)b->type < 0 || (int)b->type >= ARRAY_LEN(type_table))
        return err_user("%s: block %s: there is no type %d", who, b->name, (int)b->type);
    if (b->n_dim < 1 || b->n_dim > ENV_MAX_DIM)
        return err_user("%s: block %s: %d dimensions, but 1 to %d are possible", who, b->name, b->n_dim,
                        ENV_MAX_DIM);
    int64_t elem = 1;
    for (int d = 0; d < b->n_dim; d++) {
        if (b->shape[d] < 1 || b->shape[d] > SPEC_MAX_ELEM || elem > SPEC_MAX_ELEM / b->shape[d])
            return err_user("%s: block %s: dimension %d is %lld", who, b->name, d, (long long)b->shape[d]);
        elem *= b->shape[d];
    }
    if (isnan(b->low) || isnan(b->high) || b->low > b->high)
        return err_user("%s: block %s: bounds %g to %g", who, b->name, (double)b->low, (double)b->high);
    if (!isfinite(b->scale) || !isfinite(b->bias))
        return err_user("%s: block %s: scale %g, bias %g", who, b->name, (double)b->scale, (double)b->bias);
    if (b->scale == 0) b->scale = 1;
    s->block_elem[i]  = elem;
    s->block_bytes[i] = elem * (int64_t)type_table[b->type].bytes;
    s->obs_elem += elem;
    return 0;
}

static int take_choices(EnvSpec *s, Arena *a, const char *who)
{
    EnvInfo *n     = &s->info;
    int64_t  total = 0;
    if (!n->act_choices) return err_user("%s: discrete actions without act_choices", who);
    int32_t *c = ARENA_ARRAY(a, int32_t, n->n_act);
    for (int i = 0; i < n->n_act; i++) {
        c[i] = n->act_choices[i];
        if (c[i] < 1 || (total += c[i]) > ENV_MAX_CHOICE)
            return err_user("%s: action %d has %d choices", who, i, (int)c[i]);
    }
    n->act_choices = c;
    n->act_low = n->act_high = NULL;
    if (n->has_mask) s->n_mask = (int32_t)total;
    return 0;
}

static int take_range(EnvSpec *s, Arena *a, const char *who)
{
    EnvInfo *n = &s->info;
    if (!n->act_low || !n->act_high)
        return err_user("%s: continuous actions without act_low and act_high", who);
    if (n->has_mask) return err_user("%s: continuous actions have no mask", who);
    float *low = ARENA_ARRAY(a, float, n->n_act), *high = ARENA_ARRAY(a, float, n->n_act);
    for (int i = 0; i < n->n_act; i++) {
        low[i]  = n->act_low[i];
        high[i] = n->act_high[i];
        if (!isfinite(low[i]) || !isfinite(high[i]) || low[i] >= high[i])
            return err_user("%s: action %d ranges from %g to %g", who, i, (double)low[i], (double)high[i]);
    }
    n->act_low     = low;
    n->act_high    = high;
    n->act_choices = NULL;
    return 0;
}

int spec_take(EnvSpec *s, Arena *a, const EnvInfo *info, const char *who)
{
    *s         = (EnvSpec){ 0 };
    EnvInfo *n = &s->info;
    if (!info) return err_user("%s: info() gives nothing", who);
    if (info->abi != ENV_ABI) return err_user("%s: speaks interface %u, not %u", who, info->abi, ENV_ABI);
    /* An object that was compiled with a shorter struct leaves the rest zero. */
    memcpy(n, info, MIN((size_t)info->size_bytes, sizeof *n));
    n->size_bytes = sizeof *n;
    n->name       = arena_strdup(a, n->name && str_is_printable(n->name) ? n->name : who);
    n->about      = arena_strdup(a, n->about && str_is_printable(n->about) ? n->about : "");
    if (n->n_agent == 0) n->n_agent = 1;
    if (n->fps <= 0) n->fps = 30;
    if (n->n_obs < 1 || n->n_obs > ENV_MAX_OBS || !n->obs)
        return err_user("%s: %d observation blocks, but 1 to %d are possible", who, n->n_obs, ENV_MAX_OBS);
    if (n->n_act < 1 || n->n_act > ENV_MAX_ACT)
        return err_user("%s: %d actions, but 1 to %d are possible", who, n->n_act, ENV_MAX_ACT);
    if (n->n_agent < 1 || n->n_agent > ENV_MAX_AGENT)
        return err_user("%s: %d agents, but 1 to %d are possible", who, n->n_agent, ENV_MAX_AGENT);
    if (n->max_steps < 0) return err_user("%s: max_steps is %lld", who, (long long)n->max_steps);
    for (int i = 0; i < n->n_obs; i++) TRY(take_block(s, a, i, &n->obs[i], who));
    n->obs = s->block;
    if (n->act_kind == ENV_DISCRETE) return take_choices(s, a, who);
    if (n->act_kind == ENV_CONTINUOUS) return take_range(s, a, who);
    return err_user("%s: there is no kind of action %d", who, (int)n->act_kind);
}

static int same_block(const EnvBlock *p, const EnvBlock *q)
{
    if (p->type != q->type || p->n_dim != q->n_dim) return 0;
    for (int d = 0; d < p->n_dim; d++)
        if (p->shape[d] != q->shape[d]) return 0;
    return 1;
}

int spec_same(const EnvSpec *a, const EnvSpec *b)
{
    const EnvInfo *x = &a->info, *y = &b->info;
    if (x->n_obs != y->n_obs || x->act_kind != y->act_kind || x->n_act != y->n_act ||
        x->n_agent != y->n_agent || a->n_mask != b->n_mask)
        return 0;
    for (int i = 0; i < x->n_obs; i++) {
        const EnvBlock *p = &a->block[i], *q = &b->block[i];
        if (strcmp(p->name, q->name) != 0 || !same_block(p, q)) return 0;
    }
    for (int i = 0; i < x->n_act; i++) {
        if (x->act_choices && x->act_choices[i] != y->act_choices[i]) return 0;
        if (x->act_low && (x->act_low[i] != y->act_low[i] || x->act_high[i] != y->act_high[i])) return 0;
    }
    return 1;
}

/* Appends "f32[3,10]". */
static void say_shape(char *buf, size_t n, const EnvBlock *b)
{
    str_append(buf, n, "%s[", type_name(b->type));
    for (int d = 0; d < b->n_dim && d < ENV_MAX_DIM; d++)
        str_append(buf, n, "%s%lld", d ? "," : "", (long long)b->shape[d]);
    str_append(buf, n, "]");
}

int spec_keeps(const EnvSpec *s, const EnvInfo *now)
{
    const EnvInfo *n      = &s->info;
    int            agents = now && now->n_agent > 0 ? now->n_agent : 1;
    char           was[80], is[80];
    if (!now || !now->obs || now->n_obs != n->n_obs)
        return err_set("there were %d observation blocks, now there are %d", n->n_obs, now ? now->n_obs : 0);
    for (int i = 0; i < n->n_obs; i++) {
        if (same_block(&s->block[i], &now->obs[i])) continue;
        was[0] = is[0] = '\0';
        say_shape(was, sizeof was, &s->block[i]);
        say_shape(is, sizeof is, &now->obs[i]);
        return err_set("observation block %s was %s and now is %s", s->block[i].name, was, is);
    }
    if (now->act_kind != n->act_kind || now->n_act != n->n_act)
        return err_set("there were %d actions, now there are %d, or of another kind", n->n_act, now->n_act);
    for (int i = 0; n->act_choices && i < n->n_act; i++)
        if (!now->act_choices || now->act_choices[i] != n->act_choices[i])
            return err_set("action %d had %d choices and now has %d", i, (int)n->act_choices[i],
                           now->act_choices ? (int)now->act_choices[i] : 0);
    if (agents != n->n_agent) return err_set("there were %d agents, now there are %d", n->n_agent, agents);
    return 0;
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

int spec_write(const EnvSpec *s, char *buf, size_t cap)
{
    const EnvInfo *n = &s->info;
    JsonOut        o;
    json_out_init_buf(&o, buf, cap);
    json_out_object(&o, NULL);
    json_out_str(&o, "name", n->name);
    json_out_str(&o, "about", n->about);
    json_out_array(&o, "obs");
    for (int i = 0; i < n->n_obs; i++) {
        const EnvBlock *b = &s->block[i];
        json_out_object(&o, NULL);
        json_out_str(&o, "name", b->name);
        json_out_str(&o, "type", type_name(b->type));
        json_out_array(&o, "shape");
        for (int d = 0; d < b->n_dim; d++) json_out_int(&o, NULL, b->shape[d]);
        json_out_close(&o);
        json_out_num(&o, "low", b->low); /* an infinite one becomes null */
        json_out_num(&o, "high", b->high);
        json_out_num(&o, "scale", b->scale);
        json_out_num(&o, "bias", b->bias);
        json_out_close(&o);
    }
    json_out_close(&o);
    json_out_array(&o, n->act_kind == ENV_DISCRETE ? "choices" : "low");
    for (int i = 0; i < n->n_act; i++) {
        if (n->act_kind == ENV_DISCRETE)
            json_out_int(&o, NULL, n->act_choices[i]);
        else
            json_out_num(&o, NULL, n->act_low[i]);
    }
    json_out_close(&o);
    if (n->act_kind == ENV_CONTINUOUS) {
        json_out_array(&o, "high");
        for (int i = 0; i < n->n_act; i++) json_out_num(&o, NULL, n->act_high[i]);
        json_out_close(&o);
    }
    json_out_int(&o, "agents", n->n_agent);
    json_out_bool(&o, "mask", n->has_mask);
    json_out_int(&o, "max_steps", n->max_steps);
    if (n->has_solved_at) json_out_num(&o, "solved_at", n->solved_at);
    json_out_int(&o, "fps", n->fps);
    TRY(json_out_end(&o));
    return (int)o.len;
}

static double number(const json_t *o, const char *key, double missing)
{
    const json_t *x = json_object_get(o, key);
    return json_is_number(x) ? json_number_value(x) : missing;
}

static int small_int(const json_t *o, const char *key, int missing)
{
    double x = number(o, key, missing);
    return x >= -1e9 && x <= 1e9 ? (int)x : -1;
}

static int parse_block(EnvBlock *b, const json_t *o)
{
    const json_t *shape = json_object_get(o, "shape");
    const char   *type  = json_string_value(json_object_get(o, "type"));
    *b =
        (EnvBlock){ .name = json_string_value(json_object_get(o, "name")), .n_dim = -1, .type = (EnvType)-1 };
    for (int i = 0; type && i < ARRAY_LEN(type_table); i++)
        if (strcmp(type, type_table[i].name) == 0) b->type = (EnvType)i;
    if (json_array_size(shape) <= ENV_MAX_DIM) b->n_dim = (int)json_array_size(shape);
    for (int d = 0; d < b->n_dim; d++) b->shape[d] = json_integer_value(json_array_get(shape, (size_t)d));
    b->low   = (float)number(o, "low", -INFINITY);
    b->high  = (float)number(o, "high", INFINITY);
    b->scale = (float)number(o, "scale", 1);
    b->bias  = (float)number(o, "bias", 0);
    return 0;
}

/* The numbers of an array into out, at most max; how many there are. */
static int parse_numbers(const json_t *o, const char *key, double *out, int max)
{
    const json_t *x = json_object_get(o, key);
    size_t        n = json_array_size(x);
    if (n > (size_t)max) return -1;
    for (size_t i = 0; i < n; i++) out[i] = json_number_value(json_array_get(x, i));
    return (int)n;
}

static int parse_actions(EnvInfo *n, Arena *a, const json_t *o)
{
    double   x[ENV_MAX_ACT];
    int      n_choice = parse_numbers(o, "choices", x, ENV_MAX_ACT);
    float   *low = ARENA_ARRAY(a, float, ENV_MAX_ACT), *high = ARENA_ARRAY(a, float, ENV_MAX_ACT);
    int32_t *choices = ARENA_ARRAY(a, int32_t, ENV_MAX_ACT);
    n->act_choices   = choices;
    n->act_low       = low;
    n->act_high      = high;
    if (n_choice != 0) {
        for (int i = 0; i < n_choice; i++)
            choices[i] = x[i] >= 1 && x[i] <= ENV_MAX_CHOICE ? (int32_t)x[i] : -1;
        n->n_act    = n_choice;
        n->act_kind = ENV_DISCRETE;
        return 0;
    }
    n->act_kind = ENV_CONTINUOUS;
    n->n_act    = parse_numbers(o, "low", x, ENV_MAX_ACT);
    for (int i = 0; i < n->n_act; i++) low[i] = (float)x[i];
    if (parse_numbers(o, "high", x, ENV_MAX_ACT) != n->n_act) return -1;
    for (int i = 0; i < n->n_act; i++) high[i] = (float)x[i];
    return 0;
}

int spec_parse(EnvSpec *s, Arena *a, const char *json, size_t n, const char *who)
{
    json_error_t e;
    json_t      *o = json_loadb(json, n, 0, &e);
    if (!json_is_object(o)) {
        json_decref(o);
        return err_set("%s: the worker's description is no JSON object", who);
    }
    EnvBlock      block[ENV_MAX_OBS];
    const json_t *obs  = json_object_get(o, "obs");
    double        most = number(o, "max_steps", 0);
    EnvInfo       info = { .abi        = ENV_ABI,
                           .size_bytes = sizeof info,
                           .obs        = block,
                           .n_obs      = (int)MIN(json_array_size(obs), (size_t)1000),
                           .name       = json_string_value(json_object_get(o, "name")),
                           .about      = json_string_value(json_object_get(o, "about")) };
    for (int i = 0; i < MIN(info.n_obs, ENV_MAX_OBS); i++)
        parse_block(&block[i], json_array_get(obs, (size_t)i));
    info.n_agent       = small_int(o, "agents", 1);
    info.has_mask      = json_is_true(json_object_get(o, "mask"));
    info.max_steps     = most >= 0 && most <= 1e15 ? (int64_t)most : -1;
    info.has_solved_at = json_is_number(json_object_get(o, "solved_at"));
    info.solved_at     = (float)number(o, "solved_at", 0);
    info.fps           = small_int(o, "fps", 30);
    int rc = parse_actions(&info, a, o) < 0 ? err_set("%s: low and high of the actions differ in length", who)
                                            : spec_take(s, a, &info, who);
    json_decref(o);
    return rc;
}

const char *spec_describe(const EnvSpec *s, char *buf, size_t n)
{
    const EnvInfo *i = &s->info;
    buf[0]           = '\0';
    for (int k = 0; k < i->n_obs; k++) {
        str_append(buf, n, "%s%s ", k ? ", " : "", s->block[k].name);
        say_shape(buf, n, &s->block[k]);
    }
    if (i->act_kind == ENV_CONTINUOUS) {
        str_append(buf, n, "; %d continuous action%s", i->n_act, str_plural(i->n_act));
    } else {
        str_append(buf, n, "; choices");
        for (int k = 0; k < i->n_act && k < 8; k++)
            str_append(buf, n, "%s%d", k ? "x" : " ", (int)i->act_choices[k]);
        if (i->has_mask) str_append(buf, n, ", mask");
    }
    if (i->n_agent > 1) str_append(buf, n, "; %d agents", i->n_agent);
    if (i->max_steps) str_append(buf, n, "; at most %lld steps", (long long)i->max_steps);
    return buf;
}
