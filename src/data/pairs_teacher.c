/* What a cached teacher said about training pairs: the file that fits these pairs, and a sample's fields.
 *
 * 1. The file is asked for by what the teacher read, token by token: two recipes that feed the teacher alike
 *    share a file, whatever their keys are called.
 * 2. A file is read whole when it is opened, so a damaged one is refused before the run begins.
 * 3. Noise has numbers like a file's, so that its speed can be measured without one. */
#include "data/pairs_impl.h"

#include "base/err.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/str.h"

#include <string.h>
#include <unistd.h>
#include <xxhash.h>

const char *pairs_teacher_path(const Recipe *r, char *buf)
{
    int has = r->latent.teacher_file[0] != '\0';
    snprintf(buf, PAIRS_PATH, "%s%s", has ? r->latent.teacher_file : r->data.train, has ? "" : ".teacher");
    return buf;
}

/* ---- what it was made for ----------------------------------------------------------------------------- */

/* Of a pair: its lengths, then the tokens that the teacher reads. */
static uint64_t hash_samples(const PairShape *s, const PairPartList *l)
{
    uint64_t hash = 0;
    for (int64_t i = 0; i < l->n; i++) {
        const Pair *p        = &l->pair[i];
        int32_t     count[3] = { p->n_prompt, (int32_t)s->A, (int32_t)MIN(p->n_answer, s->K) };
        int64_t     n_read   = p->n_prompt + s->A + MIN(p->n_answer, s->K - 1);
        hash                 = XXH64(count, sizeof count, hash);
        hash = XXH64(l->list->tokens + p->tokens_at, sizeof *l->list->tokens * (size_t)n_read, hash);
    }
    return hash;
}

void pair_teacher_header(TeacherHeader *h, const Recipe *r, const PairShape *s, const PairPartList *l)
{
    *h = (TeacherHeader){ .n_sample  = l->n,
                          .n_row     = s->K,
                          .top       = s->top,
                          .prompt    = s->P,
                          .seed      = (uint64_t)r->seed,
                          .tokenizer = l->list->tokenizer,
                          .data      = l->list->hash,
                          .samples   = hash_samples(s, l) };
}

/* Which samples there are follows from many keys; these few can be told apart. */
static int refuse_samples(const Recipe *r, const char *path, const TeacherHeader *is,
                          const TeacherHeader *want)
{
    if (is->data != want->data)
        return recipe_blame(r, "data.train", "%s has another content than it had when %s was made",
                            r->data.train, path);
    if (is->prompt != want->prompt)
        return recipe_blame(r, "latent.prompt", "is %lld, %s was made with %lld", (long long)want->prompt,
                            path, (long long)is->prompt);
    if (is->seed != want->seed && r->latent.pairs == PAIRS_TEXT)
        return recipe_blame(r, "seed", "is %lld, and texts are cut by it; %s was made with %lld",
                            (long long)want->seed, path, (long long)is->seed);
    return recipe_blame(
        r, "latent.teacher",
        "%s was made from %lld other samples, here are %lld: a key of latent, encoder.bytes or "
        "data.val_fraction differs",
        path, (long long)is->n_sample, (long long)want->n_sample);
}

