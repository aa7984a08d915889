#include "task/ppo_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <math.h>
#include <stdlib.h>

/* ---- facts of a recipe -------------------------------------------------------------------------------- */

static int64_t ppo_units(const Recipe *r) { return r->policy.context; }
static int64_t ppo_rows(const Recipe *r) { return r->policy.context; }
static int     ppo_has_val(const Recipe *r) { return 1; }

/* A rank that has a part of the step has the same part of a minibatch. */
static int64_t update_samples(const Recipe *r)
{
    return r->ppo.minibatch * r->step_samples / (r->ppo.envs * r->ppo.rollout * MAX(r->ppo.seen.n_agent, 1));
}

static int64_t targets(const Recipe *r) { return r->ppo.minibatch; }

static int ppo_complete(Recipe *r, int need_data)
{
    static const char *const of_numbers[] = { "policy.log_std", "policy.state_std" };
    const RecipeEnv         *e            = &r->ppo.seen;
    TRY(ppo_know_env(r));
    for (int i = 0; i < ARRAY_LEN(of_numbers); i++) {
        if (e->is_discrete && recipe_is_typed(r, of_numbers[i]))
            return recipe_blame(r, of_numbers[i], "does nothing: the actions of %s are choices", r->ppo.env);
    }
    if (e->has_solved_at && r->eval.every > 0 && !recipe_is_given(r, "eval.target"))
        r->eval.target = (double)e->solved_at;
    return 0;
}

/* ---- declaring ---------------------------------------------------------------------------------------- */

static size_t put(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end += (size_t)round_up((int64_t)bytes, 64);
    return at;
}

static void lay_out_block(Ppo *p)
{
    size_t    n = (size_t)p->Eg, end = 0;
    PpoBlock *b   = &p->layout;
    b->obs        = put(&end, n * (size_t)p->spec.obs_dim * sizeof(float));
    b->reward     = put(&end, n * sizeof(float));
    b->slot       = put(&end, n * sizeof(int32_t));
    b->terminated = put(&end, n);
    b->truncated  = put(&end, n);
    b->mask       = put(&end, n * (size_t)p->spec.n_mask);
    b->pos        = put(&end, p->C > 1 ? n * sizeof(int32_t) : 0);
    b->doc        = put(&end, p->C > 1 ? n * sizeof(int32_t) : 0);
    b->valid      = put(&end, p->A > 1 ? n * sizeof(int32_t) : 0);
    b->size_bytes = end;
}

static Tensor *state2(Job *j, const char *name, DType dtype, int64_t rows, int64_t cols)
{
    int64_t dim[2] = { rows, cols };
    return job_declare_state(j, name, dtype, 2, dim, 0);
}

static Tensor *state1(Job *j, const char *name, DType dtype, int64_t n, int is_kept)
{
    return job_declare_state(j, name, dtype, 1, &n, is_kept);
}

/* A tensor of the rollout: a part of the one block, if there is one. */
static Tensor *rolled(Job *j, const char *name, DType dtype, int64_t rows, int64_t cols)
{
    Ppo    *p      = ppo_of(j);
    int64_t dim[2] = { rows, cols };
    if (!p->root) return state2(j, name, dtype, rows, cols);
    size_t at = put(&p->root_end, (size_t)(rows * cols) * dtype_bytes(dtype));
    CHECK(p->root_end <= tensor_bytes(p->root), "the block of a rollout is too small");
    return store_view_as(&j->store, p->root, name, at, dtype, 2, dim);
}

/* Bytes of all parts, each rounded up to a line of the cache. */
static int64_t rollout_bytes(const Ppo *p)
{
    enum { PARTS = 11, LINE = 64 };
    const RecipeEnv *s = &p->spec;
    int64_t          n = p->T * p->E, later_rows = (p->T + 1) * p->E;
    return n * (4 * s->obs_dim + 4 * s->n_act + 8 + s->n_mask) + later_rows * 10 + p->E * 4 +
           p->n_final * s->obs_dim * 4 + PARTS * LINE + (p->A > 1 ? n * 4 + LINE : 0);
}

