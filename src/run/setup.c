#include "run/setup.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a process needs beside its slabs: context, modules and library handles are there already when free memory is
 * read; this is for what loads lazily. */
static size_t device_margin(const Dev *dev, const DevInfo *info)
{
    if (dev->vt->kind == DEV_CUDA) return 192u << 20;
    return info->free_bytes / 5; /* the CPU shares its memory with everybody */
}

/* A rank takes the GPU of its number on this machine. Launchers that show each process only its own GPU make that number
 * meaningless: then the first one it is. */
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
    DevOptions        opt         = { .deterministic = r->deterministic,
                                      .capture       = r->opt.graphs,
                                      .tune          = r->opt.tune,
                                      .tf32          = r->precision == PRECISION_TF32,
                                      .tune_cache    = cache ? cache : "runs/tune.txt",
                                      .threads       = (int)r->threads };

    s->dev = open_for_rank(r, &opt, comm, &s->why);
    if (!s->dev) return -1;
    TRY(comm_attach(comm, s->dev)); /* before memory is counted: the library takes its own */
    return s->dev->vt->info(s->dev, &s->info);
}

static void describe_machine(Setup *s)
{
    const Machine *known = s->dev->vt->kind == DEV_CUDA ? machine_find(s->info.name) : NULL;
    if (known) {
        s->machine = *known;
    } else if (s->dev->vt->kind == DEV_CUDA) {
        s->machine            = *machine_find("a100"); /* only ranks candidates */
        s->machine.name       = s->info.name;
        s->machine.peak_flops = 0;
    } else {
        s->machine = machine_cpu(s->info.n_sm, s->info.total_bytes);
    }
    s->machine.mem_bytes = s->info.total_bytes;
}

/* What one rank has to do of a step: the recipe that its plan is chosen for. */
static int rank_share(Recipe *share, const Recipe *r, int world)
{
    int64_t seqs = r->step_tokens / r->model.context, unit = MAX(r->micro_batch, 1) * world;
    *share = *r;
    share->step_tokens /= world;
    if (world == 1 || seqs % unit == 0) return 0;
    return err_user("%s: step_tokens: %lld sequences of %lld tokens cannot be shared "
                    "by %d ranks in micro-batches of %lld",
                    r->file, (long long)seqs, (long long)r->model.context, world,
                    (long long)MAX(r->micro_batch, 1));
}

/* Ranks that plan differently would wait for each other at different places. */
static int agree_choice(const Choice *c, Comm *comm)
{
    const BuildChoice *own = &c->row[c->best].choice;
    int64_t            a[] = { own->micro_batch, own->level, own->head_rows, own->compute }, b[4];
    memcpy(b, a, sizeof b);
    TRY(comm_broadcast(comm, b, sizeof b));
    if (memcmp(a, b, sizeof b) == 0) return 0;
    return err_set("rank %d chose micro-batch %lld and recompute %s, rank 0 %lld and %s: "
                   "their devices differ, so the recipe must name micro_batch, recompute and precision",
                   comm_rank(comm), (long long)a[0], recompute_name((RecomputeLevel)a[1]), (long long)b[0],
                   recompute_name((RecomputeLevel)b[1]));
}

/* Everything before the first byte of device memory. */
static int plan_ranks(Setup *s, const Recipe *r, unsigned parts, Comm *comm)
{
    memset(s, 0, sizeof *s);
    Recipe share;
    TRY(rank_share(&share, r, comm_world(comm)));
    TRY(open_device(s, r, comm));
    describe_machine(s);
    size_t  margin = device_margin(s->dev, &s->info);
    size_t  room   = s->info.free_bytes > margin ? s->info.free_bytes - margin : 0;
    int64_t budget = (int64_t)MIN(room, recipe_memory_limit(r, s->info.total_bytes));
    TRY(comm_min_i64(comm, &budget, 1));
    TRY(choose_plan(&s->choice, &share, s->dev->vt, &s->machine, s->info.capability, (size_t)budget, parts));
    TRY(agree_choice(&s->choice, comm));
    BuildChoice best = s->choice.row[s->choice.best].choice;
    best.world       = comm_world(comm);
    TRY(build_create(&s->build, r, &best, parts, s->dev->vt));
    s->build->comm = comm;
    return setup_check_required(s, r);
}

