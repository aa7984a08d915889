#include "watch/divide.h"

#include "base/err.h"
#include "dev/cpu/cpu.h"

typedef struct {
    Divide    *out;
    const Job *job;
    Machine    one; /* a thread, without the fixed cost of an op: it is none of the op's size */
} DivideWalk;

/* Elements that the backend's loop goes over: as a rule the largest tensor. Attention goes over the heads of
 * its queries, and an embedding over its rows. */
static int64_t loop_size(const Op *op)
{
    const OpRow *row  = &op_table[op->kind];
    int64_t      most = 0;
    switch (op->kind) {
    case OP_ATTN_FWD:
    case OP_CROSS_ATTN_FWD:
    case OP_CROSS_ATTN_BWD:
    case OP_EMBED_FWD: return tensor_numel(op->args.t[0]);
    case OP_ATTN_BWD: return tensor_numel(op->args.attn_bwd.dout);
    case OP_EMBED_DW: return tensor_numel(op->args.embed_dw.dy);
    default: break;
    }
    for (int i = 0; i < row->n_tensor; i++) {
        const Tensor *t = op->args.t[i];
        if (t && !(row->arg[i].access & ARG_WS)) most = MAX(most, tensor_numel(t));
    }
    return most;
}

static int is_shared(const Op *op, const MachineWork *x)
{
    if (x->unit == UNIT_GEMM || x->unit == UNIT_FP8) return x->flops / 2 >= CPU_PARALLEL_PRODUCT;
    return loop_size(op) >= CPU_PARALLEL_MIN;
}

static void add_row(void *ctx, const ScheduleRow *row, double times)
{
    DivideWalk *w = ctx;
    const Prog *p = w->job->prog[row->prog];
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op   *op    = prog_op(p, i);
        MachineWork x     = op_work(op->kind, &op->args, MACHINE_F32);
        double      s     = machine_op_time(&w->one, &x);
        int         large = is_shared(op, &x);
        w->out->n_op += times;
        w->out->n_shared += large ? times : 0;
        *(large ? &w->out->shared_s : &w->out->alone_s) += times * s;
    }
}

void divide_of(Divide *d, const Job *j)
{
    DivideWalk  w     = { .out = d, .job = j, .one = machine_cpu(1, 0) };
    MachineWork least = { .unit = UNIT_GEMM, .flops = 2 * CPU_PARALLEL_PRODUCT, .arith = MACHINE_F32 };
    w.one.op_s        = 0;
    *d = (Divide){ .wake_s = machine_op_time(&w.one, &least), .has_host = job_has_host_rows(j) };
    schedule_each(&j->step, add_row, &w);
}

double divide_step_s(const Divide *d, double threads, double wake)
{
    double saved = 1 - 1 / threads;
    return d->alone_s + d->shared_s * (1 - saved) + d->n_shared * d->wake_s * saved * wake;
}
