#include "ckpt/ckpt_state.h"

#include "base/err.h"
#include "base/str.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char ckpt_format[] = "brim-checkpoint";

const char *const ckpt_file_name[CKPT_FILES] = {
    [CKPT_MODEL] = "model.safetensors", [CKPT_OPTIM] = "optim.safetensors"
};

/* ---- Fields -------------------------------------------------------------------------------------------- */

/* FIELD_COUNT: an i64 that is not negative. */
typedef enum { FIELD_COUNT, FIELD_I64, FIELD_I32, FIELD_U64, FIELD_F32, FIELD_F64 } FieldType;

typedef struct {
    const char *name;
    FieldType   type;
    size_t      offset; /* in CkptState */
} Field;

/* clang-format off */
#define FIELD(type, field) { #field, type, offsetof(CkptState, field) }
#define IN(type, field)    { #field, type, offsetof(CkptState, device.in.field) }
#define OUT(type, field)   { #field, type, offsetof(CkptState, device.out.field) }
#define SLOT0_INV          { "inv_targets", FIELD_F32, offsetof(CkptState, device.in.inv[0]) }
#define SLOT0_SUM          { "loss_sum", FIELD_F64, offsetof(CkptState, device.out.sum[0]) }
/* clang-format on */

static const Field run_fields[] = {
    FIELD(FIELD_COUNT, step),        FIELD(FIELD_COUNT, next_sample),     FIELD(FIELD_U64, seed),
    FIELD(FIELD_COUNT, micro_batch), FIELD(FIELD_COUNT, recompute_level), FIELD(FIELD_COUNT, threads),
    FIELD(FIELD_F64, best_val),      FIELD(FIELD_COUNT, bad_evals),       FIELD(FIELD_F64, elapsed_s),
};

/* Not in checkpoints of older programs, which wrote version 1 too: 0 when missing. */
static const Field late_fields[] = { FIELD(FIELD_F64, step_s),       FIELD(FIELD_COUNT, head_rows),
                                     FIELD(FIELD_COUNT, train_size), FIELD(FIELD_COUNT, val_size),
                                     FIELD(FIELD_U64, train_hash),   FIELD(FIELD_U64, val_hash) };

static const char *const stop_name[CKPT_STOPS] = {
    [CKPT_STOP_NONE] = "", [CKPT_STOP_TARGET] = "target", [CKPT_STOP_PATIENCE] = "patience"
};

static const Field in_fields[] = {
    IN(FIELD_I64, step), IN(FIELD_U64, seed), IN(FIELD_F32, lr), SLOT0_INV, IN(FIELD_F32, loss_scale),
};

static const Field out_fields[] = {
    SLOT0_SUM,
    OUT(FIELD_F64, grad_sumsq),
    OUT(FIELD_F64, loss_ema),
    OUT(FIELD_F32, loss),
    OUT(FIELD_F32, grad_norm),
    OUT(FIELD_F32, clip),
    OUT(FIELD_F32, bias1),
    OUT(FIELD_F32, bias2),
    OUT(FIELD_I32, skip),
    OUT(FIELD_I32, n_update),
    OUT(FIELD_I32, n_skipped),
    OUT(FIELD_I32, n_skip_row),
};

/* The other losses of a step, and what came later. One that is zero is not written, and zero when missing. */
/* clang-format off */
#define SLOT(i) { "inv_" #i, FIELD_F32, offsetof(CkptState, device.in.inv[i]) }, \
                { "sum_" #i, FIELD_F64, offsetof(CkptState, device.out.sum[i]) }, \
                { "report_" #i, FIELD_F64, offsetof(CkptState, device.out.report[i]) }
/* clang-format on */
static const Field slot_fields[] = {
    { "report_0", FIELD_F64, offsetof(CkptState, device.out.report[0]) },
    OUT(FIELD_I32, n_report),
    OUT(FIELD_I32, stop),
    OUT(FIELD_I32, scale_exp),
    OUT(FIELD_I32, n_scaled),
    OUT(FIELD_I32, n_overflow),
    SLOT(1),
    SLOT(2),
    SLOT(3),
    SLOT(4),
    SLOT(5),
    SLOT(6),
    SLOT(7),
};
_Static_assert(LOSS_SLOTS == 8, "a row for each slot");

/* ---- Numbers as text ----------------------------------------------------------------------------------- */

enum { NUMBER_TEXT = 48 };

static void format_f64(char *buf, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isfinite(x)) {
        snprintf(buf, NUMBER_TEXT, "%a", x);
    } else {
        snprintf(buf, NUMBER_TEXT, "bits:%016" PRIx64, bits);
    }
}

static void format_f32(char *buf, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isfinite(x)) {
        snprintf(buf, NUMBER_TEXT, "%a", (double)x);
    } else {
        snprintf(buf, NUMBER_TEXT, "bits:%08" PRIx32, bits);
    }
}

