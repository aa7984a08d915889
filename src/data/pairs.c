#include "data/pairs.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/order.h"
#include "data/pairs_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes -------------------------------------------------------------------------------------------- */

int pairs_shape(PairShape *s, const Recipe *r)
{
    *s = (PairShape){ .S = r->encoder.bytes,
                      .P = r->latent.prompt,
                      .A = r->latent.n_anchor,
                      .L = r->latent.answer,
                      .K = r->latent.first,
                      .M = r->encoder.latents };
    if (r->latent.pairs == PAIRS_SQUAD) s->G = PAIRS_OTHER * (s->L + 1);
    if (r->latent.teacher == TEACHER_CACHED && r->latent.kl_weight > 0) s->top = r->latent.teacher_top;
    if (s->A < 1)
        return recipe_blame(r, "latent.anchor",
                            "has no token: the first token of an answer needs one "
                            "before it");
    s->none    = s->A + s->L - 1;
    s->student = s->budget = s->M + s->none;
    s->teacher             = s->P + s->A + s->K - 1;
    s->full                = s->P + s->none;
    return 0;
}

int pairs_fields(const PairShape *s, FieldRow *row)
{
    row[PAIR_BYTES]     = (FieldRow){ "bytes", DT_I32, 1, { s->S } };
    row[PAIR_N_BYTES]   = (FieldRow){ "number of bytes", DT_I32, 0, { 0 } };
    row[PAIR_TEXT]      = (FieldRow){ "text", DT_I32, 2, { s->full, 1 } };
    row[PAIR_N_TEACHER] = (FieldRow){ "teacher's tokens", DT_I32, 0, { 0 } };
    row[PAIR_N_FULL]    = (FieldRow){ "text's tokens", DT_I32, 0, { 0 } };
    row[PAIR_BUDGET]    = (FieldRow){ "budget", DT_I32, 2, { s->budget, 1 } };
    row[PAIR_N_BUDGET]  = (FieldRow){ "budget's tokens", DT_I32, 0, { 0 } };
    row[PAIR_NONE]      = (FieldRow){ "no prompt", DT_I32, 2, { s->none, 1 } };
    row[PAIR_TOK]       = (FieldRow){ "anchor and answer", DT_I32, 2, { s->student, 1 } };
    row[PAIR_TARGET]    = (FieldRow){ "targets", DT_I32, 2, { s->L, 1 } };
    row[PAIR_FIRST]     = (FieldRow){ "first target", DT_I32, 2, { s->K, 1 } };
    int n               = PAIR_OTHER;
    if (s->G > 0) row[n++] = (FieldRow){ "other answers", DT_I32, 2, { s->G, 1 } };
    if (s->top == 0) return n;
    row[n + PAIR_CACHED_ID]    = (FieldRow){ "teacher's ids", DT_I32, 2, { s->K, s->top } };
    row[n + PAIR_CACHED_LOGIT] = (FieldRow){ "teacher's logits", DT_F32, 2, { s->K, s->top } };
    row[n + PAIR_CACHED_REST]  = (FieldRow){ "teacher's rest", DT_F32, 2, { s->K, 1 } };
    return n + PAIR_CACHED_REST + 1;
}

int pairs_cached(const PairShape *s) { return PAIR_OTHER + (s->G > 0); }

/* Rows of one sample: so many behind a prompt, and of the longest prompt. Bytes begin at multiples of
 * PAIRS_ALIGN, which wastes half of it on average. */
static void reader_rows(const PairShape *s, PairReader reader, int64_t *rest, int64_t *prompt)
{
    *rest   = reader == READ_BYTES ? PAIRS_ALIGN / 2 : s->A - 1 + (reader == READ_TEACHER ? s->K : s->L);
    *prompt = reader == READ_BYTES                            ? round_up(s->S, PAIRS_ALIGN)
              : reader == READ_TEACHER || reader == READ_FULL ? s->P
              : reader == READ_NONE                           ? 0
                                                              : s->M;
}

double pairs_share(const Recipe *r)
{
    if (r->latent.room > 0) return r->latent.room;
    return r->latent.share > 0 ? r->latent.share : 1;
}

int64_t pairs_rows(const PairShape *s, PairReader reader, int64_t B, double room)
{
    int64_t rest, prompt;
    reader_rows(s, reader, &rest, &prompt);
    int64_t most = B * ((reader == READ_BYTES ? 0 : rest) + prompt);
    int64_t some = B * rest + (int64_t)ceil(room * (double)(B * prompt)) + prompt;
    return round_up(reader <= READ_FULL ? MIN(most, some) : most, PAIRS_ALIGN);
}

