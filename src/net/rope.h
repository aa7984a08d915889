/* Rope: how fast the pairs of a head's channels turn, and the table of cosines and sines made of that. */
#ifndef NET_ROPE_H
#define NET_ROPE_H

#include "conf/recipe.h"

/* Radians per position of each pair into rate[head_dim / 2]. */
void rope_rates(const RecipeModel *m, double *rate);
/* What cosines and sines are multiplied by; so queries and keys grow by as much. */
double rope_attention(const RecipeModel *m);
/* Rows of positions 0 .. rows-1: head_dim / 2 cosines, then as many sines. */
void rope_table(const RecipeModel *m, int64_t rows, float *out);
/* How the model stretches its positions, in words; "" for one that does not. */
const char *rope_describe(const RecipeModel *m, char *buf, size_t n);

#endif
