/* The environments' kernel against the vector layer, both on the CPU: every row of every step must be the
 * same bits. */
#include "base/err.h"
#include "env/builtin.h"
#include "env/cuda/env_lane.h"
#include "env/device.h"
#include "env/rows.h"

#include <stdio.h>
#include <string.h>
#include <vector>

enum { N = 33, T = 600 };

#define X(KIND, ...) static_assert(sizeof(EnvLane<KIND>) <= DEVICE_LANE, "raise DEVICE_LANE");
ENV_LANE_LIST(X)
#undef X

static int n_failed;

static void same(const char *name, const char *what, int t, const void *a, const void *b, size_t n)
{
    if (memcmp(a, b, n) == 0) return;
    printf("not ok %s: %s differ at step %d\n", name, what, t);
    n_failed++;
}

template <int KIND> static void compare(const char *name)
{
    typedef EnvLane<KIND>           Lane;
    std::vector<Lane>               lanes(N);
    std::vector<typename Lane::Obs> obs(N * Lane::N_OBS), last(N * Lane::N_OBS);
    std::vector<float>              reward(N), sum(N);
    std::vector<uint8_t>            term(N), cut(N), mask(N * 4);
    std::vector<int32_t>            length(N);
    Envs                           *e;
    Rows                            r;
    EnvsConf                        conf = {};
    conf.name                            = name;
    conf.n_env                           = N;
    conf.n_thread                        = 1;
    conf.seed                            = 77;
    conf.max_steps                       = 90;
    CHECK(envs_open(&e, &conf) == 0, "%s", err_get());
    rows_init(&r, envs_spec(e), N, 3);
    EnvCuda c        = {};
    c.kind           = KIND;
    c.n_env          = N;
    c.length         = 10;
    c.limit          = 90;
    c.seed           = 77;
    c.lanes          = lanes.data();
    c.obs            = obs.data();
    c.final_obs      = last.data();
    c.act_i          = r.act_i;
    c.act_f          = r.act_f;
    c.reward         = reward.data();
    c.terminated     = term.data();
    c.truncated      = cut.data();
    c.mask           = mask.data();
    c.episode_return = sum.data();
    c.episode_length = length.data();
    size_t bytes     = obs.size() * sizeof(typename Lane::Obs);
    int    before = n_failed, ended = 0;
    CHECK(envs_reset(e, &r.io) == 0, "%s", err_get());
    for (int i = 0; i < N; i++) env_lane_begin<KIND>(&c, i, 0);
    same(name, "first observations", 0, obs.data(), r.io.obs[0], bytes);
    for (int t = 1; t <= T && n_failed == before; t++) {
        rows_random(&r, envs_spec(e), N);
        CHECK(envs_step(e, 0, &r.io) == 0, "%s", err_get());
        for (int i = 0; i < N; i++) env_lane_step<KIND>(&c, i);
        same(name, "observations", t, obs.data(), r.io.obs[0], bytes);
        same(name, "final observations", t, last.data(), r.io.final_obs[0], bytes);
        same(name, "rewards", t, reward.data(), r.io.reward, N * sizeof(float));
        same(name, "terminations", t, term.data(), r.io.terminated, N);
        same(name, "truncations", t, cut.data(), r.io.truncated, N);
        same(name, "returns", t, sum.data(), r.io.episode_return, N * sizeof(float));
        same(name, "lengths", t, length.data(), r.io.episode_length, N * sizeof(int32_t));
        if (Lane::N_MASK > 0) same(name, "masks", t, mask.data(), r.io.mask, N * Lane::N_MASK);
        for (int i = 0; i < N; i++) ended += length[i] > 0;
    }
    if (n_failed == before && ended > N) printf("ok lane %s: %d episodes\n", name, ended);
    if (n_failed == before && ended <= N)
        printf("not ok lane %s: only %d episodes ended\n", name, ended), n_failed++;
    rows_deinit(&r);
    envs_close(e);
}

int main()
{
#define X(KIND, ...) compare<KIND>(builtin_at(KIND)->name);
    ENV_LANE_LIST(X)
#undef X
    return n_failed != 0;
}
