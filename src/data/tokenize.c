/* Threads share the reader: each draws a ticket and reads the ticket's batch under one lock, then encodes by
 * itself. The calling thread takes the batches in order and writes them. That thread never takes the lock:
 * the holder may wait for a slot that only the calling thread gives back. */
#include "data/tokenize.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/folder.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/thread.h"
#include "file/shard_write.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { SLOTS_EACH = 2, FRAME_MOST = 64 };

/* Before the process's number: a folder in the result's, until all is done. */
#define TMP_PREFIX ".tmp-tokens-"

static const char *const part_name[2] = { "train", "val" };

typedef struct {
    int64_t n_token, text_bytes;
    int     first, last, val;
} Encoded;

typedef struct {
    DocumentBatch batch;
    Encoded      *doc;
    int64_t       n_doc, cap_doc;
    int32_t      *id;
    int64_t       n_id, cap_id, n_bad;
    int           ended; /* behind the last batch */
    ErrKind       failed;
    char          why[1024];
} Slot;

/* What stands before and behind each document. */
typedef struct {
    int32_t before[FRAME_MOST], after[FRAME_MOST];
    int     n_before, n_after;
} Around;

typedef struct {
    const Tokenizer      *t;
    const TokenizeConfig *cfg;
    TokenizeResult       *result;
    Documents            *docs;
    Around                around;
    pthread_mutex_t       reading;
    atomic_int_least64_t  taken; /* of the input */
    int                   ended; /* under the lock */
    ThreadRing            ring;
    Slot                 *slot;
    int                   n_slot;
    char                  tmp[PATH_MAX];
    int                   is_new; /* the folder was made for this */
    ShardWriter          *writer[2];
    int                   val; /* of the document under way, like the next two */
    int64_t               n_token, text_bytes;
} Work;

/* The frame is what an empty text becomes. The end token is not put twice. */
static int find_around(Work *w)
{
    TokenizerFacts    f = tokenizer_facts(w->t);
    TokenizerScratch *s = tokenizer_scratch_create(w->t);
    const int32_t    *id;
    Around           *a = &w->around;
    if (!s) return -1;
    int64_t n = tokenizer_encode(w->t, s, "", 0, TOKENIZER_FRAME, &id);
    if (n >= 0) {
        CHECK(f.n_frame_before + f.n_frame_after == n && n < FRAME_MOST - 1, "a frame of %lld", (long long)n);
        a->n_before = f.n_frame_before;
        a->n_after  = f.n_frame_after;
        for (int i = 0; i < a->n_before; i++) a->before[i] = id[i];
        for (int i = 0; i < a->n_after; i++) a->after[i] = id[a->n_before + i];
        int32_t end = w->cfg->end_token;
        if (end >= 0 && (a->n_after == 0 || a->after[a->n_after - 1] != end)) a->after[a->n_after++] = end;
    }
    tokenizer_scratch_destroy(s);
    return n < 0 ? -1 : 0;
}

/* ---- encoding ------------------------------------------------------------------------------------------ */

static int push_ids(Slot *s, const int32_t *id, int64_t n)
{
    if (n == 0) return 0;
    if (s->n_id + n > s->cap_id) {
        int64_t  cap  = MAX(s->cap_id * 2, s->n_id + n);
        int32_t *more = realloc(s->id, sizeof *more * (size_t)cap);
        if (!more) return err_sys("memory for %lld tokens", (long long)cap);
        s->id     = more;
        s->cap_id = cap;
    }
    memcpy(s->id + s->n_id, id, sizeof *id * (size_t)n);
    s->n_id += n;
    return 0;
}

static int push_doc(Slot *s, Encoded e)
{
    if (s->n_doc == s->cap_doc) {
        s->cap_doc    = s->cap_doc * 2 + 256;
        Encoded *more = realloc(s->doc, sizeof *more * (size_t)s->cap_doc);
        if (!more) return err_sys("memory for a list of documents");
        s->doc = more;
    }
    s->doc[s->n_doc++] = e;
    return 0;
}

static int is_val(const char *text, size_t n, double share)
{
    return (double)(XXH3_64bits(text, n) >> 11) * 0x1p-53 < share;
}

