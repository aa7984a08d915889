/* Null: runs nothing, checks everything.
 *
 * 1. Each op is validated (presence, dtypes, shapes) and its arguments are checked for overlap: two arguments
 *    of which one is written may share storage only if the op's row allows the pair, and then only exactly.
 * 2. FLOPs and bytes are counted from op_flops() and op_bytes().
 * 3. alloc returns distinct addresses without memory behind them, so a plan of any size can be bound. */
#ifndef DEV_NULL_NULL_H
#define DEV_NULL_NULL_H

#include "dev/dev.h"

typedef struct {
    double  flops, bytes; /* of all ops run so far */
    int64_t n_op;
    size_t  allocated_bytes; /* since it was opened; freeing takes nothing back */
} NullStats;

NullStats null_stats(const Dev *dev);
void      null_reset(Dev *dev); /* FLOPs, bytes and n_op back to 0 */

/* Presence, shapes and sharing of one op; NULL when right, else one line kept in buf. */
const char *null_check(OpKind kind, const OpArgs *args, char *buf, size_t n);

#endif
