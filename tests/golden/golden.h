/* Golden: reads tests/golden/NAME.safetensors (written by tools/golden.py, which says what is inside).
 *
 * 1. A file that cannot be read, or a tensor that is not there, is CHECKed: a test without its reference
 * proves nothing.
 * 2. Everything returned points into the Golden and lives as long as it. */
#ifndef TESTS_GOLDEN_GOLDEN_H
#define TESTS_GOLDEN_GOLDEN_H

#include "base/err.h"
#include "base/file.h"
#include "conf/recipe.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GOLDEN_MAX_BYTES = 4 << 20, GOLDEN_MAX_KEY = 64 };

typedef struct {
    char       *raw;
    json_t     *header;
    const char *data; /* first byte behind the header */
    size_t      data_bytes;
    Recipe      recipe;
    int64_t     B, T, steps; /* T: targets of a sample */
} Golden;

/* The recipe is in the file's metadata as key=value pairs, read like those of a command line. */
static inline void golden_read_recipe(Golden *g, const char *name)
{
    static char text[GOLDEN_MAX_KEY][128];
    char       *pair[GOLDEN_MAX_KEY];
    const char *key;
    json_t     *value;
    int         n = 0;
    json_object_foreach(json_object_get(g->header, "__metadata__"), key, value)
    {
        CHECK(n < GOLDEN_MAX_KEY, "%s: too many keys", name);
        snprintf(text[n], sizeof text[n], "%s=%s", key, json_string_value(value));
        pair[n] = text[n];
        n++;
    }
    CHECK(recipe_parse(&g->recipe, name, "seed: 1\n", 8, n, pair) == 0, "%s", err_get());
    int lm   = strcmp(g->recipe.task, "lm") == 0;
    g->T     = lm ? g->recipe.model.context : 1;
    g->B     = lm ? g->recipe.step_tokens / g->T : g->recipe.step_samples;
    g->steps = g->recipe.steps;
}

static inline void golden_open(Golden *g, const char *name)
{
    char     path[256];
    size_t   n;
    uint64_t n_header;
    snprintf(path, sizeof path, "tests/golden/%s.safetensors", name);
    CHECK(file_read_all(path, GOLDEN_MAX_BYTES, &g->raw, &n) == 0, "%s (run from the repository's root)",
          err_get());
    CHECK(n > 8, "%s is too short", path);
    memcpy(&n_header, g->raw, 8);
    CHECK(n_header <= n - 8, "%s: header longer than the file", path);
    g->header = json_loadb(g->raw + 8, n_header, 0, NULL);
    CHECK(g->header, "%s: bad header", path);
    g->data       = g->raw + 8 + n_header;
    g->data_bytes = n - 8 - n_header;
    golden_read_recipe(g, name);
}

static inline void golden_close(Golden *g)
{
    json_decref(g->header);
    free(g->raw);
}

/* The numbers of tensor PREFIX+NAME, which must have this dtype and so many of them. */
static inline const void *golden_tensor(const Golden *g, const char *prefix, const char *name,
                                        const char *dtype, int64_t n_elem)
{
    char key[128];
    snprintf(key, sizeof key, "%s%s", prefix, name);
    json_t *t = json_object_get(g->header, key), *at = json_object_get(t, "data_offsets");
    CHECK(t, "no tensor %s", key);
    CHECK(strcmp(json_string_value(json_object_get(t, "dtype")), dtype) == 0, "%s is not %s", key, dtype);
    int64_t begin = json_integer_value(json_array_get(at, 0)),
            end   = json_integer_value(json_array_get(at, 1));
    int64_t size  = strcmp(dtype, "F64") == 0 ? 8 : strcmp(dtype, "U8") == 0 ? 1 : 4;
    CHECK(begin >= 0 && end - begin == size * n_elem && (size_t)end <= g->data_bytes,
          "%s has not %lld numbers", key, (long long)n_elem);
    return g->data + begin;
}

static inline const float *golden_f32(const Golden *g, const char *prefix, const char *name, int64_t n_elem)
{
    return golden_tensor(g, prefix, name, "F32", n_elem);
}

static inline const double *golden_f64(const Golden *g, const char *name, int64_t n_elem)
{
    return golden_tensor(g, "", name, "F64", n_elem);
}

/* Row [step, b, 0] of "tok", "target" or "label". */
static inline const int32_t *golden_rows(const Golden *g, const char *name, int64_t step, int64_t b)
{
    const int32_t *x = golden_tensor(g, "", name, "I32", g->steps * g->B * g->T);
    return x + (step * g->B + b) * g->T;
}

/* How many weights the file has; a model must know all of them. */
static inline int golden_n_weight(const Golden *g)
{
    int         n = 0;
    const char *key;
    json_t     *value;
    json_object_foreach(g->header, key, value) n += strncmp(key, "w0.", 3) == 0;
    return n;
}

#endif
