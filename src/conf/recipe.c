#include "conf/recipe.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/needless.h"
#include "conf/relate.h"
#include "conf/schema.h"
#include "conf/walk.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RECIPE_MAX_BYTES = 1 << 20, MAX_SECTION = 16 };

typedef struct {
    Recipe *r;
    int     n_section;
    struct {
        char name[32];
        int  line;
    } section[MAX_SECTION]; /* sections seen so far: a second one of the same name is a slip */
    int n_key;
} Reader;

/* What comes on top of the file. */
typedef struct {
    int               n;
    char *const      *text; /* "key=value" */
    int               without_data, is_quiet;
    const RecipeTask *task; /* of a task that is not shipped, or NULL */
} Overrides;

/* 1: the field of a task's own row lies in Recipe.own. */
static int fits_own(const SchemaRow *row)
{
    size_t begin = offsetof(Recipe, own), n = row->type < KEY_TEXT ? sizeof(int64_t) : RECIPE_STR;
    return row->offset >= begin && row->offset + n <= begin + RECIPE_OWN;
}

static void set_defaults(Recipe *r, const RecipeTask *extra)
{
    memset(r, 0, sizeof *r); /* padding too: recipes are compared bytewise */
    r->extra = extra;
    CHECK(schema_rows(r) <= RECIPE_KEYS, "raise RECIPE_KEYS");
    for (int i = 0; i < schema_rows(r); i++) {
        char             why[256];
        const SchemaRow *row = schema_row(r, i);
        CHECK(i < schema_count || fits_own(row), "%s: its field is not in Recipe.own", row->name);
        int rc = schema_set(row, r, row->def, 0, why, sizeof why);
        CHECK(rc == 0, "default of %s: %s", row->name, why);
    }
}

void recipe_defaults(Recipe *r) { set_defaults(r, NULL); }

/* ---- Blame --------------------------------------------------------------------------------------------- */

/* "FILE:LINE: ", "command line: " or, for a key that is not given anywhere, "FILE: ". */
static void say_place(const Recipe *r, const char *key, char *buf, size_t n)
{
    int row = schema_find(r, key);
    CHECK(row >= 0, "no key %s", key);
    buf[0] = '\0';
    if (r->origin[row] == ORIGIN_COMMAND_LINE) {
        snprintf(buf, n, "command line: ");
    } else if (r->origin[row] != ORIGIN_DEFAULT) {
        snprintf(buf, n, "%s:%d: ", r->file, r->origin[row]);
    } else if (r->file[0]) {
        snprintf(buf, n, "%s: ", r->file);
    }
}

static int origin_of(const Recipe *r, const char *key)
{
    int row = schema_find(r, key);
    CHECK(row >= 0, "no key %s", key);
    return r->origin[row];
}

int recipe_is_typed(const Recipe *r, const char *key) { return origin_of(r, key) == ORIGIN_COMMAND_LINE; }
int recipe_is_given(const Recipe *r, const char *key) { return origin_of(r, key) != ORIGIN_DEFAULT; }

int recipe_blame(const Recipe *r, const char *key, const char *fmt, ...)
{
    char    what[800], place[RECIPE_STR + 24];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    say_place(r, key, place, sizeof place);
    return err_user("%s%s: %s", place, key, what);
}

/* 1: the message begins with the place of a key, as recipe_blame() writes it. */
static int is_blamed(const Recipe *r, const char *what)
{
    char place[RECIPE_STR + 24];
    for (int i = 0; i < schema_rows(r); i++) {
        const char *name = schema_row(r, i)->name;
        say_place(r, name, place, sizeof place);
        size_t n = strlen(place), m = strlen(name);
        if (n > 0 && strncmp(what, place, n) == 0 && strncmp(what + n, name, m) == 0 && what[n + m] == ':')
            return 1;
    }
    return 0;
}

int recipe_blame_pending(const Recipe *r, const char *key)
{
    char   what[800];
    size_t len = strlen(key);
    if (err_kind() != ERR_USER) return -1;
    str_copy(what, sizeof what, err_get());
    if (is_blamed(r, what)) return -1;
    err_clear();
    int named = str_starts_with(what, key) && str_starts_with(what + len, ": ");
    return recipe_blame(r, key, "%s", named ? what + len + 2 : what);
}

/* ---- The file ------------------------------------------------------------------------------------------ */

