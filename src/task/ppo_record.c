/* The programs of PPO, and the order in which a step runs them. */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "prog/record.h"

/* ---- the rollout -------------------------------------------------------------------------------------- */

/* Rows of all ranks, in their order, so that ranks scale alike. NULL stays NULL. */
static Tensor *record_everywhere(Job *j, Prog *p, Tensor *x)
{
    if (!x || j->choice.world <= 1) return x;
    int64_t dim[2] = { tensor_rows(x) * j->choice.world, tensor_cols(x) };
    Tensor *y      = prog_tensor(p, "of all ranks", x->dtype, 2, dim);
    prog_lane(p, LANE_COMM);
    rec_all_gather(p, (AllGather){ .y = y, .x = x });
    prog_lane(p, LANE_COMPUTE);
    return y;
}

/* Observations as the net sees them. learn: the running statistics take in first those of this group that are
 * valid; NULL: they stay as they are. */
static Tensor *record_obs(Job *j, Prog *p, Tensor *obs, const PpoGroup *learn)
{
    Ppo *o = ppo_of(j);
    if (!o->obs_run) return obs;
    Tensor *x = prog_like(p, "obs", obs);
    prog_at(p, -1, -1, "obs norm");
    if (learn)
        rec_obs_stats(p, (ObsStats){ .run   = o->obs_run,
                                     .x     = record_everywhere(j, p, obs),
                                     .valid = record_everywhere(j, p, learn->valid) });
    rec_obs_norm(
        p,
        (ObsNorm){
            .y = x, .x = obs, .run = o->obs_run, .eps = PPO_OBS_EPS, .clip = (float)j->recipe.ppo.obs_clip });
    return x;
}

static void put_add(Put *put, Tensor *y, Tensor *x)
{
    int n = 0;
    while (n < PUT_PAIRS && put->y[n]) n++;
    CHECK(n < PUT_PAIRS, "more than %d rows to store", PUT_PAIRS);
    put->y[n] = y;
    put->x[n] = x;
}

/* What arrived with this observation belongs to the step before. */
static Put put_arrivals(const PpoGroup *g)
{
    return (Put){ .y = { g->r_reward, g->r_terminated, g->r_truncated, g->r_slot },
                  .x = { g->reward, g->terminated, g->truncated, g->slot },
                  .t = g->t };
}

typedef struct {
    Tensor *action, *mask, *sample0, *t;
    int     greedy;
} Sampled;

static Tensor *record_sample(Job *j, Prog *p, const PpoOut *out, const Sampled *s)
{
    Ppo    *o    = ppo_of(j);
    int64_t N    = tensor_rows(out->logits);
    Tensor *logp = prog_tensor(p, "logp", DT_F32, 1, &N);
    prog_at(p, -1, -1, "sample");
    if (o->spec.is_discrete) {
        rec_sample_cat(p, (SampleCat){ .action  = s->action,
                                       .logp    = logp,
                                       .logits  = out->logits,
                                       .mask    = s->mask,
                                       .seg     = o->seg,
                                       .state   = j->state,
                                       .sample0 = s->sample0,
                                       .t       = s->t,
                                       .site    = SITE_ACT,
                                       .greedy  = s->greedy });
    } else {
        rec_sample_gauss(p, (SampleGauss){ .action  = s->action,
                                           .logp    = logp,
                                           .mean    = out->logits,
                                           .log_std = out->log_std,
                                           .state   = j->state,
                                           .sample0 = s->sample0,
                                           .t       = s->t,
                                           .site    = SITE_ACT,
                                           .greedy  = s->greedy });
    }
    return logp;
}

static PpoIn one_step(const Ppo *o, PpoGroup *g, Tensor *obs)
{
    return (PpoIn){ .obs = obs, .decode = o->C > 1 ? &g->cache : NULL };
}

