/* Schema: ONE row per key of a recipe, and what can be done with a row.
 *
 * 1. A key's type, default, bounds and help exist only in its row. Defaults are text and go through the same
 *    parser as the user's values.
 * 2. A recipe has the rows of schema_table, then the rows of its task (RecipeTask). Rows of one section are
 *    neighbours; keys without a section come first.
 * 3. A row may belong to some tasks only. A recipe of another task must not give that key.
 * 4. Functions that judge a value write the reason into `why` and report nothing: only the caller knows file
 *    and line. */
#ifndef CONF_SCHEMA_H
#define CONF_SCHEMA_H

#include "conf/recipe.h"

typedef enum {
    KEY_INT,   /* int64_t */
    KEY_FLOAT, /* double */
    KEY_BOOL,  /* int */
    KEY_ENUM,  /* a C enum numbered as `names` */
    KEY_TEXT,  /* char[RECIPE_STR] */
    KEY_LIST,  /* char[RECIPE_STR], items joined by commas: of `names`, keys of section `items`, or any */
    KEY_SIZE   /* char[RECIPE_STR], "", bytes with a suffix, or a percentage */
} KeyType;

/* Why a run that goes on may not change a key.
 *   FIXED_WEIGHTS  the key says what weights mean
 *   FIXED_SAMPLE   what a sample is; this does not matter to weights alone
 *   FIXED_STATE    what the optimizer keeps; this does not matter to weights alone
 *   FIXED_BEGIN    what a run begins with; a run that has begun may leave the key out
 *   FIXED_DATA     which data the run trains on; this may change if the user asks for it */
typedef enum { FIXED_NOT, FIXED_WEIGHTS, FIXED_SAMPLE, FIXED_STATE, FIXED_BEGIN, FIXED_DATA } KeyFixed;

/* Which file a key names. PATH_WHOLE: the value is its path. PATH_PART: in each item, what ends in .so, .py
 * or .xml behind a word with ':' or '=': "./a.so", "gym:a.py:Class", "task=./a.so". */
typedef enum { PATH_NONE, PATH_WHOLE, PATH_PART } KeyPath;

struct SchemaRow {
    const char        *name; /* "steps", "model.width" */
    KeyType            type;
    size_t             offset; /* in Recipe */
    const char        *def;
    double             min, max; /* KEY_INT, KEY_FLOAT; inclusive */
    const char *const *names;    /* KEY_ENUM, KEY_LIST; ends with NULL */
    const char        *items; /* KEY_LIST: the section's prefix ("opt.") whose keys are items too, or NULL */
    const char *tasks;      /* comma list of the tasks that have this key; "!a,b": all but these; NULL: all */
    const char *aka;        /* what other programs call it: comma list, for "did you mean" only */
    const char *values_aka; /* likewise of `names`: comma list of theirs=ours, or NULL */
    const char *help;
    KeyPath     path;    /* a file is looked for beside the recipe, too; a run keeps the absolute path */
    int         repeats; /* KEY_LIST: an item may come twice */
    int         secret;  /* never written down: schema_get() shows it as empty */
    KeyFixed    fixed;   /* may it change when a run goes on? */
    int         by_data; /* follows from the data unless given: a checkpoint with the default says nothing */
};

extern const SchemaRow schema_table[];
extern const int       schema_count;

/* r NULL, here and below: the rows of schema_table alone. */
int              schema_rows(const Recipe *r); /* at most RECIPE_KEYS */
const SchemaRow *schema_row(const Recipe *r, int i);
int              schema_find(const Recipe *r, const char *name);       /* row number, -1 when there is none */
int              schema_is_section(const Recipe *r, const char *name); /* "model" */
int              schema_applies(const Recipe *r, const SchemaRow *row); /* 1: r's task has this key */

/* What r's task calls a key of another program, or one without its section: "step_tokens or micro_batch",
 * maybe in buf; NULL: it has none. */
const char *schema_translate(const Recipe *r, const char *name, char *buf, size_t n);

/* What the user may have meant by an unknown key (is_map: a mapping follows it, so a section is likely): a
 * key, one of another task where this one has none, or a section; maybe kept in buf. NULL: none. */
const char *schema_nearest(const Recipe *r, const char *name, int is_map, char *buf, size_t n);

/* Sets the field from text; quoted: it stood in quotation marks, so it cannot be a number. Negative with
 * why. */
int schema_set(const SchemaRow *row, Recipe *r, const char *text, int quoted, char *why, size_t n);

/* Verifies a field that was computed instead of set. Negative with why. */
int schema_check(const SchemaRow *row, const Recipe *r, char *why, size_t n);

/* Writes the field as it stands in YAML into buf. */
void schema_get(const SchemaRow *row, const Recipe *r, char *buf, size_t n);

/* "integer, 1 .. 65536"; "one of layernorm, rmsnorm" */
void schema_describe(const SchemaRow *row, char *buf, size_t n);

/* "60G" or "80%" of total_bytes; negative when the text is neither. "" gives total_bytes. */
int schema_parse_limit(const char *text, size_t total_bytes, size_t *out);

#endif
