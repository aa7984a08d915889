/* Class names: what the classes of a run are called, by number.
 *
 * 1. A recipe has names in a list (image.names) or in a file (image.names_file): text with one name a line,
 *    or config.json of a Hugging Face folder (id2label). A run keeps its names in such a text.
 * 2. A name may have any bytes that a folder's name may have. In a text, "\n", "\r" and "\\" stand for a line
 *    break, a carriage return and a backslash. */
#ifndef CONF_CLASS_NAMES_H
#define CONF_CLASS_NAMES_H

#include "base/arena.h"
#include "conf/recipe.h"

#define CLASS_NAMES_FILE "classes.txt" /* in the folder of a run */

typedef struct {
    Arena  arena;
    char **name;
    int    n, cap;
    int   *by_name; /* numbers in the order of names; NULL: not sorted yet */
} ClassNames;

void class_names_init(ClassNames *c);
void class_names_deinit(ClassNames *c);
void class_names_add(ClassNames *c, const char *name);

/* Adds the names of a recipe; none where the recipe has none. Negative after err_user(). */
int class_names_load(ClassNames *c, const RecipeImage *m);
int class_names_write(const ClassNames *c, const char *path); /* negative after err_set() */

/* The number of a name, the first where classes share it; -1: there is no such class. */
int class_names_find(ClassNames *c, const char *name);

#endif
