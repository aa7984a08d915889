/* Cases of images to patches. */
#ifndef TESTS_OP_CASES_IMAGE_H
#define TESTS_OP_CASES_IMAGE_H

#include "op_case.h"

/* Case i = 5 shape + form: 1 window and mirror, 2 two samples mixed, 3 a box of another, 4 all of them */
static inline int case_patches(OpCase *c, int i)
{
    /* samples, frames, source height and width, height, width, tubelet, patch, padding */
    static const int64_t s[][9] = { { 1, 1, 1, 1, 1, 1, 1, 1, 0 },
                                    { 3, 1, 7, 9, 6, 8, 1, 2, 3 },
                                    { 2, 4, 12, 12, 12, 8, 2, 4, 0 },
                                    { 4, 2, 33, 34, 32, 32, 2, 16, 8 } };
    if (i >= 5 * (int)(sizeof s / sizeof s[0])) return 0;
    const int64_t *k    = s[i / 5];
    int            form = i % 5, crop = form == 1 || form == 4, mix = form >= 2;
    int64_t        B = k[0], n = B * (k[1] / k[6]) * (k[4] / k[7]) * (k[5] / k[7]);
    CASE_NAME("B%d %d frames %dx%d of %dx%d tubelet%d patch%d pad%d form%d", (int)B, (int)k[1], (int)k[4],
              (int)k[5], (int)k[2], (int)k[3], (int)k[6], (int)k[7], (int)k[8], form);
    case_act(c, 0, n, k[6] * k[7] * k[7] * 3, k[8]);
    int64_t bytes = B * k[1] * k[2] * k[3] * 3;
    Tensor *img   = case_tensor(c, 1, DT_U8, 0, 1, &bytes);
    for (int64_t e = 0; e < bytes; e++) ((uint8_t *)img->data)[e] = (uint8_t)case_pick(c, 256);
    if (crop) {
        Tensor *t = case_ints(c, 2, B, 3, 0, 2);
        for (int64_t b = 0; b < B; b++) {
            *case_int(t, 3 * b)     = (int32_t)case_pick(c, k[2] - k[4] + 1);
            *case_int(t, 3 * b + 1) = (int32_t)case_pick(c, k[3] - k[5] + 1);
        }
    }
    if (mix) {
        Tensor *partner = case_ints(c, 3, 1, B, 0, B);
        for (int64_t b = 0; b < B; b++) *case_int(partner, b) -= (int32_t)b;
    }
    if (form == 2 || form == 4) {
        Tensor *lambda = case_vec(c, 4, B);
        for (int64_t b = 0; b < B; b++) *case_at(lambda, b) = fabsf(*case_at(lambda, b));
    }
    if (form >= 3) {
        Tensor *box = case_ints(c, 5, B, 4, 0, 1);
        for (int64_t e = 0; e < 4 * B; e++)
            *case_int(box, e) = (int32_t)case_pick(c, (e % 4 < 2 ? k[4] : k[5]) + 1);
    }
    c->args.patches.frames     = (int)k[1];
    c->args.patches.src_height = (int)k[2];
    c->args.patches.src_width  = (int)k[3];
    c->args.patches.height     = (int)k[4];
    c->args.patches.width      = (int)k[5];
    c->args.patches.tubelet    = (int)k[6];
    c->args.patches.patch      = (int)k[7];
    for (int ch = 0; ch < 3; ch++) {
        c->args.patches.mean[ch] = 0.485f - 0.03f * (float)ch;
        c->args.patches.std[ch]  = 0.229f - 0.01f * (float)ch;
    }
    return 1;
}

#endif
