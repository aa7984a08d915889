#include "file/safetensors.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "file/safetensors_impl.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "payloads are written as they lie in memory");

struct SafeWriter {
    char          path[PATH_MAX];
    FILE         *file;
    XXH64_state_t hash; /* of the file so far */
    uint64_t      header_hash;
    int64_t       done_bytes, file_bytes;
};

static size_t tensor_size(const SafeTensor *t)
{
    int64_t n = 1;
    CHECK(t->ndim >= 0 && t->ndim <= SAFETENSORS_MAX_DIM, "%s: %d dimensions", t->name, t->ndim);
    for (int i = 0; i < t->ndim; i++) n *= t->dim[i];
    return (size_t)n * dtype_bytes(t->dtype);
}

static void put_meta(JsonOut *o, const SafeMeta *meta, int n_meta)
{
    json_out_object(o, "__metadata__");
    for (int i = 0; i < n_meta; i++) json_out_str(o, meta[i].key, meta[i].text);
    json_out_close(o);
}

/* Returns the end of the tensor in the buffer. */
static int64_t put_tensor(JsonOut *o, const SafeTensor *t, int64_t begin)
{
    int64_t end = begin + (int64_t)tensor_size(t);
    json_out_object(o, t->name);
    json_out_str(o, "dtype", safetensors_dtype[t->dtype]);
    json_out_array(o, "shape");
    for (int i = 0; i < t->ndim; i++) json_out_int(o, NULL, t->dim[i]);
    json_out_close(o);
    json_out_array(o, "data_offsets");
    json_out_int(o, NULL, begin);
    json_out_int(o, NULL, end);
    json_out_close(o);
    json_out_close(o);
    return end;
}

/* Room for the header: a byte of a name takes at most 6 in JSON, and what surrounds it fewer than 512. */
static size_t header_room(const SafeTensor *t, int n, const SafeMeta *meta, int n_meta)
{
    size_t room = 64;
    for (int i = 0; i < n; i++) room += 6 * strlen(t[i].name) + 512;
    for (int i = 0; i < n_meta; i++) room += 6 * (strlen(meta[i].key) + strlen(meta[i].text)) + 16;
    return room;
}

static int write_header(SafeWriter *w, const SafeTensor *t, int n, const SafeMeta *meta, int n_meta)
{
    size_t room = header_room(t, n, meta, n_meta);
    char  *text = fault_hit(FAULT_MALLOC) ? NULL : (char *)malloc(8 + room + 8);
    if (!text) return err_sys("%s: memory for its header", w->path);
    JsonOut o;
    int64_t end = 0;
    json_out_init_buf(&o, text + 8, room);
    json_out_object(&o, NULL);
    if (n_meta > 0) put_meta(&o, meta, n_meta);
    for (int i = 0; i < n; i++) end = put_tensor(&o, &t[i], end);
    int rc = json_out_end(&o);
    if (rc == 0) {
        size_t len = o.len;
        while (len % 8 != 0) text[8 + len++] = ' ';
        for (int i = 0; i < 8; i++) text[i] = (char)((uint64_t)len >> (8 * i) & 255);
        w->file_bytes  = 8 + (int64_t)len + end;
        w->header_hash = XXH64(text, 8 + len, 0);
        rc             = len > SAFETENSORS_MAX_HEADER ? err_set("%s: too many tensors for one file", w->path)
                                                      : safetensors_write_data(w, text, 8 + len);
    }
    free(text);
    return rc;
}

SafeWriter *safetensors_write_begin(const char *path, const SafeTensor *tensor, int n_tensor,
                                    const SafeMeta *meta, int n_meta)
{
    SafeWriter *w = fault_hit(FAULT_MALLOC) ? NULL : (SafeWriter *)calloc(1, sizeof *w);
    if (!w) {
        err_sys("%s: memory for its writer", path);
        return NULL;
    }
    XXH64_reset(&w->hash, 0);
    int rc = str_copy(w->path, sizeof w->path, path) < 0 ? err_set("%s: path too long", path) : 0;
    if (rc == 0) rc = (w->file = file_create_tmp(path)) != NULL ? 0 : -1;
    if (rc == 0) rc = write_header(w, tensor, n_tensor, meta, n_meta);
    if (rc < 0) safetensors_write_discard(&w);
    return w;
}

int safetensors_write_data(SafeWriter *w, const void *data, size_t size_bytes)
{
    w->done_bytes += (int64_t)size_bytes;
    CHECK(w->done_bytes <= w->file_bytes, "%s: more bytes than its tensors have", w->path);
    XXH64_update(&w->hash, data, size_bytes);
    if (file_write(w->file, data, size_bytes) == 0) return 0;
    int cause = errno;
    err_clear(); /* file_write() names the file where links lead to, not as the user did */
    errno = cause;
    return err_sys("%s: write", w->path);
}

int safetensors_write_publish(SafeWriter **w, SafeSums *sums)
{
    SafeWriter *s = *w;
    CHECK(s->done_bytes == s->file_bytes, "%s: %lld of %lld bytes were written", s->path,
          (long long)s->done_bytes, (long long)s->file_bytes);
    if (sums) *sums = (SafeSums){ XXH64_digest(&s->hash), s->header_hash, s->file_bytes };
    int rc = file_publish(&s->file, s->path);
    safetensors_write_discard(w);
    return rc;
}

void safetensors_write_discard(SafeWriter **w)
{
    if (!*w) return;
    file_discard(&(*w)->file);
    free(*w);
    *w = NULL;
}