int pairs_has_val(const Recipe *r)
{
    return r->latent.pairs == PAIRS_RANDOM || r->data.val[0] || r->data.val_fraction > 0;
}

/* ---- order --------------------------------------------------------------------------------------------- */

/* each: the training pairs, each of them once. */
typedef enum { PART_TRAIN, PART_VAL, PART_EACH } PairPart;

typedef struct {
    Source      base;
    PairShape   shape;
    PairList   *list;    /* one for both parts, where the file has both */
    Pair       *pair;    /* of this part, */
    int64_t     n;       /* so many */
    PairTeacher teacher; /* h.top 0: there is none */
    int32_t    *sorted;  /* by length, the shortest first */
    double      need;    /* the least room in which samples in a row fit */
    int64_t     group;   /* a power of two: samples in a row that are from different parts of sorted */
    uint64_t    seed;
    int         once; /* n_sample pairs once, in one order, instead of epochs */
    int         validation, baselines;
} Pairs;

static int64_t reverse_bits(int64_t x, int64_t n)
{
    int64_t y = 0;
    for (; n > 1; n /= 2, x /= 2) y = 2 * y + x % 2;
    return y;
}

static int64_t part_begin(const Pairs *p, int64_t part, int64_t n) { return part * n / p->group; }

/* The k-th slot whose part has one pair more than the others. */
static int64_t slot_of_rest(const Pairs *p, int64_t n, int64_t k)
{
    int64_t rows = n / p->group, slot = 0;
    for (;; slot++) {
        int64_t part = reverse_bits(slot, p->group);
        if (part_begin(p, part + 1, n) - part_begin(p, part, n) > rows && k-- == 0) return slot;
    }
}

/* Pair of sample g. Once: n_sample of all, evenly spread, in the same balanced order. */
static const Pair *pair_of(const Pairs *p, int64_t g)
{
    int64_t n = p->once ? p->base.n_sample : p->n, slot = g % p->group, row = g / p->group;
    int64_t rows = n / p->group;
    if (p->once && row >= rows) slot = slot_of_rest(p, n, g - rows * p->group);
    int64_t part = reverse_bits(slot, p->group), begin = part_begin(p, part, n);
    int64_t size = part_begin(p, part + 1, n) - begin;
    if (p->once) return &p->pair[p->sorted[order_eval_pick(begin + MIN(row, rows), n, p->n)]];
    Order o = { .seed = p->seed, .n_window = size };
    while (o.half_bits < 31 && (INT64_C(1) << (2 * o.half_bits)) < size) o.half_bits++;
    int64_t epoch = row / rows, at = begin + order_permute(&o, epoch * p->group + part, row % rows);
    return &p->pair[p->sorted[at]];
}

/* Rows of one sample, packed. */
static int64_t rows_of(const Pairs *p, const Pair *pair, PairReader reader)
{
    const PairShape *s = &p->shape;
    if (reader == READ_BYTES) return round_up(pair->n_byte, PAIRS_ALIGN);
    return pair->n_prompt + s->A - 1 + (reader == READ_TEACHER ? s->K : s->L);
}

/* Epochs: rows that sample i of a group needs at most, in any epoch: its part's longest. */
static int64_t rows_at(const Pairs *p, int64_t i, PairReader reader)
{
    if (p->once) return rows_of(p, pair_of(p, i), reader);
    int64_t part = reverse_bits(i % p->group, p->group), rows = 0, n = p->n;
    for (int64_t k = part_begin(p, part, n); k < part_begin(p, part + 1, n); k++)
        rows = MAX(rows, rows_of(p, &p->pair[p->sorted[k]], reader));
    return rows;
}

/* The least room in which any samples in a row fit. One sample's rows are to spare (pairs_rows()), but whole
 * groups have to do without. */
static double least_room(const Pairs *p, int64_t *rows)
{
    int64_t n    = p->once ? p->base.n_sample : 2 * p->group;
    double  need = 0;
    for (PairReader reader = READ_BYTES; reader <= READ_FULL; reader++) {
        int64_t rest, prompt;
        reader_rows(&p->shape, reader, &rest, &prompt);
        for (int64_t i = 0; i < n; i++) rows[i] = rows_at(p, i, reader) - rest;
        for (int64_t from = 0; from < n; from++) {
            int64_t sum = 0;
            for (int64_t k = 1; k <= p->group && from + k <= n; k++) {
                sum += rows[from + k - 1];
                double share = (double)(sum - (k < p->group ? prompt : 0)) / (double)(k * prompt);
                need         = MAX(need, MIN(share, 1));
            }
        }
    }
    return need;
}

