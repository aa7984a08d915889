/* Rotary positions in config.json: rope_scaling of transformers 4, rope_parameters of transformers 5. Used by
 * hfconf.c and hfconf_write.c alone. */
#ifndef CONF_HFCONF_ROPE_H
#define CONF_HFCONF_ROPE_H

#include "base/json.h"
#include "conf/hfconf.h"

#include <jansson.h>

/* The model's rope keys, from a whole config; its other keys are set already. Negative after err_user(). */
int hfconf_rope_read(HfConfig *c, const char *name, const json_t *root);
/* max_position_embeddings. For yarn and longrope it is what the stretch is for, also if the run's context is
 * smaller: programs that do not read `factor` derive the factor from it. */
int64_t hfconf_rope_positions(const RecipeModel *m);
/* The other keys of a language model's positions. */
void hfconf_rope_write(JsonOut *o, const HfConfig *c);

#endif
