#include "dev/cuda/cuda_comm.h"

#include "base/err.h"
#include "dev/cuda/cuda_check.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* nccl.h is C++ at heart */
#include <nccl.h>
#pragma GCC diagnostic pop

/* ---- The library --------------------------------------------------------------------------------------- */

/* X(field, symbol): what is used of NCCL. */
#define NCCL_LIST(X)                                                                                         \
    X(get_version, ncclGetVersion)                                                                           \
    X(get_unique_id, ncclGetUniqueId)                                                                        \
    X(init_rank, ncclCommInitRank)                                                                           \
    X(async_error, ncclCommGetAsyncError)                                                                    \
    X(destroy, ncclCommDestroy)                                                                              \
    X(abort, ncclCommAbort)                                                                                  \
    X(error_string, ncclGetErrorString)                                                                      \
    X(last_error, ncclGetLastError)                                                                          \
    X(all_reduce, ncclAllReduce)                                                                             \
    X(reduce_scatter, ncclReduceScatter)                                                                     \
    X(all_gather, ncclAllGather)

typedef struct {
#define X(field, symbol) __typeof__(symbol) *field;
    NCCL_LIST(X)
#undef X
} Nccl;

struct CudaComm {
    Nccl       nccl;
    ncclComm_t comm;
    int        rank, world;
};

static int nccl_load(Nccl *n)
{
    /* Never closed: its proxy threads outlive every communicator. */
    void *lib = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!lib) return err_set("several GPUs need NCCL: %s", dlerror());
