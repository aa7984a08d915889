#define _GNU_SOURCE /* POLLRDHUP */
#include "comm/comm.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "base/thread.h"
#include "comm/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 };
static const double HELLO_S = 5; /* for the few bytes of a greeting */

const CommWaits comm_waits = { .meet_s = 300, .call_s = 1800, .grace_s = 60 };

struct Comm {
    Place     place;
    CommWaits waits;
    int      *fd; /* by rank; rank 0 has one to everybody, the others one to rank 0; -1: none */
    uint32_t  n_call;
    char     *piece; /* PIECE_BYTES, for sums */
    Thread    watcher;
    int       wake[2]; /* a pipe: closing the writing end stops the watcher */
};

int comm_rank(const Comm *c) { return c ? c->place.rank : 0; }
int comm_world(const Comm *c) { return c ? c->place.world : 1; }
int comm_local_rank(const Comm *c) { return c ? c->place.local_rank : 0; }

static double deadline(double seconds) { return clock_now_s() + seconds; }

/* ---- Meeting ------------------------------------------------------------------------------------------- */

static const char magic[8] = "BRIMCOM1";

typedef struct {
    char    magic[8];
    int32_t rank, world;
} Hello;

typedef struct {
    char    magic[8];
    int32_t ok;
    char    why[244]; /* when not ok */
} Welcome;

static int port_problem(const Comm *c)
{
    const Place *p = &c->place;
    if (errno != EADDRINUSE) return err_sys("rank 0 cannot listen on %s port %d", p->host, p->port);
    return err_set(
        "rank 0 cannot listen on %s port %d: it is in use (another run? MASTER_PORT chooses another one)",
        p->host, p->port);
}

/* Reads one newcomer's hello. Strangers are dropped; 1: a rank came, 0: not. Negative after err_set(). */
static int admit(Comm *c, int fd, double until_s)
{
    Hello      h;
    WireResult r = wire_recv(fd, &h, sizeof h, MIN(until_s, deadline(HELLO_S)));
    if (r != WIRE_OK || memcmp(h.magic, magic, sizeof magic) != 0) {
        wire_close(&fd);
        return 0;
    }
    int known = h.world == c->place.world && h.rank > 0 && h.rank < h.world;
    if (known && c->fd[h.rank] < 0) {
        c->fd[h.rank] = fd;
        return 1;
    }
    Welcome no = { .ok = 0 };
    memcpy(no.magic, magic, sizeof magic);
    snprintf(no.why, sizeof no.why,
             known ? "rank %d of %d came twice" : "rank %d of %d does not belong to this run", h.rank,
             h.world);
    (void)wire_send(fd, &no, sizeof no, deadline(HELLO_S)); /* it is turned away either way */
    wire_close(&fd);
    return known ? err_set("%s: two runs on one port? (MASTER_PORT chooses another one)", no.why) : 0;
}

/* The first missing ranks, as text. */
static const char *missing(const Comm *c, char *buf, size_t n)
{
    size_t at = 0;
    buf[0]    = '\0';
    for (int r = 1, shown = 0; r < c->place.world && at < n; r++) {
        if (c->fd[r] >= 0) continue;
        if (++shown > 8) {
            snprintf(buf + at, n - at, " ...");
            break;
        }
        at += (size_t)snprintf(buf + at, n - at, "%s%d", shown > 1 ? ", " : "", r);
    }
    return buf;
}

static int collect(Comm *c, int listener)
{
    double until = deadline(c->waits.meet_s);
    for (int n = 1; n < c->place.world;) {
        int fd = wire_accept(listener, until);
        if (fd == WIRE_TIMEOUT) {
            char who[128];
            return err_set("rank 0 waited %.3g s on %s port %d: %d of %d ranks did not come (%s)",
                           c->waits.meet_s, c->place.host, c->place.port, c->place.world - n, c->place.world,
                           missing(c, who, sizeof who));
        }
        if (fd < 0) return err_sys("rank 0 on %s port %d", c->place.host, c->place.port);
        int came = admit(c, fd, until);
        if (came < 0) return -1;
        n += came;
    }
    return 0;
}

static int meet_as_hub(Comm *c)
{
    int listener = wire_listen(c->place.host, c->place.port);
    if (listener < 0) return port_problem(c);
    int     rc = collect(c, listener);
    Welcome w  = { .ok = rc == 0 };
    memcpy(w.magic, magic, sizeof magic);
    snprintf(w.why, sizeof w.why, "%.*s", (int)sizeof w.why - 1, err_get());
    for (int r = 1; r < c->place.world; r++) {
        if (c->fd[r] < 0) continue;
        if (wire_send(c->fd[r], &w, sizeof w, deadline(HELLO_S)) != WIRE_OK && rc == 0) {
            rc = err_set("rank %d left while the ranks were meeting", r);
        }
    }
    wire_close(&listener);
    return rc;
}

