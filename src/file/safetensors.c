/* The reader. The writer is safetensors_write.c. */
#include "file/safetensors.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/str.h"
#include "file/safetensors_impl.h"
#include "tensor/number.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

const char *const safetensors_dtype[DT_COUNT] = {
    [DT_F32] = "F32", [DT_BF16] = "BF16", [DT_F16] = "F16", [DT_E4M3] = "F8_E4M3", [DT_E5M2] = "F8_E5M2",
    [DT_I32] = "I32", [DT_I64] = "I64",   [DT_U8] = "U8",   [DT_F64] = "F64",
};

/* ---- One entry of the header --------------------------------------------------------------------------- */

static int entry_dtype(const SafeFile *f, SafeTensor *t, const json_t *entry)
{
    char        buf[64];
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    if (!text) return err_set("%s: tensor %s: no dtype", f->path, t->name);
    for (int i = 0; i < DT_COUNT; i++) {
        if (strcmp(text, safetensors_dtype[i]) == 0) {
            t->dtype = (DType)i;
            return 0;
        }
    }
    return err_set("%s: tensor %s: dtype %s is not supported", f->path, t->name,
                   str_quote(buf, sizeof buf, text, strlen(text)));
}

static int entry_shape(const SafeFile *f, SafeTensor *t, const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape");
    size_t        n     = json_array_size(shape);
    if (!json_is_array(shape)) return err_set("%s: tensor %s: no shape", f->path, t->name);
    if (n > SAFETENSORS_MAX_DIM) return err_set("%s: tensor %s: %zu dimensions", f->path, t->name, n);
    t->ndim   = (int)n;
    t->n_elem = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(shape, i);
        t->dim[i]       = json_integer_value(d);
        if (!json_is_integer(d) || t->dim[i] < 0)
            return err_set("%s: tensor %s: bad dimension", f->path, t->name);
        if (__builtin_mul_overflow(t->n_elem, t->dim[i], &t->n_elem)) {
            return err_set("%s: tensor %s: shape too large", f->path, t->name);
        }
    }
    return 0;
}

static int entry_offsets(const SafeFile *f, SafeTensor *t, const json_t *entry)
{
    const json_t *pair = json_object_get(entry, "data_offsets");
    const json_t *b = json_array_get(pair, 0), *e = json_array_get(pair, 1);
    if (json_array_size(pair) != 2 || !json_is_integer(b) || !json_is_integer(e)) {
        return err_set("%s: tensor %s: no data_offsets", f->path, t->name);
    }
    int64_t begin = json_integer_value(b), end = json_integer_value(e),
            buffer = f->file_bytes - f->header_bytes, need;
    if (begin < 0 || end < begin || end > buffer) {
        return err_set("%s: tensor %s: bytes %lld to %lld lie outside the file's %lld: truncated or damaged",
                       f->path, t->name, (long long)begin, (long long)end, (long long)buffer);
    }
    if (__builtin_mul_overflow(t->n_elem, (int64_t)dtype_bytes(t->dtype), &need) || need != end - begin) {
        return err_set("%s: tensor %s: %lld bytes do not hold its shape", f->path, t->name,
                       (long long)(end - begin));
    }
    t->offset     = f->header_bytes + begin;
    t->size_bytes = (size_t)(end - begin);
    return 0;
}

/* ---- The header ---------------------------------------------------------------------------------------- */

static int parse_meta(SafeFile *f, json_t *map)
{
    const char *key;
    json_t     *value;
    if (!json_is_object(map)) return err_set("%s: __metadata__ is not a map", f->path);
    f->meta = ARENA_ARRAY(&f->arena, SafeMeta, json_object_size(map) + 1);
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value))
            return err_set("%s: __metadata__ holds something that is not text", f->path);
        f->meta[f->n_meta++] =
            (SafeMeta){ arena_strdup(&f->arena, key), arena_strdup(&f->arena, json_string_value(value)) };
    }
    return 0;
}

