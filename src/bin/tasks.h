/* The tasks that this program ships: the only place where a task is looked up by name. */
#ifndef BIN_TASKS_H
#define BIN_TASKS_H

#include "task/task.h"

/* The task of a recipe that was loaded. */
const Task *task_of(const Recipe *r);

#endif
