/* Environments that step on the device, inside the program that answers them. Observations, actions and
 * rewards never leave the device; a step of the run waits for nothing but its own end.
 *
 * Their state and the block of arrivals are kept tensors, so a checkpoint has them. */
#include "task/ppo_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"
#include "env/builtin.h"
#include "env/tmaze.h"
#include "prog/record.h"

#include <string.h>
#include <xxhash.h>

/* The tensors of the op, in order. */
enum { LANES, OBS, FINAL, REWARD, TERMINATED, TRUNCATED, SLOT, TURN, ACTION, ENDED };

static int can_step(const Job *j, const char **why)
{
    const RecipePpo *r = &j->recipe.ppo;
    *why               = "needs a GPU";
    if (!j->vt->hints->is_late) return 0;
    *why = "steps environments of one agent only";
    if (ppo_of(j)->A > 1) return 0;
    *why = "needs a built-in environment with observations of floats";
    if (!env_device_has(r->env)) return 0;
    *why = "goes with neither ppo.reward_norm nor isolate";
    if (r->reward_norm || r->isolate != ISOLATE_NONE) return 0;
    *why = "has no policy.context";
    return j->recipe.policy.context == 1;
}

/* Of the T-maze. The host's environment was opened before, so the option is right. */
static int read_length(const Job *j)
{
    const char *list = j->recipe.ppo.options;
    char        item[RECIPE_STR];
    int64_t     n = TMAZE_LENGTH;
    while (str_list_next(&list, item, sizeof item) > 0)
        if (str_starts_with(item, "length=")) str_parse_int(item + strlen("length="), &n);
    return (int)n;
}

int ppo_device_choose(Job *j)
{
    enum { MOST_UNROLLED = 16 };
    Ppo        *p = ppo_of(j);
    const char *why;
    int         can = can_step(j, &why);
    if (j->recipe.ppo.place == ENVS_DEVICE && !can)
        return recipe_blame(&j->recipe, "ppo.place", "device %s", why);
    p->on_device = can && j->recipe.ppo.place != ENVS_HOST && job_trains(j);
    p->unroll    = 1;
    if (!p->on_device) return 0;
    while (p->unroll < MOST_UNROLLED && p->T % (2 * p->unroll) == 0) p->unroll *= 2;
    p->device_length = read_length(j);
    /* A plan for a card that is not here finds no library, and never runs. */
    (void)env_device_open(&p->device, (const void *)j->vt->ops.call);
    return 0;
}

void ppo_device_declare(Job *j, PpoGroup *g)
{
    Ppo    *p = ppo_of(j);
    int64_t n = p->Eg * DEVICE_LANE, ended[2] = { p->Eg, 3 };
    g->lanes = job_declare_state(j, "lanes", DT_U8, 1, &n, 1);
    g->ended = job_declare_state(j, "ended", DT_F32, 2, ended, 0);
}

static EnvCuda env_of(const Job *j, Tensor *const *t)
{
    const Ppo *p = ppo_of(j);
    EnvCuda    e = { .kind       = p->device.find(builtin_find(j->recipe.ppo.env)->name),
                     .n_env      = (int)p->Eg,
                     .length     = p->device_length,
                     .limit      = p->spec.limit,
                     .seed       = (uint64_t)j->recipe.seed,
                     .lanes      = t[LANES]->data,
                     .obs        = t[OBS]->data,
                     .final_obs  = t[FINAL]->data,
                     .reward     = t[REWARD]->data,
                     .terminated = t[TERMINATED]->data,
                     .truncated  = t[TRUNCATED]->data,
                     .slot       = t[SLOT]->data,
                     .turn       = t[TURN]->data,
                     .per_env    = (int32_t)(p->n_final / p->Eg),
                     .ended      = t[ENDED]->data,
                     .first      = comm_rank(j->comm) * p->E };
    if (p->spec.is_discrete)
        e.act_i = t[ACTION]->data;
    else
        e.act_f = t[ACTION]->data;
    return e;
}