/* ---- one sample ---------------------------------------------------------------------------------------- */

static int32_t *put(int32_t *at, const int32_t *tok, int64_t n)
{
    memcpy(at, tok, sizeof *tok * (size_t)n);
    return at + n;
}

void pair_fill_none(const PairShape *s, void *const *field)
{
    memset(field[PAIR_BYTES], 0, sizeof(int32_t) * (size_t)s->S);
    memset(field[PAIR_TEXT], -1, sizeof(int32_t) * (size_t)s->full);
    memset(field[PAIR_BUDGET], -1, sizeof(int32_t) * (size_t)s->budget);
    memset(field[PAIR_NONE], -1, sizeof(int32_t) * (size_t)s->none);
    memset(field[PAIR_TOK], -1, sizeof(int32_t) * (size_t)s->student);
    memset(field[PAIR_TARGET], -1, sizeof(int32_t) * (size_t)s->L);
    memset(field[PAIR_FIRST], -1, sizeof(int32_t) * (size_t)s->K);
    if (s->G > 0) memset(field[PAIR_OTHER], -1, sizeof(int32_t) * (size_t)s->G);
    if (s->top > 0) pair_teacher_fill_none(s, field);
    *(int32_t *)field[PAIR_N_BYTES] = *(int32_t *)field[PAIR_N_TEACHER] = 0;
    *(int32_t *)field[PAIR_N_FULL] = *(int32_t *)field[PAIR_N_BUDGET] = 0;
}

void pair_fill(const PairShape *s, const PairList *l, const Pair *pair, void *const *field)
{
    const int32_t *tok = l->tokens + pair->tokens_at, *rest = tok + pair->n_prompt;
    int64_t        n_rest = s->A + MIN(pair->n_answer, s->L - 1), n_budget = MIN(pair->n_prompt, s->M);
    int32_t       *bytes = field[PAIR_BYTES];
    for (int64_t i = 0; i < pair->n_byte; i++)
        bytes[i] = (unsigned char)l->bytes[pair->bytes_at + pair->n_byte - 1 - i];
    *(int32_t *)field[PAIR_N_BYTES] = pair->n_byte;
    put(put(field[PAIR_TEXT], tok, pair->n_prompt), rest, n_rest);
    put(put(field[PAIR_BUDGET], tok, n_budget), rest, n_rest);
    put(field[PAIR_NONE], rest, n_rest);
    put((int32_t *)field[PAIR_TOK] + s->M, rest, n_rest);
    *(int32_t *)field[PAIR_N_TEACHER] = (int32_t)(pair->n_prompt + s->A + s->K - 1);
    *(int32_t *)field[PAIR_N_FULL]    = (int32_t)(pair->n_prompt + s->none);
    *(int32_t *)field[PAIR_N_BUDGET]  = (int32_t)(n_budget + s->none);
    put(field[PAIR_TARGET], rest + s->A, pair->n_answer);
    if (pair->n_answer > 0) *(int32_t *)field[PAIR_FIRST] = rest[s->A];
    if (s->G > 0) put(field[PAIR_OTHER], rest + s->A + pair->n_answer, pair->n_other);
}

static int pairs_fill(const Source *src, int64_t g, void *const *field, void *scratch)
{
    const Pairs *p = (const Pairs *)src;
    pair_fill_none(&p->shape, field);
    if (g < 0) return 0;
    const Pair *pair = pair_of(p, g);
    pair_fill(&p->shape, p->list, pair, field);
    return p->teacher.h.top > 0 ? pair_teacher_fill(&p->teacher, &p->shape, pair - p->pair, field, scratch)
                                : 0;
}

static int64_t pairs_targets(const Source *src, int64_t g, int slot, void *scratch)
{
    const Pairs *p = (const Pairs *)src;
    int64_t      n = pair_of(p, g)->n_answer;
    if (p->validation) {
        if (slot == PAIR_EVAL_EM || slot == PAIR_EVAL_F1 || slot == PAIR_EVAL_HIT) return 1;
        if (slot >= PAIR_EVAL_FULL && !p->baselines) return 0;
        return slot < PAIR_EVALS ? n : 0;
    }
    if (slot == PAIR_LOSS) return n;
    if (slot == PAIR_FIRST_TOKEN) return 1;
    return slot < PAIR_LOSSES ? MIN(n, p->shape.K) : 0;
}

