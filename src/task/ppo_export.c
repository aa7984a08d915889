/* A trained policy for other programs: policy.safetensors has every weight by name, policy.h is C that runs
 * an mlp without Brim.
 *
 * policy.h holds every number as a hexadecimal float, so no bit is lost, and two functions. policy_run()
 * gives what the net says, policy_act() the action that `brim play` takes. The head comment of policy.h says
 * what an observation is. Scale, bias and normalisation of an observation are part of policy_run(). */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "file/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PATH = 4096 };

/* ---- safetensors -------------------------------------------------------------------------------------- */

/* A run on a GPU keeps weights in 16 bits that are frozen or gave way. */
static int is_half(const SafeTensor *t) { return t->dtype == DT_BF16 || t->dtype == DT_F16; }

static int is_weight(const SafeTensor *t)
{
    return strncmp(t->name, "state.", 6) != 0 && (t->dtype == DT_F32 || is_half(t));
}

static int copy_tensor(const SafeFile *from, const SafeTensor *t, SafeWriter *w)
{
    size_t bytes = is_half(t) ? (size_t)t->n_elem * sizeof(float) : t->size_bytes;
    void  *buf   = mem_alloc(bytes + 1);
    if (!buf) return err_sys("memory for %s", t->name);
    int rc = is_half(t) ? safetensors_read_f32(from, t, 0, t->n_elem, buf)
                        : safetensors_read(from, t->offset, buf, bytes);
    if (rc == 0) rc = safetensors_write_data(w, buf, bytes);
    free(buf);
    return rc;
}

static int copy_tensors(const SafeFile *from, const char *path)
{
    SafeMeta    meta = { "format", "pt" };
    SafeTensor *as   = mem_alloc(sizeof *as * (size_t)from->n_tensor + 1);
    if (!as) return err_sys("memory for %d tensors", from->n_tensor);
    for (int i = 0; i < from->n_tensor; i++) {
        as[i] = from->tensor[i];
        if (is_half(&as[i])) as[i].dtype = DT_F32;
    }
    SafeWriter *w = safetensors_write_begin(path, as, from->n_tensor, &meta, 1);
    free(as);
    if (!w) return -1;
    int rc = 0;
    for (int i = 0; i < from->n_tensor && rc == 0; i++) rc = copy_tensor(from, &from->tensor[i], w);
    if (rc == 0) return safetensors_write_publish(&w, NULL);
    safetensors_write_discard(&w);
    return -1;
}

/* ---- the header --------------------------------------------------------------------------------------- */

typedef struct {
    const Recipe    *r;
    const RecipeEnv *s;
    const SafeFile  *from;
    FILE            *f;
} Header;

static void print_floats(Header *h, const char *name, const char *size, const float *x, int64_t n)
{
    fprintf(h->f, "static const float policy_%s[%s] = {", name, size);
    for (int64_t i = 0; i < n; i++) fprintf(h->f, "%s%af,", i % 6 == 0 ? "\n    " : " ", (double)x[i]);
    fputs("\n};\n", h->f);
}

static int print_weights(Header *h, const SafeTensor *t)
{
    char   as[256] = "", size[32];
    float *x       = mem_alloc((size_t)t->n_elem * sizeof *x + 1);
    if (!x) return err_sys("memory for %s", t->name);
    int rc = safetensors_read_f32(h->from, t, 0, t->n_elem, x);
    str_copy(as, sizeof as, t->name);
    for (char *c = as; *c; c++) *c = *c == '.' || *c == ' ' ? '_' : *c;
    snprintf(size, sizeof size, "%lld", (long long)t->n_elem);
    if (rc == 0) print_floats(h, as, size, x, t->n_elem);
    free(x);
    return rc;
}

