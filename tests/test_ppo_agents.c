/* Several agents in an environment, against a second account of a rollout: the game's own rules say who
 * takes part and who gets what, ppo_ref.h says in double what advantages and gradients follow. A rollout of
 * crossing has agents that crash, arrive, come back, and are cut.
 *
 * Tolerances are those of test_ppo.c. Rewards and values are below 4, and gamma lambda = 0.72 bounds the sum
 * of deltas as six steps do. A gradient is a mean over hundreds of samples, not thousands: sqrt(10) times
 * as far. */
#include "base/err.h"
#include "env/crossing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ppo_nets.h"

enum { T = 48, ENVS = 24, A = CROSSING_BUSES, E = ENVS * A, N = T * E, D = CROSSING_OBS, LIMIT = 15 };

#define TOL_ADV  1e-5
#define TOL_GRAD 3e-6

/* What the rules say of a rollout: rows [t][environment][agent]. */
typedef struct {
    float   obs[T + 1][E][D], final_obs[T][E][D];
    double  reward[T][E];
    int     there[T + 1][E], end[T][E]; /* REF_* */
    int64_t n_end[3], n_there;
    double  n_back;                /* agents that came back within an episode */
    double  mean[T][ENVS], sum[E]; /* of episodes that ended, over agents; so far */
    int     length[T][ENVS];       /* 0: no episode ended */
} Account;

typedef struct {
    Job    *j;
    Dev    *dev;
    RefNets nets;
    Account a;
    int32_t action[N];
    float   logp[N], value[N];
    double  adv[N], ret[N];
} World;

/* more: keys of the section ppo. The policy sees `context` observations at once. */
static World *open_world(const char *more, const char *policy, int context)
{
    World *w = calloc(1, sizeof *w);
    char   text[1024];
    snprintf(text, sizeof text,
             "task: ppo\nenv: crossing\nsteps: 1\nthreads: 1\nseed: 5\n"
             "ppo: {envs: %d, rollout: %d, minibatch: %d, epochs: 1, gamma: 0.9, lambda: 0.8, clip: 0.1, "
             "clip_value: 0.3, max_steps: %d%s}\npolicy: {%s}\neval: {samples: 4}\n",
             ENVS, T, N, LIMIT, more, policy);
    w->j = nets_open(&w->dev, text, N / context);
    return w;
}

static void close_world(World *w)
{
    build_destroy(w->j);
    dev_close(w->dev);
    free(w);
}

/* ---- the rollout of a run ------------------------------------------------------------------------------ */

static void call(int (*host)(Job *j, int64_t turn), Job *j)
{
    if (host(j, 0) < 0) fail_msg("%s", err_get());
}

/* The rows of the schedule, as the frame walks them. What divides the losses is wrong before. */
static void roll(World *w)
{
    Ppo      *p  = ppo_of(w->j);
    StepState st = { .in = { .seed = 1, .loss_scale = 1 } };
    for (int k = 0; k < PPO_SLOTS; k++) st.in.inv[k] = 77;
    assert_int_equal(job_write_state(w->j, &st), 0);
    for (int t = 0; t < T && !p->by_host; t++) {
        call(ppo_collect, w->j);
        nets_run(w->j, w->dev, "act");
        call(ppo_answer, w->j);
    }
    if (!p->by_host) {
        call(ppo_collect, w->j);
        nets_run(w->j, w->dev, "last");
    } else {
        call(ppo_episodes, w->j);
    }
    call(ppo_rollout_done, w->j);
    if (job_prog(w->j, "finals")) nets_run(w->j, w->dev, "finals");
    nets_run(w->j, w->dev, "advantages");
    assert_int_equal(job_download(w->j, p->action, w->action, sizeof w->action), 0);
    assert_int_equal(job_download(w->j, p->logp, w->logp, sizeof w->logp), 0);
    assert_int_equal(job_download(w->j, p->value, w->value, sizeof w->value), 0);
}

/* ---- the same by the rules ----------------------------------------------------------------------------- */

