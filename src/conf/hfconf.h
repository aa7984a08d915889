/* Hfconf: config.json of a Hugging Face model folder, as model keys of a recipe, and back. A vision model
 * also has image keys, and preprocessor_config.json says how pixels are normalised.
 *
 * 1. A config that was read is one that Brim computes exactly. Every key is known: it became a model key, or
 *    it changes nothing, or it has the only value that Brim computes. Any other key is refused by name.
 * 2. A key that is absent has the default of its family in the transformers library.
 * 3. A written config reads back to the same model keys. */
#ifndef CONF_HFCONF_H
#define CONF_HFCONF_H

#include "conf/recipe.h"

typedef enum {
    HF_GPT2,
    HF_LLAMA,
    HF_MISTRAL,
    HF_QWEN2,
    HF_QWEN3,
    HF_ARCEE,
    HF_PHI3,
    HF_VIT,
    HF_FAMILIES
} HfFamily;

enum { HF_MAX_EOS = 16, HF_CONFIG_BYTES = 1 << 22 };

typedef struct {
    HfFamily    family;
    RecipeModel model;         /* every field is set */
    RecipeImage image;         /* HF_VIT alone */
    double      crop_fraction; /* likewise: data.crop_fraction */
    char        dtype[16];     /* "float32", "bfloat16", "float16"; "": not said */
    int64_t     bos;           /* -1: none */
    int64_t     eos[HF_MAX_EOS];
    int         n_eos;
} HfConfig;

extern const char *const hfconf_family_name[HF_FAMILIES]; /* model_type: "gpt2", "llama" */

/* The task that trains models of this family: "lm" or "image". */
const char *hfconf_task(HfFamily family);

/* 1: dir is a folder with a config.json. */
int hfconf_is_folder(const char *dir);
/* Reads DIR/config.json. Of a language model also the ids that end a text, from DIR/generation_config.json if
 * there is one; of a vision model how pixels are seen, from DIR/preprocessor_config.json likewise.
 * Negative after err_user() that begins with the file and the key. */
int hfconf_read(HfConfig *c, const char *dir);
/* The same for config.json in memory; name is used in messages. */
int hfconf_parse(HfConfig *c, const char *name, const char *text, size_t n);

/* The family that a model of Brim's is, for writing. Negative after err_user() that names the key which no
 * family has. */
int hfconf_family_of(const RecipeModel *m);
/* The same for task image: negative after err_user() if Brim cannot write the model. */
int hfconf_check_image(const RecipeModel *m, const RecipeImage *image);
/* Writes config.json. */
int hfconf_write(const HfConfig *c, FILE *out);
/* Writes generation_config.json: the ids that begin and end a text. */
int hfconf_write_generation(const HfConfig *c, FILE *out);
/* Writes preprocessor_config.json of a vision model. */
int hfconf_write_processor(const HfConfig *c, FILE *out);

#endif
