#include "dev/null/null.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    Dev       base;
    NullStats stats;
    uintptr_t next; /* address of the next block */
} NullDev;

/* Never mapped by Linux on x86-64 or arm64 (not canonical), so following one faults at once. */
static const uintptr_t FIRST_ADDRESS = (uintptr_t)1 << 60;

struct DevExec {
    const Op *ops;
    int       n_op;
};

/* ---- Sharing ------------------------------------------------------------------------------------------- */

/* A tensor's elements: rows of cols elements, ld apart, from a byte position in one address space or one
 * root. */
typedef struct {
    int64_t begin; /* bytes */
    int64_t rows, cols, ld, size;
} Area;

static Area area_of(const Tensor *t, int bound)
{
    Area a  = { .rows = tensor_rows(t),
                .cols = tensor_cols(t),
                .ld   = tensor_ld(t),
                .size = (int64_t)dtype_bytes(t->dtype) };
    a.begin = bound ? (int64_t)(uintptr_t)t->data : (int64_t)t->offset_bytes;
    if (a.rows == 1) a.ld = a.cols;
    return a;
}

static int64_t area_end(const Area *a) { return a->begin + ((a->rows - 1) * a->ld + a->cols) * a->size; }

/* Two areas with the same row stride: b starts q rows and m elements after a. An element of both lies in
 * column c of a and c - m (or c - m + ld) of b. */
static int same_stride_overlap(const Area *a, const Area *b)
{
    int64_t d = (b->begin - a->begin) / a->size, q = d / a->ld, m = d % a->ld;
    if (m < 0) {
        m += a->ld;
        q -= 1;
    }
    int hit = m < a->cols && q < a->rows && q + b->rows > 0;
    return hit || (m + b->cols > a->ld && q + 1 < a->rows && q + 1 + b->rows > 0);
}

static int areas_overlap(const Area *a, const Area *b)
{
    if (a->begin >= area_end(b) || b->begin >= area_end(a)) return 0;
    if (a->ld == b->ld && a->size == b->size && (b->begin - a->begin) % a->size == 0)
        return same_stride_overlap(a, b);
    return 1;
}

typedef enum { APART, EXACT, OVERLAP } Share;

static Share share_of(const Tensor *x, const Tensor *y)
{
    int bound = x->data && y->data;
    if (!bound && x->root != y->root) return APART;
    Area a = area_of(x, bound), b = area_of(y, bound);
    if (!areas_overlap(&a, &b)) return APART;
    return a.begin == b.begin && a.ld == b.ld && a.size == b.size && a.rows == b.rows && a.cols == b.cols
               ? EXACT
               : OVERLAP;
}

static int may_alias(const OpRow *row, int i, int j)
{
    for (int p = 0; p < ARRAY_LEN(row->alias); p++) {
        int out = row->alias[p][0], in = row->alias[p][1];
        if (out == in) return 0; /* {0,0} ends the list */
        if ((out == i && in == j) || (out == j && in == i)) return 1;
    }
    return 0;
}

