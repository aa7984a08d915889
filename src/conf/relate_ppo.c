#include "base/str.h"
#include "conf/relate_impl.h"

#include <stdio.h>

/* What keys of other sections are when a recipe of this task does not say. CleanRL's values. */
static void prefer_ppo(Recipe *r)
{
    RecipeOptim *o = &r->optim;
#define PREFER(key, field, value)                                                                            \
    if (r->origin[relate_row(r, key)] == ORIGIN_DEFAULT) field = value
    PREFER("optim.lr", o->lr, 2.5e-4);
    PREFER("optim.eps", o->eps, 1e-5);
    PREFER("optim.beta2", o->beta2, 0.999);
    PREFER("optim.weight_decay", o->weight_decay, 0);
    PREFER("optim.clip", o->clip, 0.5);
    PREFER("optim.schedule", o->schedule, SCHEDULE_LINEAR);
    PREFER("eval.samples", r->eval.samples, 100);
    PREFER("eval.every", r->eval.every, 0);
    PREFER("ppo.truncation", r->ppo.truncation, r->ppo.parity != PARITY_CLEANRL);
#undef PREFER
}

enum { MOST_MINIBATCH = 65536, SMALL_MINIBATCH = 4096 };

/* The largest part of n samples that is a multiple of c and has at most 65,536; 0: all are small. */
static int64_t divide_rollout(int64_t n, int64_t c)
{
    int64_t small = MIN(SMALL_MINIBATCH, n), part = MIN(MOST_MINIBATCH, n) / c * c;
    while (part >= small && n % part != 0) part -= c;
    return part >= small ? part : 0;
}

/* A rollout of 65,537 steps, or of so many environments, has no parts but single samples, and an update of
 * each would take for ever. If no shorter rollout has parts, fewer environments have. */
static int refuse_rollout(const Recipe *r, int64_t n)
{
    int64_t     c = r->policy.context, rollout = r->ppo.rollout, envs = r->ppo.envs;
    int64_t     agents = MAX(r->ppo.seen.n_agent, 1);
    const char *key    = "ppo.rollout";
    while (rollout > 0 && divide_rollout(envs * rollout * agents, c) == 0) rollout -= c;
    if (rollout == 0) {
        key = "ppo.envs";
        while (divide_rollout(envs * r->ppo.rollout * agents, c) == 0) envs--;
    }
    return recipe_blame(r, key,
                        "ppo.envs x ppo.rollout (%lld) has no equal parts of %d to %d samples: %s %lld "
                        "would do",
                        LL(n), SMALL_MINIBATCH, MOST_MINIBATCH, key, LL(rollout > 0 ? rollout : envs));
}

static int choose_minibatch(Recipe *r, int64_t n)
{
    int64_t c        = r->policy.context;
    r->ppo.minibatch = n;
    if (r->ppo.rollout % c != 0) return 0; /* refused for that */
    r->ppo.minibatch = divide_rollout(n, c);
    return r->ppo.minibatch > 0 ? 0 : refuse_rollout(r, n);
}

/* The steps of the run, of n samples each. If the command line has `steps`, total_steps of the file
 * does not count. */
static int count_rollouts(Recipe *r, int64_t n)
{
    int64_t *total = &r->ppo.total_steps;
    if (*total == 0) return 0;
    if (recipe_is_typed(r, "steps")) {
        DEMAND(!recipe_is_typed(r, "total_steps"), "steps",
               "not together with total_steps: steps=%lld are total_steps=%lld", LL(r->steps),
               LL(r->steps * n));
        *total = 0;
        return 0;
    }
    RELATE(*total >= n, "total_steps", "ppo.envs",
           "total_steps (%lld) is less than one rollout of ppo.envs x ppo.rollout%s (%lld)", LL(*total),
           r->ppo.seen.n_agent > 1 ? " x agents" : "", LL(n));
    r->steps = *total / n;
    return 0;
}

/* Keys on the command line that would do nothing. A file may have them: the same file serves several kinds of
 * policy. */
