#include "prog/buckets.h"

#include "base/err.h"
#include "prog/prog_impl.h"

#include <stdio.h>
#include <stdlib.h>

/* Bytes of the flat tensor that one op argument covers, and that op. */
typedef struct {
    size_t begin, end; /* from the flat tensor's first byte */
    int    op;
} Touch;

typedef struct {
    size_t begin, end;
    int    op; /* last one that touches it */
} Bucket;

static int by_begin(const void *a, const void *b)
{
    const Touch *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->op > y->op) - (x->op < y->op);
}

static int by_op(const void *a, const void *b)
{
    const Bucket *x = a, *y = b;
    if (x->op != y->op) return x->op < y->op ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Every argument that shares bytes with flat, sorted by where it begins. Readers count too: nothing that
 * comes later may have to wait for the sum. */
static int find_touches(const Prog *p, const Tensor *flat, Touch *out)
{
    size_t lo = flat->offset_bytes, hi = lo + tensor_bytes(flat);
    int    n = 0;
    for (int i = 0; i < p->n_op; i++) {
        for (int a = 0; a < op_table[p->op[i].kind].n_tensor; a++) {
            const Tensor *t = p->op[i].args.t[a];
            if (!t || t->root != flat->root) continue;
            CHECK(tensor_is_contiguous(t), "%s is a part of %s with gaps", t->name, flat->name);
            size_t begin = MAX(t->offset_bytes, lo), end = MIN(t->offset_bytes + tensor_bytes(t), hi);
            if (begin < end) out[n++] = (Touch){ begin - lo, end - lo, i };
        }
    }
    qsort(out, (size_t)n, sizeof *out, by_begin);
    return n;
}

/* The smallest ranges: from border to border, a border being where no argument reaches across. */
static int find_ranges(const Touch *touch, int n, size_t total, Bucket *out)
{
    int    n_out = 0;
    size_t reach = 0;
    for (int i = 0; i < n; i++) {
        if (n_out == 0) {
            out[n_out++] = (Bucket){ 0, total, touch[i].op };
        } else if (touch[i].begin >= reach) {
            out[n_out - 1].end = touch[i].begin;
            out[n_out++]       = (Bucket){ touch[i].begin, total, touch[i].op };
        }
        reach             = MAX(reach, touch[i].end);
        out[n_out - 1].op = MAX(out[n_out - 1].op, touch[i].op);
    }
    return n_out;
}

static size_t distance(size_t a, size_t b) { return a > b ? a - b : b - a; }

/* Joins neighbours, in place, as long as that brings the size nearer to bucket_bytes. */
static int join_ranges(Bucket *b, int n, size_t bucket_bytes)
{
    Bucket *open = b;
    for (int i = 1; i < n; i++) {
        if (distance(open->end - open->begin, bucket_bytes) <=
            distance(b[i].end - open->begin, bucket_bytes)) {
            *++open = b[i];
            continue;
        }
        open->end = b[i].end;
        open->op  = MAX(open->op, b[i].op);
    }
    return n > 0 ? (int)(open - b) + 1 : 0;
}

static Op reduction(Prog *p, Tensor *flat, const Bucket *b, int index)
{
    char    text[64];
    size_t  size = dtype_bytes(flat->dtype);
    int64_t n    = (int64_t)((b->end - b->begin) / size);
    snprintf(text, sizeof text, "sum %s %d", flat->name, index);
    Tensor *v          = prog_tensor(p, text, flat->dtype, 1, &n);
    v->root            = flat->root;
    v->slab            = flat->root->slab;
    v->offset_bytes    = flat->offset_bytes + b->begin;
    Op op              = { .kind = OP_ALL_REDUCE, .lane = LANE_COMM, .block = -1, .chunk = -1 };
    op.backward        = 1;
    op.label           = v->name;
    op.args.all_reduce = (AllReduce){ .y = v, .x = v };
    return op;
}

void prog_add_reductions(Prog *p, Tensor *flat, size_t bucket_bytes)
{
    CHECK(flat->slab != SLAB_ACT && tensor_is_contiguous(flat), "%s cannot be summed over ranks", flat->name);
    Arena scratch;
    arena_init(&scratch);
    Touch  *touch  = ARENA_ARRAY(&scratch, Touch, p->n_op * OP_MAX_TENSOR + 1);
    int     n      = find_touches(p, flat, touch);
    Bucket *bucket = ARENA_ARRAY(&scratch, Bucket, n + 1);
    int     n_out = find_ranges(touch, n, tensor_bytes(flat), bucket), next = 0, at = 0;
    n_out = join_ranges(bucket, n_out, bucket_bytes);
    qsort(bucket, (size_t)n_out, sizeof *bucket, by_op);
    Op *list = ARENA_ARRAY(&scratch, Op, p->n_op + n_out + 1);
    for (int i = 0; i < p->n_op; i++) {
        list[at++] = p->op[i];
        for (; next < n_out && bucket[next].op == i; next++)
            list[at++] = reduction(p, flat, &bucket[next], next);
    }
    CHECK(next == n_out, "%s: %d of %d sums found no place", p->name, n_out - next, n_out);
    prog_replace_ops(p, list, at);
    arena_deinit(&scratch);
}
