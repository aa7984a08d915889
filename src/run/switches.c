#include "run/switches.h"

#include "base/err.h"
#include "base/str.h"

#include <string.h>

enum { ON_CPU = 1u << DEV_CPU, ON_CUDA = 1u << DEV_CUDA, ON_ALL = ON_CPU | ON_CUDA };
enum { REASON = 128 };

typedef struct {
    const char *name; /* as in the recipe: opt.NAME, and in require */
    size_t      field;
    unsigned    backends;
    const char *what;
    OpKind      op;    /* that it puts into the list, and that the backend must have; OP_COUNT: none */
    OpKind      gated; /* what it puts there for a gate; 0: nothing else */
    int (*is)(const Op *op);
    OpKind      part[2]; /* recorded ops that it is made of, for those with an op */
    size_t      lower;   /* its offset in LowerOptions, for those that lowering makes */
    unsigned    fuse;    /* FUSE_* bit that the backend must have, 0: none */
    const char *needs;   /* why else it may be absent; NULL: as part[] says */
} Switch;

static int has_db(const Op *op) { return op->args.linear_dw.db != NULL; }

static int has_table(const Op *op) { return op->args.attn_bwd.table != NULL; }

static int leaves_slope(const Op *op)
{
    return op->kind == OP_LINEAR_GLU_FWD ? op->args.linear_glu_fwd.slope : op->args.linear_act_fwd.slope;
}

static int keeps_no_weights(const Op *op) { return op->args.attn_fwd.p == NULL; }

/* A row's name and field, said once. */
#define KEY(key) #key, offsetof(RecipeOpt, key)

static const Switch switches[] = {
    { KEY(add_norm), ON_ALL, "residual add fused with the norm after it", .op = OP_ADD_NORM_FWD,
      .part = { OP_ADD, OP_NORM_FWD }, .lower = offsetof(LowerOptions, add_norm) },
    { KEY(norm_bwd), ON_ALL, "norm gradients, residual add and bias gradient in one pass", .op = OP_NORM_BWD,
      .part = { OP_NORM_DX, OP_NORM_DW }, .lower = offsetof(LowerOptions, norm_bwd) },
    { KEY(xent), ON_ALL, "cross-entropy and its gradient in one pass, in place", .op = OP_XENT,
      .part = { OP_XENT_FWD, OP_XENT_DX }, .lower = offsetof(LowerOptions, xent) },
    { KEY(act_bias), ON_ALL, "activation and bias gradient in one pass", .op = OP_ACT_BIAS_BWD,
      .part = { OP_ACT_DX, OP_BIAS_DW }, .lower = offsetof(LowerOptions, act_bias) },
    { KEY(linear_act), ON_ALL, "activation inside the product", .op = OP_LINEAR_ACT_FWD,
      .part = { OP_LINEAR_FWD, OP_ACT_FWD }, .lower = offsetof(LowerOptions, linear_act) },
    { KEY(linear_act_bwd), ON_ALL, "activation gradient inside the product before it",
      .op = OP_LINEAR_ACT_BWD, .part = { OP_LINEAR_DX, OP_ACT_DX },
      .lower = offsetof(LowerOptions, linear_act_bwd), .fuse = FUSE_LINEAR_ACT_BWD },
    { KEY(act_slope), ON_ALL, "slope of an activation or gate left for its gradient", .op = OP_LINEAR_ACT_FWD,
      .gated = OP_LINEAR_GLU_FWD, .is = leaves_slope, .part = { OP_LINEAR_FWD, OP_LINEAR_DX },
      .lower = offsetof(LowerOptions, act_slope), .fuse = FUSE_ACT_SLOPE,
      .needs =
          "it needs linear_act, linear_act_bwd (gated: linear_glu_fwd, linear_glu_bwd) and an activation "
          "that is not computed again" },
    { KEY(linear_glu_fwd), ON_ALL, "gate inside the product", .op = OP_LINEAR_GLU_FWD,
      .part = { OP_LINEAR_FWD, OP_GLU_FWD }, .lower = offsetof(LowerOptions, linear_glu_fwd),
      .fuse = FUSE_LINEAR_GLU_FWD },
    { KEY(linear_glu_bwd), ON_ALL, "gate's gradient inside the product before it", .op = OP_LINEAR_GLU_BWD,
      .part = { OP_LINEAR_DX, OP_GLU_DX }, .lower = offsetof(LowerOptions, linear_glu_bwd),
      .fuse = FUSE_LINEAR_GLU_BWD },
    { KEY(linear_dw_bias), ON_ALL, "bias gradient inside the weight gradient's product", .op = OP_LINEAR_DW,
      .is = has_db, .part = { OP_LINEAR_DW, OP_BIAS_DW }, .lower = offsetof(LowerOptions, linear_dw_bias),
      .fuse = FUSE_LINEAR_DW_BIAS },
    { KEY(attn_rope), ON_ALL, "rotary positions undone inside attention's gradient", .op = OP_ATTN_BWD,
      .is = has_table, .part = { OP_ATTN_BWD, OP_ROPE }, .lower = offsetof(LowerOptions, attn_rope) },
    { KEY(chunk_head), ON_ALL, "logits of a share of the rows at a time", .op = OP_COUNT },
    { KEY(flash), ON_ALL, "attention that never stores T x T", .op = OP_ATTN_FWD, .is = keeps_no_weights,
      .part = { OP_ATTN_FWD, OP_ATTN_BWD } },
    { KEY(graphs), ON_CUDA, "the step captured into CUDA graphs", .op = OP_COUNT },
    { KEY(tune), ON_CUDA, "matrix-product algorithms timed on this card", .op = OP_COUNT },
    { KEY(prefetch), ON_ALL, "batches read ahead by threads", .op = OP_COUNT },
};

