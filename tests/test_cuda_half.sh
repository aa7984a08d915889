#!/usr/bin/env bash
# The CUDA half beside the program, without a GPU: a half of another build is noticed, the tune cache lies
# with the runs, and a cuDNN engine that fails is skipped. Stand-ins replace libbrim_cuda.so and cuDNN.
. "$(dirname "$0")/shell_lib.sh"
export BRIM_RUNS=$dir/elsewhere
unset BRIM_TUNE_CACHE
cp "$brim" ./brim
san=; case $build in *asan*) san=-fsanitize=address,undefined ;; esac
half() { # id
    cat >half.c <<END
#include "base/err.h"
#include "dev/dev.h"
#include <stdio.h>
static Dev *none(int index, const DevOptions *opt)
{
    fprintf(stderr, "cache %s\n", opt->tune_cache);
    err_user("a stand-in has no GPU");
    return NULL;
}
static const DevVt vt = { .kind = DEV_CUDA, .name = "cuda", .open = none };
const DevVt *brim_dev_cuda(void) { return &vt; }
const char  *brim_cuda_id(void) { return "$1"; }
END
    gcc -std=gnu11 -shared -fPIC $san -I"$here/src" -o libbrim_cuda.so half.c
}
recipe="$here/recipes/quickstart.yaml"
half 0.0.1-somethingelse || { echo "not ok a stand-in compiles"; exit 1; }
./brim plan "$recipe" device=cuda >seen 2>&1
[ $? -eq 2 ] && grep -q "another build (0.0.1-somethingelse" seen && ! grep -q "^cache" seen
verdict "a half of another build is refused" $? "$(tail -n 1 seen)"
./brim plan "$recipe" >seen 2>&1 && grep -q "^chosen *cpu.*another build" seen
verdict "and auto goes to the CPU and says so" $? "$(grep ^chosen seen)"
half "$(cat "$build/.dev_id" 2>/dev/null)"
./brim plan "$recipe" device=cuda >seen 2>&1
grep -qx "cache $dir/elsewhere/tune.txt" seen
verdict "the tune cache is in BRIM_RUNS" $? "$(grep ^cache seen)"
./brim train "$recipe" run=tune.txt device=cpu steps=1 optim.warmup=0 >seen 2>&1
[ $? -eq 2 ] && [ ! -e elsewhere/tune.txt ]
verdict "no run takes the tune cache's name" $? "$(tail -n 1 seen)"

cuda=$(ls -d /usr/local/cuda/include /usr/include 2>/dev/null | while read -r d; do [ -e "$d/cudnn.h" ] &&
    echo "$d" && break; done)
if [ -z "$cuda" ]; then
    echo "skip: no cudnn.h"
    exit $failed
fi
cat >engines.c <<'END'
#include "dev/cuda/cuda_cudnn.h"
#include <stdio.h>
#include <string.h>
static int     n_made, asked;
static int     fail_at[8];
static char    store[64];
static cudnnStatus_t create(cudnnBackendDescriptorType_t t, cudnnBackendDescriptor_t *d)
{
    *d = store + n_made++;
    return 0;
}
static cudnnStatus_t destroy(cudnnBackendDescriptor_t d) { return 0; }
static cudnnStatus_t set(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t a,
                         cudnnBackendAttributeType_t t, int64_t n, const void *v)
{
    return 0;
}
static cudnnStatus_t finalize(cudnnBackendDescriptor_t d) { return 0; }
static cudnnStatus_t get(const cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t a,
                         cudnnBackendAttributeType_t t, int64_t n, int64_t *found, void *v)
{
    if (a != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE) return 0;
    *(int64_t *)v = 64;
    return fail_at[asked++] ? CUDNN_STATUS_INTERNAL_ERROR : 0;
}
static void        last_error(char *m, size_t n) { *m = 0; }
static const char *text(cudnnStatus_t s) { return "made to fail"; }
int main(void)
{
    CudnnLib lib = { .desc_create = create, .desc_destroy = destroy, .desc_set = set, .desc_get = get,
                     .desc_finalize = finalize, .last_error = last_error, .error_string = text };
    CudnnGraph g;
    CudnnDesc  plan;
    int64_t    ws;
    cudnn_graph_init(&g, &lib);
    fail_at[1] = 1;
    int a = cudnn_graph_plan(&g, NULL, 0, &plan, &ws), b = cudnn_graph_plan(&g, NULL, 1, &plan, &ws);
    int c = cudnn_graph_plan(&g, NULL, 2, &plan, &ws);
    printf("%d %d %d\n", a, b, c);
    return !(a == 0 && b == 1 && c == 0);
}
END
gcc -std=gnu11 -I"$here/src" -I"$cuda" -o engines engines.c "$here/src/dev/cuda/cuda_cudnn.c" \
    "$here"/src/base/{err,log,clock,fault,file,folder,mem,arena,str}.c -ldl -lpthread -lm >seen 2>&1 &&
    ./engines >seen 2>&1
verdict "an engine that fails is passed over" $? "$(tail -n 1 seen)"
exit $failed