static int encode_one(const Work *w, Slot *s, TokenizerScratch *scratch, int64_t i)
{
    const DocumentSpan *span = &s->batch.doc[i];
    DocumentText        doc;
    const int32_t      *id    = NULL;
    int64_t             first = s->n_id;
    int                 rc    = documents_text(&w->cfg->text, &s->batch, i, &doc);
    s->n_bad += doc.bad;
    if (rc > 0) {
        int64_t n_id = tokenizer_encode(w->t, scratch, doc.text, doc.n, TOKENIZER_LITERAL, &id);
        rc           = n_id < 0 ? -1 : 1;
        if (rc > 0 && span->first) rc = push_ids(s, w->around.before, w->around.n_before) < 0 ? -1 : 1;
        if (rc > 0) rc = push_ids(s, id, n_id) < 0 ? -1 : 1;
        if (rc > 0 && span->last) rc = push_ids(s, w->around.after, w->around.n_after) < 0 ? -1 : 1;
    }
    Encoded e = {
        .n_token = s->n_id - first, .text_bytes = (int64_t)doc.n, .first = span->first, .last = span->last
    };
    if (rc > 0) e.val = is_val(doc.text, doc.n, w->cfg->val);
    documents_text_free(&doc);
    if (rc <= 0) return rc;
    return push_doc(s, e);
}

static int encode_batch(const Work *w, Slot *s, TokenizerScratch *scratch)
{
    s->n_id = s->n_doc = s->n_bad = 0;
    for (int64_t i = 0; i < s->batch.n; i++) TRY(encode_one(w, s, scratch, i));
    return 0;
}

/* Draws a ticket and reads its batch. NULL: there is nothing more to do. */
static Slot *read_batch(Work *w, int64_t *ticket)
{
    thread_lock(&w->reading);
    *ticket = w->ended ? -1 : thread_ring_acquire(&w->ring);
    Slot *s = *ticket < 0 ? NULL : &w->slot[*ticket % w->n_slot];
    if (s) {
        int rc    = documents_next(w->docs, &s->batch);
        s->ended  = rc == 0;
        s->failed = ERR_NONE;
        if (rc < 0) {
            s->failed = err_kind();
            snprintf(s->why, sizeof s->why, "%s", err_get());
            err_clear();
        }
        w->ended = rc <= 0;
        atomic_store(&w->taken, documents_taken(w->docs));
    }
    thread_unlock(&w->reading);
    return s;
}

