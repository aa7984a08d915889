/* Device: the built-in environments on a GPU, found in the library that the GPU's backend came from. The
 * program itself links without CUDA.
 *
 * DEVICE_LANE bounds the state of one environment, so plans need no library. */
#ifndef ENV_DEVICE_H
#define ENV_DEVICE_H

#include "env/cuda/env_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DEVICE_LANE = 256 /* bytes */ };

typedef struct {
    int (*find)(const char *name);
    int64_t (*bytes)(int kind, int n_env);
    int (*reset)(const EnvCuda *e, void *stream);
    int (*step)(const EnvCuda *e, void *stream);
    int (*wait)(void *stream);
} EnvDevice;

/* 1: the built-in environment of that name can run on a GPU: its observations are floats, and it has one
 * agent. */
int env_device_has(const char *name);
/* address: of any function of the backend. 0: d is filled; negative: the backend has no environments (no
 * message). */
int env_device_open(EnvDevice *d, const void *address);

#ifdef __cplusplus
}
#endif
#endif
