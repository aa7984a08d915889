/* Ranks: forks the processes of a test, each in its own child, and collects their results in shared memory.
 * Knows no test framework. The parent must not have run OpenMP code: its threads do not survive fork(). */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "base/clock.h"
#include "base/err.h"
#include "comm/comm.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 8 };

/* Memory that children share with the parent; zeroed. */
static inline void *ranks_shared(size_t n)
{
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED, "mmap");
    return p;
}

/* A loopback port that nobody uses right now. */
static inline int ranks_free_port(void)
{
    struct sockaddr_in a  = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t          n  = sizeof a;
    int                fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
              getsockname(fd, (struct sockaddr *)&a, &n) == 0,
          "no port");
    close(fd);
    return ntohs(a.sin_port);
}

static inline Place ranks_place(int rank, int world, int port)
{
    Place p = { .rank = rank, .world = world, .local_rank = rank, .port = port, .launcher = "test" };
    strcpy(p.host, "127.0.0.1");
    return p;
}

/* Sets what torchrun would. world 1: nothing. */
static inline void ranks_environment(int rank, int world, int port)
{
    char text[16];
    if (world <= 1) return;
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    snprintf(text, sizeof text, "%d", world);
    setenv("WORLD_SIZE", text, 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

/* Runs body(rank, world, port, arg) in `world` children, which end with its result, and fills status[] with
 * their exit codes (128 + signal when killed). A child that takes longer than limit_s is ended by SIGALRM.
 * Returns 1 if all ended with 0. */
static inline int ranks_run(int world, int limit_s, int (*body)(int rank, int world, int port, void *arg),
                            void *arg, int *status)
{
    pid_t pid[RANKS_MAX];
    int   port = ranks_free_port(), all = 1;
    CHECK(world <= RANKS_MAX, "%d ranks", world);
    fflush(stdout);
    fflush(stderr);
    for (int r = 0; r < world; r++) {
        pid[r] = fork();
        CHECK(pid[r] >= 0, "fork");
        if (pid[r] == 0) {
            alarm((unsigned)limit_s);
            int rc = body(r, world, port, arg);
            if (err_kind() != ERR_NONE) fprintf(stderr, "rank %d of %d: %s\n", r, world, err_get());
            fflush(stdout);
            _exit(rc < 0 ? 1 : rc);
        }
    }
    for (int r = 0; r < world; r++) {
        int s = 0;
        CHECK(waitpid(pid[r], &s, 0) == pid[r], "waitpid");
        s = WIFEXITED(s) ? WEXITSTATUS(s) : 128 + WTERMSIG(s);
        if (status) status[r] = s;
        all &= s == 0;
    }
    return all;
}

#endif
