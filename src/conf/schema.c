#include "conf/schema.h"

#include "base/err.h"
#include "base/str.h"

#include <string.h>

static void *field_of(const SchemaRow *row, Recipe *r) { return (char *)r + row->offset; }

static const void *field_read(const SchemaRow *row, const Recipe *r) { return (const char *)r + row->offset; }

/* ---- Names --------------------------------------------------------------------------------------------- */

int schema_rows(const Recipe *r) { return schema_count + (r && r->extra ? r->extra->n_row : 0); }

const SchemaRow *schema_row(const Recipe *r, int i)
{
    return i < schema_count ? &schema_table[i] : &r->extra->row[i - schema_count];
}

int schema_applies(const Recipe *r, const SchemaRow *row)
{
    if (!r || !row->tasks) return 1;
    int but = row->tasks[0] == '!';
    return str_list_has(row->tasks + but, r->task) != but;
}

int schema_find(const Recipe *r, const char *name)
{
    for (int i = 0; i < schema_rows(r); i++) {
        if (strcmp(schema_row(r, i)->name, name) == 0) return i;
    }
    return -1;
}

/* Length of the section's name in a key, 0 when it has none. */
static size_t section_length(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot ? (size_t)(dot - key) : 0;
}

int schema_is_section(const Recipe *r, const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; i < schema_rows(r); i++) {
        if (len > 0 && section_length(schema_row(r, i)->name) == len &&
            strncmp(schema_row(r, i)->name, name, len) == 0)
            return 1;
    }
    return 0;
}

static const char *leaf_of(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

static void copy_section(const char *key, char *buf, size_t n)
{
    size_t len = MIN(section_length(key), n - 1);
    memcpy(buf, key, len);
    buf[len] = '\0';
}

/* Into buf, since the table holds a section's name only as a part of its keys. NULL when none is near. */
static const char *nearest_section(const Recipe *r, const char *name, char *buf, size_t n)
{
    StrNearest near = str_nearest_begin(name);
    for (int i = 0; i < schema_rows(r); i++) {
        copy_section(schema_row(r, i)->name, buf, n);
        if (!*buf) continue;
        if (str_starts_with(name, buf)) return buf; /* "optimizer" */
        str_nearest_offer_as(&near, buf, schema_row(r, i)->name);
    }
    if (!near.best) return NULL;
    copy_section(near.best, buf, n);
    return buf;
}

/* Rows of r's task come first: another task's key is refused. */
enum { OF_THE_TASK, OF_OTHERS, N_PASS };

static int in_pass(const Recipe *r, const SchemaRow *row, int pass)
{
    return schema_applies(r, row) == (pass == OF_THE_TASK);
}

static const char *find_leaf(const Recipe *r, const char *leaf, int pass)
{
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row = schema_row(r, i);
        if (in_pass(r, row, pass) && strcmp(leaf_of(row->name), leaf) == 0) return row->name;
    }
    return NULL;
}

/* The rows that are called so elsewhere, "step_tokens or micro_batch"; 1 where there is one. */
static int list_aka(const Recipe *r, const char *word, int pass, char *buf, size_t n)
{
    buf[0] = '\0';
    for (int i = 0; i < schema_rows(r); i++) {
        const SchemaRow *row = schema_row(r, i);
        if (in_pass(r, row, pass) && row->aka && str_list_has(row->aka, word))
            str_append(buf, n, "%s%s", buf[0] ? " or " : "", row->name);
    }
    return buf[0] != '\0';
}

const char *schema_translate(const Recipe *r, const char *name, char *buf, size_t n)
{
    const char *leaf = leaf_of(name);
    if (list_aka(r, name, OF_THE_TASK, buf, n) || list_aka(r, leaf, OF_THE_TASK, buf, n)) return buf;
    return leaf == name ? find_leaf(r, leaf, OF_THE_TASK) : NULL;
}

/* A slip of the finger: a third of the last part at most, or words of four letters are near to any other. */
static const char *find_slip(const Recipe *r, const char *name, int pass)
{
    const char *leaf  = leaf_of(name);
    StrNearest  whole = str_nearest_begin(name), part = str_nearest_begin(leaf);
    int         limit = 1 + MAX((int)strlen(leaf) / 3, 1);
    whole.distance    = MIN(whole.distance, limit);
    part.distance     = MIN(part.distance, limit);
    for (int i = 0; i < schema_rows(r); i++) {
        const char *key = schema_row(r, i)->name;
        if (!in_pass(r, schema_row(r, i), pass)) continue;
        str_nearest_offer(&whole, key);
        str_nearest_offer_as(&part, leaf_of(key), key);
    }
    if (whole.best) return whole.best;
    const char *found = find_leaf(r, leaf, pass);
    return found ? found : part.best;
}

