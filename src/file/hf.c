#include "file/hf.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_BYTES = 64 << 20, MOST_FILES = 4096 };

/* ---- Names --------------------------------------------------------------------------------------------- */

/* clang-format off */
#define LAYER "layers.#."
#define VITL  "encoder.layer.#."
#define VITA  VITL "attention.attention."
#define ATTN  LAYER "self_attn."
static const HfRow rotary_rows[] = {
    { "embed.weight",         { "embed_tokens.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm1.weight", { LAYER "input_layernorm.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.qkv.weight",   { ATTN "q_proj.weight", ATTN "k_proj.weight", ATTN "v_proj.weight" },
      HF_PLAIN, HF_QKV },
    { "block.#.qkv.bias",     { ATTN "q_proj.bias", ATTN "k_proj.bias", ATTN "v_proj.bias" },
      HF_PLAIN, HF_QKV },
    { "block.#.q_norm.weight", { ATTN "q_norm.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.k_norm.weight", { ATTN "k_norm.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.proj.weight",  { ATTN "o_proj.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm2.weight", { LAYER "post_attention_layernorm.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.up.weight",    { LAYER "mlp.gate_proj.weight", LAYER "mlp.up_proj.weight" },
      HF_PLAIN, HF_HALVES },
    { "block.#.down.weight",  { LAYER "mlp.down_proj.weight" }, HF_PLAIN, HF_WHOLE },
    { "norm.weight",          { "norm.weight" }, HF_PLAIN, HF_WHOLE },
    { "head.weight",          { "/lm_head.weight" }, HF_PLAIN, HF_WHOLE }, /* a slash: without the base */
};

static const HfRow arcee_own[] = {
    { "block.#.up.weight",    { LAYER "mlp.up_proj.weight" }, HF_PLAIN, HF_WHOLE },
};

static const HfRow phi3_own[] = {
    { "block.#.qkv.weight",   { ATTN "qkv_proj.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.up.weight",    { LAYER "mlp.gate_up_proj.weight" }, HF_PLAIN, HF_WHOLE }, /* the gate first */
};

static const HfRow gpt2_rows[] = {
    { "embed.weight",         { "wte.weight" }, HF_PLAIN, HF_WHOLE },
    { "pos.weight",           { "wpe.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm1.weight", { "h.#.ln_1.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm1.bias",   { "h.#.ln_1.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.qkv.weight",   { "h.#.attn.c_attn.weight" }, HF_TRANSPOSED, HF_WHOLE },
    { "block.#.qkv.bias",     { "h.#.attn.c_attn.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.proj.weight",  { "h.#.attn.c_proj.weight" }, HF_TRANSPOSED, HF_WHOLE },
    { "block.#.proj.bias",    { "h.#.attn.c_proj.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm2.weight", { "h.#.ln_2.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm2.bias",   { "h.#.ln_2.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.up.weight",    { "h.#.mlp.c_fc.weight" }, HF_TRANSPOSED, HF_WHOLE },
    { "block.#.up.bias",      { "h.#.mlp.c_fc.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.down.weight",  { "h.#.mlp.c_proj.weight" }, HF_TRANSPOSED, HF_WHOLE },
    { "block.#.down.bias",    { "h.#.mlp.c_proj.bias" }, HF_PLAIN, HF_WHOLE },
    { "norm.weight",          { "ln_f.weight" }, HF_PLAIN, HF_WHOLE },
    { "norm.bias",            { "ln_f.bias" }, HF_PLAIN, HF_WHOLE },
    { "head.weight",          { "/lm_head.weight" }, HF_PLAIN, HF_WHOLE },
};

static const HfRow vit_rows[] = {
    { "patch.weight",         { "embeddings.patch_embeddings.projection.weight" }, HF_PATCHES, HF_WHOLE },
    { "patch.bias",           { "embeddings.patch_embeddings.projection.bias" }, HF_PLAIN, HF_WHOLE },
    { "class.weight",         { "embeddings.cls_token" }, HF_BATCHED, HF_WHOLE },
    { "pos.weight",           { "embeddings.position_embeddings" }, HF_BATCHED, HF_WHOLE },
    { "block.#.norm1.weight", { VITL "layernorm_before.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm1.bias",   { VITL "layernorm_before.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.qkv.weight",   { VITA "query.weight", VITA "key.weight", VITA "value.weight" },
      HF_PLAIN, HF_QKV },
    { "block.#.qkv.bias",     { VITA "query.bias", VITA "key.bias", VITA "value.bias" }, HF_PLAIN, HF_QKV },
    { "block.#.proj.weight",  { VITL "attention.output.dense.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.proj.bias",    { VITL "attention.output.dense.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm2.weight", { VITL "layernorm_after.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.norm2.bias",   { VITL "layernorm_after.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.up.weight",    { VITL "intermediate.dense.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.up.bias",      { VITL "intermediate.dense.bias" }, HF_PLAIN, HF_WHOLE },
    { "block.#.down.weight",  { VITL "output.dense.weight" }, HF_PLAIN, HF_WHOLE },
    { "block.#.down.bias",    { VITL "output.dense.bias" }, HF_PLAIN, HF_WHOLE },
    { "norm.weight",          { "layernorm.weight" }, HF_PLAIN, HF_WHOLE },
    { "norm.bias",            { "layernorm.bias" }, HF_PLAIN, HF_WHOLE },
    { "head.weight",          { "/classifier.weight" }, HF_PLAIN, HF_WHOLE },
    { "head.bias",            { "/classifier.bias" }, HF_PLAIN, HF_WHOLE },
};
/* clang-format on */

static const char *const ignore_rotary[] = { "rotary_emb.inv_freq", NULL };
static const char *const ignore_gpt2[]   = { ".attn.bias", ".attn.masked_bias", NULL }; /* causal masks */
static const char *const ignore_none[]   = { NULL };

const HfMap *hf_map_of(HfFamily family)
{
    static const HfMap rotary = { "model.", rotary_rows, ARRAY_LEN(rotary_rows), NULL, 0, ignore_rotary };
    static const HfMap arcee  = { "model.",  rotary_rows,          ARRAY_LEN(rotary_rows),
                                  arcee_own, ARRAY_LEN(arcee_own), ignore_rotary };
    static const HfMap phi3   = { "model.", rotary_rows,         ARRAY_LEN(rotary_rows),
                                  phi3_own, ARRAY_LEN(phi3_own), ignore_rotary };
    static const HfMap gpt2   = { "transformer.", gpt2_rows, ARRAY_LEN(gpt2_rows), NULL, 0, ignore_gpt2 };
    static const HfMap vit    = { "vit.", vit_rows, ARRAY_LEN(vit_rows), NULL, 0, ignore_none };
    switch (family) {
    case HF_GPT2: return &gpt2;
    case HF_ARCEE: return &arcee;
    case HF_PHI3: return &phi3;
    case HF_VIT: return &vit;
    default: return &rotary;
    }
}

/* 1: name is the pattern with a number for '#', which goes to number[16]. */
static int matches(const char *pattern, const char *name, char *number)
{
    const char *hash = strchr(pattern, '#');
    if (!hash) return strcmp(pattern, name) == 0;
    size_t before = (size_t)(hash - pattern), digits;
    if (strncmp(pattern, name, before) != 0) return 0;
    digits = strspn(name + before, "0123456789");
    if (digits == 0 || digits > 9 || strcmp(hash + 1, name + before + digits) != 0) return 0;
    snprintf(number, 16, "%.*s", (int)digits, name + before);
    return 1;
}

/* Pattern with the number in place of '#', behind base unless the pattern begins with a slash. */
static void spell(char *out, const char *base, const char *pattern, const char *number)
{
    const char *hash = strchr(pattern, '#');
    int         root = pattern[0] == '/', n;
    if (hash) {
        n = snprintf(out, HF_NAME, "%s%.*s%s%s", root ? "" : base, (int)(hash - pattern), pattern, number,
                     hash + 1);
    } else {
        n = snprintf(out, HF_NAME, "%s%s", root ? "" : base, pattern + root);
    }
    CHECK(n > 0 && n < HF_NAME, "a name of %d characters", n);
}

/* Row i of a map: its own rows, then those it shares with others. NULL: there are no more. */
static const HfRow *row_at(const HfMap *map, int i)
{
    if (i < map->n_own) return &map->own[i];
    return i - map->n_own < map->n_row ? &map->row[i - map->n_own] : NULL;
}

/* 1: one of the map's own rows stands for this shared one. */
static int is_replaced(const HfMap *map, const HfRow *shared)
{
    for (int i = 0; i < map->n_own; i++) {
        if (strcmp(map->own[i].ours, shared->ours) == 0) return 1;
    }
    return 0;
}

static const HfRow *find_row(const HfMap *map, const char *ours, char *number)
{
    const HfRow *row;
    for (int i = 0; (row = row_at(map, i)) != NULL; i++) {
        if (matches(row->ours, ours, number)) return row;
    }
    return NULL;
}

const HfRow *hf_name(const HfMap *map, const char *ours, int k, char *out)
{
    char         number[16] = "";
    const HfRow *row        = find_row(map, ours, number);
    if (!row || k >= HF_PARTS || !row->theirs[k]) return NULL;
    spell(out, map->base, row->theirs[k], number);
    return row;
}

/* ---- The files ----------------------------------------------------------------------------------------- */

static int check_file(const char *name, const char *file)
{
    char buf[128];
    if (!file[0] || strchr(file, '/') || file[0] == '.' || !str_is_printable(file) ||
        !str_ends_with(file, ".safetensors"))
        return err_user("%s: weight_map: '%s' is not the name of a safetensors file in this folder", name,
                        str_quote(buf, sizeof buf, file, strlen(file)));
    return 0;
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The different files of a map, sorted. A map may have a million tensors. */
static int list_files(Arena *a, const char *name, json_t *map, char ***files, int *n_file)
{
    char         buf[128];
    const char  *key;
    json_t      *value;
    size_t       n   = 0;
    const char **all = mem_alloc(sizeof *all * json_object_size(map));
    int          rc  = all ? 0 : err_sys("%s: memory for its names", name);
    if (rc == 0) {
        json_object_foreach(map, key, value)
        {
            all[n++] = json_string_value(value);
            if (!json_is_string(value))
                rc = err_user("%s: weight_map: '%s' has no file name", name,
                              str_quote(buf, sizeof buf, key, strlen(key)));
            if (rc < 0) break;
        }
    }
    if (rc == 0) qsort(all, n, sizeof *all, compare_text);
    *files = ARENA_ARRAY(a, char *, MOST_FILES);
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (i > 0 && strcmp(all[i], all[i - 1]) == 0) continue;
        rc = check_file(name, all[i]);
        if (rc == 0 && *n_file == MOST_FILES)
            rc = err_user("%s: weight_map: more than %d files", name, MOST_FILES);
        if (rc == 0) (*files)[(*n_file)++] = arena_strdup(a, all[i]);
    }
    free(all);
    return rc;
}

int hf_index_parse(Arena *a, const char *name, const char *text, size_t n, char ***files, int *n_file)
{
    json_error_t why;
    char         buf[128];
    json_t      *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return err_user("%s:%d: not JSON: %s", name, why.line,
                        str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    json_t *map = json_object_get(root, "weight_map");
    int     rc  = json_is_object(map) && json_object_size(map) > 0
                      ? 0
                      : err_user("%s: weight_map: missing: which file holds which tensor?", name);
    *n_file     = 0;
    if (rc == 0) rc = list_files(a, name, map, files, n_file);
    json_decref(root);
    return rc;
}

/* Wrong bytes in a file that the user named are the user's. */
static int open_one(HfFolder *h, const char *file)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", h->dir, file) >= (int)sizeof path)
        return err_user("%s: path too long", h->dir);
    if (safetensors_open(&h->file[h->n_file], path) < 0) {
        char why[1024];
        str_copy(why, sizeof why, err_get());
        err_clear();
        return err_user("%s", why);
    }
    h->n_file++;
    return 0;
}

/* A folder whose weights are only in PyTorch's own format, which may run code when it is read. */
static int check_pickled(const HfFolder *h)
{
    char **name, safe[PATH_MAX];
    Arena  a;
    if (snprintf(safe, sizeof safe, "%s/model.safetensors", h->dir) >= (int)sizeof safe)
        return err_user("%s: path too long", h->dir);
    if (file_kind(safe) != FILE_NONE) return 0;
    arena_init(&a);
    int n  = file_list(&a, h->dir, ".bin", &name);
    int rc = n < 0 ? -1 : 0;
    for (int i = 0; i < n && rc == 0; i++) {
        if (str_starts_with(name[i], "pytorch_model"))
            rc = err_user("%s: has %s, but no model.safetensors (save_pretrained of transformers writes it)",
                          h->dir, name[i]);
    }
    arena_deinit(&a);
    return rc;
}

static int open_files(HfFolder *h)
{
    char   path[PATH_MAX], **files, *text;
    size_t n;
    int    n_file, rc;
    if (snprintf(path, sizeof path, "%s/model.safetensors.index.json", h->dir) >= (int)sizeof path)
        return err_user("%s: path too long", h->dir);
    if (file_kind(path) != FILE_REGULAR) {
        TRY(check_pickled(h));
        h->file = ARENA_ARRAY(&h->arena, SafeFile, 1);
        return open_one(h, "model.safetensors");
    }
    TRY(file_read_all(path, INDEX_BYTES, &text, &n));
    rc = hf_index_parse(&h->arena, path, text, n, &files, &n_file);
    free(text);
    TRY(rc);
    h->file = ARENA_ARRAY(&h->arena, SafeFile, n_file);
    for (int i = 0; i < n_file; i++) TRY(open_one(h, files[i]));
    return 0;
}

/* 1: a name of the files begins with the base. */
static int uses_base(const HfFolder *h)
{
    for (int f = 0; f < h->n_file; f++) {
        for (int i = 0; i < h->file[f].n_tensor; i++) {
            if (str_starts_with(h->file[f].tensor[i].name, h->map->base)) return 1;
        }
    }
    return 0;
}

int hf_open(HfFolder *h, const char *dir, const HfMap *map)
{
    memset(h, 0, sizeof *h);
    arena_init(&h->arena);
    h->map = map;
    int rc = str_copy(h->dir, sizeof h->dir, dir) < 0 ? err_user("%s: path too long", dir) : 0;
    if (rc == 0) rc = open_files(h);
    if (rc == 0) h->has_base = uses_base(h);
    if (rc < 0) hf_close(h);
    return rc;
}

void hf_close(HfFolder *h)
{
    for (int i = 0; i < h->n_file; i++) safetensors_close(&h->file[i]);
    free(h->whole);
    arena_deinit(&h->arena);
    memset(h, 0, sizeof *h);
}

/* ---- Orders of numbers --------------------------------------------------------------------------------- */

enum { CHANNELS = 3 };

/* Pixels a side of a patch with so many columns; 0: no patch has them. */
static int64_t patch_side(int64_t cols)
{
    int64_t side = 0;
    while ((side + 1) * (side + 1) * CHANNELS <= cols) side++;
    return side * side * CHANNELS == cols ? side : 0;
}

int hf_shape(HfForm form, int ndim, int64_t rows, int64_t cols, int64_t *dim)
{
    if (ndim == 1) {
        dim[0] = rows * cols;
        return 1;
    }
    switch (form) {
    case HF_TRANSPOSED: dim[0] = cols, dim[1] = rows; return 2;
    case HF_BATCHED: dim[0] = 1, dim[1] = rows, dim[2] = cols; return 3;
    case HF_PATCHES: dim[0] = rows, dim[1] = CHANNELS, dim[2] = dim[3] = patch_side(cols); return 4;
    default: dim[0] = rows, dim[1] = cols; return 2;
    }
}

int hf_is_moved(HfForm form, int ndim) { return ndim == 2 && (form == HF_TRANSPOSED || form == HF_PATCHES); }

void hf_move(HfForm form, int64_t rows, int64_t cols, size_t size, const void *from, void *to, int back)
{
    int64_t pixels = cols / CHANNELS;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < cols; k++) {
            int64_t ours = i * cols + k;
            int64_t theirs =
                form == HF_PATCHES ? i * cols + k % CHANNELS * pixels + k / CHANNELS : k * rows + i;
            memcpy((char *)to + (size_t)(back ? theirs : ours) * size,
                   (const char *)from + (size_t)(back ? ours : theirs) * size, size);
        }
    }
}

/* ---- One weight ---------------------------------------------------------------------------------------- */

static int find_part(const HfFolder *h, const char *name, HfWeight *w, int k)
{
    for (int f = 0; f < h->n_file; f++) {
        const SafeTensor *t = safetensors_find(&h->file[f], name);
        if (t && w->part[k])
            return err_user("%s: tensor %s: also in %s", h->file[f].path, name, w->file[k]->path);
        if (!t) continue;
        w->part[k] = t;
        w->file[k] = &h->file[f];
    }
    if (!w->part[k]) return err_user("%s: no tensor %s in its safetensors files", h->dir, name);
    return 0;
}

/* Rows and columns of part k as Brim has them. */
static int matrix_of(const HfWeight *w, int k, int *ndim, int64_t *rows, int64_t *cols)
{
    const SafeTensor *t    = w->part[k];
    HfForm            form = w->row->form;
    int               want = form == HF_BATCHED ? 3 : form == HF_PATCHES ? 4 : 2;
    int64_t           dim[4];
    if (t->ndim == 1 && want == 2) {
        *ndim = 1, *rows = 1, *cols = t->dim[0];
        return 0;
    }
    if (t->ndim != want)
        return err_user("%s: tensor %s: has %d dimensions, not %s", w->file[k]->path, t->name, t->ndim,
                        want == 2   ? "1 or 2"
                        : want == 3 ? "3"
                                    : "4");
    *ndim = 2;
    *rows = form == HF_TRANSPOSED || form == HF_BATCHED ? t->dim[1] : t->dim[0];
    *cols = form == HF_TRANSPOSED ? t->dim[0] : *rows > 0 ? t->n_elem / *rows : 0;
    hf_shape(form, 2, *rows, *cols, dim);
    if (memcmp(dim, t->dim, sizeof *dim * (size_t)want) != 0)
        return err_user("%s: tensor %s: is not of the shape that Brim reads", w->file[k]->path, t->name);
    return 0;
}

/* Adds the shape of part k to the weight's. */
static int join_part(HfWeight *w, int k)
{
    const SafeTensor *t    = w->part[k];
    const char       *path = w->file[k]->path;
    int64_t           rows = 0, cols = 0;
    int               ndim = 0;
    TRY(matrix_of(w, k, &ndim, &rows, &cols));
    if (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)
        return err_user("%s: tensor %s: holds %s, Brim reads f32, bf16 and f16", path, t->name,
                        dtype_name(t->dtype));
    if (k == 0) {
        w->ndim  = ndim;
        w->rows  = rows;
        w->cols  = cols;
        w->dtype = t->dtype;
        return 0;
    }
    if (ndim != w->ndim || t->dtype != w->dtype || (ndim == 2 && cols != w->cols))
        return err_user("%s: tensor %s: type or shape does not match %s", path, t->name, w->part[0]->name);
    if (ndim == 2) w->rows += rows;
    if (ndim == 1) w->cols += cols;
    return 0;
}

int hf_find(const HfFolder *h, const char *ours, HfWeight *w)
{
    char name[HF_NAME], number[16] = "";
    memset(w, 0, sizeof *w);
    w->row = find_row(h->map, ours, number);
    if (!w->row) return err_user("%s: its model has no weight like %s", h->dir, ours);
    for (int k = 0; k < HF_PARTS && w->row->theirs[k]; k++) {
        spell(name, h->has_base ? h->map->base : "", w->row->theirs[k], number);
        TRY(find_part(h, name, w, k));
        TRY(join_part(w, k));
        w->n_part++;
    }
    return 0;
}

/* A tensor of another order is moved whole, because a row of Brim's is spread over all of theirs. */
static int read_moved(HfFolder *h, const HfWeight *w, int64_t first, int64_t n, void *out)
{
    const SafeTensor *t    = w->part[0];
    size_t            size = dtype_bytes(w->dtype);
    if (strcmp(h->whole_name, t->name) != 0) {
        char *raw        = mem_alloc(t->size_bytes + 1);
        h->whole_name[0] = '\0';
        free(h->whole);
        h->whole = mem_alloc(t->size_bytes + 1);
        if (!raw || !h->whole) {
            free(raw);
            return err_sys("%s: memory for tensor %s", w->file[0]->path, t->name);
        }
        int rc = safetensors_read(w->file[0], t->offset, raw, t->size_bytes);
        if (rc == 0) hf_move(w->row->form, w->rows, w->cols, size, raw, h->whole, 0);
        free(raw);
        TRY(rc);
        str_copy(h->whole_name, sizeof h->whole_name, t->name);
    }
    memcpy(out, (const char *)h->whole + (size_t)first * size, (size_t)n * size);
    return 0;
}

int hf_read(HfFolder *h, const HfWeight *w, int64_t first, int64_t n, void *out)
{
    size_t size = dtype_bytes(w->dtype);
    CHECK(first >= 0 && n >= 0 && first + n <= w->rows * w->cols, "outside %s", w->part[0]->name);
    if (hf_is_moved(w->row->form, w->ndim)) return read_moved(h, w, first, n, out);
    int64_t begin = 0;
    for (int k = 0; k < w->n_part && n > 0; k++) {
        const SafeTensor *t    = w->part[k];
        int64_t           skip = first - begin, take = MIN(n, t->n_elem - skip);
        begin += t->n_elem;
        if (take <= 0) continue;
        TRY(safetensors_read(w->file[k], t->offset + skip * (int64_t)size, out, (size_t)take * size));
        out = (char *)out + (size_t)take * size;
        first += take;
        n -= take;
    }
    return 0;
}

/* ---- Nothing left over --------------------------------------------------------------------------------- */

static int is_ignored(const HfMap *map, const char *name)
{
    for (int i = 0; map->ignore[i]; i++) {
        if (str_ends_with(name, map->ignore[i])) return 1;
    }
    return 0;
}

/* Brim's name of one of their tensors into out[HF_NAME]; 0: the map has none. */
static int name_ours(const HfFolder *h, const char *theirs, char *out)
{
    char         number[16] = "", pattern[HF_NAME];
    const HfRow *row;
    for (int i = 0; (row = row_at(h->map, i)) != NULL; i++) {
        if (i >= h->map->n_own && is_replaced(h->map, row)) continue;
        for (int k = 0; k < HF_PARTS && row->theirs[k]; k++) {
            spell(pattern, h->has_base ? h->map->base : "", row->theirs[k], "#");
            if (!matches(pattern, theirs, number)) continue;
            spell(out, "", row->ours, number);
            return 1;
        }
    }
    return 0;
}

int hf_check_unused(const HfFolder *h, int (*is_ours)(void *ctx, const char *ours), void *ctx)
{
    char ours[HF_NAME];
    for (int f = 0; f < h->n_file; f++) {
        for (int i = 0; i < h->file[f].n_tensor; i++) {
            const char *name = h->file[f].tensor[i].name;
            if (is_ignored(h->map, name)) continue;
            int known = name_ours(h, name, ours);
            if (known && is_ours(ctx, ours)) continue;
            /* A head that shares the embedding's weights is sometimes written twice. */
            if (known && strcmp(ours, "head.weight") == 0) continue;
            return err_user("%s: tensor %s: the model of config.json has no such weight", h->file[f].path,
                            name);
        }
    }
    return 0;
}
