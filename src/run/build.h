/* Build: a recipe and a few chosen numbers become recorded, lowered, planned programs over one store.
 *
 * 1. build_create() needs no device, only a backend's table (which ops it has, which workspaces): `brim plan` stops here.
 * 2. build_bind() allocates exactly the planned slabs and binds every program; setup_open() seals the device after it.
 * 3. The chosen numbers (BuildChoice) never change the mathematics beyond summation order. */
#ifndef RUN_BUILD_H
#define RUN_BUILD_H

#include "comm/comm.h"
#include "conf/recipe.h"
#include "dev/dev.h"
#include "net/net.h"
#include "prog/prog.h"

typedef struct {
    int64_t        micro_batch; /* sequences */
    RecomputeLevel level;       /* of every block */
    int64_t        head_rows;   /* rows of logits at a time */
    DType          compute;
    int            world; /* ranks that share a step; 0 counts as 1 */
} BuildChoice;

typedef enum { BUILD_TRAIN = 1, BUILD_EVAL = 2, BUILD_DECODE = 4 } BuildParts;

typedef struct {
    Recipe      recipe;
    BuildChoice choice;
    Store       store;
    Net         net;
    NetBatch    batch;
    NetDecode   decode;
    Tensor     *state;      /* StepState */
    Tensor     *loss_sum;   /* f64[LOSS_SLOTS], its out.sum; NULL with one rank */
    Prog       *micro;      /* one micro-batch forward and backward: adds to gradients and loss */
    Prog       *micro_last; /* the same, and sums gradients and loss over ranks; NULL with one rank */
    Prog       *update;     /* optimizer step */
    Prog       *eval;       /* one micro-batch forward: adds to loss */
    Prog       *step1;      /* decode: one token */
    Prog       *copies;     /* master weights -> compute copies */
    Dev        *dev;        /* after build_bind */
    Comm       *comm;       /* borrowed; the other ranks, NULL when there are none */
} Build;

/* What lowering may fuse: the recipe's switches, less what a deterministic run does without. */
LowerOptions build_lower_options(const Recipe *r, const DevVt *vt);

int  build_create(Build **out, const Recipe *r, const BuildChoice *c, unsigned parts, const DevVt *vt);
void build_destroy(Build *b);

/* Micro-batches per optimizer step for one rank of `world`. */
int64_t build_micro_per_step(const Build *b, int world);

int build_bind(Build *b, Dev *dev);

/* Uploads initial weights, constants and segment tables; clears optimizer state. Waits. */
int build_init(Build *b);

/* Host copies of logical tensors: f32, rows*cols numbers. which: a Param's master, grad, m or v. Waits. */
int build_read_param(Build *b, const Param *p, const Tensor *which, float *out);
int build_write_param(Build *b, const Param *p, const Tensor *which, const float *in);
/* Refreshes compute copies after build_write_param on masters. */
int build_refresh_copies(Build *b);

int build_write_state(Build *b, const StepState *s); /* waits */
int build_read_state(Build *b, StepState *s);        /* waits */

/* Prints bytes per slab, programs and choice: plan.txt. */
void build_print_plan(const Build *b, FILE *out);

#endif
