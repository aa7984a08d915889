#include "file/events.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Protobuf field numbers of event.proto, summary.proto and tensor.proto. */
enum {
    EVENT_WALL         = 1,
    EVENT_STEP         = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY      = 5,
    EVENT_SESSION_LOG  = 7,
    SESSION_STATUS     = 1,
    SESSION_START   = 1, /* the status: readers forget what earlier files have of this step and later ones */
    SUMMARY_VALUE   = 1,
    VALUE_TAG       = 1,
    VALUE_SIMPLE    = 2,
    VALUE_IMAGE     = 4,
    VALUE_TENSOR    = 8,
    VALUE_METADATA  = 9,
    IMAGE_HEIGHT    = 1,
    IMAGE_WIDTH     = 2,
    IMAGE_COLORS    = 3,
    IMAGE_BYTES     = 4,
    TENSOR_DTYPE    = 1,
    TENSOR_SHAPE    = 2,
    TENSOR_STRINGS  = 8,
    SHAPE_DIM       = 2,
    DIM_SIZE        = 1,
    METADATA_PLUGIN = 1,
    PLUGIN_NAME     = 1,
    DTYPE_STRING    = 7,
    WIRE_VARINT     = 0,
    WIRE_64         = 1,
    WIRE_BYTES      = 2,
    WIRE_32         = 5,
    RECORD_HEAD     = 12, /* length and its checksum */
    RECORD_FOOT     = 4,
    RECORD_MOST     = 64 << 20, /* larger ones are taken for damage */
    EVENT_FILES_A_SECOND = 100,
};

static const char events_prefix[] = "events.out.tfevents.";

typedef struct {
    unsigned char *data;
    size_t         len, cap;
    int            failed;
} Bytes;

struct EventWriter {
    char    path[1024];
    int     fd;
    Bytes   event, values, value, inner;
    double  wall_s;
    int64_t step;
};

/* ---- CRC-32C (Castagnoli, reflected) ------------------------------------------------------------------- */

uint32_t event_crc32c(const void *bytes, size_t n)
{
    const unsigned char *p   = (const unsigned char *)bytes;
    uint32_t             crc = 0xffffffffu;
    /* Four bits at a time: entry i is what the bits i, shifted out, put in. */
    static const uint32_t nibble[16] = { 0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1,
                                         0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
                                         0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                         0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75 };
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = (crc >> 4) ^ nibble[crc & 15];
        crc = (crc >> 4) ^ nibble[crc & 15];
    }
    return ~crc;
}

static uint32_t masked_crc(const void *bytes, size_t n)
{
    uint32_t crc = event_crc32c(bytes, n);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

/* ---- Protobuf, writing --------------------------------------------------------------------------------- */

static void put(Bytes *b, const void *data, size_t n)
{
    if (b->failed || n == 0) return;
    if (b->len + n > b->cap) {
        size_t         cap  = MAX(2 * b->cap, b->len + n + 1024);
        unsigned char *more = (unsigned char *)realloc(b->data, cap);
        if (!more) {
            b->failed = 1;
            return;
        }
        b->data = more;
        b->cap  = cap;
    }
    memcpy(b->data + b->len, data, n);
    b->len += n;
}

static void put_varint(Bytes *b, uint64_t x)
{
    unsigned char byte[10];
    size_t        n = 0;
    do {
        byte[n] = (unsigned char)((x & 127) | (x > 127 ? 128 : 0));
        n++;
        x >>= 7;
    } while (x);
    put(b, byte, n);
}

static void put_key(Bytes *b, int field, int wire) { put_varint(b, (uint64_t)field << 3 | (unsigned)wire); }

static void put_int(Bytes *b, int field, int64_t x)
{
    put_key(b, field, WIRE_VARINT);
    put_varint(b, (uint64_t)x);
}

static void put_bytes(Bytes *b, int field, const void *data, size_t n)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, n);
    put(b, data, n);
}

static void put_str(Bytes *b, int field, const char *s) { put_bytes(b, field, s, strlen(s)); }

/* A message that is complete in `part` becomes a field of b. */
static void put_part(Bytes *b, int field, Bytes *part)
{
    b->failed |= part->failed;
    put_bytes(b, field, part->data, part->len);
    part->len = 0;
}

