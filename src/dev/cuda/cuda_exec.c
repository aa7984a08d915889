/* Lists of bound ops: dependencies between lanes, capture into a graph, replay, timing.
 *
 * 1. Ops of one lane run in list order on that lane's stream. An op waits for the latest earlier op of each
 *    other lane that touches the same bytes while one of the two writes them. Addresses decide, not tensor
 *    identity. So memory that the planner gave to two tensors in turn is ordered, too.
 * 2. The other lanes start after the earlier work of the compute lane. The later work of the compute lane
 *    starts after all lanes. So for the caller a list is one piece of work on the compute lane, captured or
 *    not.
 * 3. Building never runs the list: a run would change weights. Plans are built first. Where memory allows,
 *    they run once on scratch, so that libraries set nothing up during capture. Kernels may still be loaded
 *    during capture; the relaxed mode and drivers since CUDA 12.3 allow that. */
#include "dev/cuda/cuda_exec.h"

#include "base/fault.h"

#include "dev/cuda/cuda_attn.h"
#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_few.h"
#include "dev/cuda/cuda_gemm.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_ortho.h"
#include "dev/cuda/cuda_own.h"
#include "dev/cuda/cuda_trace.h"
#include "dev/cuda/cuda_tune.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int         wait[LANE_COUNT]; /* op of that lane to wait for, or -1 */
    cudaEvent_t done;             /* recorded after the op; NULL when nobody waits for it */
} ExecOp;

struct DevExec {
    const Op       *ops; /* borrowed */
    int             n_op;
    ExecOp         *op;
    int             used[LANE_COUNT]; /* lanes with ops; the compute lane always */
    cudaEvent_t     start;            /* of the compute lane */
    cudaEvent_t     end[LANE_COUNT];  /* of the other lanes */
    cudaGraphExec_t graph;            /* NULL: run eagerly */
    char            label[160];       /* for messages about replays */
    int            *n_node;           /* while it is captured: nodes of the graph up to the end of each op */
    CudaWork        work;             /* of the graph, for traces; work.work NULL: not known */
};

/* ---- dependencies -------------------------------------------------------------------------------------- */

static void bytes_of(const Tensor *t, uintptr_t *lo, uintptr_t *hi)
{
    int64_t last = 0;
    for (int i = 0; i < t->ndim; i++) last += (t->dim[i] - 1) * t->stride[i];
    *lo = (uintptr_t)t->data;
    *hi = *lo + (size_t)(last + 1) * dtype_bytes(t->dtype);
}

static int tensors_touch(const Tensor *a, const Tensor *b)
{
    uintptr_t a0, a1, b0, b1;
    bytes_of(a, &a0, &a1);
    bytes_of(b, &b0, &b1);
    return a0 < b1 && b0 < a1;
}

static int ops_conflict(const Op *a, const Op *b)
{
    const OpRow *ra = &op_table[a->kind], *rb = &op_table[b->kind];
    for (int i = 0; i < ra->n_tensor; i++) {
        for (int j = 0; j < rb->n_tensor; j++) {
            unsigned both = ra->arg[i].access | rb->arg[j].access;
            if (!a->args.t[i] || !b->args.t[j] || !(both & ARG_WRITE)) continue;
            if (tensors_touch(a->args.t[i], b->args.t[j])) return 1;
        }
    }
    return 0;
}