static void look(Account *a, int t, int e, const Crossing *s)
{
    float obs[A][D];
    crossing_observe(s, obs[0]);
    for (int k = 0; k < A; k++) {
        a->there[t][e * A + k] = s->front[k] >= 0;
        memcpy(a->obs[t][e * A + k], obs[k], sizeof obs[k]);
    }
}

/* One step of environment e; 1: its episode has ended. */
static int live(Account *a, int t, int e, Crossing *s, int step, const int32_t *action)
{
    float reward[A], obs[A][D];
    int   term = crossing_step(s, action, NULL, reward) == ENV_TERMINATED, cut = !term && step == LIMIT;
    crossing_observe(s, obs[0]);
    for (int k = 0; k < A; k++) {
        int i = e * A + k, was = a->there[t][i], is = s->front[k] >= 0;
        a->reward[t][i] = was ? (double)reward[k] : 0;
        a->end[t][i]    = cut && is ? REF_TRUNCATED : was && !is ? REF_TERMINATED : REF_GOES_ON;
        a->sum[i] += a->reward[t][i];
        a->n_end[a->end[t][i]] += was;
        a->n_there += was;
        a->n_back += !was && is && !cut && !term;
        memcpy(a->final_obs[t][i], obs[k], sizeof obs[k]);
        if (term || cut) a->mean[t][e] += a->sum[i] / A;
        if (term || cut) a->sum[i] = 0;
    }
    a->length[t][e] = term || cut ? step : 0;
    return term || cut;
}

static void account(World *w)
{
    for (int e = 0; e < ENVS; e++) {
        Crossing s       = { 0 };
        int64_t  episode = 0;
        int      step    = 0;
        crossing_reset(&s, envfn_episode_seed(5, e, episode));
        look(&w->a, 0, e, &s);
        for (int t = 0; t < T; t++) {
            if (live(&w->a, t, e, &s, ++step, w->action + t * E + e * A)) {
                step = 0;
                crossing_reset(&s, envfn_episode_seed(5, e, ++episode));
            }
            look(&w->a, t + 1, e, &s);
        }
    }
}

/* ---- comparing ----------------------------------------------------------------------------------------- */

static void expect_rows(World *w)
{
    Ppo           *p = ppo_of(w->j);
    static float   obs[N][D];
    static int32_t valid[N];
    assert_int_equal(job_download(w->j, p->obs, obs, sizeof obs), 0);
    assert_int_equal(job_download(w->j, p->valid, valid, sizeof valid), 0);
    for (int i = 0; i < N; i++) {
        assert_memory_equal(obs[i], w->a.obs[i / E][i % E], sizeof obs[i]);
        assert_int_equal(valid[i], w->a.there[i / E][i % E]);
    }
}

/* Returns of episodes, in the order in which they ended; the host remembers the last hundred. */
static void expect_episodes(const World *w)
{
    const PpoHost *h = &ppo_of(w->j)->host;
    int64_t        n = 0;
    for (int i = 0; i < T * ENVS; i++) n += w->a.length[i / ENVS][i % ENVS] > 0;
    assert_true(n > 20 && n <= PPO_LAST && h->n_episode == n);
    n = 0;
    for (int i = 0; i < T * ENVS; i++) {
        if (w->a.length[i / ENVS][i % ENVS] == 0) continue;
        assert_true(fabs(h->last_return[n] - w->a.mean[i / ENVS][i % ENVS]) < 1e-6);
        assert_true(h->last_length[n++] == w->a.length[i / ENVS][i % ENVS]);
    }
}

static double value_of(World *w, const float *obs)
{
    double v;
    ref_forward(&w->nets.critic, obs, &v);
    return v;
}