/* One turn of a group. */
static void record_turn(Job *j, Prog *p, PpoGroup *g)
{
    Ppo    *o    = ppo_of(j);
    Tensor *x    = record_obs(j, p, g->obs, g);
    PpoIn   in   = one_step(o, g, x);
    PpoOut  out  = ppo_policy_record(j, p, &in, PPO_ACTOR | PPO_CRITIC);
    Tensor *logp = record_sample(
        j, p, &out, &(Sampled){ .action = g->action, .mask = g->mask, .sample0 = g->sample0, .t = g->t });
    prog_at(p, -1, -1, "store");
    Put put = put_arrivals(g);
    put_add(&put, g->r_obs, x);
    put_add(&put, g->r_action, g->action);
    put_add(&put, g->r_logp, logp);
    put_add(&put, g->r_value, out.value);
    if (g->mask) put_add(&put, g->r_mask, g->mask);
    if (g->doc) put_add(&put, g->r_doc, g->doc);
    rec_put(p, put);
    if (g->valid) rec_put(p, (Put){ .y = { g->r_valid }, .x = { g->valid }, .t = g->t });
    if (o->on_device) ppo_device_record(j, p, g);
    prog_at(p, -1, -1, "next");
    rec_tick(p, (Tick){ .t = g->t, .modulo = (int)o->T + 1 });
}

static int record_begin(Job *j, PpoGroup *g)
{
    Prog *p = job_begin(j, "begin");
    prog_at(p, -1, -1, "nothing ended yet");
    rec_fill(p, (Fill){ .y = g->ended });
    return job_end(j, p, 0);
}

static int record_act(Job *j, PpoGroup *g)
{
    Prog *p = job_begin(j, "act");
    for (int i = 0; i < ppo_of(j)->unroll; i++) record_turn(j, p, g);
    return job_end(j, p, 0);
}

int ppo_record_greedy(Job *j)
{
    PpoEval *e   = &ppo_of(j)->eval;
    Prog    *p   = job_begin(j, "greedy");
    PpoIn    in  = { .obs = record_obs(j, p, e->obs, NULL), .decode = e->pos ? &e->cache : NULL };
    PpoOut   out = ppo_policy_record(j, p, &in, PPO_ACTOR);
    record_sample(j, p, &out,
                  &(Sampled){ .action = e->action, .mask = e->mask, .sample0 = e->sample0, .greedy = 1 });
    return job_end(j, p, 0);
}

static int record_last(Job *j, PpoGroup *g)
{
    Ppo  *o = ppo_of(j);
    Prog *p = job_begin(j, "last");
    prog_at(p, -1, -1, "store arrivals");
    rec_put(p, put_arrivals(g));
    PpoIn  in  = one_step(o, g, record_obs(j, p, g->obs, NULL));
    PpoOut out = ppo_policy_record(j, p, &in, PPO_CRITIC);
    prog_at(p, -1, -1, "last value");
    rec_copy(p, (Copy){ .y = g->last_value, .x = out.value });
    rec_tick(p, (Tick){ .t = g->t, .modulo = (int)o->T + 1 });
    return job_end(j, p, 0);
}

/* Last observations of episodes that were cut in this turn, of all rows; with the cache of this time. */
static int record_final(Job *j, PpoGroup *g)
{
    NetDecode d = g->cache;
    d.pos       = g->f_pos;
    Prog  *p    = job_begin(j, "final");
    PpoIn  in   = { .obs = record_obs(j, p, g->f_obs, NULL), .decode = &d };
    PpoOut out  = ppo_policy_record(j, p, &in, PPO_CRITIC);
    prog_at(p, -1, -1, "store");
    rec_put(p, (Put){ .y = { g->r_final }, .x = { out.value }, .t = g->t });
    return job_end(j, p, 0);
}

static int record_finals(Job *j)
{
    Ppo   *o   = ppo_of(j);
    Prog  *p   = job_begin(j, "finals");
    PpoOut out = ppo_policy_record(j, p, &(PpoIn){ .obs = record_obs(j, p, o->final_obs, NULL) }, PPO_CRITIC);
    prog_at(p, -1, -1, "last values");
    rec_copy(p, (Copy){ .y = o->final_value, .x = out.value });
    return job_end(j, p, 0);
}

