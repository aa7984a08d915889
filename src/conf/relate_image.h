/* Relations between the keys of tasks image and mae. */
#ifndef CONF_RELATE_IMAGE_H
#define CONF_RELATE_IMAGE_H

#include "conf/recipe.h"

/* Fills in and verifies what task image adds to a recipe. Negative after recipe_blame(). */
int relate_image(Recipe *r);

/* The same for task mae, which has most of these keys. */
int relate_mae(Recipe *r);

/* Patches of a sample: tokens along time, rows, columns. */
typedef struct {
    int64_t t, y, x;
} ImageGrid;

/* The grid of so many pixels a side and frames (0: an image). */
ImageGrid relate_grid(const RecipeImage *m, int64_t size, int64_t frames);

/* From `step` on the net sees so many pixels and frames. */
typedef struct {
    int64_t step, size, frames;
} RecipeStage;

/* Stage i of the key stages: 1, 0 when there is none, negative after recipe_blame(). */
int relate_stage(const Recipe *r, int i, RecipeStage *out);

/* Logs the stages that the run is too short for. */
void relate_note_stages(const Recipe *r);

/* n numbers from a comma list; negative when there are more, fewer or others. */
int relate_floats(const char *list, int n, float *out);

/* 1: samples of a step are mixed with each other (mixup, cutmix). */
int relate_mixes(const Recipe *r);

/* 1: data.train was typed and no names were, so the names may be those of the recipe's own data. */
int relate_names_are_old(const Recipe *r);

/* The key that gives the names of the classes; NULL: none does. */
const char *relate_names_key(const Recipe *r);

#endif
