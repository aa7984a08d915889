/* Rig: an empty folder, and folders of runs in it; setup and teardown for cmocka. */
#ifndef TESTS_RUNS_RIG_H
#define TESTS_RUNS_RIG_H

#include "base/err.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char dir[64], path[128];
} Rig;

static inline int setup(void **state)
{
    Rig *r = calloc(1, sizeof *r);
    *state = r;
    strcpy(r->dir, "/tmp/brim_page_XXXXXX");
    if (!r || !mkdtemp(r->dir)) return -1;
    snprintf(r->path, sizeof r->path, "%s/metrics.jsonl", r->dir);
    return 0;
}

static inline int teardown(void **state)
{
    Rig *r = *state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", r->dir);
    int rc = system(cmd) || err_kind() != ERR_NONE;
    err_clear();
    free(r);
    return rc;
}

static inline void put(const char *path, const char *mode, const char *text)
{
    FILE *f = fopen(path, mode);
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static inline void make_run(const Rig *r, const char *name, double lr, const char *more)
{
    char path[256], dir[200];
    snprintf(dir, sizeof dir, "%s/runs/%s", r->dir, name);
    assert_int_equal(file_make_folders(dir), 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    FILE *f = fopen(path, "w");
    for (int i = 1; i <= 30; i++) {
        fprintf(f,
                "{\"step\":%d,\"loss\":%g,\"lr\":%g,\"per_s\":1234,\"mfu\":null,\"time_s\":%d,\"data_wait_"
                "s\":0%s}\n",
                i, 5.0 / i, lr, i, more);
        if (i % 10 == 0) fprintf(f, "{\"step\":%d,\"val_loss\":%g,\"time_s\":%d}\n", i, 6.0 / i, i);
    }
    fclose(f);
    snprintf(path, sizeof path, "%s/recipe.yaml", dir);
    f = fopen(path, "w");
    fprintf(f, "run: \"%s\"\nsteps: 30\noptim:\n  lr: %g\n  warmup: 1\n", name, lr);
    fclose(f);
    snprintf(path, sizeof path, "%s/watch.json", dir);
    put(path, "w",
        "{\"unit\":\"image\",\"steps\":30,\"device\":\"a <b>device</b> \\\"x\\\"\",\"activity\":\"gpm\"}");
}

/* Holds until the next call. */
static inline const char *base_of(const Rig *r)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/runs", r->dir);
    return path;
}

#endif
