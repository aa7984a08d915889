/* What the variants of lowering may use. Only lower.c and lower_rules.c include this. */
#ifndef PROG_LOWER_H
#define PROG_LOWER_H

#include "prog/prog_impl.h"

typedef struct {
    int op, next; /* reader list entry */
} LowerReader;

typedef struct {
    Prog          *p;
    int           *writer; /* by tensor id: op that writes it, -1 outside */
    int           *head;   /* by tensor id: first entry of its readers in increasing op order, -1 */
    int           *n_use;  /* by root id: reads by ops still alive */
    LowerReader   *reader;
    unsigned char *dead; /* by op */
} Lower;

typedef struct {
    const char *name;
    size_t      option; /* offset of its switch in RecipeOpt */
    OpKind      anchor, result;
    int (*match)(const Lower *l, int i, OpArgs *out, int *used);
    unsigned fuse; /* FUSE_* bit that the backend must have, 0: none */
} LowerVariant;

/* In the order in which they are tried. */
extern const LowerVariant lower_variants[];
extern const int          lower_n_variant;

/* The first op of that kind that reads t, or -1. */
int lower_find_reader(const Lower *l, const Tensor *t, OpKind kind);
/* 1: t is an activation, and ops that are still alive read its root n times. */
int lower_only_use(const Lower *l, const Tensor *t, int n);

#endif
