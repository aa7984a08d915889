#include "dev/cuda/cuda_cudnn.h"

#include "base/err.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* ---- the library --------------------------------------------------------------------------------------- */

int cudnn_lib_open(CudnnLib *lib, char *why, size_t n)
{
    memset(lib, 0, sizeof *lib);
    lib->so = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!lib->so) {
        snprintf(why, n, "%s", dlerror());
        return -1;
    }
    /* dlsym gives object pointers; copying the bits is the one portable way to a function pointer. */
    const struct {
        const char *name;
        void       *slot;
    } want[] = {
        { "cudnnGetVersion", &lib->version },
        { "cudnnCreate", &lib->create },
        { "cudnnDestroy", &lib->destroy },
        { "cudnnSetStream", &lib->set_stream },
        { "cudnnGetErrorString", &lib->error_string },
        { "cudnnGetLastErrorString", &lib->last_error },
        { "cudnnBackendCreateDescriptor", &lib->desc_create },
        { "cudnnBackendDestroyDescriptor", &lib->desc_destroy },
        { "cudnnBackendSetAttribute", &lib->desc_set },
        { "cudnnBackendGetAttribute", &lib->desc_get },
        { "cudnnBackendFinalize", &lib->desc_finalize },
        { "cudnnBackendExecute", &lib->execute },
    };
    for (int i = 0; i < ARRAY_LEN(want); i++) {
        void *p = dlsym(lib->so, want[i].name);
        if (!p) {
            snprintf(why, n, "libcudnn.so.9 has no %s", want[i].name);
            cudnn_lib_close(lib);
            return -1;
        }
        memcpy(want[i].slot, &p, sizeof p);
    }
    return 0;
}

void cudnn_lib_close(CudnnLib *lib)
{
    if (lib->so) dlclose(lib->so);
    memset(lib, 0, sizeof *lib);
}

/* ---- descriptors --------------------------------------------------------------------------------------- */

/* Keeps the first failure, with cuDNN's own explanation. */
static void note(CudnnGraph *g, cudnnStatus_t s, const char *what)
{
    if (s == CUDNN_STATUS_SUCCESS || g->error[0]) return;
    char text[160] = "";
    g->lib->last_error(text, sizeof text);
    for (char *p = text; *p; p++) {
        if (*p == '\n') *p = ' ';
    }
    snprintf(g->error, sizeof g->error, "cuDNN %s: %.60s %s", what, g->lib->error_string(s), text);
}

static CudnnDesc make(CudnnGraph *g, cudnnBackendDescriptorType_t type)
{
    CudnnDesc d = NULL;
    if (g->error[0]) return NULL;
    CHECK(g->n_desc < CUDNN_MAX_DESC, "cuDNN graph of more than %d descriptors", CUDNN_MAX_DESC);
    note(g, g->lib->desc_create(type, &d), "descriptor");
    if (g->error[0]) return NULL;
    g->desc[g->n_desc++] = d;
    return d;
}

static void set(CudnnGraph *g, CudnnDesc d, cudnnBackendAttributeName_t name,
                cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    if (!g->error[0]) note(g, g->lib->desc_set(d, name, type, n, value), "attribute");
}

static void set_desc(CudnnGraph *g, CudnnDesc d, cudnnBackendAttributeName_t name, CudnnDesc value)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finalize(CudnnGraph *g, CudnnDesc d, const char *what)
{
    if (!g->error[0]) note(g, g->lib->desc_finalize(d), what);
}

static void add_op(CudnnGraph *g, CudnnDesc op, const char *what)
{
    finalize(g, op, what);
    CHECK(g->n_op < CUDNN_MAX_OP, "cuDNN graph of more than %d ops", CUDNN_MAX_OP);
    if (!g->error[0]) g->op[g->n_op++] = op;
}

void cudnn_graph_init(CudnnGraph *g, const CudnnLib *lib)
{
    memset(g, 0, sizeof *g);
    g->lib      = lib;
    g->next_uid = 1000;
}

void cudnn_graph_deinit(CudnnGraph *g)
{
    for (int i = g->n_desc - 1; i >= 0; i--) g->lib->desc_destroy(g->desc[i]);
    g->n_desc = 0;
}

/* ---- tensors and operations ---------------------------------------------------------------------------- */

