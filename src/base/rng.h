/* Random numbers: Philox4x32-10 (Salmon et al. 2011), a pure function of key and counter.
 *
 * 1. There is no state: the same (seed, site, counter) gives the same integers, on the CPU and on the GPU,
 *    for every micro-batch, rank and thread. A site is a place in the recorded list that draws random
 *    numbers.
 * 2. One call gives four words. Element e of a sample is word e mod 4 of block e / 4, so four neighbours
 *    share a call.
 * 3. Header only, because device code and vectorised loops must inline it. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define BRIM_HD __host__ __device__
#else
#define BRIM_HD
#endif

/* The key grows by these (golden ratio, sqrt 3 - 1) from round to round. */
#define PHILOX_W0 0x9E3779B9u
#define PHILOX_W1 0xBB67AE85u

#ifdef __cplusplus
extern "C" {
#endif

/* One round: two 32x32 -> 64 bit products, high halves crossed with the other words and the key. */
static inline BRIM_HD void philox_round(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    uint32_t c1 = c[1], c3 = c[3];
    c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c[3] = (uint32_t)p0;
}

/* The ten rounds. */
static inline BRIM_HD void philox4x32(uint32_t out[4], const uint32_t ctr[4], const uint32_t key[2])
{
    uint32_t c[4] = { ctr[0], ctr[1], ctr[2], ctr[3] };
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        philox_round(c, k0, k1);
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    for (int i = 0; i < 4; i++) out[i] = c[i];
}

/* Key of (seed, site). Seeds below 2^32 stay distinct; the upper half of a longer one is folded in. */
static inline BRIM_HD void rng_key(uint32_t key[2], uint64_t seed, uint32_t site)
{
    key[0] = (uint32_t)seed ^ ((uint32_t)(seed >> 32) * 0x9E3779B9u);
    key[1] = site;
}

/* Four words of (seed, site) at the 128-bit counter hi:lo. */
static inline BRIM_HD void rng_philox(uint32_t out[4], uint64_t seed, uint32_t site, uint64_t hi, uint64_t lo)
{
    uint32_t key[2], ctr[4] = { (uint32_t)lo, (uint32_t)(lo >> 32), (uint32_t)hi, (uint32_t)(hi >> 32) };
    rng_key(key, seed, site);
    philox4x32(out, ctr, key);
}

/* Counter of block e / 4 of a sample at a step: {e / 4, sample low, sample high, step}. A sample has less
 * than 2^34 elements and a run less than 2^32 steps. */
static inline BRIM_HD void rng_counter(uint32_t ctr[4], int64_t step, int64_t sample, int64_t block)
{
    ctr[0] = (uint32_t)block;
    ctr[1] = (uint32_t)sample;
    ctr[2] = (uint32_t)((uint64_t)sample >> 32);
    ctr[3] = (uint32_t)step;
}

/* The four draws of elements e/4*4 .. e/4*4+3. */
static inline BRIM_HD void rng_draw4(uint32_t out[4], uint64_t seed, uint32_t site, int64_t step,
                                     int64_t sample, int64_t e)
{
    uint32_t key[2], ctr[4];
    rng_key(key, seed, site);
    rng_counter(ctr, step, sample, e / 4);
    philox4x32(out, ctr, key);
}

/* The draw of one element. */
static inline BRIM_HD uint32_t rng_draw(uint64_t seed, uint32_t site, int64_t step, int64_t sample, int64_t e)
{
    uint32_t out[4];
    rng_draw4(out, seed, site, step, sample, e);
    return out[e & 3];
}

/* Uniform in [0, 1) with 24 bits, exact in float. */
static inline BRIM_HD float rng_uniform(uint32_t word) { return (float)(word >> 8) * (1.0f / 16777216.0f); }

/* A draw below this value has probability p; dropout keeps an element when its draw is not below it. */
static inline BRIM_HD uint32_t rng_threshold(float p)
{
    double t = (double)p * 4294967296.0;
    return t <= 0 ? 0u : t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

#ifdef __cplusplus
}
#endif
#endif