/* The worst error of an advantage or return whose agent was there. */
static double worst_advantage(World *w)
{
    static float adv[N], ret[N];
    double       worst = 0;
    assert_int_equal(job_download(w->j, ppo_of(w->j)->adv, adv, sizeof adv), 0);
    assert_int_equal(job_download(w->j, ppo_of(w->j)->ret, ret, sizeof ret), 0);
    for (int r = 0; r < E; r++) {
        double     reward[T], value[T], final[T];
        int        end[T];
        RefEpisode ep = { T, reward, value, final, end, value_of(w, w->a.obs[T][r]), 0.9f, 0.8f, 1 };
        for (int t = 0; t < T; t++) {
            reward[t] = w->a.reward[t][r];
            value[t]  = value_of(w, w->a.obs[t][r]);
            final[t]  = value_of(w, w->a.final_obs[t][r]);
            end[t]    = w->a.end[t][r];
        }
        for (int t = 0; t < T; t++) {
            int i = t * E + r;
            if (!w->a.there[t][r]) continue;
            w->adv[i] = ref_advantage(&ep, t);
            w->ret[i] = w->adv[i] + value[t];
            worst     = fmax(worst, fabs((double)adv[i] - w->adv[i]));
            worst     = fmax(worst, fabs((double)ret[i] - w->ret[i]));
        }
    }
    return worst;
}

/* The mean over the rows whose agent was there, and the gradients. */
static double expect_gradients(World *w)
{
    double  mean = 0, square = 0, loss = 0, n = (double)w->a.n_there;
    RefCoef c = { 0.1f, 0.3f, 0.01f, 0.5f };
    for (int i = 0; i < N; i++) mean += w->a.there[i / E][i % E] ? w->adv[i] / n : 0;
    for (int i = 0; i < N; i++)
        square += w->a.there[i / E][i % E] ? (w->adv[i] - mean) * (w->adv[i] - mean) : 0;
    double dev = sqrt(square / (n - 1)) + 1e-8;
    for (int i = 0; i < N; i++) {
        const float *obs = w->a.obs[i / E][i % E];
        double       x[REF_A], dx[REF_A], dv;
        RefSample    s = { w->action[i], w->logp[i], (w->adv[i] - mean) / dev, w->ret[i], w->value[i] };
        if (!w->a.there[i / E][i % E]) continue;
        double v = value_of(w, obs);
        ref_forward(&w->nets.actor, obs, x);
        loss += ref_ppo_loss(x, 2, v, &s, &c, dx, &dv) / n;
        for (int k = 0; k < 2; k++) dx[k] /= n;
        dv /= n;
        ref_backward(&w->nets.actor, dx);
        ref_backward(&w->nets.critic, &dv);
    }
    return loss;
}

/* Weights of the actor that the rollout did not have, so ratios are not 1 and some are clipped. */
static void move_weights(World *w)
{
    float  buf[REF_W * REF_W];
    Param *p = param_find(w->j->table[0], "policy.weight");
    assert_int_equal(job_read_param(w->j, p, COL_WEIGHT, buf), 0);
    for (int i = 0; i < p->rows * p->cols; i++) buf[i] *= 1 + 0.2f * (float)(i % 5);
    assert_int_equal(job_write_param(w->j, p, COL_WEIGHT, buf), 0);
    nets_read_layer(w->j, &w->nets.actor, 2, "policy");
}

static void one_rollout(const char *more)
{
    World    *w = open_world(more, "width: 8", 1);
    StepState st;
    nets_read(w->j, &w->nets);
    roll(w);
    account(w);
    expect_rows(w);
    expect_episodes(w);
    assert_true(w->a.n_end[REF_TERMINATED] > 50 && w->a.n_end[REF_TRUNCATED] > 50 && w->a.n_back > 5);
    assert_true(w->a.n_there < N - N / 20);
    double worst = worst_advantage(w);
    printf("%d rows, %lld with an agent, %lld ends, %lld cuts, %g come back; advantages: worst error %.2e\n",
           N, (long long)w->a.n_there, (long long)w->a.n_end[REF_TERMINATED],
           (long long)w->a.n_end[REF_TRUNCATED], w->a.n_back, worst);
    assert_true(worst < TOL_ADV);
    move_weights(w);
    nets_run(w->j, w->dev, "shuffle");
    nets_run(w->j, w->dev, "norm");
    nets_run(w->j, w->dev, "micro-step");
    double loss = expect_gradients(w);
    assert_int_equal(job_read_state(w->j, &st), 0);
    assert_true(fabs((double)st.in.inv[PPO_TOTAL] * (double)w->a.n_there - 1) < 1e-6);
    assert_true(fabs(st.out.sum[PPO_TOTAL] / (double)w->a.n_there - loss) < TOL_GRAD);
    worst = nets_worst_gradient(w->j, &w->nets);
    printf("gradients: worst error %.2e, loss %.6f\n", worst, loss);
    assert_true(worst < TOL_GRAD);
    close_world(w);
}