/* Rank 0 may start later than the others, so a refused connection is tried again. */
static int reach_hub(Comm *c, double until_s)
{
    const Place *p = &c->place;
    for (;;) {
        c->fd[0] = wire_connect(p->host, p->port, MIN(until_s, deadline(HELLO_S)));
        if (c->fd[0] >= 0) return 0;
        if (c->fd[0] == WIRE_TIMEOUT) errno = ETIMEDOUT;
        if (clock_now_s() + 0.1 >= until_s) {
            return err_sys("rank %d could not reach rank 0 at %s port %d within %.3g s", p->rank, p->host,
                           p->port, c->waits.meet_s);
        }
        usleep(100 * 1000);
    }
}

static int meet_as_spoke(Comm *c)
{
    const Place *p     = &c->place;
    double       until = deadline(c->waits.meet_s);
    TRY(reach_hub(c, until));
    Hello   h = { .rank = p->rank, .world = p->world };
    Welcome w;
    memcpy(h.magic, magic, sizeof magic);
    WireResult r = wire_send(c->fd[0], &h, sizeof h, until);
    /* Rank 0 gives up at its own deadline, which may be a little later than ours, and says why. */
    if (r == WIRE_OK) r = wire_recv(c->fd[0], &w, sizeof w, until + 2 * HELLO_S);
    if (r == WIRE_OK && memcmp(w.magic, magic, sizeof magic) == 0) {
        w.why[sizeof w.why - 1] = '\0';
        return w.ok ? 0 : err_set("rank %d was turned away: %s", p->rank, w.why);
    }
    return err_set("rank %d reached %s port %d, but %s", p->rank, p->host, p->port,
                   r == WIRE_TIMEOUT ? "rank 0 does not answer"
                                     : "what answers there is not rank 0 of this run");
}

/* ---- Watching ------------------------------------------------------------------------------------------ */

/* Waits for a connection to close. poll() takes no bytes, so calls on other threads are not disturbed. */
static void watch(void *arg)
{
    Comm          *c = arg;
    int            n = c->place.world;
    struct pollfd *p = calloc((size_t)n + 1, sizeof *p);
    CHECK(p, "out of host memory");
    for (int r = 0; r < n; r++) p[r] = (struct pollfd){ .fd = c->fd[r], .events = POLLRDHUP };
    p[n] = (struct pollfd){ .fd = c->wake[0], .events = POLLIN };
    while (poll(p, (nfds_t)n + 1, -1) < 0 && errno == EINTR) {
    }
    int lost = -1;
    for (int r = 0; r < n; r++) {
        if (p[r].revents) lost = r;
    }
    /* The main thread usually finds out by itself and says more; only one that is stuck is ended. */
    if (!p[n].revents && lost >= 0 && poll(&p[n], 1, (int)(c->waits.grace_s * 1e3)) == 0) {
        fprintf(stderr, "brim: rank %d: rank %d has left the run; this rank cannot go on alone\n",
                c->place.rank, lost);
        log_note("rank %d has left the run; this rank cannot go on alone", lost);
        _exit(1);
    }
    free(p);
}

static void stop_watching(Comm *c)
{
    if (c->wake[1] >= 0) close(c->wake[1]);
    c->wake[1] = -1;
    thread_join(&c->watcher);
}

/* ---- Opening and closing ------------------------------------------------------------------------------- */

static int start(Comm *c)
{
    c->fd    = malloc(sizeof *c->fd * (size_t)c->place.world);
    c->piece = malloc(PIECE_BYTES);
    if (!c->fd || !c->piece) return err_set("out of host memory");
    for (int r = 0; r < c->place.world; r++) c->fd[r] = -1;
    TRY(c->place.rank == 0 ? meet_as_hub(c) : meet_as_spoke(c));
    if (pipe2(c->wake, O_CLOEXEC) != 0) return err_sys("pipe");
    return thread_start(&c->watcher, "comm", watch, c);
}

int comm_meet(Comm **out, const Place *place, const CommWaits *waits)
{
    *out = NULL;
    if (place->world <= 1) return 0;
    Comm *c = calloc(1, sizeof *c);
    if (!c) return err_set("out of host memory");
    c->place   = *place;
    c->waits   = *waits;
    c->wake[0] = c->wake[1] = -1;
    if (start(c) < 0) {
        comm_close(c, 0);
        return -1;
    }
    *out = c;
    return 0;
}

