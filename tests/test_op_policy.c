/* Properties that a reference of single rows does not show: draws follow their distribution, permutations are
 * permutations, advantages distinguish truncation from termination, running statistics do not depend on the
 * grouping of rows. */
#include "op_harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { DRAWS = 20000, MANY = 5 };

static Dev *open_cpu(void)
{
    Dev *dev = dev_open("cpu", &(DevOptions){ .threads = 2 }, NULL);
    assert_non_null(dev);
    return dev;
}

static void run(Dev *dev, OpKind kind, OpArgs args)
{
    Op op = { .kind = kind, .label = "test", .args = args };
    if (dev_run_op(dev, &op) < 0) fail_msg("%s", err_get());
}

static Tensor *tensor_of(Tensor *t, DType dtype, int64_t rows, int64_t cols, void *data)
{
    tensor_init(t, "t", dtype, 2, (int64_t[]){ rows, cols });
    t->data = data;
    return t;
}

/* Frequencies of classes are their chances, hidden classes never come: 4 standard deviations. */
static void test_frequencies(void **state)
{
    (void)state;
    static float   x[DRAWS * MANY], logp[DRAWS];
    static int32_t action[DRAWS];
    static uint8_t mask[DRAWS * MANY];
    const float    row[MANY] = { 0.5f, -1, 2, 0, 1 };
    StepState      s         = { .in = { .seed = 42, .step = 3 } };
    int64_t        sample0 = 7, count[MANY] = { 0 };
    double         sum = 0;
    Tensor         t[6];
    for (int i = 0; i < DRAWS * MANY; i++) {
        x[i]    = row[i % MANY];
        mask[i] = i % MANY != 2;
    }
    Dev *dev = open_cpu();
    run(dev, OP_SAMPLE_CAT,
        (OpArgs){ .sample_cat = { .action  = tensor_of(&t[0], DT_I32, DRAWS, 1, action),
                                  .logp    = tensor_of(&t[1], DT_F32, 1, DRAWS, logp),
                                  .logits  = tensor_of(&t[2], DT_F32, DRAWS, MANY, x),
                                  .mask    = tensor_of(&t[3], DT_U8, DRAWS, MANY, mask),
                                  .state   = tensor_of(&t[4], DT_U8, 1, sizeof s, &s),
                                  .sample0 = tensor_of(&t[5], DT_I64, 1, 1, &sample0) } });
    for (int i = 0; i < DRAWS; i++) count[action[i]]++;
    for (int k = 0; k < MANY; k++) sum += k == 2 ? 0 : exp((double)row[k]);
    assert_int_equal(count[2], 0);
    for (int k = 0; k < MANY; k++) {
        double p = k == 2 ? 0 : exp((double)row[k]) / sum;
        assert_true(fabs((double)count[k] - p * DRAWS) <= 4 * sqrt(p * (1 - p) * DRAWS));
    }
    dev_close(dev);
}

/* Mean and variance of normal draws; dimensions and steps do not repeat each other. */
static void test_normal(void **state)
{
    (void)state;
    static float mean[DRAWS * 2], action[2][DRAWS * 2], logp[DRAWS];
    float        log_std[2] = { 0.5f, -1 };
    StepState    s          = { .in = { .seed = 42, .step = 3 } };
    int64_t      sample0    = 7;
    int32_t      step       = 0;
    Tensor       t[7];
    Dev         *dev = open_cpu();
    for (int i = 0; i < DRAWS * 2; i++) mean[i] = i % 2 ? 3.0f : -1.0f;
    for (int k = 0; k < 2; k++) {
        step = k;
        run(dev, OP_SAMPLE_GAUSS,
            (OpArgs){ .sample_gauss = { .action  = tensor_of(&t[0], DT_F32, DRAWS, 2, action[k]),
                                        .logp    = tensor_of(&t[1], DT_F32, 1, DRAWS, logp),
                                        .mean    = tensor_of(&t[2], DT_F32, DRAWS, 2, mean),
                                        .log_std = tensor_of(&t[3], DT_F32, 1, 2, log_std),
                                        .state   = tensor_of(&t[4], DT_U8, 1, sizeof s, &s),
                                        .sample0 = tensor_of(&t[5], DT_I64, 1, 1, &sample0),
                                        .t       = tensor_of(&t[6], DT_I32, 1, 1, &step) } });
    }
    double cross[2] = { 0, 0 };
    for (int d = 0; d < 2; d++) {
        double sum = 0, square = 0, std = exp((double)log_std[d]), z;
        for (int i = 0; i < DRAWS; i++) {
            z = (action[0][2 * i + d] - mean[2 * i + d]) / std;
            sum += z;
            square += z * z;
            cross[0] += z * (action[1][2 * i + d] - mean[2 * i + d]) / std / 2;
            if (d == 1) cross[1] += z * (action[0][2 * i] - mean[2 * i]) / exp((double)log_std[0]);
        }
        assert_true(fabs(sum / DRAWS) < 4 / sqrt(DRAWS));
        assert_true(fabs(square / DRAWS - 1) < 4 * sqrt(2.0 / DRAWS));
    }
    for (int k = 0; k < 2; k++) assert_true(fabs(cross[k] / DRAWS) < 4 / sqrt(DRAWS));
    dev_close(dev);
}

/* Every number once; epochs differ; over many epochs each number comes to each place as often as any other.
 */
