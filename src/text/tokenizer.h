/* Tokenizer: text to token ids and back.
 *
 * 1. A Tokenizer is constant once open: any number of threads may use it, each with a scratch of its own.
 * 2. Ids are those of the reference implementation of the file's format. Byte-level files give back every
 *    sequence of bytes exactly; files with a normalizer give back what the normalizer leaves.
 * 3. Nothing is locked and, in the long run, nothing is allocated while encoding. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Tokenizer        Tokenizer;
typedef struct TokenizerScratch TokenizerScratch;

/* Opens a file or a folder: tokenizer.json, tiktoken ranks, encoder.json with vocab.bpe (or vocab.json with
 * merges.txt). Negative after err_user() or err_set(). */
int  tokenizer_open(Tokenizer **t, const char *path);
void tokenizer_close(Tokenizer *t); /* nothing for NULL */

/* Writes DIR/tokenizer.json and DIR/tokenizer_config.json; makes DIR. */
int tokenizer_save(const Tokenizer *t, const char *dir);
/* The latter alone: which tokens begin and end a text, as transformers reads it. eos: -1 for none. */
int tokenizer_save_config(const Tokenizer *t, int32_t eos, const char *dir);

/* Memory of one thread: a cache of words (2 MiB) and buffers. NULL after err_set(). */
TokenizerScratch *tokenizer_scratch_create(const Tokenizer *t);
void              tokenizer_scratch_destroy(TokenizerScratch *s);

enum {
    TOKENIZER_PLAIN = 0,
    TOKENIZER_FRAME = 1, /* encode: adds what the file's post-processor adds (BOS); decode: drops it again */
    TOKENIZER_LITERAL = 2, /* encode: special tokens in the text are text like any other */
    TOKENIZER_SKIP    = 4, /* decode: drops every special token */
};

/* Encodes any bytes, at most 512 MiB. Returns the number of ids; *ids belongs to s until its next use.
 * Negative after err_set(). */
int64_t tokenizer_encode(const Tokenizer *t, TokenizerScratch *s, const void *text, size_t size_bytes,
                         int flags, const int32_t **ids);

/* Returns the number of bytes; *text belongs to s until its next use. An id that is no token: err_user(). */
int64_t tokenizer_decode(const Tokenizer *t, TokenizerScratch *s, const int32_t *ids, int64_t n, int flags,
                         const char **text);

/* One token after the other, for a terminal: the bytes of a character that is not complete are held back.
 * Zero it to begin. */
typedef struct {
    unsigned char held[8];
    int           n_held, begun;
} TokenizerStream;

/* Appends what can be shown after this token to buf (room: tokenizer_longest() + 8); returns the number of
 * bytes. */
int64_t tokenizer_stream_next(const Tokenizer *t, TokenizerStream *st, int32_t id, char *buf);
/* What is still held back, complete or not. */
int64_t tokenizer_stream_end(TokenizerStream *st, char *buf);

int32_t  tokenizer_size(const Tokenizer *t);    /* the highest id, plus 1 */
int64_t  tokenizer_longest(const Tokenizer *t); /* bytes of the longest token */
int32_t  tokenizer_bos(const Tokenizer *t);     /* begins a text; -1: none */
int32_t  tokenizer_eos(const Tokenizer *t);     /* ends a text, by tokenizer_config.json or by a usual name */
int32_t  tokenizer_find(const Tokenizer *t, const char *name); /* a token as the file writes it; -1: none */
int      tokenizer_is_special(const Tokenizer *t, int32_t id);
uint64_t tokenizer_hash(const Tokenizer *t); /* of everything that tokenizer_save() writes */

/* The bytes of one token; NULL when there is none with this id. */
const char *tokenizer_token(const Tokenizer *t, int32_t id, size_t *len);

typedef struct {
    const char *kind; /* "tokenizer.json", "tiktoken ranks", ... */
    int64_t     n_token, n_merge, n_added, n_special;
    int         byte_level, byte_fallback;
    int         n_frame_before, n_frame_after;                         /* ids that the post-processor adds */
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder; /* JSON; "null" */
} TokenizerFacts;

TokenizerFacts tokenizer_facts(const Tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