static void thread_body(void *arg)
{
    Work             *w       = arg;
    TokenizerScratch *scratch = tokenizer_scratch_create(w->t);
    int64_t           ticket;
    for (Slot *s; (s = read_batch(w, &ticket)) != NULL;) {
        s->n_doc = 0;
        int rc   = scratch ? 0 : -1;
        if (rc == 0 && !s->failed && !s->ended) rc = encode_batch(w, s, scratch);
        if (rc < 0 && !s->failed) {
            s->failed = err_kind();
            snprintf(s->why, sizeof s->why, "%s", err_get());
            err_clear();
        }
        thread_ring_publish(&w->ring, ticket);
    }
    tokenizer_scratch_destroy(scratch);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static int part_path(const Work *w, int part, const char *file, char buf[PATH_MAX])
{
    int n = snprintf(buf, PATH_MAX, "%s/%s%s%s", w->tmp, part_name[part], file[0] ? "/" : "", file);
    return n < PATH_MAX ? 0 : err_user("%s: the path is too long", w->cfg->out);
}

static int begin_shard(Work *w, int part)
{
    char          name[32], path[PATH_MAX];
    TokenizePart *p = &w->result->part[part];
    TRY(part_path(w, part, "", path));
    if (p->n_shard == 0) TRY(file_make_folders(path));
    snprintf(name, sizeof name, "%05d.bin", p->n_shard);
    TRY(part_path(w, part, name, path));
    w->writer[part] = shard_write_begin(path, tokenizer_size(w->t));
    if (!w->writer[part]) return -1;
    shard_write_marks(w->writer[part], w->around.n_before > 0 ? w->around.before[0] : -1, w->cfg->end_token);
    p->n_shard++;
    return 0;
}

/* A text without a single token is no document: no character of it is in the vocabulary, and nothing is put
 * around it. */
static int write_document(Work *w, const Encoded *e, const int32_t *id)
{
    if (e->first) {
        w->val     = e->val;
        w->n_token = w->text_bytes = 0;
    }
    w->n_token += e->n_token;
    w->text_bytes += e->text_bytes;
    if (w->n_token == 0) return 0;
    int           part = w->val;
    TokenizePart *p    = &w->result->part[part];
    if (!w->writer[part]) TRY(begin_shard(w, part));
    ShardWriter *out = w->writer[part];
    TRY(shard_write_add(out, id, e->n_token));
    if (!e->last) return 0;
    TRY(shard_write_end_document(out, w->text_bytes));
    p->n_token += w->n_token;
    p->text_bytes += w->text_bytes;
    p->n_doc++;
    return shard_write_len(out) < w->cfg->shard_tokens ? 0 : shard_write_publish(&w->writer[part]);
}

static int write_slot(Work *w, const Slot *s)
{
    const int32_t *id = s->id;
    for (int64_t i = 0; i < s->n_doc; id += s->doc[i++].n_token) TRY(write_document(w, &s->doc[i], id));
    w->result->n_bad += s->n_bad;
    return 0;
}

/* Takes batches in order until the last. */
static int write_all(Work *w)
{
    for (;;) {
        int64_t ticket = thread_ring_take(&w->ring);
        if (ticket < 0) return -1;
        const Slot *s = &w->slot[ticket % w->n_slot];
        if (s->failed) return s->failed == ERR_USER ? err_user("%s", s->why) : err_set("%s", s->why);
        if (s->ended) break;
        TRY(write_slot(w, s));
        thread_ring_release(&w->ring, ticket);
        if (w->cfg->note) w->cfg->note(w->cfg->note_arg, atomic_load(&w->taken), documents_bytes(w->docs));
    }
    for (int k = 0; k < 2; k++) {
        if (w->writer[k]) TRY(shard_write_publish(&w->writer[k]));
    }
    return 0;
}

static void write_part(JsonOut *o, const char *name, const TokenizePart *p)
{
    json_out_object(o, name);
    json_out_int(o, "tokens", p->n_token);
    json_out_int(o, "documents", p->n_doc);
    json_out_int(o, "text_bytes", p->text_bytes);
    json_out_int(o, "shards", p->n_shard);
    json_out_close(o);
}

static int write_summary(const Work *w)
{
    char    path[PATH_MAX], hash[24];
    JsonOut o;
    if (snprintf(path, sizeof path, "%s/tokens.json", w->cfg->out) >= PATH_MAX)
        return err_user("%s: the path is too long", w->cfg->out);
    FILE *f = file_create_tmp(path);
    if (!f) return -1;
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)tokenizer_hash(w->t));
    json_out_init_file(&o, f);
    json_out_object(&o, NULL);
    json_out_int(&o, "version", 1);
    json_out_str(&o, "tokenizer_hash", hash);
    json_out_int(&o, "vocab", tokenizer_size(w->t));
    json_out_int(&o, "begin_token", w->around.n_before > 0 ? w->around.before[0] : -1);
    json_out_int(&o, "end_token", w->cfg->end_token);
    for (int k = 0; k < 2; k++) write_part(&o, part_name[k], &w->result->part[k]);
    int rc = json_out_end(&o);
    if (rc == 0) rc = file_publish(&f, path);
    file_discard(&f);
    return rc;
}

static int name_part(const Work *w, int part)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (w->result->part[part].n_shard == 0) return 0;
    TRY(part_path(w, part, "", from));
    snprintf(to, sizeof to, "%s/%s", w->cfg->out, part_name[part]); /* shorter than from */
    if (fault_hit(FAULT_RENAME) || rename(from, to) != 0) return err_sys("%s: rename to %s", from, to);
    return 0;
}

/* Gives the parts their names; tokens.json comes last. After a failure the names are gone again, unless the
 * user had files of these names. tokens.json is among them: it may have got its name before the failure. */
static int publish(const Work *w)
{
    static const char *const name[] = { "tokens.json", "train", "val", "tokenizer.json",
                                        "tokenizer_config.json" };
    char                     path[ARRAY_LEN(name)][PATH_MAX];
    int                      had[ARRAY_LEN(name)];
    for (int i = 0; i < ARRAY_LEN(name); i++) {
        if (snprintf(path[i], PATH_MAX, "%s/%s", w->cfg->out, name[i]) >= PATH_MAX)
            return err_user("%s: the path is too long", w->cfg->out);
        had[i] = file_kind(path[i]) != FILE_NONE;
    }
    int rc = tokenizer_save(w->t, w->cfg->out);
    for (int k = 0; rc == 0 && k < 2; k++) rc = name_part(w, k);
    if (rc == 0) rc = folder_sync(w->cfg->out);
    if (rc == 0) rc = write_summary(w);
    for (int i = 0; rc < 0 && i < ARRAY_LEN(name); i++) {
        if (!had[i]) folder_remove(path[i]); /* the first error is kept */
    }
    return rc;
}

