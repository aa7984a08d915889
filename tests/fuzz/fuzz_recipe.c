/* Fuzz target: any bytes as a recipe. Built with libFuzzer; the corpus is beside it.
 *
 * When the input begins with "!", its first line is an override. What is accepted must survive being written
 * and read again; what is refused must leave one line of user error.
 *
 * sources: src/conf/[a-z]*.c src/base/[a-z]*.c */
#include "base/err.h"
#include "conf/recipe.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_round_trip(const Recipe *r)
{
    Recipe again, plain = *r;
    char  *text = NULL;
    size_t n    = 0;
    FILE  *f    = open_memstream(&text, &n);
    CHECK(f, "out of memory");
    recipe_write(r, f);
    fclose(f);
    CHECK(recipe_parse(&again, "again.yaml", text, n, 0, NULL) == 0, "%s", err_get());
    memset(plain.file, 0, sizeof plain.file);
    memset(again.file, 0, sizeof again.file);
    memset(plain.origin, 0, sizeof plain.origin);
    memset(again.origin, 0, sizeof again.origin);
    CHECK(memcmp(&plain, &again, sizeof plain) == 0, "a written recipe reads back differently:\n%s", text);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Recipe         r;
    char           override[256];
    char          *list[1]    = { override };
    const uint8_t *newline    = size > 0 && data[0] == '!' ? memchr(data, '\n', size) : NULL;
    size_t         head       = newline ? (size_t)(newline - data) + 1 : 0;
    int            n_override = head > 0 && head < sizeof override;
    if (n_override) {
        memcpy(override, data + 1, head - 2);
        override[head - 2] = '\0';
    }
    err_clear();
    if (recipe_parse(&r, "fuzz.yaml", (const char *)data + head, size - head, n_override, list) == 0) {
        CHECK(err_kind() == ERR_NONE, "accepted with a message pending: %s", err_get());
        check_round_trip(&r);
        (void)recipe_memory_limit(&r, (size_t)1 << 30);
    } else {
        CHECK(err_kind() == ERR_USER && *err_get() && !strchr(err_get(), '\n'), "not one line: '%s'",
              err_get());
    }
    return 0;
}