/* Mean and deviation of observations, as the net saw them last. In double, as Brim computes with them. */
static int print_norm(Header *h)
{
    int64_t           dim = h->s->obs_dim;
    const SafeTensor *t   = safetensors_find(h->from, "state.obs statistics");
    double           *x   = mem_alloc((size_t)(1 + 2 * dim) * sizeof *x);
    if (!t || t->n_elem != 1 + 2 * dim) {
        free(x);
        return err_set("%s: has no statistics of observations", h->from->path);
    }
    if (!x) return err_sys("memory for statistics");
    int rc = safetensors_read(h->from, t->offset, x, (size_t)(1 + 2 * dim) * sizeof *x);
    for (int part = 0; part < 2 && rc == 0; part++) {
        fprintf(h->f, "static const double policy_obs_%s[POLICY_OBS] = {", part ? "std" : "mean");
        for (int64_t i = 0; i < dim; i++) {
            double var = x[0] > 0 ? x[1 + dim + i] / x[0] : 1, mean = x[0] > 0 ? x[1 + i] : 0;
            fprintf(h->f, "%s%a,", i % 6 == 0 ? "\n    " : " ",
                    part ? sqrt(var + (double)PPO_OBS_EPS) : mean);
        }
        fputs("\n};\n", h->f);
    }
    free(x);
    return rc;
}

/* Of each number of an observation. */
static int print_scales(Header *h)
{
    const RecipeEnv *s = h->s;
    float           *x = mem_alloc((size_t)s->obs_dim * sizeof *x);
    if (!x) return err_sys("memory for scales");
    for (int part = 0; part < 2; part++) {
        int64_t n = 0;
        for (int k = 0; k < s->n_block; k++)
            for (int64_t i = 0; i < s->block[k].n_elem; i++)
                x[n++] = part ? s->block[k].bias : s->block[k].scale;
        print_floats(h, part ? "obs_bias" : "obs_scale", "POLICY_OBS", x, n);
    }
    free(x);
    return 0;
}

static int has_scale(const RecipeEnv *s)
{
    for (int k = 0; k < s->n_block; k++)
        if (s->block[k].scale != 1 || s->block[k].bias != 0) return 1;
    return 0;
}

static const char layer_text[] =
    "static inline void policy_layer(const float *w, const float *b, int in, int out, const float *x, float "
    "*y)\n"
    "{\n"
    "    for (int o = 0; o < out; o++) {\n"
    "        y[o] = b[o];\n"
    "        for (int i = 0; i < in; i++) y[o] += w[o * in + i] * x[i];\n"
    "    }\n"
    "}\n";

static void print_hidden(Header *h, const Mlp *m)
{
    static const char *const acts[] = { [POLICY_TANH] = "tanhf(h[i])",
                                        [POLICY_RELU] = "h[i] > 0 ? h[i] : 0",
                                        [POLICY_SILU] = "h[i] / (1 + expf(-h[i]))",
                                        [POLICY_GELU] = "0.5f * h[i] * (1 + tanhf(0.7978845608f * (h[i] + "
                                                        "0.044715f * h[i] * h[i] * h[i])))" };
    long long                w      = (long long)m->width;
    fputs("    policy_look(obs, x);\n", h->f);
    for (int l = 0; l < m->layers; l++) {
        long long in = l == 0 ? (long long)m->in : w;
        fprintf(h->f, "    policy_layer(policy_%s_%d_weight, policy_%s_%d_bias, %lld, %lld, x, h);\n",
                m->name, l, m->name, l, in, w);
        fprintf(h->f, "    for (int i = 0; i < %lld; i++) x[i] = %s;\n", w, acts[h->r->policy.act]);
    }
}

static void print_head(Header *h, const Mlp *m, const char *head, const char *n_out, const char *to)
{
    fprintf(h->f, "    policy_layer(policy_%s_weight, policy_%s_bias, %lld, %s, x, %s);\n", head, head,
            (long long)m->width, n_out, to);
}

