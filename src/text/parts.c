/* The normalizer, pre-tokenizer, post-processor and decoder of tokenizer.json.
 *
 * 1. An unknown part is refused by name: skipping it would silently give other ids.
 * 2. Recursion goes as deep as "Sequence" is nested, which the scanner limits. */
#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer_impl.h"

#include <string.h>

const char *const tokenizer_part_name[PART_COUNT] = { "normalizer", "pre_tokenizer", "post_processor",
                                                      "decoder" };

typedef struct {
    Tokenizer    *t;
    TokenizerPart part;
    char          where[256]; /* "FILE: pre_tokenizer" */
} Reading;

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- fields ---- */

static int flag(const json_t *j, const char *key, int otherwise)
{
    const json_t *v = json_object_get(j, key);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

/* A string of the file, copied: it may hold zeros. NULL after err_user(). */
static const char *text_field(const Reading *r, const json_t *j, const char *key, size_t *len)
{
    const json_t *v = json_object_get(j, key);
    if (!json_is_string(v) || json_string_length(v) > ADDED_LENGTH_MAX) {
        err_user("%s: '%s' must be a string of at most %d bytes", r->where, key, ADDED_LENGTH_MAX);
        return NULL;
    }
    *len      = json_string_length(v);
    char *out = arena_alloc(&r->t->arena, *len + 1);
    memcpy(out, json_string_value(v), *len);
    return out;
}

static Regex *add_regex(const Reading *r, const char *pattern, size_t len, int literal)
{
    Tokenizer *t = r->t;
    if (t->n_regex == ARRAY_LEN(t->regex)) {
        err_user("%s: more than %d patterns", r->where, ARRAY_LEN(t->regex));
        return NULL;
    }
    Regex *re = regex_compile(r->where, pattern, len, literal);
    if (re) t->regex[t->n_regex++] = re;
    return re;
}

/* {"Regex": ...} or {"String": ...} */
static Regex *pattern_field(const Reading *r, const json_t *j)
{
    const json_t *p = json_object_get(j, "pattern"), *re = json_object_get(p, "Regex"),
                 *plain = json_object_get(p, "String"), *v = re ? re : plain;
    if (!json_is_string(v)) {
        err_user("%s: 'pattern' must have a \"Regex\" or a \"String\"", r->where);
        return NULL;
    }
    return add_regex(r, json_string_value(v), json_string_length(v), re == NULL);
}

/* ---- normalizer ---- */

static int read_normalizer(Reading *r, const json_t *j, const char *type)
{
    static const struct {
        const char *type;
        NormalKind  kind;
    } known[] = { { "NFC", NORMAL_NFC },    { "NFD", NORMAL_NFD },         { "NFKC", NORMAL_NFKC },
                  { "NFKD", NORMAL_NFKD },  { "Prepend", NORMAL_PREPEND }, { "Replace", NORMAL_REPLACE },
                  { "Strip", NORMAL_STRIP } };
    Normal *m = &r->t->normal;
    int     i = 0;
    while (i < ARRAY_LEN(known) && strcmp(known[i].type, type) != 0) i++;
    if (i == ARRAY_LEN(known)) {
        return err_user(
            "%s: type '%s' is not supported (NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Sequence are)",
            r->where, type);
    }
    if (m->n == NORMAL_MAX) return err_user("%s: more than %d steps", r->where, NORMAL_MAX);
    NormalStep s = { .kind  = known[i].kind,
                     .left  = flag(j, "strip_left", 1),
                     .right = flag(j, "strip_right", 1) };
    if (s.kind == NORMAL_PREPEND || s.kind == NORMAL_REPLACE) {
        s.content = text_field(r, j, s.kind == NORMAL_PREPEND ? "prepend" : "content", &s.content_len);
        if (!s.content) return -1;
    }
    if (s.kind == NORMAL_REPLACE) {
        s.regex = pattern_field(r, j);
        if (!s.regex) return -1;
    }
    m->step[m->n++] = s;
    return 0;
}

/* ---- pre-tokenizer ---- */

static int add_stage(Reading *r, SplitStage s)
{
    Split *m = &r->t->split;
    if (m->n == SPLIT_MAX) return err_user("%s: more than %d stages", r->where, SPLIT_MAX);
    if (r->t->byte_level && s.kind == SPLIT_METASPACE)
        return err_user("%s: Metaspace behind ByteLevel", r->where);
    m->stage[m->n++] = s;
    return 0;
}

static int add_pattern(Reading *r, const char *pattern, SplitBehavior behavior, int invert)
{
    Regex *re = add_regex(r, pattern, strlen(pattern), 0);
    return re ? add_stage(r, (SplitStage){ .regex = re, .behavior = behavior, .invert = invert }) : -1;
}

static int read_behavior(const Reading *r, const json_t *j, SplitBehavior *out)
{
    static const char *const name[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous" };
    const char              *text   = json_string_value(json_object_get(j, "behavior"));
    for (int i = 0; text && i < ARRAY_LEN(name); i++) {
        if (strcmp(text, name[i]) != 0) continue;
        *out = (SplitBehavior)i;
        return 0;
    }
    return err_user(
        "%s: 'behavior' must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous",
        r->where);
}

static int read_split(Reading *r, const json_t *j)
{
    SplitStage s = { .kind = SPLIT_PATTERN, .invert = flag(j, "invert", 0) };
    TRY(read_behavior(r, j, &s.behavior));
    s.regex = pattern_field(r, j);
    return s.regex ? add_stage(r, s) : -1;
}

static int read_byte_level(Reading *r, const json_t *j)
{
    if (flag(j, "add_prefix_space", 1)) TRY(add_stage(r, (SplitStage){ .kind = SPLIT_PREFIX_SPACE }));
    if (flag(j, "use_regex", 1)) TRY(add_pattern(r, gpt2_pattern, SPLIT_ISOLATED, 0));
    r->t->byte_level = 1;
    return 0;
}

static int read_scheme(const Reading *r, const json_t *j, SplitScheme *out)
{
    static const char *const name[] = { "always", "first", "never" };
    const char              *text   = json_string_value(json_object_get(j, "prepend_scheme"));
    *out = flag(j, "add_prefix_space", 1) ? SPLIT_ALWAYS : SPLIT_NEVER; /* older files */
    for (int i = 0; text && i < ARRAY_LEN(name); i++) {
        if (strcmp(text, name[i]) == 0) {
            *out = (SplitScheme)i;
            return 0;
        }
    }
    return text ? err_user("%s: 'prepend_scheme' must be always, first or never", r->where) : 0;
}

static int read_metaspace(Reading *r, const json_t *j)
{
    SplitStage s = { .kind = SPLIT_METASPACE, .cut = flag(j, "split", 1) };
    s.block      = text_field(r, j, "replacement", &s.block_len);
    if (!s.block) return -1;
    if (s.block_len == 0) return err_user("%s: an empty 'replacement'", r->where);
    TRY(read_scheme(r, j, &s.scheme));
    return add_stage(r, s);
}

static int read_pre_tokenizer(Reading *r, const json_t *j, const char *type)
{
    if (r->t->byte_level)
        return err_user("%s: '%s' behind ByteLevel, which must be the last", r->where, type);
    if (strcmp(type, "Split") == 0) return read_split(r, j);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(r, j);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(r, j);
    if (strcmp(type, "Digits") == 0) {
        return add_pattern(r, "\\p{N}", flag(j, "individual_digits", 0) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS,
                           0);
    }
    if (strcmp(type, "WhitespaceSplit") == 0) return add_pattern(r, "\\s", SPLIT_REMOVED, 0);
    if (strcmp(type, "Punctuation") == 0) {
        SplitBehavior b = SPLIT_ISOLATED;
        if (json_object_get(j, "behavior")) TRY(read_behavior(r, j, &b));
        return add_pattern(r, "[\\p{P}$+<=>^`|~]", b, 0);
    }
    return err_user("%s: type '%s' is not supported (Split, ByteLevel, Metaspace, Digits, Punctuation, "
                    "WhitespaceSplit, Sequence are)",
                    r->where, type);
}

/* ---- post-processor ---- */

static int add_frame(const Reading *r, int behind, int64_t id)
{
    Tokenizer *t = r->t;
    int       *n = behind ? &t->n_after : &t->n_before;
    if (id < 0 || id >= t->n_id || t->name[id].len == 0)
        return err_user("%s: token %lld does not exist", r->where, (long long)id);
    if (*n == TOKENIZER_MAX_FRAME) return err_user("%s: more than %d tokens", r->where, TOKENIZER_MAX_FRAME);
    (behind ? t->after : t->before)[(*n)++] = (int32_t)id;
    return 0;
}

static int read_template(Reading *r, const json_t *j)
{
    const json_t *single = json_object_get(j, "single"), *known = json_object_get(j, "special_tokens");
    int           seen = 0;
    if (!json_is_array(single)) return err_user("%s: 'single' must be a list", r->where);
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        if (json_object_get(item, "Sequence")) {
            if (seen++) return err_user("%s: the text appears twice", r->where);
            continue;
        }
        const char *name = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        json_t     *ids  = name ? json_object_get(json_object_get(known, name), "ids") : NULL;
        if (!json_is_array(ids))
            return err_user("%s: 'single' names a token that 'special_tokens' lacks", r->where);
        for (size_t k = 0; k < json_array_size(ids); k++) {
            const json_t *id = json_array_get(ids, k);
            TRY(add_frame(r, seen, json_is_integer(id) ? json_integer_value(id) : -1));
        }
    }
    return seen ? 0 : err_user("%s: 'single' has no place for the text", r->where);
}

/* "cls": ["<s>", 0] */
static int read_cls_sep(Reading *r, const json_t *j)
{
    for (int behind = 0; behind < 2; behind++) {
        const json_t *id = json_array_get(json_object_get(j, behind ? "sep" : "cls"), 1);
        TRY(add_frame(r, behind, json_is_integer(id) ? json_integer_value(id) : -1));
    }
    return 0;
}

static int read_post_processor(Reading *r, const json_t *j, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0) return 0; /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) return read_template(r, j);
    if (strcmp(type, "RobertaProcessing") == 0 || strcmp(type, "BertProcessing") == 0)
        return read_cls_sep(r, j);
    return err_user(
        "%s: type '%s' is not supported (ByteLevel, TemplateProcessing, RobertaProcessing, Sequence are)",
        r->where, type);
}

