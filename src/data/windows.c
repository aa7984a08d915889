#include "data/windows.h"

#include "base/err.h"
#include "base/mem.h"
#include "data/check.h"
#include "data/order.h"
#include "data/tokens.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Source  base;
    Tokens *tokens;
    Order   order;
    int64_t T;
    int     validation;
    Masking mask;
    int64_t document_token, prefix_token;
} Windows;

int windows_fields(const Recipe *r, FieldRow *row)
{
    int64_t T          = r->model.context;
    row[WINDOW_TOK]    = (FieldRow){ "tokens", DT_I32, 1, { T } };
    row[WINDOW_TARGET] = (FieldRow){ "targets", DT_I32, 2, { T, 1 } };
    if (r->model.mask == MASKING_DOCUMENT) row[WINDOW_EXTRA] = (FieldRow){ "documents", DT_I32, 1, { T } };
    if (r->model.mask == MASKING_PREFIX) row[WINDOW_EXTRA] = (FieldRow){ "prefix", DT_I32, 0, { 0 } };
    return r->model.mask == MASKING_DOCUMENT || r->model.mask == MASKING_PREFIX ? 3 : 2;
}

/* ---- one sample ---------------------------------------------------------------------------------------- */

/* Where the window of sample g begins, and how many of its T targets exist. */
static int64_t window_of(const Windows *w, int64_t g, int64_t *start)
{
    if (!w->validation) {
        *start = order_start(&w->order, g);
        return w->T;
    }
    *start = order_eval_pick(g, w->base.n_sample, w->base.n_all) * w->T;
    return MIN(w->T, tokens_len(w->tokens) - 1 - *start);
}

/* Tokens of the prefix among the first n. */
static int64_t prefix_of(const Windows *w, const int32_t *tok, int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        if (tok[t] == w->prefix_token) return t + 1;
    }
    return 0;
}

static void fill_documents(const Windows *w, const int32_t *tok, int32_t *doc)
{
    int32_t first = 0;
    for (int64_t t = 0; t < w->T; t++) {
        doc[t] = first;
        if (tok[t] == w->document_token) first = (int32_t)(t + 1);
    }
}

static int windows_fill(const Source *s, int64_t g, void *const *field, void *scratch)
{
    const Windows *w   = (const Windows *)s;
    int32_t       *tok = field[WINDOW_TOK], *target = field[WINDOW_TARGET], *ids = scratch;
    int64_t        start = 0, n = g < 0 ? 0 : window_of(w, g, &start);
    int64_t        again = w->mask == MASKING_FULL && n > 0 ? w->T - n : 0;
    /* Where every position sees every other, padding would be seen, too: a short window begins earlier
     * instead. What it has in common with the one before has no targets. */
    start -= again;
    n += again;
    if (n > 0) TRY(tokens_read(w->tokens, start, n + 1, ids));
    memcpy(tok, ids, sizeof *tok * (size_t)n);
    memcpy(target, ids + 1, sizeof *target * (size_t)n);
    for (int64_t t = 0; t < again; t++) target[t] = -1;
    for (int64_t t = n; t < w->T; t++) {
        tok[t]    = 0;
        target[t] = -1;
    }
    if (w->mask == MASKING_DOCUMENT) fill_documents(w, tok, field[WINDOW_EXTRA]);
    if (w->mask != MASKING_PREFIX) return 0;
    int64_t prefix                  = prefix_of(w, tok, n);
    *(int32_t *)field[WINDOW_EXTRA] = (int32_t)prefix;
    for (int64_t t = 0; t + 1 < prefix; t++) target[t] = -1;
    return 0;
}

static int64_t windows_targets(const Source *s, int64_t g, int slot, void *scratch)
{
    const Windows *w = (const Windows *)s;
    int64_t        start;
    if (slot != 0) return 0; /* the only loss */
    int64_t n = window_of(w, g, &start);
    if (w->mask != MASKING_PREFIX) return n;
    TRY(tokens_read(w->tokens, start, n, scratch));
    return n - MAX(prefix_of(w, scratch, n) - 1, 0);
}

static void windows_close(Source *s)
{
    tokens_close(((Windows *)s)->tokens);
    free(s);
}

/* Training windows are whole: every one has T targets, unless a prefix has none. */
static const SourceVt whole_vt = { .fill = windows_fill, .close = windows_close };
static const SourceVt part_vt  = { .fill = windows_fill, .targets = windows_targets, .close = windows_close };

/* ---- opening ------------------------------------------------------------------------------------------- */

static void set_up(Windows *w, const Recipe *r, int64_t most)
{
    int64_t len       = tokens_len(w->tokens);
    w->T              = r->model.context;
    w->mask           = r->model.mask;
    int is_part       = w->validation || w->mask == MASKING_PREFIX;
    w->base           = (Source){ .vt            = is_part ? &part_vt : &whole_vt,
                                  .name          = tokens_name(w->tokens),
                                  .n_sample      = INT64_MAX,
                                  .size          = len,
                                  .fingerprint   = tokens_fingerprint(w->tokens),
                                  .targets_each  = { w->T },
                                  .scratch_bytes = sizeof(int32_t) * (size_t)(w->T + 1) };
    w->document_token = r->data.document_token;
    w->prefix_token   = r->data.prefix_token;
    if (w->validation) {
        w->base.n_all    = order_eval_windows(len, w->T);
        w->base.n_sample = most > 0 ? MIN(w->base.n_all, most) : w->base.n_all;
    }
    order_init(&w->order, len, w->T, (uint64_t)r->seed);
}

/* What is wrong with the validation part is said before anything is said about the training part. */
static int try_val(const Recipe *r)
{
    Tokens *val;
    if (!tokens_has_val(r)) return 0;
    TRY(tokens_open(&val, r, 1));
    tokens_close(val);
    return 0;
}

static int open_part(Source **out, const Recipe *r, int validation, int64_t most, const Source *train)
{
    Windows *w = mem_zeroed(1, sizeof *w);
    if (!w) return err_sys("memory for reading data");
    w->validation = validation;
    int rc        = tokens_open(&w->tokens, r, validation);
    if (rc == 0 && !validation) rc = try_val(r);
    if (rc == 0 && !validation) rc = data_check(r, w->tokens, NULL);
    if (rc == 0 && validation && (!train || r->data.val[0])) rc = data_check(r, NULL, w->tokens);
    if (rc < 0) {
        tokens_close(w->tokens);
        free(w);
        return -1;
    }
    set_up(w, r, most);
    *out = &w->base;
    return 0;
}

int windows_open_train(Source **out, const Recipe *r) { return open_part(out, r, 0, 0, NULL); }

int windows_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    return open_part(out, r, 1, most, train);
}
