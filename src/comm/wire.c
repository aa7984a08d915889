#define _GNU_SOURCE /* accept4 */
#include "comm/wire.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void wire_end(int fd)
{
    if (fd >= 0) (void)shutdown(fd, SHUT_WR); /* it fails where the other end is gone already */
}

void wire_close(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static WireResult wait_for(int fd, short events, double deadline_s)
{
    for (;;) {
        double        left = deadline_s - clock_now_s();
        struct pollfd p    = { .fd = fd, .events = events };
        int           n    = poll(&p, 1, left <= 0 ? 0 : (int)MIN(left * 1e3 + 1, 60e3));
        if (n > 0) return WIRE_OK;
        if (n < 0 && errno != EINTR) return WIRE_FAILED;
        if (n == 0 && clock_now_s() >= deadline_s) return WIRE_TIMEOUT;
    }
}

/* Small messages go out at once, and a machine that vanished is noticed within two minutes. These are wishes:
 * a kernel that refuses one still moves the bytes. */
static void tune_socket(int fd)
{
    int on = 1, idle = 30, interval = 10, count = 6;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

static int is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0;
}

static struct addrinfo *resolve(const char *host, int port, int flags)
{
    char             text[16];
    struct addrinfo *list = NULL,
                    hint  = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags };
    snprintf(text, sizeof text, "%d", port);
    if (getaddrinfo(host, text, &hint, &list) == 0) return list;
    errno = EHOSTUNREACH;
    return NULL;
}

static int listen_at(const struct addrinfo *a)
{
    int on = 1, off = 0, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return WIRE_FAILED;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1024) == 0) return fd;
    int why = errno;
    wire_close(&fd);
    errno = why;
    return WIRE_FAILED;
}

int wire_listen(const char *host, int port)
{
    struct addrinfo *list = resolve(is_loopback(host) ? host : NULL, port, AI_PASSIVE);
    if (!list) return WIRE_FAILED;
    /* An IPv6 wildcard socket takes IPv4 too, so it is tried first; machines without IPv6 fall through. */
    int fd = WIRE_FAILED;
    for (int want6 = 1; want6 >= 0 && fd < 0; want6--) {
        for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
            if ((a->ai_family == AF_INET6) == want6) fd = listen_at(a);
        }
    }
    freeaddrinfo(list);
    return fd;
}

int wire_accept(int listener, double deadline_s)
{
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            tune_socket(fd);
            return fd;
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) return WIRE_FAILED;
        WireResult r = wait_for(listener, POLLIN, deadline_s);
        if (r != WIRE_OK) return r;
    }
}

static int connect_to(const struct addrinfo *a, double deadline_s)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), why = 0;
    if (fd < 0) return WIRE_FAILED;
    WireResult r = WIRE_OK;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        socklen_t n = sizeof why;
        r           = errno == EINPROGRESS ? wait_for(fd, POLLOUT, deadline_s) : WIRE_FAILED;
        why         = errno;
        if (r == WIRE_OK && (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) != 0 || why != 0))
            r = WIRE_FAILED;
    }
    if (r == WIRE_OK) {
        tune_socket(fd);
        return fd;
    }
    wire_close(&fd);
    errno = why;
    return r;
}

int wire_connect(const char *host, int port, double deadline_s)
{
    struct addrinfo *list = resolve(host, port, 0);
    if (!list) return WIRE_FAILED;
    int fd = WIRE_FAILED;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next) fd = connect_to(a, deadline_s);
    int why = errno;
    freeaddrinfo(list);
    errno = why;
    return fd;
}

static int gone(int e) { return e == EPIPE || e == ECONNRESET || e == ETIMEDOUT; }

WireResult wire_send(int fd, const void *buf, size_t n, double deadline_s)
{
    const char *p = buf;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k >= 0) {
            p += k;
            n -= (size_t)k;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            WireResult r = wait_for(fd, POLLOUT, deadline_s);
            if (r != WIRE_OK) return r;
        } else if (errno != EINTR) {
            return gone(errno) ? WIRE_CLOSED : WIRE_FAILED;
        }
    }
    return WIRE_OK;
}

WireResult wire_recv(int fd, void *buf, size_t n, double deadline_s)
{
    char *p = buf;
    while (n > 0) {
        ssize_t k = recv(fd, p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k == 0) {
            return WIRE_CLOSED;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            WireResult r = wait_for(fd, POLLIN, deadline_s);
            if (r != WIRE_OK) return r;
        } else if (errno != EINTR) {
            return gone(errno) ? WIRE_CLOSED : WIRE_FAILED;
        }
    }
    return WIRE_OK;
}
