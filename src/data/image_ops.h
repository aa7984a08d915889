/* Image ops: changes of packed RGB pixels, each as Pillow (and torchvision on Pillow images) computes it.
 *
 * 1. The ops work in place on w x h x 3 bytes. image_op_affine() and image_op_sharpen() need a copy `tmp` of
 *    the same size.
 * 2. Pure functions of their arguments: no state, no threads. */
#ifndef DATA_IMAGE_OPS_H
#define DATA_IMAGE_OPS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void image_op_flip(uint8_t *rgb, int w, int h); /* left to right */

/* A factor of 1 changes nothing; 0 gives black, grey of the mean, the picture in grey, the picture
 * smoothed. */
void image_op_brightness(uint8_t *rgb, int w, int h, float factor);
void image_op_contrast(uint8_t *rgb, int w, int h, float factor);
void image_op_saturation(uint8_t *rgb, int w, int h, float factor);
void image_op_sharpen(uint8_t *rgb, int w, int h, float factor, uint8_t *tmp);

void image_op_hue(uint8_t *rgb, int w, int h, float shift); /* -0.5 to 0.5 of the circle */
void image_op_posterize(uint8_t *rgb, int w, int h, int bits);
void image_op_solarize(uint8_t *rgb, int w, int h, float threshold);
void image_op_autocontrast(uint8_t *rgb, int w, int h);
void image_op_equalize(uint8_t *rgb, int w, int h);

/* Output (x, y) is input (m0 x + m1 y + m2, m3 x + m4 y + m5), nearest pixel, black outside. */
void image_op_affine(uint8_t *rgb, int w, int h, const double m[6], uint8_t *tmp);

/* The matrix of a turn by degrees, counter-clockwise, about the middle. */
void image_op_rotation(double m[6], int w, int h, double degrees);

/* Packed RGB to grey, as Pillow's convert("L"); in and out may be the same. */
void image_op_grey(uint8_t *out, const uint8_t *rgb, int64_t n_pixel);

#ifdef __cplusplus
}
#endif
#endif
