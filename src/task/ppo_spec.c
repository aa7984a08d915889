/* What the environment of a recipe is. One environment is opened, asked and closed again. */
#include "task/ppo_impl.h"

#include "base/str.h"
#include "env/builtin.h"

#include <string.h>

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

static int read_actions(const Recipe *r, const EnvInfo *n, PpoSpec *s)
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
    if (n->n_agent == 1) return 0;
    return recipe_blame(r, "env", "%s has %d agents; one is what a policy is trained for yet", r->ppo.env,
                        n->n_agent);
}

static int read_open(const Recipe *r, Envs *e, PpoSpec *s)
{
    const EnvSpec *spec = envs_spec(e);
    const EnvInfo *n    = &spec->info;
    s->obs_dim          = spec->obs_elem;
    s->is_plain  = n->n_obs == 1 && n->obs[0].type == ENV_F32 && n->obs[0].scale == 1 && n->obs[0].bias == 0;
    s->n_mask    = spec->n_mask;
    s->limit     = envs_max_steps(e);
    s->is_cheap  = builtin_find(r->ppo.env) != NULL && r->ppo.isolate == ISOLATE_NONE;
    s->solved_at = n->solved_at;
    s->has_solved_at = n->has_solved_at;
    if (envs_can_save(e)) {
        int64_t bytes = envs_state_bytes(e);
        if (bytes < 0) return -1;
        s->state_bytes = bytes;
    }
    return read_actions(r, n, s);
}

int ppo_read_spec(const Recipe *r, PpoSpec *s)
{
    Arena a;
    Envs *e = NULL;
    memset(s, 0, sizeof *s);
    arena_init(&a);
    EnvsConf conf = ppo_envs_conf(r, &a);
    conf.n_worker = 1;
    conf.n_thread = 1;
    int rc        = envs_open(&e, &conf);
    if (rc == 0) rc = read_open(r, e, s);
    if (rc < 0) recipe_blame_pending(r, "env");
    envs_close(e);
    arena_deinit(&a);
    return rc;
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
