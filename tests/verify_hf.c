/* Compares Hugging Face folders and logits, for tests/test_hf.sh.
 *
 *     verify_hf same DIR DIR             every tensor of both, by name: type, shape and bits
 *     verify_hf logits OUT.npy WANT.f32  the last rows of a matrix, to 1e-4 in absolute value */
#include "base/err.h"
#include "base/file.h"
#include "file/safetensors.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

typedef struct {
    SafeFile file[MOST];
    int      n, n_tensor;
} Folder;

static void folder_open(Folder *f, const char *dir)
{
    Arena  a;
    char **names, path[PATH_MAX];
    arena_init(&a);
    int n = file_list(&a, dir, ".safetensors", &names);
    CHECK(n > 0 && n <= MOST, "%s: %d safetensors files", dir, n);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        CHECK(safetensors_open(&f->file[i], path) == 0, "%s", err_get());
        f->n_tensor += f->file[i].n_tensor;
    }
    f->n = n;
    arena_deinit(&a);
}

static void folder_close(Folder *f)
{
    for (int i = 0; i < f->n; i++) safetensors_close(&f->file[i]);
    free(f);
}

static const SafeTensor *folder_find(const Folder *f, const char *name, const SafeFile **in)
{
    for (int i = 0; i < f->n; i++) {
        const SafeTensor *t = safetensors_find(&f->file[i], name);
        *in                 = &f->file[i];
        if (t) return t;
    }
    return NULL;
}

static int same_tensor(const SafeFile *fa, const SafeTensor *a, const SafeFile *fb, const SafeTensor *b)
{
    if (!b || a->dtype != b->dtype || a->ndim != b->ndim || a->size_bytes != b->size_bytes ||
        memcmp(a->dim, b->dim, sizeof *a->dim * (size_t)a->ndim) != 0)
        return 0;
    char *x = malloc(a->size_bytes + 1), *y = malloc(a->size_bytes + 1);
    CHECK(x && y, "out of memory");
    CHECK(safetensors_read(fa, a->offset, x, a->size_bytes) == 0, "%s", err_get());
    CHECK(safetensors_read(fb, b->offset, y, a->size_bytes) == 0, "%s", err_get());
    int same = memcmp(x, y, a->size_bytes) == 0;
    free(x);
    free(y);
    return same;
}

static int compare_folders(const char *dir_a, const char *dir_b)
{
    Folder         *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
    const SafeFile *in;
    int             bad = 0;
    CHECK(a && b, "out of memory");
    folder_open(a, dir_a);
    folder_open(b, dir_b);
    for (int i = 0; i < a->n; i++) {
        for (int k = 0; k < a->file[i].n_tensor; k++) {
            const SafeTensor *t = &a->file[i].tensor[k], *u = folder_find(b, t->name, &in);
            if (same_tensor(&a->file[i], t, in, u)) continue;
            printf("%s differs\n", t->name);
            bad = 1;
        }
    }
    if (a->n_tensor != b->n_tensor) bad = printf("%d tensors against %d\n", a->n_tensor, b->n_tensor) > 0;
    folder_close(a);
    folder_close(b);
    return bad;
}

static int compare_logits(const char *npy, const char *want)
{
    char  *x, *y;
    size_t n, m;
    double worst = 0;
    CHECK(file_read_all(npy, 1 << 28, &x, &n) == 0 && file_read_all(want, 1 << 28, &y, &m) == 0, "%s",
          err_get());
    CHECK(n >= m + 128 && m > 0, "%s: %zu bytes, %s: %zu", npy, n, want, m);
    for (size_t i = 0; i < m / sizeof(float); i++) {
        float a, b;
        memcpy(&a, x + n - m + i * sizeof a, sizeof a);
        memcpy(&b, y + i * sizeof b, sizeof b);
        worst = isfinite(a) ? fmax(worst, fabs((double)a - b)) : INFINITY;
    }
    printf("largest difference %.3g\n", worst);
    free(x);
    free(y);
    return !(worst <= 1e-4);
}

int main(int argc, char **argv)
{
    CHECK(argc == 4, "usage: verify_hf same|logits A B");
    if (strcmp(argv[1], "same") == 0) return compare_folders(argv[2], argv[3]);
    return compare_logits(argv[2], argv[3]);
}
