/* Shard: a file of token ids. This file knows the bytes of the header; source.h reads the tokens.
 *
 * 1. Our own format is little-endian: a header of 64 bytes, then n_token ids of token_bytes each
 *    (docs/formats.md). Two checksums: one of the header, checked whenever a shard is opened; one of the
 *    payload, checked by shard_verify(). Version 2 also has an index of documents behind the ids, with a
 *    checksum of its own.
 * 2. llm.c's shards (int32[256] header) are read, never written: GPT-2's (magic 20240520, version 1, uint16
 *    ids) and those of Llama 3 (magic 20240801, version 7, uint32 ids). So are arrays of NumPy (.npy: uint16,
 *    uint32, int32), and files of uint16 ids without any header, as nanoGPT writes them, by
 *    shard_open_plain().
 * 3. A ShardHeader that shard_parse() accepted agrees with the size of its file: every offset computed from
 *    it lies inside the file.
 * 4. Nothing read from a file is trusted before it is checked; a refusal names the file and what is wrong
 *    with it. */
#ifndef FILE_SHARD_H
#define FILE_SHARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { SHARD_BRIM, SHARD_LLMC, SHARD_PLAIN, SHARD_NPY } ShardKind;

enum {
    SHARD_VERSION      = 2, /* the newest; version 1 has no index */
    SHARD_HEADER_BYTES = 64,
    SHARD_PREFIX_BYTES = 1024 /* longest header of any kind: what shard_parse() wants to see of a file */
};

typedef struct {
    ShardKind kind;
    int       token_bytes;    /* 2 or 4 */
    int64_t   n_token;        /* may be 0 */
    int64_t   vocab;          /* every id is below it */
    uint64_t  hash;           /* xxhash64 of the payload; llm.c's shards have none */
    int64_t   payload_offset; /* bytes before the first token */
    int64_t   file_bytes;     /* of the whole file */
    int64_t   n_doc;          /* documents in the index; 0: there is no index */
    int64_t   index_offset;   /* bytes before the index */
    int64_t   end_token;      /* token that ends each document; -1: none, or not known */
    int64_t   begin_token;    /* token that begins each document; -1: none, or not known */
} ShardHeader;

/* Reads a header out of the first n bytes (all of them, up to SHARD_PREFIX_BYTES) of a file that is
 * file_bytes long. name is used in messages. Negative after err_user(). */
int shard_parse(ShardHeader *out, const char *name, const void *bytes, size_t n, int64_t file_bytes);

/* Writes the 64 bytes of our own header; kind and payload_offset are not looked at. */
void shard_format(const ShardHeader *h, unsigned char out[SHARD_HEADER_BYTES]);

/* Opens a shard and parses its header. Returns a descriptor that the caller closes; negative after
 * err_user(). */
int shard_open(ShardHeader *out, const char *path);

/* The same for a file of uint16 ids without a header. A file that has a header is refused. */
int shard_open_plain(ShardHeader *out, const char *path);

/* Reads the ends of documents [first, first+n) of the index: token numbers, each behind the document's last
 * token. What was read rises and stays within the shard. Negative after err_user()/err_set(). */
int shard_read_index(int fd, const char *path, const ShardHeader *h, int64_t first, int64_t n, int64_t *end);

/* Bytes of text that the tokens stand for, as the index says. Negative after err_set(); 0 without an
 * index. */
int64_t shard_text_bytes(int fd, const char *path, const ShardHeader *h);

/* Reads the whole shard: checksums of payload and index, and every id is below its vocabulary and below
 * vocab. Negative after err_user()/err_sys(). */
int shard_verify(const char *path, int64_t vocab);
/* The same for a shard that is open under its header. */
int shard_verify_open(int fd, const char *path, const ShardHeader *h, int64_t vocab);

/* Widens n little-endian ids of token_bytes (1, 2 or 4) each. Returns the index of the first id that is
 * not below limit, or -1 when all are; limit is at most 2^31. */
int64_t shard_decode(int32_t *out, const unsigned char *raw, int64_t n, int token_bytes, int64_t limit);

/* Reports token number `at`, whose id is not below the limit: the shard's own vocabulary (stated), or
 * model.vocab, which must be above `top` then, the largest id seen. Always negative. */
int shard_refuse_id(const char *path, int64_t at, uint32_t id, int64_t limit, int stated, uint32_t top);

/* 1: a file that begins so is a token shard of either kind, whatever else is wrong with it. */
int shard_is_magic(const void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
