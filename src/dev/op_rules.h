/* What op_validate knows of each op kind. Read by op_validate.c alone.
 *
 * 1. Each kind has a row in op_rules: one ArgRule per argument, in the order of its row in op_table.c. A new
 *    kind gets its row in op_rules.c; tests/test_op_validate.c fails without one, and when a wrong shape of
 *    any argument passes.
 * 2. A dimension is a letter. The first argument that has it says how large it is, all others must agree. The
 *    rule's `dims` may set letters from scalars beforehand. Shapes are rows x cols, as ops see them.
 * 3. What letters cannot say is in the rule's `more`. */
#ifndef DEV_OP_RULES_H
#define DEV_OP_RULES_H

#include "dev/op.h"

/* One call of op_validate. */
typedef struct {
    OpKind  kind;
    int64_t dim['z' + 1]; /* by letter; 0: not known yet */
    DType   act;          /* of the activations; DT_COUNT: not known yet */
    char   *buf;
    size_t  n;
    int     bad;
} OpCheck;

/* What the elements of an argument may be. */
typedef enum {
    ELEM_ACT,   /* a type that is computed in, the same for all such arguments of the op */
    ELEM_FLOAT, /* any float type */
    ELEM_F32,
    ELEM_F64,
    ELEM_I32,
    ELEM_I64,
    ELEM_STATE, /* u8, one StepState */
    ELEM_BYTE,  /* u8 */
    ELEM_ANY
} OpElem;

/* rows: a letter, or one of these. A letter in lower case stands for at least so many, a digit for itself.
 * 0 as cols: any. */
enum {
    ROWS_VEC   = '#', /* a contiguous vector of cols numbers */
    ROWS_START = '@', /* the same, of cols numbers or of one for all */
    ROWS_COUNT = '%', /* cols numbers in any shape */
    ROWS_ANY   = '*'
};

typedef struct {
    OpElem elem;
    char   rows, cols;
} ArgRule;

typedef struct {
    ArgRule arg[OP_MAX_TENSOR];
    void (*dims)(OpCheck *v, const OpArgs *a); /* NULL: letters come from the arguments alone */
    void (*more)(OpCheck *v, const OpArgs *a);
    size_t slot; /* where OpArgs has the slot of its loss; 0: the op has none */
} OpRule;

extern const OpRule op_rules[OP_COUNT];

/* 1: f32, bf16 or f16. */
int op_computes_in(DType t);

/* Keeps the first broken rule. */
void op_check_fail(OpCheck *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
