/* Two ranks on one card: the collectives, and training that equals one rank's, with graphs and without.
 *
 * NCCL refuses two ranks on one GPU unless they look like two machines. So each process gets a NCCL_HOSTID of
 * its own, the processes talk over loopback sockets, and the driver gives them the GPU in turn. This is slow,
 * but every byte takes the same way as between cards. `test_two_ranks cpu` runs the same on the CPU backend.
 *
 * Bounds. fp32: a micro-batch gives the same bits on any rank, so only the order of summing them differs:
 * 2^-24 each, and AdamW may turn that noise into steps of lr where a gradient is nothing but noise; 1e-5 of
 * the norm of all weights. bf16: the same noise now and then flips the rounding of a weight's copy or an
 * activation, and the results may part by as much as one rounding, 2^-9. Two ranks against each other, and
 * graphs against no graphs: the same bits (a sum of two numbers has only one order). */
#include "check.h"
#include "jobs.h"
#include "ranks_train.h"

static void fake_host(int rank)
{
    char host[32];
    snprintf(host, sizeof host, "brim-rank-%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_P2P_DISABLE", "1", 1);
}

/* ---- Collectives --------------------------------------------------------------------------------------- */

enum { OPS_N = 3 * 1024 * 1024 + 2 };

typedef struct {
    const char *device;
    char       *base; /* on the device */
    size_t      used;
} Ops;

static void place(Ops *o, Tensor *t, const char *name, DType dtype, int64_t n)
{
    tensor_init(t, name, dtype, 1, &n);
    t->data = o->base + o->used;
    o->used += tensor_root_bytes(t);
}

static float value(int rank, int64_t i) { return (float)(i % 1000) + 0.25f * (float)rank; }

/* One list with every collective on the communication lane: a copy feeds the sum, a copy reads what it gave,
 * so the lanes must wait for each other both ways. Run three times. */
static int check_collectives(Ops *o, Dev *dev, int rank, int world)
{
    Tensor x, sum, after, d, part, whole;
    float *host   = malloc(sizeof *host * OPS_N);
    double two[2] = { 0.5 + rank, 1e300 };
    place(o, &x, "x", DT_F32, OPS_N);
    place(o, &sum, "sum", DT_F32, OPS_N);
    place(o, &after, "after", DT_F32, OPS_N);
    place(o, &d, "d", DT_F64, 1);
    place(o, &part, "part", DT_F32, OPS_N / world);
    place(o, &whole, "whole", DT_F32, OPS_N / world * world);
    Op list[] = {
        { .kind = OP_COPY, .label = "in", .args.copy = { .y = &sum, .x = &x } },
        { .kind            = OP_ALL_REDUCE,
          .lane            = LANE_COMM,
          .label           = "sum",
          .args.all_reduce = { .y = &sum, .x = &sum } },
        { .kind            = OP_ALL_REDUCE,
          .lane            = LANE_COMM,
          .label           = "sum f64",
          .args.all_reduce = { .y = &d, .x = &d } },
        { .kind                = OP_REDUCE_SCATTER,
          .lane                = LANE_COMM,
          .label               = "scatter",
          .args.reduce_scatter = { .y = &part, .x = &x } },
        { .kind            = OP_ALL_GATHER,
          .lane            = LANE_COMM,
          .label           = "gather",
          .args.all_gather = { .y = &whole, .x = &part } },
        { .kind = OP_COPY, .label = "out", .args.copy = { .y = &after, .x = &sum } },
    };
    for (int64_t i = 0; i < OPS_N; i++) host[i] = value(rank, i);
    TRY(dev->vt->upload(dev, LANE_COMPUTE, x.data, host, tensor_bytes(&x)));
    DevExec *exec = dev->vt->exec_create(dev, list, ARRAY_LEN(list));
    if (!exec) return -1;
    for (int k = 0; k < 3; k++) {
        TRY(dev->vt->upload(dev, LANE_COMPUTE, d.data, two, sizeof(double)));
        TRY(dev->vt->exec_run(dev, exec));
    }
    TRY(dev->vt->download(dev, LANE_COMPUTE, host, after.data, tensor_bytes(&after)));
    TRY(dev->vt->download(dev, LANE_COMPUTE, two, d.data, sizeof(double)));
    TRY(dev->vt->sync(dev));
    int64_t bad = two[0] != 0.5 * world + world * (world - 1) / 2.0;
    for (int64_t i = 0; i < OPS_N; i++)
        bad += host[i] != world * (float)(i % 1000) + 0.25f * (float)(world * (world - 1) / 2);
    TRY(dev->vt->download(dev, LANE_COMPUTE, host, whole.data, tensor_bytes(&whole)));
    TRY(dev->vt->sync(dev));
    for (int64_t i = 0; i < tensor_numel(&whole); i++) {
        bad += host[i] != world * (float)(i % 1000) + 0.25f * (float)(world * (world - 1) / 2);
    }
    dev->vt->exec_destroy(dev, exec);
    free(host);
    return bad ? err_set("%lld wrong numbers", (long long)bad) : 0;
}

