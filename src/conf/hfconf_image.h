/* The part of a Hugging Face folder that only vision models have: labels of classes, and how pixels are
 * normalised. Used by hfconf.c and hfconf_write.c alone. */
#ifndef CONF_HFCONF_IMAGE_H
#define CONF_HFCONF_IMAGE_H

#include "base/json.h"
#include "conf/hfconf.h"

#include <jansson.h>

/* What the transformers library takes for a key that is absent, and what all ViT models have in common. */
void hfconf_image_defaults(RecipeImage *m);
/* Number and names of the classes from id2label of the file `name`; positions for image.size. Negative after
 * err_user(). */
int hfconf_image_labels(HfConfig *c, const char *name, const json_t *root);
/* How a picture becomes what the net sees, from DIR/preprocessor_config.json, if there is one. Negative after
 * err_user(). */
int hfconf_image_processor(HfConfig *c, const char *dir);
/* The keys of a vision model. Negative after err_user(). */
int hfconf_image_write(JsonOut *o, const HfConfig *c);

#endif
