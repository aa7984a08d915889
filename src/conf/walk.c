#include "conf/walk.h"

#include "base/err.h"
#include "base/str.h"

#include <string.h>
#include <yaml.h>

typedef struct {
    const char *name;
    int (*visit)(void *ctx, const WalkItem *item);
    void  *ctx;
    int    depth;                  /* open mappings, the document's included */
    size_t prefix[WALK_MAX_DEPTH]; /* length of key[] for each open mapping */
    char   key[WALK_KEY_MAX]; /* path of the present key; prefix of the open mapping while none is read */
    int    has_key;           /* a key was read, its value comes next */
    int    line;              /* of that key */
    int    in_list;
    char   list[WALK_LIST_MAX];
    int    documents;
    int    done;
    size_t first_column;          /* of the first key, from 0 */
    int    quote_line, quote_end; /* of the last text in quotation marks that has several lines */
} Walk;

static int line_of(yaml_mark_t mark) { return (int)mark.line + 1; }

static int refuse_at(const Walk *w, int line, const char *what)
{
    char key[80];
    if (!w->has_key) return err_user("%s:%d: yaml: %s", w->name, line, what);
    return err_user("%s:%d: %s: %s", w->name, line, str_quote(key, sizeof key, w->key, strlen(w->key)), what);
}

static int visit(Walk *w, WalkKind kind, const char *text, int quoted)
{
    WalkItem item = { .kind = kind, .key = w->key, .text = text, .quoted = quoted, .line = w->line };
    return w->visit(w->ctx, &item);
}

/* The value was handled: the next scalar is a key of the innermost mapping again. */
static void end_value(Walk *w)
{
    w->has_key                      = 0;
    w->key[w->prefix[w->depth - 1]] = '\0';
}

static int begin_map(Walk *w, int line)
{
    if (w->in_list) return refuse_at(w, line, "a list may hold plain values only, not a mapping");
    if (w->depth > 0 && !w->has_key) return refuse_at(w, line, "a mapping cannot be a key");
    if (w->depth == WALK_MAX_DEPTH) return refuse_at(w, line, "nested too deep");
    if (w->depth > 0) {
        TRY(visit(w, WALK_MAP, "", 0));
        if (str_append(w->key, sizeof w->key, ".") < 0) return refuse_at(w, line, "the key is too long");
    }
    w->prefix[w->depth++] = strlen(w->key);
    w->has_key            = 0;
    return 0;
}

static void end_map(Walk *w)
{
    w->depth--;
    if (w->depth > 0) end_value(w);
}

static int begin_list(Walk *w, int line)
{
    if (w->in_list) return refuse_at(w, line, "a list may hold plain values only, not another list");
    if (w->depth == 0) return refuse_at(w, line, "a recipe is a mapping of keys to values, not a list");
    if (!w->has_key) return refuse_at(w, line, "a list cannot be a key");
    w->in_list = 1;
    w->list[0] = '\0';
    return 0;
}

static int end_list(Walk *w)
{
    w->in_list = 0;
    TRY(visit(w, WALK_LIST, w->list, 0));
    end_value(w);
    return 0;
}

static int read_key(Walk *w, const char *text, int line)
{
    char shown[64];
    str_quote(shown, sizeof shown, text, strlen(text));
    if (!*text || strcmp(text, shown) != 0) {
        return err_user("%s:%d: %s: not a usable key", w->name, line, *shown ? shown : "''");
    }
    if (str_append(w->key, sizeof w->key, "%s", text) < 0) return refuse_at(w, line, "the key is too long");
    w->has_key = 1;
    w->line    = line;
    return 0;
}

static int read_scalar(Walk *w, const yaml_event_t *e)
{
    const char *text     = (const char *)e->data.scalar.value;
    int         line     = line_of(e->start_mark);
    int         quoted   = e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    int         is_block = e->data.scalar.style >= YAML_LITERAL_SCALAR_STYLE;
    if (quoted && !is_block && e->end_mark.line > e->start_mark.line) {
        w->quote_line = line;
        w->quote_end  = line_of(e->end_mark);
    }
    int is_null = !quoted && (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
    if (strlen(text) != e->data.scalar.length) return refuse_at(w, line, "contains a zero byte");
    if (w->depth == 0)
        return refuse_at(w, line, "a recipe is a mapping of keys to values, like \"steps: 1000\"");
    if (!w->has_key) return read_key(w, text, line);
    if (is_null && w->in_list) return refuse_at(w, w->line, "has no value");
    if (w->in_list) {
        if (strchr(text, ',')) return refuse_at(w, line, "an item of a list contains a comma");
        if (str_append(w->list, sizeof w->list, "%s%s", w->list[0] ? "," : "", text) < 0) {
            return refuse_at(w, line, "the list is too long");
        }
        return 0;
    }
    TRY(visit(w, is_null ? WALK_NONE : WALK_SCALAR, is_null ? "" : text, quoted));
    end_value(w);
    return 0;
}

/* Anchors and tags may stand at any value. */
static int refuse_decoration(const Walk *w, const yaml_event_t *e)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (e->type == YAML_SCALAR_EVENT) {
        anchor = e->data.scalar.anchor;
        tag    = e->data.scalar.tag;
    } else if (e->type == YAML_SEQUENCE_START_EVENT) {
        anchor = e->data.sequence_start.anchor;
        tag    = e->data.sequence_start.tag;
    } else if (e->type == YAML_MAPPING_START_EVENT) {
        anchor = e->data.mapping_start.anchor;
        tag    = e->data.mapping_start.tag;
    }
    if (anchor) return refuse_at(w, line_of(e->start_mark), "anchors (&name) are not used in recipes");
    if (tag) return refuse_at(w, line_of(e->start_mark), "tags (!name) are not used in recipes");
    return 0;
}

