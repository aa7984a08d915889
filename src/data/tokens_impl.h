/* What the files behind tokens.h share.
 *
 * 1. `first` of a TokenFile counts from the first token of all files, `doc0` from the first document. A
 *    Tokens has a window [first, first+len) of the tokens and [doc0, doc0+n_doc) of the documents; its user
 *    sees both from 0 on. */
#ifndef DATA_TOKENS_IMPL_H
#define DATA_TOKENS_IMPL_H

#include "base/arena.h"
#include "data/tokens.h"
#include "file/shard.h"

typedef struct {
    const char *path;
    int         fd;       /* -1: opened for each read */
    int         is_shard; /* 0: plain bytes */
    ShardHeader h;
    int64_t     first, doc0;
    int64_t     limit;  /* ids are below it */
    int         stated; /* by the shard itself */
} TokenFile;

struct Tokens {
    Arena       arena;
    DataKind    kind; /* text here means bytes */
    const char *name; /* "data.train: FILE", or the file alone */
    int64_t     vocab;
    int64_t     first, len;
    int64_t     doc0, n_doc;
    int         is_separate;
    TokenFile  *file;
    int         n_file;
    uint64_t    seed; /* random */
    uint32_t    site;
};

/* A descriptor of a file that may not be open; the caller gives it back. Negative after err_set(). */
int  tokens_begin_use(const TokenFile *f);
void tokens_end_use(const TokenFile *f, int fd);

/* Of a source narrowed to a part of its total tokens: leaves the documents that lie inside. */
int tokens_narrow_documents(Tokens *s, int64_t total);

#endif
