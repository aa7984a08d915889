#include "run/switches.h"

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "dev/glu.h"

#include <string.h>

enum { REASON = 128 };

/* The number of an optimisation: its place in RecipeOpt, which is all ints. */
#define FIELD(name) (offsetof(RecipeOpt, name) / sizeof(int))

typedef struct {
    int    field;
    OpKind op;    /* that it puts into the list, and that the backend must have; OP_COUNT: none */
    OpKind gated; /* what it puts there for a gate; 0: nothing else */
    int (*is)(const Op *op);
    OpKind   part[2];               /* recorded ops that it is made of, for those with an op */
    unsigned fuse;                  /* FUSE_* bit that the backend must have, 0: none */
    int (*hint)(const DevHints *h); /* what the backend must do; NULL: nothing */
    const char *needs;              /* why else it may be absent; NULL: as part[] says */
} Switch;

static int has_db(const Op *op) { return op->args.linear_dw.db != NULL; }

static int has_table(const Op *op) { return op->args.attn_bwd.table != NULL; }

static int leaves_slope(const Op *op)
{
    return op->kind == OP_LINEAR_GLU_FWD ? op->args.linear_glu_fwd.slope == GLU_SLOPE
                                         : op->args.linear_act_fwd.slope;
}

static int makes_first(const Op *op) { return op->args.quant.from != QUANT_PLAIN || op->args.quant.db; }

static int captures(const DevHints *h) { return h->captures; }

static int times(const DevHints *h) { return h->times; }

static int keeps_no_weights(const Op *op) { return op->args.attn_fwd.p == NULL; }

/* What the list must have for an optimisation to be "on". Names and descriptions: OPT_LIST. */
/* clang-format off */
static const Switch switches[] = {
    { FIELD(add_norm), .op = OP_ADD_NORM_FWD, .part = { OP_ADD, OP_NORM_FWD } },
    { FIELD(norm_bwd), .op = OP_NORM_BWD, .part = { OP_NORM_DX, OP_NORM_DW } },
    { FIELD(xent), .op = OP_XENT, .part = { OP_XENT_FWD, OP_XENT_DX } },
    { FIELD(act_bias), .op = OP_ACT_BIAS_BWD, .part = { OP_ACT_DX, OP_BIAS_DW } },
    { FIELD(linear_act), .op = OP_LINEAR_ACT_FWD, .part = { OP_LINEAR_FWD, OP_ACT_FWD } },
    { FIELD(linear_act_bwd), .op = OP_LINEAR_ACT_BWD, .part = { OP_LINEAR_DX, OP_ACT_DX },
      .fuse = FUSE_LINEAR_ACT_BWD },
    { FIELD(act_slope), .op = OP_LINEAR_ACT_FWD, .gated = OP_LINEAR_GLU_FWD, .is = leaves_slope,
      .part = { OP_LINEAR_FWD, OP_LINEAR_DX }, .fuse = FUSE_ACT_SLOPE,
      .needs = "it needs linear_act, linear_act_bwd (gated: linear_glu_fwd, linear_glu_bwd) and an "
               "activation that is not computed again" },
    { FIELD(linear_glu_fwd), .op = OP_LINEAR_GLU_FWD, .part = { OP_LINEAR_FWD, OP_GLU_FWD },
      .fuse = FUSE_LINEAR_GLU_FWD },
    { FIELD(linear_glu_bwd), .op = OP_LINEAR_GLU_BWD, .part = { OP_LINEAR_DX, OP_GLU_DX },
      .fuse = FUSE_LINEAR_GLU_BWD },
    { FIELD(linear_dw_bias), .op = OP_LINEAR_DW, .is = has_db, .part = { OP_LINEAR_DW, OP_BIAS_DW },
      .fuse = FUSE_LINEAR_DW_BIAS },
    { FIELD(attn_rope), .op = OP_ATTN_BWD, .is = has_table, .part = { OP_ATTN_BWD, OP_ROPE } },
    { FIELD(quant), .op = OP_QUANT, .is = makes_first, .part = { OP_QUANT, OP_LINEAR_FWD },
      .needs = "no product in fp8 reads an activation, a gate or a loss gradient" },
    { FIELD(chunk_head), .op = OP_COUNT },
    { FIELD(flash), .op = OP_ATTN_FWD, .is = keeps_no_weights, .part = { OP_ATTN_FWD, OP_ATTN_BWD } },
    { FIELD(graphs), .op = OP_COUNT, .hint = captures },
    { FIELD(tune), .op = OP_COUNT, .hint = times },
    { FIELD(prefetch), .op = OP_COUNT },
};
/* clang-format on */

