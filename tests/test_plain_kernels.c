/* CUDA kernels that need nothing of Hopper, compiled for the CPU (tests/emulate/plain), on every case of
 * their ops: the checks of tests/gpu/test_gpu_ops.c, in f32 and bf16, without a card. */
#include "dev/cuda/cuda_few.h"
#include "dev/cuda/kernels.h"
#include "dev/dev.h"

#include <sys/mman.h>

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

/* ---- What op cases cannot hold: odd addresses, rows behind 2 GiB, a t that no row has ------------------ */

enum { PUT_ROWS = 3, PUT_SPARE = 64 };

typedef struct {
    Tensor  x, y, t;
    char   *mem; /* y, with spare bytes on both sides */
    int32_t row;
} PutRun;

static int put_run(PutRun *r, Dev *dev)
{
    Op op = { .kind = OP_PUT, .label = "put", .block = -1, .chunk = -1 };
    tensor_init(&r->t, "t", DT_I32, 1, &(int64_t){ 1 });
    r->t.data   = &r->row;
    op.args.put = (Put){ .y = { &r->y }, .x = { &r->x }, .t = &r->t };
    return dev_run_op(dev, &op);
}

/* n bytes a row, x and y so many bytes behind an address that 64 divides. 1: only row `row` has changed. */
static int put_odd(Dev *dev, int64_t n, int at_x, int at_y, int32_t row)
{
    PutRun r    = { .row = row };
    size_t size = (size_t)(PUT_ROWS * n), all = (size + 3 * PUT_SPARE) / PUT_SPARE * PUT_SPARE;
    char  *x = aligned_alloc(PUT_SPARE, all), *y = aligned_alloc(PUT_SPARE, all), *want = malloc(all);
    CHECK(x && y && want, "out of memory");
    for (size_t i = 0; i < all; i++) {
        x[i] = (char)(i * 7 + 1);
        y[i] = want[i] = (char)(i * 5 + 2);
    }
    if (row >= 0 && row < PUT_ROWS) memcpy(want + at_y + row * n, x + at_x, (size_t)n);
    tensor_init(&r.x, "x", DT_U8, 1, &n);
    tensor_init(&r.y, "y", DT_U8, 2, (int64_t[]){ PUT_ROWS, n });
    r.x.data = x + at_x;
    r.y.data = y + at_y;
    int ok   = put_run(&r, dev) == 0 && memcmp(y, want, all) == 0;
    free(x);
    free(y);
    free(want);
    return ok;
}

/* The last row of y begins more than 2^31 units of 16 bytes behind its first. The host gives pages only to
 * what is touched. */
static int put_far(Dev *dev)
{
    enum { WIDTH = 48 };
    int64_t rows = 2 * (INT64_C(1) << 31) / 3 + 5;
    PutRun  r    = { .row = (int32_t)(rows - 1) };
    size_t  size = (size_t)(rows * WIDTH);
    char   *y = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    _Alignas(16) char x[WIDTH];
    if (y == MAP_FAILED) return 1; /* a machine with less address space */
    for (int i = 0; i < WIDTH; i++) x[i] = (char)(i + 1);
    tensor_init(&r.x, "x", DT_U8, 1, &(int64_t){ WIDTH });
    tensor_init(&r.y, "y", DT_U8, 2, (int64_t[]){ rows, WIDTH });
    r.x.data = x;
    r.y.data = y;
    int ok   = put_run(&r, dev) == 0 && memcmp(y + size - WIDTH, x, WIDTH) == 0;
    for (int i = 1; i <= WIDTH; i++) ok = ok && y[size - WIDTH - (size_t)i] == 0;
    munmap(y, size);
    return ok;
}

static int put_check(void)
{
    DevOptions  opt = { 0 };
    const char *why;
    Tally       t   = { 0 };
    Dev        *dev = emulated_open("", &opt, &why);
    /* Units of 16, 4 and 1 byte, decided by x, by y and by the row; more than one block of units. */
    static const int64_t n[]  = { 1, 3, 16, 20, 48, 4096, 4100, 16 * 256 + 16, 16 * 257 * 2 };
    static const int     at[] = { 0, 1, 4, 8, 16, 18 };
    for (size_t i = 0; i < ARRAY_LEN(n); i++) {
        int bad = 0;
        for (size_t k = 0; k < ARRAY_LEN(at) * ARRAY_LEN(at); k++) {
            for (int32_t row = -1; row <= PUT_ROWS; row++)
                bad += !put_odd(dev, n[i], at[k % ARRAY_LEN(at)], at[k / ARRAY_LEN(at)], row);
        }
        tally(&t, bad == 0, "put: rows of %lld bytes at odd addresses: %d bad", (long long)n[i], bad);
    }
    tally(&t, put_far(dev), "put: a row behind 2^31 units");
    emulated_close(dev);
    return tally_end(&t);
}

int main(int argc, char **argv)
{
    int bad = argc < 2 || strcmp(argv[1], "put") == 0 ? put_check() : 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (!dev_has(&emulated, (OpKind)kind) || (argc > 1 && strcmp(argv[1], op_table[kind].name) != 0))
            continue;
        char *one[] = { argv[0], (char *)op_table[kind].name, NULL };
        bad |= gpu_ops_main(2, one);
    }
    return bad;
}
