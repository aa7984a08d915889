/* Answers by the host: the policy runs on the CPU, one observation at a time; updates run on the device.
 *
 * 1. Two transfers a step: the weights come down, the rollout goes up as one block. Both are counted.
 * 2. ppo.answer auto measures both ways before the first step and takes the faster one. Otherwise the program
 *    `act` answers, as in any other run.
 * 3. Environments are shared by all threads; each thread answers its own ones. Draws are those of the op
 *    SAMPLE_CAT or SAMPLE_GAUSS, which the CPU backend runs here on host memory. */
#include "task/ppo_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "tensor/number.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

typedef struct Hybrid {
    Answer   *answer;
    Dev      *cpu;
    int       n_thread;
    int       decided, by_host, is_traced;
    char     *root;    /* pinned, as Ppo.root */
    char     *weights; /* pinned, all regions */
    size_t    weight_bytes;
    char     *weight_base;        /* on the device */
    float    *wide[REGION_COUNT]; /* where a region is not in f32 on the device, its numbers in f32 */
    char     *scratch;
    size_t    scratch_each;
    float    *out, *std; /* of the actor, [E][n_out] */
    float    *value;     /* [E] */
    float    *obs;       /* [E][D], current, as the net sees them */
    StepState state;
    Tensor    t_out, t_std, t_action, t_logp, t_mask, t_seg, t_state, t_sample0, t_t;
    int64_t   sample0;
    int32_t   t;
    double    host_us, host_worst_us, device_us;
} Hybrid;

int ppo_hybrid_choose(Job *j)
{
    const Recipe *r = &j->recipe;
    if (r->ppo.answer == ANSWER_DEVICE || !job_trains(j)) return 0;
    if (r->policy.kind != POLICY_MLP)
        return recipe_blame(r, "ppo.answer", "%s needs policy.kind mlp",
                            r->ppo.answer == ANSWER_HOST ? "host" : "auto");
    if (r->ppo.obs_norm)
        return recipe_blame(r, "ppo.answer",
                            "observations are normalised on the device: ppo.obs_norm needs "
                            "ppo.answer device");
    ppo_of(j)->by_host   = 1;
    ppo_of(j)->on_device = 0;
    ppo_of(j)->unroll    = 1;
    return 0;
}

int ppo_hybrid_answers(const Ppo *p) { return p->hybrid && p->hybrid->by_host; }

/* ---- opening ------------------------------------------------------------------------------------------ */

/* 1: the deviation of an action is a head of the actor. */
static int has_std_head(const Job *j) { return !ppo_of(j)->spec.is_discrete && j->recipe.policy.state_std; }

/* Heads in the order of answer_row(). */
static Answer *make_answer(Job *j)
{
    Ppo                *p      = ppo_of(j);
    const RecipePolicy *r      = &j->recipe.policy;
    AnswerNet           actor  = { .body = ppo_policy_actor(r, &p->spec) }, net[2];
    actor.head[actor.n_head++] = "policy";
    if (has_std_head(j)) actor.head[actor.n_head++] = "std";
    if (r->shared) actor.head[actor.n_head++] = "value";
    net[0] = actor;
    net[1] = (AnswerNet){ .body = ppo_policy_critic(r, &p->spec), .head = { "value" }, .n_head = 1 };
    return answer_create(&p->table, net, r->shared ? 1 : 2, j->recipe.ppo.answer_bf16);
}

/* All regions of weights lie in one slab: one copy takes them. */
static int find_weights(Job *j, Hybrid *h)
{
    Ppo  *p  = ppo_of(j);
    char *lo = NULL, *hi = NULL;
    for (int r = 0; r < REGION_COUNT; r++) {
        const Tensor *t = p->table.flat[COL_WEIGHT][r];
        if (!t) continue;
        if (t->dtype != DT_F32) h->wide[r] = ARENA_ARRAY(&p->arena, float, tensor_numel(t));
        char *begin = t->data, *end = begin + tensor_bytes(t);
        lo = !lo || begin < lo ? begin : lo;
        hi = end > hi ? end : hi;
    }
    h->weight_base  = lo;
    h->weight_bytes = (size_t)(hi - lo);
    h->weights      = j->dev->vt->host_alloc(j->dev, h->weight_bytes);
    return h->weights ? 0 : -1;
}

