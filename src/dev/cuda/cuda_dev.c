/* The CUDA backend: opening, memory, copies, lanes and the vtable.
 *
 * 1. A lane is a stream. Outside lists every op runs on the compute lane.
 * 2. Each host thread has its own current CUDA device, so every entry point that may run on another thread
 *    selects the device.
 * 3. The GPU may report an error late. Then sync or mark_wait returns CUDA's text and the label of the last
 *    op or list launched: the cause, or something after it. */
#include "dev/cuda/cuda_dev.h"

#include "base/log.h"
#include "dev/cuda/cuda_attn.h"
#include "dev/cuda/cuda_batched.h"
#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_comm.h"
#include "dev/cuda/cuda_exec.h"
#include "dev/cuda/cuda_gemm.h"
#include "dev/cuda/cuda_linear.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_ortho.h"
#include "dev/cuda/cuda_own.h"
#include "dev/cuda/cuda_trace.h"
#include "dev/cuda/cuda_tune.h"
#include "dev/cuda/kernels.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CudaDev *self(Dev *dev) { return (CudaDev *)dev; }

cudaStream_t cuda_stream(Dev *dev) { return self(dev)->stream[self(dev)->lane]; }

int cuda_sm_count(Dev *dev) { return self(dev)->n_sm; }

int cuda_time_begin(CudaDev *d, int spin_us)
{
    if (spin_us > 0) TRY(cuda_spin(&d->base, spin_us));
    CUDA_TRY(cudaEventRecord(d->time_event[0], cuda_stream(&d->base)));
    return 0;
}

int cuda_time_end(CudaDev *d, float *us)
{
    float ms = 0;
    CUDA_TRY(cudaEventRecord(d->time_event[1], cuda_stream(&d->base)));
    CUDA_TRY(cudaEventSynchronize(d->time_event[1]));
    CUDA_TRY(cudaEventElapsedTime(&ms, d->time_event[0], d->time_event[1]));
    *us = 1e3f * ms;
    return 0;
}

void cuda_note(const char *fmt, ...)
{
    char    text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    log_info("cuda: %s", text);
}

/* ---- scratch ------------------------------------------------------------------------------------------- */

void cuda_scratch_drop(CudaDev *d)
{
    if (!d->scratch) return;
    cudaError_t e = cudaFree(d->scratch);
    if (e != cudaSuccess) cuda_note("freeing the tuning scratch: %s", cudaGetErrorString(e));
    d->scratch       = NULL;
    d->scratch_bytes = 0;
}

void *cuda_scratch(CudaDev *d, size_t size_bytes)
{
    if (d->capturing || d->base.sealed) return NULL;
    if (d->lent && d->lent_bytes >= size_bytes) return d->lent;
    if (d->scratch_bytes >= size_bytes) return d->scratch;
    cuda_scratch_drop(d);
    if (cudaMalloc(&d->scratch, size_bytes) != cudaSuccess) {
        cudaGetLastError(); /* running out here is expected; the next launch must not report it */
        d->scratch = NULL;
        return NULL;
    }
    d->scratch_bytes = size_bytes;
    return d->scratch;
}

static void dev_lend_cuda(Dev *dev, void *p, size_t size_bytes)
{
    CudaDev *d    = self(dev);
    d->lent       = p;
    d->lent_bytes = size_bytes;
}

/* ---- open and close ------------------------------------------------------------------------------------ */

static void dev_close_cuda(Dev *dev)
{
    CudaDev *d = self(dev);
    if (!d) return;
    cudaSetDevice(d->index);
    cuda_comm_close(d); /* first: a collective that waits for a rank that is gone never ends by itself */
    cudaDeviceSynchronize();
    cuda_scratch_drop(d);
    cuda_attn_close(d);
    cuda_batched_close(d);
    cuda_gemm_close(d);
    cuda_own_close(d);
    cuda_tune_close(d->tune);
    for (int i = 0; i < 2; i++) {
        if (d->time_event[i]) cudaEventDestroy(d->time_event[i]);
    }
    for (int i = 0; i < DEV_MARKS; i++) {
        if (d->mark[i]) cudaEventDestroy(d->mark[i]);
    }
    if (d->lane_event) cudaEventDestroy(d->lane_event);
    for (int i = 0; i < LANE_COUNT; i++) {
        if (d->stream[i]) cudaStreamDestroy(d->stream[i]);
    }
    cudaGetLastError();
    free(d);
}