const char *schema_nearest(const Recipe *r, const char *name, int is_map, char *buf, size_t n)
{
    const char *leaf = leaf_of(name), *found = is_map ? nearest_section(r, name, buf, n) : NULL;
    /* Another program's word for it, then a slip of the finger, each in another task last. */
    if (!found) found = schema_translate(r, name, buf, n);
    if (!found) found = find_slip(r, name, OF_THE_TASK);
    if (!found && (list_aka(r, name, OF_OTHERS, buf, n) || list_aka(r, leaf, OF_OTHERS, buf, n))) found = buf;
    return found ? found : find_slip(r, name, OF_OTHERS);
}

/* ---- Setting ------------------------------------------------------------------------------------------- */

static int refuse(char *why, size_t n, const char *what, const char *text)
{
    char quoted[64];
    snprintf(why, n, "expected %s, got '%s'", what, str_quote(quoted, sizeof quoted, text, strlen(text)));
    return -1;
}

/* "1 .. 65536" */
static void describe_bounds(const SchemaRow *row, char *buf, size_t n)
{
    char lo[32], hi[32];
    if (row->type == KEY_INT) {
        snprintf(buf, n, "%lld .. %lld", (long long)row->min, (long long)row->max);
    } else {
        snprintf(buf, n, "%s .. %s", str_double(lo, sizeof lo, row->min),
                 str_double(hi, sizeof hi, row->max));
    }
}

static int check_bounds(const SchemaRow *row, double v, const char *text, char *why, size_t n)
{
    char bounds[80], quoted[40];
    if (v >= row->min && v <= row->max) return 0;
    describe_bounds(row, bounds, sizeof bounds);
    str_quote(quoted, sizeof quoted, text, strlen(text));
    snprintf(why, n, "%s is out of bounds (%s)", quoted, bounds);
    return -1;
}

static void list_names(const SchemaRow *row, char *buf, size_t n)
{
    buf[0]           = '\0';
    const char *mark = "";
    for (int i = 0; row->names && row->names[i]; i++, mark = ", ")
        str_append(buf, n, "%s%s", mark, row->names[i]);
    for (int i = 0; row->items && i < schema_count; i++) {
        if (str_starts_with(schema_table[i].name, row->items))
            str_append(buf, n, ", %s", leaf_of(schema_table[i].name));
    }
}

static int name_index(const SchemaRow *row, const char *word)
{
    for (int i = 0; row->names && row->names[i]; i++) {
        if (strcmp(row->names[i], word) == 0) return i;
    }
    return -1;
}

/* "theirs=ours": another program's name of a value, into buf. NULL: not known. */
static const char *translate_value(const SchemaRow *row, const char *word, char *buf, size_t n)
{
    const char *list = row->values_aka ? row->values_aka : "";
    while (str_list_next(&list, buf, n) > 0) {
        char *equals = strchr(buf, '=');
        CHECK(equals, "%s: %s", row->name, buf);
        *equals = '\0';
        if (strcmp(buf, word) == 0) return equals + 1;
    }
    return NULL;
}

static int refuse_name(const SchemaRow *row, const char *word, char *why, size_t n)
{
    char        quoted[64], names[400], value[32];
    const char *shown = str_quote(quoted, sizeof quoted, word, strlen(word));
    StrNearest  near  = str_nearest_begin(word);
    for (int i = 0; row->names && row->names[i]; i++) str_nearest_offer(&near, row->names[i]);
    for (int i = 0; row->items && i < schema_count; i++) {
        if (str_starts_with(schema_table[i].name, row->items))
            str_nearest_offer(&near, leaf_of(schema_table[i].name));
    }
    list_names(row, names, sizeof names);
    const char *meant = translate_value(row, word, value, sizeof value);
    if (!meant) meant = near.best;
    if (meant) {
        snprintf(why, n, "'%s' is none of %s (did you mean %s?)", shown, names, meant);
    } else {
        snprintf(why, n, "'%s' is none of %s", shown, names);
    }
    return -1;
}