static int check_policy(const Recipe *r)
{
    static const struct {
        const char *key, *why;
        PolicyKind  kind;
    } none[] = { { "policy.heads", "does nothing: an mlp has no heads", POLICY_MLP },
                 { "policy.ffn", "does nothing: an mlp has no feed-forward layers", POLICY_MLP },
                 { "policy.act", "does nothing: a trunk has gelu", POLICY_TRUNK },
                 { "policy.shared", "does nothing: actor and critic of a trunk share it", POLICY_TRUNK },
                 { "policy.critic_width", "does nothing: a trunk has one width", POLICY_TRUNK } };
    for (int i = 0; i < ARRAY_LEN(none); i++)
        DEMAND(r->policy.kind != none[i].kind || !recipe_is_typed(r, none[i].key), none[i].key, "%s",
               none[i].why);
    DEMAND(!r->policy.shared || !recipe_is_typed(r, "policy.critic_width"), "policy.critic_width",
           "does nothing with policy.shared: actor and critic have the same layers");
    DEMAND(r->ppo.answer != ANSWER_DEVICE || !recipe_is_typed(r, "ppo.answer_bf16"), "ppo.answer_bf16",
           "does nothing: needs ppo.answer host or auto");
    DEMAND(r->ppo.obs_norm || !recipe_is_typed(r, "ppo.obs_clip"), "ppo.obs_clip",
           "does nothing: needs ppo.obs_norm");
    DEMAND(r->ppo.reward_norm || !recipe_is_typed(r, "ppo.reward_clip"), "ppo.reward_clip",
           "does nothing: needs ppo.reward_norm");
    DEMAND(r->ppo.isolate != ISOLATE_NONE || str_starts_with(r->ppo.env, "gym:") ||
               !recipe_is_typed(r, "ppo.workers"),
           "ppo.workers", "does nothing: needs isolate process, or an environment of Gymnasium");
    RELATE(r->ppo.place != ENVS_DEVICE || r->ppo.answer == ANSWER_DEVICE, "ppo.place", "ppo.answer",
           "environments on the device are answered there: with ppo.answer %s the CPU answers on the host",
           r->ppo.answer == ANSWER_HOST ? "host" : "auto");
    RELATE(r->ppo.parity != PARITY_CLEANRL || !r->ppo.truncation, "ppo.truncation", "parity",
           "parity cleanrl counts a truncated episode as terminated, ppo.truncation true does not");
    return 0;
}

static int check_micro_batch(const Recipe *r)
{
    const RecipePpo *p = &r->ppo;
    RELATE(r->micro_batch == 0 || p->minibatch / r->policy.context % r->micro_batch == 0, "micro_batch",
           "ppo.minibatch", "micro_batch (%lld) must divide ppo.minibatch (%lld)", LL(r->micro_batch),
           LL(p->minibatch));
    return 0;
}

/* Samples of a rollout, and what follows from their number. A sample is a step of one agent. */
static int count_samples(Recipe *r, int64_t agents)
{
    RecipePpo *p = &r->ppo;
    int64_t    n = p->envs * p->rollout, c = r->policy.context;
    RELATE(n <= (1 << 30) / agents, "ppo.rollout", "ppo.envs", "a rollout of %lld steps is too long",
           LL(n * agents));
    n *= agents;
    p->is_whole |= p->minibatch == 0;
    if (p->is_whole) TRY(choose_minibatch(r, n));
    TRY(count_rollouts(r, n));
    r->step_samples = n / c; /* a sample is what the net sees at once */
    r->step_key     = "ppo.envs";
    return 0;
}

int recipe_count_agents(Recipe *r)
{
    const RecipePpo *p      = &r->ppo;
    int64_t          agents = p->seen.n_agent, n = p->envs * p->rollout * agents;
    char             near[48], of_agents[32]     = "";
    if (agents > 1) {
        TRY(count_samples(r, agents));
        snprintf(of_agents, sizeof of_agents, " x %lld agents", LL(agents));
    }
    TRY(check_micro_batch(r));
    int64_t below = MIN(p->minibatch, n), above = p->minibatch;
    while (n % below != 0) below--;
    while (above < n && n % above != 0) above++;
    RELATE(n % p->minibatch == 0, "ppo.minibatch", "ppo.rollout",
           "ppo.minibatch (%lld) must divide ppo.envs x ppo.rollout%s (%lld): %s would do", LL(p->minibatch),
           of_agents, LL(n), relate_nearest(near, sizeof near, below, above <= n ? above : 0));
    RELATE(agents == 1 || p->parity != PARITY_CLEANRL, "parity", "env",
           "CleanRL's ppo.py has one agent in an environment, %s has %lld", p->env, LL(agents));
    return 0;
}

int relate_ppo(Recipe *r)
{
    const RecipePpo *p = &r->ppo;
    int64_t          c = r->policy.context;
    prefer_ppo(r);
    DEMAND(p->env[0], "env", "is missing: name the environment (brim env list)");
    RELATE(p->groups == 0 || p->envs % p->groups == 0, "ppo.groups", "ppo.envs",
           "ppo.groups (%lld) must divide ppo.envs (%lld)", LL(p->groups), LL(p->envs));
    RELATE(r->policy.kind == POLICY_MLP || r->policy.width % r->policy.heads == 0, "policy.heads",
           "policy.width", "policy.heads (%lld) must divide policy.width (%lld)", LL(r->policy.heads),
           LL(r->policy.width));
    RELATE(r->policy.kind == POLICY_TRUNK || c == 1, "policy.context", "policy.kind",
           "an mlp has no memory: policy.context needs policy.kind trunk");
    TRY(check_policy(r));
    TRY(count_samples(r, 1));                    /* until the environment is known */
    if (!p->is_whole) TRY(check_micro_batch(r)); /* else its agents count */
    RELATE(p->rollout % c == 0 && p->minibatch % c == 0, "policy.context", "ppo.rollout",
           "policy.context (%lld) must divide ppo.rollout (%lld) and ppo.minibatch (%lld)", LL(c),
           LL(p->rollout), LL(p->minibatch));
    RELATE(r->policy.kind == POLICY_MLP || c == 1 || r->policy.width / r->policy.heads % 2 == 0,
           "policy.heads", "policy.width", "a head needs an even size, not %lld",
           LL(r->policy.width / r->policy.heads));
    return 0;
}
