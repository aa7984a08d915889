/* The policy net of a recipe. An mlp has an actor and a critic, apart or with a shared body. A trunk is a
 * transformer over the observations of an episode, with a shared body. */
#include "task/ppo_impl.h"

#include "prog/record.h"

static int is_trunk(const Job *j) { return j->recipe.policy.kind == POLICY_TRUNK; }
static int is_shared(const Job *j) { return is_trunk(j) || j->recipe.policy.shared; }

Mlp ppo_policy_actor(const RecipePolicy *r, const RecipeEnv *s)
{
    static const Act acts[] = {
        [POLICY_TANH] = ACT_TANH, [POLICY_RELU] = ACT_RELU, [POLICY_SILU] = ACT_SILU, [POLICY_GELU] = ACT_GELU
    };
    return (Mlp){ .name   = r->shared ? "body" : "actor",
                  .in     = s->obs_dim,
                  .width  = r->width,
                  .layers = (int)r->layers,
                  .act    = acts[r->act] };
}

Mlp ppo_policy_critic(const RecipePolicy *r, const RecipeEnv *s)
{
    Mlp m = ppo_policy_actor(r, s);
    if (r->shared) return m;
    m.name = "critic";
    if (r->critic_width) m.width = r->critic_width;
    return m;
}

static Mlp actor_of(const Job *j) { return ppo_policy_actor(&j->recipe.policy, &ppo_of(j)->spec); }
static Mlp critic_of(const Job *j) { return ppo_policy_critic(&j->recipe.policy, &ppo_of(j)->spec); }

/* ---- declaring ---------------------------------------------------------------------------------------- */

/* One row more than the context: the value of what follows a full one is asked for, too. */
static RecipeModel model_of(const Job *j)
{
    const RecipePolicy *r = &j->recipe.policy;
    return (RecipeModel){ .layers     = r->layers,
                          .width      = r->width,
                          .heads      = r->heads,
                          .kv_heads   = r->heads,
                          .head_dim   = r->width / r->heads,
                          .ffn        = r->ffn ? r->ffn : 4 * r->width,
                          .vocab      = 1,
                          .context    = r->context > 1 ? r->context + 1 : 1,
                          .norm       = NORM_LAYER,
                          .norm_eps   = 1e-5,
                          .pos        = r->context > 1 ? POS_ROPE : POS_LEARNED,
                          .rope_theta = 10000,
                          .act        = FFN_GELU,
                          .mask       = r->context > 1 ? MASKING_DOCUMENT : MASKING_CAUSAL,
                          .init_std   = 0.02 };
}

static void declare_trunk(Job *j)
{
    Ppo         *p = ppo_of(j);
    RecipeModel  m = model_of(j);
    ParamOptions o = job_param_options(j);
    net_declare(&p->trunk, &j->store, &m, &o, &(NetPlace){ .prefix = "trunk.", .index = 1, .bare = 1 });
    p->trunk.deterministic = j->recipe.deterministic;
    p->trunk.stored_attn   = !j->recipe.opt.flash;
    j->n_block             = (int)m.layers;
    job_add_table(j, &p->trunk.table);
}

/* The first action is nearly even: a head of small weights. */
static void declare_heads(Job *j, int64_t actor, int64_t critic)
{
    const RecipePolicy *r = &j->recipe.policy;
    Ppo                *p = ppo_of(j);
    ParamTable         *t = &p->table;
    mlp_declare_head(t, &(MlpHead){ "policy", actor, p->spec.n_out, 0.01f, 0 });
    if (!p->spec.is_discrete && r->state_std)
        mlp_declare_head(t, &(MlpHead){ "std", actor, p->spec.n_out, 0.01f, (float)r->log_std });
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
    mlp_declare_head(t, &(MlpHead){ "value", critic, 1, 1.0f, 0 });
}

void ppo_policy_declare(Job *j)
{
    Ppo         *p = ppo_of(j);
    Mlp          a = actor_of(j), c = critic_of(j);
    Mlp          stem = { .name = "embed", .in = a.in, .width = a.width, .layers = 1 };
    ParamOptions o    = job_param_options(j);
    param_table_init(&p->table, "", 0);
    mlp_declare(&p->table, is_trunk(j) ? &stem : &a);
    if (!is_shared(j)) mlp_declare(&p->table, &c);
    declare_heads(j, a.width, is_shared(j) ? a.width : c.width);
    param_layout(&p->table, &j->store, &o);
    job_add_table(j, &p->table);
    if (is_trunk(j)) declare_trunk(j);
}

void ppo_policy_deinit(Ppo *p)
{
    param_table_deinit(&p->table);
    if (p->trunk.table.param) net_deinit(&p->trunk);
}

/* ---- recording ---------------------------------------------------------------------------------------- */

static Tensor *narrow(Job *j, Prog *p, Tensor *obs)
{
    if (j->choice.compute == obs->dtype) return obs;
    Tensor *x = prog_tensor(p, "obs", j->choice.compute, obs->ndim, obs->dim);
    prog_at(p, -1, -1, "obs narrow");
    rec_cast(p, (Cast){ .y = x, .x = obs });
    return x;
}

static Tensor *record_trunk(Job *j, Prog *p, const PpoIn *in, Tensor *x)
{
    Ppo     *o    = ppo_of(j);
    NetBatch b    = { .B = in->B ? in->B : tensor_rows(x), .T = in->T ? in->T : 1, .doc = in->doc };
    NetRun   run  = { .p = p, .batch = &b, .mode = NET_EVAL, .decode = in->decode };
    Mlp      stem = { .name = "embed", .layers = 1 };
    return net_record_trunk(&o->trunk, &run, mlp_record_linear(&o->table, p, &stem, x));
}

PpoOut ppo_policy_record(Job *j, Prog *p, const PpoIn *in, unsigned parts)
{
    Ppo              *o = ppo_of(j);
    const ParamTable *t = &o->table;
    Mlp               a = actor_of(j), c = critic_of(j);
    PpoOut            out = { 0 };
    Tensor           *x = narrow(j, p, in->obs), *h = NULL;
    if (is_trunk(j))
        h = mlp_record_wide(p, record_trunk(j, p, in, x));
    else if (is_shared(j) || (parts & PPO_ACTOR))
        h = mlp_record_wide(p, mlp_record(t, p, &a, x));
    if (parts & PPO_ACTOR) {
        out.logits = mlp_record_head(t, p, "policy", h);
        if (!o->spec.is_discrete)
            out.log_std =
                j->recipe.policy.state_std ? mlp_record_head(t, p, "std", h) : param_find(t, "log_std")->w;
    }
    if ((parts & PPO_CRITIC) && !is_shared(j)) h = mlp_record_wide(p, mlp_record(t, p, &c, x));
    if (parts & PPO_CRITIC) out.value = mlp_record_head(t, p, "value", h);
    return out;
}