static void pairs_close(Source *src)
{
    Pairs *p = (Pairs *)src;
    pair_teacher_close(&p->teacher);
    if (p->list && --p->list->n_user == 0) {
        pair_list_free(p->list);
        free(p->list);
    }
    free(p->sorted);
    free(p);
}

static const SourceVt pairs_vt = { .fill = pairs_fill, .targets = pairs_targets, .close = pairs_close };

/* ---- opening ------------------------------------------------------------------------------------------- */

/* By tokens, then bytes, then place: the order is the same everywhere. */
typedef struct {
    int32_t n_prompt, n_byte, i;
} SortKey;

static int shorter_first(const void *a, const void *b)
{
    const SortKey *x = a, *y = b;
    if (x->n_prompt != y->n_prompt) return x->n_prompt < y->n_prompt ? -1 : 1;
    if (x->n_byte != y->n_byte) return x->n_byte < y->n_byte ? -1 : 1;
    return x->i < y->i ? -1 : x->i > y->i;
}

static int sort_pairs(Pairs *p)
{
    int64_t  n   = p->n;
    SortKey *key = mem_alloc(sizeof *key * (size_t)n);
    p->sorted    = mem_alloc(sizeof *p->sorted * (size_t)n);
    if (!key || !p->sorted) {
        free(key);
        return err_sys("memory for the order of prompts");
    }
    for (int64_t i = 0; i < n; i++) key[i] = (SortKey){ p->pair[i].n_prompt, p->pair[i].n_byte, (int32_t)i };
    qsort(key, (size_t)n, sizeof *key, shorter_first);
    for (int64_t i = 0; i < n; i++) p->sorted[i] = key[i].i;
    free(key);
    return 0;
}

/* The group divides the step, so that samples which a run passes over are whole groups. */
static void choose_group(Pairs *p, const Recipe *r)
{
    int64_t n = p->once ? p->base.n_sample : p->n;
    p->group  = 1;
    while (2 * p->group <= MIN(n, PAIRS_GROUP) && (p->once || r->step_samples % (2 * p->group) == 0))
        p->group *= 2;
}

static int find_room(Pairs *p)
{
    int64_t  n    = p->once ? p->base.n_sample : 2 * p->group;
    int64_t *rows = mem_alloc(sizeof *rows * (size_t)n);
    if (!rows) return err_sys("memory for lengths");
    p->need = least_room(p, rows);
    free(rows);
    return 0;
}

/* What is said has three digits. */
static double room_to_say(double need) { return MIN(need + 0.001, 1); }

/* Without the key, what is open says how much room there is: pairs_fit(). */
static int check_room(const Pairs *p, const Recipe *r)
{
    double room = r->latent.room;
    if (room == 0) return 0;
    if (p->need > room)
        return recipe_blame(r, "latent.room", "%g is too small for these prompts: %.3g would do", room,
                            room_to_say(p->need));
    if (p->need < 0.9 * room && !p->validation)
        log_info("latent.room=%.3g would do for these prompts and leave out empty rows",
                 room_to_say(p->need));
    return 0;
}

/* The list of the training part, if that is open and has both parts; else one of its own. */
static int take_list(Pairs *p, const Recipe *r, const Pairs *train, int quiet)
{
    int64_t from;
    if (train && pair_list_has_both(r)) {
        p->list = train->list;
        p->list->n_user++;
    } else {
        p->list = mem_zeroed(1, sizeof *p->list);
        if (!p->list) return err_sys("memory for reading data");
        int rc          = pair_list_read(p->list, r, &p->shape, p->validation, quiet);
        p->list->n_user = 1; /* reading begins with an empty list */
        TRY(rc);
    }
    TRY(pair_list_part(p->list, r, p->validation, &from, &p->n));
    p->pair = p->list->pair + from;
    return 0;
}