static int record_advantages(Job *j)
{
    Ppo             *o = ppo_of(j);
    const RecipePpo *r = &j->recipe.ppo;
    Prog            *p = job_begin(j, "advantages");
    for (int i = 0; i < o->n_group; i++) {
        PpoGroup *g      = &o->group[i];
        int64_t   dim[2] = { o->T * o->Eg, 1 };
        Tensor   *final  = NULL;
        if (r->truncation && o->C > 1) {
            final = g->s_final;
        } else if (r->truncation) {
            final = prog_tensor(p, "values of ends", DT_F32, 2, dim);
            prog_at(p, -1, -1, "values of ends");
            rec_rows_fwd(p, (RowsFwd){ .y = final, .x = o->final_value, .index = g->s_slot });
        }
        prog_at(p, -1, -1, "advantages");
        rec_gae(p, (Gae){ .adv         = g->adv,
                          .ret         = g->ret,
                          .reward      = g->s_reward,
                          .value       = g->r_value,
                          .last_value  = g->last_value,
                          .terminated  = g->s_terminated,
                          .truncated   = g->s_truncated,
                          .final_value = final,
                          .gamma       = (float)r->gamma,
                          .lambda      = (float)r->lambda });
    }
    prog_at(p, -1, -1, "statistics");
    rec_fill(p, (Fill){ .y = o->epoch });
    rec_stats(p, (Stats){ .out = o->stats_adv, .x = o->adv, .valid = o->valid });
    rec_stats(p, (Stats){ .out = o->stats_ret, .x = o->ret, .valid = o->valid });
    return job_end(j, p, 0);
}

/* ---- updates ------------------------------------------------------------------------------------------ */

static int record_shuffle(Job *j)
{
    Ppo  *o = ppo_of(j);
    Prog *p = job_begin(j, "shuffle");
    prog_at(p, -1, -1, "order");
    rec_perm(p, (Perm){ .index = o->order, .state = j->state, .epoch = o->epoch, .site = SITE_ORDER });
    rec_tick(p, (Tick){ .t = o->epoch, .modulo = (int)j->recipe.ppo.epochs });
    rec_fill(p, (Fill){ .y = o->at_mini }); /* a stop leaves them in the middle */
    rec_fill(p, (Fill){ .y = o->at_micro });
    return job_end(j, p, 0);
}

/* Rows of a batch: what RowsFwd reads. */
typedef struct {
    Tensor *index, *at;
    int64_t n;
} Chosen;

/* n observations; those of a sequence follow each other. */
static Chosen record_chosen(Ppo *o, Prog *p, Tensor *at, int64_t n)
{
    if (o->C == 1) return (Chosen){ o->order, at, n };
    int64_t dim[2] = { n / o->C, o->C };
    Tensor *index  = prog_tensor(p, "rows", DT_I32, 2, dim);
    rec_rows_fwd(p, (RowsFwd){ .y = index, .x = o->sequence, .index = o->order, .at = at });
    return (Chosen){ index, NULL, n };
}

static Tensor *gather(Prog *p, Tensor *x, const Chosen *c)
{
    int64_t dim[2] = { c->n, tensor_cols(x) };
    Tensor *y      = prog_tensor(p, x->name, x->dtype, 2, dim);
    rec_rows_fwd(p, (RowsFwd){ .y = y, .x = x, .index = c->index, .at = c->at });
    return y;
}

static int record_norm(Job *j)
{
    Ppo  *o = ppo_of(j);
    Prog *p = job_begin(j, "norm");
    prog_at(p, -1, -1, "norm of advantages");
    Chosen  rows = record_chosen(o, p, o->at_mini, o->minibatch);
    Tensor *adv = gather(p, o->adv, &rows), *valid = o->valid ? gather(p, o->valid, &rows) : NULL;
    rec_stats(p, (Stats){ .out      = o->norm,
                          .x        = record_everywhere(j, p, adv),
                          .valid    = record_everywhere(j, p, valid),
                          .unbiased = 1 });
    rec_tick(p, (Tick){ .t = o->at_mini, .modulo = (int)(o->T * o->E / o->minibatch) });
    return job_end(j, p, 0);
}

/* What a micro-batch compares the policy with. */
typedef struct {
    Tensor *obs, *action, *logp, *adv, *ret, *value, *mask, *doc, *valid;
} Batch;

