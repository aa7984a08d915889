/* CudaDev: what a kernel or library call of the CUDA backend may ask the device for.
 *
 * 1. Every launch goes to cuda_stream(dev): the stream of the lane of the op now being run. Nothing else
 *    chooses a stream, so the same slot serves eager runs and capture.
 * 2. A slot allocates nothing and synchronises nothing. Plans (GEMM descriptors, attention graphs) are found
 *    in tables that hang off CudaDev; exec_create fills them before capture.
 * 3. Streams do not synchronise with the legacy default stream: never launch there.
 * 4. Scratch exists only while plans are being built; exec_create frees it before it returns. It is the
 *    plan's own activations where these are large enough: on a full card there is no other memory. */
#ifndef DEV_CUDA_CUDA_DEV_H
#define DEV_CUDA_CUDA_DEV_H

#include "dev/cuda/cuda_tma.h"
#include "dev/dev.h"

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CudaGemm    CudaGemm;    /* cuda_gemm.c: cuBLASLt handle and plans */
typedef struct CudaBatched CudaBatched; /* cuda_batched.c: plans of batched products */
typedef struct CudaAttn    CudaAttn;    /* cuda_attn.c: cuDNN handle and plans */
typedef struct CudaOwn     CudaOwn;     /* cuda_own.c: which products run on the own kernel */
typedef struct CudaTune    CudaTune;    /* cuda_tune.c: the tune cache */
typedef struct CudaComm    CudaComm;    /* cuda_comm.c: NCCL and its communicator */

typedef struct CudaDev {
    Dev          base; /* first: a Dev * of this backend is a CudaDev * */
    int          index;
    int          n_sm;
    int          capability; /* 90 for 9.0 */
    TmaEncode    encode;     /* of tensor maps; NULL: this card or driver cannot, or the card is not Hopper */
    char         name[128];
    cudaStream_t stream[LANE_COUNT];
    Lane         lane;       /* of the op now being run; LANE_COMPUTE outside lists */
    int          building;   /* 1 inside exec_create: scratch is kept from plan to plan */
    int          capturing;  /* 1 while a list is captured: nothing may be timed or built */
    const char  *last_label; /* of the last op or list launched, for error messages; never NULL */
    cudaEvent_t  lane_event; /* for lane_wait */
    cudaEvent_t  mark[DEV_MARKS];
    cudaEvent_t  time_event[2]; /* with timing, for the choice of algorithms */
    void        *scratch;
    size_t       scratch_bytes;
    void        *lent; /* of the plan whose lists are built; NULL: none */
    size_t       lent_bytes;
    CudaGemm    *gemm;
    CudaAttn    *attn;
    CudaBatched *batched; /* NULL until an op needs it */
    CudaOwn     *own;
    CudaTune    *tune;
    CudaComm    *comm; /* NULL: a single rank */
} CudaDev;

/* The stream of the op now being run. */
cudaStream_t cuda_stream(Dev *dev);

/* Multiprocessors of the device; for grid sizes. */
int cuda_sm_count(Dev *dev);

/* Memory to time and warm up plans in, at least size_bytes, contents unknown; the next call may move it. NULL
 * when there is no room, after dev_seal() or during capture: the plan is then built without timing. */
void *cuda_scratch(CudaDev *d, size_t size_bytes);
void  cuda_scratch_drop(CudaDev *d);

/* Of work that takes longer one run tells: what the events cost does not show in it. */
enum { CUDA_LONG_US = 5000 };
/* The device's time for what is launched in between on the current stream. spin_us > 0: the stream is kept
 * busy for so long first, so that the host's part of a launch is not counted. -1 after err_set(). */
int cuda_time_begin(CudaDev *d, int spin_us);
int cuda_time_end(CudaDev *d, float *us);

/* One line in the log about a choice the user may want to know of. */
void cuda_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The vtable; the only symbol the program looks up in libbrim_cuda.so. */
const DevVt *brim_dev_cuda(void);

#ifdef __cplusplus
}
#endif
#endif
