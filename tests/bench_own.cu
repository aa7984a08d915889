/* Times the own matrix product (src/dev/cuda/k_gemm.cu) alone, kind by kind: in a burst on a cool card, and
 * after the clock has settled at the power limit. The second time counts in a training step. The sum over all
 * output words shows whether a change of the kernel kept the bits. Not a test.
 *
 * usage: bench_own [KIND ROWS COLS K] ... with KIND one of fwd dx both dact glu_both dglu dw. */
#include "dev/cuda/k_gemm.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

enum { REST_US = 150000, SETTLE_US = 150000, MEASURE_US = 150000 };

/* Instead of base/err.c, which would want a log. */
extern "C" int err_set(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    exit(1);
}

static void must(cudaError_t e)
{
    if (e != cudaSuccess) err_set("%s", cudaGetErrorString(e));
}

/* Even in [-1, 1). */
__global__ void fill(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u + seed;
        x          = (x ^ x >> 15) * 2246822519u;
        x          = (x ^ x >> 13) * 3266489917u;
        p[i]       = (uint16_t)(__float_as_uint((float)((x ^ x >> 16) >> 8) / 8388608.0f - 1.0f) >> 16);
    }
}

__global__ void add_up(const uint16_t *p, size_t n, unsigned long long *sum)
{
    unsigned long long s = 0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        s += p[i] * (i * 2654435761ull | 1);
    atomicAdd(sum, s);
}

static uint16_t *matrix(int64_t n, uint32_t seed)
{
    uint16_t *p;
    must(cudaMalloc(&p, (size_t)n * sizeof *p));
    fill<<<1024, 256>>>(p, (size_t)n, seed);
    return p;
}

struct Kind {
    const char *name;
    OwnKind     kind;
    Act         act;
    int a_cols, b_cols, gated, n_in, n_out; /* gated: two of the outputs, or of the inputs, are one matrix */
};
static const Kind kinds[] = { { "fwd", OWN_FWD, ACT_RELU, 0, 0, 0, 0, 1 },
                              { "dx", OWN_DX, ACT_RELU, 0, 1, 0, 0, 1 },
                              { "both", OWN_BOTH, ACT_GELU, 0, 0, 0, 0, 2 },
                              { "dact", OWN_DACT, ACT_SLOPE, 0, 1, 0, 1, 1 },
                              { "glu_both", OWN_GLU_BOTH, ACT_SILU, 0, 0, 1, 0, 3 },
                              { "dglu", OWN_DGLU, ACT_SLOPE, 0, 1, 1, 2, 2 },
                              { "dw", OWN_DW, ACT_RELU, 1, 1, 0, 0, 1 } };

static OwnGemm product(const Kind &k, int64_t rows, int64_t cols, int64_t n)
{
    OwnGemm g  = {};
    int64_t ld = k.gated ? 2 * cols : cols;
    g.kind     = k.kind;
    g.act      = k.act;
    g.rows     = rows;
    g.cols     = cols;
    g.k        = n;
    g.a        = matrix(rows * n, 1);
    g.b        = matrix(2 * cols * n, 2);
    g.lda      = k.a_cols ? rows : n;
    g.ldb      = k.b_cols ? cols : n;
    if (k.kind == OWN_GLU_BOTH) g.b2 = (const uint16_t *)g.b + cols * n;
    uint16_t *out = matrix(2 * rows * ld, 3), *in = matrix(rows * ld, 4); /* out: f32 if OWN_DW */
    for (int i = 0; i < k.n_out; i++) {
        g.out[i]    = k.gated && i < 2 ? out + i * cols : i == 0 ? out : matrix(rows * cols, 5);
        g.ld_out[i] = k.gated && i < 2 ? ld : cols;
    }
    for (int i = 0; i < k.n_in; i++) {
        g.in[i]    = in + i * cols;
        g.ld_in[i] = ld;
    }
    return g;
}

static float time_us(const OwnGemm &g, TmaEncode encode, int n_sm, int runs)
{
    cudaEvent_t e[2];
    float       ms;
    for (cudaEvent_t &x : e) must(cudaEventCreate(&x));
    must(cudaEventRecord(e[0]));
    for (int i = 0; i < runs; i++) own_gemm_launch(&g, encode, n_sm, 0);
    must(cudaEventRecord(e[1]));
    must(cudaEventSynchronize(e[1]));
    must(cudaEventElapsedTime(&ms, e[0], e[1]));
    for (cudaEvent_t x : e) must(cudaEventDestroy(x));
    return 1e3f * ms / (float)runs;
}

static unsigned long long bits(const OwnGemm &g, const Kind &k)
{
    unsigned long long *sum, host;
    must(cudaMalloc(&sum, sizeof *sum));
    must(cudaMemset(sum, 0, sizeof *sum));
    for (int i = 0; i < k.n_out && k.kind != OWN_DW;
         i++) /* of a gate's second output the last columns lie outside */
        add_up<<<1024, 256>>>((const uint16_t *)g.out[i],
                              (size_t)(g.rows * g.ld_out[i] - i % 2 * k.gated * g.cols), sum);
    must(cudaMemcpy(&host, sum, sizeof host, cudaMemcpyDeviceToHost));
    must(cudaFree(sum));
    return host;
}

static void bench(const Kind &k, int64_t rows, int64_t cols, int64_t n, TmaEncode encode, int n_sm)
{
    OwnGemm g     = product(k, rows, cols, n);
    float   burst = time_us(g, encode, n_sm, 1);
    auto    sum   = bits(g, k);
    usleep(REST_US);
    for (int i = 0; i < 5; i++) burst = std::min(burst, time_us(g, encode, n_sm, 3));
    time_us(g, encode, n_sm, (int)(SETTLE_US / burst) + 1);
    float steady = time_us(g, encode, n_sm, (int)(MEASURE_US / burst) + 1);
    printf("%-8s %7lld x %5lld x %5lld: burst %8.1f us, steady %8.1f us, %4.0f TFLOP/s, bits %016llx\n",
           k.name, (long long)rows, (long long)cols, (long long)n, burst, steady,
           2e-6 * (double)rows * (double)cols * (double)n * (k.kind == OWN_GLU_BOTH ? 2 : 1) / steady, sum);
    must(cudaDeviceReset());
}

int main(int argc, char **argv)
{
    int n_sm;
    for (int i = 1; i + 3 < argc; i += 4) {
        must(cudaDeviceGetAttribute(&n_sm, cudaDevAttrMultiProcessorCount, 0));
        must(cudaFree(0));
        for (const Kind &k : kinds) {
            if (strcmp(k.name, argv[i]) == 0)
                bench(k, atoll(argv[i + 1]), atoll(argv[i + 2]), atoll(argv[i + 3]), tma_encoder(), n_sm);
        }
    }
}