static void test_permutation(void **state)
{
    (void)state;
    enum { N = 1000, SMALL = 6, EPOCHS = 6000 };
    StepState s = { .in = { .seed = 1, .step = 2 } };
    int32_t   index[N], before[N] = { 0 }, epoch;
    int64_t   at[SMALL][SMALL] = { { 0 } };
    Tensor    t[3];
    Dev      *dev = open_cpu();
    for (epoch = 0; epoch < 3; epoch++) {
        char seen[N] = { 0 };
        int  same    = 0;
        run(dev, OP_PERM,
            (OpArgs){ .perm = { .index = tensor_of(&t[0], DT_I32, 1, N, index),
                                .state = tensor_of(&t[1], DT_U8, 1, sizeof s, &s),
                                .epoch = tensor_of(&t[2], DT_I32, 1, 1, &epoch) } });
        for (int i = 0; i < N; i++) {
            assert_true(index[i] >= 0 && index[i] < N && !seen[index[i]]);
            seen[index[i]] = 1;
            same += index[i] == before[i];
        }
        assert_true(same < 20);
        memcpy(before, index, sizeof index);
    }
    for (epoch = 0; epoch < EPOCHS; epoch++) {
        run(dev, OP_PERM,
            (OpArgs){ .perm = { .index = tensor_of(&t[0], DT_I32, 1, SMALL, index),
                                .state = tensor_of(&t[1], DT_U8, 1, sizeof s, &s),
                                .epoch = tensor_of(&t[2], DT_I32, 1, 1, &epoch) } });
        for (int i = 0; i < SMALL; i++) at[i][index[i]]++;
    }
    double p = 1.0 / SMALL;
    for (int i = 0; i < SMALL * SMALL; i++) {
        assert_true(fabs((double)at[i / SMALL][i % SMALL] - p * EPOCHS) < 4.5 * sqrt(p * (1 - p) * EPOCHS));
    }
    dev_close(dev);
}

/* Reward 1 for ever is worth 1/(1 - gamma). A time limit does not change that, if the value of the last
 * observation is known; a termination does. */
static void test_truncation(void **state)
{
    (void)state;
    enum { T = 20, N = 2 };
    float   reward[T * N], value[T * N], last[N], final[T * N], adv[T * N], ret[T * N];
    uint8_t terminated[T * N] = { 0 }, truncated[T * N] = { 0 };
    Tensor  t[8];
    Dev    *dev = open_cpu();
    for (int i = 0; i < T * N; i++) {
        reward[i] = 1;
        value[i] = final[i] = last[i % N] = 10; /* gamma 0.9 */
    }
    truncated[7 * N]      = 1; /* environment 0 */
    terminated[7 * N + 1] = 1; /* environment 1 */
    run(dev, OP_GAE,
        (OpArgs){ .gae = { .adv         = tensor_of(&t[0], DT_F32, T, N, adv),
                           .ret         = tensor_of(&t[1], DT_F32, T, N, ret),
                           .reward      = tensor_of(&t[2], DT_F32, T, N, reward),
                           .value       = tensor_of(&t[3], DT_F32, T, N, value),
                           .last_value  = tensor_of(&t[4], DT_F32, 1, N, last),
                           .terminated  = tensor_of(&t[5], DT_U8, T, N, terminated),
                           .truncated   = tensor_of(&t[6], DT_U8, T, N, truncated),
                           .final_value = tensor_of(&t[7], DT_F32, T, N, final),
                           .gamma       = 0.9f,
                           .lambda      = 0.5f } });
    for (int i = 0; i < T; i++) assert_true(fabsf(adv[i * N]) < 1e-5f && fabsf(ret[i * N] - 10) < 1e-5f);
    for (int i = 8; i < T; i++) assert_true(fabsf(adv[i * N + 1]) < 1e-5f);
    for (int i = 0; i <= 7; i++) assert_true(fabs(adv[i * N + 1] + 9 * pow(0.45, 7 - i)) < 1e-5);
    dev_close(dev);
}

/* Rows in one piece or in three, some of them left out: the same mean and variance as all together. */
static void test_running(void **state)
{
    (void)state;
    enum { N = 60, D = 3, CUTS = 3 };
    float   x[N * D];
    int32_t valid[N];
    double  whole[1 + 2 * D] = { 0 }, parts[1 + 2 * D] = { 0 };
    int     cut[CUTS + 1] = { 0, 1, 40, N };
    Tensor  t[3];
    Dev    *dev = open_cpu();
    for (int i = 0; i < N * D; i++) x[i] = (float)(i % 7) * 0.3f + (float)(i % D) * 100;
    for (int i = 0; i < N; i++) valid[i] = i % 5 != 3;
    for (int k = 0; k <= CUTS; k++) { /* the last: all in one */
        int     all = k == CUTS, first = all ? 0 : cut[k], n = all ? N : cut[k + 1] - cut[k];
        double *run_at = all ? whole : parts;
        run(dev, OP_OBS_STATS,
            (OpArgs){ .obs_stats = { .run   = tensor_of(&t[0], DT_F64, 1, 1 + 2 * D, run_at),
                                     .x     = tensor_of(&t[1], DT_F32, n, D, x + first * D),
                                     .valid = tensor_of(&t[2], DT_I32, 1, n, valid + first) } });
    }
    assert_true(whole[0] == 48 && parts[0] == 48);
    for (int i = 0; i < 1 + 2 * D; i++) assert_true(fabs(whole[i] - parts[i]) <= 1e-12 * fabs(whole[i]));
    dev_close(dev);
}

int main(void)
{
    const struct CMUnitTest test[] = { cmocka_unit_test(test_frequencies), cmocka_unit_test(test_normal),
                                       cmocka_unit_test(test_permutation), cmocka_unit_test(test_truncation),
                                       cmocka_unit_test(test_running) };
    return cmocka_run_group_tests(test, NULL, NULL);
}
