/* Fuzz target: any bytes as a safetensors file. Built with libFuzzer; the corpus is beside it.
 *
 * Each input is parsed as it is, and once more with the length of its header put right, since a fuzzer
 * rarely finds one. What is accepted must keep what safetensors.h promises.
 *
 * sources: src/tensor/tensor.c src/file/safetensors.c src/ckpt/ckpt_state.c src/base/[a-z]*.c */
#include "base/err.h"
#include "file/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void parse(const uint8_t *data, size_t n)
{
    SafeFile f;
    err_clear();
    if (safetensors_parse(&f, "fuzz", data, n) < 0) {
        CHECK(err_kind() == ERR_RUN && strstr(err_get(), "fuzz"), "a refusal without a reason");
        return;
    }
    int64_t at = f.header_bytes;
    for (int i = 0; i < f.n_tensor; i++) {
        const SafeTensor *t = &f.tensor[i];
        CHECK(t->offset == at && t->offset >= 8, "a hole or an overlap");
        CHECK((int64_t)t->size_bytes == t->n_elem * (int64_t)dtype_bytes(t->dtype),
              "size and shape disagree");
        CHECK(safetensors_find(&f, t->name) == t,
              "a tensor that is not found, or not the only one of its name");
        at += (int64_t)t->size_bytes;
    }
    CHECK(at == (int64_t)n, "the tensors do not fill the file");
    safetensors_close(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    parse(data, n);
    uint64_t length = n;
    while (length > 8 && data[length - 1] != '}') length--;
    if (length <= 8) return 0;
    uint8_t *again = (uint8_t *)malloc(n);
    CHECK(again, "out of memory");
    length -= 8;
    memcpy(again, data, n);
    memcpy(again, &length, 8);
    parse(again, n);
    free(again);
    return 0;
}
