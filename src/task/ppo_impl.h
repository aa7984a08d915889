/* What the files of the PPO task share.
 *
 *     ppo.c         the task
 *     ppo_spec.c    what the environment is
 *     ppo_policy.c  the net
 *     ppo_record.c  programs and schedule
 *     ppo_envs.c    host rows: environments on the host
 *     ppo_device.c  environments on the device
 *     ppo_hybrid.c  answers by the host
 *     ppo_eval.c    episodes without chance
 *     ppo_state.c   what a checkpoint holds of the host
 *     ppo_export.c  a policy for other programs
 *     ppo_source.c  sources without fields */
#ifndef TASK_PPO_IMPL_H
#define TASK_PPO_IMPL_H

#include "env/envs.h"
#include "env/device.h"
#include "net/answer.h"
#include "net/mlp.h"
#include "net/net.h"
#include "task/job.h"
#include "task/ppo.h"

#include <math.h>

/* Losses and measures: slot PPO_TOTAL is what gradients come from, PPO_TOTAL + 1 + k is part k of op.h. */
enum { PPO_TOTAL, PPO_SLOTS = 1 + PPO_PARTS };

/* Random sites beyond those of the weights. */
enum { SITE_ACT = 1 << 21, SITE_ORDER };

/* Added to the variance of observations. */
#define PPO_OBS_EPS 1e-8f

enum { PPO_MAX_GROUP = 4, PPO_MAX_OPTION = 64, PPO_LAST = 100 /* episodes in the mean return */ };

/* Marks for host rows. */
enum { MARK_ANSWER = TASK_MARK0, MARK_EVAL = MARK_ANSWER + PPO_MAX_GROUP };

/* One step of a group as it travels; offsets in bytes. */
typedef struct {
    size_t obs, reward, slot, terminated, truncated, mask, pos, doc, valid, size_bytes;
} PpoBlock;

/* Environments that step together. Tensors of a rollout are views of the whole one, [T][Eg]. A row is an
 * agent of an environment. */
typedef struct {
    Tensor *block, *obs, *reward, *slot, *terminated, *truncated, *mask; /* as they arrive */
    Tensor *action;                                                      /* as it leaves */
    Tensor *t, *sample0;
    Tensor *r_obs, *r_action, *r_logp, *r_value, *r_mask;
    Tensor *r_reward, *r_terminated, *r_truncated, *r_slot; /* [T+1][Eg]: row t arrived with obs t */
    Tensor *s_reward, *s_terminated, *s_truncated, *s_slot; /* their rows 1 to T */
    Tensor *adv, *ret, *last_value;
    Tensor *valid, *r_valid; /* i32: the row's agent takes part; NULL with one agent, who always does */
    /* With a context: where each observation stands in its episode, and the first row it may see. */
    Tensor   *pos, *doc, *r_doc;
    NetDecode cache;
    Tensor   *f_obs, *f_pos, *r_final, *s_final; /* values of ends, which need the cache of their time */
    int       f_prog;
    char     *host_f;        /* pinned */
    Tensor   *lanes, *ended; /* environments on the device; sums of episodes that ended, f32[Eg,3] */
    char     *host;          /* pinned block */
    void     *host_act;
} PpoGroup;

/* Kept on the host from step to step, and in checkpoints. */
typedef struct {
    double  last_return[PPO_LAST], last_length[PPO_LAST];
    int64_t n_episode, n_step;
    double  n_reward, mean_reward, square_reward; /* of discounted returns */
} PpoHost;

/* Statistics of n numbers: their mean, and the sum of squares around the mean. */
typedef struct {
    double n, mean, square;
} PpoMoments;

/* What arrives for n rows from number `first` on. */
typedef struct {
    float   *reward;
    uint8_t *terminated, *truncated;
    int32_t *slot;
    int64_t  first, n;
} PpoRows;

/* Seconds of this start. */
typedef struct {
    double  busy_s, traced_s; /* kernels at work in one update, and its wall time; 0: not known */
    double  transfer_s;       /* of weights and rollouts, when the host answers */
    int64_t n_transfer, n_rollout;
    double  some_rollout_s; /* environments on the device: of the rollouts that were waited for */
    int64_t n_some;         /* steps in them */
    double  device_env_s;   /* of one step of all environments alone */
    double  env_s, wait_s, rollout_s, update_s, begin_s, step_begin_s;
    int64_t n_step;
} PpoTimes;

