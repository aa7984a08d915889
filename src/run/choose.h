/* Choose: the machine picks micro-batch, recomputation and head chunks; the user fixed the step.
 *
 * 1. Every candidate is recorded, lowered and planned for real (that takes milliseconds), so its bytes are
 *    exact. Its time is the sum over its list of max(FLOPs/rate, bytes/bandwidth).
 * 2. Candidates that fit and are as fast as the fastest (CHOOSE_TIE) count as equal. Among these the least
 *    recomputation wins, then the least memory.
 * 3. On a GPU the winner is tried once more with larger chunks of the head, as far as memory is left. */
#ifndef RUN_CHOOSE_H
#define RUN_CHOOSE_H

#include "plan/machine.h"
#include "run/build.h"

typedef struct {
    JobChoice choice;
    size_t    total_bytes;
    size_t    act_bytes, scratch_bytes; /* of these, activations; what ops share */
    double    step_s;                   /* predicted */
    int       fits;
} Candidate;

/* What a step has to do, and the seconds that each half of it alone would take at a machine's rates. */
typedef struct {
    double flops, bytes;     /* flops: with those done again */
    double flops_s, bytes_s; /* a step takes longer than either: each op waits for the slower of its two */
    double step_s;
} StepCost;

/* Bytes there are, and bytes the recipe allows (memory_limit). The smaller one is the budget. */
typedef struct {
    size_t room_bytes, limit_bytes;
} ChooseRoom;

enum { CHOOSE_MAX = 64 };

/* Predictions this close count as equal, and the candidate with less memory wins. A larger difference is
 * worth memory. Every product ends with a partly filled wave of blocks, which the prediction does not know.
 * Larger micro-batches have fewer of these waves (gpt2-124m on an H200, 64 to 128 sequences: 0.3 % predicted,
 * 1.6 % measured). */
#define CHOOSE_TIE 1.002

typedef struct {
    Candidate row[CHOOSE_MAX];
    int       n, best; /* best -1: none fits */
    Candidate could; /* the best of concessions that the recipe does not allow, where they help; else !fits */
    size_t    budget_bytes, least_bytes; /* least: what the smallest needs where none fits */
    DType     compute;
    int       fp8;           /* 1: products in fp8 */
    char      why[160];      /* precision and its reason */
    char      refusal[1400]; /* lines: what takes the memory when nothing fits, and what could give way */
} Choice;

/* What is planned. */
typedef struct {
    const Task   *task;
    const Recipe *recipe; /* of one rank: its step_samples are that rank's */
    const DevVt  *vt;
    int           capability; /* of the card */
    unsigned      parts;      /* JobParts */
} ChooseFor;

/* Fills *c. Negative after err_user()/err_set(), when nothing fits with the change that would help most; then
 * c->refusal has the rest. */
int choose_plan(Choice *c, const ChooseFor *what, const Machine *m, ChooseRoom room);

/* What gives way, in words; gives: GIVE_* bits, at least one. */
const char *choose_gives(unsigned gives);

/* Predicted for one step of one rank: the sum over the rows of its schedule. */
StepCost choose_step_cost(const Job *j, const Machine *m);

void choose_print(const Choice *c, const Job *j, FILE *out);
/* Why none fits, as one JSON object. */
void choose_print_json_refusal(const Choice *c, const Recipe *r, const char *machine, FILE *out);
/* What choose_step_cost() says, for people. */
void choose_print_cost(const Job *j, const Machine *m, FILE *out);
/* The choice and what it costs as one JSON object; machine: its name. */
void choose_print_json(const Choice *c, const Job *j, const Machine *m, const char *machine, FILE *out);

/* FLOPs of one step of all ranks, as MFU counts them. */
double choose_step_flops(const Job *j);

#endif