static int handle(Walk *w, const yaml_event_t *e)
{
    int line = line_of(e->start_mark);
    if (w->depth == 0 && e->type == YAML_MAPPING_START_EVENT) w->first_column = e->start_mark.column;
    TRY(refuse_decoration(w, e));
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (w->documents++ > 0)
            return refuse_at(w, line, "a recipe is one document; a second one begins here");
        return 0;
    case YAML_ALIAS_EVENT: return refuse_at(w, line, "aliases (*name) are not used in recipes");
    case YAML_SCALAR_EVENT: return read_scalar(w, e);
    case YAML_SEQUENCE_START_EVENT: return begin_list(w, line);
    case YAML_SEQUENCE_END_EVENT: return end_list(w);
    case YAML_MAPPING_START_EVENT: return begin_map(w, line);
    case YAML_MAPPING_END_EVENT: end_map(w); return 0;
    case YAML_STREAM_END_EVENT: w->done = 1; return 0;
    default: return 0;
    }
}

static int line_at(const char *text, size_t n, size_t offset)
{
    int line = 1;
    for (size_t i = 0; i < MIN(n, offset); i++) line += text[i] == '\n';
    return line;
}

/* The bytes of a line, without its end; empty where the text has no such line. */
static const char *find_line(const char *text, size_t n, int line, size_t *len)
{
    const char *end = text + n, *at = text;
    while (line > 1 && at < end) line -= *at++ == '\n';
    const char *stop = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
    *len             = (size_t)((stop ? stop : end) - at);
    return at;
}

/* The nearest line above that has more than a comment; 0: none. */
static int line_above(const char *text, size_t n, int line)
{
    size_t      len;
    const char *at = find_line(text, n, line, &len);
    while (at > text) {
        const char *end = --at;
        while (at > text && at[-1] != '\n') at--;
        const char *word = at;
        while (word < end && (*word == ' ' || *word == '\r')) word++;
        line--;
        if (word < end && *word != '#') return line;
    }
    return 0;
}

/* 1: a line has a colon with a space or its end behind it, as a key has; or it is of a list or a text. */
static int has_colon(const char *text, size_t n, int line)
{
    size_t      len;
    const char *at = find_line(text, n, line, &len);
    for (size_t i = 0; i < len; i++) {
        if (at[i] == ':' && (i + 1 == len || at[i + 1] == ' ' || at[i + 1] == '\r')) return 1;
        if (strchr("[]{},\"'", at[i]) || (at[i] == '-' && i + 1 < len && at[i + 1] == ' ')) return 1;
    }
    return 0;
}

/* Why a key or a colon is out of place; NULL: not known. */
static const char *explain_place(const Walk *w, const yaml_parser_t *p, const char *text, size_t n)
{
    size_t      len, column = p->problem_mark.column, indent = 0, colon = 0;
    const char *line = find_line(text, n, line_of(p->problem_mark), &len);
    while (indent < len && line[indent] == ' ') indent++;
    while (colon + 1 < len && (line[colon] != ':' || line[colon + 1] != ' ')) colon++;
    if (strcmp(p->problem, "mapping values are not allowed in this context") == 0)
        return colon < column ? "a second \": \" in this line: put the value in quotation marks"
                              : "wrong indentation: the line above has a value, so no keys below it";
    if (strcmp(p->problem, "did not find expected key") == 0)
        return indent == column ? "wrong indentation: no key above begins in this column"
                                : "the value ends before this: quotation marks or brackets do not match";
    if (strcmp(p->problem, "did not find expected <document start>") == 0 && column < w->first_column)
        return "wrong indentation: the keys above begin further right";
    return NULL;
}

/* What libyaml says, and what is said instead. */
static const char *explain(const Walk *w, const yaml_parser_t *p, const char *text, size_t n)
{
    static const char *const words[][2] = {
        { "found character that cannot start any token", "no value begins so: put it in quotation marks" },
        { "did not find expected node content", "no value begins so: put it in quotation marks" },
    };
    for (int i = 0; i < ARRAY_LEN(words); i++) {
        if (strcmp(p->problem, words[i][0]) == 0) return words[i][1];
    }
    return explain_place(w, p, text, n);
}

