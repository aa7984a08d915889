#define _GNU_SOURCE
#include "comm/launch.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    EXIT_BY_SIGNAL = 128, /* what shells add to the number of a signal */
    GRACE_S        = 15,  /* for ranks that rank 0 has left */
    POLL_US        = 20000,
    SAID_BYTES     = 1 << 20 /* of a rank, before what it said first is given up */
};

typedef struct {
    pid_t pid;
    int   said; /* a file without a name with all that the rank printed; -1: rank 0 */
    int   code; /* of its end; -1: at work */
} Rank;

/* ---- signals ------------------------------------------------------------------------------------------ */

/* What the handler shares with launch_ranks(): the last signal that a process sent. */
static volatile sig_atomic_t sent;

/* The kernel sends what a terminal's keys mean to all processes of the terminal. */
static void on_signal(int sig, siginfo_t *info, void *context)
{
    if (info->si_code <= 0) sent = sig;
}

static int catch_signals(void)
{
    static const int all[] = { SIGINT, SIGTERM, SIGUSR1, SIGHUP };
    struct sigaction act, before;
    memset(&act, 0, sizeof act);
    act.sa_sigaction = on_signal;
    act.sa_flags     = SA_SIGINFO;
    sigemptyset(&act.sa_mask);
    for (int i = 0; i < ARRAY_LEN(all); i++) {
        if (sigaction(all[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue; /* nohup */
        if (sigaction(all[i], &act, NULL) != 0) return err_sys("handler of signal %d", all[i]);
    }
    return 0;
}

/* ---- one process -------------------------------------------------------------------------------------- */

/* A port of the loopback that nobody listens on now. */
static int free_port(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t          n  = sizeof at;
    int                fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;
    if (fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &n) == 0)
        port = ntohs(at.sin_port);
    if (fd >= 0) close(fd);
    return port > 0 ? port : err_sys("a port for the ranks");
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* The CPUs of one of n ranks: neighbours of those that this process may use. */
static void take_cpus(int rank, int n)
{
    cpu_set_t all, own;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof all, &all) != 0 || CPU_COUNT(&all) < n) return;
    int count = CPU_COUNT(&all), k = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all)) continue;
        if ((int64_t)k * n / count == rank) CPU_SET(cpu, &own);
        k++;
    }
    sched_setaffinity(0, sizeof own, &own);
}

/* In the new process; does not return. */
static void become_rank(const Launch *l, int rank, int port, int said, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1); /* it has gone already */
    set_number("BRIM_RANK", rank);
    set_number("BRIM_LOCAL_RANK", rank);
    set_number("BRIM_WORLD_SIZE", l->n);
    set_number("BRIM_MASTER_PORT", port);
    setenv("BRIM_MASTER_ADDR", "127.0.0.1", 1);
    if (l->divide) take_cpus(rank, l->n);
    if (said >= 0) {
        dup2(said, STDOUT_FILENO);
        dup2(said, STDERR_FILENO);
    }
    execv("/proc/self/exe", l->argv);
    fprintf(stderr, "brim: rank %d cannot be started: %s\n", rank, strerror(errno));
    _exit(1);
}

static int start_rank(const Launch *l, Rank *r, int rank, int port)
{
    pid_t parent = getpid();
    *r           = (Rank){ .said = -1, .code = -1 };
    if (rank > 0) {
        r->said = memfd_create("rank", MFD_CLOEXEC);
        if (r->said < 0) return err_sys("memory for what rank %d says", rank);
    }
    fflush(NULL); /* or a child would write it, too */
    r->pid = fork();
    if (r->pid < 0) return err_sys("starting rank %d", rank);
    if (r->pid == 0) become_rank(l, rank, port, r->said, parent);
    return 0;
}

/* ---- all of them -------------------------------------------------------------------------------------- */

static int count_running(const Rank *r, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) count += r[i].pid > 0 && r[i].code < 0;
    return count;
}