static int open_streams(CudaDev *d)
{
    int least = 0, greatest = 0;
    CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int i = 0; i < LANE_COUNT; i++) {
        /* Communication goes first: its kernels are few and everything later waits for them. */
        int priority = i == LANE_COMM ? greatest : least;
        CUDA_TRY(cudaStreamCreateWithPriority(&d->stream[i], cudaStreamNonBlocking, priority));
    }
    CUDA_TRY(cudaEventCreateWithFlags(&d->lane_event, cudaEventDisableTiming));
    for (int i = 0; i < DEV_MARKS; i++) {
        /* Blocking: the host waits for whole steps, and spinning would take a core from the loader. */
        CUDA_TRY(cudaEventCreateWithFlags(&d->mark[i], cudaEventDisableTiming | cudaEventBlockingSync));
    }
    for (int i = 0; i < 2; i++) CUDA_TRY(cudaEventCreate(&d->time_event[i]));
    return 0;
}

/* ERR_USER: this GPU cannot be used here, so the user must name another device. */
static int open_device(CudaDev *d)
{
    int         n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) {
        int driver = 0;
        cudaGetLastError();
        /* CUDA's text for a missing driver speaks of an old one. */
        if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
            return err_user("no CUDA device: no NVIDIA driver is installed (libcuda.so.1 is missing)");
        }
        const char *text = cudaGetErrorString(e);
        int         none = e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver;
        return none ? err_user("no CUDA device: %s", text) : err_set("no CUDA device: %s", text);
    }
    if (n == 0) return err_user("no CUDA device: the driver sees none");
    if (d->index < 0 || d->index >= n) {
        return n == 1 ? err_user("the only CUDA device is cuda:0")
                      : err_user("the CUDA devices are cuda:0 to cuda:%d", n - 1);
    }
    CUDA_TRY(cudaSetDevice(d->index));
    struct cudaDeviceProp prop;
    CUDA_TRY(cudaGetDeviceProperties(&prop, d->index));
    snprintf(d->name, sizeof d->name, "%.127s", prop.name);
    d->n_sm       = prop.multiProcessorCount;
    d->capability = prop.major * 10 + prop.minor;
    if (cuda_probe_image() < 0) {
        err_clear();
        cudaGetLastError();
        return err_user("%s has compute capability %d.%d, for which this build has no kernels", d->name,
                        prop.major, prop.minor);
    }
    if (d->capability == 90) d->encode = tma_encoder();
    if (d->capability == 90 && !d->encode)
        cuda_note("the driver has no cuTensorMapEncodeTiled: products and attention run without the own "
                  "kernels for it");
    TRY(open_streams(d));
    char version[32];
    snprintf(version, sizeof version, "cublasLt %zu", cuda_gemm_version());
    d->tune = cuda_tune_open(d->base.opt.tune ? d->base.opt.tune_cache : NULL, d->name, version);
    cuda_own_open(d);
    TRY(cuda_gemm_open(d));
    return cuda_attn_open(d);
}

static Dev *dev_open_cuda(int index, const DevOptions *opt)
{
    CudaDev *d = calloc(1, sizeof *d);
    CHECK(d, "out of host memory");
    d->base.vt    = brim_dev_cuda();
    d->base.opt   = *opt;
    d->index      = index;
    d->lane       = LANE_COMPUTE;
    d->last_label = "none";
    if (open_device(d) < 0) {
        dev_close_cuda(&d->base);
        return NULL;
    }
    return &d->base;
}

