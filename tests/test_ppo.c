/* The PPO task against a reference in double (ppo_ref.h): advantages, losses and gradients for every pattern
 * of none, terminated and truncated in six steps, through the programs that a run executes.
 *
 * Tolerances. u = 2^-24. Rewards and values are below 4.
 * 1. A value is a sum of at most 9 products in each of three layers. Roundings add up like the root of their
 *    number, and each layer's sqrt(2) makes them grow: sqrt(27) * 2 u = 10 u of numbers below 4.
 * 2. An advantage is at most 6 deltas of 3 such numbers: sqrt(18) * 10 u * 4 = 1e-5. TOL_ADV.
 * 3. A gradient is a mean over 4374 samples. A sample's error is that of its advantage times the slopes of
 *    the net, below 4. The mean of independent errors is smaller by sqrt(4374): 6e-7. TOL_GRAD is 1e-6.
 * 4. The loss is such a mean, too. */
#include "base/err.h"
#include "file/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "case_folder.h"
#include "ppo_nets.h"

enum { T = 6, E = 729, N = T * E, WIDTH = 8 };

#define TOL_ADV  1e-5
#define TOL_GRAD 1e-6

typedef struct {
    Job    *j;
    Dev    *dev;
    RefNets nets;
    float   obs[N][4], last_obs[E][4], final_obs[N][4];
    float   logp[N], value[N], reward[(T + 1) * E];
    int32_t action[N], slot[(T + 1) * E];
    uint8_t terminated[(T + 1) * E], truncated[(T + 1) * E];
    double  adv[N], ret[N];
} World;

static double draw(uint64_t *s) /* in (-1, 1) */
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return (double)(int64_t)*s / 9.3e18;
}

static void open_job(World *w, const char *keys)
{
    char text[1024];
    snprintf(text, sizeof text,
             "task: ppo\nenv: cartpole\nsteps: 1\nthreads: 1\n%s\n"
             "ppo: {envs: %d, rollout: %d, minibatch: %d, epochs: 1, gamma: 0.9, lambda: 0.8, clip: 0.1, "
             "clip_value: 0.3}\npolicy: {width: %d}\neval: {samples: 4}\n",
             keys, E, T, N, WIDTH);
    w->j = nets_open(&w->dev, text, N);
}

static void close_job(World *w)
{
    build_destroy(w->j);
    dev_close(w->dev);
}

/* Environment e has pattern e: digit t of e in base 3 says how step t ended. */
static void fill_rollout(World *w)
{
    uint64_t s       = 12345;
    int      n_final = 0;
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 4; k++) w->obs[i][k] = (float)draw(&s);
        w->action[i] = draw(&s) > 0;
        w->logp[i]   = (float)(-0.7 + 0.2 * draw(&s));
        w->value[i]  = (float)(4 * draw(&s));
    }
    for (int e = 0; e < E; e++) {
        int digits = e;
        for (int k = 0; k < 4; k++) w->last_obs[e][k] = (float)draw(&s);
        for (int t = 0; t < T; t++, digits /= 3) {
            int i            = (t + 1) * E + e; /* arrives with the next observation */
            w->reward[i]     = (float)(2 * draw(&s));
            w->terminated[i] = digits % 3 == REF_TERMINATED;
            w->truncated[i]  = digits % 3 == REF_TRUNCATED;
            w->slot[i]       = -1;
            if (!w->truncated[i]) continue;
            for (int k = 0; k < 4; k++) w->final_obs[n_final][k] = (float)draw(&s);
            w->slot[i] = n_final++;
        }
    }
}

static void put(World *w, const Tensor *t, const void *from)
{
    assert_int_equal(job_upload(w->j, t, from, tensor_bytes(t)), 0);
}

static void upload(World *w)
{
    Ppo      *p = ppo_of(w->j);
    PpoGroup *g = &p->group[0];
    put(w, p->obs, w->obs);
    put(w, p->action, w->action);
    put(w, p->logp, w->logp);
    put(w, p->value, w->value);
    put(w, g->r_reward, w->reward);
    put(w, g->r_terminated, w->terminated);
    put(w, g->r_truncated, w->truncated);
    put(w, g->r_slot, w->slot);
    put(w, p->final_obs, w->final_obs);
    put(w, g->obs, w->last_obs);
    StepState st = { .in = { .seed = 1, .loss_scale = 1 } };
    for (int k = 0; k < PPO_SLOTS; k++) st.in.inv[k] = 1.0f / N;
    assert_int_equal(job_write_state(w->j, &st), 0);
}

static void run(World *w, const char *name) { nets_run(w->j, w->dev, name); }

/* Rows T of the arrivals must not be overwritten by "last": they are uploaded behind it. */
static void run_advantages(World *w)
{
    PpoGroup *g = &ppo_of(w->j)->group[0];
    int32_t   t = T;
    put(w, g->t, &t);
    run(w, "last");
    upload(w);
    if (job_prog(w->j, "finals")) run(w, "finals");
    run(w, "advantages");
}

