/* Reading. Writing is hfconf_write.c. */
#include "conf/hfconf.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/hfconf_image.h"
#include "conf/hfconf_part.h"
#include "conf/hfconf_rope.h"
#include "conf/schema.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

const char *const hfconf_family_name[HF_FAMILIES] = { "gpt2",  "llama", "mistral", "qwen2",
                                                      "qwen3", "arcee", "phi3",    "vit" };

const char *hfconf_task(HfFamily family) { return family == HF_VIT ? "image" : "lm"; }

/* ---- What each key means ------------------------------------------------------------------------------- */

enum {
    GPT2     = 1 << HF_GPT2,
    LLAMA    = 1 << HF_LLAMA,
    MISTRAL  = 1 << HF_MISTRAL,
    QWEN2    = 1 << HF_QWEN2,
    QWEN3    = 1 << HF_QWEN3,
    ARCEE    = 1 << HF_ARCEE,
    PHI3     = 1 << HF_PHI3,
    VIT      = 1 << HF_VIT,
    GATED    = LLAMA | MISTRAL | QWEN2 | QWEN3 | PHI3,
    ROTARY   = GATED | ARCEE,
    TEXT     = GPT2 | ROTARY,
    FAMILIES = TEXT | VIT
};

typedef enum {
    KEY_COUNT,  /* a whole number from 1 on */
    KEY_MAYBE,  /* the same; null and 0: none */
    KEY_NUMBER, /* a positive number */
    KEY_SWITCH, /* true or false */
    KEY_ONLY,   /* must have one of the values in `only` */
    KEY_GELU,   /* a form of GELU */
    KEY_NOTHING /* changes nothing that Brim computes */
} HfKind;

typedef struct {
    const char *key;
    unsigned    families;
    HfKind      kind;
    size_t      offset; /* in HfConfig */
    const char *only;   /* compact JSON, alternatives between | */
} HfKey;

