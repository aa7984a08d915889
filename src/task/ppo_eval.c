/* Greedy episodes in environments of their own: evaluations while training, and `brim play`.
 *
 * 1. Each environment plays the same number of episodes, so short ones do not count more often.
 * 2. Every evaluation plays the same episodes: their seeds depend on the run's seed alone. */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "env/play.h"
#include "prog/record.h"

#include <string.h>

/* Added to the run's seed: other episodes than training has. */
static const uint64_t eval_seed = 0x5eed0e7a1ull;

static int64_t rounds(const Job *j) { return j->recipe.eval.samples / ppo_of(j)->eval.n; }

void ppo_eval_declare(Job *j)
{
    enum { MOST = 1024 };
    Ppo             *p = ppo_of(j);
    PpoEval         *e = &p->eval;
    const RecipeEnv *s = &p->spec;
    int64_t          n = j->recipe.eval.samples, one = 1;
    e->n = (int)MIN(n, MOST);
    while (n % e->n != 0) e->n--;
    e->rows        = (int)(e->n * p->A);
    int64_t obs[2] = { e->rows, s->obs_dim }, act[2] = { e->rows, s->n_act },
            mask[2] = { e->rows, s->n_mask };
    e->obs          = job_declare_state(j, "eval obs", DT_F32, 2, obs, 0);
    e->action       = job_declare_state(j, "eval actions", s->is_discrete ? DT_I32 : DT_F32, 2, act, 0);
    e->sample0      = job_declare_state(j, "eval row", DT_I64, 1, &one, 0);
    e->returns      = job_declare_state(j, "eval returns", DT_F32, 1, &n, 0);
    if (p->C > 1) {
        int64_t rows = e->rows;
        e->pos       = job_declare_state(j, "eval positions", DT_I32, 1, &rows, 0);
        net_declare_caches(&p->trunk, &j->store, &e->cache, e->rows, p->trunk.model.context);
        e->cache.pos = e->pos;
    }
    if (s->n_mask) e->mask = job_declare_state(j, "eval mask", DT_U8, 2, mask, 0);
}

/* ---- one answer --------------------------------------------------------------------------------------- */

static int answer(Job *j)
{
    Ppo     *p = ppo_of(j);
    PpoEval *e = &p->eval;
    Dev     *d = j->dev;
    TRY(d->vt->upload(d, LANE_COMPUTE, e->obs->data, e->host_obs, tensor_bytes(e->obs)));
    if (e->mask) TRY(d->vt->upload(d, LANE_COMPUTE, e->mask->data, e->host_mask, tensor_bytes(e->mask)));
    if (e->pos) TRY(d->vt->upload(d, LANE_COMPUTE, e->pos->data, e->host_pos, tensor_bytes(e->pos)));
    TRY(prog_run(j->prog[e->prog], d));
    TRY(d->vt->download(d, LANE_COMPUTE, e->host_act, e->action->data, tensor_bytes(e->action)));
    TRY(d->vt->mark(d, LANE_COMPUTE, MARK_EVAL));
    TRY(d->vt->mark_wait(d, MARK_EVAL));
    for (int i = 0; i < e->rows && e->pos; i++) e->host_pos[i] = (int32_t)((e->host_pos[i] + 1) % p->C);
    if (p->spec.is_discrete) return 0;
    float *a = e->host_act;
    for (int64_t i = 0; i < (int64_t)e->rows * p->spec.n_act; i++)
        a[i] = ppo_clip_action(&p->spec, i % p->spec.n_act, a[i]);
    return 0;
}

/* ---- evaluation --------------------------------------------------------------------------------------- */

static EnvsIo eval_io(const Ppo *p)
{
    const PpoEval *e  = &p->eval;
    EnvsIo         io = { .reward         = e->reward,
                          .terminated     = e->terminated,
                          .truncated      = e->truncated,
                          .mask           = p->spec.n_mask ? e->host_mask : NULL,
                          .alive          = p->A > 1 ? e->alive : NULL,
                          .episode_return = e->episode_return,
                          .episode_length = e->episode_length };
    for (int k = 0; k < envs_spec(e->envs)->info.n_obs; k++) io.obs[k] = e->raw[k];
    if (p->spec.is_discrete)
        io.act_i = e->host_act;
    else
        io.act_f = e->host_act;
    return io;
}

static int open_envs(Job *j)
{
    Ppo     *p = ppo_of(j);
    PpoEval *e = &p->eval;
    if (e->envs) return 0;
    EnvsConf conf = ppo_envs_conf(&j->recipe, &p->arena);
    conf.n_env    = e->n;
    conf.seed += eval_seed;
    conf.n_thread = p->spec.is_cheap ? 1 : ppo_threads(j, e->n);
    TRY(envs_open(&e->envs, &conf));
    const EnvSpec *s = envs_spec(e->envs);
    for (int k = 0; k < s->info.n_obs; k++)
        e->raw[k] = arena_alloc(&p->arena, (size_t)(e->rows * s->block_bytes[k]));
    return 0;
}

