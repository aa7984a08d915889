/* The parameter table: every fact about a weight is a column of its row, written once where the row is
 * declared.
 *
 * 1. Rows are declared in forward order and laid out in backward order. So the ranges that the backward half
 *    finishes first are contiguous (gradient buckets).
 * 2. A row belongs to one flat region. Products read REGION_COPY in the compute dtype; norms read
 *    REGION_MASTER in f32. AdamW walks each of the two as one flat range. Rows under Muon have a region of
 *    their own, REGION_MUON, and so have frozen rows.
 * 3. A row has columns (column_table): weight, copy, gradient and so on. The copy exists only when the
 *    compute dtype is not f32. AdamW keeps two moments of a row, Muon one momentum. A frozen row, and every
 *    row where nothing trains, has one column, in the dtype it computes in.
 * 4. Padding between rows is zero in every slab and stays zero. rows_stored > rows pads a vocabulary to a
 *    multiple that matrix units like; checkpoints hold the logical rows only.
 * 5. The names of a table begin with its prefix. Its random sites begin at site0. Two tables of one run
 *    differ in both. */
#ifndef NET_PARAM_H
#define NET_PARAM_H

#include "prog/store.h"

/* ORTHOGONAL: rows or columns, whichever are fewer, are orthogonal and have length std. CONSTANT: std. */
typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_ORTHOGONAL, INIT_CONSTANT } InitKind;

/* Where a row lives. Declared rows say COPY or MASTER; param_layout() moves those of Muon and frozen ones. */
typedef enum {
    REGION_COPY,
    REGION_MASTER,
    REGION_MUON,
    REGION_FROZEN_COPY,
    REGION_FROZEN_MASTER,
    REGION_COUNT
} Region;
enum { REGION_TRAINED = REGION_FROZEN_COPY /* the regions below this one have gradients */ };

/* What is kept of a row. COL_WEIGHT is the master weight, or the only copy of a frozen one. */
typedef enum { COL_WEIGHT, COL_COPY, COL_GRAD, COL_M, COL_V, COL_MOMENTUM, COL_COUNT } Column;

typedef struct {
    const char *name;   /* of the flat range: "master", "gradient" */
    const char *suffix; /* of the row's tensor: "", ".grad"; in a checkpoint, too */
    Slab        slab;
    int         is_kept; /* in checkpoints */
} ColumnRow;

extern const ColumnRow column_table[COL_COUNT];

enum {
    PARAM_NAME   = 64,
    PARAM_PREFIX = 24,
    PARAM_ORIGIN = 1024,
    PARAM_ALIGN  = 128 /* elements */,
    PARAM_STACK  = 3
};

typedef struct {
    char     name[PARAM_NAME]; /* as in checkpoints: "block.3.qkv.weight" */
    int      ndim;             /* 1: vector of rows * cols; 2: rows x cols */
    int64_t  rows, cols, rows_stored;
    InitKind init;
    float    std;
    int      decay;  /* weight decay applies */
    int      frozen; /* not trained */
    int      narrow; /* products alone read it, or a copy of it, so they may read it in fp8 */
    float    lr_mul;
    /* A hidden matrix, for optimizers that treat those otherwise: the rows of each matrix that is stacked in
     * this one (q, k and v; gate and up). 0: no more. A row without any is an embedding, a head or a
     * vector. */
    int64_t         stack[PARAM_STACK];
    Region          region;
    int             site;           /* random site of its initial values */
    int64_t         offset;         /* elements, in the region's flat range */
    Tensor         *w;              /* what forward ops read: the copy, or the weight itself */
    Tensor         *col[COL_COUNT]; /* NULL: this row has no such column */
    const StoreFp8 *fp8;            /* its copies in fp8; NULL: none */
} Param;

/* Matrices of one shape under Muon: neighbours in the segment table of REGION_MUON. */
typedef struct {
    int64_t rows, cols;
    int     first, n; /* segments */
} MuonGroup;

enum { MUON_GROUPS = 64 };

typedef struct {
    char      prefix[PARAM_PREFIX]; /* "", or "teacher." */
    int       site0;
    Param    *param;
    int       n_param, cap;
    int      *by_name; /* 2*cap entries, hashed by name: index of the row + 1, 0 when empty */
    int64_t   region_elems[REGION_COUNT];
    Tensor   *flat[COL_COUNT][REGION_COUNT]; /* whole columns; NULL if empty */
    Tensor   *seg[REGION_TRAINED];           /* Segment rows for the optimizer */
    Segment  *segments[REGION_TRAINED];      /* their host contents */
    int       n_segment[REGION_TRAINED];
    MuonGroup muon[MUON_GROUPS];
    int       n_muon;
    /* f32[n,FP8_SITE]: of all rows in fp8 two sites in E4M3, x and w, and one of gradients in E5M2. NULL:
     * none */
    Tensor *sites, *grad_sites;
    Arena   arena;
    /* The folder that all weights of a frozen net came from. Checkpoints name the folder instead of holding
     * the weights. "": none. */
    char     origin[PARAM_ORIGIN];
    uint64_t origin_hash;
} ParamTable;

/* What is kept in bf16 though f32 would be exact: concessions of a run that does not fit. */
enum { GIVE_MOMENTS = 1, GIVE_WEIGHTS = 2 /* no f32 weights beside those that products read */ };

typedef struct {
    DType       compute;  /* dtype of copies and activations */
    int         trains;   /* 0: nothing is updated: one column for each row */
    float       decay;    /* the run's weight decay */
    float       muon;     /* Muon trains hidden matrices, at so many times the learning rate; 0: AdamW does */
    unsigned    gives;    /* GIVE_* bits */
    const char *freeze;   /* comma list of names; NULL: none */
    int         fp8;      /* weights of products also get copies in fp8 */
    int         fp8_head; /* that of the head, too */
    const char *wide;     /* comma list of names that get none; NULL: none */
} ParamOptions;

/* Writes a parameter's name into name[PARAM_NAME]; one that does not fit is a bug. */
void param_name(char *name, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* prefix and site0: what tells this table from others of the same run. */
void param_table_init(ParamTable *t, const char *prefix, int site0);
void param_table_deinit(ParamTable *t);
/* Adds a row; fill name (without the prefix), ndim, rows, cols, init, std, decay, region, frozen beforehand
 * in *row. Returns its index. */
int param_declare(ParamTable *t, const Param *row);
/* Lays out all rows and declares the columns' tensors in the store. */
void    param_layout(ParamTable *t, Store *store, const ParamOptions *opt);
Param  *param_find(const ParamTable *t, const char *name); /* name without the prefix; NULL when absent */
int64_t param_count(const ParamTable *t);                  /* logical numbers in all rows */

/* 1: pattern names this weight: its whole name or its first parts ("block.3"); "block.0-3" names four
 * blocks. */
int param_matches(const char *name, const char *pattern);
/* The first item of a comma list that names no weight of the table, in buf; NULL when each names one. */
const char *param_unmatched(const ParamTable *t, const char *list, char *buf, size_t n);

/* Fills out[rows_stored*cols] with the initial values: a pure function of (seed, site, element). */
void param_init_values(const Param *p, uint64_t seed, float *out);

#endif
