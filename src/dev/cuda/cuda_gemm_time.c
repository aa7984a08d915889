/* Times cuBLASLt's proposals on this card, with the real beta on random data of the real size, and keeps the
 * fastest in the tune cache. Gains up to 22 % over the first proposal were seen on an H200 (LM head 50304 x
 * 8192 x 768: 644 to 769 TFLOP/s). */
#include "dev/cuda/cuda_gemm_plan.h"

#include "dev/cuda/cuda_check.h"
#include "dev/cuda/cuda_move.h"
#include "dev/cuda/cuda_tune.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FINALISTS = 6, ROUNDS = 5 };

/* ---- timing -------------------------------------------------------------------------------------------- */

static void *carve(char **at, size_t bytes)
{
    void *p = *at;
    *at += (bytes + 255) / 256 * 256;
    return p;
}

/* Fills *c with scratch of the real sizes, random inputs and a zero output. 1 when there is no memory for it.
 */
static int scratch_call(CudaDev *d, const GemmKey *k, GemmCall *c)
{
    int64_t n_a = (k->ta ? k->m : k->k) * k->lda, n_b = (k->tb ? k->k : k->n) * k->ldb;
    size_t  d_bytes   = (size_t)(k->n * k->ldd) * dtype_bytes((DType)k->d);
    size_t  aux_bytes = (size_t)(k->n * k->ld_aux) * dtype_bytes((DType)k->d);
    size_t a_bytes = (size_t)n_a * dtype_bytes((DType)k->a), b_bytes = (size_t)n_b * dtype_bytes((DType)k->b);
    size_t total = a_bytes + b_bytes + d_bytes + aux_bytes + (size_t)k->m * 4 + (size_t)k->ws_bytes + 9 * 256;
    char  *at    = cuda_scratch(d, total);
    if (!at) return 1;
    memset(c, 0, sizeof *c);
    c->key   = *k;
    c->a     = carve(&at, a_bytes);
    c->b     = carve(&at, b_bytes);
    c->bias  = carve(&at, (size_t)k->m * 4);
    c->d     = carve(&at, d_bytes);
    c->aux   = carve(&at, aux_bytes);
    c->ws    = k->ws_bytes ? carve(&at, (size_t)k->ws_bytes) : NULL;
    c->a_inv = c->b_inv = carve(&at, 4);
    TRY(cuda_fill_random(&d->base, (void *)c->a_inv, DT_F32, 1, 3));
    TRY(cuda_fill_random(&d->base, (void *)c->a, (DType)k->a, n_a, 1));
    TRY(cuda_fill_random(&d->base, (void *)c->b, (DType)k->b, n_b, 2));
    CUDA_TRY(cudaMemsetAsync((void *)c->bias, 0, (size_t)k->m * 4, cuda_stream(&d->base)));
    CUDA_TRY(cudaMemsetAsync(c->d, 0, d_bytes, cuda_stream(&d->base)));
    return 0;
}

/* One way to compute the call: an algorithm, or (algo NULL) the plain product and the separate bias. */
typedef struct {
    GemmPlan                   *plan;
    const cublasLtMatmulAlgo_t *algo;
} Way;

/* Microseconds per run over reps runs; FLT_MAX if it does not run. -1 after err_set() when the device fails.
 */
static int time_way(CudaDev *d, const Way *w, const GemmCall *c, int reps, float *us)
{
    float all;
    *us = FLT_MAX;
    TRY(cuda_time_begin(d, 0));
    for (int r = 0; r < reps; r++) {
        if (w->algo && gemm_launch_algo(d, w->plan, w->algo, c)) return 0;
        if (!w->algo) TRY(gemm_launch_split(d, w->plan, c));
    }
    TRY(cuda_time_end(d, &all));
    *us = all / (float)reps;
    return 0;
}

/* Short products are repeated until the events' own cost is small; of long ones a run tells. */
static int reps_for(float us)
{
    return us > CUDA_LONG_US ? 1 : (int)MAX(2.0f, MIN(20.0f, 200.0f / MAX(us, 1.0f)));
}

static int compare_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* A first look at every way: one run to load it, one to judge it, more only if it is short and within 1.5x of
 * the best.
 */
static int time_coarse(CudaDev *d, const Way *way, int n, const GemmCall *c, float *us)
{
    float best = FLT_MAX;
    for (int i = 0; i < n; i++) {
        TRY(time_way(d, &way[i], c, 1, &us[i]));
        if (us[i] == FLT_MAX) continue;
        TRY(time_way(d, &way[i], c, 1, &us[i]));
        if (us[i] <= 1.5f * best && us[i] <= CUDA_LONG_US)
            TRY(time_way(d, &way[i], c, reps_for(us[i]), &us[i]));
        best = MIN(best, us[i]);
    }
    return 0;
}