/* Parsers accept exactly what the formatters write: the number is written again and compared. */
static int parse_u64(const char *text, uint64_t *out)
{
    char again[NUMBER_TEXT];
    *out = strtoull(text, NULL, 16);
    snprintf(again, sizeof again, "0x%016" PRIx64, *out);
    return strcmp(text, again) == 0 ? 0 : -1;
}

static int parse_f64(const char *text, double *out)
{
    char again[NUMBER_TEXT];
    if (str_starts_with(text, "bits:")) {
        uint64_t bits = strtoull(text + 5, NULL, 16);
        memcpy(out, &bits, sizeof bits);
    } else {
        *out = strtod(text, NULL);
    }
    format_f64(again, *out);
    return strcmp(text, again) == 0 ? 0 : -1;
}

static int parse_f32(const char *text, float *out)
{
    char again[NUMBER_TEXT];
    if (str_starts_with(text, "bits:")) {
        uint32_t bits = (uint32_t)strtoul(text + 5, NULL, 16);
        memcpy(out, &bits, sizeof bits);
    } else {
        *out = strtof(text, NULL);
    }
    format_f32(again, *out);
    return strcmp(text, again) == 0 ? 0 : -1;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

static void put_u64(JsonOut *o, const char *key, uint64_t x)
{
    char buf[NUMBER_TEXT];
    snprintf(buf, sizeof buf, "0x%016" PRIx64, x);
    json_out_str(o, key, buf);
}

static void put_fields(JsonOut *o, const CkptState *s, const Field *field, int n)
{
    char buf[NUMBER_TEXT];
    for (int i = 0; i < n; i++) {
        const Field *f = &field[i];
        const void  *p = (const char *)s + f->offset;
        switch (f->type) {
        case FIELD_COUNT:
        case FIELD_I64: json_out_int(o, f->name, *(const int64_t *)p); break;
        case FIELD_I32: json_out_int(o, f->name, *(const int32_t *)p); break;
        case FIELD_U64: put_u64(o, f->name, *(const uint64_t *)p); break;
        case FIELD_F32:
            format_f32(buf, *(const float *)p);
            json_out_str(o, f->name, buf);
            break;
        case FIELD_F64:
            format_f64(buf, *(const double *)p);
            json_out_str(o, f->name, buf);
            break;
        }
    }
}

static int is_zero(const CkptState *s, const Field *f)
{
    static const char zero[8];
    size_t            n = f->type == FIELD_F32 || f->type == FIELD_I32 ? 4 : 8;
    return memcmp((const char *)s + f->offset, zero, n) == 0;
}

static void put_file(JsonOut *o, const char *name, const CkptFile *f)
{
    json_out_object(o, name);
    json_out_int(o, "size_bytes", f->size_bytes);
    put_u64(o, "header_xxh64", f->header_hash);
    json_out_object(o, "tensor_xxh64");
    for (int i = 0; i < f->n_tensor; i++) put_u64(o, f->tensor[i].name, f->tensor[i].hash);
    json_out_close(o);
    json_out_close(o);
}

static void put_own(JsonOut *o, const CkptState *s)
{
    char text[2 * CKPT_OWN + 1];
    for (int i = 0; i < (int)s->own_bytes; i++) snprintf(text + 2 * i, 3, "%02x", s->own[i]);
    json_out_str(o, "own", text);
}

static void put_frozen(JsonOut *o, const CkptManifest *m)
{
    json_out_object(o, "frozen");
    for (int i = 0; i < m->n_frozen; i++) {
        json_out_object(o, m->frozen[i].prefix);
        json_out_str(o, "path", m->frozen[i].path);
        put_u64(o, "xxh64", m->frozen[i].hash);
        json_out_close(o);
    }
    json_out_close(o);
}

void ckpt_state_write(JsonOut *o, const CkptManifest *m)
{
    const CkptState *s = &m->state;
    json_out_object(o, NULL);
    json_out_str(o, "format", ckpt_format);
    json_out_int(o, "version", CKPT_VERSION);
    put_fields(o, s, run_fields, ARRAY_LEN(run_fields));
    put_fields(o, s, late_fields, ARRAY_LEN(late_fields));
    json_out_str(o, "stopped", stop_name[s->stopped]);
    json_out_object(o, "step_in");
    put_fields(o, s, in_fields, ARRAY_LEN(in_fields));
    json_out_close(o);
    json_out_object(o, "step_out");
    put_fields(o, s, out_fields, ARRAY_LEN(out_fields));
    for (int i = 0; i < ARRAY_LEN(slot_fields); i++) {
        if (!is_zero(s, &slot_fields[i])) put_fields(o, s, &slot_fields[i], 1);
    }
    json_out_close(o);
    json_out_array(o, "skip");
    for (int i = 0; i < s->n_skip; i++) {
        json_out_array(o, NULL);
        json_out_int(o, NULL, s->skip[i].first);
        json_out_int(o, NULL, s->skip[i].count);
        json_out_close(o);
    }
    json_out_close(o);
    if (s->own_bytes > 0) put_own(o, s);
    if (m->n_frozen > 0) put_frozen(o, m);
    json_out_object(o, "recipe");
    for (int i = 0; i < m->n_key; i++) json_out_str(o, m->key[i].key, m->key[i].text);
    json_out_close(o);
    json_out_object(o, "files");
    for (int i = 0; i < CKPT_FILES; i++) put_file(o, ckpt_file_name[i], &m->file[i]);
    json_out_close(o);
    json_out_close(o);
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static int read_field(void *p, FieldType type, const json_t *value)
{
    const char *text = json_string_value(value);
    int64_t     x    = json_integer_value(value);
    switch (type) {
    case FIELD_U64: return text ? parse_u64(text, (uint64_t *)p) : -1;
    case FIELD_F32: return text ? parse_f32(text, (float *)p) : -1;
    case FIELD_F64: return text ? parse_f64(text, (double *)p) : -1;
    case FIELD_I32: *(int32_t *)p = (int32_t)x; return json_is_integer(value) && x == (int32_t)x ? 0 : -1;
    case FIELD_I64: *(int64_t *)p = x; return json_is_integer(value) ? 0 : -1;
    case FIELD_COUNT: *(int64_t *)p = x; return json_is_integer(value) && x >= 0 ? 0 : -1;
    }
    return -1;
}

static int read_fields(CkptState *s, const json_t *map, const char *name, const Field *field, int n)
{
    for (int i = 0; i < n; i++) {
        const json_t *value = json_object_get(map, field[i].name);
        if (!value) return err_set("%s: no field %s", name, field[i].name);
        if (read_field((char *)s + field[i].offset, field[i].type, value) < 0) {
            return err_set("%s: field %s is not a number it can be", name, field[i].name);
        }
    }
    return 0;
}

/* Fields that may be missing. */
static int read_some(CkptState *s, const json_t *map, const char *name, const Field *field, int n)
{
    for (int i = 0; i < n; i++) {
        if (json_object_get(map, field[i].name)) TRY(read_fields(s, map, name, &field[i], 1));
    }
    return 0;
}

static int read_late(CkptState *s, const json_t *root, const char *name)
{
    TRY(read_some(s, root, name, late_fields, ARRAY_LEN(late_fields)));
    TRY(read_some(s, json_object_get(root, "step_out"), name, slot_fields, ARRAY_LEN(slot_fields)));
    const json_t *stopped = json_object_get(root, "stopped");
    const char   *text    = stopped ? json_string_value(stopped) : stop_name[CKPT_STOP_NONE];
    while (text && s->stopped < CKPT_STOPS && strcmp(text, stop_name[s->stopped]) != 0) s->stopped++;
    if (!text || s->stopped == CKPT_STOPS)
        return err_set("%s: field stopped is not a reason it can be", name);
    return 0;
}

static int read_skip(CkptState *s, const json_t *list, const char *name)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > CKPT_MAX_SKIP) return err_set("%s: no usable field skip", name);
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i), *a = json_array_get(pair, 0),
                     *b = json_array_get(pair, 1);
        int64_t first = json_integer_value(a), count = json_integer_value(b);
        if (json_array_size(pair) != 2 || !json_is_integer(a) || !json_is_integer(b) || first < 0 ||
            count < 1 || first > ORDER_MOST || count > ORDER_MOST) {
            return err_set("%s: skip range %zu is wrong", name, i);
        }
        s->skip[s->n_skip++] = (SampleRange){ first, count };
    }
    return 0;
}

