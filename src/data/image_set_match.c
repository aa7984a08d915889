#include "data/image_set_impl.h"

#include "base/err.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

enum { NAME_MOST = 1024 };

/* The place of a name in the list; -1: not there. */
static int place_of(const char *list, const char *name)
{
    char item[NAME_MOST];
    for (int c = 0; str_list_next(&list, item, sizeof item) > 0; c++) {
        if (strcmp(item, name) == 0) return c;
    }
    return -1;
}

static int is_number(const char *name, int c)
{
    char text[16];
    snprintf(text, sizeof text, "%d", c);
    return strcmp(name, text) == 0;
}

static int list_len(const char *list)
{
    char item[NAME_MOST];
    int  n = 0;
    while (str_list_next(&list, item, sizeof item) > 0) n++;
    return n;
}

/* The set's classes become those of the list. */
static void renumber(ImageSet *s, const char *list, int n, const int *place)
{
    char item[NAME_MOST];
    s->class_name = ARENA_ARRAY(&s->arena, char *, n);
    s->n_class    = n;
    for (int c = 0; c < n && str_list_next(&list, item, sizeof item) > 0; c++)
        s->class_name[c] = arena_strdup(&s->arena, item);
    for (int64_t i = 0; i < s->n_item; i++) {
        if (s->item[i].label >= 0) s->item[i].label = place[s->item[i].label];
    }
}

SetMatch image_set_compare(const ImageSet *s, const char *list, const char **stranger)
{
    int n = list_len(list), numbers = 1;
    *stranger = NULL;
    for (int c = 0; c < s->n_class; c++) {
        numbers &= is_number(s->class_name[c], c);
        if (!*stranger && place_of(list, s->class_name[c]) < 0) *stranger = s->class_name[c];
    }
    if (n == 0 || numbers) return MATCH_KEPT;
    if (!*stranger) return MATCH_ALL;
    return s->n_class == n ? MATCH_NUMBERS : MATCH_SOME;
}

SetMatch image_set_match(ImageSet *s, const char *list, const char **stranger)
{
    SetMatch match = image_set_compare(s, list, stranger);
    if (match == MATCH_KEPT || match == MATCH_NUMBERS) return match;
    int *place = ARENA_ARRAY(&s->arena, int, MAX(s->n_class, 1));
    for (int c = 0; c < s->n_class; c++) place[c] = place_of(list, s->class_name[c]);
    renumber(s, list, list_len(list), place);
    return match;
}