static int ops_rank(int rank, int world, int port, void *arg)
{
    Ops        *o = arg;
    Comm       *comm;
    const char *why;
    Place       p = ranks_place(rank, world, port);
    if (world > 1) fake_host(rank);
    TRY(comm_meet(&comm, &p, &(CommWaits){ 60, 60, 5 }));
    Dev *dev = dev_open(o->device, &(DevOptions){ .capture = 1, .threads = 1 }, &why);
    if (!dev) return -1;
    TRY(comm_attach(comm, dev));
    o->base = dev_slab_alloc(dev, 6 * sizeof(float) * OPS_N);
    if (!o->base) return -1;
    TRY(check_collectives(o, dev, rank, world));
    TRY(comm_barrier(comm));
    dev_slab_free(dev, o->base);
    dev_close(dev);
    comm_close(comm, 1);
    return 0;
}

/* ---- Training ------------------------------------------------------------------------------------------ */

static int gpu_rank(int rank, int world, int port, void *arg)
{
    if (world > 1) fake_host(rank);
    return train_rank(rank, world, port, arg);
}

/* About 60 MB of gradients: several buckets. */
static int open_case(TrainCase *t, const char *device, DType compute, int eager)
{
    *t = (TrainCase){ .device = device, .compute = compute, .micro_batch = 2, .eager = eager };
    train_case_recipe(&t->recipe);
    RecipeModel *m        = &t->recipe.model;
    m->layers             = 4;
    m->width              = 512;
    m->heads              = 8;
    m->kv_heads           = 4;
    m->head_dim           = 64;
    m->ffn                = 1536;
    m->vocab              = 4000;
    m->context            = 64;
    t->recipe.step_tokens = 8 * m->context;
    return train_case_open(t);
}

/* Sums over ranks in the last micro-step; the loss is one of them. */
static int count_sums(const TrainCase *t)
{
    Job      *b;
    int       n = 0;
    JobChoice c = { .micro_batch = 2, .head_rows = 64, .compute = t->compute, .world = 2 };
    TRY(build_create(&b, &task_lm, &t->recipe, &c, JOB_TRAIN, dev_null()));
    const Prog *last = job_prog(b, "last micro");
    for (int i = 0; i < prog_n_op(last); i++) n += prog_op(last, i)->kind == OP_ALL_REDUCE;
    build_destroy(b);
    return n;
}

static int same_bits(const TrainCase *a, int rank_a, const TrainCase *b, int rank_b)
{
    return memcmp(a->loss + rank_a * TRAIN_STEPS, b->loss + rank_b * TRAIN_STEPS,
                  sizeof(double) * TRAIN_STEPS) == 0 &&
           memcmp(a->weights + rank_a * a->n_weight, b->weights + rank_b * b->n_weight,
                  sizeof(float) * (size_t)a->n_weight) == 0;
}

static void compare_training(Tally *t, const char *device, DType compute, double bound)
{
    TrainCase   one, two, eager;
    const char *name = dtype_name(compute);
    int         ok   = open_case(&one, device, compute, 0) == 0 && open_case(&two, device, compute, 0) == 0 &&
             open_case(&eager, device, compute, 1) == 0;
    int n_sum = ok ? count_sums(&two) : -1;
    tally(t, n_sum >= 4, "%s: the last micro-step has %d sums over ranks", name, n_sum);
    tally(t, ok && ranks_run(1, 120, gpu_rank, &one, NULL), "%s: one rank trains", name);
    tally(t, ok && ranks_run(2, 180, gpu_rank, &two, NULL), "%s: two ranks train", name);
    tally(t, ok && ranks_run(2, 180, gpu_rank, &eager, NULL), "%s: two ranks train without graphs", name);
    double loss    = train_worst(two.loss, one.loss, TRAIN_STEPS),
           norm    = train_worst(two.norm, one.norm, TRAIN_STEPS);
    double weights = train_distance(two.weights, one.weights, one.n_weight),
           val     = train_worst(two.val, one.val, 1);
    tally(t, loss <= bound && norm <= 10 * bound && weights <= bound && val <= bound,
          "%s: two ranks as one: loss %.2e, norm %.2e, weights %.2e, validation %.2e, bound %.1e", name, loss,
          norm, weights, val, bound);
    tally(t, same_bits(&two, 0, &two, 1), "%s: both ranks have the same bits", name);
    tally(t, same_bits(&two, 0, &eager, 0), "%s: graphs change no bit", name);
    train_case_close(&one);
    train_case_close(&two);
    train_case_close(&eager);
}

static void lose_a_rank(Tally *t, const char *device)
{
    TrainCase c;
    int       status[2] = { -1, -1 }, ok = open_case(&c, device, DT_F32, 0) == 0;
    double    t0 = clock_now_s();
    c.leave_step = 2;
    if (ok) ranks_run(2, 120, gpu_rank, &c, status);
    double took = clock_now_s() - t0;
    tally(t, ok && status[1] == 0 && status[0] == 1 && took < 100,
          "a rank that leaves ends the other one: exit %d after %.1f s", status[0], took);
    train_case_close(&c);
}

int main(int argc, char **argv)
{
    Tally       t      = { 0, 0 };
    const char *device = argc > 1 ? argv[1] : "cuda";
    Ops         one = { .device = device }, two = { .device = device };
    tally(&t, ranks_run(1, 60, ops_rank, &one, NULL), "collectives of a single rank");
    tally(&t, ranks_run(2, 120, ops_rank, &two, NULL), "collectives of two ranks");
    compare_training(&t, device, DT_F32, 1e-5);
    if (strcmp(device, "cpu") != 0) compare_training(&t, device, DT_BF16, 0x1p-9);
    lose_a_rank(&t, device);
    return tally_end(&t);
}