/* clang-format off */
#define MODEL(field) offsetof(HfConfig, model.field)
#define IMAGE(field) offsetof(HfConfig, image.field)
static const HfKey key_table[] = {
    { "vocab_size",              TEXT,     KEY_COUNT,  MODEL(vocab), NULL },
    { "n_embd",                  GPT2,     KEY_COUNT,  MODEL(width), NULL },
    { "n_layer",                 GPT2,     KEY_COUNT,  MODEL(layers), NULL },
    { "n_head",                  GPT2,     KEY_COUNT,  MODEL(heads), NULL },
    { "n_positions",             GPT2,     KEY_COUNT,  MODEL(context), NULL },
    { "n_inner",                 GPT2,     KEY_MAYBE,  MODEL(ffn), NULL },
    { "layer_norm_epsilon",      GPT2,     KEY_NUMBER, MODEL(norm_eps), NULL },
    { "activation_function",     GPT2,     KEY_GELU,   MODEL(act), NULL },
    { "scale_attn_weights",      GPT2,     KEY_ONLY,   0, "true" },
    { "scale_attn_by_inverse_layer_idx", GPT2, KEY_ONLY, 0, "false" },
    { "reorder_and_upcast_attn", GPT2,     KEY_ONLY,   0, "false" },
    { "hidden_size",             ROTARY | VIT, KEY_COUNT,  MODEL(width), NULL },
    { "num_hidden_layers",       ROTARY | VIT, KEY_COUNT,  MODEL(layers), NULL },
    { "num_attention_heads",     ROTARY | VIT, KEY_COUNT,  MODEL(heads), NULL },
    { "num_key_value_heads",     ROTARY,   KEY_MAYBE,  MODEL(kv_heads), NULL },
    { "head_dim",                ROTARY,   KEY_MAYBE,  MODEL(head_dim), NULL },
    { "intermediate_size",       ROTARY | VIT, KEY_COUNT,  MODEL(ffn), NULL },
    { "max_position_embeddings", ROTARY,   KEY_COUNT,  MODEL(context), NULL },
    { "rms_norm_eps",            ROTARY,   KEY_NUMBER, MODEL(norm_eps), NULL },
    { "rope_theta",              ROTARY,   KEY_NUMBER, MODEL(rope_theta), NULL },
    { "tie_word_embeddings",     TEXT,     KEY_SWITCH, MODEL(tied), NULL },
    { "sliding_window",          MISTRAL | PHI3, KEY_MAYBE,  MODEL(window), NULL },
    { "hidden_act",              GATED,    KEY_ONLY,   0, "\"silu\"|\"swish\"" },
    { "hidden_act",              ARCEE,    KEY_ONLY,   0, "\"relu2\"" },
    { "attention_bias",          ROTARY & ~QWEN2, KEY_ONLY, 0, "false" },
    { "mlp_bias",                ROTARY,   KEY_ONLY,   0, "false" },
    { "use_sliding_window",      QWEN2 | QWEN3, KEY_ONLY, 0, "false" },
    { "use_mrope",               ROTARY,   KEY_ONLY,   0, "false" },
    { "rope_interleaved",        ROTARY,   KEY_ONLY,   0, "false" },
    { "partial_rotary_factor",   ROTARY,   KEY_ONLY,   0, "1|1.0" },
    { "add_cross_attention",     FAMILIES, KEY_ONLY,   0, "false" },
    { "is_encoder_decoder",      FAMILIES, KEY_ONLY,   0, "false" },
    { "pruned_heads",            FAMILIES, KEY_ONLY,   0, "{}" },
    { "layer_norm_eps",          VIT,      KEY_NUMBER, MODEL(norm_eps), NULL },
    { "image_size",              VIT,      KEY_COUNT,  IMAGE(size), NULL },
    { "patch_size",              VIT,      KEY_COUNT,  IMAGE(patch), NULL },
    { "hidden_act",              VIT,      KEY_GELU,   MODEL(act), NULL },
    { "num_channels",            VIT,      KEY_ONLY,   0, "3" },
    { "qkv_bias",                VIT,      KEY_ONLY,   0, "true" },
    { "layer_types",             ROTARY,   KEY_NOTHING, 0, NULL }, /* checked by itself */
    { "rope_scaling",            ROTARY,   KEY_NOTHING, 0, NULL }, /* likewise */
    { "rope_parameters",         ROTARY,   KEY_NOTHING, 0, NULL },
    { "original_max_position_embeddings", ROTARY, KEY_NOTHING, 0, NULL }, /* likewise */
    { "sliding_window",          QWEN2 | QWEN3, KEY_NOTHING, 0, NULL },
    { "max_window_layers",       QWEN2 | QWEN3, KEY_NOTHING, 0, NULL },
    { "bos_token_id",            TEXT    , KEY_NOTHING, 0, NULL },
    { "eos_token_id",            TEXT    , KEY_NOTHING, 0, NULL },
    { "pad_token_id",            TEXT    , KEY_NOTHING, 0, NULL },
    { "attn_pdrop",              GPT2,     KEY_NOTHING, 0, NULL },
    { "embd_pdrop",              GPT2 | PHI3, KEY_NOTHING, 0, NULL }, /* for training; so is the next */
    { "resid_pdrop",             GPT2 | PHI3, KEY_NOTHING, 0, NULL },
    { "n_ctx",                   GPT2,     KEY_NOTHING, 0, NULL },
    { "n_special",               GPT2,     KEY_NOTHING, 0, NULL },
    { "predict_special_tokens",  GPT2,     KEY_NOTHING, 0, NULL },
    { "summary_activation",      GPT2,     KEY_NOTHING, 0, NULL }, /* of a head that text does not use */
    { "summary_first_dropout",   GPT2,     KEY_NOTHING, 0, NULL },
    { "summary_proj_to_labels",  GPT2,     KEY_NOTHING, 0, NULL },
    { "summary_type",            GPT2,     KEY_NOTHING, 0, NULL },
    { "summary_use_proj",        GPT2,     KEY_NOTHING, 0, NULL },
    { "encoder_stride",          VIT,      KEY_NOTHING, 0, NULL }, /* of a head that paints pixels */
    { "pooler_act",              VIT,      KEY_NOTHING, 0, NULL }, /* of a pooler: its weights are refused */
    { "pooler_output_size",      VIT,      KEY_NOTHING, 0, NULL },
    { "problem_type",            VIT,      KEY_NOTHING, 0, NULL },
    { "hidden_dropout_prob",     VIT,      KEY_NOTHING, 0, NULL },
    { "attention_probs_dropout_prob", VIT, KEY_NOTHING, 0, NULL },
};

/* Keys of every family that change nothing that Brim computes: who made the file, how others train, and how
 * they write text. */
static const char *const harmless[] = {
    "model_type", "dtype", "torch_dtype", "architectures", "transformers_version", "initializer_range",
    "use_cache", "tokenizer_class", "pretraining_tp", "gradient_checkpointing", "task_specific_params",
    "id2label", "label2id", "is_decoder", "output_past", "attention_dropout", "is_llama_config",
    "output_attentions", "output_hidden_states", "output_scores", "return_dict", "return_dict_in_generate",
    "use_bfloat16", "chunk_size_feed_forward", "auto_map", "transformers.js_config", "unsloth_fixed",
    "unsloth_version", "torchscript", "finetuning_task", "prefix", "bad_words_ids", "do_sample",
    "early_stopping", "length_penalty", "max_length", "min_length", "no_repeat_ngram_size", "num_beams",
    "num_beam_groups", "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p",
    "typical_p", "diversity_penalty", "encoder_no_repeat_ngram_size", "remove_invalid_values",
    "tie_encoder_decoder", "tf_legacy_loss", "max_sequence_length",
};
/* clang-format on */

