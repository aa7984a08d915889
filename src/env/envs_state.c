/* The state of all environments as bytes.
 *
 *     header   magic, version, n_env, n_agent, bytes of all, hash of the spec
 *     per environment: episode, steps, sums of rewards, current rows of obs, mask and alive, size and bytes
 *     of save()
 *
 * The bytes are meant for a checkpoint, which has a checksum of its own. Sizes are checked all the same. */
#include "env/envs_impl.h"

#include "base/err.h"
#include "base/file.h"

#include <string.h>
#include <xxhash.h>

typedef struct {
    char     magic[8];
    uint64_t spec_hash;
    int64_t  n_env, n_agent, size_bytes;
    uint64_t seed;
} StateHeader;

static const char state_magic[8] = "brimenv1";

int envs_can_save(const Envs *e) { return !e->remote && e->lib.api.save && e->lib.api.load; }

static int refuse(const Envs *e)
{
    if (e->remote)
        return err_set("environment %s runs in worker processes, whose state is not saved", e->conf.name);
    return err_set("environment %s has no save and load", e->conf.name);
}

static uint64_t hash_spec(const Envs *e)
{
    const char *name = file_name_of(e->conf.name); /* a file may have moved */
    uint64_t    h    = XXH64(e->spec.block_bytes, sizeof e->spec.block_bytes, (uint64_t)e->spec.n_mask);
    h                = XXH64(name, strlen(name), h);
    for (int i = 0; i < e->conf.n_option; i++) h = XXH64(e->conf.option[i], strlen(e->conf.option[i]) + 1, h);
    return h;
}

static int64_t fixed_bytes(const Envs *e)
{
    int64_t n = 3 * (int64_t)sizeof(int64_t), agents = e->spec.info.n_agent;
    n += agents * (int64_t)(sizeof(double) + 1) + agents * e->spec.n_mask;
    for (int k = 0; k < e->spec.info.n_obs; k++) n += agents * e->spec.block_bytes[k];
    return n;
}

int64_t envs_state_bytes(Envs *e)
{
    if (!envs_can_save(e)) return refuse(e);
    int64_t total = sizeof(StateHeader);
    for (int i = 0; i < e->n_env; i++) {
        envs_enter(e, i);
        int64_t n = e->lib.api.save(e->env[i], NULL, 0);
        envs_leave(e);
        if (n < 0) return err_set("environment %s number %d: save failed", e->conf.name, i);
        total += fixed_bytes(e) + n;
    }
    return total;
}

/* Moves n bytes between the rows and the buffer; the direction is the only difference between save and
 * load. */
static void move(char **at, void *row, int64_t n, int is_save)
{
    if (is_save)
        memcpy(*at, row, (size_t)n);
    else
        memcpy(row, *at, (size_t)n);
    *at += n;
}

static void move_fixed(Envs *e, const EnvsIo *io, int i, char **at, int is_save)
{
    int64_t agents = e->spec.info.n_agent;
    EnvIo   r      = envs_row(e, io, i);
    char    absent[ENV_MAX_AGENT];
    memset(absent, 1, sizeof absent);
    move(at, &e->episode[i], sizeof(int64_t), is_save);
    move(at, &e->steps[i], sizeof(int64_t), is_save);
    move(at, &e->sum[i * agents], agents * (int64_t)sizeof(double), is_save);
    for (int k = 0; k < e->spec.info.n_obs; k++) move(at, r.obs[k], agents * e->spec.block_bytes[k], is_save);
    if (r.mask) move(at, r.mask, agents * e->spec.n_mask, is_save);
    move(at, r.alive ? (char *)r.alive : absent, agents, is_save);
}

int envs_save(Envs *e, const EnvsIo *io, void *buf, int64_t n)
{
    if (!envs_can_save(e)) return refuse(e);
    char       *at = buf, *end = at + n;
    StateHeader h = { .spec_hash  = hash_spec(e),
                      .n_env      = e->n_env,
                      .n_agent    = e->spec.info.n_agent,
                      .size_bytes = n,
                      .seed       = e->conf.seed };
    CHECK(n >= (int64_t)sizeof h, "%lld bytes", (long long)n);
    memcpy(h.magic, state_magic, sizeof h.magic);
    move(&at, &h, sizeof h, 1);
    for (int i = 0; i < e->n_env; i++) {
        CHECK(end - at >= fixed_bytes(e), "the buffer is too small");
        move_fixed(e, io, i, &at, 1);
        int64_t size, room = end - at - (int64_t)sizeof size;
        envs_enter(e, i);
        size = e->lib.api.save(e->env[i], at + sizeof size, room);
        envs_leave(e);
        if (size < 0 || size > room) return err_set("environment %s number %d: save failed", e->conf.name, i);
        move(&at, &size, sizeof size, 1);
        at += size;
    }
    CHECK(at == end, "%lld bytes are left", (long long)(end - at));
    return 0;
}

int envs_load(Envs *e, const EnvsIo *io, const void *buf, int64_t n)
{
    char       *at = (char *)buf, *end = at + n; /* only read, see move() */
    StateHeader h;
    if (!envs_can_save(e)) return 1;
    if (n < (int64_t)sizeof h) return err_set("environment state: %lld bytes are too few", (long long)n);
    move(&at, &h, sizeof h, 0);
    if (memcmp(h.magic, state_magic, sizeof h.magic) != 0)
        return err_set("environment state: not one of this program");
    if (h.spec_hash != hash_spec(e) || h.n_env != e->n_env || h.n_agent != e->spec.info.n_agent ||
        h.seed != e->conf.seed)
        return 1;
    if (h.size_bytes != n)
        return err_set("environment state: %lld bytes, not %lld", (long long)n, (long long)h.size_bytes);
    for (int i = 0; i < e->n_env; i++) {
        int64_t size = -1;
        if (end - at < fixed_bytes(e)) return err_set("environment state: cut short at number %d", i);
        move_fixed(e, io, i, &at, 0);
        move(&at, &size, sizeof size, 0);
        if (size < 0 || size > end - at) return err_set("environment state: cut short at number %d", i);
        envs_enter(e, i);
        int rc = e->lib.api.load(e->env[i], at, size);
        envs_leave(e);
        if (rc < 0) return 1; /* built anew since, with another state */
        at += size;
    }
    return at == end ? 0 : err_set("environment state: %lld bytes too long", (long long)(end - at));
}