CudnnDesc cudnn_graph_tensor(CudnnGraph *g, CudnnTensorKind kind, int64_t uid, cudnnDataType_t type,
                             const int64_t dim[4], const int64_t stride[4])
{
    CudnnDesc t     = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t   align = 16, id = uid ? uid : ++g->next_uid;
    bool      virt = kind == CUDNN_VIRTUAL, by_value = kind == CUDNN_BY_VALUE;
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set(g, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &virt);
    if (by_value) set(g, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    finalize(g, t, "tensor");
    return t;
}

static void pointwise(CudnnGraph *g, CudnnDesc mode, CudnnDesc x, CudnnDesc b, CudnnDesc t, CudnnDesc y)
{
    finalize(g, mode, "pointwise mode");
    CudnnDesc op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    if (t) set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_desc(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_op(g, op, "pointwise");
}

static CudnnDesc pointwise_mode(CudnnGraph *g, cudnnPointwiseMode_t mode, cudnnDataType_t precision)
{
    CudnnDesc m = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, m, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, m, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    return m;
}

void cudnn_graph_pointwise(CudnnGraph *g, cudnnPointwiseMode_t mode, CudnnDesc x, CudnnDesc b, CudnnDesc t,
                           CudnnDesc y)
{
    /* Comparisons give booleans, and cuDNN wants that as their precision. */
    cudnnDataType_t precision = mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT;
    pointwise(g, pointwise_mode(g, mode, precision), x, b, t, y);
}

void cudnn_graph_index(CudnnGraph *g, int64_t axis, CudnnDesc x, CudnnDesc y)
{
    CudnnDesc m = pointwise_mode(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT);
    set(g, m, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    pointwise(g, m, x, NULL, NULL, y);
}

void cudnn_graph_reduce(CudnnGraph *g, cudnnReduceTensorOp_t op, CudnnDesc x, CudnnDesc y)
{
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    CudnnDesc       r         = make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(g, r, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
    set(g, r, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    finalize(g, r, "reduction mode");
    CudnnDesc o = make(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(g, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, r);
    set_desc(g, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(g, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    add_op(g, o, "reduction");
}

void cudnn_graph_matmul(CudnnGraph *g, CudnnDesc a, CudnnDesc b, CudnnDesc c)
{
    cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    CudnnDesc       m         = make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(g, m, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    finalize(g, m, "matmul mode");
    CudnnDesc o = make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(g, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    set_desc(g, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(g, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
    set_desc(g, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, m);
    add_op(g, o, "matmul");
}

void cudnn_graph_reshape(CudnnGraph *g, CudnnDesc x, CudnnDesc y)
{
    CudnnDesc o = make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(g, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(g, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    add_op(g, o, "reshape");
}

/* ---- plans --------------------------------------------------------------------------------------------- */

int cudnn_graph_propose(CudnnGraph *g, cudnnHandle_t handle)
{
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t                n    = 0;
    CudnnDesc              og   = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, og, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n_op, g->op);
    set(g, og, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    finalize(g, og, "operation graph");
    CudnnDesc heur = make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(g, heur, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, og);
    set(g, heur, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finalize(g, heur, "heuristic");
    for (int i = 0; i < CUDNN_MAX_PROPOSAL; i++) g->proposal[i] = make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (g->error[0]) return -1;
    cudnnStatus_t s = g->lib->desc_get(heur, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       CUDNN_MAX_PROPOSAL, &n, g->proposal);
    note(g, s, "heuristic results");
    return g->error[0] ? -1 : (int)MIN(n, (int64_t)CUDNN_MAX_PROPOSAL);
}

int cudnn_graph_plan(CudnnGraph *g, cudnnHandle_t handle, int i, CudnnDesc *plan, int64_t *ws_bytes)
{
    int64_t found = 0;
    if (g->error[0]) return -1;
    CudnnDesc p = make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set_desc(g, p, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, g->proposal[i]);
    set(g, p, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    int failed = g->error[0] || g->lib->desc_finalize(p) != CUDNN_STATUS_SUCCESS ||
                 g->lib->desc_get(p, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &found,
                                  ws_bytes) != CUDNN_STATUS_SUCCESS;
    g->error[0] = 0; /* of this engine alone: the next one may do */
    if (failed) return 1;
    *plan = p;
    return 0;
}

const char *cudnn_graph_run(CudnnGraph *g, cudnnHandle_t handle, CudnnDesc plan, int n, const int64_t *uid,
                            void *const *data, void *ws)
{
    const CudnnLib *lib  = g->lib;
    CudnnDesc       pack = NULL;
    g->error[0]          = 0;
    cudnnStatus_t s      = lib->desc_create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (!s) s = lib->desc_set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
    if (!s) s = lib->desc_set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    if (!s) s = lib->desc_set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &ws);
    if (!s) s = lib->desc_finalize(pack);
    if (!s) s = lib->execute(handle, plan, pack);
    note(g, s, "execute");
    if (pack) lib->desc_destroy(pack);
    return g->error[0] ? g->error : NULL;
}