/* 1: a signal came; there is no result. */
static int episodes(Job *j)
{
    enum { ENDLESS = 1000000 };
    Ppo     *p   = ppo_of(j);
    PpoEval *e   = &p->eval;
    int64_t  per = rounds(j), left = e->n * per;
    EnvsIo   io = eval_io(p);
    e->n_step   = 0;
    TRY(envs_reset(e->envs, &io));
    memset(e->done, 0, sizeof *e->done * (size_t)e->n);
    memset(e->host_pos, 0, sizeof *e->host_pos * (size_t)e->rows);
    for (int64_t t = 0; left > 0; t++) {
        if (job_leaves(j)) {
            e->n_step = 0;
            return 1;
        }
        if (t == ENDLESS)
            return err_set(
                "environment %s: an episode has no end after %d steps (ppo.max_steps gives it one)",
                j->recipe.ppo.env, ENDLESS);
        ppo_pack(envs_spec(e->envs), (void *const *)e->raw, 0, e->rows, e->host_obs);
        TRY(answer(j));
        TRY(envs_step(e->envs, 0, &io));
        e->n_step += e->rows;
        for (int i = 0; i < e->rows; i++)
            if (e->terminated[i] || e->truncated[i]) e->host_pos[i] = 0;
        for (int i = 0; i < e->n; i++) {
            const float *of_agent = e->episode_return + i * p->A;
            if (e->episode_length[i * p->A] == 0 || e->done[i] == per) continue;
            e->result[i * per + e->done[i]++] = (float)ppo_mean_return(of_agent, p->A);
            left--;
        }
    }
    return 0;
}

static int evaluate(Job *j, int64_t turn)
{
    PpoEval *e = &ppo_of(j)->eval;
    int64_t  n = j->recipe.eval.samples;
    TRY(open_envs(j));
    int rc = episodes(j);
    if (rc != 0) return rc;
    e->mean = 0;
    for (int64_t i = 0; i < n; i++) e->mean += (double)e->result[i] / (double)n;
    return j->dev->vt->upload(j->dev, LANE_COMPUTE, e->returns->data, e->result, tensor_bytes(e->returns));
}

int ppo_eval_record(Job *j)
{
    PpoEval *e = &ppo_of(j)->eval;
    e->prog    = ppo_record_greedy(j);
    Prog *p    = job_begin(j, "returns");
    prog_at(p, -1, -1, "returns");
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = e->returns, .slot = PPO_TOTAL });
    e->add = job_end(j, p, 0);
    schedule_add(
        &j->eval,
        (ScheduleRow){ .name = "episodes", .times = 1, .prog = e->add, .feeds = 1, .host = evaluate });
    return 0;
}

int ppo_eval_open(Job *j)
{
    Ppo     *p        = ppo_of(j);
    PpoEval *e        = &p->eval;
    Arena   *a        = &p->arena;
    Dev     *d        = j->dev;
    p->dev            = d;
    e->host_obs       = d->vt->host_alloc(d, tensor_bytes(e->obs));
    e->host_act       = d->vt->host_alloc(d, tensor_bytes(e->action));
    e->host_mask      = d->vt->host_alloc(d, (size_t)(e->rows * p->spec.n_mask + 1));
    e->result         = d->vt->host_alloc(d, tensor_bytes(e->returns));
    e->host_pos       = d->vt->host_alloc(d, sizeof *e->host_pos * (size_t)e->rows);
    e->reward         = ARENA_ARRAY(a, float, e->rows);
    e->episode_return = ARENA_ARRAY(a, float, e->rows);
    e->episode_length = ARENA_ARRAY(a, int32_t, e->rows);
    e->terminated     = ARENA_ARRAY(a, uint8_t, e->rows);
    e->truncated      = ARENA_ARRAY(a, uint8_t, e->rows);
    e->alive          = ARENA_ARRAY(a, uint8_t, e->rows);
    e->done           = ARENA_ARRAY(a, int64_t, e->n);
    return e->host_obs && e->host_act && e->host_mask && e->result && e->host_pos ? 0 : -1;
}

void ppo_eval_close(Ppo *p)
{
    PpoEval *e = &p->eval;
    Dev     *d = p->dev;
    envs_close(e->envs);
    if (!d) return;
    if (e->host_obs) d->vt->host_free(d, e->host_obs);
    if (e->host_act) d->vt->host_free(d, e->host_act);
    if (e->host_mask) d->vt->host_free(d, e->host_mask);
    if (e->result) d->vt->host_free(d, e->result);
    if (e->host_pos) d->vt->host_free(d, e->host_pos);
}

/* ---- playing ------------------------------------------------------------------------------------------ */

static int play_answer(void *self, const EnvSpec *spec, const EnvsIo *io, int first, int32_t *act_i,
                       float *act_f)
{
    Job     *j = self;
    Ppo     *p = ppo_of(j);
    PpoEval *e = &p->eval;
    int64_t  n = p->A;
    ppo_pack(spec, io->obs, 0, n, e->host_obs);
    if (p->spec.n_mask) memcpy(e->host_mask, io->mask, (size_t)(n * p->spec.n_mask));
    for (int64_t a = 0; a < n; a++)
        if (first || io->terminated[a]) e->host_pos[a] = 0;
    TRY(answer(j));
    if (p->spec.is_discrete)
        memcpy(act_i, e->host_act, sizeof *act_i * (size_t)(n * p->spec.n_act));
    else
        memcpy(act_f, e->host_act, sizeof *act_f * (size_t)(n * p->spec.n_act));
    return 0;
}

int ppo_play(Job *j, const TaskPlay *opt)
{
    Ppo     *p    = ppo_of(j);
    PlayConf conf = { .env         = ppo_envs_conf(&j->recipe, &p->arena),
                      .n_episode   = (int)opt->n_episode,
                      .out         = opt->out,
                      .in_terminal = opt->in_terminal,
                      .text        = opt->text,
                      .policy      = play_answer,
                      .self        = j };
    conf.env.seed = opt->seed;
    return play_run(&conf);
}
