/* What a checkpoint holds of the host: counts, the last returns, running rewards, and the environments.
 *
 *     PpoHost   running discounted rewards, f32[E]   int64 size, then envs_save() of so many bytes
 *
 * Environments on the device are kept tensors. In place of their size stands what they are
 * (ppo_device_mark()).
 *
 * An environment that cannot be saved begins new episodes when a run goes on. So does one whose options,
 * seed, size of state or `isolate` have changed. So do those of several ranks, because a checkpoint has the
 * state of one rank. */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static int64_t head_bytes(const Ppo *p)
{
    return round_up((int64_t)sizeof(PpoHost) + p->E * (int64_t)sizeof(float), 64) + (int64_t)sizeof(int64_t);
}

/* State may grow during an episode: there is room for twice what an environment had at its begin. */
int64_t ppo_state_bytes(const Ppo *p)
{
    return head_bytes(p) + (p->on_device ? 0 : 2 * (p->E / p->A) * p->spec.state_bytes + 4096);
}

static int write_envs(const Job *j, char *at, int64_t room)
{
    Ppo    *p    = ppo_of(j);
    int64_t size = 0;
    if (p->spec.state_bytes > 0 && p->envs && comm_world(j->comm) == 1) {
        size = envs_state_bytes(p->envs);
        if (size < 0) return -1;
    }
    if (size > room - (int64_t)sizeof size) {
        log_warn("the environments' state of %lld bytes does not fit into the checkpoint: a run that goes on "
                 "will begin new episodes",
                 (long long)size);
        size = 0;
    }
    memcpy(at, &size, sizeof size);
    if (size == 0) return 0;
    EnvsIo io = ppo_io_all(p);
    ppo_gather_rows(p);
    return envs_save(p->envs, &io, at + sizeof size, size);
}

int ppo_before_save(Job *j)
{
    Ppo    *p = ppo_of(j);
    int64_t n = (int64_t)tensor_bytes(p->kept), head = head_bytes(p) - (int64_t)sizeof(int64_t);
    char   *buf = mem_zeroed((size_t)n, 1);
    if (!buf) return err_sys("memory for the environments' state");
    memcpy(buf, &p->host, sizeof p->host);
    if (p->envs) memcpy(buf + sizeof p->host, p->reward_return, sizeof(float) * (size_t)p->E);
    int     rc   = write_envs(j, buf + head, n - head);
    int64_t mark = p->on_device ? ppo_device_mark(&j->recipe) : 0;
    if (p->on_device) memcpy(buf + head, &mark, sizeof mark);
    if (rc == 0) rc = job_upload(j, p->kept, buf, (size_t)n);
    free(buf);
    return rc;
}

static int read_envs(Ppo *p, const char *at, int64_t room)
{
    int64_t size;
    memcpy(&size, at, sizeof size);
    if (size < 0) return err_set("environment state: %lld bytes", (long long)size);
    EnvsIo io    = ppo_io_all(p);
    int    other = size > room - (int64_t)sizeof size;
    if (size > 0 && !other) other = envs_load(p->envs, &io, at + sizeof size, size);
    if (other < 0) return -1;
    if (size == 0) log_info("the state of the environments was not saved: new episodes begin");
    if (other) log_info("the saved environments are not the same any more: new episodes begin");
    if (size == 0 || other) {
        TRY(envs_reset(p->envs, &io));
        memset(p->reward_return, 0, sizeof(float) * (size_t)p->E);
    }
    ppo_spread(p);
    return 0;
}

/* Environments on the device came with the kept tensors. */
static int look_at_device(Job *j, const char *at)
{
    int64_t mark;
    memcpy(&mark, at, sizeof mark);
    int other = ppo_device_is_other(&j->recipe, mark);
    if (other) log_info("the saved environments are not the same any more: new episodes begin");
    return other || comm_world(j->comm) > 1 ? ppo_device_reset(j) : 0;
}

int ppo_after_load(Job *j)
{
    Ppo    *p = ppo_of(j);
    int64_t n = (int64_t)tensor_bytes(p->kept), head = head_bytes(p) - (int64_t)sizeof(int64_t);
    char   *buf = mem_alloc((size_t)n);
    if (!buf) return err_sys("memory for the environments' state");
    int rc = job_download(j, p->kept, buf, (size_t)n);
    if (rc == 0) {
        memcpy(&p->host, buf, sizeof p->host);
        if (p->envs) {
            memcpy(p->reward_return, buf + sizeof p->host, sizeof(float) * (size_t)p->E);
            rc = read_envs(p, buf + head, n - head);
        } else if (p->on_device) {
            rc = look_at_device(j, buf + head);
        }
        p->n_call = 0;
    }
    free(buf);
    return rc;
}
