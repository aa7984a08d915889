/* Image augmentation: random changes of a sample, drawn from Philox by (seed, epoch, sample).
 *
 * 1. Parameters are a pure function: any number of threads, ranks and restarts sees the same pixels.
 * 2. Each kind of change draws from a site of its own, so switching one on or off leaves the others alone.
 * 3. The distributions are torchvision's: RandomResizedCrop, RandomHorizontalFlip, ColorJitter,
 *    RandAugment (31 magnitudes), RandomErasing, MixUp and CutMix. The numbers drawn are not.
 * 4. Mixing is only described here; the device mixes. A partner is another position of the same aligned
 *    group. So the partner is in the same micro-batch if the micro-batch is a multiple of the group. */
#ifndef DATA_IMAGE_AUGMENT_H
#define DATA_IMAGE_AUGMENT_H

#include "conf/recipe.h"
#include "file/resize.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { IMAGE_RAND_MOST = 8, IMAGE_RAND_LEVELS = 31 };

typedef enum {
    IMAGE_CROP_RANDOM, /* a random resized crop */
    IMAGE_CROP_CENTER, /* the middle, after a resize of the short side to size / crop_fraction */
    IMAGE_CROP_WHOLE   /* all of it, squeezed */
} ImageCrop;

typedef struct {
    uint64_t     seed;
    int          size;      /* the output is size x size */
    int          channels;  /* 3, or 1: grey */
    int          frames;    /* of a clip; 0: an image */
    int          stride;    /* frames of the source per frame of the clip */
    int          any_frame; /* 1: the first frame is random; 0: frames from the middle of the clip */
    ResizeFilter filter;
    int          full_decode; /* 1: never decode a JPEG at a fraction of its size */
    ImageCrop    crop;
    double       crop_fraction;
    double       crop_scale[2], crop_ratio[2]; /* share of the area; width over height */
    double       flip;                         /* probability */
    double       jitter_brightness, jitter_contrast, jitter_saturation, jitter_hue;
    int          rand_ops, rand_level; /* RandAugment: how many, how strong (0 to 30) */
    double       erase, erase_scale[2], erase_ratio[2];
    int          erase_noise;   /* 1: random bytes; 0: erase_fill */
    uint8_t      erase_fill[3]; /* what becomes 0 after normalisation */
    double       mixup, cutmix; /* alphas; 0: off. Both: each for one half of the groups */
    int          mix_group;     /* positions that mix among each other, a power of two */
} ImageOptions;

/* Centre crop, nothing random: how validation images are seen. size 224. */
ImageOptions image_options_eval(int size);
/* Random resized crop and flip; jitter, RandAugment, erasing and mixing are off. */
ImageOptions image_options_train(int size);
/* Switches on what a comma list names: crop, flip, jitter, rand, erase, mixup, cutmix, or none, each as
 * strong as the recipe says. Negative after err_user(), naming `key`. */
int image_options_list(ImageOptions *o, const char *list, const RecipeData *d, const char *key);

typedef enum {
    RAND_IDENTITY,
    RAND_SHEAR_X,
    RAND_SHEAR_Y,
    RAND_TRANSLATE_X,
    RAND_TRANSLATE_Y,
    RAND_ROTATE,
    RAND_BRIGHTNESS,
    RAND_COLOR,
    RAND_CONTRAST,
    RAND_SHARPNESS,
    RAND_POSTERIZE,
    RAND_SOLARIZE,
    RAND_AUTOCONTRAST,
    RAND_EQUALIZE,
    RAND_COUNT
} RandOp;

typedef struct {
    ResizeBox box; /* in pixels of the source */
    int       flip;
    int       jitter_order[4]; /* 0 brightness, 1 contrast, 2 saturation, 3 hue */
    float     jitter[4];       /* factors, and the shift of the hue */
    struct {
        RandOp op;
        double magnitude; /* signed */
    } rand[IMAGE_RAND_MOST];
    int     n_rand;
    int     erase_x, erase_y, erase_w, erase_h; /* in the output; erase_w 0: none */
    int64_t first_frame;                        /* of a clip */
} ImageParams;

/* Draws for one sample whose image is w x h pixels. n_frame: frames of its clip, 0 for an image. */
ImageParams image_augment_params(const ImageOptions *o, int64_t epoch, int64_t sample, int w, int h,
                                 int n_frame);

/* Does everything after the crop to size x size packed RGB. tmp: size*size*3 bytes. */
void image_augment_apply(const ImageOptions *o, const ImageParams *p, int64_t epoch, int64_t sample,
                         uint8_t *rgb, uint8_t *tmp);

typedef struct {
    int64_t partner;    /* position; itself: not mixed */
    float   lambda;     /* weight of this sample's own label and, for mixup, pixels */
    int     x, y, w, h; /* cutmix: this box comes from the partner; w 0: mixup */
} ImageMix;

/* How the sample at a position of the epoch's order is mixed. */
ImageMix image_mix_params(const ImageOptions *o, int64_t epoch, int64_t position);

#ifdef __cplusplus
}
#endif
#endif
