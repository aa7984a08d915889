/* What the files behind tokenizer.h share.
 *
 * A reader fills names, merges, added tokens and the JSON text of the four parts; tokenizer_finish() checks
 * them and builds the search tables. */
#ifndef TEXT_TOKENIZER_IMPL_H
#define TEXT_TOKENIZER_IMPL_H

#include "base/arena.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/normal.h"
#include "text/split.h"
#include "text/tokenizer.h"

#include <jansson.h>

enum {
    TOKENIZER_MAX_VOCAB  = 1 << 22,
    TOKENIZER_MAX_MERGES = 1 << 23,
    TOKENIZER_MAX_ADDED  = 1 << 16,
    TOKENIZER_MAX_FRAME  = 16,
    TOKENIZER_MAX_BYTES  = 1 << 29, /* of one text, and of all tokens */
    TOKENIZER_MAX_TOKEN  = 1 << 20, /* bytes of one token, however the file's parts change it */
};
#define TOKENIZER_MAX_FILE ((size_t)256 << 20)

typedef enum {
    PART_NORMALIZER,
    PART_PRE_TOKENIZER,
    PART_POST_PROCESSOR,
    PART_DECODER,
    PART_COUNT
} TokenizerPart;
extern const char *const tokenizer_part_name[PART_COUNT];

/* Flags of a token. */
enum {
    TOKEN_MODEL    = 1,
    TOKEN_ADDED    = 2,
    TOKEN_SPECIAL  = 4,
    TOKEN_NO_BYTES = 8,  /* its name is not in the byte alphabet */
    TOKEN_NOTED    = 16, /* bpe_note_token() had it */
};

typedef struct {
    int32_t left, right;
} TokenizerMerge;

typedef struct {
    const char *from, *to; /* NULL: no replacement */
    size_t      from_len, to_len;
} DecodeReplace;

typedef struct {
    int           byte_level, byte_fallback, fuse, join; /* join: tokens are separated by spaces */
    DecodeReplace replace[4];
    int           n_replace;
    int           strip_left; /* characters `strip` that are dropped at the beginning */
    char          strip;
    int           bare_first; /* the first token loses every space */
} Decode;

struct Tokenizer {
    Arena       arena;
    const char *path, *kind;

    /* vocabulary: as the file writes it, and as bytes of text */
    char    *pool, *byte_pool;
    StrSpan *name, *bytes; /* by id; a name of length 0: a hole */
    uint8_t *flag;         /* TOKEN_* */
    int32_t  n_id;
    int64_t  n_token, longest;
    StrMap   names;       /* of the model */
    StrMap   added_names; /* of added tokens; they win */
    StrMap   pieces;      /* byte-level with `whole`: by bytes */

    /* model */
    TokenizerMerge *merge; /* in the order of their ranks */
    int64_t         n_merge;
    int             rank_is_id; /* tiktoken: of two merges with one result neither is earlier */
    int             byte_level, whole, byte_fallback, fuse_unknown;
    int32_t         unknown;
    Bpe             bpe;

    AddedToken *added;
    int64_t     n_added;
    AddedSet    raw_set, normal_set;

    const char *part[PART_COUNT]; /* JSON */
    Normal      normal;
    Split       split;
    Decode      decode;
    Regex      *regex[NORMAL_MAX + SPLIT_MAX]; /* owned */
    int         n_regex;
    int32_t     before[TOKENIZER_MAX_FRAME], after[TOKENIZER_MAX_FRAME];
    int         n_before, n_after;
    int32_t     bos, eos;
};

struct TokenizerScratch {
    const Tokenizer *of; /* the cache is worth nothing to another */
    BpeScratch       bpe;
    RegexScratch    *regex;
    SplitScratch     split;
    NormalScratch    normal;
    Buffer           text;
};

/* An empty one, to be filled by a reader. NULL after err_set(). */
Tokenizer *tokenizer_new(const char *path, const char *kind);
/* Room for n ids in every table by id. Negative after err_set(). */
int tokenizer_make_ids(Tokenizer *t, int64_t n);
/* Enters span as the name of a token of the model; a second name for an id, or a second id for a name, is the
 * file's fault. */
int tokenizer_add_name(Tokenizer *t, int64_t id, StrSpan span);
/* Sets t->added[i], whose content is span, and enters its name; the id of a token of the model stands. */
int tokenizer_add_added(Tokenizer *t, int64_t i, StrSpan span, AddedToken token);
/* Appends a merge. */
int tokenizer_add_merge(Tokenizer *t, int64_t *cap, int32_t left, int32_t right);
/* Reads the four parts, builds search tables. Names, merges, added tokens and t->part must be there. */
int tokenizer_finish(Tokenizer *t);
/* parts.c: one part of tokenizer.json into t. */
int parts_read(Tokenizer *t, TokenizerPart part, const json_t *j);

/* decode.c: the bytes of every token. */
int decode_build(Tokenizer *t);

/* Readers of the bytes of a file; `path` is for messages. */
int read_json_tokenizer(Tokenizer **t, const char *path, const char *data, size_t n);
int read_json_vocab(Tokenizer *t, const char *data, size_t n); /* {"token": id, ...} into t; the whole text */
int read_ranks(Tokenizer **t, const char *path, const char *data, size_t n);
/* vocab.json or encoder.json, and its merges.txt or vocab.bpe */
typedef struct {
    const char *path, *data;
    size_t      size_bytes;
} ReadFile;
int read_vocab_merges(Tokenizer **t, const ReadFile *vocab, const ReadFile *merges);

#endif