/* train: the training part, if that is open. */
static int open_part(Pairs **out, const Recipe *r, const Pairs *train, PairPart part, int64_t most, int quiet)
{
    int    validation = part == PART_VAL;
    Pairs *p          = mem_zeroed(1, sizeof *p);
    if (!p) return err_sys("memory for reading data");
    p->base       = (Source){ .vt = &pairs_vt, .name = validation ? "validation pairs" : "training pairs" };
    p->validation = validation;
    p->once       = part != PART_TRAIN;
    p->baselines  = r->latent.baselines;
    p->seed       = (uint64_t)r->seed;
    int rc        = pairs_shape(&p->shape, r);
    if (rc == 0) rc = take_list(p, r, train, quiet);
    if (rc == 0) rc = sort_pairs(p);
    if (rc == 0) {
        p->base.size        = p->n;
        p->base.fingerprint = p->list->hash;
        p->base.n_all       = p->n;
        p->base.n_sample    = !p->once ? INT64_MAX : most > 0 ? MIN(most, p->n) : p->n;
        choose_group(p, r);
        rc = find_room(p);
    }
    if (rc < 0) {
        pairs_close(&p->base);
        return -1;
    }
    *out = p;
    return 0;
}

static int open_teacher(Pairs *p, const Recipe *r)
{
    if (p->shape.top == 0 || p->once) return 0;
    TRY(pair_teacher_open(&p->teacher, r, &p->shape, &(PairPartList){ p->list, p->pair, p->n }));
    p->base.scratch_bytes = teacher_record_bytes(&p->teacher.h);
    return 0;
}

static int open_checked(Source **out, const Recipe *r, const Pairs *train, PairPart part, int64_t most)
{
    Pairs *p;
    TRY(open_part(&p, r, train, part, most, 0));
    if (check_room(p, r) < 0 || open_teacher(p, r) < 0) {
        pairs_close(&p->base);
        return -1;
    }
    *out = &p->base;
    return 0;
}

static void fit(Recipe *r, const Pairs *train, const Pairs *val)
{
    enum { LEAST = 100 /* of prompts without tokens, the inverse of it */ };
    if (r->latent.room == 0) r->latent.share = MAX(MAX(train->need, val ? val->need : 0), 1.0 / LEAST);
}

void pairs_fit(Recipe *r, const Source *train, const Source *val)
{
    fit(r, (const Pairs *)train, (const Pairs *)val);
}

int pairs_look(Recipe *r)
{
    Pairs *train, *val = NULL;
    int    rc = 0, has_val = r->latent.pairs != PAIRS_RANDOM && pairs_has_val(r);
    TRY(open_part(&train, r, NULL, PART_TRAIN, 0, 1));
    if (has_val) rc = open_part(&val, r, train, PART_VAL, r->eval.samples, 1);
    if (rc == 0) fit(r, train, val);
    if (val) pairs_close(&val->base);
    pairs_close(&train->base);
    return rc;
}

int pairs_open_train(Source **out, const Recipe *r) { return open_checked(out, r, NULL, PART_TRAIN, 0); }

int pairs_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    if (!pairs_has_val(r))
        return recipe_blame(r, "data.val_fraction", "is 0, so there is no validation data: name data.val");
    return open_checked(out, r, (const Pairs *)train, PART_VAL, most);
}

int pairs_open_each(Source **out, Recipe *r)
{
    Pairs *p;
    TRY(open_part(&p, r, NULL, PART_EACH, 0, 0));
    r->latent.room = room_to_say(p->need);
    *out           = &p->base;
    return 0;
}

int64_t pairs_number(const Source *each, int64_t g)
{
    const Pairs *p = (const Pairs *)each;
    return pair_of(p, g) - p->pair;
}

void pairs_teacher_header(const Source *each, const Recipe *r, TeacherHeader *h)
{
    const Pairs *p = (const Pairs *)each;
    pair_teacher_header(h, r, &p->shape, &(PairPartList){ p->list, p->pair, p->n });
}

int pairs_fill_prompt(const Recipe *r, const char *prompt, void *const *field)
{
    PairShape s;
    PairList  l = { 0 };
    TRY(pairs_shape(&s, r));
    pair_fill_none(&s, field);
    if (!prompt) return 0;
    int rc = pair_list_prompt(&l, r, &s, prompt);
    if (rc == 0) pair_fill(&s, &l, &l.pair[0], field);
    pair_list_free(&l);
    return rc;
}

int pairs_prompt_is_cut(const Recipe *r, const char *prompt)
{
    PairShape s;
    PairList  l = { 0 };
    TRY(pairs_shape(&s, r));
    int rc     = pair_list_prompt(&l, r, &s, prompt);
    int is_cut = l.n_cut_bytes > 0;
    pair_list_free(&l);
    return rc < 0 ? rc : is_cut;
}
