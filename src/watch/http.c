/* The server, on libmicrohttpd. One thread of the library answers all requests. One thread of Brim (the
 * ticker) looks at the runs once a second and wakes the connections that wait for events.
 *
 * `lock` protects every field of HttpServer below it. A connection that waits for events is suspended, which
 * costs nothing. It is resumed under the same lock, so no connection is resumed before it was suspended. */
#include "watch/http.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/thread.h"
#include "conf/bind.h"
#include "watch/api.h"
#include "watch/assets.h"
#include "watch/gate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* HOST_S: where nothing else changes, pages still show what the host does. */
static const double TICK_S = 1, HOST_S = 2;

/* A connection that waits for events. */
typedef struct Waiter {
    struct Waiter         *next;
    HttpServer            *server;
    struct MHD_Connection *connection;
    int                    is_suspended;
    int64_t                seen; /* which payload was sent */
    char                  *text; /* on its way, or NULL */
    size_t                 len, sent;
} Waiter;

struct HttpServer {
    struct MHD_Daemon *daemon;
    char               token[GATE_MOST], own_name[64], bind[64];
    char               cookie[32]; /* its name: browsers give it to every port of this machine */
    int                port;
    Thread             ticker;
    pthread_mutex_t    lock;
    pthread_cond_t     wake;
    Runs               runs;
    Gpus               gpus;
    int                stop;
    Waiter            *waiters;
    int                n_waiter;
    char              *payload; /* the newest event */
    size_t             n_payload;
    int64_t            n_event;
    double             event_s;
};

int http_is_built(void) { return 1; }
int http_port(const HttpServer *s) { return s->port; }

const char *http_url(const HttpServer *s, char *buf, size_t n)
{
    snprintf(buf, n, strchr(s->bind, ':') ? "http://[%s]:%d/" : "http://%s:%d/", s->bind, s->port);
    return buf;
}

/* ---- Answers ------------------------------------------------------------------------------------------- */

static void add_headers(struct MHD_Response *r, const char *type)
{
    static const char *const header[][2] = {
        { "Cache-Control", "no-store" },
        { "X-Content-Type-Options", "nosniff" },
        { "X-Frame-Options", "DENY" },
        { "Referrer-Policy", "no-referrer" },
        { "Cross-Origin-Resource-Policy", "same-origin" },
        { "Content-Security-Policy",
          "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
          "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
    };
    MHD_add_response_header(r, "Content-Type", type);
    for (int i = 0; i < ARRAY_LEN(header); i++) MHD_add_response_header(r, header[i][0], header[i][1]);
}

static enum MHD_Result reply(struct MHD_Connection *c, unsigned status, const char *type,
                             struct MHD_Response *r)
{
    if (!r) return MHD_NO;
    add_headers(r, type);
    enum MHD_Result rc = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return rc;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned status, const char *text)
{
    return reply(
        c, status, "text/plain; charset=utf-8",
        MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_PERSISTENT));
}

/* Takes text. */
static enum MHD_Result send_text(struct MHD_Connection *c, const char *type, char *text, size_t n)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (!r) free(text);
    return reply(c, MHD_HTTP_OK, type, r);
}

static enum MHD_Result send_asset(HttpServer *s, struct MHD_Connection *c, const Asset *a, int set_cookie)
{
    char                 cookie[GATE_MOST + 100];
    struct MHD_Response *r =
        MHD_create_response_from_buffer(a->n, (void *)(uintptr_t)a->bytes, MHD_RESPMEM_PERSISTENT);
    if (r &&
        set_cookie) { /* so that scripts, styles and events need not carry the token in their addresses */
        snprintf(cookie, sizeof cookie, "%s=%s; HttpOnly; SameSite=Strict; Path=/", s->cookie, s->token);
        MHD_add_response_header(r, "Set-Cookie", cookie);
    }
    return reply(c, MHD_HTTP_OK, a->type, r);
}

/* ---- Events -------------------------------------------------------------------------------------------- */

