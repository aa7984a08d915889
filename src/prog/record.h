/* rec_NAME(p, (Args){ .y = y, ... }): one typed recorder per op kind, generated from OP_LIST. */
#ifndef PROG_RECORD_H
#define PROG_RECORD_H

#include "prog/prog.h"

#define X(KIND, field, Type)                                                                                 \
    static inline void rec_##field(Prog *p, Type a) { prog_record(p, OP_##KIND, &a, sizeof a); }
OP_LIST(X)
#undef X

#endif