static const char *const opt_name[] = {
#define X(name, what) [FIELD(name)] = #name,
    OPT_LIST(X)
#undef X
};

static const char *const opt_what[] = {
#define X(name, what) [FIELD(name)] = what,
    OPT_LIST(X)
#undef X
};
_Static_assert(ARRAY_LEN(switches) == ARRAY_LEN(opt_name), "a row for each optimisation");

/* ---- what the backend allows -------------------------------------------------------------------------- */

static int is_refused(const DevVt *vt, const Switch *w, char *buf, size_t n)
{
    buf[0] = '\0';
    if (w->hint && !w->hint(vt->hints)) {
        snprintf(buf, n, "not on the %s backend", vt->name);
    } else if (w->op != OP_COUNT && !dev_has(vt, w->op)) {
        snprintf(buf, n, "the %s backend has no %s", vt->name, op_table[w->op].name);
    } else if (w->fuse & ~vt->fuses) {
        snprintf(buf, n, "the %s backend gains nothing by it", vt->name);
    }
    return buf[0] != '\0';
}

int switches_refused(const DevVt *vt, const char *name, char *buf, size_t n)
{
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        if (strcmp(opt_name[switches[i].field], name) == 0) return is_refused(vt, &switches[i], buf, n);
    }
    buf[0] = '\0';
    return 0;
}

int switches_times(const Recipe *r) { return r->opt.tune && !r->deterministic; }

/* ---- what the list has -------------------------------------------------------------------------------- */

/* What is looked for in the programs of a step. A row that only differs by its sums is not counted again. */
typedef struct {
    const Job *job;
    OpKind     kind;
    int (*is)(const Op *op);
    int n, n_recorded, has_chunks;
} Count;

static void count_row(void *ctx, const ScheduleRow *row, double times)
{
    Count      *c = ctx;
    const Prog *p = c->job->prog[row->prog];
    if (row->sums) return;
    c->n_recorded += prog_n_recorded(p, c->kind);
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op *op = prog_op(p, i);
        c->n += op->kind == c->kind && (!c->is || c->is(op));
        c->has_chunks |= op->chunk > 0;
    }
}

static Count count_ops(const Job *j, OpKind kind, int (*is)(const Op *op))
{
    Count c = { .job = j, .kind = kind, .is = is };
    schedule_each(&j->step, count_row, &c);
    return c;
}

/* Why none of its ops is in the list of a backend that has them. */
static void say_why_absent(const Job *j, const DevVt *vt, const Switch *w, char *buf, size_t n)
{
    RecipeOpt opt = job_lower_options(&j->recipe, vt);
    int       on, missing = -1, taken = -1;
    memcpy(&on, (const int *)&opt + w->field, sizeof on);
    for (int i = ARRAY_LEN(w->part) - 1; i >= 0; i--) {
        Count c = count_ops(j, w->part[i], NULL);
        if (c.n_recorded == 0) missing = i;
        if (c.n == 0) taken = i;
    }
    if (missing >= 0) {
        snprintf(buf, n, "this model has no %s", op_table[w->part[missing]].name);
    } else if (!on) {
        snprintf(buf, n, "it would change bits, and the run is deterministic");
    } else if (w->needs) {
        snprintf(buf, n, "%s", w->needs);
    } else if (taken >= 0) {
        snprintf(buf, n, "every %s is in another fused op", op_table[w->part[taken]].name);
    } else {
        snprintf(buf, n, "no %s and %s meet in a form that it takes", op_table[w->part[0]].name,
                 op_table[w->part[1]].name);
    }
}

typedef struct {
    const char *word; /* "on", "off", "not used" or "refused" */
    char        why[REASON];
    int         n_op; /* in the training step, where it is ops */
} State;

static State is_not_used(const char *why)
{
    State s = { .word = "not used" };
    str_copy(s.why, sizeof s.why, why);
    return s;
}

static State switch_state(const Job *j, const DevVt *vt, const Switch *w)
{
    State s = { .word = "on" };
    int   on;
    memcpy(&on, (const int *)&j->recipe.opt + w->field, sizeof on);
    if (!on) return (State){ .word = "off" };
    if (is_refused(vt, w, s.why, sizeof s.why)) {
        s.word = "refused";
        return s;
    }
    if (!job_trains(j)) return s; /* no training step: permitted is all that can be said */
    if (w->field == FIELD(chunk_head) && !count_ops(j, OP_COUNT, NULL).has_chunks)
        return is_not_used("one chunk holds all rows of a micro-batch");
    if (w->field == FIELD(tune) && !switches_times(&j->recipe))
        return is_not_used("a deterministic run times nothing");
    if (w->op == OP_COUNT) return s;
    s.n_op = count_ops(j, w->op, w->is).n + (w->gated ? count_ops(j, w->gated, w->is).n : 0);
    if (s.n_op > 0) return s;
    s.word = "not used";
    say_why_absent(j, vt, w, s.why, sizeof s.why);
    return s;
}

