/* A trained policy for other programs: policy.safetensors has every weight by name, policy.h is C11 that runs
 * an mlp without Brim.
 *
 * policy.h holds the weights as hexadecimal floats, so no bit is lost, and one function:
 *     void policy_run(const float *obs, float *out, float *value)
 * out: logits, or means of continuous actions, which the caller clips to their range. */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "file/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PATH = 4096 };

/* ---- safetensors -------------------------------------------------------------------------------------- */

static int copy_tensors(const SafeFile *from, const char *path)
{
    SafeMeta    meta = { "format", "pt" };
    SafeWriter *w    = safetensors_write_begin(path, from->tensor, from->n_tensor, &meta, 1);
    if (!w) return -1;
    int rc = 0;
    for (int i = 0; i < from->n_tensor && rc == 0; i++) {
        const SafeTensor *t   = &from->tensor[i];
        char             *buf = mem_alloc(t->size_bytes + 1);
        rc = buf ? safetensors_read(from, t->offset, buf, t->size_bytes) : err_sys("memory for %s", t->name);
        if (rc == 0) rc = safetensors_write_data(w, buf, t->size_bytes);
        free(buf);
    }
    if (rc == 0) return safetensors_write_publish(&w, NULL);
    safetensors_write_discard(&w);
    return -1;
}

/* ---- the header --------------------------------------------------------------------------------------- */

typedef struct {
    const Recipe   *r;
    const SafeFile *from;
    FILE           *f;
} Header;

static void print_name(FILE *f, const char *name)
{
    fputs("policy_", f);
    for (const char *c = name; *c; c++) fputc(*c == '.' || *c == ' ' ? '_' : *c, f);
}

static int print_weights(Header *h, const char *name)
{
    const SafeTensor *t = safetensors_find(h->from, name);
    if (!t) return err_set("%s: has no tensor %s", h->from->path, name);
    float *x = mem_alloc((size_t)t->n_elem * sizeof *x + 1);
    if (!x) return err_sys("memory for %s", name);
    int rc = safetensors_read_f32(h->from, t, 0, t->n_elem, x);
    if (rc == 0) {
        fputs("static const float ", h->f);
        print_name(h->f, name);
        fprintf(h->f, "[%lld] = {", (long long)t->n_elem);
        for (int64_t i = 0; i < t->n_elem; i++)
            fprintf(h->f, "%s%af,", i % 6 == 0 ? "\n    " : " ", (double)x[i]);
        fputs("\n};\n", h->f);
    }
    free(x);
    return rc;
}

/* Mean and deviation of observations, as the net saw them last. */
static int print_norm(Header *h, int64_t dim)
{
    const SafeTensor *t = safetensors_find(h->from, "state.obs statistics");
    double           *x = mem_alloc((size_t)(1 + 2 * dim) * sizeof *x);
    if (!t || t->n_elem != 1 + 2 * dim) {
        free(x);
        return err_set("%s: has no statistics of observations", h->from->path);
    }
    if (!x) return err_sys("memory for statistics");
    int rc = safetensors_read(h->from, t->offset, x, (size_t)(1 + 2 * dim) * sizeof *x);
    for (int part = 0; part < 2 && rc == 0; part++) {
        fprintf(h->f, "static const float policy_obs_%s[%lld] = {\n   ", part ? "scale" : "mean",
                (long long)dim);
        for (int64_t i = 0; i < dim; i++) {
            double var = x[0] > 0 ? x[1 + dim + i] / x[0] : 1;
            fprintf(h->f, " %af,", part ? 1 / sqrt(var + 1e-8) : x[0] > 0 ? x[1 + i] : 0);
        }
        fputs("\n};\n", h->f);
    }
    free(x);
    return rc;
}

static const char layer_text[] =
    "static void policy_layer(const float *w, const float *b, int in, int out, const float *x, float *y)\n"
    "{\n"
    "    for (int o = 0; o < out; o++) {\n"
    "        y[o] = b[o];\n"
    "        for (int i = 0; i < in; i++) y[o] += w[o * in + i] * x[i];\n"
    "    }\n"
    "}\n";

