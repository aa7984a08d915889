/* cuDNN's backend API, opened at run time, and a small builder of operation graphs.
 *
 * 1. The library is looked for when the device is opened. Nothing here links against it, so a machine without
 *    cuDNN still loads the CUDA half.
 * 2. A CudnnGraph collects the first failure and turns every later call into a no-op; the caller checks once,
 *    when the plan is built.
 * 3. Every descriptor lives until the graph is destroyed, as a plan may refer to what it was built from. */
#ifndef DEV_CUDA_CUDA_CUDNN_H
#define DEV_CUDA_CUDA_CUDNN_H

#include <cudnn.h>

#include <stddef.h>
#include <stdint.h>

typedef struct {
    void *so; /* dlopen handle; NULL: not opened */
    size_t (*version)(void);
    cudnnStatus_t (*create)(cudnnHandle_t *handle);
    cudnnStatus_t (*destroy)(cudnnHandle_t handle);
    cudnnStatus_t (*set_stream)(cudnnHandle_t handle, cudaStream_t stream);
    const char *(*error_string)(cudnnStatus_t status);
    void (*last_error)(char *message, size_t max_size);
    cudnnStatus_t (*desc_create)(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *desc);
    cudnnStatus_t (*desc_destroy)(cudnnBackendDescriptor_t desc);
    cudnnStatus_t (*desc_set)(cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t n, const void *value);
    cudnnStatus_t (*desc_get)(const cudnnBackendDescriptor_t desc, cudnnBackendAttributeName_t name,
                              cudnnBackendAttributeType_t type, int64_t n_asked, int64_t *n_found,
                              void *value);
    cudnnStatus_t (*desc_finalize)(cudnnBackendDescriptor_t desc);
    cudnnStatus_t (*execute)(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                             cudnnBackendDescriptor_t pack);
} CudnnLib;

/* 0, or -1 with the reason in why (no err_set: doing without is allowed). */
int  cudnn_lib_open(CudnnLib *lib, char *why, size_t n);
void cudnn_lib_close(CudnnLib *lib);

typedef cudnnBackendDescriptor_t CudnnDesc;

enum { CUDNN_MAX_DESC = 224, CUDNN_MAX_OP = 32, CUDNN_MAX_PROPOSAL = 8 };

typedef struct {
    const CudnnLib *lib;
    CudnnDesc       desc[CUDNN_MAX_DESC]; /* everything made, in order */
    int             n_desc;
    CudnnDesc       op[CUDNN_MAX_OP];
    int             n_op;
    CudnnDesc       proposal[CUDNN_MAX_PROPOSAL];
    int64_t         next_uid;   /* of tensors the caller does not name */
    char            error[256]; /* first failure; "" so far none */
} CudnnGraph;

typedef enum { CUDNN_REAL, CUDNN_VIRTUAL, CUDNN_BY_VALUE } CudnnTensorKind;

void cudnn_graph_init(CudnnGraph *g, const CudnnLib *lib);
void cudnn_graph_deinit(CudnnGraph *g);

/* uid 0: an unnamed (virtual) tensor. 4 dimensions, strides in elements, 16-byte alignment. */
CudnnDesc cudnn_graph_tensor(CudnnGraph *g, CudnnTensorKind kind, int64_t uid, cudnnDataType_t type,
                             const int64_t dim[4], const int64_t stride[4]);
/* y = mode(x, b, t); b and t NULL where the mode has no such input. */
void cudnn_graph_pointwise(CudnnGraph *g, cudnnPointwiseMode_t mode, CudnnDesc x, CudnnDesc b, CudnnDesc t,
                           CudnnDesc y);
/* y = index of each element along axis. */
void cudnn_graph_index(CudnnGraph *g, int64_t axis, CudnnDesc x, CudnnDesc y);
void cudnn_graph_reduce(CudnnGraph *g, cudnnReduceTensorOp_t op, CudnnDesc x, CudnnDesc y);
void cudnn_graph_matmul(CudnnGraph *g, CudnnDesc a, CudnnDesc b, CudnnDesc c);
void cudnn_graph_reshape(CudnnGraph *g, CudnnDesc x, CudnnDesc y);

/* How many engine configurations the heuristic proposes for the whole graph, best first by its own account.
 * -1 with the reason in g->error. */
int cudnn_graph_propose(CudnnGraph *g, cudnnHandle_t handle);
/* Builds proposal i: 0 with the plan and the bytes of its workspace, 1 when its engine cannot after all, -1
 * with the reason in g->error. */
int cudnn_graph_plan(CudnnGraph *g, cudnnHandle_t handle, int i, CudnnDesc *plan, int64_t *ws_bytes);

/* Runs a plan on tensors named by uid; by-value tensors are host pointers. NULL, or cuDNN's text kept in
 * g->error. */
const char *cudnn_graph_run(CudnnGraph *g, cudnnHandle_t handle, CudnnDesc plan, int n, const int64_t *uid,
                            void *const *data, void *ws);

#endif
