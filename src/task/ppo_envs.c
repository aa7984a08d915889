/* Host rows of the rollout: environments step, their rows travel to the device, actions come back.
 *
 * 1. A group's block is pinned. Environments write into it, one copy brings it up. The block is written again
 *    only after the group's next actions have come back, so the copy has passed by then.
 * 2. Rows of groups are apart in memory. An EnvsIo counts rows over all environments, so its pointers begin
 *    before the group's first row. */
#include "task/ppo_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/hostmem.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* ---- opening ------------------------------------------------------------------------------------------ */

/* Observations, then positions. */
static size_t final_obs_bytes(const Ppo *p) { return (size_t)(p->Eg * p->spec.obs_dim) * sizeof(float); }
static size_t final_bytes(const Ppo *p) { return final_obs_bytes(p) + (size_t)p->Eg * sizeof(int32_t); }

static int open_buffers(Job *j, const EnvSpec *s)
{
    Ppo *p   = ppo_of(j);
    Dev *dev = j->dev;
    for (int g = 0; g < p->n_group; g++) {
        p->group[g].host     = dev->vt->host_alloc(dev, p->layout.size_bytes);
        p->group[g].host_act = dev->vt->host_alloc(dev, tensor_bytes(p->group[g].action));
        if (!p->group[g].host || !p->group[g].host_act) return -1;
        if (p->C == 1) continue;
        p->group[g].host_f = dev->vt->host_alloc(dev, final_bytes(p));
        if (!p->group[g].host_f) return -1;
    }
    p->host_final = dev->vt->host_alloc(dev, tensor_bytes(p->final_obs));
    p->host_inv   = dev->vt->host_alloc(dev, sizeof *p->host_inv * PPO_SLOTS);
    if (!p->host_final || !p->host_inv) return -1;
    for (int k = 0; k < s->info.n_obs; k++) {
        p->raw[k]       = arena_alloc(&p->arena, (size_t)(p->E * s->block_bytes[k]));
        p->raw_final[k] = arena_alloc(&p->arena, (size_t)(p->E * s->block_bytes[k]));
    }
    p->host_mask      = ARENA_ARRAY(&p->arena, uint8_t, p->E * p->spec.n_mask + 1);
    p->act_clipped    = ARENA_ARRAY(&p->arena, float, p->E * p->spec.n_act);
    p->episode_return = ARENA_ARRAY(&p->arena, float, p->E);
    p->reward_return  = ARENA_ARRAY(&p->arena, float, p->E);
    p->episode_length = ARENA_ARRAY(&p->arena, int32_t, p->E);
    p->alive          = ARENA_ARRAY(&p->arena, uint8_t, p->E);
    p->acted          = ARENA_ARRAY(&p->arena, uint8_t, p->E);
    p->pos            = ARENA_ARRAY(&p->arena, int32_t, p->E);
    p->moments        = ARENA_ARRAY(&p->arena, PpoMoments, comm_world(j->comm));
    return 0;
}

/* A step of a built-in environment takes less time than waking a thread, unless there are many: each thread
 * has so many of them. */
int ppo_threads(const Job *j, int64_t n_env)
{
    enum { MANY = 256 };
    int64_t n = j->recipe.threads > 0 ? j->recipe.threads : MIN(omp_get_max_threads(), hostmem_quota());
    if (j->recipe.ppo.threads > 0) return (int)j->recipe.ppo.threads;
    return (int)MAX(1, MIN(n, ppo_of(j)->spec.is_cheap ? n_env / MANY : n_env));
}

static EnvsIo io_of(const Ppo *p, int g)
{
    const PpoGroup *q     = &p->group[g];
    const PpoBlock *b     = &p->layout;
    int64_t         first = g * p->Eg;
    EnvsIo          io    = { .reward         = (float *)(q->host + b->reward) - first,
                              .terminated     = (uint8_t *)(q->host + b->terminated) - first,
                              .truncated      = (uint8_t *)(q->host + b->truncated) - first,
                              .alive          = p->A > 1 ? p->alive : NULL,
                              .episode_return = p->episode_return,
                              .episode_length = p->episode_length };
    const EnvSpec  *s     = envs_spec(p->envs);
    for (int k = 0; k < s->info.n_obs; k++) {
        io.obs[k]       = p->raw[k];
        io.final_obs[k] = p->raw_final[k];
    }
    if (p->spec.is_plain) io.obs[0] = (float *)(q->host + b->obs) - first * p->spec.obs_dim;
    if (p->spec.n_mask) io.mask = (uint8_t *)(q->host + b->mask) - first * p->spec.n_mask;
    if (p->spec.is_discrete)
        io.act_i = (const int32_t *)q->host_act - first * p->spec.n_act;
    else
        io.act_f = p->act_clipped;
    return io;
}

