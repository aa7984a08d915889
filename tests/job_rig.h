/* Rig: a CPU device and an empty folder for tests of whole jobs; setup and teardown for cmocka. */
#ifndef TESTS_JOB_RIG_H
#define TESTS_JOB_RIG_H

#include "base/err.h"
#include "base/folder.h"
#include "dev/dev.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    char dir[64];
    Dev *dev;
} Rig;

static inline int rig_setup(void **state)
{
    const char *why;
    Rig        *rig = calloc(1, sizeof *rig);
    if (!rig) return -1;
    strcpy(rig->dir, "/tmp/brim_job_XXXXXX");
    if (!mkdtemp(rig->dir)) return -1;
    rig->dev = dev_open("cpu", &(DevOptions){ .threads = 1 }, &why);
    *state   = rig;
    return rig->dev ? 0 : -1;
}

static inline int rig_teardown(void **state)
{
    Rig *rig = *state;
    err_clear();
    dev_close(rig->dev);
    folder_remove(rig->dir);
    free(rig);
    return 0;
}

#endif