/* The next bytes of an event, or none: then the connection sleeps until the ticker has another one. */
static ssize_t read_events(void *arg, uint64_t at, char *buf, size_t max)
{
    Waiter     *w = (Waiter *)arg;
    HttpServer *s = w->server;
    ssize_t     n = 0;
    thread_lock(&s->lock);
    if (w->text && w->sent == w->len) {
        free(w->text);
        w->text = NULL;
    }
    if (!w->text && w->seen < s->n_event && s->payload) {
        w->text = (char *)mem_alloc(s->n_payload);
        w->len  = w->text ? s->n_payload : 0;
        w->sent = 0;
        w->seen = s->n_event;
        if (w->text) memcpy(w->text, s->payload, s->n_payload);
    }
    if (s->stop) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (w->text) {
        n = (ssize_t)MIN(max, w->len - w->sent);
        memcpy(buf, w->text + w->sent, (size_t)n);
        w->sent += (size_t)n;
    } else {
        w->is_suspended = 1;
        MHD_suspend_connection(w->connection);
    }
    thread_unlock(&s->lock);
    return n;
}

static void end_events(void *arg)
{
    Waiter     *w = (Waiter *)arg;
    HttpServer *s = w->server;
    thread_lock(&s->lock);
    for (Waiter **p = &s->waiters; *p; p = &(*p)->next) {
        if (*p != w) continue;
        *p = w->next;
        s->n_waiter--;
        break;
    }
    thread_unlock(&s->lock);
    free(w->text);
    free(w);
}

static enum MHD_Result serve_events(HttpServer *s, struct MHD_Connection *c)
{
    Waiter *w = NULL;
    thread_lock(&s->lock);
    if (s->n_waiter < HTTP_EVENTS && (w = (Waiter *)mem_zeroed(1, sizeof *w))) {
        *w         = (Waiter){ .next = s->waiters, .server = s, .connection = c, .seen = -1 };
        s->waiters = w;
        s->n_waiter++;
    }
    thread_unlock(&s->lock);
    if (!w) return refuse(c, MHD_HTTP_SERVICE_UNAVAILABLE, "too many pages wait for events\n");
    struct MHD_Response *r =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_events, w, end_events);
    if (!r) end_events(w);
    return reply(c, MHD_HTTP_OK, "text/event-stream", r);
}

/* ---- Data ---------------------------------------------------------------------------------------------- */

typedef enum { DATA_RUNS, DATA_RUN, DATA_PROMETHEUS } DataPage;