/* ---- decoder ---- */

static int add_replace(Reading *r, const char *from, size_t from_len, const char *to, size_t to_len)
{
    Decode *d = &r->t->decode;
    if (d->n_replace == ARRAY_LEN(d->replace)) return err_user("%s: too many replacements", r->where);
    if (from_len == 0) return err_user("%s: an empty pattern", r->where);
    d->replace[d->n_replace++] = (DecodeReplace){ from, to, from_len, to_len };
    return 0;
}

static int read_decoder_replace(Reading *r, const json_t *j)
{
    size_t      from_len, to_len;
    const char *from = text_field(r, json_object_get(j, "pattern"), "String", &from_len);
    const char *to   = from ? text_field(r, j, "content", &to_len) : NULL;
    return to ? add_replace(r, from, from_len, to, to_len) : -1;
}

static int read_decoder_strip(Reading *r, const json_t *j)
{
    Decode       *d     = &r->t->decode;
    const char   *what  = json_string_value(json_object_get(j, "content"));
    const json_t *start = json_object_get(j, "start"), *stop = json_object_get(j, "stop");
    if (!what || what[0] == '\0' || what[1] != '\0' || !json_is_integer(start) ||
        json_integer_value(start) < 0 || json_integer_value(start) > 1000 || !json_is_integer(stop) ||
        json_integer_value(stop) != 0) {
        return err_user("%s: Strip is supported for one ASCII character at the beginning", r->where);
    }
    if (!d->fuse) return err_user("%s: Strip is supported behind Fuse only", r->where);
    d->strip      = what[0];
    d->strip_left = (int)json_integer_value(start);
    return 0;
}

