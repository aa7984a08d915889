/* CUDA kernels that need nothing of Hopper, compiled for the CPU (tests/emulate/plain), on every case of
 * their ops: the checks of tests/gpu/test_gpu_ops.c, in f32 and bf16, without a card. */
#include "dev/cuda/cuda_few.h"
#include "dev/cuda/kernels.h"
#include "dev/dev.h"

static Dev *emulated_open(const char *spec, const DevOptions *opt, const char **why);

int gpu_ops_main(int argc, char **argv);

#define EMULATED 1
#define dev_open emulated_open
#define main     gpu_ops_main
#include "gpu/test_gpu_ops.c"
#undef main

static void *emulated_alloc(Dev *dev, size_t n)
{
    (void)dev;
    void *p = aligned_alloc(TENSOR_ALIGN, tensor_align_up(n ? n : 1));
    CHECK(p, "out of memory");
    return memset(p, 0xFF, tensor_align_up(n ? n : 1));
}
static void emulated_free(Dev *dev, void *p)
{
    (void)dev;
    free(p);
}
static int emulated_upload(Dev *dev, Lane lane, void *to, const void *from, size_t n)
{
    (void)dev;
    (void)lane;
    memcpy(to, from, n);
    return 0;
}
static int emulated_sync(Dev *dev)
{
    (void)dev;
    return 0;
}
static void emulated_close(Dev *dev) { free(dev); }

/* clang-format off */
#define SLOT(field) .field = cuda_##field
static const DevVt emulated = {
    .name  = "emulated",
    .kind  = DEV_CUDA,
    .close = emulated_close,
    .alloc = emulated_alloc,
    .free  = emulated_free,
    .upload = emulated_upload,
    .download = emulated_upload,
    .sync  = emulated_sync,
    .ops   = {
        SLOT(embed_fwd), SLOT(embed_dw), SLOT(pos_dw), SLOT(rows_dx), SLOT(patches), SLOT(act_fwd),
        SLOT(act_dx), SLOT(glu_fwd), SLOT(glu_dx), SLOT(add), SLOT(mul), SLOT(ema),
        SLOT(momentum), SLOT(muon),
        SLOT(rows_fwd), SLOT(mean_rows_fwd), SLOT(mean_rows_dx), SLOT(add_pos), SLOT(dropout), SLOT(loss_add),
        .xent_fwd = cuda_xent_soft_fwd, .xent_dx = cuda_xent_soft_dx, /* hard targets are soft ones, too */
        .linear_fwd = cuda_few_linear_fwd, .linear_act_fwd = cuda_few_linear_act_fwd,
        .linear_glu_fwd = cuda_few_linear_glu_fwd,
        SLOT(mse_fwd), SLOT(mse_dx), SLOT(kl_fwd), SLOT(kl_dx), SLOT(kl_teacher),
        SLOT(sample_cat), SLOT(sample_gauss), SLOT(ppo_cat_fwd), SLOT(ppo_cat_dx), SLOT(ppo_gauss_fwd),
        SLOT(ppo_gauss_dx),
        SLOT(gae), SLOT(stats), SLOT(obs_stats), SLOT(obs_norm), SLOT(put), SLOT(tick), SLOT(perm),
        SLOT(pack_rows), SLOT(quant), SLOT(fp8_scale),
    },
};
/* clang-format on */

static Dev *emulated_open(const char *spec, const DevOptions *opt, const char **why)
{
    (void)spec;
    Dev *dev = calloc(1, sizeof *dev);
    CHECK(dev, "out of memory");
    dev->vt  = &emulated;
    dev->opt = *opt;
    *why     = "emulated";
    return dev;
}

int main(int argc, char **argv)
{
    int bad = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (!dev_has(&emulated, (OpKind)kind) || (argc > 1 && strcmp(argv[1], op_table[kind].name) != 0))
            continue;
        char *one[] = { argv[0], (char *)op_table[kind].name, NULL };
        bad |= gpu_ops_main(2, one);
    }
    return bad;
}