/* "image.smooth" of another task than r's. */
static int refuse_foreign(const Recipe *r, const char *where, const char *shown, const SchemaRow *row)
{
    if (row->tasks[0] == '!')
        return err_user("%s: %s: unknown key (%s is no key of task %s)", where, shown, row->name, r->task);
    return err_user("%s: %s: unknown key (%s is a key of task%s %s)", where, shown, row->name,
                    strchr(row->tasks, ',') ? "s" : "", row->tasks);
}

/* "FILE:LINE" or "command line", for keys that have no row. */
static int refuse_key(const Recipe *r, const char *where, const char *key, int is_map)
{
    char        shown[80], buf[200], parent[WALK_KEY_MAX];
    const char *near = is_map ? NULL : schema_translate(r, key, buf, sizeof buf);
    const char *why  = near ? NULL : needless_why(key);
    str_quote(shown, sizeof shown, key, strlen(key));
    str_copy(parent, sizeof parent, key);
    /* "steps.a": steps has a value, not keys. */
    for (char *dot; (dot = strrchr(parent, '.'));) {
        *dot    = '\0';
        int row = schema_find(r, parent);
        if (row >= 0) return err_user("%s: %s: has a value, not keys of its own (%s)", where, parent, shown);
    }
    if (why) return err_user("%s: %s: there is no such key: %s", where, shown, why);
    if (!near) near = schema_nearest(r, key, is_map, buf, sizeof buf);
    int row = near ? schema_find(r, near) : -1;
    if (row >= 0 && !schema_applies(r, schema_row(r, row)))
        return refuse_foreign(r, where, shown, schema_row(r, row));
    if (near) return err_user("%s: %s: unknown key (did you mean %s?)", where, shown, near);
    return err_user("%s: %s: unknown key", where, shown);
}

static int enter_section(Reader *d, const WalkItem *item, const char *where)
{
    int row = schema_find(d->r, item->key);
    if (row >= 0) {
        char type[500];
        schema_describe(schema_row(d->r, row), type, sizeof type);
        return err_user("%s: %s: expected a value (%s), got a mapping", where, item->key, type);
    }
    if (!schema_is_section(d->r, item->key)) return refuse_key(d->r, where, item->key, 1);
    for (int i = 0; i < d->n_section; i++) {
        if (strcmp(d->section[i].name, item->key) == 0) {
            return err_user("%s: %s: given twice, first on line %d", where, item->key, d->section[i].line);
        }
    }
    CHECK(d->n_section < MAX_SECTION, "raise MAX_SECTION");
    str_copy(d->section[d->n_section].name, sizeof d->section[0].name, item->key);
    d->section[d->n_section++].line = item->line;
    return 0;
}

/* A section's keys are not below it. */
static int refuse_section(const WalkItem *item, const char *where)
{
    char shown[64];
    if (item->kind == WALK_NONE)
        return err_user("%s: %s: is a section without keys: indent them below it", where, item->key);
    str_quote(shown, sizeof shown, item->text, strlen(item->text));
    return err_user("%s: %s: is a section: expected \"key: value\" below it, got '%s'", where, item->key,
                    shown);
}

static int read_item(void *ctx, const WalkItem *item)
{
    Reader *d = (Reader *)ctx;
    char    where[RECIPE_STR + 24], why[600];
    snprintf(where, sizeof where, "%s:%d", d->r->file, item->line);
    d->n_key++;
    if (item->kind == WALK_MAP) return enter_section(d, item, where);
    int row = schema_find(d->r, item->key);
    if (row < 0 && schema_is_section(d->r, item->key)) return refuse_section(item, where);
    if (row < 0) return refuse_key(d->r, where, item->key, item->kind == WALK_NONE);
    if (item->kind == WALK_NONE) return err_user("%s: %s: has no value", where, item->key);
    int first = d->r->origin[row];
    if (first > 0) return err_user("%s: %s: given twice, first on line %d", where, item->key, first);
    if (item->kind == WALK_LIST && schema_row(d->r, row)->type != KEY_LIST) {
        char type[500];
        schema_describe(schema_row(d->r, row), type, sizeof type);
        return err_user("%s: %s: expected %s, got a list", where, item->key, type);
    }
    d->r->origin[row] = item->line;
    if (schema_set(schema_row(d->r, row), d->r, item->text, item->quoted, why, sizeof why) < 0) {
        return err_user("%s: %s: %s", where, item->key, why);
    }
    return 0;
}

/* ---- The command line ---------------------------------------------------------------------------------- */