static enum MHD_Result serve_data(HttpServer *s, struct MHD_Connection *c, DataPage page, const char *name,
                                  double from, int64_t log)
{
    char  *text = NULL;
    size_t n    = 0;
    int    rc   = 0;
    FILE  *f    = open_memstream(&text, &n);
    if (!f) return refuse(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n");
    thread_lock(&s->lock);
    RunView *v = page == DATA_RUN ? runs_find(&s->runs, name) : NULL;
    if (page == DATA_RUNS) rc = api_runs(&s->runs, &s->gpus, f);
    if (page == DATA_PROMETHEUS) api_prometheus(&s->runs, &s->gpus, f);
    if (v) rc = api_run(&s->runs, v, from, log, f);
    thread_unlock(&s->lock);
    if (fclose(f) != 0 || rc < 0 || (page == DATA_RUN && !v)) {
        err_clear();
        free(text);
        if (page == DATA_RUN && !v) return refuse(c, MHD_HTTP_NOT_FOUND, "no such run\n");
        return refuse(c, MHD_HTTP_INTERNAL_SERVER_ERROR, "the run cannot be read\n");
    }
    return send_text(
        c, page == DATA_PROMETHEUS ? "text/plain; version=0.0.4; charset=utf-8" : "application/json", text,
        n);
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* 0: not let in; 1: by header or cookie; 2: by the address. */
static int let_in(const HttpServer *s, struct MHD_Connection *c)
{
    char        cookie[GATE_MOST];
    const char *bearer = gate_bearer(MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization"));
    const char *asked  = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token");
    if (!s->token[0]) return 1;
    if (asked && gate_same(s->token, asked)) return 2;
    if (bearer && gate_same(s->token, bearer)) return 1;
    return gate_cookie(MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Cookie"), s->cookie, cookie,
                       sizeof cookie) == 0 &&
           gate_same(s->token, cookie);
}

static enum MHD_Result route(HttpServer *s, struct MHD_Connection *c, const char *url, int by_address)
{
    static const char one[] = "/api/runs/";
    Asset             a;
    if (asset_find(url, &a)) return send_asset(s, c, &a, by_address && s->token[0]);
    if (strcmp(url, "/api/runs") == 0) return serve_data(s, c, DATA_RUNS, NULL, 0, -1);
    if (strcmp(url, "/metrics") == 0) return serve_data(s, c, DATA_PROMETHEUS, NULL, 0, -1);
    if (strcmp(url, "/events") == 0) return serve_events(s, c);
    if (str_starts_with(url, one)) {
        const char *text   = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "from");
        const char *behind = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "log");
        double      from   = 0;
        int64_t     log    = -1;
        if (text && str_parse_double(text, &from) < 0)
            return refuse(c, MHD_HTTP_BAD_REQUEST, "from: not a number\n");
        if (behind && str_parse_int(behind, &log) < 0)
            return refuse(c, MHD_HTTP_BAD_REQUEST, "log: not a number of bytes\n");
        return serve_data(s, c, DATA_RUN, url + sizeof one - 1, from, log);
    }
    return refuse(c, MHD_HTTP_NOT_FOUND, "there is nothing here\n");
}

static enum MHD_Result answer(void *arg, struct MHD_Connection *c, const char *url, const char *method,
                              const char *version, const char *upload, size_t *n_upload, void **state)
{
    HttpServer *s = (HttpServer *)arg;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
    if (!*state) { /* headers are complete; a body would follow, and is not read */
        *state = s;
        return MHD_YES;
    }
    if (!gate_host_is_ours(MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host"), s->own_name))
        return refuse(c, MHD_HTTP_MISDIRECTED_REQUEST, "the Host header names another machine\n");
    int in = let_in(s, c);
    if (!in)
        return refuse(c, MHD_HTTP_UNAUTHORIZED,
                      "a token is needed: /?token=WORD, or Authorization: Bearer WORD\n");
    return route(s, c, url, in == 2);
}

/* ---- The ticker ---------------------------------------------------------------------------------------- */

static void make_payload(HttpServer *s)
{
    char  *text = NULL;
    size_t n    = 0;
    FILE  *f    = open_memstream(&text, &n);
    if (!f) return;
    fputs("event: runs\ndata: ", f);
    int rc = api_runs(&s->runs, &s->gpus, f); /* ends with a line break */
    fputs("\n", f);
    if (fclose(f) != 0 || rc < 0) {
        err_clear();
        free(text);
        return;
    }
    free(s->payload);
    s->payload   = text;
    s->n_payload = n;
    s->n_event++;
    s->event_s = clock_now_s();
}

static void wake_waiters(HttpServer *s)
{
    for (Waiter *w = s->waiters; w; w = w->next) {
        if (!w->is_suspended) continue;
        w->is_suspended = 0;
        MHD_resume_connection(w->connection);
    }
}

static void tick(void *arg)
{
    HttpServer *s = (HttpServer *)arg;
    thread_lock(&s->lock);
    while (!s->stop) {
        int changed = runs_refresh(&s->runs);
        gpus_refresh(&s->gpus);
        int is_old = s->waiters && clock_now_s() - s->event_s > HOST_S;
        if (changed || s->gpus.n_gpu > 0 || !s->payload || is_old) make_payload(s);
        wake_waiters(s);
        struct timespec until = thread_deadline(TICK_S);
        while (!s->stop && pthread_cond_timedwait(&s->wake, &s->lock, &until) == 0) continue;
    }
    thread_unlock(&s->lock);
}

/* ---- Starting and stopping ----------------------------------------------------------------------------- */

static const char *or_else(const char *key, const char *usual) { return key ? key : usual; }

static int refuse_address(const HttpOptions *o)
{
    return err_user("%s: %s is not an address (for example 127.0.0.1, 0.0.0.0 or ::1)",
                    or_else(o->keys.bind, "bind"), o->bind);
}

static int listen_on(const HttpOptions *o)
{
    struct sockaddr_in  v4  = { .sin_family = AF_INET, .sin_port = htons((uint16_t)o->port) };
    struct sockaddr_in6 v6  = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)o->port) };
    const char         *at  = strcmp(o->bind, "localhost") == 0 ? "127.0.0.1" : o->bind;
    int                 is6 = inet_pton(AF_INET6, at, &v6.sin6_addr) == 1, one = 1;
    if (!is6 && inet_pton(AF_INET, at, &v4.sin_addr) != 1) return refuse_address(o);
    int fd = socket(is6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_sys("socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const struct sockaddr *address = is6 ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4;
    if (bind(fd, address, is6 ? sizeof v6 : sizeof v4) != 0 || listen(fd, 128) != 0) {
        int is_port = errno == EADDRINUSE || errno == EACCES;
        err_user("%s: %s port %d: %s (%s)",
                 is_port ? or_else(o->keys.port, "port") : or_else(o->keys.bind, "bind"), o->bind, o->port,
                 strerror(errno),
                 is_port ? "another number, or 0 for any that is free"
                         : "an address of this machine is needed");
        close(fd);
        return -1;
    }
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_storage a;
    socklen_t               n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0) return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

static int check_options(const HttpOptions *o)
{
    int    local = bind_is_local(o->bind);
    size_t n     = o->token ? strlen(o->token) : 0;
    if (local < 0) return refuse_address(o);
    if (!local && n == 0)
        return err_user("%s: %s can be reached from other machines: %s is missing",
                        or_else(o->keys.bind, "bind"), o->bind, or_else(o->keys.token, "token"));
    if (n > 0 && (n < BIND_TOKEN_LEAST || n > BIND_TOKEN_MOST)) {
        return err_user("%s has %zu characters; %d to %d are needed", or_else(o->keys.token, "token"), n,
                        BIND_TOKEN_LEAST, BIND_TOKEN_MOST);
    }
    return 0;
}

static HttpServer *create(const HttpOptions *o)
{
    HttpServer *s = (HttpServer *)mem_zeroed(1, sizeof *s);
    if (!s) {
        err_sys("memory for the page");
        return NULL;
    }
    str_copy(s->token, sizeof s->token, o->token ? o->token : "");
    str_copy(s->bind, sizeof s->bind, o->bind);
    pthread_mutex_init(&s->lock, NULL);
    thread_cond_init(&s->wake);
    gpus_init(&s->gpus, o->nvml_path);
    str_copy(s->own_name, sizeof s->own_name, s->gpus.host_name);
    if (runs_init(&s->runs, o->base) == 0) {
        runs_refresh(&s->runs);
        return s;
    }
    http_stop(s);
    return NULL;
}

HttpServer *http_start(const HttpOptions *o)
{
    if (check_options(o) < 0) return NULL;
    int fd = listen_on(o);
    if (fd < 0) return NULL;
    HttpServer *s = create(o);
    if (!s) {
        close(fd);
        return NULL;
    }
    s->port = port_of(fd);
    snprintf(s->cookie, sizeof s->cookie, "brim_token_%d", s->port);
    s->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, answer, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)HTTP_CONNECTIONS,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(o->idle_s > 0 ? o->idle_s : HTTP_IDLE_S),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HTTP_REQUEST_BYTES, MHD_OPTION_END);
    if (!s->daemon) {
        err_set("the server for the page does not start");
        close(fd);
    } else if (thread_start(&s->ticker, "brim-page", tick, s) == 0) {
        return s;
    }
    http_stop(s);
    return NULL;
}

void http_stop(HttpServer *s)
{
    if (!s) return;
    thread_lock(&s->lock);
    s->stop = 1;
    pthread_cond_signal(&s->wake);
    wake_waiters(s);
    thread_unlock(&s->lock);
    thread_join(&s->ticker);
    if (s->daemon) MHD_stop_daemon(s->daemon); /* closes the socket */
    runs_deinit(&s->runs);
    gpus_deinit(&s->gpus);
    free(s->payload);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