/* What the transformers library takes for a key that is absent. */
static RecipeModel defaults_of(HfFamily family)
{
    RecipeModel m = { .layers     = 32,
                      .width      = 4096,
                      .heads      = 32,
                      .ffn        = 11008,
                      .vocab      = 32000,
                      .context    = 2048,
                      .norm       = NORM_RMS,
                      .norm_eps   = 1e-6,
                      .pos        = POS_ROPE,
                      .rope_theta = 10000,
                      .act        = FFN_SWIGLU,
                      .mask       = MASKING_CAUSAL,
                      .init_std   = 0.02 };
    switch (family) {
    case HF_GPT2:
        m.layers = m.heads = 12;
        m.width            = 768;
        m.ffn              = 0;
        m.vocab            = 50257;
        m.context          = 1024;
        m.norm             = NORM_LAYER;
        m.norm_eps         = 1e-5;
        m.pos              = POS_LEARNED;
        m.act              = FFN_GELU;
        m.bias = m.tied = 1;
        break;
    case HF_MISTRAL:
        m.ffn      = 14336;
        m.kv_heads = 8;
        m.context  = 131072;
        m.window   = 4096;
        break;
    case HF_QWEN2:
    case HF_QWEN3:
        m.vocab    = 151936;
        m.ffn      = 22016;
        m.kv_heads = 32;
        m.context  = 32768;
        m.qkv_bias = family == HF_QWEN2;
        m.qk_norm  = family == HF_QWEN3;
        if (family == HF_QWEN3) m.head_dim = 128;
        break;
    case HF_ARCEE:
        m.width    = 2560;
        m.ffn      = 18432;
        m.context  = 4096;
        m.norm_eps = 1e-5;
        m.act      = FFN_RELU2;
        break;
    case HF_PHI3:
        m.width    = 3072;
        m.ffn      = 8192;
        m.vocab    = 32064;
        m.context  = 4096;
        m.norm_eps = 1e-5;
        break;
    case HF_VIT:
        m.layers = m.heads = 12;
        m.width            = 768;
        m.ffn              = 3072;
        m.norm             = NORM_LAYER;
        m.norm_eps         = 1e-12;
        m.pos              = POS_LEARNED;
        m.act              = FFN_GELU_ERF;
        m.bias             = 1;
        m.mask             = MASKING_FULL;
        break;
    default: break;
    }
    m.rope_factor = m.rope_low = 1;
    m.rope_high                = 4;
    m.rope_original            = 8192;
    m.rope_fast                = 32;
    m.rope_slow = m.rope_truncate = 1;
    return m;
}

/* ---- One key ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name; /* of the file, for messages */
    HfConfig   *c;
} Reading;

int hfconf_refuse(const char *name, const char *key, const json_t *value, const char *want)
{
    char  shown[80], quoted[80];
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    str_quote(shown, sizeof shown, text ? text : "?", text ? strlen(text) : 1);
    free(text);
    return err_user("%s: %s: %s, but %s", name, str_quote(quoted, sizeof quoted, key, strlen(key)), shown,
                    want);
}

static int refuse(const Reading *r, const char *key, const json_t *value, const char *want)
{
    return hfconf_refuse(r->name, key, value, want);
}

static int set_count(const Reading *r, const HfKey *k, const json_t *value, int64_t *out)
{
    if (k->kind == KEY_MAYBE && (json_is_null(value) || json_is_false(value))) {
        *out = 0;
        return 0;
    }
    if (!json_is_integer(value) || json_integer_value(value) < (k->kind == KEY_COUNT) ||
        json_integer_value(value) > INT32_MAX)
        return refuse(r, k->key, value, "Brim needs a whole number here");
    *out = json_integer_value(value);
    return 0;
}

static int is_one_of(const json_t *value, const char *only)
{
    char *text  = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int   found = 0;
    for (const char *at = only; text && at && !found;) {
        size_t n = strcspn(at, "|");
        found    = strlen(text) == n && memcmp(text, at, n) == 0;
        at       = at[n] ? at + n + 1 : NULL;
    }
    free(text);
    return found;
}