static int read_override(Reader *d, const char *text)
{
    char        key[WALK_KEY_MAX], shown[80], why[600];
    const char *equals = strchr(text, '=');
    size_t      len    = equals ? (size_t)(equals - text) : strlen(text);
    str_quote(shown, sizeof shown, text, len);
    if (!equals || len == 0) return err_user("command line: %s: expected key=value", len ? shown : "''");
    if (len >= sizeof key) return err_user("command line: %s: unknown key", shown);
    memcpy(key, text, len);
    key[len] = '\0';
    int row  = schema_find(d->r, key);
    if (row < 0 && schema_is_section(d->r, key))
        return err_user("command line: %s: is a section: name one of its keys", key);
    if (row < 0) return refuse_key(d->r, "command line", key, 0);
    /* The shell took any quotation marks away, so a value is never known to be quoted here. "[a, b]" is a
     * list. */
    const char *value = equals + 1;
    size_t      n     = strlen(value);
    char        list[RECIPE_STR];
    if (schema_row(d->r, row)->type == KEY_LIST && n >= 2 && n < sizeof list && value[0] == '[' &&
        value[n - 1] == ']') {
        memcpy(list, value + 1, n - 2);
        list[n - 2] = '\0';
        value       = list;
    }
    d->r->origin[row] = ORIGIN_COMMAND_LINE;
    if (schema_set(schema_row(d->r, row), d->r, value, 0, why, sizeof why) < 0) {
        return err_user("command line: %s: %s", key, why);
    }
    return 0;
}

static int parse(Recipe *r, const char *name, const char *text, size_t n, const Overrides *more)
{
    Reader d = { .r = r };
    char   shown[RECIPE_STR], folder[PATH_MAX];
    set_defaults(r, more->task);
    str_quote(shown, sizeof shown, name, strlen(name));
    if (n > RECIPE_MAX_BYTES) return err_user("%s: a recipe is at most 1 MiB", shown);
    if (file_folder_of(name, folder, sizeof folder) < 0) return err_user("%s: the path is too long", shown);
    memcpy(r->file, shown, strlen(shown));
    TRY(walk_yaml(shown, text, n, read_item, &d));
    if (d.n_key == 0) return err_user("%s: the recipe is empty", shown);
    for (int i = 0; i < more->n; i++) TRY(read_override(&d, more->text[i]));
    if (!r->run[0] && r->origin[schema_find(r, "run")] != ORIGIN_DEFAULT)
        return recipe_blame(r, "run", "is empty: name a folder, or leave it out for the recipe's name");
    if (!r->run[0]) {
        char base[RECIPE_STR];
        str_quote(base, sizeof base, file_name_of(name), strlen(file_name_of(name)));
        size_t len = strlen(base) - (str_ends_with(base, ".yaml") ? strlen(".yaml") : 0);
        memcpy(r->run, len > 0 ? base : "run", len > 0 ? len : 3);
    }
    Recipe given = *r;
    TRY(relate_resolve(r, folder, !more->without_data));
    if (!more->is_quiet) relate_notes(&given, r);
    return 0;
}

int recipe_parse(Recipe *r, const char *name, const char *text, size_t n, int n_override,
                 char *const *override)
{
    return parse(r, name, text, n, &(Overrides){ .n = n_override, .text = override });
}

/* ---- Finding it ---------------------------------------------------------------------------------------- */

/* Folders that ship recipes: below the current one, and beside the program (build/brim, or bin/brim of a
 * release). */
static int shipped_folders(char folder[3][PATH_MAX])
{
    char    program[PATH_MAX - 32];
    ssize_t len = readlink("/proc/self/exe", program, sizeof program - 1);
    str_copy(folder[0], PATH_MAX, "recipes");
    if (len <= 0) return 1;
    program[len] = '\0';
    for (int i = 2; i >= 1; i--) { /* the program's own folder, then the one above, as messages show them */
        char *slash = strrchr(program, '/');
        if (slash) *slash = '\0';
        snprintf(folder[i], PATH_MAX, "%s/recipes", program);
    }
    return 3;
}

/* Resolves a bare name ("quickstart") to a shipped recipe; 0 when it is none. */
static int find_shipped(const char *name, char *path, size_t n)
{
    char folder[3][PATH_MAX];
    if (strchr(name, '/')) return 0;
    int n_folder = shipped_folders(folder);
    for (int i = 0; i < n_folder; i++) {
        int len = snprintf(path, n, "%s/%s%s", folder[i], name, str_ends_with(name, ".yaml") ? "" : ".yaml");
        if (len > 0 && (size_t)len < n && file_kind(path) == FILE_REGULAR) return 1;
    }
    return 0;
}

