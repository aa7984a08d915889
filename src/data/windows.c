#include "data/windows.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/check.h"
#include "data/order.h"
#include "data/pack.h"
#include "data/tokens.h"
#include "data/vocab.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    Source  base;
    Tokens *tokens;
    Pack   *pack; /* NULL: windows of one sequence */
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

/* ---- one packed sample --------------------------------------------------------------------------------- */

static int64_t packed_row(const Windows *w, int64_t g)
{
    return w->validation ? order_eval_pick(g, w->base.n_sample, w->base.n_all) : order_start(&w->order, g);
}

/* Behind the ids, aligned. */
static void *pack_scratch(const Windows *w, void *scratch)
{
    return (char *)scratch + round_up(sizeof(int32_t) * (size_t)(w->T + 1), 64);
}

/* One piece from position `at` on; doc is NULL where the mask does not ask. */
static int fill_piece(const Windows *w, const PackPiece *p, int64_t at, void *const *field, int32_t *ids)
{
    int32_t *tok = field[WINDOW_TOK], *target = field[WINDOW_TARGET];
    int64_t  n = p->n, before = p->begins ? 0 : 1;
    TRY(tokens_read(w->tokens, p->target0 - before, n + before, ids + 1 - before));
    if (p->begins) ids[0] = pack_lead(w->pack);
    memcpy(tok + at, ids, sizeof *tok * (size_t)n);
    memcpy(target + at, ids + 1, sizeof *target * (size_t)n);
    if (w->mask != MASKING_DOCUMENT) return 0;
    int32_t *doc = field[WINDOW_EXTRA];
    for (int64_t t = 0; t < n; t++) doc[at + t] = (int32_t)at;
    return 0;
}

static int packed_fill(const Source *s, int64_t g, void *const *field, void *scratch)
{
    const Windows   *w   = (const Windows *)s;
    int32_t         *tok = field[WINDOW_TOK], *target = field[WINDOW_TARGET];
    int64_t          at = 0;
    const PackPiece *piece;
    int              n = g < 0 ? 0 : pack_row(w->pack, packed_row(w, g), pack_scratch(w, scratch), &piece);
    if (n < 0) return -1;
    for (int i = 0; i < n; at += piece[i++].n) TRY(fill_piece(w, &piece[i], at, field, scratch));
    for (int64_t t = at; t < w->T; t++) {
        tok[t]    = 0;
        target[t] = -1;
        if (w->mask == MASKING_DOCUMENT) ((int32_t *)field[WINDOW_EXTRA])[t] = (int32_t)at;
    }
    return 0;
}

static int64_t packed_targets(const Source *s, int64_t g, int slot, void *scratch)
{
    const Windows   *w = (const Windows *)s;
    const PackPiece *piece;
    int64_t          sum = 0;
    if (slot != 0) return 0; /* the only loss */
    int n = pack_row(w->pack, packed_row(w, g), pack_scratch(w, scratch), &piece);
    if (n < 0) return -1;
    for (int i = 0; i < n; i++) sum += piece[i].n;
    return sum;
}

/* ---- one sample of a sequence -------------------------------------------------------------------------- */

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
    pack_close(((Windows *)s)->pack);
    tokens_close(((Windows *)s)->tokens);
    free(s);
}

/* Training windows are whole: every one has T targets, unless a prefix has none. */
static const SourceVt whole_vt = { .fill = windows_fill, .close = windows_close };
static const SourceVt part_vt  = { .fill = windows_fill, .targets = windows_targets, .close = windows_close };
static const SourceVt packed_vt = { .fill = packed_fill, .targets = packed_targets, .close = windows_close };

/* ---- opening ------------------------------------------------------------------------------------------- */

static int pack_documents(Windows *w)
{
    TRY(pack_open(&w->pack, w->tokens, w->T));
    int64_t rows = pack_rows(w->pack), cut = pack_cut(w->pack);
    log_info("%s: %lld documents are packed into %lld windows of %lld, %.1f %% full; %lld longer one%s cut",
             tokens_name(w->tokens), (long long)tokens_documents(w->tokens), (long long)rows, (long long)w->T,
             100.0 * (double)pack_targets(w->pack) / (double)(rows * w->T), (long long)cut,
             cut == 1 ? " is" : "s are");
    return 0;
}

