/* Dev: a place where op lists run.
 *
 * 1. A backend is a DevVt: memory, copies and one slot per op kind. An empty slot means "cannot"; lowering
 *    then refuses the list before anything runs, and names op, shape and backend. `fuses` says which fused
 *    products are not slower than their parts; lowering uses only these.
 * 2. dev_slab_alloc is called only while a run is being set up; dev_seal() ends that time, and an allocation
 *    after it aborts.
 * 3. A DevExec is a bound list ready to replay. Building one may create library descriptors, time algorithms
 *    and capture graphs; replaying one does none of that.
 * 4. Replay is asynchronous: dev_sync waits. Errors found while running come back from dev_sync, or from the
 *    next call. */
#ifndef DEV_DEV_H
#define DEV_DEV_H

#include "dev/op.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Dev     Dev;
typedef struct DevExec DevExec;

typedef enum { DEV_CPU, DEV_CUDA, DEV_NULL } DevKind;

typedef struct {
    char   name[128];     /* "NVIDIA H200", "Intel Xeon ..., 2 threads" */
    char   versions[256]; /* driver and library versions, one line */
    size_t total_bytes;
    size_t free_bytes;
    int    capability; /* 90 for compute capability 9.0; 0 on the CPU */
    int    n_sm;       /* multiprocessors, or threads */
} DevInfo;

typedef struct {
    int         deterministic; /* only variants that give the same bits each time */
    int         capture;       /* capture into graphs where the backend can (default 1) */
    int         tune;          /* time algorithms (default 1); 0: the library's first proposal */
    int         tf32;          /* f32 products may use TF32 */
    const char *tune_cache;    /* file to keep timings in; NULL: none */
    int         threads;       /* CPU threads; 0: all */
    int own; /* own products and attention: 0 where they are faster, 1 wherever they can run, -1 nowhere */
} DevOptions;

typedef struct {
    const char *label; /* of the op */
    OpKind      kind;
    double      time_us;
} DevOpTime;

/* One kernel or copy at work; on a backend without kernels one op. */
typedef struct {
    double    begin_s, end_s; /* on the clock of clock_now_s() */
    const Op *op;             /* that it belongs to; NULL: none, or not known */
    Lane      lane;
    char      name[64]; /* of the kernel; "": the op says all */
} DevSpan;

/* What ran on the device between two points. */
typedef struct {
    double   span_s;         /* from the first beginning to the last end */
    double   busy_s;         /* with at least one kernel or copy at work */
    int64_t  n_kernel;       /* and copies */
    DevSpan *span;           /* the caller frees it; sorted by beginning */
    int64_t  n_span, n_lost; /* lost: beyond DEV_SPANS, or without memory for them */
} DevTrace;

enum { DEV_SPANS = 1 << 19 };

enum { COMM_ID_BYTES = 128 }; /* as many as NCCL's */

/* The place of this process among several that train one model. id comes from comm_id() of rank 0. The last
 * two fields are a transport over host memory, for backends without a transport of their own. A sum is taken
 * in the order of ranks, so all ranks get the same bits. */
typedef struct {
    int           rank, world;
    unsigned char id[COMM_ID_BYTES];
    void         *ctx;
    int (*all_reduce)(void *ctx, DType dtype, void *x, int64_t n_elem); /* in place; f32 or f64 */
    /* x may be this rank's part of y */
    int (*all_gather)(void *ctx, void *y, const void *x, size_t part_bytes);
} DevComm;

/* One slot per op kind: int name(Dev *, const Type *). Negative after err_set(). */
typedef struct {
#define X(KIND, field, Type) int (*field)(Dev * dev, const Type *a);
    OP_LIST(X)
#undef X
} DevOps;

/* Fused products that a backend runs not slower than their parts. Where it has no kernel of its own for one
 * (shape, card), the slot runs the parts in a row. */
enum {
    FUSE_LINEAR_ACT_BWD = 1,  /* LINEAR_ACT_BWD */
    FUSE_LINEAR_GLU_FWD = 2,  /* LINEAR_GLU_FWD */
    FUSE_LINEAR_GLU_BWD = 4,  /* LINEAR_GLU_BWD */
    FUSE_LINEAR_DW_BIAS = 8,  /* LINEAR_DW with db */
    FUSE_ACT_SLOPE      = 16, /* LINEAR_ACT_FWD and LINEAR_GLU_FWD with slope */
    FUSE_ALL            = 31,
    /* The CUDA backend's: here, where a plan for a card that is not in this computer sees them too. */
    FUSE_CUDA = FUSE_ALL
};

/* What planning and measuring need to know about a backend, so that no code asks which backend it is. */
typedef struct {
    unsigned    dtypes;         /* 1 << DType for each dtype that it computes in */
    unsigned    slope_dtypes;   /* likewise, that the slope of an activation may be stored in */
    int         is_late;        /* 1: calls return before the work is done; its memory is not the host's */
    int         times;          /* 1: it times algorithms; fused products round otherwise than their parts */
    int         captures;       /* 1: it captures lists into graphs */
    int         has_workspaces; /* 1: ops take scratch of op_workspace_bytes() */
    int64_t     most_rows;      /* rows of activations at a time; more gain nothing */
    double      chunk_bytes;    /* of logits at a time, to begin with */
    int         grows_chunks;   /* 1: larger chunks pay where memory is left */
    size_t      margin_bytes;   /* of free memory that a plan leaves alone: so many, */
    int         margin_part;    /* or this part of it (5: a fifth) */
    double      settle_s;       /* seconds of load until its clocks are steady */
    double      held_s;         /* seconds that a rate is measured for */
    int64_t     gemm_side;      /* of the square product that measures its rate */
    int64_t     copy_bytes;     /* of the copy that measures its bandwidth */
    int         op_passes;      /* times that each op is timed */
    double      flops_unit;     /* 1e12 */
    const char *flops_name;     /* "TFLOP/s" */
} DevHints;