EnvsIo ppo_io_all(const Ppo *p)
{
    EnvsIo io = { .mask = p->spec.n_mask ? p->host_mask : NULL, .alive = p->A > 1 ? p->alive : NULL };
    for (int k = 0; k < envs_spec(p->envs)->info.n_obs; k++) io.obs[k] = p->raw[k];
    return io;
}

void ppo_spread(Ppo *p)
{
    const EnvSpec *s = envs_spec(p->envs);
    for (int g = 0; g < p->n_group; g++) {
        char   *host  = p->group[g].host;
        int64_t first = g * p->Eg;
        ppo_pack(s, (void *const *)p->raw, first, first + p->Eg, (float *)(host + p->layout.obs));
        if (p->spec.n_mask)
            memcpy(host + p->layout.mask, p->host_mask + first * p->spec.n_mask,
                   (size_t)(p->Eg * p->spec.n_mask));
    }
}

void ppo_gather_rows(Ppo *p)
{
    if (ppo_hybrid_answers(p)) return;
    size_t row = (size_t)p->spec.obs_dim * sizeof(float);
    for (int g = 0; g < p->n_group; g++) {
        const char *host  = p->group[g].host;
        int64_t     first = g * p->Eg;
        if (p->spec.is_plain)
            memcpy(p->raw[0] + (size_t)first * row, host + p->layout.obs, (size_t)p->Eg * row);
        if (p->spec.n_mask)
            memcpy(p->host_mask + first * p->spec.n_mask, host + p->layout.mask,
                   (size_t)(p->Eg * p->spec.n_mask));
    }
}

int ppo_envs_open(Job *j)
{
    Ppo     *p    = ppo_of(j);
    EnvsConf conf = ppo_envs_conf(&j->recipe, &p->arena);
    p->dev        = j->dev; /* from here on ppo_envs_close() gives buffers back */
    conf.n_env    = (int)(p->E / p->A);
    conf.n_group  = p->n_group;
    conf.n_thread = ppo_threads(j, p->Eg / p->A);
    conf.first    = comm_rank(j->comm) * conf.n_env;
    TRY(envs_open(&p->envs, &conf));
    TRY(open_buffers(j, envs_spec(p->envs)));
    EnvsIo io = ppo_io_all(p);
    TRY(envs_reset(p->envs, &io));
    ppo_spread(p);
    return p->by_host ? ppo_hybrid_open(j) : 0;
}

void ppo_envs_close(Ppo *p)
{
    ppo_hybrid_close(p);
    envs_close(p->envs);
    p->envs  = NULL;
    Dev *dev = p->dev;
    if (!dev) return;
    for (int g = 0; g < p->n_group; g++) {
        if (p->group[g].host) dev->vt->host_free(dev, p->group[g].host);
        if (p->group[g].host_act) dev->vt->host_free(dev, p->group[g].host_act);
        if (p->group[g].host_f) dev->vt->host_free(dev, p->group[g].host_f);
    }
    if (p->host_final) dev->vt->host_free(dev, p->host_final);
    if (p->host_inv) dev->vt->host_free(dev, p->host_inv);
}

/* ---- one step of a group ------------------------------------------------------------------------------ */

int ppo_wait_for(Job *j, int mark)
{
    enum { POLLS = 200000 };
    Dev *dev = j->dev;
    for (int i = 0; i < POLLS; i++) {
        int passed = dev->vt->mark_passed(dev, mark);
        if (passed != 0) return passed < 0 ? -1 : 0;
        __builtin_ia32_pause();
    }
    return dev->vt->mark_wait(dev, mark);
}

void ppo_clip_actions(Ppo *p, const float *from, int64_t first, int64_t n)
{
    const RecipeEnv *s = &p->spec;
    for (int64_t i = 0; i < n; i++) {
        for (int a = 0; a < s->n_act; a++)
            p->act_clipped[(first + i) * s->n_act + a] = ppo_clip_action(s, a, from[i * s->n_act + a]);
    }
}

