/* The parameter table: every fact about a weight is a column of its row, written once where the row is declared.
 *
 * 1. Rows are declared in forward order and laid out in backward order, so the ranges finished first by the backward half
 *    are contiguous (gradient buckets).
 * 2. Two flat regions: REGION_COPY holds the weights that products read in the compute dtype (they have a copy when that is
 *    not f32), REGION_MASTER those read in f32 (norms). The optimizer walks each region as one flat range.
 * 3. Padding between rows is zero in every slab and stays zero. rows_stored > rows pads a vocabulary to a multiple that
 *    matrix units like; checkpoints hold the logical rows only. */
#ifndef NET_PARAM_H
#define NET_PARAM_H

#include "prog/store.h"

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } InitKind;
typedef enum { REGION_COPY, REGION_MASTER, REGION_COUNT } Region;

enum { PARAM_NAME = 64, PARAM_ALIGN = 128 /* elements */ };

typedef struct {
    char     name[PARAM_NAME]; /* as in checkpoints: "block.3.qkv.weight" */
    int      ndim;             /* 1: vector of cols; 2: rows x cols */
    int64_t  rows, cols, rows_stored;
    InitKind init;
    float    std;
    int      decay; /* weight decay applies */
    float    lr_mul;
    Region   region;
    int      site;   /* random site of its initial values */
    int64_t  offset; /* elements, in the region's flat range */
    Tensor  *w;      /* what forward ops read: the copy, or the master itself */
    Tensor  *master, *grad, *m, *v;
} Param;

typedef struct {
    Param  *param;
    int     n_param, cap;
    int    *by_name; /* 2*cap entries, hashed by name: index of the row + 1, 0 when empty */
    int64_t region_elems[REGION_COUNT];
    /* flat; NULL if empty */
    Tensor  *master[REGION_COUNT], *grad[REGION_COUNT], *m[REGION_COUNT], *v[REGION_COUNT];
    Tensor  *copy;                   /* REGION_COPY in the compute dtype; NULL when that is f32 */
    Tensor  *seg[REGION_COUNT];      /* Segment rows for the optimizer */
    Segment *segments[REGION_COUNT]; /* their host contents */
    int      n_segment[REGION_COUNT];
    Arena    arena;
} ParamTable;

typedef struct {
    DType compute;   /* dtype of copies and activations */
    int   trainable; /* 0: no gradient, no optimizer state */
} ParamOptions;

/* Writes a parameter's name into name[PARAM_NAME]; one that does not fit is a bug. */
void param_name(char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void param_table_init(ParamTable *t);
void param_table_deinit(ParamTable *t);
/* Adds a row; fill name, ndim, rows, cols, init, std, decay, region beforehand in *row. Returns its index. */
int param_declare(ParamTable *t, const Param *row);
/* Lays out all rows and declares the slabs' tensors in the store. decay is the run's weight decay. */
void    param_layout(ParamTable *t, Store *store, const ParamOptions *opt, float decay);
Param  *param_find(const ParamTable *t, const char *name); /* NULL when absent */
int64_t param_count(const ParamTable *t);                  /* logical numbers in all rows */

/* Fills out[rows_stored*cols] with the initial values: a pure function of (seed, site, element). */
void param_init_values(const Param *p, uint64_t seed, float *out);

#endif
