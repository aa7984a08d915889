/* Tokenize: documents to token shards, by several threads.
 *
 * 1. The result is a folder: train/00000.bin ..., val/00000.bin ..., tokenizer.json, and tokens.json, which
 *    says what the others hold (docs/formats.md). The parts appear only when all is done. A failure leaves
 *    the folder as it was.
 * 2. The bytes of the result depend on text, tokenizer and options alone, not on the number of threads.
 * 3. Whether a document is for validation follows from a hash of its text. So equal documents are in the same
 *    part, and the part of a document does not change when others are added.
 * 4. Each document is encoded as a text of its own. Special tokens in the text are text like any other. What
 *    the tokenizer puts around a text (BOS) is put around a document, and the end token behind each. A
 *    document that has no token then is left out. */
#ifndef DATA_TOKENIZE_H
#define DATA_TOKENIZE_H

#include "data/documents.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TOKENIZE_THREADS = 256 };

typedef struct {
    DocumentsConfig text;
    const char     *out;
    int32_t         end_token;    /* that ends each document; -1: none */
    double          val;          /* share of the documents that is for validation; 0: none */
    int64_t         shard_tokens; /* a shard ends with the document that reaches so many */
    int             threads;
    DocumentsNote   note; /* called by the calling thread */
    void           *note_arg;
} TokenizeConfig;

typedef struct {
    int64_t n_doc, n_token, text_bytes;
    int     n_shard;
} TokenizePart;

typedef struct {
    TokenizePart part[2]; /* training, validation */
    int64_t      n_bad;   /* lines left out (keep_going) */
    int64_t      n_null;  /* values of Parquet that were null, and left out */
    int          n_file;
} TokenizeResult;

/* Negative after err_user() (the input) or err_set(). */
int tokenize(const Tokenizer *t, const TokenizeConfig *cfg, TokenizeResult *out);

#ifdef __cplusplus
}
#endif
#endif