/* Greedy episodes, equally many in each environment. */
typedef struct {
    Envs     *envs;
    int       n, rows; /* environments; their agents, which are rows of the program */
    NetDecode cache;
    Tensor   *pos;
    int32_t  *host_pos;
    Tensor   *obs, *mask, *action, *sample0, *returns;
    int       prog, add;
    float    *host_obs;
    void     *raw[ENV_MAX_OBS];
    void     *host_act;
    uint8_t  *host_mask;
    float    *reward, *episode_return, *result;
    uint8_t  *terminated, *truncated, *alive;
    int32_t  *episode_length;
    int64_t  *done;   /* episodes of each environment */
    int64_t   n_step; /* of the last evaluation, in all environments; 0: there was none */
    double    mean;   /* its mean return */
} PpoEval;

typedef struct {
    RecipeEnv  spec;
    ParamTable table;
    Net        trunk;     /* of policy.kind trunk */
    int64_t    A;         /* agents of an environment */
    int64_t    T, E, Eg;  /* steps, rows of this rank, of one group: all agents of its environments */
    int64_t    minibatch; /* observations, of this rank */
    int64_t    C;         /* observations that the net sees at once */
    int        n_group;
    PpoBlock   layout;
    PpoGroup   group[PPO_MAX_GROUP];
    /* Whole rollouts, [groups][T][Eg]. */
    Tensor   *obs, *action, *logp, *value, *mask, *adv, *ret, *doc, *valid;
    Tensor   *sequence;                /* i32[n/C, C]: rows of each sequence; NULL without a context */
    Tensor   *final_obs, *final_value; /* of truncated episodes, n_final rows */
    int64_t   n_final;
    Tensor   *order, *epoch, *at_mini, *at_micro, *norm, *coef, *seg, *stats_adv, *stats_ret;
    Tensor   *obs_run; /* running statistics of observations; NULL: none */
    Tensor   *kept;    /* u8, PpoHost and the environments, written before a save */
    PpoEval   eval;
    int       on_device; /* environments step on the device */
    EnvDevice device;
    int32_t   device_length; /* option of tmaze */
    int       unroll;        /* turns in one program, on the device */
    float    *host_ended;

    /* Answers by the host: all that a rollout brings is one block, so one transfer takes it up. */
    int            by_host; /* this run may answer on the host */
    Tensor        *root;
    size_t         root_end;
    struct Hybrid *hybrid;
    int            act, last; /* programs of the device's answers */

    /* ---- once bound ---- */
    Dev        *dev;
    Envs       *envs;
    char       *raw[ENV_MAX_OBS], *raw_final[ENV_MAX_OBS]; /* observations as the environment writes them */
    uint8_t    *host_mask;                                 /* [E][n_mask], current where rows are together */
    uint8_t    *alive, *acted; /* [E], several agents: now, before the last step */
    int64_t     n_valid;       /* rows of this rollout whose agent takes part */
    double      n_valid_all;   /* of all ranks */
    float      *host_inv;      /* pinned, [PPO_SLOTS] */
    float      *host_final;    /* n_final rows */
    int64_t     n_final_used;
    float      *act_clipped; /* continuous actions inside their range */
    float      *episode_return, *reward_return;
    int32_t    *episode_length;
    PpoMoments *moments; /* of each rank */
    int32_t    *pos;     /* of each row's observation in its episode and chunk */
    int64_t     n_call;  /* of collect in this step */
    int64_t     n_answer;
    PpoHost     host;
    PpoTimes    times;
    Arena       arena;
} Ppo;

static inline Ppo *ppo_of(const Job *j) { return j->own; }

/* Steps of a rollout, of all agents and ranks. */
static inline int64_t ppo_rollout_steps(const Job *j)
{
    return ppo_of(j)->T * ppo_of(j)->E * comm_world(j->comm);
}

/* Dimension a of a continuous action, inside its range. */
static inline float ppo_clip_action(const RecipeEnv *s, int64_t a, float x)
{
    return s->low[a] < s->high[a] ? fminf(fmaxf(x, s->low[a]), s->high[a]) : x;
}

/* ---- ppo_spec.c ---- */

/* What the recipe says of environments; options and strings are kept in the arena. */
EnvsConf ppo_envs_conf(const Recipe *r, Arena *a);
/* Opens one environment to see what it is, unless the recipe knows. Negative after recipe_blame(). */
int ppo_know_env(Recipe *r);
/* Rows [lo, hi) of raw blocks to rows of the net. */
void ppo_pack(const EnvSpec *spec, void *const *raw, int64_t lo, int64_t hi, float *out);

/* ---- ppo_policy.c ---- */

typedef struct {
    Tensor *logits; /* or the mean of continuous actions; NULL unless asked for */
    Tensor *log_std;
    Tensor *value; /* f32[N,1] */
} PpoOut;