/* Fields are compared bytewise by callers that look for changes, so what follows the text is cleared. */
static int store_text(char *field, const char *text, char *why, size_t n)
{
    if (strlen(text) >= RECIPE_STR) {
        snprintf(why, n, "is longer than %d bytes", RECIPE_STR - 1);
        return -1;
    }
    if (!str_is_printable(text)) {
        snprintf(why, n, "contains characters that are not printable UTF-8");
        return -1;
    }
    memset(field, 0, RECIPE_STR);
    memcpy(field, text, strlen(text));
    return 0;
}

static int set_list(const SchemaRow *row, char *field, const char *text, char *why, size_t n)
{
    char joined[RECIPE_STR] = "", item[64], key[80];
    for (int rc; (rc = str_list_next(&text, item, sizeof item)) != 0;) {
        if (rc < 0) {
            snprintf(why, n, "an item is longer than %d bytes", (int)sizeof item - 1);
            return -1;
        }
        snprintf(key, sizeof key, "%s%s", row->items ? row->items : "", item);
        int is_any = !row->names && !row->items;
        if (!is_any && name_index(row, item) < 0 && !(row->items && schema_find(NULL, key) >= 0))
            return refuse_name(row, item, why, n);
        if (!row->repeats && str_list_has(joined, item)) continue;
        if (str_append(joined, sizeof joined, "%s%s", joined[0] ? "," : "", item) < 0) {
            snprintf(why, n, "is longer than %d bytes", RECIPE_STR - 1);
            return -1;
        }
    }
    return store_text(field, joined, why, n);
}

/* "1e3", "2.5e6": an integer, when the number is one exactly. */
static int parse_exponent(const char *text, int64_t *out)
{
    double d;
    if (!strpbrk(text, "eE") || str_parse_double(text, &d) < 0) return -1;
    if (!(d >= -9007199254740992.0 && d <= 9007199254740992.0) || d != (double)(int64_t)d) return -1;
    *out = (int64_t)d;
    return 0;
}

/* "10m", "1.5 h", "30s" as seconds. */
static int parse_time(const char *text, double *out)
{
    static const struct {
        const char *unit;
        double      time_s;
    } units[] = { { "s", 1 }, { "sec", 1 }, { "m", 60 }, { "min", 60 }, { "h", 3600 }, { "d", 86400 } };
    char   number[32];
    size_t n = strspn(text, "0123456789.");
    str_copy(number, sizeof number, text);
    number[MIN(n, sizeof number - 1)] = '\0';
    text += n + strspn(text + n, " ");
    for (int i = 0; i < ARRAY_LEN(units); i++) {
        if (strcmp(text, units[i].unit) != 0 || str_parse_double(number, out) < 0) continue;
        *out *= units[i].time_s;
        return 0;
    }
    return -1;
}

static int set_number(const SchemaRow *row, Recipe *r, const char *text, char *why, size_t n)
{
    int64_t i;
    double  d;
    if (row->type == KEY_INT) {
        if (str_parse_int(text, &i) < 0 && parse_exponent(text, &i) < 0) {
            /* Too many digits for 64 bits is out of bounds, not a wrong type. */
            int is_digits = text[strspn(text, "+-")] != '\0' && text[strspn(text, "+-0123456789")] == '\0';
            if (is_digits && str_parse_double(text, &d) == 0) return check_bounds(row, d, text, why, n);
            return refuse(why, n, "an integer", text);
        }
        if (check_bounds(row, (double)i, text, why, n) < 0) return -1;
        *(int64_t *)field_of(row, r) = i;
        return 0;
    }
    if (str_parse_double(text, &d) < 0) {
        refuse(why, n, "a number", text);
        if (str_ends_with(row->name, "_s") && parse_time(text, &d) == 0)
            str_append(why, n, " (seconds: %g would do)", d);
        return -1;
    }
    if (check_bounds(row, d, text, why, n) < 0) return -1;
    *(double *)field_of(row, r) = d == 0 ? 0 : d; /* no negative zero: fields are compared bytewise */
    return 0;
}

