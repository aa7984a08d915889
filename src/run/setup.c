#include "run/setup.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "run/rundir.h"
#include "run/switches.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Free memory that a plan leaves alone. */
static size_t device_margin(const Dev *dev, const DevInfo *info)
{
    const DevHints *h = dev->vt->hints;
    return h->margin_part ? info->free_bytes / (size_t)h->margin_part : h->margin_bytes;
}

/* A rank takes the GPU of its number on this machine. Launchers that show each process only its own GPU make
 * that number meaningless: then the first one it is. */
static Dev *open_for_rank(const Recipe *r, const DevOptions *opt, const Comm *comm, const char **why)
{
    char spec[32];
    int  is_auto = strcmp(r->device, "auto") == 0;
    if (comm && (is_auto || strcmp(r->device, "cuda") == 0)) {
        snprintf(spec, sizeof spec, "cuda:%d", comm_local_rank(comm));
        Dev *dev = dev_open(spec, opt, why);
        if (dev || (!is_auto && err_kind() != ERR_USER)) return dev;
        err_clear();
    }
    return dev_open(r->device, opt, why);
}

static int open_device(Setup *s, const Recipe *r, Comm *comm)
{
    static const char cache_env[] = "BRIM_TUNE_CACHE";
    const char       *cache       = getenv(cache_env);
    char              own[1024];
    DevOptions        opt = { .deterministic = r->deterministic,
                              .capture       = r->opt.graphs,
                              .tune          = switches_times(r),
                              .tf32          = r->precision == PRECISION_TF32,
                              .tune_cache    = cache ? cache : rundir_tune_cache(own, sizeof own),
                              .threads       = (int)r->threads };

    s->dev = open_for_rank(r, &opt, comm, &s->why);
    if (!s->dev) return recipe_blame_pending(r, "device");
    TRY(comm_attach(comm, s->dev)); /* before memory is counted: the library takes its own */
    TRY(s->dev->vt->info(s->dev, &s->info));
    if (!s->dev->vt->hints->is_late && r->threads > s->info.n_sm)
        log_warn("threads: %lld, but there are %d CPUs: so many threads are used", (long long)r->threads,
                 s->info.n_sm);
    return 0;
}

static void describe_machine(Setup *s)
{
    int            is_card = s->info.capability > 0;
    const Machine *known   = is_card ? machine_find(s->info.name) : NULL;
    if (known) {
        s->machine = *known;
    } else if (is_card) {
        s->machine = machine_unmeasured(s->info.name, s->info.capability, s->info.total_bytes);
    } else {
        s->machine = machine_cpu(s->info.n_sm, s->info.total_bytes);
    }
    s->machine.mem_bytes = s->info.total_bytes;
}

/* Says which step so many ranks could share, and how many ranks could share this one. */
static int refuse_share(const Recipe *r, int world)
{
    int64_t n = r->step_samples, micro = MAX(r->micro_batch, 1), unit = micro * world;
    int64_t step = MAX((n + unit / 2) / unit, 1) * unit;
    int     fit  = world - 1;
    while (fit > 1 && n % (fit * micro) != 0) fit--;
    if (strcmp(r->step_key, "step_tokens") == 0) step *= r->step_tokens / n;
    return recipe_blame(r, r->step_key,
                        "%lld sample%s cannot be shared by %d ranks in micro-batches of %lld "
                        "(%s=%lld would do, or %d rank%s)",
                        (long long)n, str_plural(n), world, (long long)micro, r->step_key, (long long)step,
                        fit, str_plural(fit));
}

int setup_share(Recipe *share, const Recipe *r, int world)
{
    int64_t n = r->step_samples, unit = MAX(r->micro_batch, 1) * world;
    *share = *r;
    share->step_samples /= world;
    if (world == 1 || n % unit == 0) return 0;
    return refuse_share(r, world);
}

