/* What the environment of a recipe is. One environment is opened, asked and closed again. */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "base/str.h"
#include "env/builtin.h"

EnvsConf ppo_envs_conf(const Recipe *r, Arena *a)
{
    const RecipePpo *p      = &r->ppo;
    const char     **option = ARENA_ARRAY(a, const char *, PPO_MAX_OPTION);
    const char      *list   = p->options;
    char             item[RECIPE_STR];
    int              n = 0;
    while (n < PPO_MAX_OPTION && str_list_next(&list, item, sizeof item) > 0)
        option[n++] = arena_strdup(a, item);
    return (EnvsConf){ .name      = arena_strdup(a, p->env),
                       .option    = option,
                       .n_option  = n,
                       .n_env     = 1,
                       .n_worker  = (int)p->workers,
                       .seed      = (uint64_t)r->seed,
                       .max_steps = p->max_steps,
                       .isolate   = p->isolate == ISOLATE_PROCESS,
                       .timeout_s = p->timeout_s };
}

_Static_assert((int)RECIPE_ENV_OBS == (int)ENV_MAX_OBS && (int)RECIPE_ENV_ACT == (int)ENV_MAX_ACT,
               "room for what env/env.h allows");

static void read_actions(const EnvInfo *n, RecipeEnv *s)
{
    s->is_discrete = n->act_kind == ENV_DISCRETE;
    s->n_act       = n->n_act;
    for (int h = 0; h < n->n_act; h++) {
        s->seg[h] = (int32_t)s->n_out;
        s->n_out += s->is_discrete ? n->act_choices[h] : 1;
        if (s->is_discrete || !n->act_low || !n->act_high) continue;
        s->low[h]  = n->act_low[h];
        s->high[h] = n->act_high[h];
    }
    s->seg[n->n_act] = (int32_t)s->n_out;
}

static void read_blocks(const EnvSpec *spec, RecipeEnv *s)
{
    s->obs_dim  = spec->obs_elem;
    s->n_block  = spec->info.n_obs;
    s->is_plain = s->n_block == 1 && spec->block[0].type == ENV_F32;
    for (int k = 0; k < s->n_block; k++) {
        str_copy(s->block[k].name, sizeof s->block[k].name, spec->block[k].name); /* may be cut short */
        s->block[k].n_elem = spec->block_elem[k];
        s->block[k].scale  = spec->block[k].scale;
        s->block[k].bias   = spec->block[k].bias;
        s->is_plain &= spec->block[k].scale == 1 && spec->block[k].bias == 0;
    }
}

static int read_open(const Recipe *r, Envs *e, RecipeEnv *s)
{
    const EnvSpec *spec = envs_spec(e);
    const EnvInfo *n    = &spec->info;
    read_blocks(spec, s);
    read_actions(n, s);
    s->n_agent       = n->n_agent;
    s->n_mask        = spec->n_mask;
    s->limit         = envs_max_steps(e);
    s->is_cheap      = builtin_find(r->ppo.env) != NULL && r->ppo.isolate == ISOLATE_NONE;
    s->solved_at     = n->solved_at;
    s->has_solved_at = n->has_solved_at;
    if (envs_can_save(e)) {
        s->state_bytes = envs_state_bytes(e);
        if (s->state_bytes < 0) return -1;
    }
    s->is_known = 1;
    return 0;
}

int ppo_know_env(Recipe *r)
{
    Arena a;
    Envs *e = NULL;
    if (r->ppo.seen.is_known) return 0;
    arena_init(&a);
    EnvsConf conf = ppo_envs_conf(r, &a);
    conf.n_worker = 1;
    conf.n_thread = 1;
    int rc        = envs_open(&e, &conf);
    if (rc == 0) rc = read_open(r, e, &r->ppo.seen);
    if (rc < 0) recipe_blame_pending(r, "env");
    envs_close(e);
    arena_deinit(&a);
    return rc < 0 ? rc : recipe_count_agents(r);
}

static void pack_block(const EnvBlock *b, const void *row, int64_t n, float *out)
{
    switch (b->type) {
    case ENV_F32:
        for (int64_t i = 0; i < n; i++) out[i] = ((const float *)row)[i] * b->scale + b->bias;
        break;
    case ENV_U8:
        for (int64_t i = 0; i < n; i++) out[i] = (float)((const uint8_t *)row)[i] * b->scale + b->bias;
        break;
    case ENV_I8:
        for (int64_t i = 0; i < n; i++) out[i] = (float)((const int8_t *)row)[i] * b->scale + b->bias;
        break;
    case ENV_I32:
        for (int64_t i = 0; i < n; i++) out[i] = (float)((const int32_t *)row)[i] * b->scale + b->bias;
        break;
    }
}

void ppo_pack(const EnvSpec *spec, void *const *raw, int64_t lo, int64_t hi, float *out)
{
    for (int64_t i = lo; i < hi; i++) {
        for (int k = 0; k < spec->info.n_obs; k++) {
            pack_block(&spec->block[k], (const char *)raw[k] + i * spec->block_bytes[k], spec->block_elem[k],
                       out);
            out += spec->block_elem[k];
        }
    }
}
