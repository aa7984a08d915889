#include "env/guard.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    _Alignas(64) atomic_int_least64_t since_us; /* 0: not inside */
    atomic_int_least64_t env;
    atomic_int           n_env;
} Slot;

struct Guard {
    char            name[512];
    Slot           *slot;
    int             n_slot;
    double          timeout_s;
    Thread          watch;
    pthread_mutex_t lock;
    pthread_cond_t  wake;
    int             stop;
};

static const struct {
    int         sig;
    const char *name;
} crash_table[] = { { SIGSEGV, "a memory error" },
                    { SIGBUS, "a bus error" },
                    { SIGFPE, "an arithmetic error" },
                    { SIGILL, "an illegal instruction" },
                    { SIGABRT, "abort()" } };

/* A signal handler takes no argument to hang these on; each thread has its own. */
static _Thread_local const Guard *inside;
static _Thread_local int          inside_slot;

/* snprintf() is not safe in a handler. */
static void say(const char *text) { log_last_words(text); }

static void say_int(int64_t x)
{
    char  digit[24];
    char *p = digit + sizeof digit - 1;
    for (*p = '\0'; x > 0 || !*p; x /= 10) *--p = (char)('0' + x % 10);
    say(p);
}

static void say_who(const Guard *g, int slot)
{
    say("brim: environment ");
    say(g->name);
    int64_t env = atomic_load(&g->slot[slot].env);
    int     n   = atomic_load(&g->slot[slot].n_env);
    say(n > 1 ? " numbers " : " number ");
    say_int(env);
    if (n > 1) say(" to ");
    if (n > 1) say_int(env + n - 1);
}

static void on_crash(int sig)
{
    const Guard *g = inside;
    if (!g) {
        signal(sig, SIG_DFL);
        raise(sig);
        return;
    }
    say_who(g, inside_slot);
    say(" crashed: ");
    for (int i = 0; i < ARRAY_LEN(crash_table); i++)
        if (crash_table[i].sig == sig) say(crash_table[i].name);
    say("; with isolate: process it would be restarted\n");
    _exit(1);
}

/* An environment that recurses without end has no stack left: the handler needs another one, per thread. */
static void own_stack(void)
{
    static _Thread_local int  is_there;
    static _Thread_local char stack[1 << 15];
    if (is_there) return;
    is_there = 1;
    sigaltstack(&(stack_t){ .ss_sp = stack, .ss_size = sizeof stack }, NULL);
}

static void install(void)
{
    for (int i = 0; i < ARRAY_LEN(crash_table); i++) {
        struct sigaction old, act;
        memset(&act, 0, sizeof act);
        act.sa_handler = on_crash;
        act.sa_flags   = SA_ONSTACK;
        sigemptyset(&act.sa_mask);
        if (sigaction(crash_table[i].sig, NULL, &old) == 0 && !(old.sa_flags & SA_SIGINFO) &&
            old.sa_handler == SIG_DFL)
            sigaction(crash_table[i].sig, &act, NULL);
    }
}

static int64_t now_us(void) { return (int64_t)(clock_now_s() * 1e6) + 1; }

static void look(const Guard *g)
{
    for (int i = 0; i < g->n_slot; i++) {
        int64_t since = atomic_load(&g->slot[i].since_us);
        if (since == 0 || (double)(now_us() - since) < g->timeout_s * 1e6) continue;
        char text[120]; /* this is no signal handler */
        snprintf(text, sizeof text,
                 " hangs: a call took longer than %g s; with isolate: process it would be restarted\n",
                 g->timeout_s);
        say_who(g, i);
        say(text);
        _exit(1);
    }
}

static void watch_body(void *arg)
{
    Guard *g = arg;
    thread_lock(&g->lock);
    while (!g->stop) {
        struct timespec until = thread_deadline(g->timeout_s / 4);
        pthread_cond_timedwait(&g->wake, &g->lock, &until);
        look(g);
    }
    thread_unlock(&g->lock);
}

int guard_open(Guard **out, const char *name, int n_slot, double timeout_s)
{
    Guard *g = mem_zeroed(1, sizeof *g);
    *out     = g;
    if (!g) return err_sys("memory for environments");
    str_copy(g->name, sizeof g->name, name); /* cut short if it is long */
    g->n_slot    = n_slot;
    g->timeout_s = timeout_s;
    g->slot      = aligned_alloc(64, sizeof(Slot) * (size_t)n_slot);
    if (!g->slot) return err_sys("memory for environments");
    memset(g->slot, 0, sizeof(Slot) * (size_t)n_slot);
    pthread_mutex_init(&g->lock, NULL);
    thread_cond_init(&g->wake);
    install();
    return timeout_s > 0 ? thread_start(&g->watch, "env-watch", watch_body, g) : 0;
}

void guard_close(Guard *g)
{
    if (!g) return;
    if (g->watch.started) {
        thread_lock(&g->lock);
        g->stop = 1;
        pthread_cond_signal(&g->wake);
        thread_unlock(&g->lock);
        thread_join(&g->watch);
    }
    free(g->slot);
    free(g);
}

void guard_enter(Guard *g, int slot, int64_t env, int n)
{
    atomic_store_explicit(&g->slot[slot].env, env, memory_order_relaxed);
    atomic_store_explicit(&g->slot[slot].n_env, n, memory_order_relaxed);
    atomic_store_explicit(&g->slot[slot].since_us, now_us(), memory_order_relaxed);
    own_stack();
    inside_slot = slot;
    inside      = g;
}

void guard_leave(Guard *g, int slot)
{
    inside = NULL;
    atomic_store_explicit(&g->slot[slot].since_us, 0, memory_order_relaxed);
}
