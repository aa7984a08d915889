/* Gate: who may see the page. Pure functions on untrusted text. */
#ifndef WATCH_GATE_H
#define WATCH_GATE_H

#include <stddef.h>

/* 1 when the words are the same. Takes as long for any `given` of at most GATE_MOST bytes: the answer's
 * time tells nothing about how much of it was right. */
enum { GATE_MOST = 256 };
int gate_same(const char *secret, const char *given);

/* 1 when the Host header names this server: a numeric address, localhost, or own_name, with any port behind
 * it. A foreign site may point its own name at this machine; then a page of that site would be let in. */
int gate_host_is_ours(const char *host, const char *own_name);

/* The token of an Authorization header ("Bearer X"), or NULL. Points into the header. */
const char *gate_bearer(const char *header);

/* Copies the value of cookie `name` into buf; negative when there is none or it does not fit. */
int gate_cookie(const char *header, const char *name, char *buf, size_t n);

#endif