int schema_set(const SchemaRow *row, Recipe *r, const char *text, int quoted, char *why, size_t n)
{
    size_t bytes;
    int    index;
    switch (row->type) {
    case KEY_INT:
    case KEY_FLOAT:
        if (quoted)
            return refuse(
                why, n, row->type == KEY_INT ? "an integer without quotes" : "a number without quotes", text);
        return set_number(row, r, text, why, n);
    case KEY_BOOL:
        if (quoted || str_parse_bool(text, (int *)field_of(row, r)) < 0)
            return refuse(why, n, "true or false", text);
        return 0;
    case KEY_ENUM:
        index = name_index(row, text);
        if (index < 0) return refuse_name(row, text, why, n);
        *(int *)field_of(row, r) = index;
        return 0;
    case KEY_TEXT: return store_text((char *)field_of(row, r), text, why, n);
    case KEY_LIST: return set_list(row, (char *)field_of(row, r), text, why, n);
    case KEY_SIZE:
        if (schema_parse_limit(text, 1, &bytes) < 0)
            return refuse(why, n, "bytes (60G) or a share (80%)", text);
        return store_text((char *)field_of(row, r), text, why, n);
    }
    CHECK(0, "key type %d", (int)row->type);
}

int schema_check(const SchemaRow *row, const Recipe *r, char *why, size_t n)
{
    char text[RECIPE_STR];
    if (row->type != KEY_INT && row->type != KEY_FLOAT) return 0;
    schema_get(row, r, text, sizeof text);
    double v = row->type == KEY_INT ? (double)*(const int64_t *)field_read(row, r)
                                    : *(const double *)field_read(row, r);
    return check_bounds(row, v, text, why, n);
}

int schema_parse_limit(const char *text, size_t total_bytes, size_t *out)
{
    char   number[32];
    double share;
    size_t len = strlen(text);
    if (len == 0) {
        *out = total_bytes;
        return 0;
    }
    if (text[len - 1] != '%') return str_parse_size(text, out) < 0 || *out == 0 ? -1 : 0;
    if (len >= sizeof number) return -1;
    memcpy(number, text, len - 1);
    number[len - 1] = '\0';
    if (str_parse_double(number, &share) < 0 || !(share > 0 && share <= 100)) return -1;
    *out = (size_t)((double)total_bytes * share / 100);
    return 0;
}

/* ---- Getting ------------------------------------------------------------------------------------------- */

static void quote_yaml(const char *s, char *buf, size_t n)
{
    size_t out = 0;
    buf[out++] = '"';
    for (; *s && out + 4 < n; s++) {
        if (*s == '"' || *s == '\\') buf[out++] = '\\';
        buf[out++] = *s;
    }
    buf[out++] = '"';
    buf[out]   = '\0';
}

void schema_get(const SchemaRow *row, const Recipe *r, char *buf, size_t n)
{
    const void *field = row->secret ? "" : field_read(row, r);
    switch (row->type) {
    case KEY_INT: snprintf(buf, n, "%lld", (long long)*(const int64_t *)field); return;
    case KEY_FLOAT: str_double(buf, n, *(const double *)field); return;
    case KEY_BOOL: snprintf(buf, n, "%s", *(const int *)field ? "true" : "false"); return;
    case KEY_ENUM: snprintf(buf, n, "%s", row->names[*(const int *)field]); return;
    case KEY_LIST: snprintf(buf, n, "[%s]", (const char *)field); return;
    case KEY_TEXT:
    case KEY_SIZE: quote_yaml((const char *)field, buf, n); return;
    }
}

void schema_describe(const SchemaRow *row, char *buf, size_t n)
{
    char more[400];
    switch (row->type) {
    case KEY_INT:
    case KEY_FLOAT:
        describe_bounds(row, more, sizeof more);
        snprintf(buf, n, "%s, %s", row->type == KEY_INT ? "integer" : "number", more);
        return;
    case KEY_BOOL: snprintf(buf, n, "true or false"); return;
    case KEY_ENUM:
        list_names(row, more, sizeof more);
        snprintf(buf, n, "one of %s", more);
        return;
    case KEY_LIST:
        list_names(row, more, sizeof more);
        snprintf(buf, n, "list of %s", more[0] ? more : row->def[0] ? "numbers" : "names");
        return;
    case KEY_TEXT: snprintf(buf, n, "text"); return;
    case KEY_SIZE: snprintf(buf, n, "bytes (60G) or a share (80%%)"); return;
    }
}