static int order_lanes(DevExec *x)
{
    int seen[LANE_COUNT][LANE_COUNT]; /* latest op of lane [b] that lane [a] already waits for */
    for (int a = 0; a < LANE_COUNT; a++) {
        for (int b = 0; b < LANE_COUNT; b++) seen[a][b] = -1;
    }
    x->used[LANE_COMPUTE] = 1;
    for (int i = 0; i < x->n_op; i++) x->used[x->ops[i].lane] = 1;
    for (int i = 0; i < x->n_op; i++) {
        Lane own = x->ops[i].lane;
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            x->op[i].wait[lane] = -1;
            if (lane == (int)own || !x->used[lane]) continue;
            for (int j = i - 1; j > seen[own][lane]; j--) {
                if ((int)x->ops[j].lane != lane || !ops_conflict(&x->ops[i], &x->ops[j])) continue;
                x->op[i].wait[lane] = seen[own][lane] = j;
                if (!x->op[j].done) {
                    CUDA_TRY(cudaEventCreateWithFlags(&x->op[j].done, cudaEventDisableTiming));
                }
                break;
            }
        }
    }
    CUDA_TRY(cudaEventCreateWithFlags(&x->start, cudaEventDisableTiming));
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        CUDA_TRY(cudaEventCreateWithFlags(&x->end[lane], cudaEventDisableTiming));
    }
    return 0;
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* Adds which op failed to the pending message. */
static int op_failed(const Op *op)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%s", err_get());
    err_clear();
    return err_set("op %s (%s): %s", op->label, op_table[op->kind].name, cause);
}

/* Nodes of the graph that a stream is being captured into. */
static int captured_nodes(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t                  graph  = NULL;
    size_t                       n      = 0;
    cudaError_t e = cudaStreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL);
    if (e == cudaSuccess && graph) e = cudaGraphGetNodes(graph, NULL, &n);
    return e == cudaSuccess ? (int)n : 0;
}

static int emit_op(CudaDev *d, DevExec *x, int i)
{
    const Op    *op     = &x->ops[i];
    cudaStream_t stream = d->stream[op->lane];
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        int j = x->op[i].wait[lane];
        if (j >= 0) CUDA_TRY(cudaStreamWaitEvent(stream, x->op[j].done, 0));
    }
    d->lane       = op->lane;
    d->last_label = op->label;
    int traced    = cuda_trace_is_on();
    if (traced) cuda_trace_op_begin(op);
    int rc = dev_run_op(&d->base, op);
    if (traced) cuda_trace_op_end();
    if (rc < 0) return op_failed(op);
    if (d->capturing) x->n_node[i] = captured_nodes(stream);
    if (x->op[i].done) CUDA_TRY(cudaEventRecord(x->op[i].done, stream));
    return 0;
}

static int emit_list(CudaDev *d, DevExec *x)
{
    cudaStream_t compute = d->stream[LANE_COMPUTE];
    CUDA_TRY(cudaEventRecord(x->start, compute));
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (x->used[lane] && lane != LANE_COMPUTE) {
            CUDA_TRY(cudaStreamWaitEvent(d->stream[lane], x->start, 0));
        }
    }
    for (int i = 0; i < x->n_op; i++) TRY(emit_op(d, x, i));
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (!x->used[lane] || lane == LANE_COMPUTE) continue;
        CUDA_TRY(cudaEventRecord(x->end[lane], d->stream[lane]));
        CUDA_TRY(cudaStreamWaitEvent(compute, x->end[lane], 0));
    }
    return 0;
}

static int run_eagerly(CudaDev *d, DevExec *x)
{
    int rc  = emit_list(d, x);
    d->lane = LANE_COMPUTE;
    return rc;
}

/* Which op each kernel and copy of the graph belongs to. If that cannot be told, traces have no names. */
static void note_work(DevExec *x, cudaGraph_t graph)
{
    size_t n = x->n_op > 0 ? (size_t)x->n_node[x->n_op - 1] : 0;
    if (n == 0) return;
    cudaGraphNode_t *node = calloc(n, sizeof *node);
    x->work               = (CudaWork){ .ops = x->ops, .work = calloc(n, sizeof(int)), .one_lane = 1 };
    for (int lane = 0; lane < LANE_COUNT; lane++) x->work.one_lane &= !x->used[lane] || lane == LANE_COMPUTE;
    int op = 0, ok = node && x->work.work && cudaGraphGetNodes(graph, node, &n) == cudaSuccess;
    for (size_t k = 0; ok && k < n; k++) {
        enum cudaGraphNodeType type;
        while (op + 1 < x->n_op && x->n_node[op] <= (int)k) op++;
        ok = cudaGraphNodeGetType(node[k], &type) == cudaSuccess;
        if (ok && (type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemcpy ||
                   type == cudaGraphNodeTypeMemset))
            x->work.work[x->work.n_work++] = op;
    }
    if (!ok) x->work.n_work = 0;
    free(node);
}