static int set_gelu(const Reading *r, const HfKey *k, const json_t *value, FfnKind *out)
{
    int exact = is_one_of(value, "\"gelu\"|\"gelu_python\"");
    if (!exact && !is_one_of(value, "\"gelu_new\"|\"gelu_pytorch_tanh\""))
        return refuse(r, k->key, value, "Brim computes gelu, gelu_new and gelu_pytorch_tanh here");
    *out = exact ? FFN_GELU_ERF : FFN_GELU;
    return 0;
}

static int set_key(const Reading *r, const HfKey *k, const json_t *value)
{
    char *field = (char *)r->c + k->offset;
    char  want[128];
    switch (k->kind) {
    case KEY_COUNT:
    case KEY_MAYBE: return set_count(r, k, value, (int64_t *)field);
    case KEY_NUMBER:
        if (!json_is_number(value) || !(json_number_value(value) > 0))
            return refuse(r, k->key, value, "Brim needs a positive number here");
        *(double *)field = json_number_value(value);
        return 0;
    case KEY_SWITCH:
        if (!json_is_boolean(value)) return refuse(r, k->key, value, "Brim needs true or false here");
        *(int *)field = json_is_true(value);
        return 0;
    case KEY_GELU: return set_gelu(r, k, value, (FfnKind *)field);
    case KEY_ONLY:
        if (json_is_null(value) || is_one_of(value, k->only)) return 0;
        snprintf(want, sizeof want, "Brim computes only %s", k->only);
        return refuse(r, k->key, value, want);
    default: return 0;
    }
}

static const HfKey *find_key(const char *key, HfFamily family)
{
    for (int i = 0; i < ARRAY_LEN(key_table); i++) {
        if ((key_table[i].families & (1u << family)) && strcmp(key_table[i].key, key) == 0)
            return &key_table[i];
    }
    return NULL;
}

static int is_harmless(const char *key)
{
    for (int i = 0; i < ARRAY_LEN(harmless); i++) {
        if (strcmp(harmless[i], key) == 0) return 1;
    }
    return key[0] == '_';
}

/* ---- The whole file ------------------------------------------------------------------------------------ */

static int check_layer_types(const Reading *r, const json_t *list)
{
    size_t      i;
    json_t     *item;
    const char *want = r->c->model.window ? "sliding_attention" : "full_attention";
    json_array_foreach((json_t *)list, i, item)
    {
        if (!json_is_string(item) || strcmp(json_string_value(item), want) != 0)
            return refuse(r, "layer_types", item, "Brim computes the same attention in every layer");
    }
    return 0;
}

static void read_dtype(HfConfig *c, const json_t *root)
{
    const char *text = json_string_value(json_object_get(root, "dtype"));
    if (!text) text = json_string_value(json_object_get(root, "torch_dtype"));
    if (!text) return;
    if (str_starts_with(text, "torch.")) text += strlen("torch.");
    str_copy(c->dtype, sizeof c->dtype, text);
}

static void add_eos(HfConfig *c, const json_t *value)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0 || c->n_eos == HF_MAX_EOS) return;
    c->eos[c->n_eos++] = json_integer_value(value);
}

/* bos and eos: a number, a list or null. */
static void read_ends(HfConfig *c, const json_t *root)
{
    const json_t *bos = json_object_get(root, "bos_token_id"), *eos = json_object_get(root, "eos_token_id");
    if (json_is_integer(bos)) c->bos = json_integer_value(bos);
    if (!eos) return;
    c->n_eos = 0;
    add_eos(c, eos);
    for (size_t i = 0; i < json_array_size(eos); i++) add_eos(c, json_array_get(eos, i));
}

/* Bounds of the recipe's own keys. */
static int check_bounds(const Reading *r)
{
    RecipeModel *m = &r->c->model;
    Recipe      *tmp;
    char         why[160];
    if (m->kv_heads == 0) m->kv_heads = m->heads;
    if (m->ffn == 0) m->ffn = 4 * m->width;
    if (m->head_dim == 0 && m->width % m->heads != 0)
        return err_user("%s: num_attention_heads: %lld does not divide the width, %lld", r->name,
                        (long long)m->heads, (long long)m->width);
    if (m->head_dim == 0) m->head_dim = m->width / m->heads;
    if (m->heads % m->kv_heads != 0)
        return err_user("%s: num_key_value_heads: %lld does not divide the %lld heads", r->name,
                        (long long)m->kv_heads, (long long)m->heads);
    if (m->pos == POS_ROPE && m->head_dim % 2 != 0)
        return err_user("%s: head_dim: %lld is odd", r->name, (long long)m->head_dim);
    if (!(tmp = calloc(1, sizeof *tmp))) return err_sys("memory for a recipe");
    tmp->model = *m;
    tmp->image = r->c->image;
    str_copy(tmp->task, sizeof tmp->task, hfconf_task(r->c->family));
    int rc = 0;
    for (int i = 0; i < schema_count && rc == 0; i++) {
        const char *key = schema_table[i].name;
        if (!str_starts_with(key, "model.") && !str_starts_with(key, "image.")) continue;
        if (!schema_applies(tmp, &schema_table[i])) continue;
        if (schema_check(&schema_table[i], tmp, why, sizeof why) < 0)
            rc = err_user("%s: %s: %s", r->name, schema_table[i].name, why);
    }
    free(tmp);
    return rc;
}