static void offer_recipes(StrNearest *near, Arena *a, const char *folder)
{
    char **names;
    int    n = file_list(a, folder, ".yaml", &names);
    err_clear(); /* a folder that cannot be listed only costs the hint */
    for (int i = 0; i < n; i++) {
        char *bare                           = arena_strdup(a, names[i]);
        bare[strlen(bare) - strlen(".yaml")] = '\0';
        str_nearest_offer(near, str_ends_with(near->word, ".yaml") ? names[i] : bare);
    }
}

void recipe_offer_names(StrNearest *near, Arena *a, const char *path)
{
    char folder[3][PATH_MAX], own[PATH_MAX];
    if (strchr(path, '/') && file_folder_of(path, own, sizeof own) == 0) offer_recipes(near, a, own);
    int n_folder = shipped_folders(folder);
    for (int i = 0; i < n_folder; i++) offer_recipes(near, a, folder[i]);
}

static int refuse_missing(const char *path, const char *shown)
{
    Arena arena;
    char  hint[RECIPE_STR];
    arena_init(&arena);
    StrNearest near = str_nearest_begin(file_name_of(path));
    recipe_offer_names(&near, &arena, path);
    err_user("%s: no such recipe%s", shown, str_nearest_hint(&near, NULL, hint, sizeof hint));
    arena_deinit(&arena);
    return -1;
}

int recipe_exists(const char *path)
{
    char found[PATH_MAX];
    return file_kind(path) == FILE_REGULAR || find_shipped(path, found, sizeof found);
}

static int load(Recipe *r, const char *path, const Overrides *more)
{
    char     shown[RECIPE_STR], found[PATH_MAX];
    char    *text = NULL;
    size_t   n;
    FileKind kind = file_kind(path);
    str_quote(shown, sizeof shown, path, strlen(path));
    if (kind != FILE_REGULAR && find_shipped(path, found, sizeof found)) {
        path = found;
    } else if (kind == FILE_NONE) {
        int hidden = access(path, F_OK) != 0 && errno == EACCES;
        return hidden ? err_user("%s: permission denied", shown) : refuse_missing(path, shown);
    } else if (kind != FILE_REGULAR) {
        return err_user("%s: is %s, not a recipe", shown,
                        kind == FILE_FOLDER ? "a directory" : "a device or a pipe");
    }
    if (file_size(path) > RECIPE_MAX_BYTES) return err_user("%s: a recipe is at most 1 MiB", shown);
    if (file_read_all(path, RECIPE_MAX_BYTES, &text, &n) < 0) {
        /* Whatever keeps a recipe from being read is wrong input. */
        char why[512], line[512];
        str_copy(why, sizeof why, err_get());
        err_clear();
        return err_user("%s", str_quote(line, sizeof line, why, strlen(why)));
    }
    int rc = parse(r, path, text, n, more);
    free(text);
    return rc;
}

int recipe_load(Recipe *r, const char *path, int n_override, char *const *override)
{
    return load(r, path, &(Overrides){ .n = n_override, .text = override });
}

int recipe_load_without_data(Recipe *r, const char *path, int n_override, char *const *override)
{
    return load(r, path, &(Overrides){ .n = n_override, .text = override, .without_data = 1 });
}

int recipe_glance(Recipe *r, const char *path, int n_override, char *const *override)
{
    return load(r, path, &(Overrides){ .n = n_override, .text = override, .without_data = 1, .is_quiet = 1 });
}

int recipe_load_task(Recipe *r, const RecipeTask *task, const char *path, int n_override,
                     char *const *override)
{
    return load(r, path, &(Overrides){ .n = n_override, .text = override, .task = task });
}

/* ---- Writing ------------------------------------------------------------------------------------------- */

const char recipe_typed[] = "# from the command line:";

static void write_typed(const Recipe *r, FILE *out)
{
    int n = 0;
    for (int i = 0; i < schema_rows(r); i++) {
        if (r->origin[i] != ORIGIN_COMMAND_LINE) continue;
        fprintf(out, "%s %s", n++ ? "" : recipe_typed, schema_row(r, i)->name);
    }
    if (n) fprintf(out, "\n");
}

/* 1: YAML takes the item of a list for this text and nothing else. */
static int is_plain(const char *item)
{
    size_t n = 0;
    if (strcmp(item, "null") == 0) return 0;
    if (item[0] == '-') n++;
    if (!isalnum((unsigned char)item[n]) && (!item[n] || !strchr("_./", item[n]))) return 0;
    while (isalnum((unsigned char)item[n]) || (item[n] && strchr("_./-+= ", item[n])) ||
           (item[n] == ':' && isalnum((unsigned char)item[n + 1])))
        n++;
    return item[n] == '\0';
}