/* Ranks that plan differently would wait for each other at different places. */
static int agree_choice(const Choice *c, Comm *comm)
{
    const JobChoice *own = &c->row[c->best].choice;
    int64_t a[] = { own->micro_batch, own->level, own->head_rows, own->compute, own->gives }, b[ARRAY_LEN(a)];
    memcpy(b, a, sizeof b);
    TRY(comm_broadcast(comm, b, sizeof b));
    if (memcmp(a, b, sizeof b) == 0) return 0;
    return err_set("rank %d chose micro-batch %lld and recompute %s, rank 0 %lld and %s: "
                   "their devices differ, so the recipe must name micro_batch, recompute and precision",
                   comm_rank(comm), (long long)a[0], recompute_level_name((RecomputeLevel)a[1]),
                   (long long)b[0], recompute_level_name((RecomputeLevel)b[1]));
}

/* The seconds since *last_s, which becomes now. */
static double lap(double *last_s)
{
    double before = *last_s;
    *last_s       = clock_now_s();
    return *last_s - before;
}

/* Everything before the first byte of device memory. */
static int plan_ranks(Setup *s, const Task *task, const Recipe *r, unsigned parts, Comm *comm)
{
    memset(s, 0, sizeof *s);
    Recipe share;
    double last_s = clock_now_s();
    TRY(setup_share(&share, r, comm_world(comm)));
    TRY(open_device(s, r, comm));
    s->took.device = lap(&last_s);
    describe_machine(s);
    size_t  margin  = device_margin(s->dev, &s->info);
    size_t  room    = s->info.free_bytes > margin ? s->info.free_bytes - margin : 0;
    int64_t least[] = { (int64_t)room, (int64_t)recipe_memory_limit(r, s->info.total_bytes) };
    TRY(comm_min_i64(comm, least, ARRAY_LEN(least)));
    ChooseFor what = { task, &share, s->dev->vt, s->info.capability, parts };
    TRY(choose_plan(&s->choice, &what, &s->machine, (ChooseRoom){ (size_t)least[0], (size_t)least[1] }));
    TRY(agree_choice(&s->choice, comm));
    JobChoice best = s->choice.row[s->choice.best].choice;
    if (best.gives)
        log_warn("give_way: %s in bf16, rounded at random, because the run fits only with recomputation "
                 "otherwise, or not at all",
                 choose_gives(best.gives));
    best.world = comm_world(comm);
    best.rank  = comm_rank(comm);
    TRY(build_create(&s->job, task, r, &best, parts, s->dev->vt));
    TRY(build_verify(s->job));
    s->job->comm = comm;
    s->took.plan = lap(&last_s);
    return switches_check(s->job, s->dev->vt, s->choice.why);
}

int setup_open(Setup *s, const Task *task, const Recipe *r, unsigned parts)
{
    return setup_open_ranks(s, task, r, parts, NULL);
}

int setup_plan(Setup *s, const Task *task, const Recipe *r, unsigned parts, Comm *comm)
{
    return plan_ranks(s, task, r, parts, comm);
}

static int bind_and_init(Setup *s)
{
    double last_s = clock_now_s();
    TRY(build_bind(s->job, s->dev));
    dev_seal(s->dev);
    s->took.memory = lap(&last_s);
    TRY(build_init(s->job));
    s->took.weights = lap(&last_s);
    return 0;
}

int setup_open_ranks(Setup *s, const Task *task, const Recipe *r, unsigned parts, Comm *comm)
{
    char line[80], bytes[32];
    TRY(plan_ranks(s, task, r, parts, comm));
    /* A CPU takes a minute to fill the memory of a large model. */
    snprintf(line, sizeof line, "preparing %s of memory and weights",
             str_bytes(bytes, sizeof bytes, (double)store_total_bytes(&s->job->store)));
    log_status(line);
    int rc = bind_and_init(s);
    log_status("");
    return rc;
}

void setup_close(Setup *s)
{
    build_destroy(s->job);
    if (s->dev) dev_close(s->dev);
    memset(s, 0, sizeof *s);
}

/* ---- what it amounts to ------------------------------------------------------------------------------- */

void setup_print_machine(const Setup *s, FILE *out)
{
    char host[128] = "", buf[32], buf2[32];
    gethostname(host, sizeof host - 1);
    fprintf(out,
            "host        %s\ndevice      %s\nchosen      %s\nversions    %s\n"
            "memory      %s, %s free at start\n",
            host, s->info.name, s->why, s->info.versions,
            str_bytes(buf, sizeof buf, (double)s->info.total_bytes),
            str_bytes(buf2, sizeof buf2, (double)s->info.free_bytes));
}