/* Negative after err_user() if the mistake began above the line where libyaml sees it: a quotation mark or a
 * bracket that is closed too late or never, a key without a colon. */
static int refuse_above(const Walk *w, const yaml_parser_t *p, int line, const char *text, size_t n)
{
    int first = line_of(p->context_mark), above = line_above(text, n, line);
    if (strcmp(p->problem, "mapping values are not allowed in this context") == 0 && above > 0 &&
        !has_colon(text, n, above))
        return err_user("%s:%d: yaml: this line has no \": \" between key and value", w->name, above);
    if (strcmp(p->problem, "found unexpected end of stream") == 0)
        return err_user("%s:%d: yaml: the quotation mark that opens here is never closed", w->name, first);
    if (strcmp(p->problem, "could not find expected ':'") == 0)
        return err_user("%s:%d: yaml: this line has no \": \" between key and value", w->name, first);
    if (w->quote_line > 0 && line == w->quote_end)
        return err_user("%s:%d: yaml: the quotation mark that opens here is closed only on line %d", w->name,
                        w->quote_line, line);
    if (strcmp(p->problem, "did not find expected ',' or ']'") == 0)
        return err_user("%s:%d: yaml: the list of line %d lacks a comma or its ]", w->name, line, first);
    if (strcmp(p->problem, "did not find expected ',' or '}'") == 0)
        return err_user("%s:%d: yaml: the section of line %d lacks a comma or its }", w->name, line, first);
    return 0;
}

/* libyaml names bytes it cannot read by offset, everything else by line. */
static int refuse_syntax(const Walk *w, const yaml_parser_t *p, const char *text, size_t n)
{
    char what[120];
    if (p->error == YAML_MEMORY_ERROR) return err_set("%s: out of memory", w->name);
    const char *problem = p->problem ? p->problem : "not YAML";
    str_quote(what, sizeof what, problem, strlen(problem));
    int line = p->error == YAML_READER_ERROR ? line_at(text, n, p->problem_offset) : line_of(p->problem_mark);
    if (p->error == YAML_READER_ERROR)
        return err_user("%s:%d: yaml: not a text file: %s", w->name, line, what);
    if (p->problem) TRY(refuse_above(w, p, line, text, n));
    const char *why = p->problem ? explain(w, p, text, n) : NULL;
    return err_user("%s:%d: yaml: %s", w->name, line, why ? why : what);
}

/* libyaml's own words for these two do not help anybody. */
static int refuse_bytes(const char *name, const char *text, size_t n)
{
    int indent = 1, line = 1;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\0') return err_user("%s:%d: yaml: not a text file: zero byte", name, line);
        if (text[i] == '\t' && indent)
            return err_user("%s:%d: yaml: tab in the indentation; use spaces", name, line);
        indent = text[i] == '\n' || (indent && text[i] == ' ');
        line += text[i] == '\n';
    }
    return 0;
}

/* A value without quotation marks goes on in lines that are indented further. */
static int has_lines(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT && e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           e->end_mark.line > e->start_mark.line;
}

/* The pending message is about a value that goes on below line `first`. */
static int refuse_lines(int first)
{
    char what[800];
    str_copy(what, sizeof what, err_get());
    err_clear();
    return err_user("%s (the line below line %d has no \": \", so it goes on with this value)", what, first);
}

/* Handles one event; 0 also at the end. A value of several lines that is refused is a slip in most recipes:
 * the line below is indented too far, and libyaml finds the colon there only now. */
static int handle_next(Walk *w, yaml_parser_t *p, const char *text, size_t n)
{
    yaml_event_t event;
    if (!yaml_parser_parse(p, &event)) return refuse_syntax(w, p, text, n);
    int rc = handle(w, &event), lines = has_lines(&event), first = line_of(event.start_mark);
    yaml_event_delete(&event);
    if (rc == 0 || !lines) return rc;
    if (yaml_parser_parse(p, &event)) {
        yaml_event_delete(&event);
        return refuse_lines(first);
    }
    err_clear();
    return refuse_syntax(w, p, text, n);
}

int walk_yaml(const char *name, const char *text, size_t n, int (*visit_item)(void *, const WalkItem *),
              void *ctx)
{
    Walk          w = { .name = name, .visit = visit_item, .ctx = ctx };
    yaml_parser_t parser;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte-order mark: some editors write one */
        text += 3;
        n -= 3;
    }
    TRY(refuse_bytes(name, text, n));
    if (!yaml_parser_initialize(&parser)) return err_set("%s: out of memory", name);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING); /* otherwise it guesses UTF-16 from two bytes */
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    int rc = 0;
    while (rc == 0 && !w.done) rc = handle_next(&w, &parser, text, n);
    yaml_parser_delete(&parser);
    return rc;
}
