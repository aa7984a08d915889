/* Weights: fills the nets of a job from files of others. */
#ifndef TASK_WEIGHTS_H
#define TASK_WEIGHTS_H

#include "file/hf.h"
#include "task/job.h"

/* Checks that a folder holds every weight of a table with the table's shapes, and nothing else; reads no
 * numbers. Negative after err_user(). */
int weights_match_hf(const ParamTable *t, const HfFolder *h);

/* Uploads every weight of a table of a bound job from a folder. Numbers are converted to the type that the
 * column has on the device. Refreshes no copies: call job_refresh_copies() if rows of the table are trained.
 * hash: xxh64 of all bytes in the table's order, for ParamTable.origin_hash; may be NULL. */
int weights_load_hf(Job *j, const ParamTable *t, HfFolder *h, uint64_t *hash);

/* The whole way for the recipe's key `init`: opens the folder, loads, closes, refreshes copies. Nothing if
 * the recipe names none. The folder of a run of tasks image and mae gives its newest checkpoint. Weights of
 * head and decoder which that run does not have in this shape stay as they are; the log counts them. */
int weights_load_init(Job *j, const ParamTable *t);

/* The whole way for a frozen net: opens dir, loads, closes, and sets origin and origin_hash, so that
 * checkpoints name the folder instead of holding the weights. config is what hfconf_read() gave. */
int weights_load_frozen(Job *j, ParamTable *t, const char *dir, const HfConfig *config);

#endif
