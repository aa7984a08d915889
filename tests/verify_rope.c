/* Tiny Hugging Face folders with random weights, and what their models say: a reference in double precision,
 * written from the formulas of the transformers library (modeling_rope_utils.py, modeling_llama.py,
 * modeling_phi3.py) and sharing no code with Brim's nets. For tests/test_hf_rope.sh.
 *
 *     verify_rope list
 *     verify_rope make NAME DIR     config.json, model.safetensors; ids.txt, logits.f32 [60, 64] of these
 *                                   ids; greedy.txt, what follows the first 16, and gap.txt, how far apart
 *                                   the two best logits were each time */
#include "base/err.h"
#include "base/file.h"
#include "file/safetensors.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    C      = 64, /* width */
    H      = 4,
    KV     = 2,
    D      = 16, /* of a head */
    F      = 48,
    V      = 64,
    L      = 2,
    QKV    = (H + 2 * KV) * D,
    IDS    = 60,
    PROMPT = 16,
    GREEDY = 40,
    MOST   = 64, /* tokens in a sequence */
    N_TEXT = 4096
};

typedef enum { YARN, LONGROPE, PLAIN } Kind;

/* NAN: the config does not give it. */
typedef struct {
    const char *name, *config; /* keys of config.json beside those of every model */
    Kind        kind;
    double      factor, attention, fast, slow, mscale, mscale_all, original, most /* positions */;
    int         truncate, qk_norm, qkv_bias, fused, window;
} Model;

static const double short_factor[D / 2] = { 1, 1.02, 1.05, 1.1, 1.3, 1.7, 2.1, 2.5 };

#define FACTORS                                                                                              \
    "\"short_factor\": [1, 1.02, 1.05, 1.1, 1.3, 1.7, 2.1, 2.5], "                                           \
    "\"long_factor\": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.5, 8.0]"

/* clang-format off */
static const Model models[] = {
    { "yarn-llama",
      "\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"head_dim\": 16, "
      "\"attention_bias\": false, \"mlp_bias\": false, \"max_position_embeddings\": 128, "
      "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 4.0, "
      "\"original_max_position_embeddings\": 32}",
      YARN, 4, NAN, NAN, NAN, NAN, NAN, 32, 128, 1, 0, 0, 0, 0 },
    { "yarn-all", /* every key, as transformers 4 wrote them */
      "\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"head_dim\": 16, "
      "\"max_position_embeddings\": 100, \"rope_theta\": 10000.0, \"rope_scaling\": {\"type\": \"yarn\", "
      "\"factor\": 2.5, \"original_max_position_embeddings\": 40, \"beta_fast\": 4, \"beta_slow\": 0.125, "
      "\"mscale\": 0.7, \"mscale_all_dim\": 1.2, \"truncate\": false, \"finetuned\": true}",
      YARN, 2.5, NAN, 4, 0.125, 0.7, 1.2, 40, 100, 0, 0, 0, 0, 0 },
    { "yarn-qwen3", /* the original context is that of the model */
      "\"model_type\": \"qwen3\", \"architectures\": [\"Qwen3ForCausalLM\"], \"head_dim\": 16, "
      "\"attention_bias\": false, \"use_sliding_window\": false, \"max_position_embeddings\": 64, "
      "\"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 3.0, "
      "\"attention_factor\": 1.25, \"beta_fast\": 8}",
      YARN, 3, 1.25, 8, NAN, NAN, NAN, 64, 64, 1, 1, 0, 0, 0 },
    { "yarn-qwen2", /* the factor follows from the context, and the original one stands outside */
      "\"model_type\": \"qwen2\", \"architectures\": [\"Qwen2ForCausalLM\"], "
      "\"use_sliding_window\": false, \"max_position_embeddings\": 80, "
      "\"original_max_position_embeddings\": 20, \"rope_parameters\": {\"rope_type\": \"yarn\", "
      "\"rope_theta\": 10000.0, \"factor\": null}",
      YARN, NAN, NAN, NAN, NAN, NAN, NAN, 20, 80, 1, 0, 1, 0, 0 },
    { "yarn-mistral",
      "\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], \"head_dim\": 16, "
      "\"sliding_window\": 24, \"max_position_embeddings\": 128, \"rope_theta\": 500.0, \"rope_scaling\": "
      "{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32, "
      "\"beta_fast\": 3.0, \"mscale\": 1.0}",
      YARN, 4, NAN, 3, NAN, 1, NAN, 32, 128, 1, 0, 0, 0, 24 },
    { "phi3", /* as Phi-3-mini-4k: the window is below the context */
      "\"model_type\": \"phi3\", \"architectures\": [\"Phi3ForCausalLM\"], \"attention_bias\": false, "
      "\"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0, \"pad_token_id\": null, \"max_position_embeddings\": 128, "
      "\"original_max_position_embeddings\": 128, \"rope_scaling\": null, \"rope_theta\": 10000.0, "
      "\"sliding_window\": 20",
      PLAIN, NAN, NAN, NAN, NAN, NAN, NAN, 128, 128, 1, 0, 0, 1, 20 },
    { "phi3-long", /* as Phi-3-mini-128k */
      "\"model_type\": \"phi3\", \"architectures\": [\"Phi3ForCausalLM\"], \"attention_bias\": false, "
      "\"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0, \"pad_token_id\": null, \"max_position_embeddings\": 256, "
      "\"original_max_position_embeddings\": 64, \"rope_theta\": 10000.0, \"sliding_window\": 256, "
      "\"rope_scaling\": {\"type\": \"longrope\", " FACTORS "}",
      LONGROPE, NAN, NAN, NAN, NAN, NAN, NAN, 64, 256, 1, 0, 0, 1, 0 },
    { "llama-long",
      "\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"head_dim\": 16, "
      "\"max_position_embeddings\": 64, \"rope_parameters\": {\"rope_type\": \"longrope\", \"factor\": 8.0, "
      "\"rope_theta\": 10000.0, \"attention_factor\": 1.1, \"original_max_position_embeddings\": 64, "
      FACTORS "}",
      LONGROPE, 8, 1.1, NAN, NAN, NAN, NAN, 64, 64, 1, 0, 0, 0, 0 },
};
/* clang-format on */