static int read_own(CkptState *s, const json_t *root, const char *name)
{
    const json_t *value = json_object_get(root, "own");
    const char   *text  = json_string_value(value);
    if (!value) return 0;
    size_t n = text ? strlen(text) : 0;
    if (!text || n % 2 != 0 || n > 2 * CKPT_OWN || strspn(text, "0123456789abcdef") != n)
        return err_set("%s: field own is not bytes in hexadecimal", name);
    s->own_bytes = (int64_t)n / 2;
    for (size_t i = 0; i < n / 2; i++) {
        char byte[3] = { text[2 * i], text[2 * i + 1], 0 };
        s->own[i]    = (unsigned char)strtoul(byte, NULL, 16);
    }
    return 0;
}

static int read_frozen(CkptManifest *m, json_t *root, const char *name)
{
    const char *key;
    json_t     *value, *map = json_object_get(root, "frozen");
    if (!map) return 0;
    json_object_foreach(map, key, value)
    {
        const char *path = json_string_value(json_object_get(value, "path"));
        CkptFrozen *f    = &m->frozen[MIN(m->n_frozen, CKPT_MAX_FROZEN - 1)];
        if (m->n_frozen == CKPT_MAX_FROZEN || !path || !str_is_printable(key) || !str_is_printable(path) ||
            read_field(&f->hash, FIELD_U64, json_object_get(value, "xxh64")) < 0)
            return err_set("%s: field frozen is wrong", name);
        f->prefix = arena_strdup(&m->arena, key);
        f->path   = arena_strdup(&m->arena, path);
        m->n_frozen++;
    }
    return json_is_object(map) ? 0 : err_set("%s: field frozen is wrong", name);
}

