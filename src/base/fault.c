#include "base/fault.h"

#include "base/err.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int         errnum;
} fault_table[FAULT_COUNT] = {
    [FAULT_MALLOC] = { "malloc", ENOMEM }, [FAULT_OPEN] = { "open", EMFILE },
    [FAULT_READ] = { "read", EIO },        [FAULT_WRITE] = { "write", ENOSPC },
    [FAULT_FSYNC] = { "fsync", EIO },      [FAULT_RENAME] = { "rename", EIO },
    [FAULT_MMAP] = { "mmap", ENOMEM },     [FAULT_THREAD] = { "thread", EAGAIN },
};

static struct {
    pthread_once_t   once;
    atomic_int       op; /* -1: nothing armed */
    int              onward;
    int64_t          n;
    _Atomic(int64_t) count;
} fault = { .once = PTHREAD_ONCE_INIT, .op = -1 };

static void fault_store(FaultOp op, int64_t n, int onward)
{
    atomic_store(&fault.op, -1);
    fault.n      = n;
    fault.onward = onward;
    atomic_store(&fault.count, 0);
    atomic_store(&fault.op, (int)op);
}

static void fault_read_environment(void)
{
    const char *text = getenv("BRIM_FAULT");
    if (!text || !*text) return;
    for (int i = 0; i < FAULT_COUNT; i++) {
        size_t len = strlen(fault_table[i].name);
        if (strncmp(text, fault_table[i].name, len) != 0 || text[len] != ':') continue;
        char     *end;
        long long n      = strtoll(text + len + 1, &end, 10);
        int       onward = *end == '+';
        if (n < 1 || end[onward] != '\0') break;
        fault_store((FaultOp)i, n, onward);
        return;
    }
    CHECK(0, "BRIM_FAULT=%s is not \"op:n\" with op one of malloc open read write fsync rename mmap thread",
          text);
}

int fault_hit(FaultOp op)
{
    pthread_once(&fault.once, fault_read_environment);
    if (atomic_load_explicit(&fault.op, memory_order_acquire) != (int)op) return 0;
    int64_t count = atomic_fetch_add(&fault.count, 1) + 1;
    if (count != fault.n && !(fault.onward && count > fault.n)) return 0;
    errno = fault_table[op].errnum;
    return 1;
}

void fault_arm(FaultOp op, int64_t n, int onward)
{
    pthread_once(&fault.once, fault_read_environment);
    fault_store(op, n, onward);
}

void fault_disarm(void)
{
    pthread_once(&fault.once, fault_read_environment);
    atomic_store(&fault.op, -1);
}
