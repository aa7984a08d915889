/* Remote: environments in worker processes, over shared memory. Serves `isolate: process` and the Gymnasium
 * bridge.
 *
 * 1. A worker owns a range of environments within one group. It is `brim env worker NAME ...` (worker.c) or
 *    `python3 gym_worker.py NAME ...` (tools/). Both speak the same protocol.
 * 2. Descriptors of a worker: 0 commands, 3 replies, 4 the shared memory. What a worker prints goes to
 *    stderr.
 *        reply    kind (1 byte), length (4 bytes, little-endian), that many bytes
 *        start    worker: 's' spec as JSON.   parent: one line of JSON with the byte offsets (remote_layout)
 *        'S'      step all: reads actions, writes obs, reward, end, mask, alive.              worker: 'k'
 *        'R'      reset those with which[i] = 1 from seed[i].                                 worker: 'k'
 *        'P'      picture of the first with which[i] = 1.  worker: 'p' width, height (4 bytes each), RGB
 *        'Q'      end.  Instead of any answer: 'e' text, or 'f' text when a restart would not help.
 * 3. A worker that ends, answers 'e' or does not answer within timeout_s is killed and started again. Its
 *    environments then report ENV_TRUNCATED, reward 0 and their last observation. REMOTE_IN_A_ROW losses with
 *    fewer than REMOTE_GOOD_STEPS good steps between them are a failure of the run, and so is 'f' (another
 *    shape).
 * 4. Everything that a worker writes is checked: a worker may be broken in any way. */
#ifndef ENV_REMOTE_H
#define ENV_REMOTE_H

#include "env/envs.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { REMOTE_IN_A_ROW = 3, REMOTE_GOOD_STEPS = 100, REMOTE_REPLY_FD = 3, REMOTE_MEMORY_FD = 4 };

typedef struct Remote Remote;

typedef struct {
    const char        *name;
    const char *const *option;
    int                n_option, n_env, n_group, n_worker;
    double             timeout_s; /* negative: none */
    const char        *program;   /* NULL: this program */
    int64_t            first;     /* number of the first environment, for messages */
} RemoteConf;

/* Byte offsets in the memory of a worker with n environments. */
typedef struct {
    int64_t obs[ENV_MAX_OBS], act, reward, end, mask, alive, which, seed, current, total_bytes;
} RemoteLayout;

RemoteLayout remote_layout(const EnvSpec *spec, int n);

/* Seconds that each of so many workers has to start in, if all start together: more where they share cores.
 * Negative: no limit. */
double remote_start_limit(double timeout_s, int n_worker, int n_cpu);
/* Starts all workers and fills spec from the first. Negative after err_set(). */
int     remote_open(Remote **r, const RemoteConf *conf, EnvSpec *spec, Arena *a);
void    remote_close(Remote *r); /* NULL is allowed */
int     remote_step(Remote *r, int lo, int hi, const EnvsIo *io, uint8_t *end);
int     remote_reset(Remote *r, int lo, int hi, const uint8_t *which, const uint64_t *seed, const EnvsIo *io);
int     remote_picture(Remote *r, int env, uint8_t *rgb, int *width, int *height);
int64_t remote_restarts(const Remote *r);

#ifdef __cplusplus
}
#endif
#endif
