/* A checkpoint as a Hugging Face folder: config.json, safetensors, and what lies beside them.
 *
 * 1. Numbers keep their bits unless another type is asked for.
 * 2. One model.safetensors up to SHARD_BYTES, else shards with an index, as transformers names them. A folder
 *    with weights of other names is refused: a reader would take those.
 * 3. The files are written into a folder of their own first. They move into place once all are there,
 *    config.json last, so an export that fails leaves what was there before. */
#include "task/hf_export.h"

#include "base/err.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "file/hf.h"
#include "net/param.h"
#include "tensor/number.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, MOST_SHARDS = 4096 };
#define SHARD_BYTES (5000000000LL)

/* One of their tensors: rows [row0, row0 + rows) of one of ours. */
typedef struct {
    SafeTensor        spec;
    const SafeTensor *ours; /* NULL: zeros */
    int64_t           row0, rows, cols;
    int               ndim; /* of ours */
    HfForm            form;
    int               shard;
} Piece;

typedef struct {
    const Recipe     *r;
    const TaskExport *opt;
    const HfExport   *what;
    HfConfig          config;
    const HfMap      *map;
    SafeFile          from;
    Arena             arena;
    Piece            *piece;
    int               n_piece, n_shard;
    char              tmp[PATH_MAX]; /* in opt->out */
} Export;

/* ---- What is written ----------------------------------------------------------------------------------- */

static const char *const dtype_text[DT_COUNT] = {
    [DT_F32] = "float32", [DT_BF16] = "bfloat16", [DT_F16] = "float16"
};

/* As `precision` spells them. */
static const char *const dtype_short[DT_COUNT] = { [DT_F32] = "fp32", [DT_BF16] = "bf16", [DT_F16] = "fp16" };

/* The type named on the command line; -1: none. Negative below that after err_user(). */
static int dtype_asked(const char *text)
{
    if (!text) return -1;
    for (int i = 0; i < DT_COUNT; i++) {
        if (dtype_text[i] && (strcmp(text, dtype_text[i]) == 0 || strcmp(text, dtype_short[i]) == 0))
            return i;
    }
    err_user("command line: --dtype: '%s' is not float32, bfloat16 or float16 (fp32, bf16, fp16)", text);
    return -2;
}

/* Weights that were trained further are f32; they go back to what was imported. An import has the types of
 * the files, which may be several. */
static DType dtype_of(const Export *e, DType stored, int asked)
{
    if (asked >= 0) return (DType)asked;
    for (int i = 0; i < DT_COUNT && stored == DT_F32 && e->opt->step > 0; i++) {
        if (dtype_text[i] && strcmp(e->config.dtype, dtype_text[i]) == 0) return (DType)i;
    }
    return stored;
}

static int64_t part_rows(const RecipeModel *m, const HfRow *row, int k, int64_t rows)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    if (row->parts == HF_QKV) return k == 0 ? q : kv;
    return row->parts == HF_HALVES ? rows / 2 : rows;
}

static Piece *add_piece(Export *e, const char *name, DType dtype, const Piece *like)
{
    Piece *p           = &e->piece[e->n_piece++];
    *p                 = *like;
    p->spec.name       = arena_strdup(&e->arena, name);
    p->spec.dtype      = dtype;
    p->spec.ndim       = hf_shape(p->form, p->ndim, p->rows, p->cols, p->spec.dim);
    p->spec.n_elem     = p->rows * p->cols;
    p->spec.size_bytes = (size_t)p->spec.n_elem * dtype_bytes(dtype);
    return p;
}

/* A vector counts as one element a row. */
static int add_weight(Export *e, const SafeTensor *t, int asked)
{
    char    name[HF_NAME];
    int64_t rows = t->dim[0], cols = t->ndim == 2 ? t->dim[1] : 1, row0 = 0;
    if (!str_starts_with(t->name, e->what->prefix)) return 0;
    if (!dtype_text[t->dtype])
        return err_user("%s: tensor %s: is %s, not f32, bf16 or f16", e->from.path, t->name,
                        dtype_name(t->dtype));
    const char  *ours = t->name + strlen(e->what->prefix);
    const HfRow *row;
    int          k = 0;
    for (; (row = hf_name(e->map, ours, k, name)) != NULL; k++) {
        int64_t n = part_rows(&e->r->model, row, k, rows);
        if (row0 + n > rows)
            return err_user("%s: tensor %s: %lld rows do not make its parts", e->from.path, t->name,
                            (long long)rows);
        Piece p = { .ours = t, .row0 = row0, .rows = n, .cols = cols, .ndim = t->ndim, .form = row->form };
        add_piece(e, name, dtype_of(e, t->dtype, asked), &p);
        row0 += n;
    }
    if (k == 0)
        return err_user("%s: tensor %s: %s models have no such weight", e->from.path, t->name,
                        hfconf_family_name[e->config.family]);
    return 0;
}

