/* Wire: whole messages over TCP, each within a deadline. This file knows no ranks.
 *
 * 1. Every socket is non-blocking and closed on exec; a call waits in poll() until its deadline
 *    (clock_now_s() seconds).
 * 2. Calls answer with a WireResult instead of a message: only the caller knows who is at the other end. */
#ifndef COMM_WIRE_H
#define COMM_WIRE_H

#include <stddef.h>

typedef enum {
    WIRE_OK      = 0,
    WIRE_FAILED  = -1, /* errno says why */
    WIRE_TIMEOUT = -2,
    WIRE_CLOSED  = -3 /* the other end is gone */
} WireResult;

/* A listening socket. A loopback host is bound to loopback alone, any other one to all interfaces. Negative:
 * WireResult. */
int wire_listen(const char *host, int port);
/* The next connection. Negative: WireResult. */
int wire_accept(int listener, double deadline_s);
/* One attempt. Negative: WireResult; an unknown host is WIRE_FAILED with errno EHOSTUNREACH. */
int wire_connect(const char *host, int port, double deadline_s);

WireResult wire_send(int fd, const void *buf, size_t n, double deadline_s);
WireResult wire_recv(int fd, void *buf, size_t n, double deadline_s);

void wire_end(int fd);    /* the other end reads to the end of what was sent; nothing for a negative one */
void wire_close(int *fd); /* and sets it to -1; nothing for a negative one */

#endif