/* Rows of group g of a whole rollout. */
static Tensor *part(Job *j, Tensor *whole, int g, int64_t cols)
{
    Ppo    *p      = ppo_of(j);
    int64_t dim[2] = { p->T, p->Eg * cols };
    if (p->root && whole->root == p->root)
        return store_view_as(&j->store, p->root, whole->name, whole->offset_bytes, whole->dtype, 2, dim);
    return store_view(&j->store, whole, whole->name, g * p->T * p->Eg * cols, 2, dim);
}

/* Rows 1 to T of a tensor with T + 1 rows: what turns 0 to T - 1 led to. */
static Tensor *later(Job *j, Tensor *t)
{
    Ppo    *p      = ppo_of(j);
    int64_t dim[2] = { p->T, p->Eg };
    return store_view_as(&j->store, t->root, t->name, t->offset_bytes + (size_t)p->Eg * dtype_bytes(t->dtype),
                         t->dtype, 2, dim);
}

static Tensor *in_block(Job *j, PpoGroup *g, const char *name, size_t offset, DType dtype, int64_t cols)
{
    int64_t dim[2] = { ppo_of(j)->Eg, cols };
    return store_view_as(&j->store, g->block, name, offset, dtype, cols > 1 ? 2 : 1, dim);
}

static void declare_context(Job *j, PpoGroup *g, int i)
{
    Ppo    *p      = ppo_of(j);
    int64_t obs[2] = { p->Eg, p->spec.obs_dim };
    g->pos         = in_block(j, g, "positions", p->layout.pos, DT_I32, 1);
    g->doc         = in_block(j, g, "first rows", p->layout.doc, DT_I32, 1);
    g->r_doc       = part(j, p->doc, i, 1);
    g->f_obs       = job_declare_state(j, "last obs", DT_F32, 2, obs, 0);
    g->f_pos       = state1(j, "last positions", DT_I32, p->Eg, 0);
    g->r_final     = state2(j, "values of ends", DT_F32, p->T + 1, p->Eg);
    g->s_final     = later(j, g->r_final);
    net_declare_caches(&p->trunk, &j->store, &g->cache, p->Eg, p->trunk.model.context);
    g->cache.pos = g->pos;
}

static void declare_group(Job *j, int i)
{
    Ppo             *p   = ppo_of(j);
    PpoGroup        *g   = &p->group[i];
    const RecipeEnv *s   = &p->spec;
    DType            act = s->is_discrete ? DT_I32 : DT_F32;
    g->block             = state1(j, "arrivals", DT_U8, (int64_t)p->layout.size_bytes, p->on_device);
    int64_t dim[2]       = { p->Eg, s->obs_dim };
    g->obs               = store_view_as(&j->store, g->block, "obs", p->layout.obs, DT_F32, 2, dim);
    g->reward            = in_block(j, g, "reward", p->layout.reward, DT_F32, 1);
    g->slot              = in_block(j, g, "slot", p->layout.slot, DT_I32, 1);
    g->terminated        = in_block(j, g, "terminated", p->layout.terminated, DT_U8, 1);
    g->truncated         = in_block(j, g, "truncated", p->layout.truncated, DT_U8, 1);
    if (s->n_mask) g->mask = in_block(j, g, "mask", p->layout.mask, DT_U8, s->n_mask);
    g->action       = state2(j, "actions", act, p->Eg, s->n_act);
    g->t            = state1(j, "t", DT_I32, 1, 0);
    g->sample0      = state1(j, "first row", DT_I64, 1, 0);
    g->r_reward     = rolled(j, "rewards", DT_F32, p->T + 1, p->Eg);
    g->r_terminated = rolled(j, "terminations", DT_U8, p->T + 1, p->Eg);
    g->r_truncated  = rolled(j, "truncations", DT_U8, p->T + 1, p->Eg);
    g->r_slot       = rolled(j, "slots", DT_I32, p->T + 1, p->Eg);
    g->s_reward     = later(j, g->r_reward);
    g->s_terminated = later(j, g->r_terminated);
    g->s_truncated  = later(j, g->r_truncated);
    g->s_slot       = later(j, g->r_slot);
    g->r_obs        = part(j, p->obs, i, s->obs_dim);
    g->r_action     = part(j, p->action, i, s->n_act);
    g->r_logp       = part(j, p->logp, i, 1);
    g->r_value      = part(j, p->value, i, 1);
    if (s->n_mask) g->r_mask = part(j, p->mask, i, s->n_mask);
    if (p->valid) g->valid = in_block(j, g, "valid", p->layout.valid, DT_I32, 1);
    if (p->valid) g->r_valid = part(j, p->valid, i, 1);
    g->adv        = part(j, p->adv, i, 1);
    g->ret        = part(j, p->ret, i, 1);
    g->last_value = rolled(j, "last value", DT_F32, 1, p->Eg);
    if (p->on_device) ppo_device_declare(j, g);
    if (p->C > 1) declare_context(j, g, i);
}