/* GPT-2 has a bias everywhere. A model without one gets zeros. */
static void add_biases(Export *e, DType dtype)
{
    static const char *const parts[] = { "qkv", "proj", "up", "down" };
    const RecipeModel       *m       = &e->r->model;
    int64_t                  wide[]  = { 3 * m->width, m->width, m->ffn, m->width };
    char                     ours[PARAM_NAME], name[HF_NAME];
    if (e->config.family != HF_GPT2 || m->bias) return;
    for (int l = 0; l < m->layers; l++) {
        for (int i = m->qkv_bias ? 1 : 0; i < ARRAY_LEN(parts); i++) {
            param_name(ours, "block.%d.%s.bias", l, parts[i]);
            const HfRow *row = hf_name(e->map, ours, 0, name);
            CHECK(row, "%s", ours);
            add_piece(e, name, dtype, &(Piece){ .rows = wide[i], .cols = 1, .ndim = 1 });
        }
    }
}

static int list_pieces(Export *e)
{
    int asked = dtype_asked(e->opt->dtype);
    if (asked < -1) return -1;
    int64_t most = (int64_t)e->from.n_tensor * HF_PARTS + 4 * e->r->model.layers;
    e->piece     = ARENA_ARRAY(&e->arena, Piece, most + 1);
    for (int i = 0; i < e->from.n_tensor; i++) TRY(add_weight(e, &e->from.tensor[i], asked));
    if (e->n_piece == 0) return err_user("%s: has no weights", e->from.path);
    add_biases(e, e->piece[0].spec.dtype);
    str_copy(e->config.dtype, sizeof e->config.dtype, dtype_text[e->piece[0].spec.dtype]);
    int64_t in_shard = 0, room = e->opt->part_bytes > 0 ? e->opt->part_bytes : SHARD_BYTES;
    for (int i = 0; i < e->n_piece; i++) {
        int64_t size = (int64_t)e->piece[i].spec.size_bytes;
        if (in_shard > 0 && in_shard + size > room) {
            in_shard = 0;
            e->n_shard++;
        }
        in_shard += size;
        e->piece[i].shard = e->n_shard;
    }
    e->n_shard++;
    if (e->n_shard <= MOST_SHARDS) return 0;
    return err_user("%s: %d files would be needed, more than %d", e->opt->out, e->n_shard, MOST_SHARDS);
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

/* Elements [first, first+n) of the piece, not transposed, in the piece's type. buf: CHUNK floats. */
static int read_piece(const Export *e, const Piece *p, int64_t first, int64_t n, void *out, float *buf)
{
    size_t  size = dtype_bytes(p->spec.dtype);
    int64_t at   = p->row0 * p->cols + first;
    if (!p->ours) {
        memset(out, 0, (size_t)n * size);
        return 0;
    }
    if (p->ours->dtype == p->spec.dtype)
        return safetensors_read(&e->from, p->ours->offset + at * (int64_t)size, out, (size_t)n * size);
    TRY(safetensors_read_f32(&e->from, p->ours, at, n, buf));
    number_convert(p->spec.dtype, out, DT_F32, buf, n);
    return 0;
}

static int write_moved(const Export *e, const Piece *p, SafeWriter *w, float *buf)
{
    size_t size = dtype_bytes(p->spec.dtype);
    char  *raw = mem_alloc(p->spec.size_bytes), *moved = mem_alloc(p->spec.size_bytes);
    int    rc = raw && moved ? 0 : err_sys("memory for %s", p->spec.name);
    for (int64_t at = 0; at < p->spec.n_elem && rc == 0; at += CHUNK)
        rc = read_piece(e, p, at, MIN((int64_t)CHUNK, p->spec.n_elem - at), raw + (size_t)at * size, buf);
    if (rc == 0) hf_move(p->form, p->rows, p->cols, size, raw, moved, 1);
    if (rc == 0) rc = safetensors_write_data(w, moved, p->spec.size_bytes);
    free(raw);
    free(moved);
    return rc;
}

static int write_piece(const Export *e, const Piece *p, SafeWriter *w, float *buf)
{
    void *out = buf + CHUNK;
    if (hf_is_moved(p->form, p->ndim)) return write_moved(e, p, w, buf);
    for (int64_t at = 0; at < p->spec.n_elem; at += CHUNK) {
        int64_t n = MIN((int64_t)CHUNK, p->spec.n_elem - at);
        TRY(read_piece(e, p, at, n, out, buf));
        TRY(safetensors_write_data(w, out, (size_t)n * dtype_bytes(p->spec.dtype)));
    }
    return 0;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static void shard_name(const Export *e, int shard, char *out, size_t n)
{
    if (e->n_shard == 1) {
        snprintf(out, n, "model.safetensors");
    } else {
        snprintf(out, n, "model-%05d-of-%05d.safetensors", shard + 1, e->n_shard);
    }
}

static int out_path(const Export *e, const char *name, char *path)
{
    if (snprintf(path, PATH_MAX, "%s/%s", e->tmp, name) < PATH_MAX) return 0;
    return err_user("%s: path too long", e->opt->out);
}

/* Files that a model's folder has beside its weights, or that make a folder something else. */
static int refuse_foreign(const Export *e)
{
    static const char *const sign[] = { "config.json", "tokenizer.json", "tokens.json", "recipe.yaml" };
    char                     path[PATH_MAX];
    for (int i = 0; i < ARRAY_LEN(sign); i++) {
        if (snprintf(path, sizeof path, "%s/%s", e->opt->out, sign[i]) >= (int)sizeof path)
            return err_user("%s: path too long", e->opt->out);
        if (file_kind(path) != FILE_NONE)
            return err_user("%s: is no earlier export (it has %s, but no weights): name another folder",
                            e->opt->out, sign[i]);
    }
    return 0;
}

/* Weights that an earlier export left under other names, and files of something else. */
static int check_folder(Export *e)
{
    static const char *const end[] = { ".safetensors", ".safetensors.index.json" };
    char                     own[64], **names;
    int                      n_own = 0;
    if (file_kind(e->opt->out) != FILE_FOLDER) return 0;
    for (int k = 0; k < ARRAY_LEN(end); k++) {
        int n = file_list(&e->arena, e->opt->out, end[k], &names);
        if (n < 0) return -1;
        for (int i = 0; i < n; i++) {
            int is_own = k == 1 && e->n_shard > 1;
            for (int s = 0; s < e->n_shard && k == 0 && !is_own; s++) {
                shard_name(e, s, own, sizeof own);
                is_own = strcmp(names[i], own) == 0;
            }
            if (!is_own)
                return err_user("%s: has other weights already (%s): name another folder, or remove them",
                                e->opt->out, names[i]);
            n_own++;
        }
    }
    return n_own > 0 ? 0 : refuse_foreign(e);
}

static int write_shard(Export *e, int shard, SafeTensor *spec, float *buf)
{
    const SafeMeta meta = { "format", "pt" };
    char           name[64], path[PATH_MAX];
    int            n = 0;
    shard_name(e, shard, name, sizeof name);
    TRY(out_path(e, name, path));
    for (int i = 0; i < e->n_piece; i++) {
        if (e->piece[i].shard == shard) spec[n++] = e->piece[i].spec;
    }
    SafeWriter *w  = safetensors_write_begin(path, spec, n, &meta, 1);
    int         rc = w ? 0 : -1;
    for (int i = 0; i < e->n_piece && rc == 0; i++) {
        if (e->piece[i].shard == shard) rc = write_piece(e, &e->piece[i], w, buf);
    }
    if (rc == 0) rc = safetensors_write_publish(&w, NULL);
    safetensors_write_discard(&w);
    return rc;
}

static int write_weights(Export *e)
{
    SafeTensor *spec = ARENA_ARRAY(&e->arena, SafeTensor, e->n_piece);
    float      *buf  = mem_alloc(2 * sizeof *buf * (size_t)CHUNK);
    if (!buf) return err_sys("memory for writing weights");
    int rc = 0;
    for (int s = 0; s < e->n_shard && rc == 0; s++) rc = write_shard(e, s, spec, buf);
    free(buf);
    return rc;
}

static int write_index(const Export *e)
{
    JsonOut o;
    char    path[PATH_MAX], name[64];
    int64_t total = 0;
    if (e->n_shard == 1) return 0;
    TRY(out_path(e, "model.safetensors.index.json", path));
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    for (int i = 0; i < e->n_piece; i++) total += (int64_t)e->piece[i].spec.size_bytes;
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_object(&o, "metadata");
    json_out_int(&o, "total_size", total);
    json_out_close(&o);
    json_out_object(&o, "weight_map");
    for (int i = 0; i < e->n_piece; i++) {
        shard_name(e, e->piece[i].shard, name, sizeof name);
        json_out_str(&o, e->piece[i].spec.name, name);
    }
    int rc = json_out_end(&o);
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

int hf_export_text(const char *path, const char *text)
{
    FILE *f  = file_create_tmp(path);
    int   rc = f ? file_write(f, text, strlen(text)) : -1;
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

int hf_export_retype(const char *from, const char *to, DType dtype)
{
    json_t *root = json_load_file(from, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_user("%s: not a JSON map", from);
    }
    const char *key = json_object_get(root, "dtype") ? "dtype" : "torch_dtype";
    json_object_set_new(root, key, json_string(dtype_text[dtype]));
    char *text = json_dumps(root, JSON_INDENT(2));
    int   rc   = text ? hf_export_text(to, text) : err_set("%s: cannot be written again", from);
    free(text);
    json_decref(root);
    return rc;
}

/* The config that was imported, with the type of the written numbers; else one of our own. */
static int write_config(const Export *e)
{
    char path[PATH_MAX], was[PATH_MAX];
    TRY(out_path(e, "config.json", path));
    if (snprintf(was, sizeof was, "%s/hf/config.json", e->opt->run) < (int)sizeof was &&
        file_kind(was) == FILE_REGULAR) {
        return hf_export_retype(was, path, e->piece[0].spec.dtype);
    }
    FILE *f  = file_create_tmp(path);
    int   rc = f ? hfconf_write(&e->config, f) : -1;
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

/* What an import kept, else what the task writes. */
static int write_beside(Export *e)
{
    char hf[PATH_MAX], from[PATH_MAX], to[PATH_MAX], **names;
    if (snprintf(hf, sizeof hf, "%s/hf", e->opt->run) >= (int)sizeof hf || file_kind(hf) != FILE_FOLDER)
        return e->what->beside(e->r, &e->config, e->tmp);
    int n = file_list(&e->arena, hf, "", &names);
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], "config.json") == 0 || strstr(names[i], ".tmp-")) continue;
        if (snprintf(from, sizeof from, "%s/%s", hf, names[i]) >= (int)sizeof from)
            return err_user("%s: path too long", hf);
        TRY(out_path(e, names[i], to));
        TRY(file_copy(from, to));
    }
    return n < 0 ? -1 : 0;
}

/* ---- The whole ----------------------------------------------------------------------------------------- */

/* The import's config.json, else what the task makes of the recipe. */
static int describe(Export *e)
{
    char hf[PATH_MAX];
    if (snprintf(hf, sizeof hf, "%s/hf", e->opt->run) < (int)sizeof hf && hfconf_is_folder(hf))
        return hfconf_read(&e->config, hf);
    return e->what->describe(e->r, &e->config);
}

static int write_files(Export *e)
{
    TRY(file_make_folders(e->tmp));
    TRY(write_weights(e));
    TRY(write_index(e));
    TRY(write_beside(e));
    return write_config(e);
}

static int move_file(Export *e, const char *name)
{
    char from[PATH_MAX], to[PATH_MAX];
    TRY(out_path(e, name, from));
    if (snprintf(to, sizeof to, "%s/%s", e->opt->out, name) >= (int)sizeof to)
        return err_user("%s: path too long", e->opt->out);
    return rename(from, to) == 0 ? 0 : err_sys("%s", to);
}

static int move_files(Export *e)
{
    static const char last[] = "config.json";
    char            **names;
    int               n = file_list(&e->arena, e->tmp, "", &names);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], last) != 0) TRY(move_file(e, names[i]));
    TRY(move_file(e, last));
    return folder_sync(e->opt->out);
}