static void write_list(const char *list, FILE *out)
{
    char item[RECIPE_STR];
    fputc('[', out);
    for (const char *mark = ""; str_list_next(&list, item, sizeof item) > 0; mark = ",") {
        const char *quote = is_plain(item) ? "" : "\"";
        fprintf(out, "%s%s", mark, quote);
        for (const char *c = item; *c; c++) fprintf(out, "%s%c", strchr("\"\\", *c) ? "\\" : "", *c);
        fputs(quote, out);
    }
    fputs("]\n", out);
}

_Static_assert((int)WALK_LIST_MAX >= (int)RECIPE_STR, "a list that was written is read back");

void recipe_write(const Recipe *r, FILE *out)
{
    char        value[2 * RECIPE_STR + 8];
    size_t      section = 0; /* length of the open section's name */
    const char *last    = "";
    fprintf(out, "# %s as resolved: every key with the value in force. brim help KEY explains one.\n",
            r->file);
    write_typed(r, out);
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row  = schema_row(r, i);
        const char      *name = row->name, *dot = strchr(name, '.');
        if (!schema_applies(r, row)) continue;
        size_t len = dot ? (size_t)(dot - name) : 0;
        if (len > 0 && (len != section || strncmp(name, last, len) != 0))
            fprintf(out, "%.*s:\n", (int)len, name);
        section = len;
        last    = name;
        fprintf(out, "%s%s: ", dot ? "  " : "", dot ? dot + 1 : name);
        if (row->type == KEY_LIST) {
            write_list((const char *)r + row->offset, out);
            continue;
        }
        schema_get(row, r, value, sizeof value);
        fprintf(out, "%s\n", value);
    }
}

static void print_row(const SchemaRow *row, FILE *out)
{
    char type[500];
    schema_describe(row, type, sizeof type);
    str_append(type, sizeof type, "; default %s", row->def[0] ? row->def : "none");
    fprintf(out, "%s\n", row->name);
    str_print_wrapped(out, row->help, fprintf(out, "    "), 4);
    str_print_wrapped(out, type, fprintf(out, "    "), 4);
}

/* Length of the section's name; 0: a key of no section. */
static size_t section_length(const SchemaRow *row)
{
    const char *dot = strchr(row->name, '.');
    return dot ? (size_t)(dot - row->name) : 0;
}

/* The keys from row i on that are in its section, which has a name of len characters. */
static void print_names(int i, size_t len, FILE *out)
{
    char        names[4096] = "";
    const char *section     = schema_table[i].name;
    for (; i < schema_count; i++) {
        const SchemaRow *row = &schema_table[i];
        if (section_length(row) == len && strncmp(row->name, section, len) == 0)
            str_append(names, sizeof names, "%s%s", names[0] ? " " : "", row->name + len + (len > 0));
    }
    str_print_wrapped(out, names, fprintf(out, "  %-10.*s ", (int)len, section), 13);
}

void recipe_help_names(FILE *out)
{
    print_names(0, section_length(&schema_table[0]), out);
    for (int i = 1; i < schema_count; i++) {
        size_t len = section_length(&schema_table[i]);
        if (len > 0 && strncmp(schema_table[i].name, schema_table[i - 1].name, len + 1) != 0)
            print_names(i, len, out);
    }
}

int recipe_help(const char *key, FILE *out)
{
    int    row = schema_find(NULL, key), is_all = strcmp(key, "keys") == 0;
    size_t len = strlen(key);
    if (row >= 0) {
        print_row(&schema_table[row], out);
        return 0;
    }
    if (!is_all && !schema_is_section(NULL, key)) return refuse_key(NULL, "command line", key, 0);
    for (int i = 0; i < schema_count; i++) {
        const char *name = schema_table[i].name;
        if (is_all || (strncmp(name, key, len) == 0 && name[len] == '.')) print_row(&schema_table[i], out);
    }
    return 0;
}

size_t recipe_memory_limit(const Recipe *r, size_t total_bytes)
{
    size_t limit;
    int    rc = schema_parse_limit(r->memory_limit, total_bytes, &limit);
    CHECK(rc == 0, "memory_limit '%s' was verified on load", r->memory_limit);
    return MIN(limit, total_bytes);
}