/* Episodes that can be cut in one rollout. A built-in environment is cut by its limit alone. Others may cut
 * themselves, and a worker that is lost cuts the episodes of its environments: at most twice in
 * REMOTE_GOOD_STEPS steps. */
static int64_t count_finals(const Ppo *p)
{
    enum { SOME = 1 << 16, FEW = 1 << 12, SHORT = 8 /* steps of an episode, in the mean */ };
    int64_t all = p->E * p->T, limit = p->spec.limit;
    if (limit == 0) return MIN(all, MAX(SOME, 4 * p->E));
    int64_t cut = p->E * (p->T / limit + (p->on_device ? 1 : 2));
    return p->on_device || p->spec.is_cheap ? cut : MAX(cut, MIN(all, MAX(FEW, all / SHORT)));
}

static void declare_rollout(Job *j)
{
    Ppo             *p = ppo_of(j);
    const RecipeEnv *s = &p->spec;
    int64_t          n = p->T * p->E;
    p->n_final         = count_finals(p);
    if (p->by_host) p->root = state1(j, "rollout", DT_U8, rollout_bytes(p), 0);
    p->obs    = rolled(j, "rollout obs", DT_F32, n, s->obs_dim);
    p->action = rolled(j, "rollout actions", s->is_discrete ? DT_I32 : DT_F32, n, s->n_act);
    p->logp   = rolled(j, "rollout logp", DT_F32, n, 1);
    p->value  = rolled(j, "rollout values", DT_F32, n, 1);
    p->adv    = state2(j, "advantages", DT_F32, n, 1);
    p->ret    = state2(j, "returns", DT_F32, n, 1);
    if (s->n_mask) p->mask = rolled(j, "rollout masks", DT_U8, n, s->n_mask);
    if (p->A > 1) p->valid = rolled(j, "rollout valid", DT_I32, n, 1);
    if (p->C > 1) p->doc = state2(j, "rollout first rows", DT_I32, n, 1);
    if (p->C > 1) p->sequence = state2(j, "sequences", DT_I32, n / p->C, p->C);
    p->final_obs   = rolled(j, "last obs", DT_F32, p->n_final, s->obs_dim);
    p->final_value = state2(j, "last values", DT_F32, p->n_final, 1);
    for (int g = 0; g < p->n_group; g++) declare_group(j, g);
    p->order     = state1(j, "order", DT_I32, n / p->C, 0);
    p->epoch     = state1(j, "epoch", DT_I32, 1, 0);
    p->at_mini   = state1(j, "minibatch", DT_I32, 1, 0);
    p->at_micro  = state1(j, "micro-batch", DT_I32, 1, 0);
    p->norm      = state1(j, "norm", DT_F32, 3, 0);
    p->stats_adv = state1(j, "advantage statistics", DT_F32, 3, 0);
    p->stats_ret = state1(j, "return statistics", DT_F32, 3, 0);
    p->coef      = state1(j, "coefficients", DT_F32, 4, 0);
    p->kept      = state1(j, "environments", DT_U8, ppo_state_bytes(p), 1);
}

static int choose_groups(const Job *j)
{
    enum { LEAST = 1024 };
    const RecipePpo *r = &j->recipe.ppo;
    if (r->groups > 0) return (int)r->groups;
    return j->vt->hints->is_late && ppo_of(j)->E >= LEAST && ppo_of(j)->E / ppo_of(j)->A % 2 == 0 ? 2 : 1;
}

