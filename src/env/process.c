#define _GNU_SOURCE
#include "env/process.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "env/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { FRAME_MAX = 1 << 28 };

/* The child's descriptors are moved high first, so that none is overwritten before its turn. */
static int spawn(Process *p, char *const *argv, int command, int reply, int memory)
{
    posix_spawn_file_actions_t act;
    posix_spawnattr_t          attr;
    sigset_t                   none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&act);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setpgroup(&attr, 0); /* Ctrl-C reaches the trainer alone, which then ends the worker */
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawn_file_actions_adddup2(&act, command, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&act, STDERR_FILENO, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&act, reply, REMOTE_REPLY_FD);
    posix_spawn_file_actions_adddup2(&act, memory, REMOTE_MEMORY_FD);
    int rc = posix_spawnp(&p->pid, argv[0], &act, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&act);
    posix_spawnattr_destroy(&attr);
    if (rc == 0) return 0;
    p->pid = 0;
    errno  = rc;
    return err_sys("%s", argv[0]);
}

/* A descriptor of 10 or more: spawn() puts others in 0, 3 and 4. */
static int lift(int *fd)
{
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, 10);
    if (high < 0) return err_sys("worker descriptor");
    close(*fd);
    *fd = high;
    return 0;
}

int process_start(Process *p, char *const *argv, int memory)
{
    /* A socket instead of a pipe for commands: MSG_NOSIGNAL spares a handler for SIGPIPE. */
    int in[2] = { -1, -1 }, out[2] = { -1, -1 }, mem = dup(memory), rc = -1;
    *p = (Process){ .command = -1, .reply = -1 };
    if (mem < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in) < 0 || pipe2(out, O_CLOEXEC) < 0) {
        err_sys("worker descriptors");
        goto out;
    }
    if (lift(&mem) < 0 || lift(&in[0]) < 0 || lift(&in[1]) < 0 || lift(&out[0]) < 0 || lift(&out[1]) < 0)
        goto out;
    if (spawn(p, argv, in[0], out[1], mem) < 0) goto out;
    p->command = in[1];
    p->reply   = out[0];
    in[1] = out[0] = -1;
    rc             = 0;
out:
    for (int i = 0; i < 2; i++) {
        if (in[i] >= 0) close(in[i]);
        if (out[i] >= 0) close(out[i]);
    }
    if (mem >= 0) close(mem);
    return rc;
}

static int ended(pid_t pid, int *status, double within_s)
{
    for (double begin = clock_now_s();;) {
        if (waitpid(pid, status, WNOHANG) == pid) return 1;
        if (clock_now_s() - begin > within_s) return 0;
        poll(NULL, 0, 2);
    }
}

void process_stop(Process *p)
{
    enum { PATIENCE_S = 2 };
    int status;
    if (p->pid == 0) return;
    if (p->command >= 0) close(p->command);
    if (p->reply >= 0) close(p->reply);
    if (!ended(p->pid, &status, PATIENCE_S)) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, &status, 0);
    }
    *p = (Process){ .command = -1, .reply = -1 };
}

/* What became of a worker that closed its end. */
static int say_gone(Process *p)
{
    int status;
    if (!ended(p->pid, &status, 1)) return err_set("the worker closed its reply");
    close(p->command);
    close(p->reply);
    *p = (Process){ .command = -1, .reply = -1 };
    if (WIFSIGNALED(status)) return err_set("the worker died: %s", strsignal(WTERMSIG(status)));
    return err_set("the worker ended with exit code %d", WEXITSTATUS(status));
}

int process_send(Process *p, const void *bytes, int64_t n)
{
    const char *at = bytes;
    if (p->pid == 0) return err_set("the worker is gone");
    while (n > 0) {
        ssize_t k = send(p->command, at, (size_t)n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return errno == EPIPE || errno == ECONNRESET ? say_gone(p) : err_sys("worker command");
        at += k;
        n -= k;
    }
    return 0;
}

static int read_all(Process *p, void *bytes, int64_t n, double until_s, double timeout_s)
{
    char *at = bytes;
    while (n > 0) {
        struct pollfd f    = { .fd = p->reply, .events = POLLIN };
        double        left = until_s - clock_now_s();
        int           got  = poll(&f, 1, timeout_s < 0 ? -1 : left > 0 ? (int)(left * 1e3) + 1 : 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_sys("worker reply");
        if (got == 0) {
            kill(p->pid, SIGKILL);
            p->is_late = 1;
            return err_set("the worker hangs: no answer for %g s", timeout_s);
        }
        ssize_t k = read(p->reply, at, (size_t)n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return err_sys("worker reply");
        if (k == 0) return say_gone(p);
        at += k;
        n -= k;
    }
    return 0;
}

int process_receive(Process *p, char kind, double timeout_s, char **data, uint32_t *n_out)
{
    uint8_t head[5];
    double  until_s = clock_now_s() + timeout_s;
    if (p->pid == 0) return err_set("the worker is gone");
    TRY(read_all(p, head, sizeof head, until_s, timeout_s));
    uint32_t n = head[1] | (uint32_t)head[2] << 8 | (uint32_t)head[3] << 16 | (uint32_t)head[4] << 24;
    if (n > FRAME_MAX) return err_set("the worker's answer claims %u bytes", n);
    char *text = mem_alloc((size_t)n + 1);
    if (!text) return err_sys("memory for a worker's answer");
    int rc  = read_all(p, text, n, until_s, timeout_s);
    text[n] = '\0';
    /* A message has room for 1023 bytes; of a traceback the end says most. */
    if (rc == 0 && head[0] == 'f') p->is_hopeless = 1;
    if (rc == 0 && (head[0] == 'e' || head[0] == 'f')) rc = err_set("%s", text + (n > 900 ? n - 900 : 0));
    if (rc == 0 && (head[0] != (uint8_t)kind || (!data && n > 0)))
        rc = err_set("the worker answered something else than '%c'", kind);
    if (rc == 0 && data) {
        *data  = text;
        *n_out = n;
        return 0;
    }
    free(text);
    return rc;
}
