/* Writing config.json and generation_config.json. */
#include "conf/hfconf.h"

#include "base/err.h"
#include "base/str.h"
#include "conf/hfconf_image.h"
#include "conf/hfconf_part.h"
#include "conf/hfconf_rope.h"

int hfconf_family_of(const RecipeModel *m)
{
#define NEED(cond, key, text)                                                                                \
    do {                                                                                                     \
        if (!(cond)) return err_user(key ": no Hugging Face model that Brim writes has " text);              \
    } while (0)
    NEED(m->mask != MASKING_FULL && m->mask != MASKING_PREFIX, "model.mask", "this mask");
    if (m->norm == NORM_LAYER) {
        NEED(m->pos == POS_LEARNED, "model.pos", "rotary positions beside LayerNorm");
        NEED(m->act == FFN_GELU || m->act == FFN_GELU_ERF, "model.act", "this activation beside LayerNorm");
        NEED(!m->qk_norm, "model.qk_norm", "norms of heads beside LayerNorm");
        NEED(m->kv_heads == m->heads, "model.kv_heads", "shared key heads beside LayerNorm");
        NEED(m->head_dim * m->heads == m->width, "model.head_dim", "such heads beside LayerNorm");
        NEED(m->window == 0, "model.window", "a window beside LayerNorm");
        return HF_GPT2;
    }
    int is_arcee = m->act == FFN_RELU2;
    NEED(m->pos == POS_ROPE, "model.pos", "learned positions beside RMSNorm");
    NEED(m->act == FFN_SWIGLU || is_arcee, "model.act", "this activation beside RMSNorm");
    NEED(!m->bias, "model.bias", "biases on every layer beside RMSNorm");
    NEED(!m->qk_norm || !is_arcee, "model.qk_norm", "norms of heads and a squared ReLU");
    NEED(!m->qkv_bias || !is_arcee, "model.qkv_bias", "qkv_bias and a squared ReLU");
    NEED(m->window == 0 || !is_arcee, "model.window", "a window and a squared ReLU");
    NEED(!m->qk_norm || !m->qkv_bias, "model.qk_norm", "both norms of heads and qkv_bias");
    NEED(m->window == 0 || (!m->qk_norm && !m->qkv_bias), "model.window", "a window and qk_norm or qkv_bias");
    if (is_arcee) return HF_ARCEE;
    if (m->qk_norm) return HF_QWEN3;
    if (m->qkv_bias) return HF_QWEN2;
    if (m->rope_scaling == ROPE_LONG && m->head_dim * m->heads == m->width) return HF_PHI3;
    return m->window ? HF_MISTRAL : HF_LLAMA;
#undef NEED
}

void hfconf_write_list(JsonOut *o, const char *key, const char *list)
{
    char   item[64];
    double x;
    json_out_array(o, key);
    while (str_list_next(&list, item, sizeof item) > 0)
        json_out_num(o, NULL, str_parse_double(item, &x) == 0 ? x : 0);
    json_out_close(o);
}

static void write_gpt2(JsonOut *o, const RecipeModel *m)
{
    json_out_int(o, "n_embd", m->width);
    json_out_int(o, "n_layer", m->layers);
    json_out_int(o, "n_head", m->heads);
    json_out_int(o, "n_inner", m->ffn);
    json_out_int(o, "n_positions", m->context);
    json_out_num(o, "layer_norm_epsilon", m->norm_eps);
    json_out_str(o, "activation_function", m->act == FFN_GELU_ERF ? "gelu" : "gelu_new");
}

static void write_rotary(JsonOut *o, const HfConfig *c)
{
    const RecipeModel *m = &c->model;
    json_out_int(o, "hidden_size", m->width);
    json_out_int(o, "num_hidden_layers", m->layers);
    json_out_int(o, "num_attention_heads", m->heads);
    json_out_int(o, "num_key_value_heads", m->kv_heads);
    if (c->family != HF_PHI3 || m->head_dim * m->heads != m->width) json_out_int(o, "head_dim", m->head_dim);
    json_out_int(o, "intermediate_size", m->ffn);
    json_out_int(o, "max_position_embeddings", hfconf_rope_positions(m));
    json_out_num(o, "rms_norm_eps", m->norm_eps);
    json_out_str(o, "hidden_act", c->family == HF_ARCEE ? "relu2" : "silu");
    hfconf_rope_write(o, c);
    if (c->family == HF_MISTRAL || m->window > 0) json_out_int(o, "sliding_window", m->window);
    /* Its default, 32000, would have to be a row of the embedding. */
    if (c->family == HF_PHI3) json_out_str(o, "pad_token_id", NULL);
    if (c->family == HF_LLAMA || c->family == HF_QWEN3 || c->family == HF_ARCEE)
        json_out_bool(o, "attention_bias", 0);
    if (c->family == HF_LLAMA || c->family == HF_ARCEE) json_out_bool(o, "mlp_bias", 0);
    if (c->family == HF_QWEN2 || c->family == HF_QWEN3) json_out_bool(o, "use_sliding_window", 0);
}

static void write_ends(JsonOut *o, const HfConfig *c)
{
    if (c->bos >= 0) json_out_int(o, "bos_token_id", c->bos);
    if (c->bos < 0) json_out_str(o, "bos_token_id", NULL);
    if (c->n_eos == 1) {
        json_out_int(o, "eos_token_id", c->eos[0]);
    } else if (c->n_eos == 0) {
        json_out_str(o, "eos_token_id", NULL);
    } else {
        json_out_array(o, "eos_token_id");
        for (int i = 0; i < c->n_eos; i++) json_out_int(o, NULL, c->eos[i]);
        json_out_close(o);
    }
}

int hfconf_write_generation(const HfConfig *c, FILE *out)
{
    JsonOut o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    write_ends(&o, c);
    return json_out_end(&o);
}

int hfconf_write(const HfConfig *c, FILE *out)
{
    static const char *const class_of[HF_FAMILIES] = { "GPT2LMHeadModel",    "LlamaForCausalLM",
                                                       "MistralForCausalLM", "Qwen2ForCausalLM",
                                                       "Qwen3ForCausalLM",   "ArceeForCausalLM",
                                                       "Phi3ForCausalLM",    "ViTForImageClassification" };
    JsonOut                  o;
    json_out_init_file(&o, out);
    json_out_object(&o, NULL);
    json_out_array(&o, "architectures");
    json_out_str(&o, NULL, class_of[c->family]);
    json_out_close(&o);
    json_out_str(&o, "model_type", hfconf_family_name[c->family]);
    json_out_str(&o, "torch_dtype", c->dtype[0] ? c->dtype : "float32");
    if (c->family == HF_VIT) {
        TRY(hfconf_image_write(&o, c));
        return json_out_end(&o);
    }
    json_out_int(&o, "vocab_size", c->model.vocab);
    if (c->family == HF_GPT2) {
        write_gpt2(&o, &c->model);
    } else {
        write_rotary(&o, c);
    }
    json_out_bool(&o, "tie_word_embeddings", c->model.tied);
    write_ends(&o, c);
    return json_out_end(&o);
}
