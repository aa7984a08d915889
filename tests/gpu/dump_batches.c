/* Writes the batches that a recipe's run would see: for each of n samples the T+1 tokens of its window,
 * int32. For comparing with another program on the same data (tests/gpu/torch_bytes.py). Usage: dump_batches
 * RECIPE N_SAMPLE OUT [key=value ...] */
#include "base/err.h"
#include "conf/recipe.h"
#include "data/order.h"
#include "data/tokens.h"

#include <stdio.h>
#include <stdlib.h>

static int dump(const Recipe *r, int64_t n, FILE *out)
{
    Tokens  *src;
    Order    order;
    int64_t  T   = r->model.context;
    int32_t *buf = malloc(sizeof *buf * (size_t)(T + 1));
    if (!buf) return err_set("out of memory");
    TRY(tokens_open(&src, r, 0));
    order_init(&order, tokens_len(src), T, (uint64_t)r->seed);
    for (int64_t g = 0; g < n; g++) {
        TRY(tokens_read(src, order_start(&order, g), T + 1, buf));
        if (fwrite(buf, sizeof *buf, (size_t)(T + 1), out) != (size_t)(T + 1)) return err_sys("write");
    }
    tokens_close(src);
    free(buf);
    return 0;
}

int main(int argc, char **argv)
{
    Recipe r;
    FILE  *out = argc > 3 ? fopen(argv[3], "wb") : NULL;
    if (!out || recipe_load(&r, argv[1], argc - 4, argv + 4) < 0 || dump(&r, atoll(argv[2]), out) < 0 ||
        fclose(out) != 0) {
        fprintf(stderr, "dump_batches: %s\n", err_get());
        return 1;
    }
    return 0;
}
