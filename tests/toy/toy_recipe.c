/* Keys of the toy tenant, and what must hold between them. */
#include "toy.h"

#include "conf/schema.h"

#define ROW(key, kind, field, dflt)                                                                          \
    .name = "toy." key, .type = kind, .offset = offsetof(Recipe, own) + offsetof(ToyKeys, field), .def = dflt
#define BETWEEN(lo, hi) .min = lo, .max = hi

_Static_assert(sizeof(ToyKeys) <= RECIPE_OWN, "raise RECIPE_OWN");

static const SchemaRow rows[] = {
    { ROW("width", KEY_INT, width, "16"), BETWEEN(8, 4096), .fixed = FIXED_WEIGHTS,
      .help = "hidden numbers of both nets, a multiple of 8" },
    { ROW("out", KEY_INT, out, "8"), BETWEEN(8, 1024), .fixed = FIXED_WEIGHTS,
      .help = "numbers that both nets give for a picture, a multiple of 8" },
    { ROW("rounds", KEY_INT, rounds, "6"), BETWEEN(1, 1000),
      .help = "updates on the table in a step, at most" },
    { ROW("weight", KEY_FLOAT, weight, "0.02"), BETWEEN(0, 1000), .help = "how hard the table's rows repel" },
    { ROW("halt", KEY_FLOAT, halt, "-0.065"), BETWEEN(-1e9, 1e9),
      .help = "a loss of the table's rows above this ends the updates of a step" },
    { ROW("teacher", KEY_TEXT, teacher, ""), .path = PATH_WHOLE,
      .help = "safetensors file of the frozen net" },
};

static int need_eights(const Recipe *r, const char *key, int64_t n)
{
    if (n % 8 == 0) return 0;
    return recipe_blame(r, key, "%lld is no multiple of 8: %lld would do", (long long)n,
                        (long long)round_up(n, 8));
}

static int resolve(Recipe *r)
{
    const ToyKeys *k = toy_keys(r);
    TRY(need_eights(r, "toy.width", k->width));
    TRY(need_eights(r, "toy.out", k->out));
    if (k->teacher[0]) return 0;
    return recipe_blame(r, "toy.teacher", "is missing: name the safetensors file of the frozen net");
}

const RecipeTask recipe_toy = { .name = "toy", .row = rows, .n_row = ARRAY_LEN(rows), .resolve = resolve };