static void wrap(Tensor *t, DType dtype, int64_t rows, int64_t cols, void *data)
{
    int64_t dim[2] = { rows, cols };
    tensor_init(t, "host", dtype, 2, dim);
    t->data = data;
}

static void wrap_all(Ppo *p, Hybrid *h)
{
    const RecipeEnv *s = &p->spec;
    wrap(&h->t_out, DT_F32, p->E, s->n_out, h->out);
    wrap(&h->t_std, DT_F32, h->std ? p->E : 1, s->n_out, h->std);
    wrap(&h->t_action, s->is_discrete ? DT_I32 : DT_F32, p->E, s->n_act, NULL);
    wrap(&h->t_logp, DT_F32, p->E, 1, NULL);
    if (s->n_mask) wrap(&h->t_mask, DT_U8, p->E, s->n_mask, p->host_mask);
    wrap(&h->t_seg, DT_I32, 1, s->n_act + 1, (void *)s->seg);
    wrap(&h->t_state, DT_U8, 1, sizeof(StepState), &h->state);
    wrap(&h->t_sample0, DT_I64, 1, 1, &h->sample0);
    wrap(&h->t_t, DT_I32, 1, 1, &h->t);
}

int ppo_hybrid_open(Job *j)
{
    Ppo        *p = ppo_of(j);
    Hybrid     *h = p->hybrid = ARENA_NEW(&p->arena, Hybrid);
    const char *why;
    h->answer   = make_answer(j);
    h->cpu      = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    h->root     = j->dev->vt->host_alloc(j->dev, tensor_bytes(p->root));
    h->n_thread = (int)MIN(p->E, ppo_threads(j, p->Eg / p->A));
    if (!h->cpu) return err_set("ppo.answer: no CPU backend: %s", why);
    if (!h->answer || !h->root) return -1;
    TRY(find_weights(j, h));
    h->scratch_each = (answer_scratch_bytes(h->answer) + 127) / 64 * 64;
    h->scratch      = arena_alloc(&p->arena, h->scratch_each * (size_t)h->n_thread);
    h->out          = ARENA_ARRAY(&p->arena, float, p->E * p->spec.n_out);
    h->value        = ARENA_ARRAY(&p->arena, float, p->E);
    h->obs          = ARENA_ARRAY(&p->arena, float, p->E * p->spec.obs_dim);
    if (has_std_head(j)) h->std = ARENA_ARRAY(&p->arena, float, p->E * p->spec.n_out);
    h->sample0       = comm_rank(j->comm) * p->E;
    h->state.in.seed = (uint64_t)j->recipe.seed;
    wrap_all(p, h);
    return 0;
}

void ppo_hybrid_close(Ppo *p)
{
    Hybrid *h = p->hybrid;
    if (!h) return;
    answer_destroy(h->answer);
    if (h->cpu) dev_close(h->cpu);
    if (h->root) p->dev->vt->host_free(p->dev, h->root);
    if (h->weights) p->dev->vt->host_free(p->dev, h->weights);
    p->hybrid = NULL;
}

/* ---- transfers ---------------------------------------------------------------------------------------- */

static void book_transfer(Ppo *p, double begin_s)
{
    p->times.transfer_s += clock_now_s() - begin_s;
    p->times.n_transfer++;
}

/* A region of the weights that were fetched, in f32. */
static const float *region_floats(const Ppo *p, int region)
{
    const Hybrid *h = p->hybrid;
    const Tensor *t = p->table.flat[COL_WEIGHT][region];
    if (!t) return NULL;
    const char *raw = h->weights + ((char *)t->data - h->weight_base);
    if (!h->wide[region]) return (const float *)raw;
    number_convert(DT_F32, h->wide[region], t->dtype, raw, tensor_numel(t));
    return h->wide[region];
}

