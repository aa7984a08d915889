#include "comm/place.h"

#include "base/err.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    const char *name, *rank, *world, *local;
    const char *need; /* must be set too, or NULL */
} Launcher;

/* SLURM_STEP_* exist only in processes that srun started; SLURM_NTASKS also in the batch script around them.
 */
static const Launcher launchers[] = {
    { "brim", "BRIM_RANK", "BRIM_WORLD_SIZE", "BRIM_LOCAL_RANK", NULL },
    { "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", NULL },
    { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL },
    { "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL },
    { "srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_ID" },
};

enum {
    MAX_WORLD  = 65536,
    PORT_FIRST = 20000,
    PORT_COUNT = 10000 /* below the ports Linux gives out by itself */
};

static const char loopback[] = "127.0.0.1";

/* The variable's text, or NULL when it is absent or empty. */
static const char *env(const char *name)
{
    const char *s = name ? getenv(name) : NULL;
    return s && *s ? s : NULL;
}

static const char *env2(const char *a, const char *b) { return env(a) ? env(a) : env(b); }

static int env_int(const char *name, int lo, int hi, int *out)
{
    int64_t v;
    if (str_parse_int(env(name), &v) < 0 || v < lo || v > hi) {
        return err_user("environment: %s=%s: expected a whole number from %d to %d", name, env(name), lo, hi);
    }
    *out = (int)v;
    return 0;
}

static const Launcher *find_launcher(void)
{
    for (int i = 0; i < ARRAY_LEN(launchers); i++) {
        const Launcher *l = &launchers[i];
        if (env(l->rank) && env(l->world) && (!l->need || env(l->need))) return l;
    }
    return NULL;
}

/* Every rank derives the same port from what names the job, so two jobs on one machine rarely meet. */
static int derive_port(void)
{
    char        own[32];
    const char *job = env2("SLURM_JOB_ID", "PMIX_NAMESPACE"), *step = env("SLURM_STEP_ID");
    snprintf(own, sizeof own, "user %u", (unsigned)getuid());
    if (!job) job = own;
    uint32_t h = 2166136261u; /* FNV-1a */
    for (const char *s = job; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    for (const char *s = step ? step : ""; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    return PORT_FIRST + (int)(h % PORT_COUNT);
}

static int find_port(Place *p)
{
    const char *name = env("BRIM_MASTER_PORT") ? "BRIM_MASTER_PORT" : "MASTER_PORT";
    p->port          = derive_port();
    if (!env(name)) return 0;
    TRY(env_int(name, 1, 65534, &p->port));
    /* torchrun's own agent listens on MASTER_PORT. */
    if (env("TORCHELASTIC_RUN_ID")) p->port++;
    return 0;
}

int place_first_host(const char *list, char *out, int n)
{
    int k = 0;
    for (const char *s = list; *s && *s != ','; s++) {
        if (*s == '[') {
            /* The first of "03-05,07": digits up to the first '-', ',' or ']'. */
            size_t len = strcspn(s + 1, "-,]");
            if (!strchr(s, ']') || len == 0 || k + (int)len >= n) return -1;
            memcpy(out + k, s + 1, len);
            k += (int)len;
            s = strchr(s, ']');
            continue;
        }
        if (k + 1 >= n) return -1;
        out[k++] = *s;
    }
    out[k] = '\0';
    return k > 0 ? 0 : -1;
}

static int one_machine(const Launcher *l)
{
    if (strcmp(l->name, "srun") == 0) {
        const char *nodes = env2("SLURM_STEP_NUM_NODES", "SLURM_NNODES");
        return nodes && strcmp(nodes, "1") == 0;
    }
    const char *local = env("OMPI_COMM_WORLD_LOCAL_SIZE");
    return strcmp(l->name, "mpirun") != 0 || (local && strcmp(local, env(l->world)) == 0);
}

static int find_host(Place *p, const Launcher *l)
{
    const char *host  = env2("BRIM_MASTER_ADDR", "MASTER_ADDR"),
               *nodes = env2("SLURM_STEP_NODELIST", "SLURM_NODELIST");
    if (host || one_machine(l)) {
        if (str_copy(p->host, sizeof p->host, host ? host : loopback) < 0) {
            return err_user("environment: MASTER_ADDR: %s is too long", host);
        }
        return 0;
    }
    if (strcmp(l->name, "srun") == 0 && nodes && place_first_host(nodes, p->host, sizeof p->host) == 0)
        return 0;
    return err_user("environment: MASTER_ADDR: %s started %d processes on several machines; set MASTER_ADDR "
                    "to the one of rank 0",
                    l->name, p->world);
}

int place_find(Place *p)
{
    const Launcher *l = find_launcher();
    *p                = (Place){ .world = 1, .launcher = "" };
    if (!l) return 0;
    TRY(env_int(l->world, 1, MAX_WORLD, &p->world));
    TRY(env_int(l->rank, 0, p->world - 1, &p->rank));
    if (p->world == 1) return 0;
    p->launcher = l->name;
    TRY(find_port(p));
    TRY(find_host(p, l));
    p->local_rank = one_machine(l) ? p->rank : 0;
    if (env(l->local)) TRY(env_int(l->local, 0, p->world - 1, &p->local_rank));
    return 0;
}
