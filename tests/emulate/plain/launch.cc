/* Threads of a block as coroutines; see k_common.cuh beside this file. */
#include "dev/cuda/k_common.cuh"

#include <setjmp.h>
#include <stdlib.h>
#include <ucontext.h>
#include <vector>

dim3 threadIdx, blockIdx, blockDim, gridDim;

enum { STACK_BYTES = 1 << 16 };

/* A thread begins by a context and goes on by jumps, because contexts cost a system call each. A thread waits
 * while *word has `value`; NULL: it can go on. */
struct Thread {
    ucontext_t      start;
    jmp_buf         at;
    bool            begun;
    const uint32_t *word;
    uint32_t        value;
    bool            done;
};

/* Threads that wait for each other. */
struct Meeting {
    int      n;
    uint32_t round;
};

static struct {
    std::vector<Thread>          thread;
    std::vector<char *>          stack;
    std::vector<Meeting>         warp;
    std::vector<double>          brought[2]; /* of each thread, by the parity of its warp's round */
    Meeting                      block;
    int                          live, me;
    jmp_buf                      home;
    const std::function<void()> *body;
} machine;

static void run_thread()
{
    (*machine.body)();
    machine.thread[(size_t)machine.me].done = true;
    machine.live--;
    _longjmp(machine.home, 1);
}

/* Runs thread i until it waits or ends. */
static __attribute__((noinline)) void resume(int i)
{
    Thread *t   = &machine.thread[(size_t)i];
    machine.me  = i;
    threadIdx.x = (unsigned)i;
    t->word     = NULL;
    if (_setjmp(machine.home) != 0) return;
    if (t->begun) _longjmp(t->at, 1);
    t->begun = true;
    setcontext(&t->start);
}

/* Waits until `of` threads have come. */
static void meet(Meeting *m, int of)
{
    Thread *t = &machine.thread[(size_t)machine.me];
    if (++m->n == of) {
        m->n = 0;
        m->round++;
        return;
    }
    t->word  = &m->round;
    t->value = m->round;
    if (_setjmp(t->at) == 0) _longjmp(machine.home, 1);
}

/* On a card, threads that have ended do not count. */
void __syncthreads() { meet(&machine.block, machine.live); }

double warp_take(double v, int from)
{
    int      me = machine.me, warp = me / WARP;
    Meeting *m     = &machine.warp[(size_t)warp];
    auto    &at    = machine.brought[m->round % 2];
    at[(size_t)me] = v;
    meet(m, WARP);
    return at[(size_t)(warp * WARP + from)];
}

uint32_t __ballot_sync(unsigned, bool yes)
{
    int      warp = machine.me / WARP;
    auto    &at   = machine.brought[machine.warp[(size_t)warp].round % 2];
    uint32_t bits = 0;
    warp_take(yes ? 1.0 : 0.0, 0);
    for (int l = 0; l < WARP; l++) bits |= (uint32_t)(at[(size_t)(warp * WARP + l)] != 0.0) << l;
    return bits;
}

static void run_block(int threads)
{
    machine.live  = threads;
    machine.block = { 0, 0 };
    for (auto &w : machine.warp) w = { 0, 0 };
    for (int i = 0; i < threads; i++) {
        Thread *t = &machine.thread[(size_t)i];
        t->word   = NULL;
        t->done = t->begun = false;
        getcontext(&t->start);
        t->start.uc_stack.ss_sp   = machine.stack[(size_t)i];
        t->start.uc_stack.ss_size = STACK_BYTES;
        makecontext(&t->start, run_thread, 0);
    }
    while (machine.live > 0) {
        int went = 0;
        for (int i = 0; i < threads; i++) {
            Thread *t = &machine.thread[(size_t)i];
            if (t->done || (t->word && *t->word == t->value)) continue;
            resume(i);
            went++;
        }
        CHECK(went > 0, "block %u: %d threads wait for each other", blockIdx.x, machine.live);
    }
}

void emulate_launch(dim3 grid, int threads, const std::function<void()> &body)
{
    size_t n = (size_t)threads;
    while (machine.stack.size() < n) {
        char *p = (char *)malloc(STACK_BYTES);
        CHECK(p, "out of memory");
        machine.stack.push_back(p);
    }
    if (machine.thread.size() < n) machine.thread.resize(n);
    machine.warp.resize((n + WARP - 1) / WARP);
    for (auto &b : machine.brought) b.resize(n);
    machine.body = &body;
    blockDim     = dim3((unsigned)threads);
    gridDim      = grid;
    for (unsigned y = 0; y < grid.y; y++) {
        for (unsigned x = 0; x < grid.x; x++) {
            blockIdx = dim3(x, y);
            run_block(threads);
        }
    }
}
