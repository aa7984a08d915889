/* Fuzz target: the description that a worker process sends. Whatever is accepted must be safe to size buffers
 * with, and must survive being written and read again.
 *
 * sources: src/env/spec.c src/base/[a-z]*.c */
#include "base/err.h"
#include "env/spec.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    Arena   a;
    EnvSpec s, again;
    arena_init(&a);
    if (spec_parse(&s, &a, (const char *)bytes, n, "input") == 0) {
        CHECK(err_kind() == ERR_NONE, "accepted with a message: %s", err_get());
        CHECK(s.info.n_obs >= 1 && s.info.n_obs <= ENV_MAX_OBS && s.info.n_act >= 1, "%d blocks",
              s.info.n_obs);
        for (int k = 0; k < s.info.n_obs; k++)
            CHECK(s.block_bytes[k] > 0 && s.block_bytes[k] <= 4 * (int64_t)SPEC_MAX_ELEM, "%lld bytes",
                  (long long)s.block_bytes[k]);
        char *json = malloc(SPEC_MAX_JSON);
        int   len  = spec_write(&s, json, SPEC_MAX_JSON);
        CHECK(len > 0 && spec_parse(&again, &a, json, (size_t)len, "again") == 0 && spec_same(&s, &again),
              "%s", err_get());
        free(json);
    } else {
        CHECK(err_kind() != ERR_NONE, "refused without a message");
    }
    err_clear();
    arena_deinit(&a);
    return 0;
}