static int fill_folder(Export *e)
{
    int is_new = file_kind(e->opt->out) == FILE_NONE;
    if (!is_new && file_kind(e->opt->out) != FILE_FOLDER)
        return err_user("%s: is not a folder: name another one", e->opt->out);
    if (snprintf(e->tmp, sizeof e->tmp, "%s/.tmp-export-%d", e->opt->out, (int)getpid()) >=
        (int)sizeof e->tmp)
        return err_user("%s: path too long", e->opt->out);
    int rc = write_files(e);
    if (rc == 0) rc = move_files(e);
    folder_remove(e->tmp); /* an error that is pending stays */
    if (rc < 0 && is_new) rmdir(e->opt->out);
    return rc;
}

static int export_all(Export *e)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/model.safetensors", e->opt->checkpoint) >= (int)sizeof path)
        return err_user("%s: path too long", e->opt->checkpoint);
    TRY(describe(e));
    e->map = hf_map_of(e->config.family);
    TRY(safetensors_open(&e->from, path));
    TRY(list_pieces(e));
    TRY(check_folder(e));
    TRY(fill_folder(e));
    printf("%s: %s, %d tensors in %d file%s, %s\n", e->opt->out, hfconf_family_name[e->config.family],
           e->n_piece, e->n_shard, str_plural(e->n_shard), e->config.dtype);
    return 0;
}

int hf_export(const Recipe *r, const TaskExport *opt, const HfExport *what)
{
    Export e = { .r = r, .opt = opt, .what = what };
    arena_init(&e.arena);
    int rc = export_all(&e);
    safetensors_close(&e.from);
    arena_deinit(&e.arena);
    return rc;
}