static int dev_info_cuda(Dev *dev, DevInfo *info)
{
    CudaDev *d      = self(dev);
    int      driver = 0, runtime = 0;
    char     attn[64];
    CUDA_TRY(cudaSetDevice(d->index));
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", d->name);
    CUDA_TRY(cudaMemGetInfo(&info->free_bytes, &info->total_bytes));
    CUDA_TRY(cudaDriverGetVersion(&driver));
    CUDA_TRY(cudaRuntimeGetVersion(&runtime));
    size_t lt = cuda_gemm_version();
    snprintf(info->versions, sizeof info->versions,
             "driver CUDA %d.%d, runtime %d.%d, cuBLASLt %zu.%zu.%zu, %s", driver / 1000, driver % 1000 / 10,
             runtime / 1000, runtime % 1000 / 10, lt / 10000, lt / 100 % 100, lt % 100,
             cuda_attn_version(d, attn, sizeof attn));
    info->capability = d->capability;
    info->n_sm       = d->n_sm;
    return 0;
}

/* ---- memory and copies --------------------------------------------------------------------------------- */

static void *dev_alloc_cuda(Dev *dev, size_t size_bytes)
{
    CudaDev    *d = self(dev);
    void       *p = NULL;
    cudaError_t e = cudaSetDevice(d->index);
    if (e == cudaSuccess) e = cudaMalloc(&p, size_bytes);
    if (e == cudaSuccess) e = cudaMemsetAsync(p, 0, size_bytes, d->stream[LANE_COMPUTE]);
    if (e == cudaSuccess) e = cudaStreamSynchronize(d->stream[LANE_COMPUTE]);
    if (e == cudaSuccess) return p;
    size_t room = 0, total = 0;
    cudaGetLastError();
    if (p) cudaFree(p);
    if (cudaMemGetInfo(&room, &total) != cudaSuccess) room = 0;
    err_set("%s: allocating %.1f MiB: %s (%.1f MiB free)", d->name, (double)size_bytes / 1048576.0,
            cudaGetErrorString(e), (double)room / 1048576.0);
    return NULL;
}

static void dev_free_cuda(Dev *dev, void *p)
{
    cudaSetDevice(self(dev)->index);
    cudaError_t e = cudaFree(p);
    if (e != cudaSuccess) cuda_note("cudaFree: %s", cudaGetErrorString(e));
}

static void *dev_host_alloc_cuda(Dev *dev, size_t size_bytes)
{
    void       *p = NULL;
    cudaError_t e = cudaSetDevice(self(dev)->index);
    if (e == cudaSuccess) e = cudaHostAlloc(&p, size_bytes, cudaHostAllocPortable);
    if (e != cudaSuccess) {
        cudaGetLastError();
        err_set("allocating %.1f MiB of pinned host memory: %s", (double)size_bytes / 1048576.0,
                cudaGetErrorString(e));
        return NULL;
    }
    memset(p, 0, size_bytes);
    return p;
}

static void dev_host_free_cuda(Dev *dev, void *p)
{
    cudaSetDevice(self(dev)->index);
    cudaError_t e = cudaFreeHost(p);
    if (e != cudaSuccess) cuda_note("cudaFreeHost: %s", cudaGetErrorString(e));
}

static int dev_upload_cuda(Dev *dev, Lane lane, void *dst_dev, const void *src_host, size_t size_bytes)
{
    CUDA_TRY(cudaSetDevice(self(dev)->index));
    CUDA_TRY(cudaMemcpyAsync(dst_dev, src_host, size_bytes, cudaMemcpyHostToDevice, self(dev)->stream[lane]));
    return 0;
}

static int dev_download_cuda(Dev *dev, Lane lane, void *dst_host, const void *src_dev, size_t size_bytes)
{
    CUDA_TRY(cudaSetDevice(self(dev)->index));
    CUDA_TRY(cudaMemcpyAsync(dst_host, src_dev, size_bytes, cudaMemcpyDeviceToHost, self(dev)->stream[lane]));
    return 0;
}

/* ---- lanes --------------------------------------------------------------------------------------------- */

