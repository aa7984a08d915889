/* Machine: what a card can do, in plain numbers, so that a run can be planned without the card.
 *
 * Data-sheet peaks serve MFU. The other rates are those that a whole step reaches on such a card (machine.c
 * says where they come from). They order candidates and predict a step within some %. A run on the card
 * itself measures. */
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { UNIT_MEMORY, UNIT_GEMM, UNIT_ATTN_FWD, UNIT_ATTN_BWD, UNIT_FP8, UNIT_COUNT } MachineUnit;

/* What products compute in that are not in fp8. */
typedef enum { MACHINE_HALF, MACHINE_TF32, MACHINE_F32 } MachineArith;

typedef struct {
    const char *key;        /* "h200" */
    const char *name;       /* as the driver reports it; matched as a prefix */
    int         capability; /* 90 for compute capability 9.0; 0: no CUDA device */
    size_t      mem_bytes;
    double      peak_flops;       /* dense bf16 (fp16 below 8.0), data sheet; 0: unknown */
    double      rate[UNIT_COUNT]; /* bytes/s for memory, FLOP/s in 16-bit, of UNIT_FP8 in fp8; 0: none */
    double      f32_share;        /* rate of f32 products relative to 16-bit ones */
    double      tf32_share;       /* the same of products in TF32; 0: none */
    double      op_s;             /* fixed cost of an op inside a captured step */
    double      product_s;        /* a product takes so long at least; 0: not known */
    double      attn_fixed;       /* share of attention's time at ATTN_KEYS that more keys do not lengthen */
    double      peak_mhz;         /* clock that peak_flops is meant for; 0: unknown */
} Machine;

/* Rates of attention are those of so many keys a query: T 1024, causal. */
enum { ATTN_KEYS = 512 };

/* What an op does, in plain numbers. */
typedef struct {
    MachineUnit  unit; /* UNIT_MEMORY: no arithmetic that counts */
    double       flops, bytes;
    double       keys; /* of attention: those that a query sees, on average; else 0 */
    MachineArith arith;
} MachineWork;

/* The lowest compute capability that a default build has kernels for (GENCODE in the Makefile). The card
 * itself has the last word (dev/cuda/cuda_dev.c). */
enum { MACHINE_BUILT_FOR = 90 };

/* By key ("h200") or by the driver's name; NULL when unknown. */
const Machine *machine_find(const char *key_or_name);
/* The machine that `--gpu KEY` of a command line names; NULL after err_user(), which lists the known ones. */
const Machine *machine_asked(const char *key);
/* A stand-in for a card whose rates nobody measured. They only rank candidates; the peak is not known. */
Machine machine_unmeasured(const char *name, int capability, size_t mem_bytes);
/* Bytes for slabs on a card that no other program uses. */
size_t machine_room(const Machine *m);
/* Keys of the known machines that have room for so many bytes, separated by ", "; returns how many. */
int machine_list_fitting(char *buf, size_t n, size_t size_bytes);
/* A stand-in for this computer's CPU with the given threads. */
Machine machine_cpu(int threads, size_t mem_bytes);

/* Seconds for one op: the slower of arithmetic and memory traffic, of a product at least product_s, plus the
 * fixed cost. */
double machine_op_time(const Machine *m, const MachineWork *w);
/* The two halves alone. */
double machine_flops_time(const Machine *m, const MachineWork *w);
double machine_bytes_time(const Machine *m, const MachineWork *w);

#ifdef __cplusplus
}
#endif
#endif