static void agents(void **state) { one_rollout(""); }
static void by_host(void **state) { one_rollout(", answer: host"); }

/* ---- statistics ---------------------------------------------------------------------------------------- */

/* Discounted returns of the rows so far, as the deviation of rewards is learned from them: n, mean and sum of
 * squares around the mean. */
static PpoMoments expect_returns(const World *w)
{
    static double x[N];
    PpoMoments    m = { 0 };
    for (int r = 0; r < E; r++) {
        double sum = 0;
        for (int t = 0; t < T; t++) {
            sum = sum * (double)0.9f + w->a.reward[t][r];
            if (w->a.there[t][r]) x[(int)m.n++] = sum;
            if (w->a.end[t][r] != REF_GOES_ON) sum = 0;
        }
    }
    for (int i = 0; i < (int)m.n; i++) m.mean += x[i] / m.n;
    for (int i = 0; i < (int)m.n; i++) m.square += (x[i] - m.mean) * (x[i] - m.mean);
    return m;
}

/* Only rows whose agent is there are seen. Sums of discounted rewards are in float: 3680 numbers of 1e-7. */
static void statistics(void **state)
{
    World *w = open_world(", obs_norm: true, reward_norm: true", "width: 8", 1);
    Ppo   *p = ppo_of(w->j);
    double run[1 + 2 * D];
    roll(w);
    account(w);
    assert_int_equal(job_download(w->j, p->obs_run, run, sizeof run), 0);
    assert_true(run[0] == (double)w->a.n_there);
    for (int c = 0; c < D; c++) {
        double mean = 0, square = 0;
        for (int i = 0; i < N; i++) mean += w->a.there[i / E][i % E] * w->a.obs[i / E][i % E][c] / run[0];
        for (int i = 0; i < N; i++)
            square += w->a.there[i / E][i % E] * pow((double)w->a.obs[i / E][i % E][c] - mean, 2);
        assert_true(fabs(run[1 + c] - mean) < 1e-6 && fabs(run[1 + D + c] - square) < 1e-6 * run[0]);
    }
    PpoMoments m = expect_returns(w);
    assert_true(p->host.n_reward == m.n && fabs(p->host.mean_reward - m.mean) < 1e-6);
    assert_true(fabs(p->host.square_reward - m.square) < 1e-6 * m.n);
    close_world(w);
}

/* With a memory, a row sees the rows of the same agent alone, from the begin of a chunk on, or from where the
 * agent left, or the episode ended. */
static void memory(void **state)
{
    enum { C = 8 };
    static int32_t doc[N], sequence[N];
    World         *w = open_world("", "kind: trunk, width: 8, heads: 2, layers: 1, context: 8", C);
    Ppo           *p = ppo_of(w->j);
    roll(w);
    account(w);
    assert_int_equal(job_download(w->j, p->doc, doc, sizeof doc), 0);
    assert_int_equal(job_download(w->j, p->sequence, sequence, sizeof sequence), 0);
    for (int r = 0; r < E; r++) {
        for (int t = 0, first = 0; t < T; t++) {
            if (t % C == 0 || w->a.end[t - 1][r] != REF_GOES_ON) first = t;
            if (t > 0 && w->a.length[t - 1][r / A] > 0) first = t;
            assert_int_equal(doc[t * E + r], first % C);
        }
    }
    for (int i = 0; i < N; i++) {
        int of = sequence[i / C * C];
        assert_int_equal(sequence[i], of + i % C * E);
        assert_true(of / E % C == 0);
    }
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(agents), cmocka_unit_test(by_host),
                                        cmocka_unit_test(statistics), cmocka_unit_test(memory) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