static int check_same(const Recipe *r, const char *path, const TeacherHeader *is, const TeacherHeader *want)
{
    if (is->n_row != want->n_row)
        return recipe_blame(r, "latent.first", "is %lld, %s was made with %lld", (long long)want->n_row, path,
                            (long long)is->n_row);
    if (is->top != want->top)
        return recipe_blame(r, "latent.teacher_top", "is %lld, %s was made with %lld", (long long)want->top,
                            path, (long long)is->top);
    if (is->tokenizer != want->tokenizer)
        return recipe_blame(r, "latent.tokenizer", "%s was made with another tokenizer", path);
    int same = is->samples == want->samples && is->n_sample == want->n_sample;
    return same ? 0 : refuse_samples(r, path, is, want);
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static int open_file(PairTeacher *t, const Recipe *r, const TeacherHeader *want)
{
    const char *key = r->latent.teacher_file[0] ? "latent.teacher_file" : "latent.teacher";
    pairs_teacher_path(r, t->path);
    if (file_kind(t->path) == FILE_NONE)
        return recipe_blame(
            r, key,
            "cached needs %s, which is not there: brim data teacher %s makes it (with the same "
            "keys as here)",
            t->path, r->file);
    t->fd = teacher_open(&t->h, t->path);
    if (t->fd < 0) return recipe_blame_pending(r, key);
    TRY(check_same(r, t->path, &t->h, want));
    return teacher_verify(t->fd, t->path, &t->h) < 0 ? recipe_blame_pending(r, key) : 0;
}

int pair_teacher_open(PairTeacher *t, const Recipe *r, const PairShape *s, const PairPartList *l)
{
    TeacherHeader want;
    pair_teacher_header(&want, r, s, l);
    *t = (PairTeacher){ .h = want, .fd = -1, .tau = r->latent.tau };
    if (r->latent.pairs != PAIRS_RANDOM) return open_file(t, r, &want);
    t->h.vocab = r->model.vocab;
    return 0;
}

void pair_teacher_close(PairTeacher *t)
{
    if (t->h.top > 0 && t->fd >= 0) close(t->fd);
    memset(t, 0, sizeof *t);
}

/* ---- a sample ----------------------------------------------------------------------------------------- */

/* Ids rise: each is drawn from its own share of the vocabulary. */
static void fill_noise(const PairTeacher *t, int64_t number, TeacherRecord *out)
{
    enum { SITE_TEACHER = 0x7f000022 };
    int64_t per = t->h.vocab / t->h.top;
    for (int64_t i = 0; i < t->h.n_row * t->h.top; i++) {
        uint32_t draw = rng_draw(t->h.seed, SITE_TEACHER, 0, number, i);
        out->id[i]    = (int32_t)(i % t->h.top * per + draw % (uint32_t)per);
        out->logit[i] = (float)(draw >> 8) * 0x1p-21f; /* below 8 */
    }
    memset(out->rest, 0, sizeof *out->rest * TEACHER_REST * (size_t)t->h.n_row);
}

/* Loaders report what goes wrong in a run as a failure, not as a refusal. */
static int read_sample(const PairTeacher *t, int64_t number, void *bytes)
{
    char why[512];
    if (teacher_read(t->fd, t->path, &t->h, number, bytes) == 0) return 0;
    str_copy(why, sizeof why, err_get());
    err_clear();
    return err_set("%s", why);
}

int pair_teacher_fill(const PairTeacher *t, const PairShape *s, int64_t number, void *const *field,
                      void *scratch)
{
    TeacherRecord x    = teacher_record(&t->h, scratch);
    size_t        n    = (size_t)(s->K * s->top);
    int           at   = pairs_cached(s);
    float        *rest = field[at + PAIR_CACHED_REST];
    if (t->fd >= 0) {
        TRY(read_sample(t, number, scratch));
    } else {
        fill_noise(t, number, &x);
    }
    memcpy(field[at + PAIR_CACHED_ID], x.id, sizeof *x.id * n);
    memcpy(field[at + PAIR_CACHED_LOGIT], x.logit, sizeof *x.logit * n);
    for (int64_t k = 0; k < s->K; k++) rest[k] = teacher_rest(&t->h, x.rest + k * TEACHER_REST, t->tau);
    return 0;
}

void pair_teacher_fill_none(const PairShape *s, void *const *field)
{
    size_t n  = (size_t)(s->K * s->top);
    int    at = pairs_cached(s);
    memset(field[at + PAIR_CACHED_ID], -1, sizeof(int32_t) * n);
    memset(field[at + PAIR_CACHED_LOGIT], 0, sizeof(float) * n);
    memset(field[at + PAIR_CACHED_REST], 0, sizeof(float) * (size_t)s->K);
}