static int fetch_weights(Job *j)
{
    Ppo         *p     = ppo_of(j);
    Hybrid      *h     = p->hybrid;
    Dev         *d     = j->dev;
    double       begin = clock_now_s();
    const float *flat[REGION_COUNT];
    TRY(d->vt->download(d, LANE_COMPUTE, h->weights, h->weight_base, h->weight_bytes));
    TRY(d->vt->mark(d, LANE_COMPUTE, MARK_EVAL));
    TRY(ppo_wait_for(j, MARK_EVAL));
    for (int r = 0; r < REGION_COUNT; r++) flat[r] = region_floats(p, r);
    answer_load(h->answer, flat);
    if (!p->spec.is_discrete && !h->std) {
        const Param *s = param_find(&p->table, "log_std");
        h->t_std.data  = (void *)(flat[s->region] + s->offset);
    }
    book_transfer(p, begin);
    return 0;
}

static int send_rollout(Job *j)
{
    Ppo   *p     = ppo_of(j);
    Dev   *d     = j->dev;
    double begin = clock_now_s();
    memcpy(p->hybrid->root + p->final_obs->offset_bytes, p->host_final,
           (size_t)(p->n_final_used * p->spec.obs_dim) * sizeof(float));
    TRY(d->vt->upload(d, LANE_COMPUTE, p->root->data, p->hybrid->root, p->root_end));
    TRY(d->vt->mark(d, LANE_COMPUTE, MARK_EVAL));
    TRY(ppo_wait_for(j, MARK_EVAL));
    book_transfer(p, begin);
    return 0;
}

/* ---- a rollout on the host ---------------------------------------------------------------------------- */

static void answer_row(Ppo *p, int64_t i, int thread)
{
    Hybrid *h     = p->hybrid;
    float  *to[3] = { h->out + i * p->spec.n_out, h->std ? h->std + i * p->spec.n_out : &h->value[i],
                      &h->value[i] };
    answer_one(h->answer, h->obs + i * p->spec.obs_dim, to, h->scratch + (size_t)thread * h->scratch_each);
}

static void answer_all(Ppo *p)
{
    int n = p->hybrid->n_thread;
    if (n <= 1) {
        for (int64_t i = 0; i < p->E; i++) answer_row(p, i, 0);
        return;
    }
#pragma omp parallel for num_threads(n) schedule(static)
    for (int64_t i = 0; i < p->E; i++) answer_row(p, i, omp_get_thread_num());
}

static void *at(const Ppo *p, const Tensor *t, int64_t row)
{
    return p->hybrid->root + t->offset_bytes + (size_t)(row * tensor_cols(t)) * dtype_bytes(t->dtype);
}

/* Draws actions for the current observations into row t of the rollout. */
static int draw(Ppo *p, int64_t t)
{
    Hybrid         *h = p->hybrid;
    const PpoGroup *g = &p->group[0];
    const DevOps   *o = &h->cpu->vt->ops;
    h->t              = (int32_t)t;
    h->t_action.data  = at(p, g->r_action, t);
    h->t_logp.data    = at(p, g->r_logp, t);
    if (p->spec.is_discrete)
        return o->sample_cat(h->cpu, &(SampleCat){ .action  = &h->t_action,
                                                   .logp    = &h->t_logp,
                                                   .logits  = &h->t_out,
                                                   .mask    = p->spec.n_mask ? &h->t_mask : NULL,
                                                   .seg     = &h->t_seg,
                                                   .state   = &h->t_state,
                                                   .sample0 = &h->t_sample0,
                                                   .t       = &h->t_t,
                                                   .site    = SITE_ACT });
    return o->sample_gauss(h->cpu, &(SampleGauss){ .action  = &h->t_action,
                                                   .logp    = &h->t_logp,
                                                   .mean    = &h->t_out,
                                                   .log_std = &h->t_std,
                                                   .state   = &h->t_state,
                                                   .sample0 = &h->t_sample0,
                                                   .t       = &h->t_t,
                                                   .site    = SITE_ACT });
}

