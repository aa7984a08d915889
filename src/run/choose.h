/* Choose: the machine picks micro-batch, recomputation and head chunks; the user fixed the step.
 *
 * Every candidate is recorded, lowered and planned for real (that takes milliseconds), so its bytes are exact; its time is
 * the sum over its list of max(FLOPs/rate, bytes/bandwidth). The fastest that fits wins; within 0.5 % the one that needs
 * less memory, so ties go to less recomputation and then to the smaller micro-batch. */
#ifndef RUN_CHOOSE_H
#define RUN_CHOOSE_H

#include "plan/machine.h"
#include "run/build.h"

typedef struct {
    BuildChoice choice;
    size_t      total_bytes;
    double      step_s; /* predicted */
    int         fits;
} Candidate;

enum { CHOOSE_MAX = 64 };

typedef struct {
    Candidate row[CHOOSE_MAX];
    int       n, best; /* best -1: none fits */
    size_t    budget_bytes;
    DType     compute;
    char      why[160]; /* precision and its reason */
} Choice;

/* Fills *c. Negative after err_user()/err_set() when nothing fits, saying what would. */
int choose_plan(Choice *c, const Recipe *r, const DevVt *vt, const Machine *m, int capability,
                size_t budget_bytes, unsigned parts);

/* Predicted seconds of one optimizer step of a build. */
double choose_step_time(const Build *b, const Machine *m);

void choose_print(const Choice *c, const Recipe *r, FILE *out);

const char *recompute_name(RecomputeLevel level);

#endif