static void expect_advantages(World *w, int exact)
{
    for (int e = 0; e < E; e++) {
        double     reward[T], value[T], final[T], last;
        int        end[T], digits = e;
        RefEpisode ep = { .T           = T,
                          .reward      = reward,
                          .value       = value,
                          .final_value = final,
                          .end         = end,
                          .gamma       = 0.9f,
                          .lambda      = 0.8f,
                          .exact       = exact };
        for (int t = 0; t < T; t++, digits /= 3) {
            int i     = (t + 1) * E + e;
            reward[t] = w->reward[i];
            value[t]  = w->value[t * E + e];
            end[t]    = digits % 3;
            if (w->slot[i] >= 0) ref_forward(&w->nets.critic, w->final_obs[w->slot[i]], &final[t]);
        }
        ref_forward(&w->nets.critic, w->last_obs[e], &last);
        ep.last_value = last;
        for (int t = 0; t < T; t++) {
            w->adv[t * E + e] = ref_advantage(&ep, t);
            w->ret[t * E + e] = w->adv[t * E + e] + value[t];
        }
    }
}

static double worst_advantage(World *w)
{
    static float adv[N], ret[N];
    double       worst = 0;
    assert_int_equal(job_download(w->j, ppo_of(w->j)->adv, adv, sizeof adv), 0);
    assert_int_equal(job_download(w->j, ppo_of(w->j)->ret, ret, sizeof ret), 0);
    for (int i = 0; i < N; i++) {
        worst = fmax(worst, fabs((double)adv[i] - w->adv[i]));
        worst = fmax(worst, fabs((double)ret[i] - w->ret[i]));
    }
    return worst;
}

static double expect_gradients(World *w)
{
    double  mean = 0, square = 0, loss = 0;
    RefCoef c = { 0.1f, 0.3f, 0.01f, 0.5f };
    for (int i = 0; i < N; i++) mean += w->adv[i] / N;
    for (int i = 0; i < N; i++) square += (w->adv[i] - mean) * (w->adv[i] - mean);
    double dev = sqrt(square / (N - 1)) + 1e-8;
    for (int i = 0; i < N; i++) {
        double    x[REF_A], v, dx[REF_A], dv;
        RefSample s = { w->action[i], w->logp[i], (w->adv[i] - mean) / dev, w->ret[i], w->value[i] };
        ref_forward(&w->nets.actor, w->obs[i], x);
        ref_forward(&w->nets.critic, w->obs[i], &v);
        loss += ref_ppo_loss(x, 2, v, &s, &c, dx, &dv) / N;
        for (int k = 0; k < 2; k++) dx[k] /= N;
        dv /= N;
        ref_backward(&w->nets.actor, dx);
        ref_backward(&w->nets.critic, &dv);
    }
    return loss;
}

static void all_patterns(void **state)
{
    World *w = calloc(1, sizeof *w);
    open_job(w, "");
    nets_read(w->j, &w->nets);
    fill_rollout(w);
    upload(w);
    run_advantages(w);
    expect_advantages(w, 1);
    double worst = worst_advantage(w);
    printf("advantages: worst error %.2e\n", worst);
    assert_true(worst < TOL_ADV);
    run(w, "shuffle");
    run(w, "norm");
    run(w, "micro-step");
    StepState st;
    double    loss = expect_gradients(w);
    assert_int_equal(job_read_state(w->j, &st), 0);
    assert_true(fabs(st.out.sum[PPO_TOTAL] / N - loss) < TOL_GRAD);
    worst = nets_worst_gradient(w->j, &w->nets);
    printf("gradients: worst error %.2e, loss %.6f\n", worst, loss);
    assert_true(worst < TOL_GRAD);
    close_job(w);
    free(w);
}

/* CleanRL counts a truncation as a termination: the same reference with another rule, and not with ours. */
static void parity(void **state)
{
    World *w = calloc(1, sizeof *w);
    open_job(w, "parity: cleanrl");
    nets_read(w->j, &w->nets);
    fill_rollout(w);
    upload(w);
    run_advantages(w);
    expect_advantages(w, 0);
    assert_true(worst_advantage(w) < TOL_ADV);
    expect_advantages(w, 1);
    assert_true(worst_advantage(w) > 0.1);
    close_job(w);
    free(w);
}

/* Rows or columns of initial weights are orthogonal and have the asked length. */
static void orthogonal(void **state)
{
    static const int64_t shape[][2] = { { 64, 4 }, { 4, 64 }, { 64, 64 }, { 1, 7 } };
    for (int i = 0; i < ARRAY_LEN(shape); i++) {
        float a[64 * 64];
        Param p = {
            .ndim = 2, .rows = shape[i][0], .cols = shape[i][1], .init = INIT_ORTHOGONAL, .std = 1.5f
        };
        p.rows_stored = p.rows;
        param_init_values(&p, 7, a);
        int64_t n = p.rows < p.cols ? p.rows : p.cols, len = p.rows < p.cols ? p.cols : p.rows;
        for (int64_t u = 0; u < n; u++) {
            for (int64_t v = 0; v <= u; v++) {
                double dot = 0;
                for (int64_t k = 0; k < len; k++)
                    dot += p.rows < p.cols ? (double)a[u * p.cols + k] * a[v * p.cols + k]
                                           : (double)a[k * p.cols + u] * a[k * p.cols + v];
                assert_true(fabs(dot - (u == v ? 2.25 : 0)) < 1e-5); /* 64 products of rounded numbers */
            }
        }
    }
}