static int step_envs(Job *j, int64_t t)
{
    Ppo      *p       = ppo_of(j);
    Hybrid   *h       = p->hybrid;
    PpoGroup *g       = &p->group[0];
    EnvsIo    io      = ppo_io_all(p);
    PpoRows   rows    = { .reward     = at(p, g->r_reward, t + 1),
                          .terminated = at(p, g->r_terminated, t + 1),
                          .truncated  = at(p, g->r_truncated, t + 1),
                          .slot       = at(p, g->r_slot, t + 1),
                          .n          = p->E };
    io.reward         = rows.reward;
    io.terminated     = rows.terminated;
    io.truncated      = rows.truncated;
    io.episode_return = p->episode_return;
    io.episode_length = p->episode_length;
    for (int k = 0; k < envs_spec(p->envs)->info.n_obs; k++) io.final_obs[k] = p->raw_final[k];
    if (p->spec.is_discrete) {
        io.act_i = h->t_action.data;
    } else {
        ppo_clip_actions(p, h->t_action.data, 0, p->E);
        io.act_f = p->act_clipped;
    }
    double begin = clock_now_s();
    memcpy(p->acted, p->alive, (size_t)p->E);
    TRY(envs_step(p->envs, 0, &io));
    p->times.env_s += clock_now_s() - begin;
    TRY(ppo_take_in(j, &rows));
    ppo_pack(envs_spec(p->envs), (void *const *)p->raw, 0, p->E, h->obs);
    return 0;
}

static int host_rollout(Job *j)
{
    Ppo      *p      = ppo_of(j);
    Hybrid   *h      = p->hybrid;
    PpoGroup *g      = &p->group[0];
    size_t    obs    = (size_t)(p->E * p->spec.obs_dim) * sizeof(float);
    h->state.in.step = p->host.n_step / ppo_rollout_steps(j);
    TRY(fetch_weights(j));
    ppo_pack(envs_spec(p->envs), (void *const *)p->raw, 0, p->E, h->obs);
    for (int64_t t = 0; t < p->T; t++) {
        if (job_leaves(j)) return 1;
        answer_all(p);
        TRY(draw(p, t));
        memcpy(at(p, g->r_obs, t), h->obs, obs);
        memcpy(at(p, g->r_value, t), h->value, sizeof(float) * (size_t)p->E);
        if (p->spec.n_mask) memcpy(at(p, g->r_mask, t), p->host_mask, (size_t)(p->E * p->spec.n_mask));
        if (p->valid) ppo_put_valid(p, 0, p->E, at(p, g->r_valid, t));
        TRY(step_envs(j, t));
    }
    answer_all(p);
    memcpy(at(p, g->last_value, 0), h->value, sizeof(float) * (size_t)p->E);
    return send_rollout(j);
}

/* ---- a rollout on the device, from this row ----------------------------------------------------------- */

static int device_rollout(Job *j)
{
    Ppo *p = ppo_of(j);
    for (int64_t t = 0; t < p->T; t++) {
        if (job_leaves(j)) return 1;
        TRY(ppo_collect(j, t));
        TRY(prog_run(j->prog[p->act], j->dev));
        TRY(ppo_answer(j, t));
    }
    TRY(ppo_collect(j, p->T));
    return prog_run(j->prog[p->last], j->dev);
}

/* ---- which one ---------------------------------------------------------------------------------------- */

enum { SAMPLES = 400, COLD = 50 };

static int time_device(Job *j, double *us)
{
    Ppo      *p    = ppo_of(j);
    PpoGroup *g    = &p->group[0];
    Dev      *d    = j->dev;
    int32_t   zero = 0;
    for (int k = 0; k < SAMPLES; k++) {
        double begin = clock_now_s();
        TRY(d->vt->upload(d, LANE_COMPUTE, g->block->data, g->host, p->layout.size_bytes));
        TRY(prog_run(j->prog[p->act], d));
        TRY(ppo_answer(j, 0));
        TRY(ppo_wait_for(j, MARK_ANSWER));
        us[k] = (clock_now_s() - begin) * 1e6;
        TRY(job_upload(j, g->t, &zero, sizeof zero)); /* the program has ticked */
    }
    return 0;
}