/* ---- all ----------------------------------------------------------------------------------------------- */

/* Refuses a folder that has tokens already: two sets would be read as one. */
static int begin_folder(Work *w)
{
    static const char *const taken[] = { "train", "val", "tokens.json" };
    char                     path[PATH_MAX];
    for (int i = 0; i < ARRAY_LEN(taken); i++) {
        int n = snprintf(path, sizeof path, "%s/%s", w->cfg->out, taken[i]);
        if (n >= PATH_MAX) return err_user("%s: the path is too long", w->cfg->out);
        if (file_kind(path) != FILE_NONE)
            return err_user("%s: is there already; name another folder, or remove it", path);
    }
    TRY(folder_make_out(w->cfg->out, &w->is_new));
    folder_sweep(w->cfg->out, TMP_PREFIX);
    int n = snprintf(w->tmp, sizeof w->tmp, "%s/" TMP_PREFIX "%d", w->cfg->out, (int)getpid());
    return n < PATH_MAX - 64 ? 0 : err_user("%s: the path is too long", w->cfg->out);
}

static int run_threads(Work *w, int n_thread)
{
    Thread *thread = mem_zeroed((size_t)n_thread, sizeof *thread);
    int     rc     = thread ? 0 : err_sys("memory for threads");
    for (int i = 0; rc == 0 && i < n_thread; i++) rc = thread_start(&thread[i], "encode", thread_body, w);
    if (rc == 0) rc = write_all(w);
    thread_ring_close(&w->ring, NULL);
    for (int i = 0; thread && i < n_thread; i++) thread_join(&thread[i]);
    free(thread);
    return rc;
}

/* The hash of a single document may choose it for validation. A run needs training data first, and can
 * validate on the end of them. */
static int train_on_all(Work *w)
{
    char from[PATH_MAX], to[PATH_MAX];
    TRY(part_path(w, 1, "", from));
    TRY(part_path(w, 0, "", to));
    if (fault_hit(FAULT_RENAME) || rename(from, to) != 0) return err_sys("%s: rename to %s", from, to);
    w->result->part[0] = w->result->part[1];
    w->result->part[1] = (TokenizePart){ 0 };
    return 0;
}

static int run(Work *w)
{
    int n_thread = MAX(1, MIN(w->cfg->threads, TOKENIZE_THREADS));
    w->n_slot    = n_thread * SLOTS_EACH + 1;
    w->slot      = mem_zeroed((size_t)w->n_slot, sizeof *w->slot);
    if (!w->slot) return err_sys("memory for encoding");
    TRY(thread_ring_init(&w->ring, w->n_slot));
    TRY(run_threads(w, n_thread));
    w->result->n_null = documents_nulls(w->docs);
    if (w->result->part[0].n_token == 0) {
        if (w->result->part[1].n_token == 0) return err_user("%s: there is no text", w->cfg->text.path[0]);
        TRY(train_on_all(w));
    }
    return publish(w);
}

int tokenize(const Tokenizer *t, const TokenizeConfig *cfg, TokenizeResult *out)
{
    Work w = { .t = t, .cfg = cfg, .result = out };
    memset(out, 0, sizeof *out);
    pthread_mutex_init(&w.reading, NULL);
    int rc = documents_open(&w.docs, &cfg->text);
    if (rc == 0) rc = begin_folder(&w);
    if (rc == 0) out->n_file = documents_files(w.docs);
    if (rc == 0) rc = find_around(&w);
    if (rc == 0) rc = run(&w);
    for (int k = 0; k < 2; k++) shard_write_discard(&w.writer[k]);
    for (int i = 0; w.slot && i < w.n_slot; i++) {
        documents_batch_deinit(&w.slot[i].batch);
        free(w.slot[i].doc);
        free(w.slot[i].id);
    }
    free(w.slot);
    thread_ring_deinit(&w.ring);
    documents_close(w.docs);
    pthread_mutex_destroy(&w.reading);
    int gone = w.tmp[0] ? folder_remove(w.tmp) : 0; /* the first error is kept */
    if (rc < 0 && w.is_new) rmdir(cfg->out);
    return rc < 0 ? rc : gone;
}
