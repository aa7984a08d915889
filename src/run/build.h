/* Build: a task, a recipe and a few chosen numbers become a Job of recorded, lowered, planned programs over
 * one store.
 *
 * 1. build_create() needs no device. The table of a backend (DevVt) says which ops there are and what
 *    workspaces they need. `brim plan` stops here.
 * 2. build_bind() allocates exactly the planned slabs and binds every program. Then the caller, such as
 *    setup_open(), seals the device. */
#ifndef RUN_BUILD_H
#define RUN_BUILD_H

#include "task/job.h"

/* parts: JobParts. Negative after err_user()/err_set(). */
int  build_create(Job **out, const Task *task, const Recipe *r, const JobChoice *c, unsigned parts,
                  const DevVt *vt);
void build_destroy(Job *j); /* NULL is allowed */

int build_bind(Job *j, Dev *dev);

/* Uploads initial weights, constants and segment tables; clears optimizer state. Waits. */
int build_init(Job *j);

/* Negative after err_set() if two live tensors of any program share bytes: the plan's own proof. */
int build_verify(const Job *j);

/* Prints bytes per slab, programs and choice: plan.txt. */
void build_print_plan(const Job *j, FILE *out);
/* Prints every op and tensor of the programs of a step. */
void build_print_lists(const Job *j);

#endif