/* ---- Weights ------------------------------------------------------------------------------------------- */

typedef struct {
    float norm1[C], qkv[QKV][C], bias[QKV], q_norm[D], k_norm[D], proj[C][H * D], norm2[C], up[2 * F][C],
        down[C][F];
} Layer;

typedef struct {
    float embed[V][C], norm[C], head[V][C];
    Layer layer[L];
} Weights;

static uint64_t dice;

static float draw(void)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(dice >> 40) / 8388608.0 - 1); /* from -1 to 1 */
}

/* Norms are around 1; the rest is large enough that positions decide which token is the likeliest. */
static void fill(float *x, size_t n, float mean, float spread)
{
    for (size_t i = 0; i < n; i++) x[i] = mean + spread * draw();
}

static void draw_weights(Weights *w)
{
    fill(&w->embed[0][0], V * C, 0, 1);
    fill(w->norm, C, 1, 0.3f);
    fill(&w->head[0][0], V * C, 0, 0.3f);
    for (int l = 0; l < L; l++) {
        Layer *y = &w->layer[l];
        fill(y->norm1, C, 1, 0.3f);
        fill(&y->qkv[0][0], QKV * C, 0, 0.3f);
        fill(y->bias, QKV, 0, 0.5f);
        fill(y->q_norm, D, 1, 0.3f);
        fill(y->k_norm, D, 1, 0.3f);
        fill(&y->proj[0][0], C * H * D, 0, 0.3f);
        fill(y->norm2, C, 1, 0.3f);
        fill(&y->up[0][0], 2 * F * C, 0, 0.3f);
        fill(&y->down[0][0], C * F, 0, 0.3f);
    }
}

/* ---- The folder ---------------------------------------------------------------------------------------- */

typedef struct {
    SafeTensor   tensor[64];
    const float *data[64];
    char         name[64][128];
    int          n;
} Files;