/* The fastest of n ways: the best few of the coarse pass in turn, several rounds, medians; so a drifting
 * clock meets all of them alike. *pick is -1 when none runs. */
static int time_ways(CudaDev *d, const Way *way, int n, const GemmCall *c, int *pick, float *pick_us)
{
    float us[GEMM_PROPOSALS], round[FINALISTS][ROUNDS];
    int   final[FINALISTS], n_final = 0;
    TRY(time_coarse(d, way, n, c, us));
    *pick    = -1;
    *pick_us = FLT_MAX;
    for (; n_final < FINALISTS; n_final++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            int taken = us[i] == FLT_MAX;
            for (int f = 0; f < n_final; f++) taken |= final[f] == i;
            if (!taken && (best < 0 || us[i] < us[best])) best = i;
        }
        if (best < 0) break;
        final[n_final] = best;
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (int f = 0; f < n_final; f++) {
            TRY(time_way(d, &way[final[f]], c, reps_for(us[final[f]]), &round[f][r]));
        }
    }
    for (int f = 0; f < n_final; f++) {
        qsort(round[f], ROUNDS, sizeof(float), compare_float);
        if (round[f][ROUNDS / 2] < *pick_us) {
            *pick_us = round[f][ROUNDS / 2];
            *pick    = final[f];
        }
    }
    return 0;
}

/* ---- remembering --------------------------------------------------------------------------------------- */

static void remember(CudaDev *d, const GemmPlan *p, float us)
{
    char key[256], value[160], note[64];
    if (p->split_bias) {
        snprintf(value, sizeof value, "split");
    } else {
        int at = 0;
        for (int i = 0; i < ARRAY_LEN(p->algo.data); i++) {
            at += snprintf(value + at, sizeof value - (size_t)at, "%s%016llx", i ? " " : "",
                           (unsigned long long)p->algo.data[i]);
        }
    }
    double flops = 2.0 * (double)p->key.m * (double)p->key.n * (double)p->key.k;
    snprintf(note, sizeof note, "%.1f us %.1f TFLOP/s", (double)us, flops / (double)us * 1e-6);
    cuda_tune_put(d->tune, gemm_key_text(d, &p->key, key, sizeof key), value, note);
}

/* 1 if the cache had a choice that this library still accepts. */
int gemm_plan_recall(CudaDev *d, GemmPlan *p)
{
    char                 key[256];
    const char          *v = cuda_tune_find(d->tune, gemm_key_text(d, &p->key, key, sizeof key));
    cublasLtMatmulAlgo_t algo;
    Proposal             check;
    if (!v) return 0;
    if (strcmp(v, "split") == 0 && p->key.epi == EPI_BIAS) {
        p->split_bias = 1;
        return 1;
    }
    for (int i = 0; i < ARRAY_LEN(algo.data); i++) {
        char *end    = NULL;
        algo.data[i] = strtoull(v, &end, 16);
        if (end == v) return 0;
        v = end;
    }
    cublasStatus_t s = cublasLtMatmulAlgoCheck(d->gemm->lt, p->op, p->la, p->lb, p->ld, p->ld, &algo, &check);
    if (s || check.workspaceSize > (size_t)p->key.ws_bytes) return 0;
    p->algo = algo;
    return 1;
}

/* Times the proposals, and for a bias also the plain product with its own pass. 1 when nothing could be
 * timed. */
int gemm_plan_time(CudaDev *d, GemmPlan *p, const Proposal *h, int n)
{
    Way       way[GEMM_PROPOSALS];
    GemmCall  c;
    GemmPlan *plain = NULL;
    GemmKey   key   = gemm_plain_key(&p->key);
    if (p->key.epi == EPI_BIAS) {
        TRY(gemm_plan_get(d, &key, &plain)); /* before scratch is laid out: it uses scratch too */
    }
    int rc = scratch_call(d, &p->key, &c);
    if (rc != 0) return rc;
    for (int i = 0; i < n; i++) way[i] = (Way){ p, &h[i].algo };
    if (plain) {
        n      = MIN(n, GEMM_PROPOSALS - 1);
        way[n] = (Way){ plain, NULL };
        n++;
    }
    int   pick = -1;
    float us   = 0;
    TRY(time_ways(d, way, n, &c, &pick, &us));
    if (pick < 0) return 1;
    p->split_bias = way[pick].algo == NULL;
    if (!p->split_bias) p->algo = *way[pick].algo;
    remember(d, p, us);
    return 0;
}