#define X(field, symbol)                                                                                     \
    *(void **)&n->field = dlsym(lib, #symbol);                                                               \
    if (!n->field) return err_set("libnccl.so.2 has no " #symbol);
    NCCL_LIST(X)
#undef X
    return 0;
}

static int nccl_check(const Nccl *n, ncclComm_t comm, ncclResult_t r, const char *what)
{
    if (r == ncclSuccess) return 0;
    const char *last = n->last_error(comm);
    return err_set("%s: %s%s%s", what, n->error_string(r), last && *last ? ": " : "",
                   last && *last ? last : "");
}

int cuda_comm_id(unsigned char id[COMM_ID_BYTES])
{
    Nccl         n;
    ncclUniqueId u;
    _Static_assert(sizeof u == 128, "DevComm.id holds an ncclUniqueId");
    TRY(nccl_load(&n));
    TRY(nccl_check(&n, NULL, n.get_unique_id(&u), "ncclGetUniqueId"));
    memcpy(id, &u, sizeof u);
    return 0;
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

/* NCCL picks protocol and algorithm by size and connects each the first time it is used. These sizes, in f32
 * numbers, reach all of them: the loss (latency), 256 KiB, and more than a bucket (bandwidth). */
static const size_t warm_elems[] = { 2, 64 << 10, 8 << 20 };

static int warm_up(CudaDev *d, CudaComm *c, float *buf, size_t size_bytes)
{
    cudaStream_t s = d->stream[LANE_COMM];
    const Nccl  *n = &c->nccl;
    CUDA_TRY(cudaMemsetAsync(buf, 0, size_bytes, s));
    for (int i = 0; i < ARRAY_LEN(warm_elems); i++) {
        size_t all = warm_elems[i], part = MAX(all / (size_t)c->world, (size_t)1);
        float *own = buf + part * (size_t)c->rank;
        TRY(nccl_check(n, c->comm, n->all_reduce(buf, buf, all, ncclFloat, ncclSum, c->comm, s),
                       "ncclAllReduce"));
        TRY(nccl_check(n, c->comm, n->all_reduce(buf, buf, all / 2, ncclDouble, ncclSum, c->comm, s),
                       "ncclAllReduce"));
        TRY(nccl_check(n, c->comm, n->reduce_scatter(buf, own, part, ncclFloat, ncclSum, c->comm, s),
                       "ncclReduceScatter"));
        TRY(nccl_check(n, c->comm, n->all_gather(own, buf, part, ncclFloat, c->comm, s), "ncclAllGather"));
    }
    CUDA_TRY(cudaStreamSynchronize(s));
    return 0;
}

static int open_comm(CudaDev *d, CudaComm *c, const DevComm *who)
{
    ncclUniqueId id;
    void        *buf     = NULL;
    int          version = 0;
    memcpy(&id, who->id, sizeof id);
    TRY(nccl_load(&c->nccl));
    CUDA_TRY(cudaSetDevice(d->index));
    TRY(nccl_check(&c->nccl, NULL, c->nccl.get_version(&version), "ncclGetVersion"));
    TRY(nccl_check(&c->nccl, NULL, c->nccl.init_rank(&c->comm, who->world, id, who->rank),
                   "ncclCommInitRank"));
    size_t bytes = sizeof(float) * MAX(warm_elems[ARRAY_LEN(warm_elems) - 1], (size_t)who->world);
    CUDA_TRY(cudaMalloc(&buf, bytes));
    int         rc = warm_up(d, c, buf, bytes);
    cudaError_t e  = cudaFree(buf);
    if (rc == 0 && e != cudaSuccess) rc = err_set("cudaFree: %s", cudaGetErrorString(e));
    if (rc == 0) {
        cuda_note("NCCL %d.%d.%d, %d ranks", version / 10000, version / 100 % 100, version % 100, who->world);
    }
    return rc;
}

int cuda_comm_open(Dev *dev, const DevComm *who)
{
    CudaDev *d = (CudaDev *)dev;
    CHECK(!d->comm, "the device has its communicator already");
    if (who->world <= 1) return 0;
    d->comm = calloc(1, sizeof *d->comm);
    CHECK(d->comm, "out of host memory");
    d->comm->rank  = who->rank;
    d->comm->world = who->world;
    return open_comm(d, d->comm, who);
}

void cuda_comm_close(CudaDev *d)
{
    CudaComm *c = d->comm;
    if (!c) return;
    ncclResult_t state = ncclSuccess;
    if (c->comm) {
        /* Destroying waits for peers; after an error they may be gone, or wait for what this device no longer
         * does. */
        cudaError_t e    = cudaStreamQuery(d->stream[LANE_COMM]);
        int         good = (e == cudaSuccess || e == cudaErrorNotReady) &&
                   c->nccl.async_error(c->comm, &state) == ncclSuccess && state == ncclSuccess;
        (void)(good ? c->nccl.destroy(c->comm)
                    : c->nccl.abort(c->comm)); /* nothing can be done about a failure here */
    }
    free(c);
    d->comm = NULL;
}

/* ---- Ops ----------------------------------------------------------------------------------------------- */

static int is_dense(const Tensor *y, const Tensor *x)
{
    return y->dtype == x->dtype && tensor_is_contiguous(y) && tensor_is_contiguous(x);
}

static int nccl_type(const Tensor *t, ncclDataType_t *out)
{
    switch (t->dtype) {
    case DT_F32: *out = ncclFloat; return 0;
    case DT_F64: *out = ncclDouble; return 0;
    default: return err_set("a sum of %s over ranks", dtype_name(t->dtype));
    }
}

/* A single rank: its own part is the whole. */
static int copy_alone(Dev *dev, const Tensor *y, const Tensor *x)
{
    CHECK(tensor_bytes(y) == tensor_bytes(x), "%s and %s differ in size", y->name, x->name);
    if (y->data == x->data) return 0;
    CUDA_TRY(cudaMemcpyAsync(y->data, x->data, tensor_bytes(x), cudaMemcpyDeviceToDevice, cuda_stream(dev)));
    return 0;
}

int cuda_all_reduce(Dev *dev, const AllReduce *a)
{
    CudaComm      *c    = ((CudaDev *)dev)->comm;
    ncclDataType_t type = ncclFloat;
    CHECK(is_dense(a->y, a->x) && tensor_numel(a->y) == tensor_numel(a->x), "all_reduce of %s to %s",
          a->x->name, a->y->name);
    TRY(nccl_type(a->x, &type));
    if (!c) return copy_alone(dev, a->y, a->x);
    ncclResult_t r = c->nccl.all_reduce(a->x->data, a->y->data, (size_t)tensor_numel(a->x), type, ncclSum,
                                        c->comm, cuda_stream(dev));
    return nccl_check(&c->nccl, c->comm, r, "ncclAllReduce");
}

int cuda_reduce_scatter(Dev *dev, const ReduceScatter *a)
{
    CudaComm      *c    = ((CudaDev *)dev)->comm;
    ncclDataType_t type = ncclFloat;
    CHECK(is_dense(a->y, a->x), "reduce_scatter of %s to %s", a->x->name, a->y->name);
    TRY(nccl_type(a->x, &type));
    if (!c) return copy_alone(dev, a->y, a->x);
    size_t n = (size_t)tensor_numel(a->y), part = tensor_bytes(a->y);
    CHECK(n * (size_t)c->world == (size_t)tensor_numel(a->x), "%s is not one of %d parts of %s", a->y->name,
          c->world, a->x->name);
    /* NCCL works in place only on a rank's own part of x. Where the planner gave y the start of x, that part
     * is summed first and then moved; x ends here anyway. */
    char *own      = (char *)a->x->data + part * (size_t)c->rank,
         *to       = a->y->data == a->x->data ? own : a->y->data;
    ncclResult_t r = c->nccl.reduce_scatter(a->x->data, to, n, type, ncclSum, c->comm, cuda_stream(dev));
    TRY(nccl_check(&c->nccl, c->comm, r, "ncclReduceScatter"));
    if (to != a->y->data)
        CUDA_TRY(cudaMemcpyAsync(a->y->data, to, part, cudaMemcpyDeviceToDevice, cuda_stream(dev)));
    return 0;
}

int cuda_all_gather(Dev *dev, const AllGather *a)
{
    CudaComm *c = ((CudaDev *)dev)->comm;
    CHECK(is_dense(a->y, a->x), "all_gather of %s to %s", a->x->name, a->y->name);
    if (!c) return copy_alone(dev, a->y, a->x);
    size_t part = tensor_bytes(a->x);
    CHECK(part * (size_t)c->world == tensor_bytes(a->y), "%s is not one of %d parts of %s", a->x->name,
          c->world, a->y->name);
    ncclResult_t r =
        c->nccl.all_gather(a->x->data, a->y->data, part, ncclChar, c->comm, cuda_stream(dev)); /* any dtype */
    return nccl_check(&c->nccl, c->comm, r, "ncclAllGather");
}