/* The token of model.mask document: the recipe's, else the shards' own. */
static int find_document_token(Windows *w, const Recipe *r)
{
    w->document_token = r->data.document_token >= 0 ? r->data.document_token : tokens_end_token(w->tokens);
    if (w->mask != MASKING_DOCUMENT || w->pack || w->document_token >= 0) return 0;
    return recipe_blame(r, "data.document_token", "is missing: %s does not say which token ends a document",
                        tokens_name(w->tokens));
}

static void count_windows(Windows *w, const Recipe *r, int64_t most)
{
    int64_t len = tokens_len(w->tokens);
    if (w->pack) {
        order_init(&w->order, pack_rows(w->pack) + 1, 1, (uint64_t)r->seed); /* a row is a window of 1 */
    } else {
        order_init(&w->order, len, w->T, (uint64_t)r->seed);
    }
    w->base.n_all = w->order.n_window;
    if (!w->validation) return;
    if (!w->pack) w->base.n_all = order_eval_windows(len, w->T);
    w->base.n_sample = most > 0 ? MIN(w->base.n_all, most) : w->base.n_all;
}

static int set_up(Windows *w, const Recipe *r, int64_t most)
{
    w->T    = r->model.context;
    w->mask = r->model.mask;
    if (r->data.pack == PACK_BEST_FIT && r->data.kind != DATA_RANDOM) TRY(pack_documents(w));
    size_t ids      = round_up(sizeof(int32_t) * (size_t)(w->T + 1), 64);
    int    is_part  = w->validation || w->mask == MASKING_PREFIX;
    w->base         = (Source){ .vt            = w->pack   ? &packed_vt
                                                 : is_part ? &part_vt
                                                           : &whole_vt,
                                .name          = tokens_name(w->tokens),
                                .n_sample      = INT64_MAX,
                                .size          = tokens_len(w->tokens),
                                .fingerprint   = tokens_fingerprint(w->tokens),
                                .targets_each  = { w->T },
                                .scratch_bytes = ids + (w->pack ? round_up(pack_scratch_bytes(), 64) : 0) };
    w->prefix_token = r->data.prefix_token;
    TRY(find_document_token(w, r));
    count_windows(w, r, most);
    return 0;
}

/* Adds up the text of every target of the samples that an evaluation takes. */
static int count_bytes(Windows *w, const Recipe *r, const uint16_t *bytes)
{
    size_t  n       = sizeof(int32_t) * (size_t)w->T;
    char   *mem     = mem_zeroed(1, 3 * n + w->base.scratch_bytes + 64);
    int     rc      = mem ? 0 : err_sys("memory for reading data");
    int64_t targets = 0, sum = 0;
    void   *field[3] = { mem, mem + n, mem + 2 * n }, *scratch = mem + round_up(3 * n, 64);
    for (int64_t g = 0; rc == 0 && g < w->base.n_sample; g++) {
        rc = w->base.vt->fill(&w->base, g, field, scratch);
        for (int64_t t = 0; rc == 0 && t < w->T; t++) {
            int32_t id = ((int32_t *)field[WINDOW_TARGET])[t];
            targets += id >= 0;
            sum += id >= 0 ? bytes[id] : 0;
        }
    }
    free(mem);
    if (rc == 0 && targets > 0) w->base.bytes_per_target = (double)sum / (double)targets;
    return rc;
}

static int measure_text(Windows *w, const Recipe *r)
{
    uint16_t *bytes = NULL;
    if (r->data.kind == DATA_TEXT && !r->data.tokenizer[0]) {
        w->base.bytes_per_target = 1;
        return 0;
    }
    int rc = vocab_bytes(r, r->model.vocab, &bytes);
    if (rc > 0) rc = count_bytes(w, r, bytes);
    free(bytes);
    return rc;
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
    if (rc == 0 && validation && (!train || tokens_is_separate(w->tokens)))
        rc = data_check(r, NULL, w->tokens);
    if (rc == 0) rc = set_up(w, r, most);
    if (rc == 0 && validation) rc = measure_text(w, r);
    if (rc < 0) {
        windows_close(&w->base);
        return -1;
    }
    *out = &w->base;
    return 0;
}

int windows_open_train(Source **out, const Recipe *r) { return open_part(out, r, 0, 0, NULL); }

int windows_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    return open_part(out, r, 1, most, train);
}