int comm_open(Comm **out)
{
    Place       place;
    CommWaits   waits = comm_waits;
    const char *text  = getenv("BRIM_COMM_TIMEOUT");
    *out              = NULL;
    TRY(place_find(&place));
    if (text && (str_parse_double(text, &waits.meet_s) < 0 || waits.meet_s <= 0)) {
        return err_user("environment: BRIM_COMM_TIMEOUT=%s: expected seconds", text);
    }
    return comm_meet(out, &place, &waits);
}

/* The watcher goes on: it sees the others leave. */
void comm_leave(Comm *c)
{
    for (int r = 0; c && r < c->place.world; r++) wire_end(c->fd[r]);
}

void comm_close(Comm *c, int orderly)
{
    if (!c) return;
    /* Before the barrier: once it has passed, others may close while this rank still looks. */
    stop_watching(c);
    if (orderly && comm_barrier(c) < 0) err_clear(); /* somebody failed and says so itself */
    for (int r = 0; c->fd && r < c->place.world; r++) wire_close(&c->fd[r]);
    if (c->wake[0] >= 0) close(c->wake[0]);
    free(c->fd);
    free(c->piece);
    free(c);
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

/* This header goes ahead of every call, from the ranks that send first. So ranks out of step are found at
 * once, instead of giving numbers that make no sense. */
typedef struct {
    uint32_t call, n_call;
    uint64_t size_bytes;
} Head;

typedef enum {
    CALL_BARRIER,
    CALL_BROADCAST,
    CALL_SUM_F32,
    CALL_SUM_F64,
    CALL_MIN_I64,
    CALL_MAX_I64,
    CALL_GATHER
} Call;

static const char *const call_names[] = { "barrier", "broadcast", "sum f32", "sum f64",
                                          "min i64", "max i64",   "gather" };

static int lost(const Comm *c, int peer, WireResult r)
{
    if (r == WIRE_CLOSED) return err_set("rank %d: rank %d has left the run", c->place.rank, peer);
    if (r == WIRE_TIMEOUT)
        return err_set("rank %d: rank %d did not answer for %.0f s", c->place.rank, peer, c->waits.call_s);
    return err_sys("rank %d: connection to rank %d", c->place.rank, peer);
}

static int give(Comm *c, int peer, const void *buf, size_t n)
{
    WireResult r = wire_send(c->fd[peer], buf, n, deadline(c->waits.call_s));
    return r == WIRE_OK ? 0 : lost(c, peer, r);
}

static int take(Comm *c, int peer, void *buf, size_t n)
{
    WireResult r = wire_recv(c->fd[peer], buf, n, deadline(c->waits.call_s));
    return r == WIRE_OK ? 0 : lost(c, peer, r);
}

static int take_head(Comm *c, int peer, const Head *own)
{
    Head h;
    TRY(take(c, peer, &h, sizeof h));
    if (memcmp(&h, own, sizeof h) == 0) return 0;
    return err_set("ranks out of step: rank %d calls %s number %u with %llu bytes, rank %d calls %s number "
                   "%u with %llu bytes",
                   c->place.rank, call_names[own->call], own->n_call, (unsigned long long)own->size_bytes,
                   peer, h.call < ARRAY_LEN(call_names) ? call_names[h.call] : "?", h.n_call,
                   (unsigned long long)h.size_bytes);
}

/* Rank 0 hears from everybody; after this all ranks are known to make the same call. */
static int begin(Comm *c, Call call, size_t size_bytes)
{
    Head own = { call, c->n_call++, size_bytes };
    if (c->place.rank > 0) return give(c, 0, &own, sizeof own);
    for (int r = 1; r < c->place.world; r++) TRY(take_head(c, r, &own));
    return 0;
}

static int give_all(Comm *c, const void *buf, size_t n)
{
    for (int r = 1; r < c->place.world; r++) TRY(give(c, r, buf, n));
    return 0;
}

int comm_barrier(Comm *c)
{
    char done = 1;
    if (!c) return 0;
    TRY(begin(c, CALL_BARRIER, 0));
    return c->place.rank == 0 ? give_all(c, &done, 1) : take(c, 0, &done, 1);
}

/* One way only: rank 0 does not wait for the others, so a decision of rank 0 costs it nothing. */
int comm_broadcast(Comm *c, void *buf, size_t size_bytes)
{
    if (!c) return 0;
    Head own = { CALL_BROADCAST, c->n_call++, size_bytes };
    if (c->place.rank == 0) {
        TRY(give_all(c, &own, sizeof own));
        return give_all(c, buf, size_bytes);
    }
    TRY(take_head(c, 0, &own));
    return take(c, 0, buf, size_bytes);
}

typedef void (*Combine)(void *x, const void *y, size_t n_bytes);

static void sum_f32(void *x, const void *y, size_t n_bytes)
{
    float       *a = x;
    const float *b = y;
    for (size_t i = 0; i < n_bytes / sizeof *a; i++) a[i] += b[i];
}

static void sum_f64(void *x, const void *y, size_t n_bytes)
{
    double       *a = x;
    const double *b = y;
    for (size_t i = 0; i < n_bytes / sizeof *a; i++) a[i] += b[i];
}

static void min_i64(void *x, const void *y, size_t n_bytes)
{
    int64_t       *a = x;
    const int64_t *b = y;
    for (size_t i = 0; i < n_bytes / sizeof *a; i++) a[i] = MIN(a[i], b[i]);
}

static void max_i64(void *x, const void *y, size_t n_bytes)
{
    int64_t       *a = x;
    const int64_t *b = y;
    for (size_t i = 0; i < n_bytes / sizeof *a; i++) a[i] = MAX(a[i], b[i]);
}

/* Piece by piece: rank 0 adds the others' in the order of ranks and sends the result back. */
static int reduce(Comm *c, Call call, void *x, size_t size_bytes, Combine combine)
{
    if (!c) return 0;
    TRY(begin(c, call, size_bytes));
    for (size_t at = 0; at < size_bytes; at += PIECE_BYTES) {
        size_t n = MIN(size_bytes - at, (size_t)PIECE_BYTES);
        char  *p = (char *)x + at;
        if (c->place.rank > 0) {
            TRY(give(c, 0, p, n));
            TRY(take(c, 0, p, n));
            continue;
        }
        for (int r = 1; r < c->place.world; r++) {
            TRY(take(c, r, c->piece, n));
            combine(p, c->piece, n);
        }
        TRY(give_all(c, p, n));
    }
    return 0;
}

int comm_sum_f64(Comm *c, double *x, int64_t n)
{
    return reduce(c, CALL_SUM_F64, x, sizeof *x * (size_t)n, sum_f64);
}
int comm_min_i64(Comm *c, int64_t *x, int64_t n)
{
    return reduce(c, CALL_MIN_I64, x, sizeof *x * (size_t)n, min_i64);
}
int comm_max_i64(Comm *c, int64_t *x, int64_t n)
{
    return reduce(c, CALL_MAX_I64, x, sizeof *x * (size_t)n, max_i64);
}

int comm_all_reduce(Comm *c, DType dtype, void *x, int64_t n_elem)
{
    if (dtype == DT_F64) return comm_sum_f64(c, x, n_elem);
    CHECK(dtype == DT_F32, "a sum of %s over ranks", dtype_name(dtype));
    return reduce(c, CALL_SUM_F32, x, sizeof(float) * (size_t)n_elem, sum_f32);
}

int comm_all_gather(Comm *c, void *y, const void *x, size_t part_bytes)
{
    char *own = (char *)y + part_bytes * (size_t)comm_rank(c);
    if (own != x) memmove(own, x, part_bytes);
    if (!c) return 0;
    size_t whole = part_bytes * (size_t)c->place.world;
    TRY(begin(c, CALL_GATHER, part_bytes));
    if (c->place.rank > 0) {
        TRY(give(c, 0, own, part_bytes));
        return take(c, 0, y, whole);
    }
    for (int r = 1; r < c->place.world; r++) TRY(take(c, r, (char *)y + part_bytes * (size_t)r, part_bytes));
    return give_all(c, y, whole);
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

static int device_all_reduce(void *ctx, DType dtype, void *x, int64_t n_elem)
{
    return comm_all_reduce(ctx, dtype, x, n_elem);
}
static int device_all_gather(void *ctx, void *y, const void *x, size_t n)
{
    return comm_all_gather(ctx, y, x, n);
}

int comm_attach(Comm *c, Dev *dev)
{
    if (!c) return 0;
    const DevVt *vt = dev->vt;
    if (!vt->comm_open) return err_set("the %s backend cannot work with other ranks", vt->name);
    int64_t kind[2] = { vt->kind, -(int64_t)vt->kind };
    TRY(comm_max_i64(c, kind, 2));
    if (kind[0] != -kind[1])
        return err_set("rank %d computes on %s, others do not: name one device for all", c->place.rank,
                       vt->name);
    struct {
        int           ok;
        unsigned char id[COMM_ID_BYTES];
    } got = { 0 };
    if (c->place.rank == 0) got.ok = vt->comm_id(got.id) == 0;
    TRY(comm_broadcast(c, &got, sizeof got));
    if (!got.ok)
        return err_set("rank 0 could not open the communication library"); /* rank 0 keeps its own message */
    DevComm d = { .rank       = c->place.rank,
                  .world      = c->place.world,
                  .ctx        = c,
                  .all_reduce = device_all_reduce,
                  .all_gather = device_all_gather };
    memcpy(d.id, got.id, sizeof d.id);
    return vt->comm_open(dev, &d);
}
