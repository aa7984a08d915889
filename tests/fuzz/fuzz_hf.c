/* Fuzz target: config.json and model.safetensors.index.json of Hugging Face folders, from memory.
 *
 * A first byte decides which of the two. A config that is accepted must obey the bounds of a recipe, and must
 * read back to the same model when it is written. File names of an index must be plain names.
 *
 * sources: src/conf/[a-z]*.c src/file/hf.c src/file/safetensors.c src/tensor/tensor.c src/base/[a-z]*.c */
#include "base/err.h"
#include "conf/hfconf.h"
#include "file/hf.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void check_refusal(void)
{
    CHECK(err_kind() == ERR_USER && strstr(err_get(), "input"), "a refusal must be the user's: %s",
          err_get());
    err_clear();
}

static int same_rope(const RecipeModel *a, const RecipeModel *b)
{
    int is_llama3 = b->rope_scaling == ROPE_LLAMA3, is_yarn = b->rope_scaling == ROPE_YARN;
    return a->rope_theta == b->rope_theta && a->rope_factor == b->rope_factor &&
           a->rope_attention == b->rope_attention && strcmp(a->rope_short, b->rope_short) == 0 &&
           strcmp(a->rope_long, b->rope_long) == 0 &&
           (b->rope_scaling == ROPE_LINEAR || a->rope_original == b->rope_original) &&
           (!is_llama3 || (a->rope_low == b->rope_low && a->rope_high == b->rope_high)) &&
           (!is_yarn || (a->rope_fast == b->rope_fast && a->rope_slow == b->rope_slow &&
                         a->rope_truncate == b->rope_truncate));
}

static void check_again(const HfConfig *c)
{
    char    *text = NULL;
    size_t   n    = 0;
    HfConfig again;
    FILE    *f = open_memstream(&text, &n);
    CHECK(f && hfconf_write(c, f) == 0, "%s", err_get());
    fclose(f);
    CHECK(hfconf_parse(&again, "written", text, n) == 0, "%s", err_get());
    CHECK(again.family == c->family && again.model.width == c->model.width &&
              again.model.kv_heads == c->model.kv_heads && again.model.head_dim == c->model.head_dim &&
              again.model.ffn == c->model.ffn && again.model.tied == c->model.tied &&
              again.model.rope_scaling == c->model.rope_scaling &&
              (c->model.rope_scaling == ROPE_NONE || same_rope(&again.model, &c->model)) &&
              again.model.act == c->model.act && again.image.size == c->image.size &&
              again.image.patch == c->image.patch && again.image.classes == c->image.classes,
          "another model");
    free(text);
}

static void read_config(const char *text, size_t n)
{
    HfConfig c;
    if (hfconf_parse(&c, "input", text, n) < 0) {
        check_refusal();
        return;
    }
    CHECK(err_kind() == ERR_NONE, "accepted with a message: %s", err_get());
    CHECK(c.model.heads % c.model.kv_heads == 0 && c.model.width >= 8 && c.n_eos <= HF_MAX_EOS, "%lld heads",
          (long long)c.model.heads);
    c.image.names_file[0] = '\0'; /* names of classes stay in the file, and there is none */
    if (c.family != HF_MISTRAL || c.model.window > 0) check_again(&c);
}

static void read_index(const char *text, size_t n)
{
    Arena  a;
    char **files;
    int    n_file;
    arena_init(&a);
    if (hf_index_parse(&a, "input", text, n, &files, &n_file) < 0) {
        check_refusal();
    } else {
        CHECK(n_file > 0, "no files");
        for (int i = 0; i < n_file; i++) CHECK(!strchr(files[i], '/') && files[i][0] != '.', "%s", files[i]);
    }
    arena_deinit(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0) return 0;
    if (bytes[0] == 'i') {
        read_index((const char *)bytes + 1, n - 1);
    } else {
        read_config((const char *)bytes + 1, n - 1);
    }
    return 0;
}