double ppo_mean_return(const float *of_agent, int64_t n)
{
    double sum = 0;
    for (int64_t a = 0; a < n; a++) sum += (double)of_agent[a];
    return sum / (double)n;
}

static void note_episodes(Ppo *p, const PpoRows *r)
{
    PpoHost *h = &p->host;
    for (int64_t i = r->first; i < r->first + r->n; i += p->A) {
        if (p->episode_length[i] == 0) continue;
        int64_t k         = h->n_episode++ % PPO_LAST;
        h->last_return[k] = ppo_mean_return(&p->episode_return[i], p->A);
        h->last_length[k] = p->episode_length[i];
    }
}

/* Of the discounted returns that arrived now. acted: rows whose bytes are 0 do not count; NULL: all count. */
static PpoMoments moments_of(const float *x, const uint8_t *acted, int64_t n)
{
    PpoMoments m = { 0 };
    for (int64_t i = 0; i < n; i++) m.n += !acted || acted[i];
    for (int64_t i = 0; i < n; i++) m.mean += !acted || acted[i] ? (double)x[i] / m.n : 0;
    for (int64_t i = 0; i < n; i++)
        m.square += !acted || acted[i] ? ((double)x[i] - m.mean) * ((double)x[i] - m.mean) : 0;
    return m;
}

static void merge_rewards(PpoHost *h, const PpoMoments *m)
{
    if (m->n == 0) return; /* no agent took part */
    double all = h->n_reward + m->n, d = m->mean - h->mean_reward;
    h->square_reward += m->square + d * d * h->n_reward * m->n / all;
    h->mean_reward += d * m->n / all;
    h->n_reward = all;
}

/* Each reward is divided by the deviation of the discounted return, which is learned on the way. Ranks merge
 * what all of them saw, in the order of ranks, so they divide by the same number. */
static int norm_rewards(const Job *j, Ppo *p, const PpoRows *q)
{
    const RecipePpo *r     = &j->recipe.ppo;
    PpoHost         *h     = &p->host;
    float           *sum   = p->reward_return + q->first;
    int              world = comm_world(j->comm);
    for (int64_t i = 0; i < q->n; i++) sum[i] = sum[i] * (float)r->gamma + q->reward[i];
    PpoMoments own  = moments_of(sum, p->A > 1 ? p->acted + q->first : NULL, q->n),
               *all = world > 1 ? p->moments : &own;
    if (world > 1) TRY(comm_all_gather(j->comm, all, &own, sizeof own));
    for (int k = 0; k < world; k++) merge_rewards(h, &all[k]);
    double seen = fmax(h->n_reward, 1), scale = 1 / sqrt(h->square_reward / seen + 1e-8),
           most = r->reward_clip;
    for (int64_t i = 0; i < q->n; i++) {
        q->reward[i] = (float)fmin(fmax((double)q->reward[i] * scale, -most), most);
        if (q->terminated[i] || q->truncated[i]) sum[i] = 0;
    }
    return 0;
}

/* The last observations of truncated episodes go into one list; their values are computed together. */
static int keep_finals(const Job *j, Ppo *p, const PpoRows *r)
{
    for (int64_t i = 0; i < r->n; i++) {
        r->slot[i] = -1;
        if (!r->truncated[i] || !j->recipe.ppo.truncation || p->C > 1) continue;
        if (p->n_final_used == p->n_final)
            return err_set("environment %s cuts more than %lld episodes in a rollout (set ppo.max_steps to "
                           "its shortest limit)",
                           j->recipe.ppo.env, (long long)p->n_final);
        r->slot[i] = (int32_t)p->n_final_used;
        ppo_pack(envs_spec(p->envs), (void *const *)p->raw_final, r->first + i, r->first + i + 1,
                 p->host_final + p->n_final_used++ * p->spec.obs_dim);
    }
    return 0;
}

int ppo_take_in(const Job *j, const PpoRows *rows)
{
    Ppo *p = ppo_of(j);
    note_episodes(p, rows);
    TRY(keep_finals(j, p, rows));
    return j->recipe.ppo.reward_norm ? norm_rewards(j, p, rows) : 0;
}