static int capture(CudaDev *d, DevExec *x)
{
    cudaStream_t compute = d->stream[LANE_COMPUTE];
    cudaGraph_t  graph   = NULL;
    x->n_node            = calloc((size_t)MAX(x->n_op, 1), sizeof *x->n_node);
    CHECK(x->n_node, "out of host memory");
    CUDA_TRY(cudaStreamBeginCapture(compute, cudaStreamCaptureModeRelaxed));
    d->capturing  = 1;
    int rc        = run_eagerly(d, x);
    d->capturing  = 0;
    cudaError_t e = cudaStreamEndCapture(compute, &graph);
    if (rc == 0 && e == cudaSuccess) note_work(x, graph);
    if (rc == 0 && e == cudaSuccess) e = cudaGraphInstantiate(&x->graph, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError(); /* a broken capture leaves its error behind; it is in e */
    if (rc < 0) return -1;
    if (e != cudaSuccess) return err_set("capturing %s: %s", x->label, cudaGetErrorString(e));
    CUDA_TRY(cudaGraphUpload(x->graph, compute));
    return 0;
}

int cuda_exec_run(Dev *dev, DevExec *x)
{
    CudaDev *d = (CudaDev *)dev;
    CUDA_TRY(cudaSetDevice(d->index));
    if (fault_hit(FAULT_DEVICE)) TRY(cuda_trap(dev));
    if (!x->graph) return run_eagerly(d, x);
    d->last_label = x->label;
    if (cuda_trace_is_on()) cuda_trace_graph(&x->work);
    CUDA_TRY(cudaGraphLaunch(x->graph, d->stream[LANE_COMPUTE]));
    return 0;
}

/* ---- building ------------------------------------------------------------------------------------------ */

void cuda_exec_destroy(Dev *dev, DevExec *x)
{
    if (!x) return;
    CudaDev *d = (CudaDev *)dev;
    cudaSetDevice(d->index);
    cudaStreamSynchronize(d->stream[LANE_COMPUTE]); /* a replay may still be running */
    if (x->graph) cudaGraphExecDestroy(x->graph);
    for (int i = 0; i < x->n_op; i++) {
        if (x->op[i].done) cudaEventDestroy(x->op[i].done);
    }
    if (x->start) cudaEventDestroy(x->start);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        if (x->end[lane]) cudaEventDestroy(x->end[lane]);
    }
    d->last_label = "none"; /* it may point into the list */
    free(x->op);
    free(x->n_node);
    free(x->work.work);
    free(x);
}

static int check_ops(const Op *ops, int n_op)
{
    for (int i = 0; i < n_op; i++) {
        const OpRow *row = &op_table[ops[i].kind];
        if (!dev_has(brim_dev_cuda(), ops[i].kind)) {
            return err_set("op %s: no %s on cuda", ops[i].label, row->name);
        }
        for (int k = 0; k < row->n_tensor; k++) {
            const Tensor *t = ops[i].args.t[k];
            CHECK(!t || t->data, "op %s: argument %s (%s) is not bound", ops[i].label, row->arg[k].name,
                  t->name);
        }
    }
    return 0;
}

