#include "conf/class_names.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MOST = 1 << 26 };

void class_names_init(ClassNames *c)
{
    memset(c, 0, sizeof *c);
    arena_init(&c->arena);
}

void class_names_deinit(ClassNames *c)
{
    arena_deinit(&c->arena);
    memset(c, 0, sizeof *c);
}

void class_names_add(ClassNames *c, const char *name)
{
    if (c->n == c->cap) {
        int    cap  = MAX(2 * c->cap, 64);
        char **more = ARENA_ARRAY(&c->arena, char *, cap);
        if (c->n > 0) memcpy(more, c->name, sizeof *more * (size_t)c->n);
        c->name = more;
        c->cap  = cap;
    }
    c->name[c->n++] = arena_strdup(&c->arena, name);
    c->by_name      = NULL;
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

/* Replaces escapes in place. */
static void unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        int pair = s[0] == '\\' && s[1] && strchr("nr\\", s[1]);
        if (pair) s++;
        *to++ = !pair || *s == '\\' ? *s : (char)(*s == 'n' ? '\n' : '\r');
    }
    *to = '\0';
}

static int read_lines(ClassNames *c, const char *path, char *text, size_t n)
{
    if (strlen(text) != n) return err_user("%s: not a text: line %d has a zero byte", path, c->n + 1);
    for (char *line = text, *next; *line; line = next) {
        size_t len = strcspn(line, "\n");
        next       = line + len + (line[len] == '\n');
        line[len]  = '\0';
        if (len > 0 && line[len - 1] == '\r') line[--len] = '\0';
        if (len == 0) return err_user("%s:%d: the name of class %d is missing", path, c->n + 1, c->n);
        unescape(line);
        class_names_add(c, line);
    }
    return c->n > 0 ? 0 : err_user("%s: no name of a class in it", path);
}

/* The map id2label of a config.json. */
static int read_labels(ClassNames *c, const char *path, const char *text, size_t n)
{
    json_error_t  why;
    char          key[32], buf[128];
    json_t       *root = json_loadb(text, n, 0, &why);
    const json_t *map  = json_object_get(root, "id2label");
    int           rc   = 0;
    if (!root) {
        rc = err_user("%s:%d: not JSON: %s", path, why.line,
                      str_quote(buf, sizeof buf, why.text, strlen(why.text)));
    } else if (!json_is_object(map)) {
        rc = err_user("%s: id2label: Brim needs a map with the label of each class", path);
    }
    for (size_t i = 0; rc == 0 && i < json_object_size(map); i++) {
        snprintf(key, sizeof key, "%zu", i);
        const char *label = json_string_value(json_object_get(map, key));
        if (label) class_names_add(c, label);
        if (!label) rc = err_user("%s: id2label: class %s has no label", path, key);
    }
    json_decref(root);
    return rc;
}

int class_names_load(ClassNames *c, const RecipeImage *m)
{
    const char *list = m->names, *path  = m->names_file;
    char        item[RECIPE_STR], *text = NULL;
    size_t      n;
    while (str_list_next(&list, item, sizeof item) > 0) class_names_add(c, item);
    if (c->n > 0 || !path[0]) return 0;
    TRY(file_read_all(path, FILE_MOST, &text, &n));
    int rc = str_ends_with(path, ".json") ? read_labels(c, path, text, n) : read_lines(c, path, text, n);
    free(text);
    return rc;
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

int class_names_write(const ClassNames *c, const char *path)
{
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    for (int i = 0; i < c->n; i++) {
        for (const char *s = c->name[i]; *s; s++) {
            if (*s == '\n' || *s == '\r' || *s == '\\') fputc('\\', f);
            fputc(*s == '\n' ? 'n' : *s == '\r' ? 'r' : *s, f);
        }
        fputc('\n', f);
    }
    return file_publish(&f, path);
}

/* ---- Finding ------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    int         number;
} Named;

static int by_name(const void *a, const void *b)
{
    const Named *x = a, *y = b;
    int          d = strcmp(x->name, y->name);
    return d ? d : x->number - y->number;
}

static void sort(ClassNames *c)
{
    Named *list = ARENA_ARRAY(&c->arena, Named, c->n);
    c->by_name  = ARENA_ARRAY(&c->arena, int, c->n);
    for (int i = 0; i < c->n; i++) list[i] = (Named){ c->name[i], i };
    qsort(list, (size_t)c->n, sizeof *list, by_name);
    for (int i = 0; i < c->n; i++) c->by_name[i] = list[i].number;
}

int class_names_find(ClassNames *c, const char *name)
{
    int lo = 0, hi = c->n;
    if (c->n > 0 && !c->by_name) sort(c);
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (strcmp(c->name[c->by_name[mid]], name) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < c->n && strcmp(c->name[c->by_name[lo]], name) == 0 ? c->by_name[lo] : -1;
}