static void put_double(Bytes *b, int field, double x)
{
    put_key(b, field, WIRE_64);
    put(b, &x, sizeof x);
}

/* ---- Records ------------------------------------------------------------------------------------------- */

static int write_all(EventWriter *w, const unsigned char *data, size_t n)
{
    off_t  before = lseek(w->fd, 0, SEEK_END);
    size_t done   = 0;
    while (done < n) {
        ssize_t got = fault_hit(FAULT_WRITE) ? -1 : write(w->fd, data + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            err_sys("%s: write", w->path);
            if (done > 0 && before >= 0 && ftruncate(w->fd, before) != 0)
                return -1; /* half a record stays: readers stop at it, and the next start cuts it off */
            return -1;
        }
        done += (size_t)got;
    }
    return 0;
}

/* Writes w->event as a record and empties it. */
static int write_record(EventWriter *w)
{
    Bytes   *e       = &w->event;
    uint64_t len     = e->len;
    uint32_t crc_len = masked_crc(&len, sizeof len), crc = masked_crc(e->data, e->len);
    Bytes    all = { 0 };
    put(&all, &len, sizeof len);
    put(&all, &crc_len, sizeof crc_len);
    put(&all, e->data, e->len);
    put(&all, &crc, sizeof crc);
    int rc =
        e->failed || all.failed ? err_set("%s: out of memory", w->path) : write_all(w, all.data, all.len);
    free(all.data);
    e->len    = 0;
    e->failed = 0;
    return rc;
}

void event_begin(EventWriter *w, double wall_s, int64_t step)
{
    w->wall_s     = wall_s;
    w->step       = step;
    w->values.len = 0;
}

static void end_value(EventWriter *w) { put_part(&w->values, SUMMARY_VALUE, &w->value); }

void event_scalar(EventWriter *w, const char *tag, double x)
{
    float f = (float)x;
    put_str(&w->value, VALUE_TAG, tag);
    put_key(&w->value, VALUE_SIMPLE, WIRE_32);
    put(&w->value, &f, sizeof f);
    end_value(w);
}

void event_text(EventWriter *w, const char *tag, const char *text)
{
    Bytes *v = &w->value, *in = &w->inner, name = { 0 }, dim = { 0 };
    put_str(v, VALUE_TAG, tag);
    put_str(&name, PLUGIN_NAME, "text");
    put_part(in, METADATA_PLUGIN, &name);
    put_part(v, VALUE_METADATA, in);
    put_int(&dim, DIM_SIZE, 1);
    put_part(&name, SHAPE_DIM, &dim);
    put_int(in, TENSOR_DTYPE, DTYPE_STRING);
    put_part(in, TENSOR_SHAPE, &name);
    put_str(in, TENSOR_STRINGS, text);
    put_part(v, VALUE_TENSOR, in);
    end_value(w);
    free(name.data);
    free(dim.data);
}

void event_image(EventWriter *w, const char *tag, const void *png, size_t size_bytes, int width, int height)
{
    Bytes *in = &w->inner;
    put_str(&w->value, VALUE_TAG, tag);
    put_int(in, IMAGE_HEIGHT, height);
    put_int(in, IMAGE_WIDTH, width);
    put_int(in, IMAGE_COLORS, 3);
    put_bytes(in, IMAGE_BYTES, png, size_bytes);
    put_part(&w->value, VALUE_IMAGE, in);
    end_value(w);
}

