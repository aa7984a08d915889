#include "env/worker.h"

#include "base/err.h"
#include "base/mem.h"
#include "env/envlib.h"
#include "env/remote.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct {
    Arena        arena;
    EnvLib       lib;
    EnvSpec      spec;
    RemoteLayout layout;
    void       **env;
    int          n;
    char        *at;
    int          is_hopeless; /* a restart would not help */
} Served;

static int reply(char kind, const void *bytes, uint32_t n)
{
    uint8_t     head[5] = { (uint8_t)kind, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16),
                            (uint8_t)(n >> 24) };
    const char *part[2] = { (const char *)head, bytes };
    size_t      size[2] = { sizeof head, n };
    for (int i = 0; i < 2; i++) {
        for (size_t done = 0; done < size[i];) {
            ssize_t k = write(REMOTE_REPLY_FD, part[i] + done, size[i] - done);
            if (k < 0 && errno == EINTR) continue;
            if (k < 0) return err_sys("worker reply");
            done += (size_t)k;
        }
    }
    return 0;
}

static int open_all(Served *s, const char *name, const char *const *option, int n_option)
{
    TRY(envlib_open(&s->lib, name, option, n_option));
    s->env = ARENA_ARRAY(&s->arena, void *, s->n);
    for (int i = 0; i < s->n; i++) {
        EnvSpec other;
        TRY(envlib_create(&s->lib, &s->env[i]));
        TRY(spec_take(i == 0 ? &s->spec : &other, &s->arena, s->lib.api.info(s->env[i]), name));
        if (i > 0 && !spec_same(&s->spec, &other))
            return err_set("environment %s: number %d has another shape", name, i);
    }
    char *json = arena_alloc(&s->arena, SPEC_MAX_JSON);
    int   len  = spec_write(&s->spec, json, SPEC_MAX_JSON);
    if (len < 0) return err_set("environment %s: the description is too long", name);
    return reply('s', json, (uint32_t)len);
}

static int map_memory(Served *s)
{
    char c;
    /* The parent's layout is ours: same function, same spec. The line says that the memory has its size. */
    do {
        ssize_t k = read(STDIN_FILENO, &c, 1);
        if (k <= 0) return err_set("the parent is gone");
    } while (c != '\n');
    s->layout = remote_layout(&s->spec, s->n);
    void *at =
        mmap(NULL, (size_t)s->layout.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, REMOTE_MEMORY_FD, 0);
    if (at == MAP_FAILED) return err_sys("shared memory");
    s->at = at;
    return 0;
}

static EnvIo row(const Served *s, int i)
{
    const EnvInfo      *n = &s->spec.info;
    const RemoteLayout *l = &s->layout;
    int64_t             r = (int64_t)i * n->n_agent;
    EnvIo               io;
    memset(&io, 0, sizeof io);
    for (int k = 0; k < n->n_obs; k++) io.obs[k] = s->at + l->obs[k] + r * s->spec.block_bytes[k];
    if (n->act_kind == ENV_DISCRETE)
        io.act_i = (const int32_t *)(s->at + l->act) + r * n->n_act;
    else
        io.act_f = (const float *)(s->at + l->act) + r * n->n_act;
    io.reward = (float *)(s->at + l->reward) + r;
    if (s->spec.n_mask) io.mask = (uint8_t *)s->at + l->mask + r * s->spec.n_mask;
    if (n->n_agent > 1) io.alive = (uint8_t *)s->at + l->alive + r;
    return io;
}

static int failed(const Served *s, int i, const char *call)
{
    const char *why = s->lib.api.error ? s->lib.api.error(s->env[i]) : NULL;
    return err_set("%s failed%s%s", call, why ? ": " : "", why ? why : "");
}

static void now_at(const Served *s, int i)
{
    int32_t current = i;
    memcpy(s->at + s->layout.current, &current, sizeof current);
}

static int step_all(Served *s)
{
    for (int i = 0; i < s->n; i++) {
        EnvIo io = row(s, i);
        now_at(s, i);
        int bits = s->lib.api.step(s->env[i], &io);
        if (bits < 0) return failed(s, i, "step");
        s->at[s->layout.end + i] = (char)MIN(bits, UINT8_MAX); /* the parent checks them */
    }
    return reply('k', NULL, 0);
}

static int reset_some(Served *s)
{
    for (int i = 0; i < s->n; i++) {
        if (!s->at[s->layout.which + i]) continue;
        EnvIo    io = row(s, i);
        uint64_t seed;
        memcpy(&seed, s->at + s->layout.seed + i * (int64_t)sizeof seed, sizeof seed);
        now_at(s, i);
        if (s->lib.api.reset(s->env[i], seed, &io) < 0) return failed(s, i, "reset");
        if (spec_keeps(&s->spec, s->lib.api.info(s->env[i])) < 0) s->is_hopeless = 1;
        if (s->is_hopeless) return -1;
    }
    return reply('k', NULL, 0);
}

static int picture(Served *s)
{
    int i = 0, w, h;
    while (i < s->n - 1 && !s->at[s->layout.which + i]) i++;
    if (!s->lib.api.picture) return err_set("it has no pictures");
    if (s->lib.api.picture(s->env[i], NULL, &w, &h) < 0 || w < 1 || h < 1 || w > ENV_MAX_SIDE ||
        h > ENV_MAX_SIDE)
        return failed(s, i, "picture");
    uint32_t size[2] = { (uint32_t)w, (uint32_t)h }, n = 8 + size[0] * size[1] * 3;
    char    *data = mem_alloc(n);
    if (!data) return err_sys("memory for a picture");
    memcpy(data, size, sizeof size);
    int rc = s->lib.api.picture(s->env[i], (uint8_t *)data + 8, &w, &h) < 0 ? failed(s, i, "picture")
                                                                            : reply('p', data, n);
    free(data);
    return rc;
}

static int serve(Served *s)
{
    for (;;) {
        char    c;
        ssize_t k = read(STDIN_FILENO, &c, 1);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0 || c == 'Q') return 0;
        if (c == 'S') TRY(step_all(s));
        if (c == 'R') TRY(reset_some(s));
        if (c == 'P' && picture(s) < 0) { /* a missing picture is no reason to end */
            TRY(reply('e', err_get(), (uint32_t)strlen(err_get())));
            err_clear();
        }
    }
}

int worker_run(const char *name, int n_env, const char *const *option, int n_option)
{
    Served s = { .n = n_env };
    arena_init(&s.arena);
    int rc = open_all(&s, name, option, n_option);
    if (rc == 0) rc = map_memory(&s);
    if (rc == 0) rc = serve(&s);
    if (rc < 0 && reply(s.is_hopeless ? 'f' : 'e', err_get(), (uint32_t)strlen(err_get())) == 0) {
        err_clear(); /* the parent says why */
        rc = 0;
    }
    for (int i = 0; s.env && i < n_env; i++)
        if (s.env[i]) s.lib.api.destroy(s.env[i]);
    arena_deinit(&s.arena);
    return rc;
}
