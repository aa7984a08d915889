/* Env_lane: what one GPU thread does for one environment, for every built-in one. C++, also compiled for the
 * CPU, where tests/test_env_lane.cc compares it with envs.c. */
#ifndef ENV_CUDA_ENV_LANE_H
#define ENV_CUDA_ENV_LANE_H

#include "env/acrobot.h"
#include "env/cartpole.h"
#include "env/cuda/env_cuda.h"
#include "env/meteor.h"
#include "env/mountaincar.h"
#include "env/pendulum.h"
#include "env/tmaze.h"

/* kind, functions' prefix, struct, observation type and size, choices in the mask */
#define ENV_LANE_LIST(X)                                                                                     \
    X(0, cartpole, CartPole, float, CARTPOLE_OBS, 0)                                                         \
    X(1, acrobot, Acrobot, float, ACROBOT_OBS, 0)                                                            \
    X(2, mountaincar, MountainCar, float, MOUNTAINCAR_OBS, 0)                                                \
    X(3, mountaincarc, MountainCarC, float, MOUNTAINCAR_OBS, 0)                                              \
    X(4, pendulum, Pendulum, float, PENDULUM_OBS, 0)                                                         \
    X(5, tmaze, TMaze, float, TMAZE_OBS, 0)                                                                  \
    X(6, meteor, Meteor, uint8_t, METEOR_OBS, 3)

enum { ENV_LANE_KINDS = 7 };

template <int KIND> struct EnvLane;

/* Only the T-maze has a parameter, and only Meteor a mask. */
template <class T> BRIM_HD inline void env_lane_configure(T *, int32_t) {}
template <> BRIM_HD inline void env_lane_configure<TMaze>(TMaze *s, int32_t length) { s->length = length; }
template <class T> BRIM_HD inline void env_lane_mask(const T *, uint8_t *) {}
template <> BRIM_HD inline void        env_lane_mask<Meteor>(const Meteor *s, uint8_t *mask)
{
    meteor_mask(s, mask);
}

#define X(KIND, NAME, Type, ObsType, N, M)                                                                   \
    template <> struct EnvLane<KIND> {                                                                       \
        typedef ObsType Obs;                                                                                 \
        enum { N_OBS = N, N_MASK = M };                                                                      \
        Type         s;                                                                                      \
        int64_t      episode, steps;                                                                         \
        double       sum;                                                                                    \
        BRIM_HD void reset(uint64_t seed) { NAME##_reset(&s, seed); }                                        \
        BRIM_HD int  step(const int32_t *a, const float *f, float *r) { return NAME##_step(&s, a, f, r); }   \
        BRIM_HD void observe(Obs *obs) const { NAME##_observe(&s, obs); }                                    \
    };
ENV_LANE_LIST(X)
#undef X

template <int KIND> BRIM_HD inline void env_lane_begin(const EnvCuda *e, int i, int64_t episode)
{
    typedef EnvLane<KIND> Lane;
    Lane                 *l   = (Lane *)e->lanes + i;
    typename Lane::Obs   *obs = (typename Lane::Obs *)e->obs + (int64_t)i * Lane::N_OBS;
    env_lane_configure(&l->s, e->length);
    l->reset(envfn_episode_seed(e->seed, e->first + i, episode));
    l->episode = episode;
    l->steps   = 0;
    l->sum     = 0;
    l->observe(obs);
    if (Lane::N_MASK > 0) env_lane_mask(&l->s, e->mask + (int64_t)i * Lane::N_MASK);
}

template <int KIND> BRIM_HD inline void env_lane_step(const EnvCuda *e, int i)
{
    typedef EnvLane<KIND>      Lane;
    typedef typename Lane::Obs Obs;
    Lane                      *l   = (Lane *)e->lanes + i;
    Obs                       *obs = (Obs *)e->obs + (int64_t)i * Lane::N_OBS;
    int bits = l->step(e->act_i ? e->act_i + i : nullptr, e->act_f ? e->act_f + i : nullptr, e->reward + i);
    l->steps++;
    l->sum += e->reward[i];
    int term         = (bits & ENV_TERMINATED) != 0;
    int cut          = !term && ((bits & ENV_TRUNCATED) || (e->limit > 0 && l->steps >= e->limit));
    int over         = term || cut;
    e->terminated[i] = (uint8_t)term;
    e->truncated[i]  = (uint8_t)cut;
    if (e->episode_return) e->episode_return[i] = over ? (float)l->sum : 0.0f;
    if (e->episode_length) e->episode_length[i] = over ? (int32_t)l->steps : 0;
    int64_t row = i;
    if (e->slot) {
        row        = cut ? (int64_t)i * e->per_env + (e->limit > 0 ? *e->turn / e->limit : 0) : -1;
        e->slot[i] = (int32_t)row;
    }
    if (over && e->ended) {
        float *sums = e->ended + (int64_t)i * 3;
        sums[0] += (float)l->sum;
        sums[1] += (float)l->steps;
        sums[2] += 1.0f;
    }
    if (over) {
        if (e->final_obs && row >= 0) l->observe((Obs *)e->final_obs + row * Lane::N_OBS);
        env_lane_begin<KIND>(e, i, l->episode + 1);
        return;
    }
    l->observe(obs);
    if (Lane::N_MASK > 0) env_lane_mask(&l->s, e->mask + (int64_t)i * Lane::N_MASK);
}

#endif