/* What the net sees of an observation. */
static void print_look(Header *h)
{
    const RecipePpo *r = &h->r->ppo;
    fputs("\nstatic inline void policy_look(const float *obs, float *x)\n{\n", h->f);
    fprintf(h->f, "    for (int i = 0; i < POLICY_OBS; i++) x[i] = %s;\n",
            has_scale(h->s) ? "obs[i] * policy_obs_scale[i] + policy_obs_bias[i]" : "obs[i]");
    if (r->obs_norm) {
        double clip = (double)(float)r->obs_clip;
        fputs("    for (int i = 0; i < POLICY_OBS; i++)\n"
              "        x[i] = (float)((x[i] - policy_obs_mean[i]) / policy_obs_std[i]);\n",
              h->f);
        fprintf(h->f, "    for (int i = 0; i < POLICY_OBS; i++) x[i] = fminf(fmaxf(x[i], %af), %af);\n",
                -clip, clip);
    }
    fputs("}\n\n", h->f);
}

static void print_run(Header *h)
{
    const RecipePolicy *p = &h->r->policy;
    Mlp                 a = ppo_policy_actor(p, h->s), c = ppo_policy_critic(p, h->s);
    int64_t             most = MAX(a.width, c.width);
    fprintf(h->f, "static inline void policy_run(const float *obs, float *%s, float *value)\n{\n",
            h->s->is_discrete ? "logits" : "mean, float *log_std");
    fprintf(h->f, "    float x[%lld], h[%lld];\n", (long long)MAX(most, h->s->obs_dim), (long long)most);
    print_hidden(h, &a);
    print_head(h, &a, "policy", "POLICY_OUT", h->s->is_discrete ? "logits" : "mean");
    if (!h->s->is_discrete && p->state_std) print_head(h, &a, "std", "POLICY_OUT", "log_std");
    if (!h->s->is_discrete && !p->state_std)
        fputs("    for (int i = 0; i < POLICY_OUT; i++) log_std[i] = policy_log_std[i];\n", h->f);
    if (!p->shared) print_hidden(h, &c);
    print_head(h, &c, "value", "1", "value");
    fputs("}\n\n", h->f);
}

static const char act_heads[] =
    "static inline void policy_act(const float *obs, const unsigned char *mask, int *action)\n"
    "{\n"
    "    float logits[POLICY_OUT], value;\n"
    "    policy_run(obs, logits, &value);\n"
    "    for (int h = 0; h < POLICY_ACT; h++) {\n"
    "        int best = -1;\n"
    "        for (int k = policy_head[h]; k < policy_head[h + 1]; k++)\n"
    "            if ((!mask || mask[k]) && (best < 0 || logits[k] > logits[best])) best = k;\n"
    "        action[h] = best < 0 ? 0 : best - policy_head[h];\n"
    "    }\n"
    "}\n";

static const char act_range[] =
    "static inline void policy_act(const float *obs, float *action)\n"
    "{\n"
    "    float log_std[POLICY_OUT], value;\n"
    "    policy_run(obs, action, log_std, &value);\n"
    "    for (int i = 0; i < POLICY_ACT; i++)\n"
    "        action[i] = fminf(fmaxf(action[i], policy_low[i]), policy_high[i]);\n"
    "}\n";

static void print_about(Header *h)
{
    const RecipeEnv *s = h->s;
    fprintf(h->f,
            "/* A policy for %s, trained by Brim. Needs C99 and libm.\n *\n"
            " * An observation is %lld number%s as the environment gives them, before any scale:\n",
            h->r->ppo.env, (long long)s->obs_dim, str_plural(s->obs_dim));
    for (int k = 0; k < s->n_block; k++)
        fprintf(h->f, " *     %s (%lld)\n", s->block[k].name, (long long)s->block[k].n_elem);
    fputs(s->is_discrete
              ? " *\n * policy_act() gives the most likely choice of each head. mask has a byte for each "
                "choice; 0"
                "\n * forbids the choice. mask NULL: all are allowed."
                "\n * policy_run() gives the logits, those of head h from policy_head[h] to policy_head[h + "
                "1], "
                "and the\n * value. */\n"
              : " *\n * policy_act() gives the mean of each number of the action, inside its range."
                "\n * policy_run() gives the means, the logarithms of the deviations, and the value. In "
                "training "
                "an\n * action was mean + exp(log_std) x a normal number, cut to policy_low and policy_high. "
                "*/\n",
          h->f);
    fputs("#ifndef POLICY_H\n#define POLICY_H\n\n#include <math.h>\n\n", h->f);
}