static int ppo_declare(Job *j)
{
    const RecipePpo *r     = &j->recipe.ppo;
    int              world = MAX(j->choice.world, 1);
    Ppo             *p     = ARENA_NEW(&j->store.arena, Ppo);
    j->own                 = p;
    arena_init(&p->arena);
    TRY(ppo_know_env(&j->recipe));
    p->spec = j->recipe.ppo.seen;
    if (r->envs % world != 0)
        return recipe_blame(&j->recipe, "ppo.envs", "%lld environments cannot be shared by %d ranks",
                            (long long)r->envs, world);
    if (r->minibatch % world != 0)
        return recipe_blame(&j->recipe, "ppo.minibatch", "a minibatch of %lld cannot be shared by %d ranks",
                            (long long)r->minibatch, world);
    /* A plan for one rank of several has that rank's part of the step. */
    p->A         = p->spec.n_agent;
    p->T         = r->rollout;
    p->C         = j->recipe.policy.context;
    p->E         = j->recipe.step_samples * p->C / world / r->rollout;
    p->minibatch = update_samples(&j->recipe) * p->C / world;
    TRY(ppo_device_choose(j));
    TRY(ppo_hybrid_choose(j));
    int together = p->on_device || p->by_host;
    if (together && r->groups > 1 && recipe_is_typed(&j->recipe, "ppo.groups"))
        return recipe_blame(&j->recipe, "ppo.groups", "does nothing: environments %s step together",
                            p->on_device ? "on the device" : "that the host answers");
    p->n_group = together ? 1 : choose_groups(j);
    if (p->E / p->A % p->n_group != 0)
        return recipe_blame(&j->recipe, "ppo.groups", "%d groups do not divide %lld environments", p->n_group,
                            (long long)(p->E / p->A));
    p->Eg = p->E / p->n_group;
    lay_out_block(p);
    ppo_policy_declare(j);
    if (r->obs_norm) p->obs_run = state1(j, "obs statistics", DT_F64, 1 + 2 * p->spec.obs_dim, 2);
    p->seg = state1(j, "heads", DT_I32, p->spec.n_act + 1, 0);
    job_declare_fields(j, NULL, 0);
    if (job_trains(j)) declare_rollout(j);
    ppo_eval_declare(j);
    return 0;
}

static void ppo_release(Job *j)
{
    Ppo *p = ppo_of(j);
    ppo_envs_close(p);
    ppo_device_close(p);
    ppo_eval_close(p);
    ppo_policy_deinit(p);
    arena_deinit(&p->arena);
}

/* ---- constants ---------------------------------------------------------------------------------------- */

/* Row (g, t, n) of a rollout lies at (g T + t) Eg + n; a sequence has C steps of one agent. */
static int upload_sequences(Job *j)
{
    Ppo     *p = ppo_of(j);
    int64_t  k = 0;
    int32_t *x = mem_alloc(tensor_bytes(p->sequence));
    if (!x) return err_sys("memory for sequences");
    for (int64_t g = 0; g < p->n_group; g++)
        for (int64_t c = 0; c < p->T; c += p->C)
            for (int64_t n = 0; n < p->Eg; n++)
                for (int64_t i = 0; i < p->C; i++) x[k++] = (int32_t)((g * p->T + c + i) * p->Eg + n);
    int rc = job_upload(j, p->sequence, x, tensor_bytes(p->sequence));
    free(x);
    return rc;
}

