/* Reference of images to patches: walks pixels, where the op walks patches. */
#ifndef TESTS_OP_REF_IMAGE_H
#define TESTS_OP_REF_IMAGE_H

#include "op_ref_base.h"

/* Byte of a sample's window. */
static inline double ref_byte(const Patches *a, int64_t b, int64_t f, int64_t y, int64_t x, int64_t ch)
{
    int64_t top = 0, left = 0;
    if (a->crop) {
        top  = *case_int(a->crop, 3 * b);
        left = *case_int(a->crop, 3 * b + 1);
        if (*case_int(a->crop, 3 * b + 2)) x = a->width - 1 - x;
    }
    return ((const uint8_t *)a->img
                ->data)[(((b * a->frames + f) * a->src_height + top + y) * a->src_width + left + x) * 3 + ch];
}

static inline void ref_patches(const OpCase *c, OpRef *r)
{
    const Patches *a = &c->args.patches;
    int64_t        P = a->patch, cols = tensor_cols(a->y), nx = a->width / P, ny = a->height / P,
            nt = a->frames / a->tubelet, B = tensor_rows(a->y) / (nt * ny * nx);
    for (int64_t i = 0; i < B * a->frames * a->height * a->width * 3; i++) {
        int64_t ch = i % 3, x = i / 3 % a->width, y = i / 3 / a->width % a->height,
                f = i / 3 / a->width / a->height % a->frames, b = i / 3 / a->width / a->height / a->frames;
        double v = ref_byte(a, b, f, y, x, ch);
        if (a->partner) {
            double u = ref_byte(a, b + *case_int(a->partner, b), f, y, x, ch);
            double l = a->lambda ? *case_at(a->lambda, b) : 1;
            v        = l * v + (1 - l) * u;
            if (a->box && y >= *case_int(a->box, 4 * b) && y < *case_int(a->box, 4 * b + 1) &&
                x >= *case_int(a->box, 4 * b + 2) && x < *case_int(a->box, 4 * b + 3))
                v = u;
        }
        int64_t row  = ((b * nt + f / a->tubelet) * ny + y / P) * nx + x / P;
        int64_t col  = ((f % a->tubelet * P + y % P) * P + x % P) * 3 + ch;
        double  mean = (double)a->mean[ch], std = (double)a->std[ch];
        ref_put(r, 0, row * cols + col, (v / 255 - mean) / std, 2 * (v / 255 + mean) / std);
    }
}

#endif