extern const DevHints dev_hints_cpu, dev_hints_cuda, dev_hints_late, dev_hints_null;

typedef struct {
    const char     *name;
    DevKind         kind;
    const DevHints *hints;
    DevOps          ops;
    unsigned        fuses; /* FUSE_* */

    Dev *(*open)(int index, const DevOptions *opt); /* NULL after err_set() */
    void (*close)(Dev *dev);
    int (*info)(Dev *dev, DevInfo *info);

    void *(*alloc)(Dev *dev, size_t size_bytes); /* zeroed, TENSOR_ALIGN aligned */
    void (*free)(Dev *dev, void *p);
    void *(*host_alloc)(Dev *dev, size_t size_bytes); /* pinned where that means something */
    void (*host_free)(Dev *dev, void *p);
    /* Asynchronous on the lane; host memory from host_alloc must stay valid until the lane has passed. */
    int (*upload)(Dev *dev, Lane lane, void *dst_dev, const void *src_host, size_t size_bytes);
    int (*download)(Dev *dev, Lane lane, void *dst_host, const void *src_dev, size_t size_bytes);
    int (*lane_wait)(Dev *dev, Lane waiter, Lane on); /* waiter's later work runs after on's work so far */
    int (*sync)(Dev *dev);                            /* waits for all lanes; reports any pending error */
    /* Marks a point on a lane / waits on the host for it. slot in [0, DEV_MARKS). */
    int (*mark)(Dev *dev, Lane lane, int slot);
    int (*mark_wait)(Dev *dev, int slot);
    int (*mark_passed)(Dev *dev,
                       int  slot); /* 1: the lane has passed it, or it was never set; does not wait */
    int (*lane_wait_mark)(Dev *dev, Lane waiter, int slot); /* waiter's later work runs after the mark */

    /* For several ranks; NULL: this backend knows only one rank. Without comm_open() a collective acts as for
     * a single rank. Only rank 0 calls comm_id. comm_open is called before slabs are allocated and returns
     * when every rank has called it. */
    int (*comm_id)(unsigned char id[COMM_ID_BYTES]);
    int (*comm_open)(Dev *dev, const DevComm *c); /* copies *c; its ctx must outlive the device */

    /* Scratch that the ops of a list share, one after another, when so many threads run them (0: all); the
     * plan counts it. NULL: ops name their workspaces. */
    size_t (*scratch_bytes)(const Op *ops, int n_op, int threads);
    /* Lists that are bound from now on use this range, which stays the caller's; NULL: none. */
    void (*use_scratch)(Dev *dev, void *p, size_t size_bytes);

    /* Memory of a plan that nothing uses while its lists are built: algorithms may be timed in it. NULL, 0:
     * no more. A slot that is NULL needs none. */
    void (*lend)(Dev *dev, void *p, size_t size_bytes);

    DevExec *(*exec_create)(Dev *dev, const Op *ops, int n_op); /* borrows ops; NULL after err_set() */
    void (*exec_destroy)(Dev *dev, DevExec *exec);
    int (*exec_run)(Dev *dev, DevExec *exec);
    /* Runs the list once, each op timed alone (n_op results). */
    int (*exec_time)(Dev *dev, DevExec *exec, DevOpTime *out);
    /* Records what runs from trace_begin() to trace_end(); one at a time in a process. Both wait. NULL: this
     * backend cannot. */
    int (*trace_begin)(Dev *dev);
    int (*trace_end)(Dev *dev, DevTrace *out);
} DevVt;

enum { DEV_MARKS = 64 };

/* Every backend's Dev begins with this. */
struct Dev {
    const DevVt *vt;
    DevOptions   opt;
    size_t       allocated_bytes; /* through dev_slab_alloc */
    int          sealed;
};

/* "cpu", "cuda", "cuda:N", "null", "auto": CUDA when it works, else the CPU; for tests "late:SEED"
 * (dev/late/late.c). *why (static or per-thread text) says what was chosen and why. Returns NULL after
 * err_set(), or after err_user("device: ...") when there is no such device here. */
Dev *dev_open(const char *spec, const DevOptions *opt, const char **why);
void dev_close(Dev *dev);

void *dev_slab_alloc(Dev *dev, size_t size_bytes); /* counts and refuses after seal; NULL after err_set() */
void  dev_slab_free(Dev *dev, void *p);
void  dev_seal(Dev *dev);

/* Adds a span; beyond DEV_SPANS, or without memory, only counts it. cap: of t->span, 0 at first. */
void dev_trace_add(DevTrace *t, int64_t *cap, const DevSpan *span);
/* Sorts the spans of a trace and fills its sums. */
void dev_trace_finish(DevTrace *t);

/* 1 if the backend fills the slot. */
int dev_has(const DevVt *vt, OpKind kind);
/* Calls the slot of one op, now. */
int dev_run_op(Dev *dev, const Op *op);

const DevVt *dev_cpu(void);
const DevVt *dev_null(void);
const DevVt *dev_late(void);
/* A backend that runs nothing, with the ops, workspaces, fused products and hints of CUDA: the plan of a GPU
 * on any computer. */
const DevVt *dev_cuda_plan(void);
/* Opens libbrim_cuda.so beside the program; NULL with *why set when that cannot be. */
const DevVt *dev_cuda(const char **why);

#ifdef __cplusplus
}
#endif
#endif
