/* Which precision: the one that the recipe asks for, or what the card is made for; and why. */
#include "run/choose_impl.h"

/* Volta and Turing have matrix units for fp16 alone. */
static void choose_auto(Choice *c, const ChooseFor *w, int has_bf16)
{
    int k      = w->capability;
    c->compute = !has_bf16 ? DT_F32 : k >= 80 ? DT_BF16 : k >= 70 ? DT_F16 : DT_F32;
    if (!has_bf16) {
        snprintf(c->why, sizeof c->why, "fp32: the CPU backend computes in fp32");
    } else if (k >= 80) {
        snprintf(c->why, sizeof c->why, "bf16: compute capability %d.%d has bf16 matrix units", k / 10,
                 k % 10);
    } else {
        snprintf(c->why, sizeof c->why, "%s: compute capability %d.%d has %s", k >= 70 ? "fp16" : "fp32",
                 k / 10, k % 10, k >= 70 ? "fp16 matrix units, but none for bf16" : "no matrix units");
    }
}

/* The CPU multiplies fp8 numbers in fp32: the definition, and slow. */
static int choose_fp8(Choice *c, const ChooseFor *w)
{
    int k      = w->capability;
    c->compute = w->vt->hints->dtypes & (1u << DT_BF16) ? DT_BF16 : DT_F32;
    c->fp8     = 1;
    if (k > 0 && k < 89) {
        return recipe_blame(w->recipe, "precision",
                            "compute capability %d.%d has no fp8 (8.9 and up have it)", k / 10, k % 10);
    }
    snprintf(c->why, sizeof c->why, "fp8, as asked; %s between products",
             c->compute == DT_BF16 ? "bf16" : "the CPU computes in fp32");
    return 0;
}

int choose_precision(Choice *c, const ChooseFor *w)
{
    const Recipe *r        = w->recipe;
    int           has_bf16 = (w->vt->hints->dtypes & (1u << DT_BF16)) != 0, k = w->capability;
    switch (r->precision) {
    case PRECISION_FP32:
        c->compute = DT_F32;
        snprintf(c->why, sizeof c->why, "fp32, as asked");
        return 0;
    case PRECISION_TF32:
        c->compute = DT_F32;
        snprintf(c->why, sizeof c->why, "tf32, as asked");
        break;
    case PRECISION_BF16:
        c->compute = DT_BF16;
        snprintf(c->why, sizeof c->why, "bf16, as asked");
        break;
    case PRECISION_FP16:
        c->compute = DT_F16;
        snprintf(c->why, sizeof c->why, "fp16, as asked");
        if (w->vt->hints->dtypes & (1u << DT_F16)) return 0;
        return recipe_blame(r, "precision", "fp16 needs a GPU; the CPU backend computes in fp32");
    case PRECISION_FP8: return choose_fp8(c, w);
    default: choose_auto(c, w, has_bf16); return 0;
    }
    if (!has_bf16) {
        return recipe_blame(r, "precision", "%s needs a GPU; the CPU backend computes in fp32",
                            r->precision == PRECISION_BF16 ? "bf16" : "tf32");
    }
    if (k > 0 && k < 80) {
        return recipe_blame(r, "precision", "compute capability %d.%d has neither bf16 nor tf32", k / 10,
                            k % 10);
    }
    return 0;
}