static int dev_lane_wait_cuda(Dev *dev, Lane waiter, Lane on)
{
    CudaDev *d = self(dev);
    if (waiter == on) return 0;
    CUDA_TRY(cudaSetDevice(d->index));
    /* The wait takes the event as it is now, so one event serves every call. */
    CUDA_TRY(cudaEventRecord(d->lane_event, d->stream[on]));
    CUDA_TRY(cudaStreamWaitEvent(d->stream[waiter], d->lane_event, 0));
    return 0;
}

static int late_error(CudaDev *d, cudaError_t e)
{
    return err_set("%s: %s (last launched: %s)", d->name, cudaGetErrorString(e), d->last_label);
}

static int dev_sync_cuda(Dev *dev)
{
    CudaDev    *d = self(dev);
    cudaError_t e = cudaSetDevice(d->index);
    for (int i = 0; i < LANE_COUNT && e == cudaSuccess; i++) e = cudaStreamSynchronize(d->stream[i]);
    if (e == cudaSuccess) e = cudaGetLastError();
    return e == cudaSuccess ? 0 : late_error(d, e);
}

static int dev_mark_cuda(Dev *dev, Lane lane, int slot)
{
    CHECK(slot >= 0 && slot < DEV_MARKS, "mark %d", slot);
    CUDA_TRY(cudaSetDevice(self(dev)->index));
    CUDA_TRY(cudaEventRecord(self(dev)->mark[slot], self(dev)->stream[lane]));
    return 0;
}

static int dev_mark_wait_cuda(Dev *dev, int slot)
{
    CHECK(slot >= 0 && slot < DEV_MARKS, "mark %d", slot);
    cudaError_t e = cudaSetDevice(self(dev)->index);
    if (e == cudaSuccess) e = cudaEventSynchronize(self(dev)->mark[slot]);
    return e == cudaSuccess ? 0 : late_error(self(dev), e);
}

static int dev_mark_passed_cuda(Dev *dev, int slot)
{
    CHECK(slot >= 0 && slot < DEV_MARKS, "mark %d", slot);
    cudaError_t e = cudaSetDevice(self(dev)->index);
    if (e == cudaSuccess) e = cudaEventQuery(self(dev)->mark[slot]);
    if (e == cudaErrorNotReady) return 0;
    return e == cudaSuccess ? 1 : late_error(self(dev), e);
}

static int dev_lane_wait_mark_cuda(Dev *dev, Lane waiter, int slot)
{
    CHECK(slot >= 0 && slot < DEV_MARKS, "mark %d", slot);
    CUDA_TRY(cudaSetDevice(self(dev)->index));
    CUDA_TRY(cudaStreamWaitEvent(self(dev)->stream[waiter], self(dev)->mark[slot], 0));
    return 0;
}

/* ---- the vtable ---------------------------------------------------------------------------------------- */

