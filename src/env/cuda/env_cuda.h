/* Env_cuda: the built-in environments on the GPU, all in one kernel. Part of libbrim_cuda.so.
 *
 * 1. The dynamics are the same headers as on the CPU (cartpole.h ...). Seeds, auto-reset, time limit and
 *    final observation follow envs.h: environment i of a seed draws the same numbers on both. Sines and
 *    cosines may differ in the last bit of a double; environments of integers are the same bits.
 * 2. All memory is the caller's and on the device. Nothing is allocated, nothing waits: calls may be
 *    captured.
 * 3. `lanes` holds the states and counters, env_cuda_bytes() bytes; copying it copies the environments. */
#ifndef ENV_CUDA_ENV_CUDA_H
#define ENV_CUDA_ENV_CUDA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int      kind; /* env_cuda_find() */
    int      n_env;
    int32_t  length; /* of tmaze */
    int64_t  limit;  /* steps of an episode; 0: none */
    uint64_t seed;
    void    *lanes;
    /* One row per environment, as in EnvsIo; final_obs, mask, episode_return and episode_length may be
     * NULL. */
    void          *obs, *final_obs;
    const int32_t *act_i;
    const float   *act_f;
    float         *reward;
    uint8_t       *terminated, *truncated, *mask;
    float         *episode_return;
    int32_t       *episode_length;
    /* With slot: final_obs has per_env rows an environment, and a row belongs to an episode cut at this turn.
     * Two cuts of one environment are `limit` steps apart, so turn/limit tells them apart. slot[i] gets the
     * row, -1 if environment i was not cut. */
    int32_t       *slot;
    const int32_t *turn;
    int32_t        per_env;
    /* Sums over the episodes that ended, by environment: return, length, number. NULL: not wanted. */
    float  *ended;
    int64_t first; /* number of the first environment, for seeds */
} EnvCuda;

int     env_cuda_find(const char *name);                /* negative: not one of the built-in ones */
int64_t env_cuda_bytes(int kind, int n_env);            /* of lanes; a multiple of 256 */
int     env_cuda_reset(const EnvCuda *e, void *stream); /* first episodes; negative after err_set() */
int     env_cuda_step(const EnvCuda *e, void *stream);
int     env_cuda_wait(void *stream);

#ifdef __cplusplus
}
#endif
#endif
