/* Inputs: the files that documents are read from, in order. Only documents.c includes this.
 *
 * 1. Of a folder every file below it is taken, in the order of names compared by bytes. Hidden names, files
 *    that are no text, and links back to a folder above are left out.
 * 2. An input that the user named is never left out: it is taken or refused. */
#ifndef DATA_INPUTS_H
#define DATA_INPUTS_H

#include "base/arena.h"
#include "data/documents.h"

typedef struct {
    const char *path; /* "-": standard input */
    int64_t     size_bytes;
} Input;

typedef struct {
    Arena    arena;
    Input   *item;
    int      n, cap;
    int64_t  size_bytes; /* of all whose size is known */
    int      unknown;    /* there is an input whose size is not known */
    uint64_t fingerprint;
} Inputs;

/* Lists the inputs of cfg. in: zeroed, with arena_init() done; the caller deinits it in all cases. Negative
 * after err_user()/err_set(). */
int  inputs_list(Inputs *in, const DocumentsConfig *cfg);
void inputs_deinit(Inputs *in);

/* 1: a Parquet file. A format that is named is what a file is. */
int inputs_is_parquet(const DocumentsConfig *cfg, const char *path);
/* 1: the file begins as gzip or zstd files do. */
int inputs_is_packed(const char *path);

#endif