static int find_family(const Reading *r, const json_t *root)
{
    const json_t *type = json_object_get(root, "model_type");
    if (!json_is_string(type)) return err_user("%s: model_type: missing: what model is this?", r->name);
    for (int i = 0; i < HF_FAMILIES; i++) {
        if (strcmp(json_string_value(type), hfconf_family_name[i]) == 0) return i;
    }
    return refuse(r, "model_type", type,
                  "Brim reads gpt2, llama, mistral, qwen2, qwen3, arcee, phi3 and vit");
}

static int parse_root(const Reading *r, json_t *root)
{
    HfConfig   *c = r->c;
    const char *key;
    json_t     *value;
    int         family = find_family(r, root);
    if (family < 0) return -1;
    c->family = (HfFamily)family;
    c->model  = defaults_of(c->family);
    if (c->family == HF_VIT) hfconf_image_defaults(&c->image);
    c->crop_fraction = 1;
    json_object_foreach(root, key, value)
    {
        const HfKey *k = find_key(key, c->family);
        if (!k && (is_harmless(key) || json_is_null(value))) continue;
        if (!k) return refuse(r, key, value, "Brim does not know what this key changes");
        TRY(set_key(r, k, value));
    }
    TRY(hfconf_rope_read(c, r->name, root));
    TRY(check_layer_types(r, json_object_get(root, "layer_types")));
    read_dtype(c, root);
    if (c->family == HF_VIT) {
        TRY(hfconf_image_labels(c, r->name, root));
    } else {
        read_ends(c, root);
    }
    return check_bounds(r);
}

int hfconf_parse(HfConfig *c, const char *name, const char *text, size_t n)
{
    json_error_t why;
    char         buf[128];
    Reading      r = { name, c };
    memset(c, 0, sizeof *c);
    c->bos       = -1;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return err_user("%s:%d: not JSON: %s", name, why.line,
                        str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    int rc = json_is_object(root) ? parse_root(&r, root) : err_user("%s: not a JSON map", name);
    json_decref(root);
    return rc;
}

int hfconf_is_folder(const char *dir)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/config.json", dir) < (int)sizeof path &&
           file_kind(path) == FILE_REGULAR;
}

/* What generation_config.json says of the ids that end a text. A folder may have none. */
static int read_generation(HfConfig *c, const char *dir)
{
    char         path[PATH_MAX], buf[128], *text = NULL;
    size_t       n;
    json_error_t why;
    if (snprintf(path, sizeof path, "%s/generation_config.json", dir) >= (int)sizeof path)
        return err_user("%s: path too long", dir);
    if (file_kind(path) == FILE_NONE) return 0;
    TRY(file_read_all(path, HF_CONFIG_BYTES, &text, &n));
    json_t *root = json_loadb(text, n, 0, &why);
    int     rc   = 0;
    if (!root) {
        rc = err_user("%s:%d: not JSON: %s", path, why.line,
                      str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    } else if (!json_is_object(root)) {
        rc = err_user("%s: not a JSON map", path);
    } else {
        read_ends(c, root);
    }
    json_decref(root);
    free(text);
    return rc;
}

int hfconf_read(HfConfig *c, const char *dir)
{
    char   path[PATH_MAX], *text = NULL;
    size_t n;
    if (snprintf(path, sizeof path, "%s/config.json", dir) >= (int)sizeof path)
        return err_user("%s: path too long", dir);
    if (file_kind(path) == FILE_NONE) return err_user("%s: no such file: not a Hugging Face folder", path);
    TRY(file_read_all(path, HF_CONFIG_BYTES, &text, &n));
    int rc = hfconf_parse(c, path, text, n);
    free(text);
    if (rc == 0 && c->family == HF_VIT) return hfconf_image_processor(c, dir);
    return rc < 0 ? rc : read_generation(c, dir);
}
