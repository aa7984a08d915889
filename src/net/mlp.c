#include "net/mlp.h"

#include "prog/record.h"

#include <math.h>

static void declare(ParamTable *t, const MlpHead *h, Region region)
{
    Param p = { .ndim   = 2,
                .rows   = h->out,
                .cols   = h->in,
                .init   = INIT_ORTHOGONAL,
                .std    = h->gain,
                .decay  = 1,
                .region = region };
    param_name(p.name, "%s.weight", h->name);
    param_declare(t, &p);
    p = (Param){
        .ndim = 1, .rows = 1, .cols = h->out, .init = INIT_CONSTANT, .std = h->bias, .region = region
    };
    param_name(p.name, "%s.bias", h->name);
    param_declare(t, &p);
}

void mlp_declare(ParamTable *t, const Mlp *m)
{
    for (int l = 0; l < m->layers; l++) {
        char name[PARAM_NAME];
        param_name(name, "%s.%d", m->name, l);
        declare(t, &(MlpHead){ name, l == 0 ? m->in : m->width, m->width, sqrtf(2.0f), 0 }, REGION_COPY);
    }
}

void mlp_declare_head(ParamTable *t, const MlpHead *h) { declare(t, h, REGION_MASTER); }

static Tensor *record_linear(const ParamTable *t, Prog *p, const char *name, Tensor *x)
{
    char full[PARAM_NAME];
    param_name(full, "%s.weight", name);
    const Param *w = param_find(t, full);
    param_name(full, "%s.bias", name);
    int64_t dim[2] = { tensor_rows(x), w->rows };
    Tensor *y      = prog_tensor(p, name, x->dtype, 2, dim);
    prog_at(p, -1, -1, name);
    rec_linear_fwd(p, (LinearFwd){ .y = y, .x = x, .w = w->w, .bias = param_find(t, full)->w });
    return y;
}

Tensor *mlp_record(const ParamTable *t, Prog *p, const Mlp *m, Tensor *x)
{
    for (int l = 0; l < m->layers; l++) {
        char name[PARAM_NAME];
        param_name(name, "%s.%d", m->name, l);
        Tensor *pre = record_linear(t, p, name, x);
        x           = prog_like(p, "hidden", pre);
        rec_act_fwd(p, (ActFwd){ .y = x, .x = pre, .act = m->act });
    }
    return x;
}

Tensor *mlp_record_linear(const ParamTable *t, Prog *p, const Mlp *m, Tensor *x)
{
    char name[PARAM_NAME];
    param_name(name, "%s.0", m->name);
    return record_linear(t, p, name, x);
}

Tensor *mlp_record_wide(Prog *p, Tensor *h)
{
    if (h->dtype == DT_F32) return h;
    Tensor *wide = prog_tensor(p, "hidden f32", DT_F32, h->ndim, h->dim);
    prog_at(p, -1, -1, "hidden f32");
    rec_cast(p, (Cast){ .y = wide, .x = h });
    return wide;
}

Tensor *mlp_record_head(const ParamTable *t, Prog *p, const char *name, Tensor *h)
{
    return record_linear(t, p, name, h);
}
