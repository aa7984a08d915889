/* Spec: an environment's description of itself, checked and copied, with the sizes that follow from it.
 *
 * 1. A spec owns nothing of the environment: texts and arrays live in the caller's arena.
 * 2. A spec that spec_take() or spec_parse() accepted is safe to size buffers with. */
#ifndef ENV_SPEC_H
#define ENV_SPEC_H

#include "base/arena.h"
#include "env/env.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    EnvInfo  info;                    /* its pointers lead into the arena; n_agent >= 1, scale != 0 */
    EnvBlock block[ENV_MAX_OBS];      /* what info.obs points to */
    int64_t  block_elem[ENV_MAX_OBS]; /* of one agent */
    int64_t  block_bytes[ENV_MAX_OBS];
    int64_t  obs_elem; /* all blocks of one agent */
    int32_t  n_mask;   /* choices of all heads; 0 without a mask */
} EnvSpec;

enum { SPEC_MAX_ELEM = 1 << 28 /* numbers of one block */, SPEC_MAX_JSON = 1 << 20 };

/* Checks and copies. `who` begins the message. Negative after err_set(). */
int spec_take(EnvSpec *s, Arena *a, const EnvInfo *info, const char *who);
/* 1 when both have the same blocks, actions, agents and mask. */
int spec_same(const EnvSpec *a, const EnvSpec *b);
/* 0 while an environment still has the shape that was taken; negative after err_set() saying what changed. */
int spec_keeps(const EnvSpec *s, const EnvInfo *now);

/* As JSON, for worker processes. spec_write returns the length, or negative when buf is too small. */
int spec_write(const EnvSpec *s, char *buf, size_t cap);
int spec_parse(EnvSpec *s, Arena *a, const char *json, size_t n, const char *who);

/* "obs f32[4], 2 actions": one line for people; returns buf. */
const char *spec_describe(const EnvSpec *s, char *buf, size_t n);

#ifdef __cplusplus
}
#endif
#endif