static int read_keys(CkptManifest *m, json_t *map, const char *name)
{
    const char *key;
    json_t     *value;
    if (!json_is_object(map)) return err_set("%s: no field recipe", name);
    m->key = ARENA_ARRAY(&m->arena, CkptKey, json_object_size(map) + 1);
    json_object_foreach(map, key, value)
    {
        const char *text = json_string_value(value);
        if (!text || !str_is_printable(key) || !str_is_printable(text)) {
            return err_set("%s: field recipe holds something that is no value", name);
        }
        m->key[m->n_key++] = (CkptKey){ arena_strdup(&m->arena, key), arena_strdup(&m->arena, text) };
    }
    return 0;
}

static int read_file(CkptManifest *m, int which, const json_t *files, const char *name)
{
    const char *key;
    json_t     *value;
    CkptFile   *f    = &m->file[which];
    json_t     *map  = json_object_get(files, ckpt_file_name[which]);
    json_t     *list = json_object_get(map, "tensor_xxh64");
    if (!json_is_object(list) ||
        read_field(&f->size_bytes, FIELD_COUNT, json_object_get(map, "size_bytes")) < 0 ||
        read_field(&f->header_hash, FIELD_U64, json_object_get(map, "header_xxh64")) < 0) {
        return err_set("%s: no usable entry for %s", name, ckpt_file_name[which]);
    }
    f->tensor = ARENA_ARRAY(&m->arena, CkptTensor, json_object_size(list) + 1);
    json_object_foreach(list, key, value)
    {
        CkptTensor *t = &f->tensor[f->n_tensor++];
        t->name       = arena_strdup(&m->arena, key);
        if (!str_is_printable(key) || read_field(&t->hash, FIELD_U64, value) < 0) {
            return err_set("%s: a checksum of %s is wrong", name, ckpt_file_name[which]);
        }
    }
    return 0;
}

static int read_version(const json_t *root, const char *name)
{
    const char   *format  = json_string_value(json_object_get(root, "format"));
    const json_t *version = json_object_get(root, "version");
    int64_t       v       = json_integer_value(version);
    if (!format || strcmp(format, ckpt_format) != 0 || !json_is_integer(version) || v < 1) {
        return err_set("%s: not the state of a checkpoint", name);
    }
    if (v > CKPT_VERSION) {
        return err_user("%s: checkpoint version %lld; this program reads up to %d", name, (long long)v,
                        CKPT_VERSION);
    }
    return 0;
}

static int read_all(CkptManifest *m, json_t *root, const char *name)
{
    CkptState *s = &m->state;
    TRY(read_version(root, name));
    TRY(read_fields(s, root, name, run_fields, ARRAY_LEN(run_fields)));
    if (s->next_sample > ORDER_MOST) return err_set("%s: field next_sample is not a number it can be", name);
    TRY(read_late(s, root, name));
    TRY(read_fields(s, json_object_get(root, "step_in"), name, in_fields, ARRAY_LEN(in_fields)));
    TRY(read_fields(s, json_object_get(root, "step_out"), name, out_fields, ARRAY_LEN(out_fields)));
    TRY(read_skip(s, json_object_get(root, "skip"), name));
    TRY(read_own(s, root, name));
    TRY(read_frozen(m, root, name));
    TRY(read_keys(m, json_object_get(root, "recipe"), name));
    for (int i = 0; i < CKPT_FILES; i++) TRY(read_file(m, i, json_object_get(root, "files"), name));
    return 0;
}

int ckpt_state_parse(CkptManifest *m, const char *name, const char *text, size_t size_bytes)
{
    json_error_t why;
    char         buf[128];
    memset(m, 0, sizeof *m);
    arena_init(&m->arena);
    json_t *root = json_loadb(text, size_bytes, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return err_set("%s: damaged: %s", name, str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    int rc = read_all(m, root, name);
    json_decref(root);
    if (rc < 0) ckpt_state_deinit(m);
    return rc;
}

void ckpt_state_deinit(CkptManifest *m)
{
    arena_deinit(&m->arena);
    m->key      = NULL;
    m->n_key    = 0;
    m->n_frozen = 0;
    memset(m->file, 0, sizeof m->file);
}
