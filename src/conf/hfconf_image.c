#include "conf/hfconf_image.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/relate_image.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 1 << 20, LABEL = 256 };

/* ---- Labels -------------------------------------------------------------------------------------------- */

void hfconf_image_defaults(RecipeImage *m)
{
    *m = (RecipeImage){ .size    = 224,
                        .patch   = 16,
                        .tubelet = 2,
                        .stride  = 1,
                        .classes = 2,
                        .pool    = POOL_CLASS,
                        .pos     = GRID_LEARNED };
    str_copy(m->mean, sizeof m->mean, "0.5,0.5,0.5");
    str_copy(m->std, sizeof m->std, "0.5,0.5,0.5");
}

/* A label without what follows a comma ("tench, Tinca tinca"), which a recipe's list cannot hold. Negative:
 * the list cannot hold the label at all. */
static int add_label(RecipeImage *m, int64_t i, const char *text)
{
    char label[LABEL];
    int  n = snprintf(label, sizeof label, "%.*s", (int)strcspn(text, ","), text);
    if (n >= (int)sizeof label || !relate_is_class_name(label)) return -1;
    if (str_list_has(m->names, label)) return -1;
    return str_append(m->names, sizeof m->names, "%s%s", i ? "," : "", label);
}

static int read_names(RecipeImage *m, const char *name, const json_t *map)
{
    int whole   = 1;
    m->names[0] = '\0';
    for (int64_t i = 0; i < m->classes; i++) {
        char key[32];
        snprintf(key, sizeof key, "%lld", (long long)i);
        const char *text = json_string_value(json_object_get(map, key));
        if (!text)
            return err_user("%s: id2label: class %s of %lld has no label", name, key, (long long)m->classes);
        whole = whole && add_label(m, i, text) == 0;
    }
    if (!whole) m->names[0] = '\0';
    return 0;
}

int hfconf_image_labels(HfConfig *c, const char *name, const json_t *root)
{
    RecipeImage  *m   = &c->image;
    const json_t *map = json_object_get(root, "id2label");
    if (map && !json_is_null(map)) {
        if (!json_is_object(map) || json_object_size(map) == 0 || json_object_size(map) > MOST_CLASSES)
            return err_user("%s: id2label: Brim needs a map with the label of each class", name);
        m->classes = (int64_t)json_object_size(map);
        TRY(read_names(m, name, map));
    }
    if (m->size % m->patch != 0)
        return err_user("%s: image_size: %lld is no multiple of patch_size, %lld", name, (long long)m->size,
                        (long long)m->patch);
    m->seen_size = m->pos_size = m->size;
    return 0;
}

/* ---- Pixels -------------------------------------------------------------------------------------------- */

/* Three numbers as a comma list. */
static int read_three(const char *name, const json_t *root, const char *key, char *out, size_t n)
{
    const json_t *list = json_object_get(root, key);
    char          text[64];
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list) || json_array_size(list) != 3)
        return err_user("%s: %s: Brim needs three numbers here", name, key);
    out[0] = '\0';
    for (size_t i = 0; i < 3; i++) {
        const json_t *x = json_array_get(list, i);
        if (!json_is_number(x) || !isfinite(json_number_value(x)))
            return err_user("%s: %s: Brim needs three numbers here", name, key);
        str_append(out, n, "%s%s", i ? "," : "", str_double(text, sizeof text, json_number_value(x)));
    }
    return 0;
}

static int read_processor(RecipeImage *m, const char *name, const json_t *root)
{
    const json_t *factor = json_object_get(root, "rescale_factor");
    float         v[3];
    if (json_is_false(json_object_get(root, "do_rescale")) ||
        (factor && fabs(json_number_value(factor) * 255 - 1) > 1e-6))
        return err_user("%s: rescale_factor: Brim divides pixels by 255", name);
    TRY(read_three(name, root, "image_mean", m->mean, sizeof m->mean));
    TRY(read_three(name, root, "image_std", m->std, sizeof m->std));
    if (json_is_false(json_object_get(root, "do_normalize"))) {
        str_copy(m->mean, sizeof m->mean, "0,0,0");
        str_copy(m->std, sizeof m->std, "1,1,1");
    }
    int rc = relate_floats(m->std, 3, v);
    CHECK(rc == 0, "three numbers");
    for (int i = 0; i < 3; i++) {
        if (!(v[i] > 1e-4f)) return err_user("%s: image_std: %g is not above 0", name, (double)v[i]);
    }
    return 0;
}

