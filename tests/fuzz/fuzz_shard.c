/* Fuzz target: token shards: the header from memory, index and checksums from a file in memory. Built with
 * libFuzzer; the corpus is beside it.
 *
 * Each input is parsed as it is, and once more with the header's checksum put right, since no fuzzer finds
 * one. What is accepted must lie inside the input, and decoding it must stay inside.
 *
 * sources: src/file/shard.c src/base/[a-z]*.c */
#define _GNU_SOURCE /* memfd_create */
#include "base/err.h"
#include "file/shard.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Index and checksums: accepted or refused by the user's kind of error, never anything else. */
static void read_index(const ShardHeader *h, const uint8_t *bytes, size_t n)
{
    int64_t end[16];
    int     fd = memfd_create("shard", 0);
    CHECK(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "a file in memory");
    int64_t most = h->n_doc < 16 ? h->n_doc : 16;
    if (most > 0 && shard_read_index(fd, "input", h, h->n_doc - most, most, end) == 0)
        CHECK(end[most - 1] == h->n_token, "the last document ends at %lld", (long long)end[most - 1]);
    CHECK(err_kind() != ERR_RUN, "%s", err_get());
    err_clear();
    CHECK(shard_text_bytes(fd, "input", h) >= 0, "%s", err_get());
    if (shard_verify_open(fd, "input", h, h->vocab) < 0) CHECK(err_kind() == ERR_USER, "%s", err_get());
    err_clear();
    close(fd);
}

static void parse(const uint8_t *bytes, size_t n)
{
    ShardHeader h;
    if (shard_parse(&h, "input", bytes, MIN(n, SHARD_PREFIX_BYTES), (int64_t)n) < 0) {
        CHECK(err_kind() == ERR_USER && strstr(err_get(), "input"),
              "a refusal must be the user's and name the file");
        err_clear();
        return;
    }
    CHECK(err_kind() == ERR_NONE, "accepted with a message: %s", err_get());
    CHECK(h.n_token >= 0 && (h.token_bytes == 2 || h.token_bytes == 4), "%lld tokens", (long long)h.n_token);
    int64_t payload_end = h.payload_offset + h.n_token * h.token_bytes;
    CHECK(payload_end == (h.n_doc > 0 ? h.index_offset : (int64_t)n), "header and size disagree");
    CHECK(h.n_doc == 0 || h.index_offset + h.n_doc * 8 + 16 == (int64_t)n, "index and size disagree");
    read_index(&h, bytes, n);
    int32_t *tok = malloc((size_t)h.n_token * sizeof *tok + 1);
    CHECK(tok, "out of memory");
    int64_t bad = shard_decode(tok, bytes + h.payload_offset, h.n_token, h.token_bytes, h.vocab);
    CHECK(bad >= -1 && bad < h.n_token, "bad token %lld", (long long)bad);
    for (int64_t i = 0; i < (bad < 0 ? h.n_token : bad); i++)
        CHECK(tok[i] >= 0 && tok[i] < h.vocab, "token %d", tok[i]);
    free(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    parse(bytes, n);
    if (n < SHARD_HEADER_BYTES) return 0;
    uint8_t *copy = malloc(n);
    CHECK(copy, "out of memory");
    memcpy(copy, bytes, n);
    uint64_t check = XXH64(copy, SHARD_HEADER_BYTES - 8, 0);
    memcpy(copy + SHARD_HEADER_BYTES - 8, &check, sizeof check);
    parse(copy, n);
    free(copy);
    return 0;
}
