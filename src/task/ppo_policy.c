/* The policy net of a recipe: actor and critic, apart or with a shared body. */
#include "task/ppo_impl.h"

#include "prog/record.h"

static Mlp body(const Job *j, const char *name, int64_t width)
{
    static const Act acts[] = {
        [POLICY_TANH] = ACT_TANH, [POLICY_RELU] = ACT_RELU, [POLICY_SILU] = ACT_SILU, [POLICY_GELU] = ACT_GELU
    };
    const RecipePolicy *r = &j->recipe.policy;
    return (Mlp){ .name   = name,
                  .in     = ppo_of(j)->spec.obs_dim,
                  .width  = width,
                  .layers = (int)r->layers,
                  .act    = acts[r->act] };
}

static Mlp actor_of(const Job *j)
{
    return body(j, j->recipe.policy.shared ? "body" : "actor", j->recipe.policy.width);
}

static Mlp critic_of(const Job *j)
{
    const RecipePolicy *r = &j->recipe.policy;
    return body(j, "critic", r->critic_width ? r->critic_width : r->width);
}

/* The first action is nearly even: a head of small weights. */
void ppo_policy_declare(Job *j)
{
    const RecipePolicy *r = &j->recipe.policy;
    Ppo                *p = ppo_of(j);
    ParamTable         *t = &p->table;
    Mlp                 a = actor_of(j), c = critic_of(j);
    ParamOptions        o = job_param_options(j);
    param_table_init(t, "", 0);
    mlp_declare(t, &a);
    if (!r->shared) mlp_declare(t, &c);
    mlp_declare_head(t, &(MlpHead){ "policy", a.width, p->spec.n_out, 0.01f, 0 });
    if (!p->spec.is_discrete && r->state_std)
        mlp_declare_head(t, &(MlpHead){ "std", a.width, p->spec.n_out, 0.01f, (float)r->log_std });
    if (!p->spec.is_discrete && !r->state_std) {
        Param std = { .name   = "log_std",
                      .ndim   = 1,
                      .rows   = 1,
                      .cols   = p->spec.n_out,
                      .init   = INIT_CONSTANT,
                      .std    = (float)r->log_std,
                      .region = REGION_MASTER };
        param_declare(t, &std);
    }
    mlp_declare_head(t, &(MlpHead){ "value", r->shared ? a.width : c.width, 1, 1.0f, 0 });
    param_layout(t, &j->store, &o);
    job_add_table(j, t);
}

static Tensor *narrow(Job *j, Prog *p, Tensor *obs)
{
    if (j->choice.compute == obs->dtype) return obs;
    Tensor *x = prog_tensor(p, "obs", j->choice.compute, obs->ndim, obs->dim);
    prog_at(p, -1, -1, "obs narrow");
    rec_cast(p, (Cast){ .y = x, .x = obs });
    return x;
}

PpoOut ppo_policy_record(Job *j, Prog *p, Tensor *obs, unsigned parts)
{
    Ppo              *o = ppo_of(j);
    const ParamTable *t = &o->table;
    Mlp               a = actor_of(j), c = critic_of(j);
    int               shared = j->recipe.policy.shared;
    PpoOut            out    = { 0 };
    Tensor           *x = narrow(j, p, obs), *h = NULL;
    if (shared || (parts & PPO_ACTOR)) h = mlp_record_wide(p, mlp_record(t, p, &a, x));
    if (parts & PPO_ACTOR) {
        out.logits = mlp_record_head(t, p, "policy", h);
        if (!o->spec.is_discrete)
            out.log_std =
                j->recipe.policy.state_std ? mlp_record_head(t, p, "std", h) : param_find(t, "log_std")->w;
    }
    if ((parts & PPO_CRITIC) && !shared) h = mlp_record_wide(p, mlp_record(t, p, &c, x));
    if (parts & PPO_CRITIC) out.value = mlp_record_head(t, p, "value", h);
    return out;
}