/* Before the first step. Nothing that is measured here leaves a trace: rollouts overwrite it. */
static int decide(Job *j)
{
    Ppo    *p = ppo_of(j);
    Hybrid *h = p->hybrid;
    double  us[SAMPLES];
    TRY(fetch_weights(j));
    ppo_pack(envs_spec(p->envs), (void *const *)p->raw, 0, p->E, h->obs);
    for (int k = 0; k < SAMPLES; k++) {
        double begin = clock_now_s();
        answer_all(p);
        us[k] = (clock_now_s() - begin) * 1e6;
    }
    h->host_us       = clock_median(us + COLD, SAMPLES - COLD); /* sorts them */
    h->host_worst_us = us[COLD + (SAMPLES - COLD) * 99 / 100];
    TRY(time_device(j, us));
    h->device_us = clock_median(us + COLD, SAMPLES - COLD);
    h->by_host   = j->recipe.ppo.answer == ANSWER_HOST || h->host_us < h->device_us;
    h->decided   = 1;
    p->times     = (PpoTimes){ 0 };
    p->n_answer  = 0;
    log_info("%lld observation%s answered in %.1f us on the CPU (99 %%: %.1f us), in %.1f us on the device: "
             "the %s answers%s",
             (long long)p->E, str_plural(p->E), h->host_us, h->host_worst_us, h->device_us,
             h->by_host ? "CPU" : "device", j->recipe.ppo.answer == ANSWER_HOST ? ", as asked" : "");
    if (h->by_host && j->recipe.ppo.answer_bf16) log_info("the CPU answers with weights in bf16");
    return 0;
}

int ppo_episodes(Job *j, int64_t turn)
{
    Ppo    *p = ppo_of(j);
    Hybrid *h = p->hybrid;
    if (!h->decided) TRY(decide(j));
    if (!h->by_host) return device_rollout(j);
    p->n_final_used       = 0;
    p->n_valid            = 0;
    p->times.step_begin_s = clock_now_s();
    if (p->times.begin_s == 0) p->times.begin_s = p->times.step_begin_s;
    return host_rollout(j);
}

enum { TRACED = 3 /* the rollout whose update is traced: not among the first, which warm up */ };

/* A device records one trace at a time. The trace that the recipe asks for comes first. */
int ppo_hybrid_trace_begin(Job *j)
{
    Ppo *p = ppo_of(j);
    if (p->times.n_rollout != TRACED || j->recipe.trace > 0 || !j->dev->vt->trace_begin) return 0;
    TRY(j->dev->vt->sync(j->dev));
    if (j->dev->vt->trace_begin(j->dev) < 0) {
        err_clear(); /* no tracing here: nothing is said about kernels */
    } else {
        p->hybrid->is_traced = 1;
    }
    return 0;
}

int ppo_hybrid_trace_end(Job *j)
{
    Ppo     *p = ppo_of(j);
    DevTrace trace;
    if (!p->hybrid->is_traced) return 0;
    p->hybrid->is_traced = 0;
    p->times.traced_s    = clock_now_s() - p->times.step_begin_s;
    if (j->dev->vt->trace_end(j->dev, &trace) < 0) {
        err_clear();
    } else {
        p->times.busy_s = trace.busy_s;
        free(trace.span);
    }
    return 0;
}

void ppo_hybrid_summary(Job *j)
{
    const Ppo      *p = ppo_of(j);
    const PpoTimes *t = &p->times;
    if (!p->hybrid || !p->hybrid->by_host || t->n_rollout == 0) return;
    double n = (double)t->n_rollout;
    log_info("seconds a step: simulating %.4g, transferring %.4g, updating %.4g; %.1f transfers a step",
             (t->rollout_s - t->transfer_s) / n, t->transfer_s / n, t->update_s / n,
             (double)t->n_transfer / n);
    if (t->busy_s > 0)
        log_info("update of step %d: kernels at work %.0f %% of %.4g s", TRACED,
                 100 * t->busy_s / t->traced_s, t->traced_s);
}
