#include "conf/paths.h"

#include "base/err.h"
#include "base/str.h"

#include <ctype.h>
#include <string.h>

/* Where the file's name lies in an item of n bytes. */
typedef struct {
    size_t begin, end; /* both 0: there is none */
} Part;

static Part find_part(const char *item, size_t n)
{
    static const char *const endings[] = { ".so", ".xml", ".py" };
    size_t                   word, end;
    Part                     p = { 0, n };
    while (p.begin < n && strchr("[\" ", item[p.begin])) p.begin++;
    while (p.end > p.begin && strchr("]\" ", item[p.end - 1])) p.end--;
    for (word = p.begin; word < p.end && (isalnum((unsigned char)item[word]) || item[word] == '_');) word++;
    if (word < p.end && (item[word] == ':' || item[word] == '=')) p.begin = word + 1;
    for (end = p.end; end > p.begin + 4; end--) /* a class behind a file of Python */
        if (item[end - 1] == ':' && memcmp(item + end - 4, ".py", 3) == 0) break;
    if (end > p.begin + 4) p.end = end - 1;
    for (int i = 0; i < ARRAY_LEN(endings); i++) {
        size_t k = strlen(endings[i]);
        if (p.end - p.begin > k && memcmp(item + p.end - k, endings[i], k) == 0) return p;
    }
    return (Part){ 0 };
}

static int replace(const SchemaRow *row, char text[RECIPE_STR], Part at, PathFn fn, void *ctx)
{
    char path[RECIPE_STR] = "", rest[RECIPE_STR];
    memcpy(path, text + at.begin, at.end - at.begin);
    TRY(fn(ctx, row, path));
    if (at.begin + strlen(path) + strlen(text + at.end) >= RECIPE_STR) return 0;
    str_copy(rest, sizeof rest, text + at.end);
    memset(text + at.begin, 0, RECIPE_STR - at.begin); /* recipes are compared bytewise */
    str_append(text, RECIPE_STR, "%s%s", path, rest);
    return 0;
}

int paths_in_text(const SchemaRow *row, char text[RECIPE_STR], PathFn fn, void *ctx)
{
    if (row->path == PATH_NONE || !text[0]) return 0;
    if (row->path == PATH_WHOLE) return replace(row, text, (Part){ 0, strlen(text) }, fn, ctx);
    const char *border = row->type == KEY_LIST ? "," : "";
    for (size_t at = 0; text[at];) {
        Part p = find_part(text + at, strcspn(text + at, border));
        if (p.end > 0) TRY(replace(row, text, (Part){ at + p.begin, at + p.end }, fn, ctx));
        at += strcspn(text + at, border);
        at += text[at] != '\0';
    }
    return 0;
}

int paths_in_recipe(Recipe *r, PathFn fn, void *ctx)
{
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row = schema_row(r, i);
        if (row->path != PATH_NONE && schema_applies(r, row))
            TRY(paths_in_text(row, (char *)r + row->offset, fn, ctx));
    }
    return 0;
}