static int compare_offset(const void *a, const void *b)
{
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->size_bytes != y->size_bytes) return x->size_bytes < y->size_bytes ? -1 : 1; /* empty ones first */
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp((*(const SafeTensor *const *)a)->name, (*(const SafeTensor *const *)b)->name);
}

/* Sorts by place and refuses holes and overlaps. */
static int check_tiling(SafeFile *f)
{
    int64_t at = f->header_bytes;
    qsort(f->tensor, (size_t)f->n_tensor, sizeof *f->tensor, compare_offset);
    for (int i = 0; i < f->n_tensor; i++) {
        const SafeTensor *t = &f->tensor[i];
        if (t->offset != at) {
            return err_set("%s: tensor %s: %s", f->path, t->name,
                           t->offset < at ? "overlaps another" : "a hole lies before it");
        }
        at += (int64_t)t->size_bytes;
    }
    if (at != f->file_bytes) {
        return err_set("%s: %lld bytes follow the last tensor", f->path, (long long)(f->file_bytes - at));
    }
    f->by_name = ARENA_ARRAY(&f->arena, const SafeTensor *, f->n_tensor + 1);
    for (int i = 0; i < f->n_tensor; i++) f->by_name[i] = &f->tensor[i];
    qsort(f->by_name, (size_t)f->n_tensor, sizeof *f->by_name, compare_name);
    return 0;
}

static int parse_entries(SafeFile *f, json_t *root)
{
    const char *key;
    json_t     *value;
    f->tensor = ARENA_ARRAY(&f->arena, SafeTensor, json_object_size(root) + 1);
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) {
            TRY(parse_meta(f, value));
            continue;
        }
        char        buf[128];
        SafeTensor *t = &f->tensor[f->n_tensor++];
        t->name       = arena_strdup(&f->arena, key);
        if (!str_is_printable(key)) {
            return err_set("%s: tensor name %s is not printable", f->path,
                           str_quote(buf, sizeof buf, key, strlen(key)));
        }
        TRY(entry_dtype(f, t, value));
        TRY(entry_shape(f, t, value));
        TRY(entry_offsets(f, t, value));
    }
    return check_tiling(f);
}

/* Verifies the first 8 bytes: the length of the JSON that follows. */
static int parse_length(SafeFile *f, const unsigned char length[8])
{
    uint64_t n = 0;
    for (int i = 0; i < 8; i++) n |= (uint64_t)length[i] << (8 * i);
    if (n > SAFETENSORS_MAX_HEADER) {
        return err_set("%s: not a safetensors file: a header of %llu bytes", f->path, (unsigned long long)n);
    }
    if (n > (uint64_t)f->file_bytes - 8) {
        return err_set("%s: truncated: a header of %llu bytes in a file of %lld", f->path,
                       (unsigned long long)n, (long long)f->file_bytes);
    }
    f->header_bytes = 8 + (int64_t)n;
    return 0;
}

