/* The CPU's DevVt: memory, threads and replay. Lanes and marks mean nothing here, since every call has
 * finished when it returns. */
#include "dev/cpu/cpu.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/hostmem.h"
#include "base/mem.h"
#include "dev/cpu/cpu_attn.h"
#include "dev/cpu/cpu_linear.h"
#include "dev/cpu/cpu_optim.h"
#include "dev/cpu/cpu_row.h"
#include "dev/cpu/cpu_vec.h"
#include "dev/cpu/cpu_wait.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = 2 * 1024 * 1024 };

struct DevExec {
    const Op *ops;
    int       n_op;
    CpuRange  scratch; /* empty: what has grown */
};

/* ---- The machine --------------------------------------------------------------------------------------- */

double cpu_read_number(const char *path, const char *key, double fallback)
{
    FILE *f = fopen(path, "r");
    if (!f) return fallback;
    char   line[256];
    double value = fallback;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), " %lf", &value) == 1) break;
    }
    fclose(f);
    return value;
}

/* CPUs this process may use: OMP_NUM_THREADS through OpenMP, affinity, and a container's quota. OpenMP does
 * not know the quota; more threads than the quota allows, which wait awake, make the run several times
 * slower. */
static int usable_threads(void)
{
    int quota = hostmem_quota();
    return MIN(omp_get_max_threads(), quota);
}

/* Threads that pay where so many are asked for (0: all): more than twice the CPUs only wait for each
 * other. */
static int threads_for(int asked)
{
    enum { MANY = 2 }; /* times the CPUs */
    if (asked <= 0) return usable_threads();
    int quota = hostmem_quota();
    int cpus  = MIN(omp_get_num_procs(), quota);
    return asked > MANY * cpus ? cpus : asked;
}

static void read_model(char *out, size_t n)
{
    snprintf(out, n, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, n, "%s", colon + 2);
        break;
    }
    fclose(f);
}