int event_end(EventWriter *w)
{
    put_double(&w->event, EVENT_WALL, w->wall_s);
    put_int(&w->event, EVENT_STEP, w->step);
    put_part(&w->event, EVENT_SUMMARY, &w->values);
    w->values.failed = w->value.failed = w->inner.failed = 0;
    return write_record(w);
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static int write_head(EventWriter *w, int64_t first_step)
{
    Bytes session = { 0 };
    put_double(&w->event, EVENT_WALL, clock_wall_s());
    put_str(&w->event, EVENT_FILE_VERSION, "brain.Event:2");
    TRY(write_record(w));
    put_int(&session, SESSION_STATUS, SESSION_START);
    put_double(&w->event, EVENT_WALL, clock_wall_s());
    put_int(&w->event, EVENT_STEP, first_step);
    put_part(&w->event, EVENT_SESSION_LOG, &session);
    free(session.data);
    return write_record(w);
}

/* Names sort by time and then by number: TensorBoard reads the files of a folder in the order of their
 * names. */
static int create_file(EventWriter *w, const char *folder)
{
    char host[64];
    if (gethostname(host, sizeof host) != 0) str_copy(host, sizeof host, "localhost");
    host[sizeof host - 1] = '\0';
    for (int i = 0; i < EVENT_FILES_A_SECOND; i++) {
        int n = snprintf(w->path, sizeof w->path, "%s/%s%010lld.%02d.%s", folder, events_prefix,
                         (long long)clock_wall_s(), i, host);
        if (n < 0 || n >= (int)sizeof w->path) return err_set("%s: path too long", folder);
        w->fd = fault_hit(FAULT_OPEN)
                    ? -1
                    : open(w->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (w->fd >= 0) return 0;
        if (errno != EEXIST) break;
    }
    return err_sys("%s", w->path);
}

EventWriter *event_writer_open(const char *folder, int64_t first_step)
{
    if (event_trim(folder, first_step) < 0) return NULL;
    EventWriter *w = (EventWriter *)mem_zeroed(1, sizeof *w);
    if (!w) {
        err_sys("%s: memory for events", folder);
        return NULL;
    }
    w->fd = -1;
    if (create_file(w, folder) == 0 && write_head(w, first_step) == 0) return w;
    event_writer_close(w);
    return NULL;
}

int event_writer_close(EventWriter *w)
{
    if (!w) return 0;
    int rc = w->fd >= 0 && close(w->fd) != 0 ? err_sys("%s: close", w->path) : 0;
    free(w->event.data);
    free(w->values.data);
    free(w->value.data);
    free(w->inner.data);
    free(w);
    return rc;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

typedef struct {
    const unsigned char *p, *end;
} Cursor;

typedef struct {
    int                  field, wire;
    uint64_t             number; /* varint, 64 and 32 bits */
    const unsigned char *data;   /* WIRE_BYTES */
    size_t               n;
} Field;

static int get_varint(Cursor *c, uint64_t *x)
{
    *x = 0;
    for (int shift = 0; shift < 64 && c->p < c->end; shift += 7) {
        unsigned char byte = *c->p++;
        *x |= (uint64_t)(byte & 127) << shift;
        if (!(byte & 128)) return 0;
    }
    return -1;
}

static int get_fixed(Cursor *c, size_t n, uint64_t *x)
{
    if ((size_t)(c->end - c->p) < n) return -1;
    *x = 0;
    memcpy(x, c->p, n);
    c->p += n;
    return 0;
}

/* 1: a field, 0: the end, negative: damaged. */
static int get_field(Cursor *c, Field *f)
{
    uint64_t key;
    if (c->p == c->end) return 0;
    if (get_varint(c, &key) < 0 || key >> 3 == 0 || key >> 3 > 1 << 29) return -1;
    *f = (Field){ .field = (int)(key >> 3), .wire = (int)(key & 7) };
    switch (f->wire) {
    case WIRE_VARINT: return get_varint(c, &f->number) < 0 ? -1 : 1;
    case WIRE_64: return get_fixed(c, 8, &f->number) < 0 ? -1 : 1;
    case WIRE_32: return get_fixed(c, 4, &f->number) < 0 ? -1 : 1;
    case WIRE_BYTES:
        if (get_varint(c, &f->number) < 0 || f->number > (uint64_t)(c->end - c->p)) return -1;
        f->data = c->p;
        f->n    = (size_t)f->number;
        c->p += f->n;
        return 1;
    default: return -1;
    }
}

int64_t event_parse(const unsigned char *bytes, size_t n, EventRecord *out)
{
    uint64_t len;
    uint32_t crc;
    *out = (EventRecord){ 0 };
    if (n < RECORD_HEAD) return 0;
    memcpy(&len, bytes, sizeof len);
    memcpy(&crc, bytes + 8, sizeof crc);
    if (crc != masked_crc(bytes, 8) || len > RECORD_MOST) return -1;
    if (n - RECORD_HEAD < len + RECORD_FOOT) return 0;
    memcpy(&crc, bytes + RECORD_HEAD + len, sizeof crc);
    if (crc != masked_crc(bytes + RECORD_HEAD, (size_t)len)) return -1;
    Cursor c = { bytes + RECORD_HEAD, bytes + RECORD_HEAD + len };
    Field  f;
    int    rc;
    while ((rc = get_field(&c, &f)) > 0) {
        if (f.field == EVENT_WALL && f.wire == WIRE_64) memcpy(&out->wall_s, &f.number, 8);
        if (f.field == EVENT_STEP && f.wire == WIRE_VARINT) out->step = (int64_t)f.number;
        if (f.field == EVENT_SUMMARY && f.wire == WIRE_BYTES) {
            out->summary   = f.data;
            out->n_summary = f.n;
        }
    }
    return rc < 0 ? -1 : (int64_t)(RECORD_HEAD + len + RECORD_FOOT);
}

/* Bytes of the field `want` in the message. */
static size_t length_of(const Field *message, int want)
{
    Cursor c = { message->data, message->data + message->n };
    Field  f;
    while (get_field(&c, &f) > 0) {
        if (f.field == want && f.wire == WIRE_BYTES) return f.n;
    }
    return 0;
}

int event_next_value(const EventRecord *r, size_t *at, EventValue *out)
{
    if (!r->summary || *at > r->n_summary) return 0;
    Cursor c = { r->summary + *at, r->summary + r->n_summary };
    Field  value, f;
    *out   = (EventValue){ .tag = "" };
    int rc = get_field(&c, &value);
    *at    = (size_t)(c.p - r->summary);
    if (rc <= 0) return rc;
    if (value.field != SUMMARY_VALUE || value.wire != WIRE_BYTES) return -1;
    Cursor in = { value.data, value.data + value.n };
    while ((rc = get_field(&in, &f)) > 0) {
        if (f.field == VALUE_SIMPLE && f.wire == WIRE_32) {
            out->has_scalar = 1;
            memcpy(&out->scalar, &f.number, 4);
        } else if (f.wire == WIRE_BYTES && f.field == VALUE_TAG) {
            out->tag   = (const char *)f.data;
            out->n_tag = f.n;
        } else if (f.wire == WIRE_BYTES && f.field == VALUE_IMAGE) {
            out->n_image = length_of(&f, IMAGE_BYTES);
        } else if (f.wire == WIRE_BYTES && f.field == VALUE_TENSOR) {
            out->n_text = length_of(&f, TENSOR_STRINGS);
        }
    }
    return rc < 0 ? -1 : 1;
}

/* ---- Trimming ------------------------------------------------------------------------------------------ */

/* Where the first record of first_step or later begins, or the first that is damaged or cut short. */
static size_t keep_bytes(const unsigned char *bytes, size_t n, int64_t first_step)
{
    size_t at = 0;
    while (at < n) {
        EventRecord r;
        int64_t     len = event_parse(bytes + at, n - at, &r);
        if (len <= 0 || (r.summary && r.step >= first_step)) break;
        at += (size_t)len;
    }
    return at;
}

/* A link, or a file with a second name, is left as it is: a file elsewhere would be cut. */
static int64_t trim_file(const char *path, int64_t first_step)
{
    FileMap map;
    char    why[1280];
    if (file_foreign(path, 0, why, sizeof why)) {
        log_warn("%s", why);
        return 0;
    }
    TRY(file_map(&map, path));
    size_t size = map.size_bytes, keep = keep_bytes((const unsigned char *)map.data, size, first_step);
    file_unmap(&map);
    if (keep == size) return 0;
    int fd = file_open_own(path, O_WRONLY, why, sizeof why);
    if (fd < 0) return err_set("%s", why);
    int rc = ftruncate(fd, (off_t)keep) == 0 ? 0 : err_sys("%s: truncate", path);
    close(fd);
    return rc < 0 ? -1 : (int64_t)(size - keep);
}

int64_t event_trim(const char *folder, int64_t first_step)
{
    Arena   arena;
    char  **names, path[1024];
    int64_t gone = 0;
    arena_init(&arena);
    int n = file_list(&arena, folder, "", &names);
    for (int i = 0; i < n && gone >= 0; i++) {
        if (!str_starts_with(names[i], events_prefix)) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, names[i]) >= (int)sizeof path) continue;
        int64_t cut = trim_file(path, first_step);
        gone        = cut < 0 ? -1 : gone + cut;
    }
    arena_deinit(&arena);
    return n < 0 ? -1 : gone;
}