/* What the net sees. For a trunk with a context: B sequences of T observations with the first row of each
 * row's episode (doc), or one new observation a sequence (decode). */
typedef struct {
    Tensor          *obs; /* f32[N,D] */
    int64_t          B, T;
    Tensor          *doc;
    const NetDecode *decode;
} PpoIn;

enum { PPO_ACTOR = 1, PPO_CRITIC = 2 };

void ppo_policy_declare(Job *j);
void ppo_policy_deinit(Ppo *p);
/* Hidden layers of an mlp. With policy.shared the actor's are the critic's, too. */
Mlp    ppo_policy_actor(const RecipePolicy *r, const RecipeEnv *s);
Mlp    ppo_policy_critic(const RecipePolicy *r, const RecipeEnv *s);
PpoOut ppo_policy_record(Job *j, Prog *p, const PpoIn *in, unsigned parts);

/* ---- ppo_record.c ---- */

int ppo_record(Job *j);
int ppo_record_greedy(Job *j); /* its number */

/* ---- ppo_envs.c ---- */

int  ppo_envs_open(Job *j);
void ppo_envs_close(Ppo *p);
/* All rows together, for the first observations and for saving; and their way to and from the groups. If the
 * host answers, rows stay together. */
EnvsIo ppo_io_all(const Ppo *p);
void   ppo_spread(Ppo *p);
void   ppo_gather_rows(Ppo *p);
/* What every way of collecting does with arrivals: episodes are counted, last observations kept, rewards
 * scaled. */
int ppo_take_in(const Job *j, const PpoRows *rows);
/* Of an episode: the mean over its agents. */
double ppo_mean_return(const float *of_agent, int64_t n);
/* Continuous actions inside their range, to act_clipped. */
void ppo_clip_actions(Ppo *p, const float *from, int64_t first, int64_t n);
/* Several agents: who takes part in the rows from `first` on, as the losses read it; counts them. */
void ppo_put_valid(Ppo *p, int64_t first, int64_t n, int32_t *out);
int  ppo_wait_for(Job *j, int mark);
int  ppo_threads(const Job *j, int64_t n_env); /* that step so many environments */
int  ppo_collect(Job *j, int64_t turn);        /* host rows */
int  ppo_answer(Job *j, int64_t turn);
int  ppo_rollout_done(Job *j, int64_t turn);
int  ppo_step_done(Job *j, int64_t turn);

/* ---- ppo_device.c ---- */

int  ppo_device_choose(Job *j); /* sets on_device; negative after recipe_blame() */
void ppo_device_declare(Job *j, PpoGroup *g);
int  ppo_device_open(Job *j);
int  ppo_device_reset(Job *j); /* first episodes; waits */
/* What saved environments are: name, options and seed, as a number above 0. They go on only if they still are
 * that; mark 0: not known. */
int64_t ppo_device_mark(const Recipe *r);
int     ppo_device_is_other(const Recipe *r, int64_t mark);
void    ppo_device_close(Ppo *p);
void    ppo_device_record(Job *j, Prog *p, PpoGroup *g); /* one step of the environments */
int     ppo_device_ask(Job *j);                          /* queues the download of what ended */
void    ppo_device_note(Ppo *p);                         /* takes it in */

/* ---- ppo_hybrid.c ---- */

int  ppo_hybrid_choose(Job *j); /* sets by_host; negative after recipe_blame() */
int  ppo_hybrid_open(Job *j);
void ppo_hybrid_close(Ppo *p);
/* Traces the kernels of one update, where the device can. */
int  ppo_hybrid_trace_begin(Job *j);
int  ppo_hybrid_trace_end(Job *j);
int  ppo_hybrid_answers(const Ppo *p);   /* 1: the host answers, so the current observations are in raw */
int  ppo_episodes(Job *j, int64_t turn); /* host row: a whole rollout */
void ppo_hybrid_summary(Job *j);

/* ---- ppo_state.c ---- */

int64_t ppo_state_bytes(const Ppo *p);
int     ppo_before_save(Job *j);
int     ppo_after_load(Job *j);

/* ---- ppo_eval.c ---- */

void ppo_eval_declare(Job *j);
int  ppo_eval_record(Job *j);
int  ppo_eval_open(Job *j);
void ppo_eval_close(Ppo *p);
int  ppo_play(Job *j, const TaskPlay *opt);

/* ---- ppo_export.c ---- */

int ppo_export(const Recipe *r, const TaskExport *opt);

/* ---- ppo_source.c: nothing is read from files ---- */

int ppo_open_train(Source **out, const Recipe *r);
int ppo_open_val(Source **out, const Recipe *r, int64_t most, const Source *train);

#endif