int setup_open(Setup *s, const Recipe *r, unsigned parts) { return setup_open_ranks(s, r, parts, NULL); }

int setup_plan(Setup *s, const Recipe *r, unsigned parts) { return plan_ranks(s, r, parts, NULL); }

int setup_open_ranks(Setup *s, const Recipe *r, unsigned parts, Comm *comm)
{
    double t0 = clock_now_s();
    TRY(plan_ranks(s, r, parts, comm));
    TRY(build_bind(s->build, s->dev));
    dev_seal(s->dev);
    TRY(build_init(s->build));
    s->opened_s = clock_now_s() - t0;
    return 0;
}

void setup_close(Setup *s)
{
    if (s->build) build_destroy(s->build);
    if (s->dev) dev_close(s->dev);
    memset(s, 0, sizeof *s);
}

/* ---- switches ---------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name; /* as in the recipe: opt.NAME, and in require */
    size_t      field;
    OpKind      op; /* must exist on the backend; OP_COUNT: always */
    unsigned    backends;
    const char *what;
    unsigned    fuse; /* FUSE_* bit that the backend must have, 0: none */
} Switch;

enum { ON_CPU = 1u << DEV_CPU, ON_CUDA = 1u << DEV_CUDA, ON_ALL = ON_CPU | ON_CUDA };

static const Switch switches[] = {
    { "add_norm", offsetof(RecipeOpt, add_norm), OP_ADD_NORM_FWD, ON_ALL,
      "residual add fused with the norm after it", 0 },
    { "norm_bwd", offsetof(RecipeOpt, norm_bwd), OP_NORM_BWD, ON_ALL,
      "norm gradients, residual add and bias gradient in one pass", 0 },
    { "xent", offsetof(RecipeOpt, xent), OP_XENT, ON_ALL,
      "cross-entropy and its gradient in one pass, in place", 0 },
    { "act_bias", offsetof(RecipeOpt, act_bias), OP_ACT_BIAS_BWD, ON_ALL,
      "activation and bias gradient in one pass", 0 },
    { "linear_act", offsetof(RecipeOpt, linear_act), OP_LINEAR_ACT_FWD, ON_ALL,
      "activation inside the product", 0 },
    { "linear_act_bwd", offsetof(RecipeOpt, linear_act_bwd), OP_LINEAR_ACT_BWD, ON_ALL,
      "activation gradient inside the product before it", FUSE_LINEAR_ACT_BWD },
    { "linear_glu_fwd", offsetof(RecipeOpt, linear_glu_fwd), OP_LINEAR_GLU_FWD, ON_ALL,
      "gate inside the product", FUSE_LINEAR_GLU_FWD },
    { "linear_glu_bwd", offsetof(RecipeOpt, linear_glu_bwd), OP_LINEAR_GLU_BWD, ON_ALL,
      "gate's gradient inside the product before it", FUSE_LINEAR_GLU_BWD },
    { "linear_dw_bias", offsetof(RecipeOpt, linear_dw_bias), OP_LINEAR_DW, ON_ALL,
      "bias gradient inside the weight gradient's product", FUSE_LINEAR_DW_BIAS },
    { "chunk_head", offsetof(RecipeOpt, chunk_head), OP_COUNT, ON_ALL,
      "logits of a few thousand rows at a time", 0 },
    { "flash", offsetof(RecipeOpt, flash), OP_ATTN_FWD, ON_ALL, "attention that never stores T x T", 0 },
    { "graphs", offsetof(RecipeOpt, graphs), OP_COUNT, ON_CUDA, "the step captured into CUDA graphs", 0 },
    { "tune", offsetof(RecipeOpt, tune), OP_COUNT, ON_CUDA, "matrix-product algorithms timed on this card",
      0 },
    { "prefetch", offsetof(RecipeOpt, prefetch), OP_COUNT, ON_ALL, "batches read ahead by threads", 0 },
};

