/* The weights of a PPO job as the nets of ppo_ref.h, and its gradients beside theirs. Include cmocka.h first.
 */
#ifndef TESTS_PPO_NETS_H
#define TESTS_PPO_NETS_H

#include "jobs.h"
#include "ppo_ref.h"
#include "run/build.h"
#include "task/ppo_impl.h"

#include <stdio.h>

typedef struct {
    RefNet actor, critic;
} RefNets;

/* A job of this recipe whose micro-batch has n samples, on one thread of the CPU. */
static inline Job *nets_open(Dev **dev, const char *text, int n)
{
    Recipe      r;
    Job        *j;
    const char *why;
    if (recipe_parse(&r, "t.yaml", text, strlen(text), 0, NULL) < 0) fail_msg("%s", err_get());
    JobChoice c = { .micro_batch = n, .compute = DT_F32, .world = 1 };
    *dev        = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    assert_non_null(*dev);
    if (task_ppo.complete(&r, 0) < 0 || build_create(&j, &task_ppo, &r, &c, JOB_TRAIN, (*dev)->vt) < 0 ||
        build_bind(j, *dev) < 0 || build_init(j) < 0)
        fail_msg("%s", err_get());
    return j;
}

/* Weight [rows, cols] or bias of a layer. */
static inline const Param *nets_param(Job *j, const char *layer, const char *what, Column col, float *buf)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%s", layer, what);
    const Param *p = param_find(j->table[0], full);
    assert_int_equal(job_read_param(j, p, col, buf), 0);
    return p;
}

static inline void nets_read_layer(Job *j, RefNet *n, int l, const char *name)
{
    float        buf[REF_W * REF_W];
    const Param *p = nets_param(j, name, "weight", COL_WEIGHT, buf);
    n->rows[l]     = (int)p->rows;
    n->cols[l]     = (int)p->cols;
    for (int i = 0; i < p->rows * p->cols; i++) n->w[l][i] = buf[i];
    nets_param(j, name, "bias", COL_WEIGHT, buf);
    for (int i = 0; i < n->rows[l]; i++) n->b[l][i] = buf[i];
}

static const char *const nets_layer[2][3] = { { "actor.0", "actor.1", "policy" },
                                              { "critic.0", "critic.1", "value" } };

/* First the head of the actor gets weights of the size that a trained net has: small ones would hide
 * errors. */
static inline void nets_read(Job *j, RefNets *n)
{
    float  buf[REF_W * REF_W];
    Param *p = param_find(j->table[0], "policy.weight");
    assert_int_equal(job_read_param(j, p, COL_WEIGHT, buf), 0);
    for (int i = 0; i < p->rows * p->cols; i++) buf[i] *= 100;
    assert_int_equal(job_write_param(j, p, COL_WEIGHT, buf), 0);
    for (int l = 0; l < 3; l++) nets_read_layer(j, &n->actor, l, nets_layer[0][l]);
    for (int l = 0; l < 3; l++) nets_read_layer(j, &n->critic, l, nets_layer[1][l]);
}

static inline double nets_worst_layer(Job *j, const RefNet *n, int l, const char *name)
{
    float  buf[REF_W * REF_W];
    double worst = 0, size = 0;
    nets_param(j, name, "weight", COL_GRAD, buf);
    for (int i = 0; i < n->rows[l] * n->cols[l]; i++) {
        worst = fmax(worst, fabs((double)buf[i] - n->dw[l][i]));
        size  = fmax(size, fabs(n->dw[l][i]));
    }
    nets_param(j, name, "bias", COL_GRAD, buf);
    for (int i = 0; i < n->rows[l]; i++) worst = fmax(worst, fabs((double)buf[i] - n->db[l][i]));
    assert_true(size > 1e-4); /* else the comparison says nothing */
    return worst;
}

static inline double nets_worst_gradient(Job *j, const RefNets *n)
{
    double worst = 0;
    for (int l = 0; l < 3; l++) {
        worst = fmax(worst, nets_worst_layer(j, &n->actor, l, nets_layer[0][l]));
        worst = fmax(worst, nets_worst_layer(j, &n->critic, l, nets_layer[1][l]));
    }
    return worst;
}

static inline void nets_run(Job *j, Dev *dev, const char *name)
{
    if (prog_run(job_prog(j, name), dev) < 0) fail_msg("%s", err_get());
}

#endif
