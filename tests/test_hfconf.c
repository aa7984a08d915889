/* config.json of Hugging Face models as published: each is read, to the model that it describes. */
#include "base/err.h"
#include "conf/hfconf.h"
#include "net/rope.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    const char *name, *text;
    HfFamily    family;
    RecipeModel m; /* layers, width, heads, kv_heads, head_dim, ffn, vocab, context, tied and rope;
                    * rope_attention is what comes of the others */
} Published;

#define EIGHT(x) #x ", " #x ", " #x ", " #x ", " #x ", " #x ", " #x ", " #x
#define PHI_SHORT                                                                                            \
    EIGHT(1.05) ", " EIGHT(1.0800000000000003) ", " EIGHT(1.1) ", " EIGHT(1.2) ", " EIGHT(2) ", " EIGHT(2.5)
#define PHI_LONG                                                                                             \
    EIGHT(1.0299999713897705) ", " EIGHT(1.05) ", " EIGHT(4.0) ", " EIGHT(16) ", " EIGHT(32.5) ", " EIGHT(64)
#define PHI_3                                                                                                \
    "{\"model_type\": \"phi3\", \"architectures\": [\"Phi3ForCausalLM\"], \"attention_bias\": false,"        \
    " \"attention_dropout\": 0.0, \"auto_map\": {\"AutoConfig\": \"configuration_phi3.Phi3Config\"},"        \
    " \"bos_token_id\": 1, \"embd_pdrop\": 0.0, \"eos_token_id\": 32000, \"hidden_act\": \"silu\","          \
    " \"hidden_size\": 3072, \"initializer_range\": 0.02, \"intermediate_size\": 8192,"                      \
    " \"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 32,"                  \
    " \"original_max_position_embeddings\": 4096, \"pad_token_id\": 32000, \"resid_pdrop\": 0.0,"            \
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false,"                     \
    " \"torch_dtype\": \"bfloat16\", \"use_cache\": true, \"vocab_size\": 32064, "

#define LLAMA_32_ROPE                                                                                        \
    "{\"factor\": 32.0, \"high_freq_factor\": 4.0, \"low_freq_factor\": 1.0, "                               \
    "\"original_max_position_embeddings\": 8192, \"rope_type\": \"llama3\"}"

