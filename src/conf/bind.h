/* Bind: the addresses on which the page may be served. */
#ifndef CONF_BIND_H
#define CONF_BIND_H

enum { BIND_TOKEN_LEAST = 16, BIND_TOKEN_MOST = 200 };

/* 1: only programs of this machine reach it (127.*, ::1, localhost); 0: others may; negative: not a
 * numeric address. */
int bind_is_local(const char *address);

#endif