/* ---- what the backend allows ------------------------------------------------------------------------------- */

static int is_refused(const DevVt *vt, const Switch *w, char *buf, size_t n)
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

int switches_refused(const DevVt *vt, const char *name, char *buf, size_t n)
{
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        if (strcmp(switches[i].name, name) == 0) return is_refused(vt, &switches[i], buf, n);
    }
    buf[0] = '\0';
    return 0;
}

int switches_times(const Recipe *r) { return r->opt.tune && !r->deterministic; }

/* ---- what the list has ------------------------------------------------------------------------------------- */

static int count_ops(const Prog *p, OpKind kind, int (*is)(const Op *op))
{
    int n = 0;
    for (int i = 0; i < prog_n_op(p); i++) {
        const Op *op = prog_op(p, i);
        n += op->kind == kind && (!is || is(op));
    }
    return n;
}

static int has_chunks(const Prog *p)
{
    for (int i = 0; i < prog_n_op(p); i++) {
        if (prog_op(p, i)->chunk > 0) return 1;
    }
    return 0;
}

/* Why none of its ops is in the list of a backend that has them. */
static void say_why_absent(const Build *b, const DevVt *vt, const Switch *w, char *buf, size_t n)
{
    LowerOptions opt = build_lower_options(&b->recipe, vt);
    int          on, missing = -1, taken = -1;
    memcpy(&on, (const char *)&opt + w->lower, sizeof on);
    for (int i = ARRAY_LEN(w->part) - 1; i >= 0; i--) {
        if (prog_n_recorded(b->micro, w->part[i]) == 0) missing = i;
        if (count_ops(b->micro, w->part[i], NULL) == 0) taken = i;
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

static State switch_state(const Build *b, const DevVt *vt, const Switch *w)
{
    State s = { .word = "on" };
    int   on;
    memcpy(&on, (const char *)&b->recipe.opt + w->field, sizeof on);
    if (!on) return (State){ .word = "off" };
    if (is_refused(vt, w, s.why, sizeof s.why)) {
        s.word = "refused";
        return s;
    }
    if (!b->micro) return s; /* no training step: permitted is all that can be said */
    if (w->field == offsetof(RecipeOpt, chunk_head) && !has_chunks(b->micro))
        return is_not_used("one chunk holds all rows of a micro-batch");
    if (w->field == offsetof(RecipeOpt, tune) && !switches_times(&b->recipe))
        return is_not_used("a deterministic run times nothing");
    if (w->op == OP_COUNT) return s;
    s.n_op = count_ops(b->micro, w->op, w->is) + (w->gated ? count_ops(b->micro, w->gated, w->is) : 0);
    if (s.n_op > 0) return s;
    s.word = "not used";
    say_why_absent(b, vt, w, s.why, sizeof s.why);
    return s;
}

/* ---- for others -------------------------------------------------------------------------------------------- */

void switches_print(const Build *b, const DevVt *vt, FILE *out)
{
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        const Switch *w = &switches[i];
        State         s = switch_state(b, vt, w);
        fprintf(out, "  opt.%-14s %-8s %s", w->name, s.word, w->what);
        if (s.why[0]) fprintf(out, ": %s", s.why);
        if (s.n_op > 0) fprintf(out, " (%d op%s)", s.n_op, s.n_op > 1 ? "s" : "");
        fprintf(out, "\n");
    }
}

int switches_require(const Build *b, const DevVt *vt, const char *name)
{
    const Switch *found = NULL;
    StrNearest    near  = str_nearest_begin(name);
    for (int i = 0; i < ARRAY_LEN(switches); i++) {
        str_nearest_offer(&near, switches[i].name);
        if (strcmp(switches[i].name, name) == 0) found = &switches[i];
    }
    if (!found) {
        return recipe_blame(&b->recipe, "require", "there is no optimisation '%s'%s%s%s", name,
                            near.best ? " (did you mean " : "", near.best ? near.best : "",
                            near.best ? "?)" : "");
    }
    State s = switch_state(b, vt, found);
    if (strcmp(s.word, "on") == 0) return 0;
    return recipe_blame(&b->recipe, "require", "%s is %s%s%s", name, s.word, s.why[0] ? ": " : "", s.why);
}
