/* The built-in environments on the GPU beside the vector layer on the CPU, and how fast they are.
 *
 * Environments of integers give the same bits. The others use sines and cosines, whose last bit differs; 60
 * steps let such a difference grow to far below 1e-4, and no episode of these seeds ends nearer to its bound
 * than that. */
#include "check.h"

#include "base/clock.h"
#include "dev/dev.h"
#include "env/builtin.h"
#include "env/cuda/env_cuda.h"
#include "env/rows.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

enum { N = 2048, T = 60, LIMIT = 25, MANY = 1 << 17, ROUNDS = 200 };

typedef struct {
    int (*find)(const char *);
    int64_t (*bytes)(int, int);
    int (*reset)(const EnvCuda *, void *);
    int (*step)(const EnvCuda *, void *);
    int (*wait)(void *);
} Api;

static void look_up(Api *a)
{
    char    path[PATH_MAX + 32];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    CHECK(n > 0, "no path");
    path[n] = 0;
    strcpy(strrchr(path, '/') + 1, "libbrim_cuda.so");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(lib, "%s", dlerror());
    *(void **)&a->find  = dlsym(lib, "env_cuda_find");
    *(void **)&a->bytes = dlsym(lib, "env_cuda_bytes");
    *(void **)&a->reset = dlsym(lib, "env_cuda_reset");
    *(void **)&a->step  = dlsym(lib, "env_cuda_step");
    *(void **)&a->wait  = dlsym(lib, "env_cuda_wait");
    CHECK(a->find && a->bytes && a->reset && a->step && a->wait, "symbols are missing");
}

static EnvCuda make(Dev *dev, const Api *api, const char *name, const EnvSpec *s, int n, int64_t limit)
{
    EnvCuda e        = { .kind = api->find(name), .n_env = n, .length = 10, .limit = limit, .seed = 9 };
    size_t  k        = (size_t)n;
    e.lanes          = dev_slab_alloc(dev, (size_t)api->bytes(e.kind, n));
    e.obs            = dev_slab_alloc(dev, k * (size_t)s->block_bytes[0]);
    e.final_obs      = dev_slab_alloc(dev, k * (size_t)s->block_bytes[0]);
    void *act        = dev_slab_alloc(dev, k * 4);
    e.act_i          = s->info.act_kind == ENV_DISCRETE ? act : NULL;
    e.act_f          = s->info.act_kind == ENV_DISCRETE ? NULL : act;
    e.reward         = dev_slab_alloc(dev, k * 4);
    e.terminated     = dev_slab_alloc(dev, k);
    e.truncated      = dev_slab_alloc(dev, k);
    e.mask           = dev_slab_alloc(dev, k * 4);
    e.episode_length = dev_slab_alloc(dev, k * 4);
    return e;
}

static void fetch(Dev *dev, void *host, const void *device, size_t n)
{
    CHECK(dev->vt->download(dev, LANE_COMPUTE, host, device, n) == 0 && dev->vt->sync(dev) == 0, "%s",
          err_get());
}

/* The largest difference of two blocks of observations. */
static double apart(const EnvSpec *s, const void *a, const void *b)
{
    double most = 0;
    for (int64_t i = 0; i < N * s->block_elem[0]; i++) {
        double x = s->block[0].type == ENV_F32 ? (double)((const float *)a)[i] - ((const float *)b)[i]
                                               : (double)((const uint8_t *)a)[i] - ((const uint8_t *)b)[i];
        if (!(fabs(x) <= most)) most = fabs(x);
    }
    return most;
}

static void compare(Tally *t, Dev *dev, const Api *api, const char *name)
{
    Envs *e;
    Rows  r;
    CHECK(envs_open(&e, &(EnvsConf){ .name = name, .n_env = N, .seed = 9, .max_steps = LIMIT }) == 0, "%s",
          err_get());
    const EnvSpec *s = envs_spec(e);
    rows_init(&r, s, N, 3);
    EnvCuda c     = make(dev, api, name, s, N, LIMIT);
    size_t  bytes = (size_t)s->block_bytes[0] * N;
    char   *obs = malloc(bytes), *cut = malloc(N), *term = malloc(N);
    double  most  = 0;
    int     flags = 0;
    CHECK(envs_reset(e, &r.io) == 0 && dev->vt->sync(dev) == 0 && api->reset(&c, NULL) == 0, "%s", err_get());
    for (int k = 0; k < T; k++) {
        rows_random(&r, s, N);
        void *act = c.act_i ? (void *)c.act_i : (void *)c.act_f;
        CHECK(dev->vt->upload(dev, LANE_COMPUTE, act, c.act_i ? (void *)r.act_i : (void *)r.act_f, N * 4) ==
                      0 &&
                  dev->vt->sync(dev) == 0 && api->step(&c, NULL) == 0 && api->wait(NULL) == 0 &&
                  envs_step(e, 0, &r.io) == 0,
              "%s", err_get());
        fetch(dev, obs, c.obs, bytes);
        fetch(dev, cut, c.truncated, N);
        fetch(dev, term, c.terminated, N);
        double x = apart(s, obs, r.io.obs[0]);
        if (!(x <= most)) most = x;
        flags |= memcmp(cut, r.io.truncated, N) != 0 || memcmp(term, r.io.terminated, N) != 0;
    }
    int exact = strcmp(name, "tmaze") == 0 || strcmp(name, "meteor") == 0;
    tally(t, !flags && most <= (exact ? 0 : 1e-4), "%s: largest difference %g, ends %s", name, most,
          flags ? "differ" : "equal");
    free(obs);
    free(cut);
    free(term);
    rows_deinit(&r);
    envs_close(e);
}

static void speed(Dev *dev, const Api *api, const char *name)
{
    Envs *e;
    CHECK(envs_open(&e, &(EnvsConf){ .name = name, .n_env = 1, .seed = 9 }) == 0, "%s", err_get());
    EnvCuda c = make(dev, api, name, envs_spec(e), MANY, envs_max_steps(e));
    CHECK(dev->vt->sync(dev) == 0 && api->reset(&c, NULL) == 0 && api->wait(NULL) == 0, "%s", err_get());
    double begin = clock_now_s();
    for (int k = 0; k < ROUNDS; k++) CHECK(api->step(&c, NULL) == 0, "%s", err_get());
    CHECK(api->wait(NULL) == 0, "%s", err_get());
    printf("%s: %.0f M steps/s, %d environments\n", name,
           (double)MANY * ROUNDS / (clock_now_s() - begin) * 1e-6, MANY);
    envs_close(e);
}

int main(void)
{
    Tally       t = { 0 };
    Api         api;
    const char *why;
    Dev        *dev = dev_open("cuda", &(DevOptions){ .capture = 1 }, &why);
    CHECK(dev, "%s", err_get());
    look_up(&api);
    for (int i = 0; i < builtin_count(); i++) {
        const char *name = builtin_at(i)->name;
        if (api.find(name) < 0) continue; /* of several agents */
        compare(&t, dev, &api, name);
        speed(dev, &api, name);
    }
    dev_close(dev);
    return tally_end(&t);
}
