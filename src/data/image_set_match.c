#include "data/image_set_impl.h"

#include "base/err.h"

#include <stdio.h>
#include <string.h>

static int is_number(const char *name, int c)
{
    char text[16];
    snprintf(text, sizeof text, "%d", c);
    return strcmp(name, text) == 0;
}

SetMatch image_set_compare(const ImageSet *s, ClassNames *list, const char **stranger)
{
    int numbers = 1;
    *stranger   = NULL;
    for (int c = 0; c < s->n_class; c++) {
        numbers &= is_number(s->class_name[c], c);
        if (!*stranger && class_names_find(list, s->class_name[c]) < 0) *stranger = s->class_name[c];
    }
    if (list->n == 0) return MATCH_KEPT;
    if (!*stranger) return MATCH_ALL;
    if (numbers) return MATCH_KEPT;
    return s->n_class == list->n ? MATCH_NUMBERS : MATCH_SOME;
}

SetMatch image_set_match(ImageSet *s, ClassNames *list, const char **stranger)
{
    SetMatch match = image_set_compare(s, list, stranger);
    if (match == MATCH_KEPT || match == MATCH_NUMBERS) return match;
    int *place = ARENA_ARRAY(&s->arena, int, MAX(s->n_class, 1));
    for (int c = 0; c < s->n_class; c++) place[c] = class_names_find(list, s->class_name[c]);
    for (int64_t i = 0; i < s->n_item; i++) {
        if (s->item[i].label >= 0) s->item[i].label = place[s->item[i].label];
    }
    s->class_name = ARENA_ARRAY(&s->arena, char *, list->n);
    s->n_class    = list->n;
    for (int c = 0; c < s->n_class; c++) s->class_name[c] = arena_strdup(&s->arena, list->name[c]);
    return match;
}

void image_set_names(const ImageSet *s, ClassNames *out)
{
    for (int c = 0; c < s->n_class; c++) class_names_add(out, s->class_name[c]);
}