static int step_group(Job *j, int g)
{
    Ppo *p = ppo_of(j);
    if (!p->spec.is_discrete) ppo_clip_actions(p, p->group[g].host_act, g * p->Eg, p->Eg);
    EnvsIo io    = io_of(p, g);
    double begin = clock_now_s();
    memcpy(p->acted + g * p->Eg, p->alive + g * p->Eg, (size_t)p->Eg);
    TRY(envs_step(p->envs, g, &io));
    p->times.env_s += clock_now_s() - begin;
    char   *host = p->group[g].host;
    PpoRows rows = { .reward     = (float *)(host + p->layout.reward),
                     .terminated = (uint8_t *)host + p->layout.terminated,
                     .truncated  = (uint8_t *)host + p->layout.truncated,
                     .slot       = (int32_t *)(host + p->layout.slot),
                     .first      = g * p->Eg,
                     .n          = p->Eg };
    TRY(ppo_take_in(j, &rows));
    if (!p->spec.is_plain)
        ppo_pack(envs_spec(p->envs), (void *const *)p->raw, g * p->Eg, (g + 1) * p->Eg,
                 (float *)(p->group[g].host + p->layout.obs));
    return 0;
}

/* ---- context ------------------------------------------------------------------------------------------ */

/* With a context the value of a last observation needs the cache of its time, so it is asked for at once. */
static int value_finals(Job *j, int g)
{
    Ppo           *p     = ppo_of(j);
    PpoGroup      *q     = &p->group[g];
    Dev           *dev   = j->dev;
    const uint8_t *cut   = (uint8_t *)q->host + p->layout.truncated;
    int64_t        first = g * p->Eg;
    size_t         bytes = final_obs_bytes(p);
    int32_t       *pos   = (int32_t *)(q->host_f + bytes);
    int            any   = 0;
    for (int64_t i = 0; i < p->Eg; i++) any |= cut[i];
    if (!any || !j->recipe.ppo.truncation) return 0;
    ppo_pack(envs_spec(p->envs), (void *const *)p->raw_final, first, first + p->Eg, (float *)q->host_f);
    for (int64_t i = 0; i < p->Eg; i++) pos[i] = p->pos[first + i] + 1;
    TRY(dev->vt->upload(dev, LANE_COMPUTE, q->f_obs->data, q->host_f, bytes));
    TRY(dev->vt->upload(dev, LANE_COMPUTE, q->f_pos->data, pos, (size_t)p->Eg * sizeof *pos));
    return prog_run(j->prog[q->f_prog], dev);
}

/* Memory begins anew with every episode and with every chunk of C steps. Updates see the same chunks, so they
 * see what the policy saw. What follows the last step still belongs to its chunk. */
static void place_rows(Ppo *p, int g, int64_t t)
{
    char          *host = p->group[g].host;
    const uint8_t *term = (uint8_t *)host + p->layout.terminated,
                  *cut  = (uint8_t *)host + p->layout.truncated;
    int32_t *pos = (int32_t *)(host + p->layout.pos), *doc = (int32_t *)(host + p->layout.doc);
    int      anew = t % p->C == 0 && t < p->T;
    for (int64_t i = 0; i < p->Eg; i++) {
        int32_t *at = &p->pos[g * p->Eg + i];
        *at         = anew || term[i] || cut[i] ? 0 : *at + 1;
        pos[i]      = *at;
        doc[i]      = (int32_t)(t % p->C) - *at;
    }
}

/* ---- who takes part ------------------------------------------------------------------------------------ */

void ppo_put_valid(Ppo *p, int64_t first, int64_t n, int32_t *out)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = p->alive[first + i] != 0;
        p->n_valid += out[i];
    }
}

/* The divisor of the losses is the number of rows that count, over all ranks, in the mean minibatch: each
 * such row of a rollout weighs the same in the updates. The frame does not know that number. */
static int divide_losses(Job *j)
{
    Ppo       *p      = ppo_of(j);
    Dev       *dev    = j->dev;
    int        world  = comm_world(j->comm);
    double     n_mini = (double)(p->T * p->E / p->minibatch);
    PpoMoments own = { .n = (double)p->n_valid }, *all = world > 1 ? p->moments : &own;
    if (world > 1) TRY(comm_all_gather(j->comm, all, &own, sizeof own));
    p->n_valid_all = 0;
    for (int k = 0; k < world; k++) p->n_valid_all += all[k].n;
    for (int k = 0; k < PPO_SLOTS; k++)
        p->host_inv[k] = p->n_valid_all > 0 ? (float)(n_mini / p->n_valid_all) : 0.0f;
    return dev->vt->upload(dev, LANE_COMPUTE, (char *)j->state->data + offsetof(StepState, in.inv),
                           p->host_inv, sizeof *p->host_inv * PPO_SLOTS);
}