int hfconf_image_processor(HfConfig *c, const char *dir)
{
    char         path[PATH_MAX], buf[128], *text = NULL;
    size_t       n;
    json_error_t why;
    if (snprintf(path, sizeof path, "%s/preprocessor_config.json", dir) >= (int)sizeof path)
        return err_user("%s: path too long", dir);
    if (file_kind(path) != FILE_REGULAR) return 0;
    TRY(file_read_all(path, HF_CONFIG_BYTES, &text, &n));
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!root)
        return err_user("%s:%d: not JSON: %s", path, why.line,
                        str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    int rc =
        json_is_object(root) ? read_processor(&c->image, path, root) : err_user("%s: not a JSON map", path);
    json_decref(root);
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

int hfconf_check_image(const RecipeModel *m, const RecipeImage *image)
{
#define NEED(cond, key, text)                                                                                \
    do {                                                                                                     \
        if (!(cond)) return err_user(key ": no Hugging Face ViT has " text);                                 \
    } while (0)
    NEED(image->frames == 0, "image.frames", "clips");
    NEED(image->pool == POOL_CLASS, "image.pool",
         "a mean of tokens (a run with image.pool=class can be written)");
    NEED(image->registers == 0, "image.registers", "registers");
    NEED(image->pos == GRID_LEARNED, "image.pos", "positions by sines");
    NEED(image->pos_size == image->size, "image.pos_size", "positions of another size");
    NEED(m->norm == NORM_LAYER, "model.norm", "RMSNorm");
    NEED(m->act == FFN_GELU || m->act == FFN_GELU_ERF, "model.act", "this activation");
    NEED(m->bias, "model.bias", "layers without biases");
    NEED(!m->qk_norm, "model.qk_norm", "norms of heads");
    NEED(m->kv_heads == m->heads, "model.kv_heads", "shared key heads");
    NEED(m->head_dim * m->heads == m->width, "model.head_dim", "such heads");
    NEED(m->layer_scale == 0, "model.layer_scale", "layer scale");
    return 0;
#undef NEED
}

static void name_class(const RecipeImage *m, const char **list, int64_t i, char *out)
{
    if (!m->names[0] || str_list_next(list, out, LABEL) <= 0)
        snprintf(out, LABEL, "LABEL_%lld", (long long)i);
}

static void write_labels(JsonOut *o, const RecipeImage *m)
{
    char        label[LABEL], number[32];
    const char *list = m->names;
    json_out_object(o, "id2label");
    for (int64_t i = 0; i < m->classes; i++) {
        snprintf(number, sizeof number, "%lld", (long long)i);
        name_class(m, &list, i, label);
        json_out_str(o, number, label);
    }
    json_out_close(o);
    list = m->names;
    json_out_object(o, "label2id");
    for (int64_t i = 0; i < m->classes; i++) {
        name_class(m, &list, i, label);
        json_out_int(o, label, i);
    }
    json_out_close(o);
}

void hfconf_image_write(JsonOut *o, const HfConfig *c)
{
    const RecipeModel *m = &c->model;
    json_out_int(o, "hidden_size", m->width);
    json_out_int(o, "num_hidden_layers", m->layers);
    json_out_int(o, "num_attention_heads", m->heads);
    json_out_int(o, "intermediate_size", m->ffn);
    json_out_str(o, "hidden_act", m->act == FFN_GELU ? "gelu_pytorch_tanh" : "gelu");
    json_out_num(o, "layer_norm_eps", m->norm_eps);
    json_out_int(o, "image_size", c->image.size);
    json_out_int(o, "patch_size", c->image.patch);
    json_out_int(o, "num_channels", 3);
    json_out_bool(o, "qkv_bias", 1);
    json_out_num(o, "hidden_dropout_prob", 0);
    json_out_num(o, "attention_probs_dropout_prob", 0);
    write_labels(o, &c->image);
}

static void write_three(JsonOut *o, const char *key, const char *list)
{
    char   item[64];
    double x;
    json_out_array(o, key);
    while (str_list_next(&list, item, sizeof item) > 0)
        json_out_num(o, NULL, str_parse_double(item, &x) == 0 ? x : 0);
    json_out_close(o);
}

int hfconf_write_processor(const HfConfig *c, FILE *out)
{
    enum { BILINEAR = 2 };
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_str(&o, "image_processor_type", "ViTImageProcessor");
    json_out_bool(&o, "do_resize", 1);
    json_out_object(&o, "size");
    json_out_int(&o, "height", c->image.size);
    json_out_int(&o, "width", c->image.size);
    json_out_close(&o);
    json_out_int(&o, "resample", BILINEAR);
    json_out_bool(&o, "do_rescale", 1);
    json_out_num(&o, "rescale_factor", 1.0 / 255);
    json_out_bool(&o, "do_normalize", 1);
    write_three(&o, "image_mean", c->image.mean);
    write_three(&o, "image_std", c->image.std);
    return json_out_end(&o);
}