static int step(const CallFn *a, void *stream)
{
    const Job *j = a->ctx;
    EnvCuda    e = env_of(j, a->t);
    return ppo_of(j)->device.step(&e, stream);
}

static CallFn call_of(const Job *j, PpoGroup *g)
{
    return (CallFn){ .t   = { g->lanes, g->obs, ppo_of(j)->final_obs, g->reward, g->terminated, g->truncated,
                              g->slot, g->t, g->action, g->ended },
                     .fn  = step,
                     .ctx = j };
}

void ppo_device_record(Job *j, Prog *p, PpoGroup *g)
{
    prog_at(p, -1, -1, "environments");
    rec_call(p, call_of(j, g));
}

int64_t ppo_device_mark(const Recipe *r)
{
    uint64_t h = XXH64(r->ppo.env, strlen(r->ppo.env) + 1, (uint64_t)r->seed);
    return (int64_t)(XXH64(r->ppo.options, strlen(r->ppo.options) + 1, h) >> 1 | 1);
}

int ppo_device_is_other(const Recipe *r, int64_t mark) { return mark != 0 && mark != ppo_device_mark(r); }

int ppo_device_reset(Job *j)
{
    Ppo    *p = ppo_of(j);
    CallFn  c = call_of(j, &p->group[0]);
    EnvCuda e = env_of(j, c.t);
    TRY(j->dev->vt->sync(j->dev));
    TRY(p->device.reset(&e, NULL));
    return p->device.wait(NULL);
}

/* Steps of all environments alone, a few times; then they begin anew. */
static int time_alone(Job *j)
{
    enum { TIMES = 32 };
    Ppo    *p     = ppo_of(j);
    CallFn  c     = call_of(j, &p->group[0]);
    EnvCuda e     = env_of(j, c.t);
    double  begin = 0;
    for (int k = 0; k < TIMES; k++) {
        if (k == TIMES / 2) {
            TRY(p->device.wait(NULL));
            begin = clock_now_s();
        }
        TRY(p->device.step(&e, NULL));
    }
    TRY(p->device.wait(NULL));
    p->times.device_env_s = (clock_now_s() - begin) / (TIMES - TIMES / 2);
    return ppo_device_reset(j);
}

int ppo_device_open(Job *j)
{
    Ppo      *p = ppo_of(j);
    PpoGroup *g = &p->group[0];
    CallFn    c = call_of(j, g);
    if (!p->device.step) return err_set("the GPU library has no environments");
    EnvCuda e = env_of(j, c.t);
    CHECK(p->device.bytes(e.kind, e.n_env) <= (int64_t)tensor_bytes(g->lanes), "raise DEVICE_LANE");
    TRY(ppo_device_reset(j));
    TRY(time_alone(j));
    p->dev        = j->dev;
    p->host_ended = j->dev->vt->host_alloc(j->dev, tensor_bytes(g->ended));
    return p->host_ended ? 0 : -1;
}

void ppo_device_close(Ppo *p)
{
    if (p->host_ended) p->dev->vt->host_free(p->dev, p->host_ended);
}

int ppo_device_ask(Job *j)
{
    Ppo      *p   = ppo_of(j);
    PpoGroup *g   = &p->group[0];
    Dev      *dev = j->dev;
    return dev->vt->download(dev, LANE_COMPUTE, p->host_ended, g->ended->data, tensor_bytes(g->ended));
}

/* An environment that ended several episodes in one rollout counts with their mean. */
void ppo_device_note(Ppo *p)
{
    PpoHost *h = &p->host;
    for (int64_t i = 0; i < p->Eg; i++) {
        const float *sums = p->host_ended + 3 * i;
        for (int k = 0; k < (int)sums[2]; k++) {
            int64_t at         = h->n_episode++ % PPO_LAST;
            h->last_return[at] = (double)sums[0] / (double)sums[2];
            h->last_length[at] = (double)sums[1] / (double)sums[2];
        }
    }
}
