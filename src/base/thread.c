#define _GNU_SOURCE /* pthread_setname_np */
#include "base/thread.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static void *thread_main(void *p)
{
    Thread *t = (Thread *)p;
    pthread_setname_np(pthread_self(), t->name);
    t->body(t->arg);
    return NULL;
}

int thread_start(Thread *t, const char *name, void (*body)(void *), void *arg)
{
    *t = (Thread){ .body = body, .arg = arg };
    str_copy(t->name, sizeof t->name, name);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread inherits the mask */
    int rc = fault_hit(FAULT_THREAD) ? errno : pthread_create(&t->id, NULL, thread_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        errno = rc;
        return err_sys("starting thread %s", name);
    }
    t->started = 1;
    return 0;
}

void thread_join(Thread *t)
{
    if (!t->started) return;
    int rc = pthread_join(t->id, NULL);
    CHECK(rc == 0, "join of %s: %s", t->name, strerror(rc));
    t->started = 0;
}

void thread_lock(pthread_mutex_t *m)
{
    int rc = pthread_mutex_lock(m);
    CHECK(rc == 0, "lock: %s", strerror(rc));
}

void thread_unlock(pthread_mutex_t *m)
{
    int rc = pthread_mutex_unlock(m);
    CHECK(rc == 0, "unlock: %s", strerror(rc));
}

void thread_cond_init(pthread_cond_t *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

struct timespec thread_deadline(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t ns = (int64_t)t.tv_nsec + (int64_t)(seconds * 1e9);
    t.tv_sec += (time_t)(ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

/* ---- Ring ---------------------------------------------------------------------------------------------- */

int thread_ring_init(ThreadRing *r, int n_slot)
{
    CHECK(n_slot > 0, "a ring of %d slots", n_slot);
    memset(r, 0, sizeof *r);
    r->ready = mem_zeroed((size_t)n_slot, 1);
    if (!r->ready) return err_sys("ring of %d slots", n_slot);
    r->n_slot = n_slot;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->space, NULL);
    pthread_cond_init(&r->filled, NULL);
    return 0;
}

void thread_ring_deinit(ThreadRing *r)
{
    if (!r->ready) return;
    pthread_cond_destroy(&r->filled);
    pthread_cond_destroy(&r->space);
    pthread_mutex_destroy(&r->lock);
    free(r->ready);
    r->ready = NULL;
}

int64_t thread_ring_acquire(ThreadRing *r)
{
    thread_lock(&r->lock);
    int64_t ticket = r->closed ? -1 : r->next_ticket++;
    while (ticket - r->next_release >= r->n_slot && !r->closed) pthread_cond_wait(&r->space, &r->lock);
    if (r->closed) ticket = -1;
    thread_unlock(&r->lock);
    return ticket;
}

void thread_ring_publish(ThreadRing *r, int64_t ticket)
{
    thread_lock(&r->lock);
    CHECK(ticket >= r->next_take && ticket < r->next_ticket && !r->ready[ticket % r->n_slot], "ticket %lld",
          (long long)ticket);
    r->ready[ticket % r->n_slot] = 1;
    if (ticket == r->next_take) pthread_cond_signal(&r->filled);
    thread_unlock(&r->lock);
}

int64_t thread_ring_take(ThreadRing *r)
{
    thread_lock(&r->lock);
    /* With every slot held by the consumer the next slot still looks ready: waiting would never end. */
    CHECK(r->next_take - r->next_release < r->n_slot, "all %d slots are taken and none released", r->n_slot);
    int64_t        ticket = r->next_take;
    unsigned char *ready  = &r->ready[ticket % r->n_slot];
    while (!*ready && !r->closed) pthread_cond_wait(&r->filled, &r->lock);
    if (*ready) {
        r->next_take++;
    } else {
        ticket = -1;
        if (r->why[0]) err_set("%s", r->why);
    }
    thread_unlock(&r->lock);
    return ticket;
}

void thread_ring_release(ThreadRing *r, int64_t ticket)
{
    thread_lock(&r->lock);
    CHECK(ticket == r->next_release && ticket < r->next_take, "ticket %lld released out of order",
          (long long)ticket);
    r->ready[ticket % r->n_slot] = 0;
    r->next_release++;
    pthread_cond_broadcast(&r->space);
    thread_unlock(&r->lock);
}

void thread_ring_close(ThreadRing *r, const char *why)
{
    thread_lock(&r->lock);
    if (why && !r->why[0]) str_copy(r->why, sizeof r->why, why);
    r->closed = 1;
    pthread_cond_broadcast(&r->space);
    pthread_cond_broadcast(&r->filled);
    thread_unlock(&r->lock);
}