/* ---- host rows ---------------------------------------------------------------------------------------- */

int ppo_collect(Job *j, int64_t turn)
{
    Ppo      *p   = ppo_of(j);
    int       g   = (int)(p->n_call % p->n_group);
    int64_t   t   = p->n_call / p->n_group;
    PpoGroup *q   = &p->group[g];
    Dev      *dev = j->dev;
    if (p->n_call++ == 0) {
        p->times.step_begin_s = clock_now_s();
        if (p->times.begin_s == 0) p->times.begin_s = p->times.step_begin_s;
        p->n_answer     = 0;
        p->n_final_used = 0;
        p->n_valid      = 0;
    }
    if (p->on_device) return 0;
    if (t > 0) {
        double begin = clock_now_s();
        TRY(ppo_wait_for(j, MARK_ANSWER + g));
        p->times.wait_s += clock_now_s() - begin;
        TRY(step_group(j, g));
        if (p->C > 1) TRY(value_finals(j, g));
    }
    if (p->C > 1) place_rows(p, g, t);
    if (p->A > 1 && t < p->T) ppo_put_valid(p, g * p->Eg, p->Eg, (int32_t *)(q->host + p->layout.valid));
    TRY(dev->vt->upload(dev, LANE_H2D, q->block->data, q->host, p->layout.size_bytes));
    return dev->vt->lane_wait(dev, LANE_COMPUTE, LANE_H2D);
}

/* Sends the actions of the group that was answered last on their way. */
int ppo_answer(Job *j, int64_t turn)
{
    Ppo      *p   = ppo_of(j);
    int       g   = (int)(p->n_answer++ % p->n_group);
    PpoGroup *q   = &p->group[g];
    Dev      *dev = j->dev;
    TRY(dev->vt->lane_wait(dev, LANE_D2H, LANE_COMPUTE));
    TRY(dev->vt->download(dev, LANE_D2H, q->host_act, q->action->data, tensor_bytes(q->action)));
    return dev->vt->mark(dev, LANE_D2H, MARK_ANSWER + g);
}

/* Environments on the device: only some rollouts are waited for, to know what they take. */
static int time_some(Job *j)
{
    enum { EVERY = 16, AT = 3 };
    Ppo *p   = ppo_of(j);
    Dev *dev = j->dev;
    if (p->times.n_rollout % EVERY != AT) return 0;
    TRY(dev->vt->mark(dev, LANE_COMPUTE, MARK_EVAL));
    TRY(ppo_wait_for(j, MARK_EVAL));
    p->times.some_rollout_s += clock_now_s() - p->times.step_begin_s;
    p->times.n_some += ppo_rollout_steps(j);
    return 0;
}

int ppo_rollout_done(Job *j, int64_t turn)
{
    Ppo *p    = ppo_of(j);
    Dev *dev  = j->dev;
    p->n_call = 0;
    p->host.n_step += ppo_rollout_steps(j);
    p->times.n_step += ppo_rollout_steps(j);
    p->times.n_rollout++;
    if (p->on_device) TRY(time_some(j));
    p->times.rollout_s += clock_now_s() - p->times.step_begin_s;
    if (p->by_host) TRY(ppo_hybrid_trace_begin(j));
    p->times.step_begin_s = clock_now_s();
    if (p->A > 1) TRY(divide_losses(j));
    if (p->n_final_used == 0 || ppo_hybrid_answers(p)) return 0; /* the host's block had them */
    return dev->vt->upload(dev, LANE_COMPUTE, p->final_obs->data, p->host_final,
                           (size_t)(p->n_final_used * p->spec.obs_dim) * sizeof(float));
}

int ppo_step_done(Job *j, int64_t turn)
{
    Ppo *p   = ppo_of(j);
    Dev *dev = j->dev;
    if (p->on_device) TRY(ppo_device_ask(j));
    TRY(dev->vt->mark(dev, LANE_COMPUTE, MARK_EVAL));
    TRY(dev->vt->mark_wait(dev, MARK_EVAL));
    if (p->on_device) ppo_device_note(p);
    p->times.update_s += clock_now_s() - p->times.step_begin_s;
    if (p->by_host) TRY(ppo_hybrid_trace_end(j));
    return 0;
}