static const DevVt cuda_vt = {
    .name = "cuda",
    .kind = DEV_CUDA,
    .hints = &dev_hints_cuda,
    .ops = {
        .embed_fwd = cuda_embed_fwd,
        .embed_dw = cuda_embed_dw,
        .pos_dw = cuda_pos_dw,
        .patches = cuda_patches,
        .norm_fwd = cuda_norm_fwd,
        .norm_dx = cuda_norm_dx,
        .norm_dw = cuda_norm_dw,
        .add_norm_fwd = cuda_add_norm_fwd,
        .norm_bwd = cuda_norm_bwd,
        .linear_fwd = cuda_linear_fwd,
        .linear_dx = cuda_linear_dx,
        .linear_dw = cuda_linear_dw,
        .bias_dw = cuda_bias_dw,
        .linear_act_fwd = cuda_linear_act_fwd,
        .linear_act_bwd = cuda_linear_act_bwd,
        .linear_glu_fwd = cuda_linear_glu_fwd,
        .linear_glu_bwd = cuda_linear_glu_bwd,
        .act_fwd = cuda_act_fwd,
        .act_dx = cuda_act_dx,
        .act_bias_bwd = cuda_act_bias_bwd,
        .glu_fwd = cuda_glu_fwd,
        .glu_dx = cuda_glu_dx,
        .add = cuda_add,
        .mul = cuda_mul,
        .scale = cuda_scale,
        .scale_dw = cuda_scale_dw,
        .rows_fwd = cuda_rows_fwd,
        .rows_dx = cuda_rows_dx,
        .mean_rows_fwd = cuda_mean_rows_fwd,
        .mean_rows_dx = cuda_mean_rows_dx,
        .add_pos = cuda_add_pos,
        .rope = cuda_rope,
        .qknorm_fwd = cuda_qknorm_fwd,
        .qknorm_dx = cuda_qknorm_dx,
        .qknorm_dw = cuda_qknorm_dw,
        .attn_fwd = cuda_attn_fwd,
        .attn_bwd = cuda_attn_bwd,
        .attn_decode = cuda_attn_decode,
        .cross_attn_fwd = cuda_cross_attn_fwd,
        .cross_attn_bwd = cuda_cross_attn_bwd,
        .dropout = cuda_dropout,
        .xent_fwd = cuda_xent_fwd,
        .xent_dx = cuda_xent_dx,
        .xent = cuda_xent,
        .mse_fwd = cuda_mse_fwd,
        .mse_dx = cuda_mse_dx,
        .kl_fwd = cuda_kl_fwd,
        .kl_dx = cuda_kl_dx,
        .kl_teacher = cuda_kl_teacher,
        .sample_cat = cuda_sample_cat,
        .sample_gauss = cuda_sample_gauss,
        .ppo_cat_fwd = cuda_ppo_cat_fwd,
        .ppo_cat_dx = cuda_ppo_cat_dx,
        .ppo_gauss_fwd = cuda_ppo_gauss_fwd,
        .ppo_gauss_dx = cuda_ppo_gauss_dx,
        .gae = cuda_gae,
        .stats = cuda_stats,
        .obs_stats = cuda_obs_stats,
        .obs_norm = cuda_obs_norm,
        .put = cuda_put,
        .tick = cuda_tick,
        .perm = cuda_perm,
        .pack_rows = cuda_pack_rows,
        .call = cuda_call,
        .loss_add = cuda_loss_add,
        .halt = cuda_halt,
        .fill = cuda_fill,
        .copy = cuda_copy,
        .cast = cuda_cast,
        .quant = cuda_quant,
        .fp8_scale = cuda_fp8_scale,
        .fp8_linear = cuda_fp8_linear,
        .fp8_linear_dw = cuda_fp8_linear_dw,
        .sumsq = cuda_sumsq,
        .clip = cuda_clip,
        .adamw = cuda_adamw,
        .ema = cuda_ema,
        .momentum = cuda_momentum,
        .ortho = cuda_ortho,
        .muon = cuda_muon,
        .all_reduce = cuda_all_reduce,
        .reduce_scatter = cuda_reduce_scatter,
        .all_gather = cuda_all_gather,
    },
    .fuses = FUSE_CUDA,
    .open = dev_open_cuda,
    .close = dev_close_cuda,
    .info = dev_info_cuda,
    .alloc = dev_alloc_cuda,
    .free = dev_free_cuda,
    .host_alloc = dev_host_alloc_cuda,
    .host_free = dev_host_free_cuda,
    .upload = dev_upload_cuda,
    .download = dev_download_cuda,
    .lane_wait = dev_lane_wait_cuda,
    .sync = dev_sync_cuda,
    .mark = dev_mark_cuda,
    .mark_wait = dev_mark_wait_cuda,
    .mark_passed = dev_mark_passed_cuda,
    .lane_wait_mark = dev_lane_wait_mark_cuda,
    .comm_id = cuda_comm_id,
    .comm_open = cuda_comm_open,
    .lend = dev_lend_cuda,
    .exec_create = cuda_exec_create,
    .exec_destroy = cuda_exec_destroy,
    .exec_run = cuda_exec_run,
    .exec_time = cuda_exec_time,
    .trace_begin = cuda_trace_begin,
    .trace_end = cuda_trace_end,
};

const DevVt *brim_dev_cuda(void) { return &cuda_vt; }

/* Asked for before anything else: a half of another build has other structs. */
const char *brim_cuda_id(void);
const char *brim_cuda_id(void) { return BRIM_DEV_ID; }