/* ---- export -------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    int64_t     rows, cols;
    DType       dtype;
} stored[] = { { "actor.0.weight", 3, 4, DT_BF16 }, { "actor.0.bias", 3, 0, DT_BF16 },
               { "critic.0.weight", 3, 4, DT_F32 }, { "critic.0.bias", 3, 0, DT_F32 },
               { "policy.weight", 2, 3, DT_F32 },   { "policy.bias", 2, 0, DT_F32 },
               { "value.weight", 1, 3, DT_F32 },    { "value.bias", 1, 0, DT_F32 } };

/* Weights of 1.5 in bf16, others of 1. */
static void write_stored(const char *path)
{
    const uint16_t half = 0x3fc0;
    const float    one  = 1;
    SafeTensor     t[ARRAY_LEN(stored)];
    for (int i = 0; i < ARRAY_LEN(stored); i++)
        t[i] = (SafeTensor){ .name  = stored[i].name,
                             .dtype = stored[i].dtype,
                             .ndim  = stored[i].cols ? 2 : 1,
                             .dim   = { stored[i].rows, stored[i].cols } };
    SafeWriter *w = safetensors_write_begin(path, t, ARRAY_LEN(t), NULL, 0);
    for (int i = 0; i < ARRAY_LEN(stored); i++) {
        int is_half = stored[i].dtype == DT_BF16;
        for (int64_t k = 0; k < stored[i].rows * MAX(stored[i].cols, 1); k++)
            assert_int_equal(safetensors_write_data(w, is_half ? (const void *)&half : &one, is_half ? 2 : 4),
                             0);
    }
    assert_int_equal(safetensors_write_publish(&w, NULL), 0);
}

/* On a GPU weights that are frozen, or gave way, are kept in bf16. An exported policy has all in f32. */
static void exported_in_f32(void **state)
{
    static const char text[]      = "task: ppo\nenv: cartpole\nsteps: 1\npolicy: {width: 3, layers: 1}\n";
    const char       *dir         = *state;
    char              found[4096] = "";
    SafeFile          f           = { 0 };
    Recipe            r;
    write_stored(in(state, "model.safetensors"));
    if (recipe_parse(&r, "t.yaml", text, strlen(text), 0, NULL) < 0) fail_msg("%s", err_get());
    if (task_ppo.export_to(&r, &(TaskExport){ .checkpoint = dir, .out = dir }) < 0) fail_msg("%s", err_get());
    assert_int_equal(safetensors_open(&f, in(state, "policy.safetensors")), 0);
    for (int i = 0; i < f.n_tensor; i++) {
        float x[12];
        assert_int_equal(f.tensor[i].dtype, DT_F32);
        assert_int_equal(safetensors_read_f32(&f, &f.tensor[i], 0, f.tensor[i].n_elem, x), 0);
        assert_true(x[0] == (f.tensor[i].name[0] == 'a' ? 1.5f : 1.0f));
    }
    safetensors_close(&f);
    FILE *h = fopen(in(state, "policy.h"), "r");
    assert_non_null(h);
    found[fread(found, 1, sizeof found - 1, h)] = '\0';
    fclose(h);
    assert_non_null(strstr(found, "policy_actor_0_weight[12] = {\n    0x1.8p+0f"));
}

/* Saved environments on the device go on only if they are the same ones. */
static void device_mark(void **state)
{
    Recipe r = { .seed = 1 }, other;
    strcpy(r.ppo.env, "tmaze");
    strcpy(r.ppo.options, "length=10");
    int64_t mark = ppo_device_mark(&r);
    assert_true(mark > 0);
    assert_false(ppo_device_is_other(&r, mark));
    assert_false(ppo_device_is_other(&r, 0)); /* of a checkpoint from before */
    other = r;
    strcpy(other.ppo.options, "length=12");
    assert_true(ppo_device_is_other(&other, mark));
    other      = r;
    other.seed = 2;
    assert_true(ppo_device_is_other(&other, mark));
    other = r;
    strcpy(other.ppo.env, "cartpole");
    assert_true(ppo_device_is_other(&other, mark));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(device_mark), cmocka_unit_test(all_patterns),
                                        cmocka_unit_test(parity), cmocka_unit_test(orthogonal),
                                        cmocka_unit_test_setup_teardown(exported_in_f32, folder_setup,
                                                                        folder_teardown) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