static Batch record_batch(const Ppo *o, Prog *p, const Chosen *rows)
{
    Batch b  = { .obs = gather(p, o->obs, rows) };
    b.action = gather(p, o->action, rows);
    b.logp   = gather(p, o->logp, rows);
    b.adv    = gather(p, o->adv, rows);
    b.ret    = gather(p, o->ret, rows);
    b.value  = gather(p, o->value, rows);
    if (o->mask) b.mask = gather(p, o->mask, rows);
    if (o->doc) b.doc = gather(p, o->doc, rows);
    if (o->valid) b.valid = gather(p, o->valid, rows);
    return b;
}

static void record_loss(Job *j, Prog *p, const Batch *b, Tensor *loss, Tensor *parts)
{
    Ppo    *o    = ppo_of(j);
    Tensor *norm = j->recipe.ppo.norm_adv ? o->norm : NULL;
    PpoIn   in   = { .obs = b->obs, .B = tensor_rows(b->obs) / o->C, .T = o->C, .doc = b->doc };
    PpoOut  out  = ppo_policy_record(j, p, &in, PPO_ACTOR | PPO_CRITIC);
    prog_at(p, -1, -1, "ppo");
    if (o->spec.is_discrete) {
        rec_ppo_cat_fwd(p, (PpoCatFwd){ .loss      = loss,
                                        .parts     = parts,
                                        .logits    = out.logits,
                                        .value     = out.value,
                                        .action    = b->action,
                                        .old_logp  = b->logp,
                                        .adv       = b->adv,
                                        .ret       = b->ret,
                                        .old_value = b->value,
                                        .norm      = norm,
                                        .mask      = b->mask,
                                        .seg       = o->seg,
                                        .valid     = b->valid,
                                        .coef      = o->coef,
                                        .slot      = PPO_TOTAL });
    } else {
        rec_ppo_gauss_fwd(p, (PpoGaussFwd){ .loss      = loss,
                                            .parts     = parts,
                                            .mean      = out.logits,
                                            .log_std   = out.log_std,
                                            .value     = out.value,
                                            .action    = b->action,
                                            .old_logp  = b->logp,
                                            .adv       = b->adv,
                                            .ret       = b->ret,
                                            .old_value = b->value,
                                            .norm      = norm,
                                            .valid     = b->valid,
                                            .coef      = o->coef,
                                            .slot      = PPO_TOTAL });
    }
}

static int record_micro(Job *j, const char *name, int sums)
{
    Ppo    *o = ppo_of(j);
    int64_t n = j->choice.micro_batch * o->C, part_dim[2] = { PPO_PARTS, n };
    Prog   *p     = job_begin(j, name);
    Tensor *loss  = prog_tensor(p, "loss", DT_F32, 1, &n);
    Tensor *parts = prog_tensor(p, "parts", DT_F32, 2, part_dim);
    prog_at(p, -1, -1, "gather");
    Chosen rows = record_chosen(o, p, o->at_micro, n);
    Batch  b    = record_batch(o, p, &rows);
    record_loss(j, p, &b, loss, parts);
    prog_at(p, -1, -1, "loss sum");
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = loss, .slot = PPO_TOTAL });
    rec_loss_add(p, (LossAdd){ .state = j->state, .loss = parts, .slot = 1, .n_slot = PPO_PARTS });
    job_differentiate(j, p);
    prog_at(p, -1, -1, "next");
    rec_tick(p, (Tick){ .t = o->at_micro, .modulo = (int)(o->T * o->E / n) });
    return job_end(j, p, sums);
}

static int record_update(Job *j)
{
    const RecipePpo *r   = &j->recipe.ppo;
    OptimOptions     opt = job_optim_options(j);
    Prog            *p   = job_begin(j, "update");
    prog_at(p, -1, -1, "halt");
    if (r->kl_stop > 0)
        rec_halt(p, (Halt){ .state = j->state, .slot = 1 + PPO_KL, .limit = (float)r->kl_stop });
    optim_record(j->table, j->n_table, p, j->state, &opt);
    return job_end(j, p, 0);
}

/* ---- the step ----------------------------------------------------------------------------------------- */

static void add_row(Job *j, ScheduleRow row) { schedule_add(&j->step, row); }

#define PROGRAM(n, d, k, p) ((ScheduleRow){ .name = n, .depth = d, .times = k, .prog = p })
#define HOST(n, d, f)       ((ScheduleRow){ .name = n, .depth = d, .times = 1, .prog = -1, .host = f })