static void add(Files *f, const char *name, const float *data, int64_t rows, int64_t cols)
{
    int i = f->n++;
    CHECK(i < 64, "room");
    snprintf(f->name[i], sizeof f->name[i], "%s", name);
    f->data[i]   = data;
    f->tensor[i] = (SafeTensor){ .name       = f->name[i],
                                 .dtype      = DT_F32,
                                 .ndim       = rows > 0 ? 2 : 1,
                                 .dim        = { rows > 0 ? rows : cols, cols },
                                 .n_elem     = (rows > 0 ? rows : 1) * cols,
                                 .size_bytes = sizeof(float) * (size_t)((rows > 0 ? rows : 1) * cols) };
}

static void add_layer(Files *f, const Model *m, int l, const Layer *y)
{
    char at[80], name[128];
    snprintf(at, sizeof at, "model.layers.%d.", l);
#define ADD(part, data, rows, cols)                                                                          \
    (snprintf(name, sizeof name, "%s%s", at, part ".weight"), add(f, name, data, rows, cols))
#define BIAS(part, data, cols)                                                                               \
    (snprintf(name, sizeof name, "%s%s", at, part ".bias"), add(f, name, data, 0, cols))
    ADD("input_layernorm", y->norm1, 0, C);
    if (m->fused) {
        ADD("self_attn.qkv_proj", y->qkv[0], QKV, C);
        ADD("mlp.gate_up_proj", y->up[0], 2 * F, C);
    } else {
        ADD("self_attn.q_proj", y->qkv[0], H * D, C);
        ADD("self_attn.k_proj", y->qkv[H * D], KV * D, C);
        ADD("self_attn.v_proj", y->qkv[(H + KV) * D], KV * D, C);
        ADD("mlp.gate_proj", y->up[0], F, C);
        ADD("mlp.up_proj", y->up[F], F, C);
    }
    if (m->qkv_bias) {
        BIAS("self_attn.q_proj", y->bias, H * D);
        BIAS("self_attn.k_proj", y->bias + H * D, KV * D);
        BIAS("self_attn.v_proj", y->bias + (H + KV) * D, KV * D);
    }
    if (m->qk_norm) {
        ADD("self_attn.q_norm", y->q_norm, 0, D);
        ADD("self_attn.k_norm", y->k_norm, 0, D);
    }
    ADD("self_attn.o_proj", y->proj[0], C, H * D);
    ADD("post_attention_layernorm", y->norm2, 0, C);
    ADD("mlp.down_proj", y->down[0], C, F);
}

static void write_weights(const Model *m, const Weights *w, const char *dir)
{
    static Files   f;
    const SafeMeta meta = { "format", "pt" };
    char           path[PATH_MAX];
    add(&f, "model.embed_tokens.weight", w->embed[0], V, C);
    for (int l = 0; l < L; l++) add_layer(&f, m, l, &w->layer[l]);
    add(&f, "model.norm.weight", w->norm, 0, C);
    add(&f, "lm_head.weight", w->head[0], V, C);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    SafeWriter *out = safetensors_write_begin(path, f.tensor, f.n, &meta, 1);
    CHECK(out, "%s", err_get());
    for (int i = 0; i < f.n; i++)
        CHECK(safetensors_write_data(out, f.data[i], f.tensor[i].size_bytes) == 0, "%s", err_get());
    CHECK(safetensors_write_publish(&out, NULL) == 0, "%s", err_get());
}

static FILE *open_in(const char *dir, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    CHECK(f, "%s: cannot be written", path);
    return f;
}

static void write_config(const Model *m, const char *dir)
{
    FILE *f = open_in(dir, "config.json");
    fprintf(
        f,
        "{%s, \"hidden_size\": %d, \"num_hidden_layers\": %d, \"num_attention_heads\": %d, "
        "\"num_key_value_heads\": %d, \"intermediate_size\": %d, \"vocab_size\": %d, \"hidden_act\": "
        "\"silu\", \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": false, \"torch_dtype\": \"float32\", "
        "\"bos_token_id\": null, \"eos_token_id\": null}\n",
        m->config, C, L, H, KV, F, V);
    CHECK(fclose(f) == 0, "config.json");
}

/* ---- The rotation -------------------------------------------------------------------------------------- */