static void signal_all(const Rank *r, int n, int sig)
{
    for (int i = 0; i < n; i++) {
        if (r[i].pid > 0 && r[i].code < 0) kill(r[i].pid, sig);
    }
}

/* Notes who has ended. */
static void reap(Rank *r, int n)
{
    for (int i = 0; i < n; i++) {
        int status;
        if (r[i].pid <= 0 || r[i].code >= 0 || waitpid(r[i].pid, &status, WNOHANG) != r[i].pid) continue;
        r[i].code = WIFSIGNALED(status) ? EXIT_BY_SIGNAL + WTERMSIG(status) : WEXITSTATUS(status);
    }
}

/* Environments of a rank may write lines for days. The rank writes on where it was: only pages are freed. */
static void forget_old(const Rank *r, int n)
{
    enum { KEEP_BYTES = 1 << 16 };
    struct stat st;
    for (int i = 1; i < n; i++) {
        if (r[i].said < 0 || fstat(r[i].said, &st) != 0 || st.st_blocks * 512 < SAID_BYTES) continue;
        fallocate(r[i].said, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, MAX(st.st_size - KEEP_BYTES, 1));
    }
}

static void wait_all(Rank *r, int n)
{
    double left_s = 0; /* when rank 0 left */
    while (reap(r, n), count_running(r, n) > 0) {
        double now_s = clock_now_s();
        int    sig   = sent;
        if (sig) {
            sent = 0; /* only here: cleared unseen, a signal would be lost */
            signal_all(r, n, sig);
        }
        if (r[0].code >= 0 && left_s == 0) left_s = now_s;
        if (left_s > 0 && now_s - left_s > GRACE_S) signal_all(r, n, SIGKILL);
        forget_old(r, n);
        usleep(POLL_US);
    }
}

static void show_signal(const Rank *r, int rank)
{
    if (r->code > EXIT_BY_SIGNAL)
        fprintf(stderr, "rank %d was ended by signal %d (%s)\n", rank, r->code - EXIT_BY_SIGNAL,
                strsignal(r->code - EXIT_BY_SIGNAL));
}

/* The end of what a rank said. */
static void show(const Rank *r, int rank)
{
    enum { MOST = 2000 };
    char    text[MOST + 1], *line = text, *rest = NULL;
    off_t   size = lseek(r->said, 0, SEEK_END), from = size > MOST ? size - MOST : 0;
    ssize_t n       = pread(r->said, text, MOST, from);
    text[MAX(n, 0)] = '\0';
    if (from > 0 && (line = strchr(text, '\n'))) line++; /* it began before */
    show_signal(r, rank);
    for (line = strtok_r(line ? line : text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        fprintf(stderr, "rank %d: %s\n", rank, line);
}

/* Rank 0 names what failed, whichever rank it was; unless it did not come to that. */
static int judge(const Rank *r, int n)
{
    int code = r[0].code, is_said = code > 0 && code < EXIT_BY_SIGNAL;
    show_signal(&r[0], 0);
    for (int i = 1; i < n; i++) {
        if (r[i].code == 0) continue;
        if (!is_said || r[i].code > EXIT_BY_SIGNAL) show(&r[i], i);
        if (code == 0) code = r[i].code;
    }
    return code;
}

int launch_ranks(const Launch *l)
{
    int   rc = 0, port = free_port();
    Rank *r = mem_zeroed((size_t)l->n, sizeof *r);
    if (!r || port < 0 || catch_signals() < 0) {
        free(r);
        return port < 0 || r ? -1 : err_sys("memory for ranks");
    }
    for (int i = 0; i < l->n && rc == 0; i++) rc = start_rank(l, &r[i], i, port);
    if (rc < 0) signal_all(r, l->n, SIGKILL);
    wait_all(r, l->n);
    if (rc == 0) rc = judge(r, l->n);
    for (int i = 1; i < l->n; i++) {
        if (r[i].said > 0) close(r[i].said);
    }
    free(r);
    return rc;
}