/* Ranks share the statistics of observations, so each answer has a collective then. */
static ScheduleRow act_row(const Job *j, int depth, int64_t times, int prog)
{
    ScheduleRow row = PROGRAM("act", depth, times, prog);
    row.sums        = j->choice.world > 1 && j->recipe.ppo.obs_norm;
    return row;
}

static void schedule_rollout(Job *j)
{
    Ppo *o = ppo_of(j);
    int  act[PPO_MAX_GROUP], last[PPO_MAX_GROUP];
    for (int i = 0; i < o->n_group; i++) act[i] = record_act(j, &o->group[i]);
    for (int i = 0; i < o->n_group; i++) last[i] = record_last(j, &o->group[i]);
    for (int i = 0; i < o->n_group && o->C > 1; i++) o->group[i].f_prog = record_final(j, &o->group[i]);
    if (o->by_host) {
        o->act  = act[0];
        o->last = last[0];
        add_row(j, HOST("episodes", 0, ppo_episodes));
        add_row(j, HOST("rollout done", 0, ppo_rollout_done));
        return;
    }
    if (o->on_device) {
        add_row(j, HOST("begin", 0, ppo_collect));
        add_row(j, PROGRAM("begin", 0, 1, record_begin(j, &o->group[0])));
        add_row(j, act_row(j, 0, o->T / o->unroll, act[0]));
        add_row(j, PROGRAM("last", 0, 1, last[0]));
        add_row(j, HOST("rollout done", 0, ppo_rollout_done));
        return;
    }
    add_row(j, (ScheduleRow){ .name = "rollout", .times = o->T, .prog = -1 });
    for (int i = 0; i < o->n_group; i++) {
        add_row(j, HOST("collect", 1, ppo_collect));
        add_row(j, act_row(j, 1, 1, act[i]));
        add_row(j, HOST("answer", 1, ppo_answer));
    }
    for (int i = 0; i < o->n_group; i++) {
        add_row(j, HOST("collect", 0, ppo_collect));
        add_row(j, PROGRAM("last", 0, 1, last[i]));
    }
    add_row(j, HOST("rollout done", 0, ppo_rollout_done));
}

static void schedule_updates(Job *j)
{
    Ppo    *o      = ppo_of(j);
    int64_t n_mini = o->T * o->E / o->minibatch, n_micro = o->minibatch / (j->choice.micro_batch * o->C);
    int     shuffle = record_shuffle(j), norm = record_norm(j);
    int     micro  = record_micro(j, "micro-step", 0);
    int     last   = j->choice.world > 1 ? record_micro(j, "last micro", 1) : -1;
    int     update = record_update(j);
    add_row(j, (ScheduleRow){ .name  = "epochs",
                              .times = j->recipe.ppo.epochs,
                              .prog  = -1,
                              .until = j->recipe.ppo.kl_stop > 0 });
    add_row(j, PROGRAM("shuffle", 1, 1, shuffle));
    add_row(j, (ScheduleRow){ .name = "minibatches", .depth = 1, .times = n_mini, .prog = -1 });
    if (j->recipe.ppo.norm_adv)
        add_row(j, (ScheduleRow){
                       .name = "norm", .depth = 2, .times = 1, .prog = norm, .sums = j->choice.world > 1 });
    if (last < 0) {
        add_row(j, PROGRAM("micro", 2, n_micro, micro));
    } else {
        add_row(j, PROGRAM("micro", 2, n_micro - 1, micro));
        add_row(j, (ScheduleRow){ .name = "last micro", .depth = 2, .times = 1, .prog = last, .sums = 1 });
    }
    add_row(j, PROGRAM("update", 2, 1, update));
    add_row(j, HOST("step done", 0, ppo_step_done));
}

int ppo_record(Job *j)
{
    if (job_trains(j)) {
        schedule_rollout(j);
        if (j->recipe.ppo.truncation && ppo_of(j)->C == 1)
            add_row(j, PROGRAM("finals", 0, 1, record_finals(j)));
        add_row(j, PROGRAM("advantages", 0, 1, record_advantages(j)));
        schedule_updates(j);
    }
    return ppo_eval_record(j);
}