const char *null_check(OpKind kind, const OpArgs *args, char *buf, size_t n)
{
    const char *bad = op_validate(kind, args, buf, n);
    if (bad) return bad;
    const OpRow *row = &op_table[kind];
    for (int i = 0; i < row->n_tensor; i++) {
        for (int j = i + 1; j < row->n_tensor; j++) {
            const Tensor *x = args->t[i], *y = args->t[j];
            if (!x || !y || !((row->arg[i].access | row->arg[j].access) & ARG_WRITE)) continue;
            Share s = share_of(x, y);
            if (s == APART || (s == EXACT && may_alias(row, i, j))) continue;
            snprintf(buf, n, "%s: %s and %s %s", row->name, row->arg[i].name, row->arg[j].name,
                     s == EXACT ? "share storage" : "overlap in part");
            return buf;
        }
    }
    return NULL;
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

static int null_run(Dev *dev, OpKind kind, const OpArgs *args)
{
    char        buf[256];
    const char *bad = null_check(kind, args, buf, sizeof buf);
    if (bad) return err_set("%s", bad);
    NullDev *d = (NullDev *)dev;
    d->stats.flops += op_flops(kind, args);
    d->stats.bytes += op_bytes(kind, args);
    d->stats.n_op += 1;
    return 0;
}

/* The argument struct may be smaller than the union, hence the copy. */
#define X(KIND, field, Type)                                                                                 \
    static int null_op_##field(Dev *dev, const Type *a)                                                      \
    {                                                                                                        \
        OpArgs args;                                                                                         \
        memset(&args, 0, sizeof args);                                                                       \
        args.field = *a;                                                                                     \
        return null_run(dev, OP_##KIND, &args);                                                              \
    }
OP_LIST(X)
#undef X

/* ---- The device ---------------------------------------------------------------------------------------- */

NullStats null_stats(const Dev *dev) { return ((const NullDev *)dev)->stats; }

void null_reset(Dev *dev)
{
    NullDev *d = (NullDev *)dev;
    d->stats   = (NullStats){ .allocated_bytes = d->stats.allocated_bytes };
}

static Dev *null_open(int index, const DevOptions *opt)
{
    NullDev *d = calloc(1, sizeof *d);
    if (!d) {
        err_sys("cannot open the null device");
        return NULL;
    }
    d->next = FIRST_ADDRESS;
    return &d->base;
}

static void null_close(Dev *dev) { free(dev); }

static int null_info(Dev *dev, DevInfo *info)
{
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "null");
    info->total_bytes = info->free_bytes = (size_t)1 << 50;
    info->n_sm                           = 1;
    return 0;
}

static void *null_alloc(Dev *dev, size_t size_bytes)
{
    NullDev *d = (NullDev *)dev;
    void    *p = (void *)d->next;
    /* A gap of at least one alignment unit, so that blocks never touch. */
    d->next += tensor_align_up(size_bytes) + TENSOR_ALIGN;
    d->stats.allocated_bytes += size_bytes;
    return p;
}

static void  null_free(Dev *dev, void *p) {}
static void *null_host_alloc(Dev *dev, size_t size_bytes) { return calloc(1, size_bytes ? size_bytes : 1); }
static void  null_host_free(Dev *dev, void *p) { free(p); }

static int null_upload(Dev *dev, Lane lane, void *dst_dev, const void *src_host, size_t size_bytes)
{
    return 0;
}

static int null_download(Dev *dev, Lane lane, void *dst_host, const void *src_dev, size_t size_bytes)
{
    memset(dst_host, 0, size_bytes);
    return 0;
}

static int null_lane_wait(Dev *dev, Lane waiter, Lane on) { return 0; }
static int null_sync(Dev *dev) { return 0; }
static int null_mark(Dev *dev, Lane lane, int slot) { return 0; }
static int null_mark_wait(Dev *dev, int slot) { return 0; }

static DevExec *null_exec_create(Dev *dev, const Op *ops, int n_op)
{
    DevExec *exec = malloc(sizeof *exec);
    if (!exec) {
        err_sys("cannot bind %d ops", n_op);
        return NULL;
    }
    *exec = (DevExec){ ops, n_op };
    return exec;
}

static void null_exec_destroy(Dev *dev, DevExec *exec) { free(exec); }

static int null_exec_run(Dev *dev, DevExec *exec)
{
    for (int i = 0; i < exec->n_op; i++) TRY(dev_run_op(dev, &exec->ops[i]));
    return 0;
}

static int null_exec_time(Dev *dev, DevExec *exec, DevOpTime *out)
{
    for (int i = 0; i < exec->n_op; i++) out[i] = (DevOpTime){ exec->ops[i].label, exec->ops[i].kind, 0 };
    return null_exec_run(dev, exec);
}

static int null_lane_wait_mark(Dev *dev, Lane waiter, int slot) { return 0; }

static int null_mark_passed(Dev *dev, int slot) { return 1; }

/* clang-format off */
#define SLOT(KIND, field, Type) .field = null_op_##field,
#define NULL_BACKEND(text, which, like, fused)                                                               \
    { .name = text, .kind = which, .hints = &like, .ops = { OP_LIST(SLOT) }, .fuses = fused,                 \
      .open = null_open, .close = null_close, .info = null_info, .alloc = null_alloc, .free = null_free,     \
      .host_alloc = null_host_alloc, .host_free = null_host_free, .upload = null_upload,                     \
      .download = null_download, .lane_wait = null_lane_wait, .sync = null_sync, .mark = null_mark,          \
      .mark_wait = null_mark_wait, .mark_passed = null_mark_passed, .lane_wait_mark = null_lane_wait_mark,   \
      .exec_create = null_exec_create, .exec_destroy = null_exec_destroy, .exec_run = null_exec_run,         \
      .exec_time = null_exec_time }
/* clang-format on */

const DevVt *dev_null(void)
{
    static const DevVt vt = NULL_BACKEND("null", DEV_NULL, dev_hints_null, FUSE_ALL);
    return &vt;
}

const DevVt *dev_cuda_plan(void)
{
    static const DevVt vt = NULL_BACKEND("cuda", DEV_CUDA, dev_hints_cuda, FUSE_CUDA);
    return &vt;
}
