/* Thread: starting and joining with errors, and a ring of slots between producer threads and one consumer.
 *
 * 1. A started thread blocks every signal, so that SIGTERM and Ctrl-C reach the main thread.
 * 2. Ring: producers draw tickets 0, 1, 2 ...; ticket t is filled into slot t mod n_slot. The consumer takes
 *    tickets in order, whatever order they were published in. The consumer may hold several tickets and
 *    releases them in order. So the consumer sees the same with any number of producers.
 * 3. Misuse of a mutex or a ticket is a bug and CHECKed. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    pthread_t id;
    int       started;
    char      name[16]; /* what `top -H` shows */
    void (*body)(void *arg);
    void *arg;
} Thread;

/* Runs body(arg) in a new thread; *t must stay in place until thread_join(). Negative after err_set(). */
int  thread_start(Thread *t, const char *name, void (*body)(void *), void *arg);
void thread_join(Thread *t); /* waits; nothing for a thread that was zeroed or failed to start */

void thread_lock(pthread_mutex_t *m);
void thread_unlock(pthread_mutex_t *m);

/* A condition for timed waits. They go by the monotonic clock: a corrected wall clock does not stretch
 * them. */
void thread_cond_init(pthread_cond_t *c);
/* That clock, `seconds` from now: for pthread_cond_timedwait(). */
struct timespec thread_deadline(double seconds);

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t  space;  /* a slot became free, or the ring was closed */
    pthread_cond_t  filled; /* the next ticket was published, or the ring was closed */
    int             n_slot;
    unsigned char  *ready; /* per slot */
    int64_t         next_ticket, next_take, next_release;
    int             closed;
    char            why[256]; /* the producer's failure, "" for a plain end */
} ThreadRing;

int  thread_ring_init(ThreadRing *r, int n_slot); /* negative after err_set() */
void thread_ring_deinit(ThreadRing *r); /* after every producer was joined; zeroed rings are left alone */

/* Producer: waits for the next ticket's slot; fill slot (ticket % n_slot), then publish. Negative: closed. */
int64_t thread_ring_acquire(ThreadRing *r);
void    thread_ring_publish(ThreadRing *r, int64_t ticket);

/* Consumer: waits for the next ticket. Negative once closed and drained; after err_set() if a producer
 * failed. */
int64_t thread_ring_take(ThreadRing *r);
void    thread_ring_release(ThreadRing *r, int64_t ticket);

/* Either side: no more tickets; wakes everybody. why: the failure, or NULL. The first reason is kept. */
void thread_ring_close(ThreadRing *r, const char *why);

#ifdef __cplusplus
}
#endif
#endif