/* What the keys of these files say, without those that every file has. */
static const Published published[] = {
    { "gpt2-medium",
      "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"activation_function\": "
      "\"gelu_new\","
      " \"attn_pdrop\": 0.1, \"bos_token_id\": 50256, \"embd_pdrop\": 0.1, \"eos_token_id\": 50256,"
      " \"initializer_range\": 0.02, \"layer_norm_epsilon\": 1e-05, \"n_ctx\": 1024, \"n_embd\": 1024,"
      " \"n_head\": 16, \"n_layer\": 24, \"n_positions\": 1024, \"n_special\": 0,"
      " \"predict_special_tokens\": true, \"resid_pdrop\": 0.1, \"summary_activation\": null,"
      " \"summary_first_dropout\": 0.1, \"summary_proj_to_labels\": true, \"summary_type\": \"cls_index\","
      " \"summary_use_proj\": true, \"task_specific_params\": {\"text-generation\": {\"max_length\": 50}},"
      " \"vocab_size\": 50257}",
      HF_GPT2,
      { .layers     = 24,
        .width      = 1024,
        .heads      = 16,
        .kv_heads   = 16,
        .head_dim   = 64,
        .ffn        = 4096,
        .vocab      = 50257,
        .context    = 1024,
        .tied       = 1,
        .rope_theta = 10000 } },
    { "SmolLM2-135M",
      "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false,"
      " \"attention_dropout\": 0.0, \"bos_token_id\": 0, \"eos_token_id\": 0, \"hidden_act\": \"silu\","
      " \"hidden_size\": 576, \"initializer_range\": 0.041666666666666664, \"intermediate_size\": 1536,"
      " \"is_llama_config\": true, \"max_position_embeddings\": 8192, \"mlp_bias\": false,"
      " \"num_attention_heads\": 9, \"num_hidden_layers\": 30, \"num_key_value_heads\": 3,"
      " \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_interleaved\": false, \"rope_scaling\": null,"
      " \"rope_theta\": 100000, \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\","
      " \"transformers.js_config\": {\"kv_cache_dtype\": {\"fp16\": \"float16\"}}, \"use_cache\": true,"
      " \"vocab_size\": 49152}",
      HF_LLAMA,
      { .layers     = 30,
        .width      = 576,
        .heads      = 9,
        .kv_heads   = 3,
        .head_dim   = 64,
        .ffn        = 1536,
        .vocab      = 49152,
        .context    = 8192,
        .tied       = 1,
        .rope_theta = 100000 } },
    { "TinyLlama-1.1B",
      "{\"model_type\": \"llama\", \"attention_bias\": false, \"bos_token_id\": 1, \"eos_token_id\": 2,"
      " \"hidden_act\": \"silu\", \"hidden_size\": 2048, \"intermediate_size\": 5632,"
      " \"max_position_embeddings\": 2048, \"num_attention_heads\": 32, \"num_hidden_layers\": 22,"
      " \"num_key_value_heads\": 4, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null,"
      " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"vocab_size\": 32000}",
      HF_LLAMA,
      { .layers     = 22,
        .width      = 2048,
        .heads      = 32,
        .kv_heads   = 4,
        .head_dim   = 64,
        .ffn        = 5632,
        .vocab      = 32000,
        .context    = 2048,
        .rope_theta = 10000 } },
    { "Llama-3.2-1B",
      "{\"model_type\": \"llama\", \"attention_bias\": false, \"bos_token_id\": 128000, \"head_dim\": 64,"
      " \"eos_token_id\": 128001, \"hidden_act\": \"silu\", \"hidden_size\": 2048, \"intermediate_size\": "
      "8192,"
      " \"max_position_embeddings\": 131072, \"mlp_bias\": false, \"num_attention_heads\": 32,"
      " \"num_hidden_layers\": 16, \"num_key_value_heads\": 8, \"pretraining_tp\": 1, \"rms_norm_eps\": "
      "1e-05,"
      " \"rope_scaling\": " LLAMA_32_ROPE ", \"rope_theta\": 500000.0, \"tie_word_embeddings\": true,"
      " \"unsloth_fixed\": true, \"vocab_size\": 128256}",
      HF_LLAMA,
      { .layers       = 16,
        .width        = 2048,
        .heads        = 32,
        .kv_heads     = 8,
        .head_dim     = 64,
        .ffn          = 8192,
        .vocab        = 128256,
        .context      = 131072,
        .tied         = 1,
        .rope_theta   = 500000,
        .rope_scaling = ROPE_LLAMA3 } },
    { "Mistral-7B-v0.1",
      "{\"model_type\": \"mistral\", \"bos_token_id\": 1, \"eos_token_id\": 2, \"hidden_act\": \"silu\","
      " \"hidden_size\": 4096, \"intermediate_size\": 14336, \"max_position_embeddings\": 32768,"
      " \"num_attention_heads\": 32, \"num_hidden_layers\": 32, \"num_key_value_heads\": 8,"
      " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"sliding_window\": 4096,"
      " \"tie_word_embeddings\": false, \"vocab_size\": 32000}",
      HF_MISTRAL,
      { .layers     = 32,
        .width      = 4096,
        .heads      = 32,
        .kv_heads   = 8,
        .head_dim   = 128,
        .ffn        = 14336,
        .vocab      = 32000,
        .context    = 32768,
        .window     = 4096,
        .rope_theta = 10000 } },
    { "Mistral-7B-v0.3",
      "{\"model_type\": \"mistral\", \"attention_dropout\": 0.0, \"bos_token_id\": 1, \"eos_token_id\": 2,"
      " \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"intermediate_size\": 14336,"
      " \"max_position_embeddings\": 32768, \"num_attention_heads\": 32, \"num_hidden_layers\": 32,"
      " \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0,"
      " \"sliding_window\": null, \"tie_word_embeddings\": false, \"vocab_size\": 32768}",
      HF_MISTRAL,
      { .layers     = 32,
        .width      = 4096,
        .heads      = 32,
        .kv_heads   = 8,
        .head_dim   = 128,
        .ffn        = 14336,
        .vocab      = 32768,
        .context    = 32768,
        .rope_theta = 1000000 } },
    { "Qwen2.5-0.5B",
      "{\"model_type\": \"qwen2\", \"attention_dropout\": 0.0, \"bos_token_id\": 151643,"
      " \"eos_token_id\": 151643, \"hidden_act\": \"silu\", \"hidden_size\": 896, \"intermediate_size\": "
      "4864,"
      " \"max_position_embeddings\": 32768, \"max_window_layers\": 24, \"num_attention_heads\": 14,"
      " \"num_hidden_layers\": 24, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06,"
      " \"rope_theta\": 1000000.0, \"sliding_window\": 32768, \"tie_word_embeddings\": true,"
      " \"use_mrope\": false, \"use_sliding_window\": false, \"vocab_size\": 151936}",
      HF_QWEN2,
      { .layers     = 24,
        .width      = 896,
        .heads      = 14,
        .kv_heads   = 2,
        .head_dim   = 64,
        .ffn        = 4864,
        .vocab      = 151936,
        .context    = 32768,
        .tied       = 1,
        .rope_theta = 1000000 } },
    { "Qwen3-0.6B",
      "{\"model_type\": \"qwen3\", \"attention_bias\": false, \"attention_dropout\": 0.0,"
      " \"bos_token_id\": 151643, \"eos_token_id\": 151645, \"head_dim\": 128, \"hidden_act\": \"silu\","
      " \"hidden_size\": 1024, \"intermediate_size\": 3072, \"max_position_embeddings\": 40960,"
      " \"max_window_layers\": 28, \"num_attention_heads\": 16, \"num_hidden_layers\": 28,"
      " \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000,"
      " \"sliding_window\": null, \"tie_word_embeddings\": true, \"use_sliding_window\": false,"
      " \"vocab_size\": 151936}",
      HF_QWEN3,
      { .layers     = 28,
        .width      = 1024,
        .heads      = 16,
        .kv_heads   = 8,
        .head_dim   = 128,
        .ffn        = 3072,
        .vocab      = 151936,
        .context    = 40960,
        .tied       = 1,
        .rope_theta = 1000000 } },
    { "Phi-3-mini-4k-instruct",
      PHI_3 "\"max_position_embeddings\": 4096, \"rope_scaling\": null, \"sliding_window\": 2047}",
      HF_PHI3,
      { .layers     = 32,
        .width      = 3072,
        .heads      = 32,
        .kv_heads   = 32,
        .head_dim   = 96,
        .ffn        = 8192,
        .vocab      = 32064,
        .context    = 4096,
        .window     = 2047,
        .rope_theta = 10000 } },
    { "phi-4",
      "{\"model_type\": \"phi3\", \"architectures\": [\"Phi3ForCausalLM\"], \"attention_bias\": false,"
      " \"attention_dropout\": 0.0, \"bos_token_id\": 100257, \"embd_pdrop\": 0.0, \"eos_token_id\": 100265,"
      " \"hidden_act\": \"silu\", \"hidden_size\": 5120, \"intermediate_size\": 17920,"
      " \"max_position_embeddings\": 16384, \"num_attention_heads\": 40, \"num_hidden_layers\": 40,"
      " \"num_key_value_heads\": 10, \"original_max_position_embeddings\": 16384, \"pad_token_id\": 100349,"
      " \"resid_pdrop\": 0.0, \"rms_norm_eps\": 1e-05, \"rope_scaling\": null, \"rope_theta\": 250000,"
      " \"sliding_window\": null, \"tie_word_embeddings\": false, \"use_cache\": true, \"vocab_size\": "
      "100352}",
      HF_PHI3,
      { .layers     = 40,
        .width      = 5120,
        .heads      = 40,
        .kv_heads   = 10,
        .head_dim   = 128,
        .ffn        = 17920,
        .vocab      = 100352,
        .context    = 16384,
        .rope_theta = 250000 } },
    { "Phi-3-mini-128k-instruct",
      PHI_3 "\"max_position_embeddings\": 131072, \"sliding_window\": 262144, \"rope_scaling\": {"
            "\"long_factor\": [" PHI_LONG "], \"short_factor\": [" PHI_SHORT "], \"type\": \"longrope\"}}",
      HF_PHI3,
      { .layers         = 32,
        .width          = 3072,
        .heads          = 32,
        .kv_heads       = 32,
        .head_dim       = 96,
        .ffn            = 8192,
        .vocab          = 32064,
        .context        = 131072,
        .window         = 262144,
        .rope_theta     = 10000,
        .rope_scaling   = ROPE_LONG,
        .rope_factor    = 32,
        .rope_original  = 4096,
        .rope_attention = 1.1902380714238083 } },
    { "Qwen2.5-7B-Instruct with the YaRN of its page",
      "{\"model_type\": \"qwen2\", \"attention_dropout\": 0.0, \"bos_token_id\": 151643,"
      " \"eos_token_id\": 151645, \"hidden_act\": \"silu\", \"hidden_size\": 3584, \"intermediate_size\": "
      "18944,"
      " \"max_position_embeddings\": 32768, \"max_window_layers\": 28, \"num_attention_heads\": 28,"
      " \"num_hidden_layers\": 28, \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-06,"
      " \"rope_theta\": 1000000.0, \"sliding_window\": 131072, \"tie_word_embeddings\": false,"
      " \"use_sliding_window\": false, \"vocab_size\": 152064, \"rope_scaling\": {\"factor\": 4.0,"
      " \"original_max_position_embeddings\": 32768, \"type\": \"yarn\"}}",
      HF_QWEN2,
      { .layers         = 28,
        .width          = 3584,
        .heads          = 28,
        .kv_heads       = 4,
        .head_dim       = 128,
        .ffn            = 18944,
        .vocab          = 152064,
        .context        = 32768,
        .rope_theta     = 1000000,
        .rope_scaling   = ROPE_YARN,
        .rope_factor    = 4,
        .rope_original  = 32768,
        .rope_attention = 1.1386294361119891 } },
    { "AFM-4.5B",
      "{\"model_type\": \"arcee\", \"architectures\": [\"ArceeForCausalLM\"], \"attention_bias\": false,"
      " \"attention_dropout\": 0.0, \"bos_token_id\": 128000, \"eos_token_id\": 128001, \"head_dim\": 128,"
      " \"hidden_act\": \"relu2\", \"hidden_size\": 2560, \"intermediate_size\": 18432,"
      " \"max_position_embeddings\": 65536, \"mlp_bias\": false, \"num_attention_heads\": 20,"
      " \"num_hidden_layers\": 36, \"num_key_value_heads\": 4, \"rms_norm_eps\": 1e-05,"
      " \"rope_scaling\": {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 20.0, \"mscale\": 1.0,"
      " \"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\", \"type\": \"yarn\"},"
      " \"rope_theta\": 10000.0, \"tie_word_embeddings\": false, \"vocab_size\": 128004}",
      HF_ARCEE,
      { .layers         = 36,
        .width          = 2560,
        .heads          = 20,
        .kv_heads       = 4,
        .head_dim       = 128,
        .ffn            = 18432,
        .vocab          = 128004,
        .context        = 65536,
        .rope_theta     = 10000,
        .rope_scaling   = ROPE_YARN,
        .rope_factor    = 20,
        .rope_original  = 4096,
        .rope_attention = 1.2995732273553991 } },
};