static int switch_refused(const DevVt *vt, const Switch *w, char *buf, size_t n)
{
    buf[0] = '\0';
    if (!(w->backends & (1u << vt->kind))) {
        snprintf(buf, n, "not on the %s backend", vt->name);
    } else if (w->op != OP_COUNT && !dev_has(vt, w->op)) {
        snprintf(buf, n, "the %s backend has no %s", vt->name, op_table[w->op].name);
    } else if (w->fuse & ~vt->fuses) {
        snprintf(buf, n, "the %s backend gains nothing by it", vt->name);
    }
    return buf[0] != '\0';
}

int setup_switch_refused(const DevVt *vt, const char *name, char *buf, size_t n)
{
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        if (strcmp(switches[i].name, name) == 0) return switch_refused(vt, &switches[i], buf, n);
    }
    buf[0] = '\0';
    return 0;
}

static int switch_is_on(const Recipe *r, const Switch *w)
{
    int on;
    memcpy(&on, (const char *)&r->opt + w->field, sizeof on);
    return on;
}

/* "on", "off", or the reason for a refusal. */
static const char *switch_state(const Setup *s, const Recipe *r, const Switch *w, char *buf, size_t n)
{
    char why[80];
    if (!switch_is_on(r, w)) return "off";
    if (!switch_refused(s->dev->vt, w, why, sizeof why)) return "on";
    snprintf(buf, n, "refused: %s", why);
    return buf;
}

void setup_print_switches(const Setup *s, const Recipe *r, FILE *out)
{
    char why[80];
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        const Switch *w       = &switches[i];
        int           refused = switch_is_on(r, w) && switch_refused(s->dev->vt, w, why, sizeof why);
        const char   *is      = refused ? "refused" : switch_is_on(r, w) ? "on" : "off";
        fprintf(out, "  opt.%-14s %-8s %s%s%s\n", w->name, is, w->what, refused ? ": " : "",
                refused ? why : "");
    }
}

const char *setup_precision(const Setup *s, const Recipe *r)
{
    if (s->choice.compute == DT_BF16) return "bf16";
    return r->precision == PRECISION_TF32 ? "tf32" : "fp32";
}

/* 1: item is a precision, and the one in force. 0: it is none. Negative after err_user(). */
static int check_precision(const Setup *s, const Recipe *r, const char *item)
{
    static const char *const names[] = { "fp32", "tf32", "bf16", "fp16", "fp8" };
    for (int i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(names[i], item) != 0) continue;
        if (strcmp(setup_precision(s, r), item) == 0) return 1;
        return err_user("%s: require: %s is off: the precision is %s", r->file, item, s->choice.why);
    }
    return 0;
}

int setup_check_required(const Setup *s, const Recipe *r)
{
    const char *list = r->require;
    char        item[64], buf[96];
    while (str_list_next(&list, item, sizeof item) > 0) {
        int is_precision = check_precision(s, r, item);
        if (is_precision < 0) return -1;
        if (is_precision) continue;
        const Switch *found = NULL;
        StrNearest    near  = str_nearest_begin(item);
        for (int i = 0; i < ARRAY_LEN(switches); i++) {
            str_nearest_offer(&near, switches[i].name);
            if (strcmp(switches[i].name, item) == 0) found = &switches[i];
        }
        if (!found) {
            return err_user("%s: require: there is no optimisation '%s'%s%s%s", r->file, item,
                            near.best ? " (did you mean " : "", near.best ? near.best : "",
                            near.best ? "?)" : "");
        }
        const char *state = switch_state(s, r, found, buf, sizeof buf);
        if (strcmp(state, "on") != 0) return err_user("%s: require: %s is %s", r->file, item, state);
    }
    return 0;
}

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