static double given(double x, double otherwise) { return isnan(x) ? otherwise : x; }

static double get_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0;
}

static double correction_dim(double rotations, double base, double original)
{
    return D * log(original / (rotations * 2 * acos(-1.0))) / (2 * log(base));
}

/* inverse frequencies into inv[D/2]; returns the factor of cosines and sines. */
static double yarn(const Model *m, double base, double *inv)
{
    double factor = given(m->factor, m->most / m->original), attention = m->attention;
    if (isnan(attention) && !isnan(m->mscale) && !isnan(m->mscale_all))
        attention = get_mscale(factor, m->mscale) / get_mscale(factor, m->mscale_all);
    if (isnan(attention)) attention = get_mscale(factor, 1);
    double low  = correction_dim(given(m->fast, 32), base, m->original);
    double high = correction_dim(given(m->slow, 1), base, m->original);
    if (m->truncate) low = floor(low), high = ceil(high);
    if (low < 0) low = 0;
    if (high > D - 1) high = D - 1;
    if (low == high) high += 0.001;
    for (int i = 0; i < D / 2; i++) {
        double freq = pow(base, 2.0 * i / D), ramp = (i - low) / (high - low);
        double extrapolation = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        inv[i]               = 1 / (factor * freq) * (1 - extrapolation) + 1 / freq * extrapolation;
    }
    return attention;
}

static double longrope(const Model *m, double base, double *inv)
{
    double factor = given(m->factor, m->most / m->original);
    for (int i = 0; i < D / 2; i++) inv[i] = 1 / (short_factor[i] * pow(base, 2.0 * i / D));
    if (!isnan(m->attention)) return m->attention;
    return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(m->original));
}

static double frequencies(const Model *m, double *inv)
{
    double base = strcmp(m->name, "yarn-mistral") == 0 ? 500 : 10000;
    if (m->kind == YARN) return yarn(m, base, inv);
    if (m->kind == LONGROPE) return longrope(m, base, inv);
    for (int i = 0; i < D / 2; i++) inv[i] = pow(base, -2.0 * i / D);
    return 1;
}

/* ---- The model ----------------------------------------------------------------------------------------- */

static void rms_norm(double *y, const double *x, const float *gain, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / n + 1e-5) * (double)gain[i];
}

static void product(double *y, const float *w, const double *x, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < cols; c++) y[r] += (double)w[r * cols + c] * x[c];
    }
}

static void rotate(double *x, int at, const double *inv, double scale)
{
    for (int i = 0; i < D / 2; i++) {
        double c = cos(at * inv[i]) * scale, s = sin(at * inv[i]) * scale, a = x[i], b = x[i + D / 2];
        x[i]         = a * c - b * s;
        x[i + D / 2] = b * c + a * s;
    }
}

/* o [H][D] of the query at t over keys and values of qkv[0 .. t]. */
static void attend(const Model *m, double *o, double qkv[MOST][QKV], int t)
{
    int first = m->window > 0 && t + 1 > m->window ? t + 1 - m->window : 0;
    for (int h = 0; h < H; h++) {
        double        weight[MOST], sum = 0, best = -INFINITY;
        const double *q = &qkv[t][h * D];
        for (int k = first; k <= t; k++) {
            const double *key = &qkv[k][(H + h / (H / KV)) * D];
            weight[k]         = 0;
            for (int i = 0; i < D; i++) weight[k] += q[i] * key[i] / sqrt(D);
            best = fmax(best, weight[k]);
        }
        for (int k = first; k <= t; k++) sum += weight[k] = exp(weight[k] - best);
        for (int i = 0; i < D; i++) {
            o[h * D + i] = 0;
            for (int k = first; k <= t; k++)
                o[h * D + i] += weight[k] / sum * qkv[k][(H + KV + h / (H / KV)) * D + i];
        }
    }
}

