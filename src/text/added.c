#include "text/added.h"

#include "base/err.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

int added_init(AddedSet *s, const AddedToken *token)
{
    memset(s, 0, sizeof *s);
    s->token  = token;
    s->n_node = 1; /* node 0 means none */
    return 0;
}

void added_deinit(AddedSet *s)
{
    free(s->node);
    s->node = NULL;
}

static int32_t new_node(AddedSet *s, unsigned char byte)
{
    if (s->n_node >= s->cap) {
        int32_t    cap  = s->cap * 2 + 256;
        AddedNode *more = realloc(s->node, (size_t)cap * sizeof *more);
        if (!more) return err_sys("added tokens");
        s->node = more;
        s->cap  = cap;
    }
    s->node[s->n_node] = (AddedNode){ 0, 0, -1, byte };
    return s->n_node++;
}

static int32_t child_of(const AddedSet *s, int32_t node, unsigned char byte)
{
    int32_t c = s->node[node].child;
    while (c != 0 && s->node[c].byte != byte) c = s->node[c].sibling;
    return c;
}

int added_insert(AddedSet *s, int32_t i, const char *text, size_t len)
{
    if (len == 0) return 0;
    const unsigned char *p  = (const unsigned char *)text;
    int32_t              at = s->root[p[0]];
    if (at == 0) {
        at = new_node(s, p[0]);
        if (at < 0) return -1;
        s->root[p[0]] = at;
        s->only       = p[0];
        s->n_root++;
    }
    for (size_t k = 1; k < len; k++) {
        int32_t c = child_of(s, at, p[k]);
        if (c == 0) {
            c = new_node(s, p[k]);
            if (c < 0) return -1;
            s->node[c].sibling = s->node[at].child;
            s->node[at].child  = c;
        }
        at = c;
    }
    if (s->node[at].token < 0) s->node[at].token = i;
    return 0;
}

/* The longest token at p; its length is *len. */
static int32_t longest(const AddedSet *s, const unsigned char *p, size_t n, int literal, size_t *len)
{
    int32_t found = -1, at = s->root[p[0]];
    for (size_t k = 1; at != 0; k++) {
        int32_t t = s->node[at].token;
        if (t >= 0 && !(literal && s->token[t].special)) {
            found = t;
            *len  = k;
        }
        at = k < n ? child_of(s, at, p[k]) : 0;
    }
    return found;
}

static int is_word(uint32_t code)
{
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

/* The character that ends at p + at; its length, 0 at the beginning or for malformed text. */
static int before(const unsigned char *p, size_t at, uint32_t *code)
{
    size_t b = at;
    if (at == 0) return 0;
    do b--;
    while (b > 0 && at - b < 4 && (p[b] & 0xc0) == 0x80);
    int len = utf8_next(p + b, at - b, code);
    return (size_t)len == at - b ? len : 0;
}

static int is_single_word(const unsigned char *p, size_t n, size_t begin, size_t end)
{
    uint32_t code;
    if (before(p, begin, &code) > 0 && is_word(code)) return 0;
    return !(utf8_next(p + end, n - end, &code) > 0 && is_word(code));
}

static void swallow_space(const AddedToken *t, const unsigned char *p, size_t n, size_t floor, AddedMatch *m)
{
    uint32_t code;
    for (int len; t->left_strip && m->begin > floor; m->begin -= (size_t)len) {
        len = before(p, m->begin, &code);
        if (len == 0 || !utf8_is_space(code) || m->begin - (size_t)len < floor) break;
    }
    for (int len; t->right_strip && m->end < n; m->end += (size_t)len) {
        len = utf8_next(p + m->end, n - m->end, &code);
        if (len == 0 || !utf8_is_space(code)) break;
    }
}

int added_next(const AddedSet *s, const unsigned char *p, size_t n, size_t from, int literal, AddedMatch *m)
{
    if (s->n_root == 0) return 0;
    for (size_t i = from; i < n; i++) {
        if (s->n_root == 1) {
            const unsigned char *hit = memchr(p + i, s->only, n - i);
            if (!hit) return 0;
            i = (size_t)(hit - p);
        } else {
            while (i < n && s->root[p[i]] == 0) i++;
            if (i == n) return 0;
        }
        size_t  len   = 0;
        int32_t found = longest(s, p + i, n - i, literal, &len);
        if (found < 0) continue;
        const AddedToken *t = &s->token[found];
        if (t->single_word && !is_single_word(p, n, i, i + len)) {
            i += len - 1;
            continue;
        }
        *m = (AddedMatch){ found, i, i + len };
        swallow_space(t, p, n, from, m);
        return 1;
    }
    return 0;
}