static void print_action(Header *h)
{
    const RecipeEnv *s = h->s;
    fprintf(h->f, "enum { POLICY_OBS = %lld, POLICY_OUT = %lld, POLICY_ACT = %d };\n\n",
            (long long)s->obs_dim, (long long)s->n_out, s->n_act);
    if (!s->is_discrete) {
        print_floats(h, "low", "POLICY_ACT", s->low, s->n_act);
        print_floats(h, "high", "POLICY_ACT", s->high, s->n_act);
        return;
    }
    fputs("static const int policy_head[POLICY_ACT + 1] = {", h->f);
    for (int i = 0; i <= s->n_act; i++) fprintf(h->f, "%s %d", i ? "," : "", (int)s->seg[i]);
    fputs(" };\n", h->f);
}

static int print_all(Header *h)
{
    print_about(h);
    print_action(h);
    for (int i = 0; i < h->from->n_tensor; i++)
        if (is_weight(&h->from->tensor[i])) TRY(print_weights(h, &h->from->tensor[i]));
    if (has_scale(h->s)) TRY(print_scales(h));
    if (h->r->ppo.obs_norm) TRY(print_norm(h));
    fprintf(h->f, "\n%s", layer_text);
    print_look(h);
    print_run(h);
    fprintf(h->f, "%s\n#endif\n", h->s->is_discrete ? act_heads : act_range);
    return ferror(h->f) ? err_sys("policy.h") : 0;
}

static int write_header(const Recipe *r, const SafeFile *from, const char *path)
{
    Recipe own = *r;
    TRY(ppo_know_env(&own));
    Header h = { .r = r, .s = &own.ppo.seen, .from = from, .f = file_create_tmp(path) };
    if (!h.f) return -1;
    if (print_all(&h) < 0) {
        file_discard(&h.f);
        return -1;
    }
    return file_publish(&h.f, path);
}

static int export_open(const Recipe *r, const TaskExport *opt, const SafeFile *from)
{
    char tensors[MOST_PATH], header[MOST_PATH];
    if (snprintf(tensors, sizeof tensors, "%s/policy.safetensors", opt->out) >= (int)sizeof tensors ||
        snprintf(header, sizeof header, "%s/policy.h", opt->out) >= (int)sizeof header)
        return err_user("command line: %.64s...: the path is too long", opt->out);
    TRY(file_make_folders(opt->out));
    TRY(copy_tensors(from, tensors));
    if (r->policy.kind != POLICY_MLP) {
        printf("%s (policy.h is for an mlp alone)\n", tensors);
        return 0;
    }
    TRY(write_header(r, from, header));
    printf("%s\n%s\n", tensors, header);
    return 0;
}

int ppo_export(const Recipe *r, const TaskExport *opt)
{
    SafeFile from = { 0 };
    char     path[MOST_PATH];
    if (opt->dtype && strcmp(opt->dtype, "float32") != 0)
        return err_user("command line: --dtype: a policy is exported as float32");
    if (snprintf(path, sizeof path, "%s/model.safetensors", opt->checkpoint) >= (int)sizeof path)
        return err_set("%s: the path is too long", opt->checkpoint);
    TRY(safetensors_open(&from, path));
    int rc = export_open(r, opt, &from);
    safetensors_close(&from);
    return rc;
}