static void block(const Model *m, const Layer *y, double x[MOST][C], int n)
{
    static double qkv[MOST][QKV];
    double        inv[D / 2], scale = frequencies(m, inv), h[C], o[H * D], up[2 * F], add_to[C];
    for (int t = 0; t < n; t++) {
        rms_norm(h, x[t], y->norm1, C);
        product(qkv[t], y->qkv[0], h, QKV, C);
        for (int i = 0; i < QKV && m->qkv_bias; i++) qkv[t][i] += (double)y->bias[i];
        for (int i = 0; i < H + KV; i++) {
            double *head = &qkv[t][i * D];
            if (m->qk_norm) rms_norm(head, head, i < H ? y->q_norm : y->k_norm, D);
            rotate(head, t, inv, scale);
        }
    }
    for (int t = 0; t < n; t++) {
        attend(m, o, qkv, t);
        product(add_to, y->proj[0], o, C, H * D);
        for (int i = 0; i < C; i++) x[t][i] += add_to[i];
        rms_norm(h, x[t], y->norm2, C);
        product(up, y->up[0], h, 2 * F, C);
        for (int i = 0; i < F; i++) up[i] = up[i] / (1 + exp(-up[i])) * up[F + i];
        product(add_to, y->down[0], up, C, F);
        for (int i = 0; i < C; i++) x[t][i] += add_to[i];
    }
}

static void model(const Model *m, const Weights *w, const int *ids, int n, double logits[MOST][V])
{
    static double x[MOST][C];
    double        h[C];
    CHECK(n <= MOST, "%d ids", n);
    for (int t = 0; t < n; t++)
        for (int i = 0; i < C; i++) x[t][i] = (double)w->embed[ids[t]][i];
    for (int l = 0; l < L; l++) block(m, &w->layer[l], x, n);
    for (int t = 0; t < n; t++) {
        rms_norm(h, x[t], w->norm, C);
        product(logits[t], w->head[0], h, V, C);
    }
}

/* ---- What the model says ------------------------------------------------------------------------------- */

static int likeliest(const double *x, double *gap)
{
    int    best   = 0;
    double second = -INFINITY;
    for (int i = 1; i < V; i++) best = x[i] > x[best] ? i : best;
    for (int i = 0; i < V; i++) second = i != best ? fmax(second, x[i]) : second;
    *gap = x[best] - second;
    return best;
}

static void write_answers(const Model *m, const Weights *w, const char *dir)
{
    static double logits[MOST][V];
    int           ids[MOST];
    double        gap;
    FILE         *f = open_in(dir, "ids.txt");
    for (int i = 0; i < IDS; i++) {
        ids[i] = (int)((draw() + 1) * V / 2);
        fprintf(f, "%s%d", i ? " " : "", ids[i]);
    }
    fprintf(f, "\n");
    fclose(f);
    model(m, w, ids, IDS, logits);
    f = open_in(dir, "logits.f32");
    for (int i = 0; i < IDS * V; i++) fwrite(&(float){ (float)logits[i / V][i % V] }, sizeof(float), 1, f);
    fclose(f);
    f         = open_in(dir, "greedy.txt");
    FILE *far = open_in(dir, "gap.txt");
    for (int i = 0; i < GREEDY; i++) {
        model(m, w, ids, PROMPT + i, logits);
        ids[PROMPT + i] = likeliest(logits[PROMPT + i - 1], &gap);
        fprintf(f, "%s%d", i ? " " : "", ids[PROMPT + i]);
        fprintf(far, "%s%g", i ? " " : "", gap);
    }
    fprintf(f, "\n");
    fprintf(far, "\n");
    fclose(f);
    fclose(far);
}

int main(int argc, char **argv)
{
    static Weights w;
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (size_t i = 0; i < sizeof models / sizeof *models; i++) printf("%s\n", models[i].name);
        return 0;
    }
    CHECK(argc == 4 && strcmp(argv[1], "make") == 0, "usage: verify_rope list | make NAME DIR");
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        if (strcmp(models[i].name, argv[2]) != 0) continue;
        CHECK(file_make_folders(argv[3]) == 0, "%s", err_get());
        dice = 7 + i;
        draw_weights(&w);
        write_weights(&models[i], &w, argv[3]);
        write_config(&models[i], argv[3]);
        write_answers(&models[i], &w, argv[3]);
        return 0;
    }
    CHECK(0, "no model %s", argv[2]);
}
