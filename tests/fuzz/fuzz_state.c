/* Fuzz target: any bytes as the state.json of a checkpoint. Built with libFuzzer; the corpus is beside it.
 *
 * What is accepted is within its bounds, and is the same after being written and read again.
 *
 * sources: src/tensor/tensor.c src/file/safetensors.c src/ckpt/ckpt_state.c src/base/[a-z]*.c */
#include "base/err.h"
#include "ckpt/ckpt_state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check_bounds(const CkptState *s)
{
    CHECK(s->step >= 0 && s->next_sample >= 0 && s->micro_batch >= 0 && s->bad_evals >= 0 &&
              s->head_rows >= 0,
          "a negative count");
    CHECK(s->n_skip >= 0 && s->n_skip <= CKPT_MAX_SKIP, "%d skips", s->n_skip);
    for (int i = 0; i < s->n_skip; i++) {
        CHECK(s->skip[i].first >= 0 && s->skip[i].count > 0 && s->skip[i].first + s->skip[i].count > 0,
              "a wrong range");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static CkptManifest m, again;
    err_clear();
    if (ckpt_state_parse(&m, "fuzz", (const char *)data, n) < 0) {
        CHECK(err_kind() != ERR_NONE && strstr(err_get(), "fuzz"), "a refusal without a reason");
        return 0;
    }
    check_bounds(&m.state);
    size_t  room = 65536 + 8 * n;
    char   *text = malloc(room);
    JsonOut o;
    json_out_init_buf(&o, text, room);
    ckpt_state_write(&o, &m);
    CHECK(json_out_end(&o) == 0 && ckpt_state_parse(&again, "again", text, o.len) == 0, "%s", err_get());
    CHECK(memcmp(&m.state, &again.state, sizeof m.state) == 0, "the state changed");
    CHECK(m.n_key == again.n_key && m.file[0].n_tensor == again.file[0].n_tensor, "a list changed");
    ckpt_state_deinit(&again);
    ckpt_state_deinit(&m);
    free(text);
    return 0;
}
