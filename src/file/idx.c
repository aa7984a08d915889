#include "file/idx.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { TYPE_U8 = 8, PIECE = 1 << 24 };

/* gzread() reads plain files as they are. */
static gzFile open_gz(const char *path)
{
    gzFile f = gzopen(path, "rb");
    if (!f) err_sys("%s", path);
    return f;
}

static int read_part(gzFile f, const char *path, void *buf, int64_t n)
{
    int why;
    for (int64_t got = 0; got < n;) {
        int k = gzread(f, (char *)buf + got, (unsigned)MIN(n - got, PIECE));
        if (k < 0) return err_user("%s: %s", path, gzerror(f, &why));
        if (k == 0)
            return err_user("%s: truncated after %lld of its %lld bytes", path, (long long)got, (long long)n);
        got += k;
    }
    return 0;
}

static int read_header(Idx *x, gzFile f, const char *path, int64_t *total)
{
    uint8_t head[4], dim[12];
    TRY(read_part(f, path, head, 4));
    if (head[0] != 0 || head[1] != 0 || head[2] != TYPE_U8 || head[3] < 1 || head[3] > 3)
        return err_user("%s: not an idx file of unsigned bytes with 1 to 3 dimensions", path);
    x->n_dim = head[3];
    TRY(read_part(f, path, dim, 4 * x->n_dim));
    *total = 1;
    for (int i = 0; i < 3; i++) {
        const uint8_t *p = dim + 4 * i;
        x->dim[i]        = 1;
        if (i < x->n_dim) x->dim[i] = (int64_t)p[0] << 24 | p[1] << 16 | p[2] << 8 | p[3];
        if (x->dim[i] > 0 && *total > IDX_BYTES_MOST / x->dim[i])
            return err_user("%s: its header promises over 16 GiB", path);
        *total *= x->dim[i];
    }
    return 0;
}

/* deflate makes at most 1032 bytes of one: a header that promises more is refused before memory is taken. */
static int load(Idx *x, gzFile f, const char *path)
{
    int64_t total = 0, size = file_size(path);
    uint8_t more;
    TRY(size < 0 ? -1 : 0);
    TRY(read_header(x, f, path, &total));
    if (total / 1032 > size)
        return err_user("%s: truncated: its header promises %lld bytes", path, (long long)total);
    x->data = mem_alloc((size_t)total + 1);
    if (!x->data) return err_sys("%s: %lld bytes", path, (long long)total);
    TRY(read_part(f, path, x->data, total));
    int k = gzread(f, &more, 1);
    if (k > 0) return err_user("%s: has bytes behind its last item", path);
    int why;
    if (k < 0) return err_user("%s: %s", path, gzerror(f, &why));
    return 0;
}

int idx_load(Idx *out, const char *path)
{
    memset(out, 0, sizeof *out);
    if (file_kind(path) != FILE_REGULAR) return err_user("%s: no such file", path);
    gzFile f = open_gz(path);
    if (!f) return -1;
    int rc = load(out, f, path);
    /* A gzip stream that ends early shows here. */
    if (gzclose_r(f) != Z_OK && rc == 0) rc = err_user("%s: its gzip stream is damaged", path);
    if (rc < 0) idx_deinit(out);
    return rc;
}

void idx_deinit(Idx *x)
{
    free(x->data);
    memset(x, 0, sizeof *x);
}

int idx_is_magic(const char *path)
{
    uint8_t head[4] = { 1 };
    if (file_kind(path) != FILE_REGULAR) return 0;
    gzFile f = gzopen(path, "rb");
    if (!f) return 0;
    int n = gzread(f, head, 4);
    gzclose_r(f);
    return n == 4 && head[0] == 0 && head[1] == 0 && head[2] == TYPE_U8 && head[3] >= 1 && head[3] <= 3;
}
