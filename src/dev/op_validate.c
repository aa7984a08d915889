/* Checks the arguments of an op against its row of op_rules: one place for recording, tests and the null
 * backend. */
#include "dev/op_rules.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void op_check_fail(OpCheck *v, const char *fmt, ...)
{
    if (v->bad) return;
    va_list ap;
    int     at = snprintf(v->buf, v->n, "%s: ", op_table[v->kind].name);
    va_start(ap, fmt);
    if (at > 0 && (size_t)at < v->n) vsnprintf(v->buf + at, v->n - (size_t)at, fmt, ap);
    va_end(ap);
    v->bad = 1;
}

int op_computes_in(DType t) { return t == DT_F32 || t == DT_BF16 || t == DT_F16; }

static int is_float(DType t) { return op_computes_in(t) || t == DT_F64 || t == DT_E4M3 || t == DT_E5M2; }

static int is_elem(OpCheck *v, OpElem elem, DType t)
{
    static const DType one[] = { [ELEM_F32] = DT_F32, [ELEM_F64] = DT_F64,  [ELEM_I32] = DT_I32,
                                 [ELEM_I64] = DT_I64, [ELEM_STATE] = DT_U8, [ELEM_BYTE] = DT_U8 };
    switch (elem) {
    case ELEM_ANY: return 1;
    case ELEM_FLOAT: return is_float(t);
    case ELEM_ACT:
        if (v->act == DT_COUNT) v->act = t;
        return op_computes_in(t) && t == v->act;
    default: return t == one[elem];
    }
}

/* n rows, columns or elements (`what`) of an argument against a letter. */
static void check_dim(OpCheck *v, const char *arg, const char *what, char letter, int64_t n)
{
    int at_least = letter >= 'a' && letter <= 'z';
    if (letter == 0 || letter == ROWS_ANY) return;
    int64_t *dim = &v->dim[at_least ? letter - 'a' + 'A' : (unsigned char)letter];
    if (*dim == 0) *dim = letter >= '1' && letter <= '9' ? letter - '0' : n;
    if (at_least ? n >= *dim : n == *dim) return;
    op_check_fail(v, "%s has %lld %s, not %s%lld", arg, (long long)n, what, at_least ? "at least " : "",
                  (long long)*dim);
}

static void check_elem(OpCheck *v, const char *name, const ArgRule *r, const Tensor *t)
{
    if (!is_elem(v, r->elem, t->dtype)) {
        if (r->elem == ELEM_ACT && op_computes_in(t->dtype)) {
            op_check_fail(v, "%s is %s: its activations need one dtype, %s", name, dtype_name(t->dtype),
                          dtype_name(v->act));
        } else {
            op_check_fail(v, "%s cannot be %s", name, dtype_name(t->dtype));
        }
    }
    if (r->elem == ELEM_STATE && tensor_numel(t) != (int64_t)sizeof(StepState))
        op_check_fail(v, "%s is no StepState", name);
}

static void check_arg(OpCheck *v, const char *name, const ArgRule *r, const Tensor *t)
{
    check_elem(v, name, r, t);
    switch (r->rows) {
    case ROWS_VEC:
    case ROWS_START:
    case ROWS_COUNT:
        if (r->rows != ROWS_COUNT && !tensor_is_contiguous(t)) op_check_fail(v, "%s has gaps", name);
        if (r->rows == ROWS_START && tensor_numel(t) == 1) return;
        check_dim(v, name, "elements", r->cols, tensor_numel(t));
        return;
    default:
        check_dim(v, name, "rows", r->rows, tensor_rows(t));
        check_dim(v, name, "columns", r->cols, tensor_cols(t));
    }
}

static void check_slot(OpCheck *v, size_t offset, const OpArgs *args)
{
    int slot;
    memcpy(&slot, (const char *)args + offset, sizeof slot);
    if (slot < 0 || slot >= LOSS_SLOTS) op_check_fail(v, "slot %d is not in 0..%d", slot, LOSS_SLOTS - 1);
}

int op_has_rule(OpKind kind)
{
    const OpRule *r = &op_rules[kind];
    for (int i = 0; i < OP_MAX_TENSOR; i++) {
        if ((r->arg[i].rows != 0) != (i < op_table[kind].n_tensor)) return 0;
    }
    return 1;
}

const char *op_validate(OpKind kind, const OpArgs *args, char *buf, size_t n)
{
    const OpRow  *row  = &op_table[kind];
    const OpRule *rule = &op_rules[kind];
    OpCheck       v    = { .kind = kind, .act = DT_COUNT, .buf = buf, .n = n };
    for (int i = 0; i < row->n_tensor; i++) {
        if (!args->t[i] && !(row->arg[i].access & ARG_OPTIONAL))
            op_check_fail(&v, "argument %s is missing", row->arg[i].name);
    }
    if (rule->dims && !v.bad) rule->dims(&v, args);
    for (int i = 0; i < row->n_tensor && !v.bad; i++) {
        if (args->t[i]) check_arg(&v, row->arg[i].name, &rule->arg[i], args->t[i]);
    }
    if (rule->slot) check_slot(&v, rule->slot, args);
    if (rule->more && !v.bad) rule->more(&v, args);
    return v.bad ? buf : NULL;
}