static int read_decoder_metaspace(Reading *r, const json_t *j)
{
    size_t      len;
    SplitScheme scheme;
    const char *block = text_field(r, j, "replacement", &len);
    if (!block) return -1;
    TRY(read_scheme(r, j, &scheme));
    r->t->decode.bare_first = scheme != SPLIT_NEVER;
    return add_replace(r, block, len, " ", 1);
}

static int read_decoder(Reading *r, const json_t *j, const char *type)
{
    Decode *d = &r->t->decode;
    d->join   = 0;
    if (strcmp(type, "ByteLevel") == 0) {
        d->byte_level = 1;
        return 0;
    }
    if (strcmp(type, "Strip") == 0) return read_decoder_strip(r, j);
    if (strcmp(type, "Fuse") == 0) {
        d->fuse = 1;
        return 0;
    }
    if (d->fuse) return err_user("%s: '%s' behind Fuse is not supported", r->where, type);
    if (strcmp(type, "Replace") == 0) return read_decoder_replace(r, j);
    if (strcmp(type, "Metaspace") == 0) return read_decoder_metaspace(r, j);
    if (strcmp(type, "ByteFallback") == 0) {
        d->byte_fallback = 1;
        return 0;
    }
    return err_user("%s: type '%s' is not supported (ByteLevel, Metaspace, Replace, ByteFallback, Fuse, "
                    "Strip, Sequence are)",
                    r->where, type);
}

/* ---- all ---- */

static int read_one(Reading *r, const json_t *j)
{
    static const char *const list_key[PART_COUNT] = { "normalizers", "pretokenizers", "processors",
                                                      "decoders" };
    char                     quoted[48];
    const char              *type = json_string_value(json_object_get(j, "type"));
    if (!type) return err_user("%s: it must be null or have a \"type\"", r->where);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(j, list_key[r->part]);
        if (!json_is_array(list)) return err_user("%s: a Sequence without '%s'", r->where, list_key[r->part]);
        for (size_t i = 0; i < json_array_size(list); i++) TRY(read_one(r, json_array_get(list, i)));
        return 0;
    }
    type = str_quote(quoted, sizeof quoted, type, strlen(type));
    switch (r->part) {
    case PART_NORMALIZER: return read_normalizer(r, j, type);
    case PART_PRE_TOKENIZER: return read_pre_tokenizer(r, j, type);
    case PART_POST_PROCESSOR: return read_post_processor(r, j, type);
    default: return read_decoder(r, j, type);
    }
}

int parts_read(Tokenizer *t, TokenizerPart part, const json_t *j)
{
    Reading r = { .t = t, .part = part };
    char    path[160];
    str_quote(path, sizeof path, t->path, strlen(t->path));
    snprintf(r.where, sizeof r.where, "%s: %s", path, tokenizer_part_name[part]);
    if (part == PART_DECODER) t->decode.join = 1;
    return json_is_null(j) ? 0 : read_one(&r, j);
}
