#include "conf/hfconf_image.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/class_names.h"
#include "conf/hfconf_part.h"
#include "conf/relate_image.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CLASSES = 1 << 20, PILLOW_BILINEAR = 2, PILLOW_BICUBIC = 3 };

/* ---- Labels -------------------------------------------------------------------------------------------- */

void hfconf_image_defaults(RecipeImage *m)
{
    *m = (RecipeImage){ .size    = 224,
                        .patch   = 16,
                        .tubelet = 2,
                        .stride  = 1,
                        .classes = 2,
                        .pool    = POOL_CLASS,
                        .pos     = GRID_LEARNED,
                        .fit     = FIT_SQUEEZE };
    str_copy(m->mean, sizeof m->mean, "0.5,0.5,0.5");
    str_copy(m->std, sizeof m->std, "0.5,0.5,0.5");
}

static int check_labels(const RecipeImage *m, const char *name, const json_t *map)
{
    for (int64_t i = 0; i < m->classes; i++) {
        char key[32];
        snprintf(key, sizeof key, "%lld", (long long)i);
        if (!json_is_string(json_object_get(map, key)))
            return err_user("%s: id2label: class %s of %lld has no label", name, key, (long long)m->classes);
    }
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
        TRY(check_labels(m, name, map));
        str_copy(m->names_file, sizeof m->names_file, name);
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

/* A size is a number, or a map of height and width. 0 where it is absent; negative: no square. */
static int64_t read_square(const json_t *size)
{
    int64_t h = json_integer_value(json_object_get(size, "height"));
    int64_t w = json_integer_value(json_object_get(size, "width"));
    if (!size || json_is_null(size)) return 0;
    if (json_is_integer(size)) return json_integer_value(size);
    return h > 0 && h == w ? h : -1;
}

/* The middle of a picture whose short side becomes `edge` pixels. */
static int read_crop(HfConfig *c, const char *name, const json_t *root, int64_t edge)
{
    int64_t size = c->image.size, crop = read_square(json_object_get(root, "crop_size"));
    if (!json_is_true(json_object_get(root, "do_center_crop")) || (crop != 0 && crop != size))
        return err_user("%s: crop_size: with shortest_edge Brim needs do_center_crop and image_size, %lld",
                        name, (long long)size);
    if (edge < size || edge > 10 * size)
        return err_user("%s: size: a short side of %lld pixels does not go with a crop of %lld", name,
                        (long long)edge, (long long)size);
    c->image.fit     = FIT_CROP;
    c->crop_fraction = (double)size / (double)edge;
    if ((int64_t)((double)size / c->crop_fraction) != edge) c->crop_fraction = nextafter(c->crop_fraction, 0);
    return 0;
}

/* How a picture becomes a square. */
static int read_fit(HfConfig *c, const char *name, const json_t *root)
{
    const json_t *size = json_object_get(root, "size"), *edge = json_object_get(size, "shortest_edge");
    int64_t       side = read_square(size), want = c->image.size;
    int           by_edge = json_is_integer(edge) ||
                  (json_is_integer(size) && json_is_false(json_object_get(root, "default_to_square")));
    if (json_is_false(json_object_get(root, "do_resize"))) return 0; /* pictures have the right size */
    if (by_edge) return read_crop(c, name, root, edge ? json_integer_value(edge) : side);
    if (side != 0 && side != want)
        return err_user("%s: size: Brim needs a square of image_size, %lld pixels", name, (long long)want);
    int64_t crop = read_square(json_object_get(root, "crop_size"));
    if (json_is_true(json_object_get(root, "do_center_crop")) && crop != 0 && crop != want)
        return err_user("%s: crop_size: Brim needs image_size, %lld pixels", name, (long long)want);
    c->image.fit = FIT_SQUEEZE;
    return 0;
}

/* Pillow's number of a filter; without one the processor's own: bilinear for ViT, bicubic for others. */
static int read_filter(HfConfig *c, const char *name, const json_t *root)
{
    const json_t *resample = json_object_get(root, "resample");
    const char   *type     = json_string_value(json_object_get(root, "image_processor_type"));
    int           own      = !type || str_starts_with(type, "ViT") ? PILLOW_BILINEAR : PILLOW_BICUBIC;
    int64_t       filter   = resample && !json_is_null(resample) ? json_integer_value(resample) : own;
    if (filter != PILLOW_BILINEAR && filter != PILLOW_BICUBIC)
        return err_user("%s: resample: Brim has 2 (bilinear) and 3 (bicubic), not %lld", name,
                        (long long)filter);
    c->image.filter = filter == PILLOW_BICUBIC ? FILTER_BICUBIC : FILTER_BILINEAR;
    return 0;
}

/* A key that Brim does not know might change pixels. */
static int check_processor_keys(const char *name, json_t *root)
{
    static const char known[] =
        "crop_size,data_format,default_to_square,device,disable_grouping,do_center_crop,"
        "do_convert_rgb,do_normalize,do_rescale,do_resize,feature_extractor_type,"
        "image_mean,image_processor_type,image_std,input_data_format,processor_class,"
        "resample,rescale_factor,return_tensors,size";
    const char *key;
    json_t     *value;
    char        shown[80];
    json_object_foreach(root, key, value)
    {
        if (json_is_null(value) || json_is_false(value) || key[0] == '_' || str_list_has(known, key))
            continue;
        return err_user("%s: %s: Brim does not know what this key changes", name,
                        str_quote(shown, sizeof shown, key, strlen(key)));
    }
    return 0;
}

static int read_processor(HfConfig *c, const char *name, json_t *root)
{
    RecipeImage  *m      = &c->image;
    const json_t *factor = json_object_get(root, "rescale_factor");
    float         v[3];
    if (json_is_false(json_object_get(root, "do_rescale")) ||
        (factor && fabs(json_number_value(factor) * 255 - 1) > 1e-6))
        return err_user("%s: rescale_factor: Brim divides pixels by 255", name);
    TRY(check_processor_keys(name, root));
    TRY(read_fit(c, name, root));
    TRY(read_filter(c, name, root));
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
    int rc = json_is_object(root) ? read_processor(c, path, root) : err_user("%s: not a JSON map", path);
    json_decref(root);
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

int hfconf_check_image(const RecipeModel *m, const RecipeImage *image)
{
    const struct {
        int         fits;
        const char *key, *has, *want;
    } row[] = {
        { image->frames == 0, "image.frames", "clips", "image.frames=0" },
        { image->pool == POOL_CLASS, "image.pool", "a mean of tokens", "image.pool=class" },
        { image->registers == 0, "image.registers", "registers", "image.registers=0" },
        { image->pos == GRID_LEARNED, "image.pos", "positions by sines", "image.pos=learned" },
        { image->pos_size == image->size, "image.pos_size", "positions of another size", "image.pos_size=0" },
        { m->norm == NORM_LAYER, "model.norm", "RMSNorm", "model.norm=layernorm" },
        { m->act == FFN_GELU || m->act == FFN_GELU_ERF, "model.act", "this activation", "model.act=gelu" },
        { m->bias, "model.bias", "layers without biases", "model.bias=true" },
        { !m->qk_norm, "model.qk_norm", "norms of heads", "model.qk_norm=false" },
        { m->kv_heads == m->heads, "model.kv_heads", "shared key heads", "model.kv_heads=0" },
        { m->head_dim * m->heads == m->width, "model.head_dim", "such heads", "model.head_dim=0" },
        { m->layer_scale == 0, "model.layer_scale", "layer scale", "model.layer_scale=0" },
    };
    char keys[256] = "", has[256] = "", want[256] = "";
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        if (row[i].fits) continue;
        str_append(keys, sizeof keys, "%s%s", keys[0] ? ", " : "", row[i].key);
        str_append(has, sizeof has, "%s%s", has[0] ? ", nor " : "", row[i].has);
        str_append(want, sizeof want, "%s%s", want[0] ? " " : "", row[i].want);
    }
    if (!keys[0]) return 0;
    return err_user("%s: no Hugging Face ViT has %s (a run with %s can be written)", keys, has, want);
}

static const char *name_class(const ClassNames *c, int i, char *buf, size_t n)
{
    snprintf(buf, n, "LABEL_%d", i);
    return i < c->n ? c->name[i] : buf;
}

/* Where classes share a name, label2id has the first. */
static void write_labels(JsonOut *o, ClassNames *c, int n)
{
    char label[32], number[32];
    json_out_object(o, "id2label");
    for (int i = 0; i < n; i++) {
        snprintf(number, sizeof number, "%d", i);
        json_out_str(o, number, name_class(c, i, label, sizeof label));
    }
    json_out_close(o);
    json_out_object(o, "label2id");
    for (int i = 0; i < n; i++) {
        if (i >= c->n || class_names_find(c, c->name[i]) == i)
            json_out_int(o, name_class(c, i, label, sizeof label), i);
    }
    json_out_close(o);
}

int hfconf_image_write(JsonOut *o, const HfConfig *c)
{
    const RecipeModel *m = &c->model;
    ClassNames         names;
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
    class_names_init(&names);
    int rc = class_names_load(&names, &c->image);
    if (rc == 0) write_labels(o, &names, (int)c->image.classes);
    class_names_deinit(&names);
    return rc;
}

static void write_square(JsonOut *o, const char *key, int64_t side)
{
    json_out_object(o, key);
    json_out_int(o, "height", side);
    json_out_int(o, "width", side);
    json_out_close(o);
}

int hfconf_write_processor(const HfConfig *c, FILE *out)
{
    JsonOut o;
    int     squeeze = c->image.fit == FIT_SQUEEZE;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    /* ViTImageProcessor only squeezes. */
    json_out_str(&o, "image_processor_type", squeeze ? "ViTImageProcessor" : "BitImageProcessor");
    json_out_bool(&o, "do_resize", 1);
    if (squeeze) {
        write_square(&o, "size", c->image.size);
    } else {
        json_out_object(&o, "size");
        json_out_int(&o, "shortest_edge", (int64_t)((double)c->image.size / c->crop_fraction));
        json_out_close(&o);
        json_out_bool(&o, "do_center_crop", 1);
        write_square(&o, "crop_size", c->image.size);
    }
    json_out_int(&o, "resample", c->image.filter == FILTER_BICUBIC ? PILLOW_BICUBIC : PILLOW_BILINEAR);
    json_out_bool(&o, "do_convert_rgb", 1);
    json_out_bool(&o, "do_rescale", 1);
    json_out_num(&o, "rescale_factor", 1.0 / 255);
    json_out_bool(&o, "do_normalize", 1);
    hfconf_write_list(&o, "image_mean", c->image.mean);
    hfconf_write_list(&o, "image_std", c->image.std);
    return json_out_end(&o);
}