static int cpu_info(Dev *dev, DevInfo *info)
{
    memset(info, 0, sizeof *info);
    char model[96];
    read_model(model, sizeof model);
    int threads = cpu_threads(dev);
    snprintf(info->name, sizeof info->name, "%s, %d thread%s", model, threads, threads == 1 ? "" : "s");
    snprintf(info->versions, sizeof info->versions, "gcc %s, vectors of %d floats", __VERSION__, VL);
    info->total_bytes = hostmem_total();
    info->free_bytes  = hostmem_available();
    info->n_sm        = threads;
    return 0;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* All threads zero the memory, so that each page is first touched by a thread that will use it. Huge pages,
 * because a product walks many rows at once and would miss the TLB on each row. */
static void *alloc_zeroed(int threads, size_t size_bytes)
{
    size_t align = size_bytes >= HUGE_PAGE ? HUGE_PAGE : TENSOR_ALIGN;
    size_t size  = (size_bytes + align - 1) / align * align;
    char  *p     = fault_hit(FAULT_MALLOC) ? NULL : aligned_alloc(align, size ? size : align);
    if (!p) {
        err_set("cannot allocate %zu bytes of host memory", size_bytes);
        return NULL;
    }
    if (align == HUGE_PAGE) (void)madvise(p, size, MADV_HUGEPAGE); /* only advice: small pages also work */
    int64_t n_page = (int64_t)(size / align);
#pragma omp parallel for num_threads(threads) schedule(static) if (n_page > 1)
    for (int64_t i = 0; i < n_page; i++) memset(p + (size_t)i * align, 0, align);
    return p;
}

static void *cpu_alloc(Dev *dev, size_t size_bytes) { return alloc_zeroed(cpu_threads(dev), size_bytes); }

static void cpu_free(Dev *dev, void *p) { free(p); }

void *cpu_scratch(Dev *dev, size_t size_bytes)
{
    CpuDev *d = (CpuDev *)dev;
    if (d->list.p && size_bytes <= d->list.bytes) return d->list.p;
    if (d->grown.p && size_bytes <= d->grown.bytes) return d->grown.p;
    dev_slab_free(dev, d->grown.p);
    d->grown.p     = dev_slab_alloc(dev, size_bytes);
    d->grown.bytes = d->grown.p ? size_bytes : 0;
    return d->grown.p;
}

static void cpu_use_scratch(Dev *dev, void *p, size_t size_bytes)
{
    ((CpuDev *)dev)->planned = (CpuRange){ p, size_bytes };
}

static size_t sums_scratch(const Tensor *dy, int n_out, int64_t tmp_cols, int threads)
{
    Colsum c = { .rows = tensor_rows(dy), .cols = tensor_cols(dy), .n_out = n_out, .tmp_cols = tmp_cols };
    return colsum_scratch(&c, threads);
}

static size_t linear_dw_scratch(const LinearDw *a, int threads)
{
    size_t product = cpu_linear_dw_scratch(a->dw, a->dy, a->x);
    return a->db ? MAX(product, sums_scratch(a->dy, 1, 0, threads)) : product;
}

static size_t linear_act_bwd_scratch(const LinearActBwd *a, int threads)
{
    size_t product = cpu_linear_grad_scratch(a->dy, a->w, threads);
    return a->db ? MAX(product, sums_scratch(a->dpre, 1, 0, threads)) : product;
}

static size_t quant_scratch(const Quant *a, int threads)
{
    Colsum c = { .rows = tensor_rows(a->x), .cols = tensor_numel(a->db), .n_out = 1 };
    return colsum_scratch(&c, threads);
}

/* What an op will ask cpu_scratch() for. */
static size_t cpu_scratch_bytes(OpKind kind, const OpArgs *a, int threads)
{
    switch (kind) {
    case OP_LINEAR_FWD: return cpu_linear_fwd_scratch(a->linear_fwd.y, a->linear_fwd.x, a->linear_fwd.w);
    case OP_LINEAR_ACT_FWD:
        return cpu_linear_fwd_scratch(a->linear_act_fwd.y, a->linear_act_fwd.x, a->linear_act_fwd.w);
    case OP_LINEAR_DX: return cpu_linear_dx_scratch(a->linear_dx.dx, a->linear_dx.dy, a->linear_dx.w);
    case OP_LINEAR_DW: return linear_dw_scratch(&a->linear_dw, threads);
    case OP_LINEAR_ACT_BWD: return linear_act_bwd_scratch(&a->linear_act_bwd, threads);
    case OP_LINEAR_GLU_FWD:
        return cpu_linear_fwd_scratch(a->linear_glu_fwd.pre, a->linear_glu_fwd.x, a->linear_glu_fwd.w);
    case OP_LINEAR_GLU_BWD:
        return cpu_linear_grad_scratch(a->linear_glu_bwd.dy, a->linear_glu_bwd.w, threads);
    case OP_NORM_DW: return sums_scratch(a->norm_dw.dy, 2, 0, threads);
    case OP_NORM_BWD:
        return sums_scratch(a->norm_bwd.dy, a->norm_bwd.dbias ? 3 : 2, tensor_cols(a->norm_bwd.dy), threads);
    case OP_SCALE_DW: return sums_scratch(a->scale_dw.dy, 1, 0, threads);
    case OP_BIAS_DW: return sums_scratch(a->bias_dw.dy, 1, 0, threads);
    case OP_ACT_BIAS_BWD: return sums_scratch(a->act_bias_bwd.dy, 1, 0, threads);
    case OP_QUANT: return a->quant.db ? quant_scratch(&a->quant, threads) : 0;
    case OP_QKNORM_DW: return sums_scratch(a->qknorm_dw.dy, 2, 0, threads);
    case OP_ATTN_FWD: return cpu_attn_fwd_scratch(&a->attn_fwd, threads);
    case OP_ATTN_BWD: return cpu_attn_bwd_scratch(&a->attn_bwd, threads);
    case OP_ATTN_DECODE: return cpu_attn_decode_scratch(&a->attn_decode, threads);
    case OP_CROSS_ATTN_FWD: return cpu_cross_attn_fwd_scratch(&a->cross_attn_fwd, threads);
    case OP_CROSS_ATTN_BWD: return cpu_cross_attn_bwd_scratch(&a->cross_attn_bwd, threads);
    case OP_ORTHO: return cpu_ortho_scratch(a->ortho.x);
    case OP_SUMSQ: return cpu_sumsq_scratch(tensor_numel(a->sumsq.x));
    case OP_REDUCE_SCATTER: return tensor_bytes(a->reduce_scatter.x);
    default: return 0;
    }
}

static size_t cpu_list_scratch(const Op *ops, int n_op, int threads)
{
    size_t most = 0;
    threads     = threads_for(threads);
    for (int i = 0; i < n_op; i++) most = MAX(most, cpu_scratch_bytes(ops[i].kind, &ops[i].args, threads));
    return most;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static Dev *cpu_open(int index, const DevOptions *opt)
{
    CpuDev *d = mem_zeroed(1, sizeof *d);
    if (!d) {
        err_sys("cannot open the CPU");
        return NULL;
    }
    d->threads = threads_for(opt->threads);
    omp_set_dynamic(0);
    cpu_wait_open(d->threads);
    return &d->base;
}

static void cpu_close(Dev *dev)
{
    CpuDev *d = (CpuDev *)dev;
    cpu_wait_close(d->threads);
    dev_slab_free(dev, d->grown.p);
    free(d->trace.span); /* of a trace that nobody ended */
    free(d);
}

int cpu_threads(const Dev *dev) { return ((const CpuDev *)dev)->threads; }

Mat cpu_mat(const Tensor *t)
{
    if (!t) return (Mat){ 0 };
    return (Mat){ .p = cpu_f32(t), .rows = tensor_rows(t), .cols = tensor_cols(t), .ld = tensor_ld(t) };
}

float *cpu_f32(const Tensor *t)
{
    if (!t) return NULL;
    CHECK(t->dtype == DT_F32, "the CPU computes in f32, %s is %s", t->name, dtype_name(t->dtype));
    return t->data;
}

/* ---- Copies and order ---------------------------------------------------------------------------------- */

static int cpu_upload(Dev *dev, Lane lane, void *dst_dev, const void *src_host, size_t size_bytes)
{
    memcpy(dst_dev, src_host, size_bytes);
    return 0;
}

static int cpu_download(Dev *dev, Lane lane, void *dst_host, const void *src_dev, size_t size_bytes)
{
    memcpy(dst_host, src_dev, size_bytes);
    return 0;
}

static int cpu_lane_wait(Dev *dev, Lane waiter, Lane on) { return 0; }
static int cpu_sync(Dev *dev) { return 0; }
static int cpu_mark(Dev *dev, Lane lane, int slot) { return 0; }
static int cpu_mark_wait(Dev *dev, int slot) { return 0; }
static int cpu_mark_passed(Dev *dev, int slot) { return 1; }
static int cpu_lane_wait_mark(Dev *dev, Lane waiter, int slot) { return 0; }

/* ---- Lists --------------------------------------------------------------------------------------------- */

static DevExec *cpu_exec_create(Dev *dev, const Op *ops, int n_op)
{
    CpuDev *d = (CpuDev *)dev;
    for (int i = 0; i < n_op; i++) {
        char        why[256];
        const char *bad = op_validate(ops[i].kind, &ops[i].args, why, sizeof why);
        if (bad) {
            err_set("%s: %s", ops[i].label, bad);
            return NULL;
        }
    }
    size_t   most  = cpu_list_scratch(ops, n_op, d->threads);
    CpuRange range = most <= d->planned.bytes ? d->planned : (CpuRange){ 0 };
    if (most && !range.p && !cpu_scratch(dev, most)) return NULL;
    DevExec *exec = mem_alloc(sizeof *exec);
    if (!exec) {
        err_sys("cannot bind %d ops", n_op);
        return NULL;
    }
    *exec = (DevExec){ ops, n_op, range };
    return exec;
}

static void cpu_exec_destroy(Dev *dev, DevExec *exec) { free(exec); }

static int run_traced(Dev *dev, const Op *op)
{
    CpuDev *d    = (CpuDev *)dev;
    DevSpan span = { .begin_s = clock_now_s(), .op = op, .lane = op->lane };
    int     rc   = dev_run_op(dev, op);
    span.end_s   = clock_now_s();
    dev_trace_add(&d->trace, &d->trace_cap, &span);
    return rc;
}

static int cpu_exec_run(Dev *dev, DevExec *exec)
{
    int rc                = 0;
    ((CpuDev *)dev)->list = exec->scratch;
    for (int i = 0; i < exec->n_op && rc == 0; i++)
        rc = ((CpuDev *)dev)->tracing ? run_traced(dev, &exec->ops[i]) : dev_run_op(dev, &exec->ops[i]);
    ((CpuDev *)dev)->list = (CpuRange){ 0 };
    return rc;
}

static int cpu_trace_begin(Dev *dev)
{
    CpuDev *d = (CpuDev *)dev;
    free(d->trace.span); /* a run that went back begins its trace anew */
    d->trace     = (DevTrace){ 0 };
    d->trace_cap = 0;
    d->tracing   = 1;
    return 0;
}

static int cpu_trace_end(Dev *dev, DevTrace *out)
{
    CpuDev *d  = (CpuDev *)dev;
    d->tracing = 0;
    *out       = d->trace;
    d->trace   = (DevTrace){ 0 };
    dev_trace_finish(out);
    return 0;
}

static int cpu_exec_time(Dev *dev, DevExec *exec, DevOpTime *out)
{
    int rc                = 0;
    ((CpuDev *)dev)->list = exec->scratch;
    for (int i = 0; i < exec->n_op && rc == 0; i++) {
        double start = clock_now_s();
        rc           = dev_run_op(dev, &exec->ops[i]);
        out[i]       = (DevOpTime){ exec->ops[i].label, exec->ops[i].kind, (clock_now_s() - start) * 1e6 };
    }
    ((CpuDev *)dev)->list = (CpuRange){ 0 };
    return rc;
}

const DevVt *dev_cpu(void)
{
    static const DevVt vt = {
        .name = "cpu",
        .kind = DEV_CPU,
        .hints = &dev_hints_cpu,
        .ops =
            {
#define X(KIND, field, Type) .field = cpu_##field,
                OP_LIST(X)
#undef X
            },
        .fuses        = FUSE_ALL,
        .open         = cpu_open,
        .close        = cpu_close,
        .info         = cpu_info,
        .alloc        = cpu_alloc,
        .free         = cpu_free,
        .host_alloc   = cpu_alloc,
        .host_free    = cpu_free,
        .upload       = cpu_upload,
        .download     = cpu_download,
        .lane_wait    = cpu_lane_wait,
        .sync         = cpu_sync,
        .mark         = cpu_mark,
        .mark_wait    = cpu_mark_wait,
        .mark_passed  = cpu_mark_passed,
        .lane_wait_mark = cpu_lane_wait_mark,
        .comm_id      = cpu_comm_id,
        .comm_open    = cpu_comm_open,
        .scratch_bytes = cpu_list_scratch,
        .use_scratch  = cpu_use_scratch,
        .exec_create  = cpu_exec_create,
        .exec_destroy = cpu_exec_destroy,
        .exec_run     = cpu_exec_run,
        .exec_time    = cpu_exec_time,
        .trace_begin  = cpu_trace_begin,
        .trace_end    = cpu_trace_end,
    };
    return &vt;
}
