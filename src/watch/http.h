/* Http: the page, its data and its events, served to browsers and to Prometheus.
 *
 * 1. Answers come from the assets in the program and from Runs; no request names a file on disk.
 * 2. Memory is bounded: HTTP_CONNECTIONS connections with HTTP_REQUEST_BYTES each. A connection that does
 *    nothing for HTTP_IDLE_S is closed.
 * 3. Other machines need a token. A Host header must be a numeric address or this machine's name; any other
 *    is refused. So a foreign site cannot reach the page by pointing its own name at this machine.
 * 4. There is no TLS. Use ssh -L, a proxy that has TLS, or a network that you trust. */
#ifndef WATCH_HTTP_H
#define WATCH_HTTP_H

#include <stddef.h>
#include <stdint.h>

enum {
    HTTP_CONNECTIONS   = 256,
    HTTP_EVENTS        = 48, /* of these, that may wait for events */
    HTTP_REQUEST_BYTES = 32 << 10,
    HTTP_IDLE_S        = 10,
};

typedef struct HttpServer HttpServer;

/* What the user calls the options, for messages: "--port", "watch.port". NULL: "port". */
typedef struct {
    const char *bind, *port, *token;
} HttpKeys;

typedef struct {
    const char *base;      /* folder of runs */
    const char *bind;      /* numeric address or localhost */
    int         port;      /* 0: any that is free */
    const char *token;     /* "" or NULL: none */
    const char *nvml_path; /* as in nvml_open() */
    int         idle_s;    /* 0: HTTP_IDLE_S */
    HttpKeys    keys;
} HttpOptions;

int http_is_built(void); /* 0: this program was built without libmicrohttpd */

/* Serves until http_stop(), from threads of its own. NULL after err_user() (address, token, port in use) or
 * err_set(). */
HttpServer *http_start(const HttpOptions *o);
void        http_stop(HttpServer *s); /* NULL is allowed */
int         http_port(const HttpServer *s);
/* "http://127.0.0.1:8265/" into buf. Returns buf. */
const char *http_url(const HttpServer *s, char *buf, size_t n);

#endif
