/* The tasks that this program ships: the only place where a task is looked up by name. */
#ifndef BIN_TASKS_H
#define BIN_TASKS_H

#include "task/task.h"

/* The task of a recipe that was loaded. */
const Task *task_of(const Recipe *r);
/* Lets the task fill in what follows from the data (Task.complete). */
int task_complete(Recipe *r, int need_data);

#endif
