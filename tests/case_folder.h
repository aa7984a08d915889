/* Case folder: a cmocka fixture. Each case gets an empty folder, whose path is *state. The folder and
 * everything in it is removed behind the case. */
#ifndef TESTS_CASE_FOLDER_H
#define TESTS_CASE_FOLDER_H

#include "base/err.h"
#include "base/fault.h"
#include "base/folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static inline int folder_setup(void **state)
{
    char *dir = strdup("/tmp/brim_test_XXXXXX");
    *state    = dir;
    return dir && mkdtemp(dir) ? 0 : -1;
}

static inline int folder_teardown(void **state)
{
    fault_disarm();
    err_clear();
    int rc = folder_remove((const char *)*state);
    free(*state);
    return rc;
}

/* The path of a name in the folder; the last 16 stay valid. */
static inline const char *in(void **state, const char *name)
{
    static char path[16][1024];
    static int  turn;
    turn = (turn + 1) % 16;
    snprintf(path[turn], sizeof path[turn], "%s/%s", (const char *)*state, name);
    return path[turn];
}

static inline void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

#endif
