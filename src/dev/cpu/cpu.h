/* The CPU backend: the definition of every op, f32 only.
 *
 * 1. An op's result depends on its inputs and shapes alone, never on the number of threads: work is cut at
 *    places that follow from shapes, and partial sums are added in a fixed order.
 * 2. A fused op calls the same row functions as the ops it replaces. These functions are not inlined, so
 *    fusion and recomputation give the same bits.
 * 3. Ops run one after another and share one scratch range. A bound list with a plan uses the plan's range.
 *    An op that runs alone, or a list without a plan, has a range that grows until the device is sealed. A
 *    replay never allocates. */
#ifndef DEV_CPU_CPU_H
#define DEV_CPU_CPU_H

#include "dev/dev.h"

#include <stddef.h>
#include <stdint.h>

/* A function whose machine code must be the same for every caller. */
#define CPU_ONCE __attribute__((noinline))

typedef struct {
    void  *p;
    size_t bytes;
} CpuRange;

typedef struct {
    Dev      base;
    int      threads;
    CpuRange planned; /* for lists that are bound now */
    CpuRange list;    /* of the list that runs */
    CpuRange grown;   /* without a plan */
    DevComm  comm;    /* world 0 or 1: alone */
    int      tracing; /* 1: ops are recorded into trace */
    int64_t  trace_cap;
    DevTrace trace;
} CpuDev;

/* One slot per op kind: cpu_embed_fwd(), ... */
#define X(KIND, field, Type) int cpu_##field(Dev *dev, const Type *a);
OP_LIST(X)
#undef X

int cpu_threads(const Dev *dev);

/* The number after `key`, at the beginning of a line of a text file, or fallback. */
double cpu_read_number(const char *path, const char *key, double fallback);

/* Collectives go through the caller's transport from now on. */
int cpu_comm_id(unsigned char id[COMM_ID_BYTES]);
int cpu_comm_open(Dev *dev, const DevComm *c);

/* At least size_bytes of scratch, 64-byte aligned, contents undefined, good until the next call. NULL after
 * err_set(). */
void *cpu_scratch(Dev *dev, size_t size_bytes);

/* A tensor seen as rows x cols of f32 with a row stride. p is NULL for an absent argument. */
typedef struct {
    float  *p;
    int64_t rows, cols, ld;
} Mat;
Mat    cpu_mat(const Tensor *t);
float *cpu_f32(const Tensor *t); /* NULL for an absent argument */

static inline float *mat_row(Mat m, int64_t r) { return m.p ? m.p + r * m.ld : NULL; }

/* Where sequence b begins: t is i32[1] or i32[B]; absent: 0. */
static inline int64_t cpu_start(const Tensor *t, int64_t b)
{
    return t ? ((const int32_t *)t->data)[tensor_numel(t) == 1 ? 0 : b] : 0;
}

/* Loops below this many elements run on one thread: waking the others costs about as much as 10^4
 * additions. Products below so many multiply-adds do, too. */
enum { CPU_PARALLEL_MIN = 16384, CPU_PARALLEL_PRODUCT = 64 * CPU_PARALLEL_MIN };

#endif
