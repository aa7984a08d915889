/* Envfn: macros and helpers for environments, so that one header runs on the CPU and inside a CUDA kernel.
 *
 * 1. Such an environment is a plain struct NAME and static inline functions over that struct:
 *        void NAME_reset(Type *s, uint64_t seed);
 *        int  NAME_step(Type *s, const int32_t *act_i, const float *act_f, float *reward);    ENV_* bits
 *        void NAME_observe(const Type *s, ObsType *obs);
 *        void NAME_mask(const Type *s, uint8_t *mask);                                        if there is one
 *    These functions touch nothing else, so copying the struct copies the environment.
 * 2. Random numbers come from Philox, keyed by the episode's seed: CPU and GPU draw the same bits.
 * 3. Arithmetic is double where Gymnasium's is. The Makefile compiles these files without fused multiply-add,
 *    so that sums round as Python rounds them. */
#ifndef ENV_ENVFN_H
#define ENV_ENVFN_H

#include "base/rng.h"
#include "env/env.h"

#include <math.h>
#include <stdint.h>

#define ENV_FN static inline BRIM_HD

#define ENV_PI 3.14159265358979323846

/* A stream of random numbers: the seed and how many were drawn. */
typedef struct {
    uint64_t seed, n_drawn;
} EnvRng;

enum { ENV_RNG_SITE = 0x454e5600 /* "ENV": apart from the sites of recorded lists, which count from 0 */ };

ENV_FN EnvRng envfn_rng(uint64_t seed)
{
    EnvRng r = { seed, 0 };
    return r;
}

/* The next 64 bits. */
ENV_FN uint64_t envfn_bits(EnvRng *r)
{
    uint32_t w[4];
    rng_philox(w, r->seed, ENV_RNG_SITE, r->seed >> 32, r->n_drawn++);
    return (uint64_t)w[1] << 32 | w[0];
}

/* Uniform in [low, high) from 53 bits, as numpy's Generator.uniform scales them. */
ENV_FN double envfn_uniform(EnvRng *r, double low, double high)
{
    return low + (high - low) * ((double)(envfn_bits(r) >> 11) * (1.0 / 9007199254740992.0));
}

/* Uniform in 0 .. n-1; n is far below 2^32, so the remainder's bias is below 2^-32. */
ENV_FN int32_t envfn_below(EnvRng *r, int32_t n) { return (int32_t)(envfn_bits(r) % (uint64_t)n); }

enum { ENVFN_EPISODE_SITE = 0x454e5601 /* beside ENV_RNG_SITE */ };

/* The seed of an episode: what the run's seed, the environment's number and the episode's number say, and no
 * more. */
ENV_FN uint64_t envfn_episode_seed(uint64_t seed, int64_t env, int64_t episode)
{
    uint32_t w[4];
    rng_philox(w, seed, ENVFN_EPISODE_SITE, (uint64_t)env, (uint64_t)episode);
    return (uint64_t)w[1] << 32 | w[0];
}

ENV_FN double envfn_clip(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

#endif