static void published_configs_are_read(void **state)
{
    for (int i = 0; i < ARRAY_LEN(published); i++) {
        const Published   *p = &published[i];
        const RecipeModel *m = &p->m;
        HfConfig           c;
        if (hfconf_parse(&c, p->name, p->text, strlen(p->text)) < 0) fail_msg("%s", err_get());
        assert_int_equal(c.family, p->family);
        assert_int_equal(c.model.layers, m->layers);
        assert_int_equal(c.model.width, m->width);
        assert_int_equal(c.model.heads, m->heads);
        assert_int_equal(c.model.kv_heads, m->kv_heads);
        assert_int_equal(c.model.head_dim, m->head_dim);
        assert_int_equal(c.model.ffn, m->ffn);
        assert_int_equal(c.model.vocab, m->vocab);
        assert_int_equal(c.model.context, m->context);
        assert_int_equal(c.model.window, m->window);
        assert_int_equal(c.model.tied, m->tied);
        assert_int_equal(c.model.rope_scaling, m->rope_scaling);
        assert_true(c.model.rope_theta == m->rope_theta);
        if (m->rope_factor > 0) assert_true(c.model.rope_factor == m->rope_factor);
        if (m->rope_original > 0) assert_int_equal(c.model.rope_original, m->rope_original);
        assert_true(fabs(rope_attention(&c.model) - (m->rope_attention > 0 ? m->rope_attention : 1)) < 1e-15);
        /* A model that two families compute is written as the plainer one. */
        HfFamily plain = p->family == HF_MISTRAL && !m->window ? HF_LLAMA : p->family;
        if (p->family == HF_PHI3 && m->rope_scaling == ROPE_NONE) plain = m->window ? HF_MISTRAL : HF_LLAMA;
        assert_int_equal(hfconf_family_of(&c.model), plain);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(published_configs_are_read) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
