/* Normal initial values. Two uniforms of one counter give two normals (Box-Muller), four values per counter.
 *
 * normal_plain() is the definition. normal_fill() computes in vectors, 7 times as fast, and gives the same
 * bits: where the vector's error could change how a value rounds to f32, the plain expression decides. */
#ifndef NET_NORMAL_H
#define NET_NORMAL_H

#include <stdint.h>

/* n values of the stream (seed, site), times std. All CPUs work on a long one. */
void normal_fill(float *out, int64_t n, uint64_t seed, uint32_t site, double std);

/* One pair, from two words: the definition. */
void normal_plain(float out[2], uint32_t r0, uint32_t r1, double std);

#endif
