#include "base/fault.h"

#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct {
    const char *name;
    int         errnum;
} fault_table[FAULT_COUNT] = {
    [FAULT_MALLOC] = { "malloc", ENOMEM }, [FAULT_OPEN] = { "open", EMFILE },
    [FAULT_READ] = { "read", EIO },        [FAULT_WRITE] = { "write", ENOSPC },
    [FAULT_FSYNC] = { "fsync", EIO },      [FAULT_RENAME] = { "rename", EIO },
    [FAULT_MMAP] = { "mmap", ENOMEM },     [FAULT_THREAD] = { "thread", EAGAIN },
    [FAULT_NAN] = { "nan", EDOM },         [FAULT_SPIKE] = { "spike", EDOM },
    [FAULT_DEVICE] = { "device", EIO },    [FAULT_OVERFLOW] = { "overflow", EDOM },
};

static struct {
    pthread_once_t once;
    atomic_uint    armed; /* bit per op */
    struct {
        int              loud;
        int64_t          first, last; /* calls that fail */
        _Atomic(int64_t) count;
    } op[FAULT_COUNT];
} fault = { .once = PTHREAD_ONCE_INIT };

static void fault_store(FaultOp op, int64_t first, int64_t last, int loud)
{
    atomic_fetch_and(&fault.armed, ~(1u << op));
    fault.op[op].first = first;
    fault.op[op].last  = last;
    fault.op[op].loud  = loud;
    atomic_store(&fault.op[op].count, 0);
    atomic_fetch_or(&fault.armed, 1u << op);
}

/* Arms the item "op:n", "op:n+" or "op:n-m" at the start of text; returns what follows it, NULL when it is
 * malformed. */
static const char *fault_read_item(const char *text)
{
    for (int i = 0; i < FAULT_COUNT; i++) {
        size_t len = strlen(fault_table[i].name);
        if (strncmp(text, fault_table[i].name, len) != 0 || text[len] != ':') continue;
        char     *end;
        long long first = strtoll(text + len + 1, &end, 10), last = first;
        if (*end == '-') {
            last = strtoll(end + 1, &end, 10);
        } else if (*end == '+') {
            last = INT64_MAX;
            end++;
        }
        if (first < 1 || last < first || (*end != '\0' && *end != ',')) return NULL;
        fault_store((FaultOp)i, first, last, 1);
        return end;
    }
    return NULL;
}

/* " malloc open ..." */
static const char *fault_names(char *buf, size_t n)
{
    buf[0] = '\0';
    for (int i = 0; i < FAULT_COUNT; i++) str_append(buf, n, " %s", fault_table[i].name);
    return buf;
}

static void fault_read_environment(void)
{
    char        names[128];
    const char *text = getenv("BRIM_FAULT"), *at = text;
    while (at && *at) {
        at = fault_read_item(at);
        CHECK(at, "BRIM_FAULT=%s is not a list of \"op:n\" with op one of%s", text,
              fault_names(names, sizeof names));
        if (*at == ',') at++;
    }
}

int fault_hit(FaultOp op)
{
    pthread_once(&fault.once, fault_read_environment);
    if (!(atomic_load_explicit(&fault.armed, memory_order_acquire) & (1u << op))) return 0;
    int64_t count = atomic_fetch_add(&fault.op[op].count, 1) + 1;
    if (count < fault.op[op].first || count > fault.op[op].last) return 0;
    if (fault.op[op].loud) {
        fprintf(stderr, "brim: BRIM_FAULT: %s %lld fails\n", fault_table[op].name, (long long)count);
        log_note("BRIM_FAULT: %s %lld fails", fault_table[op].name, (long long)count);
    }
    errno = fault_table[op].errnum;
    return 1;
}

static struct {
    pthread_once_t once;
    int            us, works;
} slow = { .once = PTHREAD_ONCE_INIT };

static void slow_read_environment(void)
{
    const char *text = getenv("BRIM_SLOW");
    if (!text || !*text) return;
    char *end  = NULL;
    slow.works = strncmp(text, "work:", 5) == 0;
    long us    = slow.works || strncmp(text, "sleep:", 6) == 0 ? strtol(strchr(text, ':') + 1, &end, 10) : 0;
    CHECK(us > 0 && us <= 1000000 && *end == '\0', "BRIM_SLOW=%s is neither sleep:US nor work:US", text);
    slow.us = (int)us;
    log_note("BRIM_SLOW: each sample takes %d us more", slow.us);
}

void fault_slow(void)
{
    pthread_once(&slow.once, slow_read_environment);
    if (slow.us == 0) return;
    struct timespec t = { .tv_nsec = (long)slow.us % 1000000 * 1000, .tv_sec = slow.us / 1000000 };
    if (!slow.works) {
        nanosleep(&t, NULL);
        return;
    }
    struct timespec from, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000L + (now.tv_nsec - from.tv_nsec) / 1000 < slow.us);
}

void fault_disarm(void)
{
    pthread_once(&fault.once, fault_read_environment);
    atomic_store(&fault.armed, 0);
}

void fault_arm(FaultOp op, int64_t n, int onward)
{
    fault_disarm(); /* one fault at a time: a test that arms another does not want the first any more */
    fault_store(op, n, onward ? INT64_MAX : n, 0);
}