static int build(CudaDev *d, DevExec *x)
{
    TRY(check_ops(x->ops, x->n_op));
    TRY(order_lanes(x));
    d->building = 1;
    int rc      = 0;
    for (int i = 0; i < x->n_op && rc == 0; i++) {
        if (cuda_few_takes(x->ops[i].kind, &x->ops[i].args)) continue; /* nothing to choose */
        rc = cuda_gemm_prepare(d, &x->ops[i]);
        if (rc == 0) rc = cuda_own_prepare(d, &x->ops[i]);
        if (rc == 0) rc = cuda_attn_prepare(d, &x->ops[i]);
        if (rc == 0) rc = cuda_ortho_prepare(d, &x->ops[i]);
        if (rc < 0) op_failed(&x->ops[i]);
    }
    d->building = 0;
    cuda_scratch_drop(d);
    cuda_tune_save(d->tune);
    if (rc < 0) return -1;
    return d->base.opt.capture ? capture(d, x) : 0;
}

DevExec *cuda_exec_create(Dev *dev, const Op *ops, int n_op)
{
    CudaDev *d = (CudaDev *)dev;
    DevExec *x = calloc(1, sizeof *x);
    CHECK(x, "out of host memory");
    x->op = calloc((size_t)(n_op ? n_op : 1), sizeof *x->op);
    CHECK(x->op, "out of host memory");
    x->ops  = ops;
    x->n_op = n_op;
    snprintf(x->label, sizeof x->label, "a list of %d ops from %s to %s", n_op, n_op ? ops[0].label : "none",
             n_op ? ops[n_op - 1].label : "none");
    cudaError_t e = cudaSetDevice(d->index);
    if (e != cudaSuccess) err_set("cudaSetDevice: %s", cudaGetErrorString(e));
    if (e != cudaSuccess || build(d, x) < 0) {
        cuda_exec_destroy(dev, x);
        return NULL;
    }
    return x;
}

/* ---- timing -------------------------------------------------------------------------------------------- */

enum { TIME_BATCH = 64, TIME_SPIN_US = 3000 };

/* Times ops [first, first + n). The GPU spins while the host queues the batch; else the gap between two
 * launches of the host would be counted as the op's time. All ops run on the compute lane, one after the
 * other. */
static int time_batch(CudaDev *d, DevExec *x, int first, int n, cudaEvent_t *ev, DevOpTime *out)
{
    cudaStream_t compute = d->stream[LANE_COMPUTE];
    TRY(cuda_spin(&d->base, TIME_SPIN_US));
    for (int k = 0; k < n; k++) {
        const Op *op  = &x->ops[first + k];
        d->last_label = op->label;
        CUDA_TRY(cudaEventRecord(ev[2 * k], compute));
        if (dev_run_op(&d->base, op) < 0) return op_failed(op);
        CUDA_TRY(cudaEventRecord(ev[2 * k + 1], compute));
    }
    CUDA_TRY(cudaStreamSynchronize(compute));
    for (int k = 0; k < n; k++) {
        float ms = 0;
        CUDA_TRY(cudaEventElapsedTime(&ms, ev[2 * k], ev[2 * k + 1]));
        out[first + k] = (DevOpTime){ x->ops[first + k].label, x->ops[first + k].kind, 1e3 * (double)ms };
    }
    return 0;
}

int cuda_exec_time(Dev *dev, DevExec *x, DevOpTime *out)
{
    CudaDev    *d                  = (CudaDev *)dev;
    cudaEvent_t ev[2 * TIME_BATCH] = { NULL };
    int         rc                 = 0;
    CUDA_TRY(cudaSetDevice(d->index));
    for (int i = 0; i < ARRAY_LEN(ev) && rc == 0; i++) {
        cudaError_t e = cudaEventCreate(&ev[i]);
        if (e != cudaSuccess) rc = err_set("cudaEventCreate: %s", cudaGetErrorString(e));
    }
    for (int i = 0; i < x->n_op && rc == 0; i += TIME_BATCH) {
        rc = time_batch(d, x, i, MIN(TIME_BATCH, x->n_op - i), ev, out);
    }
    for (int i = 0; i < ARRAY_LEN(ev); i++) {
        if (ev[i]) cudaEventDestroy(ev[i]);
    }
    return rc;
}