static void print_body(Header *h, const Mlp *m, const char *head, int64_t n_out, const char *to)
{
    static const char *const acts[] = { [POLICY_TANH] = "tanhf(h[i])",
                                        [POLICY_RELU] = "h[i] > 0 ? h[i] : 0",
                                        [POLICY_SILU] = "h[i] / (1 + expf(-h[i]))",
                                        [POLICY_GELU] = "0.5f * h[i] * (1 + tanhf(0.7978845608f * (h[i] + "
                                                        "0.044715f * h[i] * h[i] * h[i])))" };
    long long                w      = (long long)m->width;
    for (int l = 0; l < m->layers; l++) {
        long long in = l == 0 ? (long long)m->in : w;
        fprintf(h->f, "    policy_layer(policy_%s_%d_weight, policy_%s_%d_bias, %lld, %lld, x, h);\n",
                m->name, l, m->name, l, in, w);
        fprintf(h->f, "    for (int i = 0; i < %lld; i++) x[i] = %s;\n", w, acts[h->r->policy.act]);
    }
    fprintf(h->f, "    policy_layer(policy_%s_weight, policy_%s_bias, %lld, %lld, x, %s);\n", head, head, w,
            (long long)n_out, to);
}

static void print_start(Header *h, int64_t dim)
{
    const char *norm = h->r->ppo.obs_norm ? "(obs[i] - policy_obs_mean[i]) * policy_obs_scale[i]" : "obs[i]";
    fprintf(h->f, "    for (int i = 0; i < %lld; i++) x[i] = %s;\n", (long long)dim, norm);
    if (!h->r->ppo.obs_norm) return;
    fprintf(h->f, "    for (int i = 0; i < %lld; i++) x[i] = x[i] < %gf ? x[i] > -%gf ? x[i] : -%gf : %gf;\n",
            (long long)dim, h->r->ppo.obs_clip, h->r->ppo.obs_clip, h->r->ppo.obs_clip, h->r->ppo.obs_clip);
}

static int print_all(Header *h, const PpoSpec *s)
{
    const RecipePolicy *p = &h->r->policy;
    Mlp                 a = ppo_policy_actor(p, s), c = ppo_policy_critic(p, s);
    int64_t             most = MAX(a.width, c.width);
    fprintf(
        h->f,
        "/* A policy for %s, trained by Brim. policy_run() gives %lld %s and the value of an observation of "
        "%lld\n * numbers. Needs libm. */\n#ifndef POLICY_H\n#define POLICY_H\n\n#include <math.h>\n\n",
        h->r->ppo.env, (long long)s->n_out, s->is_discrete ? "logits" : "means", (long long)s->obs_dim);
    fprintf(h->f, "enum { POLICY_OBS = %lld, POLICY_OUT = %lld };\n\n", (long long)s->obs_dim,
            (long long)s->n_out);
    for (int i = 0; i < h->from->n_tensor; i++) {
        const char *name = h->from->tensor[i].name;
        if (h->from->tensor[i].dtype == DT_F32 && strncmp(name, "state.", 6) != 0)
            TRY(print_weights(h, name));
    }
    if (h->r->ppo.obs_norm) TRY(print_norm(h, s->obs_dim));
    fprintf(h->f, "\n%s\n", layer_text);
    fprintf(h->f,
            "static void policy_run(const float *obs, float *out, float *value)\n{\n    float x[%lld], "
            "h[%lld];\n",
            (long long)MAX(most, s->obs_dim), (long long)most);
    print_start(h, s->obs_dim);
    print_body(h, &a, "policy", s->n_out, "out");
    if (!p->shared) {
        print_start(h, s->obs_dim);
        print_body(h, &c, "value", 1, "value");
    } else {
        fprintf(h->f, "    policy_layer(policy_value_weight, policy_value_bias, %lld, 1, x, value);\n",
                (long long)p->width);
    }
    fputs("}\n\n#endif\n", h->f);
    return ferror(h->f) ? err_sys("policy.h") : 0;
}

static int write_header(const Recipe *r, const SafeFile *from, const char *path)
{
    PpoSpec s;
    TRY(ppo_read_spec(r, &s));
    Header h = { .r = r, .from = from, .f = file_create_tmp(path) };
    if (!h.f) return -1;
    if (print_all(&h, &s) < 0) {
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
