/* A file with random weights of the frozen net. */
#include "toy.h"

#include "base/mem.h"
#include "base/rng.h"
#include "file/safetensors.h"

#include <stdlib.h>

static void fill(float *out, int64_t n, uint64_t seed, int which)
{
    enum { STREAM_TEACHER = 7004 };
    for (int64_t e = 0; e < n; e++)
        out[e] = 0.6f * rng_uniform(rng_draw(seed, STREAM_TEACHER, which, 0, e)) - 0.3f;
}

int toy_write_teacher(const char *path, int64_t width, int64_t out, uint64_t seed)
{
    const SafeTensor t[] = { { .name = "up.weight", .dtype = DT_F32, .ndim = 2, .dim = { width, TOY_DIM } },
                             { .name = "up.bias", .dtype = DT_F32, .ndim = 1, .dim = { width } },
                             { .name = "down.weight", .dtype = DT_F32, .ndim = 2, .dim = { out, width } },
                             { .name = "down.bias", .dtype = DT_F32, .ndim = 1, .dim = { out } } };
    SafeWriter      *w   = safetensors_write_begin(path, t, ARRAY_LEN(t), NULL, 0);
    float           *buf = mem_alloc(sizeof *buf * (size_t)(width * MAX(TOY_DIM, out)));
    int              rc  = w && buf ? 0 : -1;
    for (int i = 0; i < ARRAY_LEN(t) && rc == 0; i++) {
        int64_t n = t[i].dim[0] * (t[i].ndim == 2 ? t[i].dim[1] : 1);
        fill(buf, n, seed, i);
        rc = safetensors_write_data(w, buf, sizeof *buf * (size_t)n);
    }
    free(buf);
    if (rc == 0) return safetensors_write_publish(&w, NULL);
    safetensors_write_discard(&w);
    return -1;
}