static int ppo_init_constants(Job *j)
{
    Ppo             *p = ppo_of(j);
    const RecipePpo *r = &j->recipe.ppo;
    float coef[4]      = { (float)r->clip, (float)r->clip_value, (float)r->entropy, (float)r->value_weight };
    TRY(job_upload(j, p->seg, p->spec.seg, sizeof(int32_t) * (size_t)(p->spec.n_act + 1)));
    TRY(job_upload_rope(j, &p->trunk));
    if (job_trains(j) && p->C > 1) TRY(upload_sequences(j));
    if (job_trains(j)) {
        TRY(job_upload(j, p->coef, coef, sizeof coef));
        for (int g = 0; g < p->n_group; g++) {
            int64_t first = comm_rank(j->comm) * p->E + g * p->Eg;
            TRY(job_upload(j, p->group[g].sample0, &first, sizeof first));
        }
        TRY(p->on_device ? ppo_device_open(j) : ppo_envs_open(j));
    }
    return ppo_eval_open(j);
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

static double mean_last(const double *x, int64_t n)
{
    double  sum = 0;
    int64_t m   = MIN(n, PPO_LAST);
    for (int64_t i = 0; i < m; i++) sum += x[i];
    return m ? sum / (double)m : NAN;
}

typedef struct {
    double env, inference, training; /* steps/s; 0: not known */
} Rates;

/* Of all ranks, in the time of this one. */
static Rates rates_of(const Job *j)
{
    const Ppo      *p = ppo_of(j);
    const PpoTimes *t = &p->times;
    double          n = (double)t->n_step;
    if (t->n_step == 0) return (Rates){ 0 };
    Rates r = { .training = n / (t->rollout_s + t->update_s) };
    if (!p->on_device) {
        r.env       = t->env_s > 0 ? n / t->env_s : 0;
        r.inference = n / t->rollout_s;
        return r;
    }
    r.env       = t->device_env_s > 0 ? (double)(p->E * comm_world(j->comm)) / t->device_env_s : 0;
    r.inference = t->n_some > 0 ? (double)t->n_some / t->some_rollout_s : 0;
    return r;
}

/* The loss of a policy goes up and down while it learns. */
static double ppo_shown(const Job *j)
{
    const Ppo *p = ppo_of(j);
    return mean_last(p->host.last_return, p->host.n_episode);
}

static int ppo_numbers(Job *j, TaskNumber *out)
{
    Rates  rates = rates_of(j);
    Ppo   *p     = ppo_of(j);
    float  adv[3], ret[3];
    int    n    = 0;
    double past = clock_now_s() - p->times.begin_s, steps = (double)p->times.n_step;
    TRY(job_download(j, p->stats_adv, adv, sizeof adv));
    TRY(job_download(j, p->stats_ret, ret, sizeof ret));
    out[n++] = (TaskNumber){ "charts/episodic_return", mean_last(p->host.last_return, p->host.n_episode) };
    out[n++] = (TaskNumber){ "charts/episodic_length", mean_last(p->host.last_length, p->host.n_episode) };
    if (p->A > 1) {
        out[n++] = (TaskNumber){ "charts/team_return",
                                 mean_last(p->host.last_return, p->host.n_episode) * (double)p->A };
        out[n++] = (TaskNumber){ "charts/alive", p->n_valid_all / (double)ppo_rollout_steps(j) };
    }
    out[n++] = (TaskNumber){ "charts/episodes", (double)p->host.n_episode };
    out[n++] = (TaskNumber){ "charts/global_step", (double)p->host.n_step };
    out[n++] = (TaskNumber){ "charts/SPS", past > 0 ? steps / past : NAN };
    out[n++] = (TaskNumber){ "charts/value", (double)ret[0] - (double)adv[0] };
    out[n++] = (TaskNumber){ "losses/explained_variance",
                             ret[1] > 0 ? 1 - (double)adv[1] * adv[1] / ((double)ret[1] * ret[1]) : NAN };
    if (rates.env > 0) out[n++] = (TaskNumber){ "rates/environment", rates.env };
    if (rates.inference > 0) out[n++] = (TaskNumber){ "rates/inference", rates.inference };
    out[n++]     = (TaskNumber){ "rates/training", rates.training };
    int64_t lost = p->envs ? envs_restarts(p->envs) : 0;
    if (lost > 0) out[n++] = (TaskNumber){ "charts/restarts", (double)lost };
    return n;
}

static const char *say_rate(char *buf, size_t n, double rate)
{
    return rate > 0 ? str_count(buf, n, rate) : "unknown";
}

static void say_solved(const Job *j)
{
    const Ppo *p = ppo_of(j);
    if (!p->spec.has_solved_at || p->eval.n_step == 0 || p->eval.mean < (double)p->spec.solved_at) return;
    log_info("%s is solved: mean return %.2f over %lld greedy episode%s, %g is enough", j->recipe.ppo.env,
             p->eval.mean, (long long)j->recipe.eval.samples, str_plural(j->recipe.eval.samples),
             (double)p->spec.solved_at);
}

/* Never one number alone. */
static void ppo_summary(Job *j, double mfu)
{
    const Ppo *p = ppo_of(j);
    Rates      r = rates_of(j);
    char       a[32], b[32], c[32], n[32], used[32] = "unknown";
    if (p->times.n_step == 0) return;
    if (mfu > 0) snprintf(used, sizeof used, "%.1f %%", 100 * mfu);
    log_info("steps/s: environments alone %s, with inference %s, with training %s (%lld epoch%s, %s, %s "
             "parameters, MFU %s)",
             say_rate(a, sizeof a, r.env), say_rate(b, sizeof b, r.inference),
             say_rate(c, sizeof c, r.training), (long long)j->recipe.ppo.epochs,
             str_plural(j->recipe.ppo.epochs),
             j->recipe.policy.kind == POLICY_TRUNK ? "1 token an observation" : "no tokens",
             str_count(n, sizeof n, (double)job_param_count(j)), used);
    say_solved(j);
    if (p->host.n_episode > 0)
        log_info("%lld training episodes, which explore: mean return of the last %lld: %.2f",
                 (long long)p->host.n_episode, (long long)MIN(p->host.n_episode, PPO_LAST),
                 mean_last(p->host.last_return, p->host.n_episode));
    if (p->A > 1)
        log_info(
            "%lld agents in each environment: returns are their mean, steps and rates count each agent's",
            (long long)p->A);
    if (p->by_host) ppo_hybrid_summary(j);
    log_info("to look at the policy: brim play %s", j->recipe.run);
}

static int64_t ppo_eval_units(const TaskEval *e) { return ppo_of(e->job)->eval.n_step; }

static void ppo_print_eval(const TaskEval *e, const Recipe *r, FILE *out)
{
    fprintf(out, "mean return %.2f over %lld greedy episode%s\n", e->value[0], (long long)e->n_target,
            str_plural(e->n_target));
}

/* The names are CleanRL's. Each is the mean over the updates of a step. */
#define MEASURE(text)                                                                                        \
    {                                                                                                        \
        .name = text, .targets = targets, .measure = 1                                                       \
    }
static const TaskLoss losses[PPO_SLOTS] = {
    [PPO_TOTAL]       = { .name = "losses/loss", .targets = targets },
    [1 + PPO_POLICY]  = MEASURE("losses/policy_loss"),
    [1 + PPO_VALUE]   = MEASURE("losses/value_loss"),
    [1 + PPO_ENTROPY] = MEASURE("losses/entropy"),
    [1 + PPO_OLD_KL]  = MEASURE("losses/old_approx_kl"),
    [1 + PPO_KL]      = MEASURE("losses/approx_kl"),
    [1 + PPO_CLIPPED] = MEASURE("losses/clipfrac"),
};
static const TaskMetric metrics[] = { { .name = "return", .slot = PPO_TOTAL, .larger = 1 } };

/* The order in which a run too large for its card may give way; a minibatch is split before, for nothing. */
static const char *const halves[] = { "ppo.rollout", "ppo.envs", "policy.width", NULL };

const Task task_ppo = {
    .name           = "ppo",
    .unit           = "steps",
    .one            = "step",
    .unit_in_full   = "environment steps",
    .halves         = halves,
    .lighter_net    = "a smaller policy.width",
    .lighter_sample = "a smaller ppo.rollout or ppo.envs",
    .loss           = losses,
    .n_loss         = ARRAY_LEN(losses),
    .metric         = metrics,
    .n_metric       = ARRAY_LEN(metrics),
    .units          = ppo_units,
    .rows           = ppo_rows,
    .update_samples = update_samples,
    .complete       = ppo_complete,
    .declare        = ppo_declare,
    .record         = ppo_record,
    .release        = ppo_release,
    .init_constants = ppo_init_constants,
    .has_val        = ppo_has_val,
    .open_train     = ppo_open_train,
    .open_val       = ppo_open_val,
    .numbers        = ppo_numbers,
    .shown_name     = "return",
    .shown          = ppo_shown,
    .summary        = ppo_summary,
    .before_save    = ppo_before_save,
    .after_load     = ppo_after_load,
    .print_eval     = ppo_print_eval,
    .eval_units     = ppo_eval_units,
    .play           = ppo_play,
    .export_to      = ppo_export,
};