static int parse_header(SafeFile *f, const unsigned char *header)
{
    json_error_t why;
    size_t       n = (size_t)f->header_bytes - 8;
    char         buf[128];
    f->header_hash = XXH64(header, (size_t)f->header_bytes, 0);
    if (n < 2 || header[8] != '{') return err_set("%s: its header is not a JSON map", f->path);
    json_t *root = json_loadb((const char *)header + 8, n, JSON_REJECT_DUPLICATES, &why);
    if (!root) {
        return err_set("%s: its header is damaged: %s", f->path,
                       str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    }
    int rc = parse_entries(f, root);
    json_decref(root);
    return rc;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static void safe_init(SafeFile *f, const char *path)
{
    memset(f, 0, sizeof *f);
    arena_init(&f->arena);
    f->path = arena_strdup(&f->arena, path);
}

int safetensors_parse(SafeFile *f, const char *name, const void *bytes, size_t size_bytes)
{
    safe_init(f, name);
    f->file_bytes = (int64_t)size_bytes;
    int rc        = size_bytes < 8 ? err_set("%s: truncated: %zu bytes", name, size_bytes) : 0;
    if (rc == 0) rc = parse_length(f, (const unsigned char *)bytes);
    if (rc == 0) rc = parse_header(f, (const unsigned char *)bytes);
    if (rc < 0) safetensors_close(f);
    return rc;
}

static int open_file(SafeFile *f)
{
    struct stat st;
    /* O_NONBLOCK: opening a pipe without a writer would hang before fstat could refuse the pipe. */
    f->fd = fault_hit(FAULT_OPEN) ? -1 : open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0) return err_sys("%s", f->path);
    f->is_open = 1;
    if (fstat(f->fd, &st) != 0) return err_sys("%s", f->path);
    if (!S_ISREG(st.st_mode)) return err_set("%s: not a regular file", f->path);
    f->file_bytes = st.st_size;
    return 0;
}

static int read_header(SafeFile *f)
{
    unsigned char length[8];
    if (f->file_bytes < 8) return err_set("%s: truncated: %lld bytes", f->path, (long long)f->file_bytes);
    TRY(safetensors_read(f, 0, length, sizeof length));
    TRY(parse_length(f, length));
    size_t         n      = (size_t)f->header_bytes;
    unsigned char *header = fault_hit(FAULT_MALLOC) ? NULL : (unsigned char *)malloc(n);
    if (!header) return err_sys("%s: memory for a header of %zu bytes", f->path, n);
    int rc = safetensors_read(f, 0, header, n);
    if (rc == 0) rc = parse_header(f, header);
    free(header);
    return rc;
}

int safetensors_open(SafeFile *f, const char *path)
{
    safe_init(f, path);
    int rc = open_file(f);
    if (rc == 0) rc = read_header(f);
    if (rc < 0) safetensors_close(f);
    return rc;
}

void safetensors_close(SafeFile *f)
{
    if (f->is_open) close(f->fd);
    arena_deinit(&f->arena);
    memset(f, 0, sizeof *f);
}

const SafeTensor *safetensors_find(const SafeFile *f, const char *name)
{
    if (f->n_tensor == 0) return NULL;
    const SafeTensor         key  = { .name = name };
    const SafeTensor        *pkey = &key;
    const SafeTensor *const *hit  = (const SafeTensor *const *)bsearch(&pkey, f->by_name, (size_t)f->n_tensor,
                                                                       sizeof *f->by_name, compare_name);
    return hit ? *hit : NULL;
}

int safetensors_read(const SafeFile *f, int64_t offset, void *out, size_t size_bytes)
{
    CHECK(f->is_open, "%s is not open", f->path);
    return file_read_at(f->fd, f->path, out, size_bytes, offset);
}

/* ---- Widening ------------------------------------------------------------------------------------------ */

int safetensors_read_f32(const SafeFile *f, const SafeTensor *t, int64_t first, int64_t n_elem, float *out)
{
    CHECK(first >= 0 && n_elem >= 0 && first <= t->n_elem - n_elem, "%s: outside the tensor", t->name);
    if (t->dtype == DT_F32) return safetensors_read(f, t->offset + 4 * first, out, 4 * (size_t)n_elem);
    if (t->dtype != DT_BF16 && t->dtype != DT_F16) {
        return err_set("%s: tensor %s: %s cannot be read as f32", f->path, t->name,
                       safetensors_dtype[t->dtype]);
    }
    /* The 2-byte numbers go into the upper half of out; widening upwards never overtakes what is still to
     * be read. */
    char *half = (char *)out + 2 * n_elem;
    TRY(safetensors_read(f, t->offset + 2 * first, half, 2 * (size_t)n_elem));
    number_convert(DT_F32, out, t->dtype, half, n_elem);
    return 0;
}
