/* Rows: buffers for an Envs on the heap, and random actions. They serve tests, checks and pictures; a trainer
 * has its own buffers. */
#ifndef ENV_ROWS_H
#define ENV_ROWS_H

#include "env/envs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    EnvsIo   io;
    int32_t *act_i;
    float   *act_f;
    uint64_t seed, n_drawn;
    Arena    arena;
} Rows;

void rows_init(Rows *r, const EnvSpec *spec, int64_t n_row, uint64_t seed);
void rows_deinit(Rows *r);
/* Uniform actions for all rows; choices that the mask forbids are left out. */
void rows_random(Rows *r, const EnvSpec *spec, int64_t n_row);

#ifdef __cplusplus
}
#endif
#endif