/* ---- for others --------------------------------------------------------------------------------------- */

void switches_print(const Job *j, const DevVt *vt, FILE *out)
{
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        const Switch *w = &switches[i];
        State         s = switch_state(j, vt, w);
        fprintf(out, "  opt.%-14s %-8s %s", opt_name[w->field], s.word, opt_what[w->field]);
        if (s.why[0]) fprintf(out, ": %s", s.why);
        if (s.n_op > 0) fprintf(out, " (%d op%s)", s.n_op, s.n_op > 1 ? "s" : "");
        fprintf(out, "\n");
    }
}

/* Negative after err_user() unless opt.NAME is on. */
static int require_on(const Job *j, const DevVt *vt, const char *name)
{
    const Switch *found = NULL;
    char          hint[80];
    StrNearest    near = str_nearest_begin(name);
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        str_nearest_offer(&near, opt_name[i]);
        if (strcmp(opt_name[switches[i].field], name) == 0) found = &switches[i];
    }
    if (!found) {
        return recipe_blame(&j->recipe, "require", "%s: no such optimisation%s", name,
                            str_nearest_hint(&near, NULL, hint, sizeof hint));
    }
    State s = switch_state(j, vt, found);
    if (strcmp(s.word, "on") == 0) return 0;
    return recipe_blame(&j->recipe, "require", "%s is %s%s%s", name, s.word, s.why[0] ? ": " : "", s.why);
}

/* ---- precision ---------------------------------------------------------------------------------------- */

typedef struct {
    const Job *job;
    double     fp8, all; /* FLOPs of a step's products, the optimizer's left out */
} Products;

static void add_products(void *ctx, const ScheduleRow *row, double times)
{
    Products   *c = ctx;
    const Prog *p = c->job->prog[row->prog];
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op   *op    = prog_op(p, i);
        MachineUnit unit  = op_table[op->kind].unit;
        double      flops = times * op_flops(op->kind, &op->args);
        if (op_table[op->kind].aside) continue;
        if (unit == UNIT_FP8) c->fp8 += flops;
        if (unit == UNIT_FP8 || unit == UNIT_GEMM) c->all += flops;
    }
}

/* The share of a step's products, by FLOPs, that is in fp8. */
static double fp8_share(const Job *j)
{
    Products c = { .job = j };
    schedule_each(&j->step, add_products, &c);
    return c.all > 0 ? c.fp8 / c.all : 0;
}

/* Why a product may not be in fp8. */
static const char *fp8_wants(const Recipe *r)
{
    return r->fp8.wide[0] || !r->fp8.head
               ? "fp8.wide and fp8.head leave some out, and fp8 wants sides that are multiples of 16"
               : "fp8 wants sides that are multiples of 16";
}

/* 1: item is a precision, and the one in force. 0: it is none. Negative after err_user(). */
static int require_precision(const Job *j, const char *item, const char *why)
{
    static const char *const names[] = { "fp32", "tf32", "bf16", "fp16", "fp8" };
    const Recipe            *r       = &j->recipe;
    int                      i       = 0;
    while (i < ARRAY_LEN(names) && strcmp(names[i], item) != 0) i++;
    if (i == ARRAY_LEN(names)) return 0;
    if (strcmp(job_precision(j), item) != 0)
        return recipe_blame(r, "require", "%s is off: the precision is %s", item, why);
    if (j->choice.fp8 && j->choice.compute == DT_F32)
        return recipe_blame(r, "require", "fp8 is refused: the CPU gains nothing by it");
    if (j->choice.fp8 && job_trains(j) && fp8_share(j) == 0)
        return recipe_blame(r, "require", "fp8 is not used: no product of the step is in fp8; %s",
                            fp8_wants(r));
    return 1;
}

int switches_check(const Job *j, const DevVt *vt, const char *why)
{
    const char *list = j->recipe.require;
    char        item[64];
    while (str_list_next(&list, item, sizeof item) > 0) {
        int is_precision = require_precision(j, item, why);
        if (is_precision < 0) return -1;
        if (!is_precision) TRY(require_on(j, vt, item));
    }
    if (j->choice.fp8 && job_trains(j) && fp8_share(j) < 0.5)
        log_warn("precision: fp8: only %.0f %% of the step's products are in fp8; %s", 100 * fp8_share(j),
                 fp8_wants(&j->recipe));
    return 0;
}
