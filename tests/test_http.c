/* The page's server under hostile clients: raw sockets, in the same process, so that memory can be
 * counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/str.h"
#include "watch/host.h"
#include "watch/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IDLE_S = 2 };

static const char token[] = "0123456789abcdefTOKEN";

typedef struct {
    char        dir[64];
    HttpServer *open, *closed; /* without a token, and with one */
} Rig;

static int connect_to(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    a.sin_addr.s_addr    = htonl(INADDR_LOOPBACK);
    int fd               = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Sends and reads until the other side is done, `ms` have passed without a byte, or buf is full. Returns
 * the status, 0 for none. */
static int talk(int port, const char *request, size_t n, char *buf, size_t cap, int ms)
{
    int    fd = connect_to(port), status = 0;
    size_t got = 0;
    buf[0]     = '\0';
    if (fd < 0) return -1;
    for (size_t sent = 0; sent < n;) {
        ssize_t k = send(fd, request + sent, n - sent, MSG_NOSIGNAL);
        if (k <= 0) break;
        sent += (size_t)k;
    }
    while (got + 1 < cap) {
        struct pollfd p = { fd, POLLIN, 0 };
        if (poll(&p, 1, ms) <= 0) break;
        ssize_t k = recv(fd, buf + got, cap - 1 - got, 0);
        if (k <= 0) break;
        got += (size_t)k;
        buf[got] = '\0';
    }
    close(fd);
    if (sscanf(buf, "HTTP/1.%*d %d", &status) != 1) return 0;
    return status;
}

static char answer[1 << 18];

static int get(int port, const char *path, const char *headers)
{
    char request[2048];
    int  n = snprintf(request, sizeof request,
                      "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%s\r\n", path, headers);
    return talk(port, request, (size_t)n, answer, sizeof answer, 8000);
}

static int setup(void **state)
{
    Rig *r = calloc(1, sizeof *r);
    char path[256];
    *state = r;
    strcpy(r->dir, "/tmp/brim_http_XXXXXX");
    if (!r || !mkdtemp(r->dir)) return -1;
    snprintf(path, sizeof path, "%s/mine", r->dir);
    if (file_make_folders(path) < 0) return -1;
    snprintf(path, sizeof path, "%s/mine/metrics.jsonl", r->dir);
    FILE *f = fopen(path, "w");
    for (int i = 1; f && i <= 200; i++)
        fprintf(f, "{\"step\": %d, \"loss\": %g, \"time_s\": %d}\n", i, 1.0 / i, i);
    if (!f || fclose(f) != 0) return -1;
    snprintf(path, sizeof path, "%s/secret.txt", r->dir);
    f = fopen(path, "w");
    if (!f || fputs("SECRET-FILE", f) < 0 || fclose(f) != 0) return -1;
    HttpOptions o = { .base = r->dir, .bind = "127.0.0.1", .nvml_path = "/nowhere.so", .idle_s = IDLE_S };
    r->open       = http_start(&o);
    o.token       = token;
    r->closed     = http_start(&o);
    return r->open && r->closed ? 0 : -1;
}

static int teardown(void **state)
{
    Rig *r = *state;
    char cmd[128];
    http_stop(r->open);
    http_stop(r->closed);
    snprintf(cmd, sizeof cmd, "rm -rf %s", r->dir);
    int rc = system(cmd);
    free(r);
    return rc;
}

/* ---- What is there ------------------------------------------------------------------------------------- */

static void test_served(void **state)
{
    Rig *r    = *state;
    int  port = http_port(r->open);
    assert_int_equal(get(port, "/", ""), 200);
    assert_non_null(strstr(answer, "<!doctype html>"));
    assert_non_null(strstr(answer, "Content-Security-Policy: default-src 'none'"));
    assert_int_equal(get(port, "/api/runs", ""), 200);
    assert_non_null(strstr(answer, "\"name\": \"mine\""));
    assert_int_equal(get(port, "/api/runs/mine?from=199", ""), 200);
    assert_non_null(strstr(answer, "\"step\": [199, 200]"));
    assert_int_equal(get(port, "/api/runs/mine?from=x", ""), 400);
    assert_int_equal(get(port, "/api/runs/mine?log=x", ""), 400);
    assert_int_equal(get(port, "/api/runs/mine?log=99999999999999999999", ""), 400);
    assert_int_equal(get(port, "/api/runs/mine?from=199&log=-5", ""), 200);
    assert_int_equal(get(port, "/metrics", ""), 200);
    assert_non_null(strstr(answer, "brim_run_step{run=\"mine\",unit=\"unit\"} 200"));
    assert_int_equal(get(port, "/api/runs/other", ""), 404);
}

/* A line that is added reaches a page that waits. */
static void test_events(void **state)
{
    Rig              *r = *state;
    char              path[256], buf[1 << 16];
    int               fd = connect_to(http_port(r->open)), got = 0, seen = 0, mark = 0;
    static const char request[] = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_int_equal(send(fd, request, sizeof request - 1, 0), sizeof request - 1);
    snprintf(path, sizeof path, "%s/mine/metrics.jsonl", r->dir);
    for (double begin = clock_now_s(); clock_now_s() - begin < (seen < 2 ? 20 : 8) && seen < 3;) {
        struct pollfd p = { fd, POLLIN, 0 };
        if (poll(&p, 1, 200) > 0) {
            ssize_t k = recv(fd, buf + got, sizeof buf - 1 - (size_t)got, 0);
            assert_true(k > 0);
            got += (int)k;
            buf[got] = '\0';
        }
        if (seen == 0 && strstr(buf, "\"step\": 200")) {
            FILE *f = fopen(path, "a");
            fputs("{\"step\": 201, \"loss\": 0.5, \"time_s\": 201}\n", f);
            fclose(f);
            seen = 1;
        }
        if (seen == 2 && strstr(buf + mark, "event: runs")) seen = 3; /* nothing changed but the host */
        if (seen == 1 && strstr(buf, "\"step\": 201")) {
            seen  = 2;
            mark  = got;
            begin = clock_now_s();
        }
    }
    close(fd);
    assert_int_equal(seen, 3);
    assert_non_null(strstr(buf, "text/event-stream"));
}

/* ---- Who may see it ------------------------------------------------------------------------------------ */

static void test_token(void **state)
{
    Rig                     *r    = *state;
    int                      port = http_port(r->closed);
    char                     header[128], path[128];
    static const char *const pages[] = { "/",        "/page.js", "/api/runs", "/api/runs/mine",
                                         "/metrics", "/events",  "/nothing" };
    for (int i = 0; i < ARRAY_LEN(pages); i++) assert_int_equal(get(port, pages[i], ""), 401);
    snprintf(header, sizeof header, "Authorization: Bearer %s\r\n", token);
    assert_int_equal(get(port, "/metrics", header), 200);
    header[strlen(header) - 3]++; /* the last letter */
    assert_int_equal(get(port, "/metrics", header), 401);
    snprintf(path, sizeof path, "/?token=%s", token);
    assert_int_equal(get(port, path, ""), 200);
    snprintf(header, sizeof header, "Set-Cookie: brim_token_%d=%s; HttpOnly; SameSite=Strict", port, token);
    assert_non_null(strstr(answer, header));
    /* The page of another run stands on another port: its token is no reason to forget this one. */
    snprintf(header, sizeof header, "Cookie: brim_token_%d=another; brim_token_%d=%s\r\n", port + 1, port,
             token);
    assert_int_equal(get(port, "/page.js", header), 200);
    assert_null(strstr(answer, "Set-Cookie"));
    assert_int_equal(get(port, "/?token=", ""), 401);
    assert_int_equal(get(port, "/?token=0123456789abcdefTOKE", ""), 401);
}

static void test_bind(void **state)
{
    HttpOptions o = { .base = "/tmp", .bind = "0.0.0.0", .keys = { .bind = "--bind", .token = "--token" } };
    assert_null(http_start(&o));
    assert_int_equal(err_kind(), ERR_USER);
    assert_string_equal(err_get(), "--bind: 0.0.0.0 can be reached from other machines: --token is missing");
    err_clear();
    o.token = "short";
    assert_null(http_start(&o));
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
    o.bind = "example.com";
    assert_null(http_start(&o));
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
    o = (HttpOptions){ .base = "/tmp", .bind = "127.0.0.1", .port = http_port(((Rig *)*state)->open) };
    assert_null(http_start(&o)); /* the port is taken */
    assert_int_equal(err_kind(), ERR_USER);
    assert_non_null(strstr(err_get(), "port: 127.0.0.1 port "));
    err_clear();
}

static void test_foreign_host(void **state)
{
    Rig                     *r     = *state;
    int                      port  = http_port(r->open);
    static const char *const bad[] = {
        "GET /api/runs HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
        "GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1.evil.example:80\r\nConnection: close\r\n\r\n",
        "GET /api/runs HTTP/1.0\r\n\r\n"
    };
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(talk(port, bad[i], strlen(bad[i]), answer, sizeof answer, 8000), 421);
        assert_null(strstr(answer, "mine"));
    }
    assert_null(
        strstr(answer, "Access-Control-Allow-Origin")); /* no other site's script may read an answer */
}

static void test_traversal(void **state)
{
    Rig                     *r      = *state;
    int                      port   = http_port(r->open);
    static const char *const path[] = {
        "/../secret.txt",
        "/..%2fsecret.txt",
        "/%2e%2e/secret.txt",
        "//secret.txt",
        "/./secret.txt",
        "/page.js/../../secret.txt",
        "/api/runs/../secret.txt",
        "/api/runs/..%2fsecret.txt",
        "/api/runs/mine/../../secret.txt",
        "/api/runs/%2e%2e",
        "/api/runs/mine%00",
        "/api/runs/",
        "/api/runs//mine",
        "/secret.txt",
        "/etc/passwd",
        "/%2fetc%2fpasswd",
        "/mine/metrics.jsonl",
        "/api/runs/mine/metrics.jsonl",
        "http://127.0.0.1/secret.txt",
        "/\\..\\secret.txt",
    };
    for (int i = 0; i < ARRAY_LEN(path); i++) {
        int status = get(port, path[i], "");
        if (strstr(answer, "SECRET") || strstr(answer, "root:") || status == 200) {
            /* MHD ends a name at a zero byte: "mine%00" is "mine", a run that may be seen. */
            assert_true(strcmp(path[i], "/api/runs/mine%00") == 0);
        }
    }
}

/* ---- Abuse --------------------------------------------------------------------------------------------- */

static double rss(void)
{
    HostReading h;
    host_read(&h);
    return h.rss_bytes;
}

static void test_junk(void **state)
{
    Rig     *r    = *state;
    int      port = http_port(r->open);
    char     junk[600];
    uint64_t x = 42;
    for (int i = 0; i < 1000; i++) {
        size_t                   n      = 0;
        static const char *const head[] = { "",
                                            "GET ",
                                            "GET / HTTP/1.1\r\n",
                                            "POST /api/runs HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
                                            "GET /api/runs?from=",
                                            "\x16\x03\x01\x02\x00",
                                            "DELETE / HTTP/1.1\r\nHost: x\r\n\r\n",
                                            "GET / HTTP/9.9\r\n\r\n",
                                            "GET /%",
                                            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" };
        n = (size_t)snprintf(junk, sizeof junk, "%s", head[i % ARRAY_LEN(head)]);
        if (i % 10 == 5) memcpy(junk, "\x16\x03\x01\x02\x00", n = 5);
        for (size_t end = n + (size_t)i % 400; n < end; n++) {
            x       = x * 6364136223846793005ull + 1442695040888963407ull;
            junk[n] = (char)(x >> 56);
        }
        int fd = connect_to(port);
        assert_true(fd >= 0);
        if (send(fd, junk, n, MSG_NOSIGNAL) < 0) n = 0;
        close(fd);
    }
    assert_int_equal(get(port, "/", ""), 200);
    static const char post[] = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc";
    assert_int_equal(talk(port, post, sizeof post - 1, answer, sizeof answer, 3000), 405);
}

static void test_huge_header(void **state)
{
    Rig   *r    = *state;
    int    port = http_port(r->open);
    size_t n    = 8 << 20;
    char  *big  = malloc(n);
    int    head = snprintf(big, 100, "GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
    memset(big + head, 'x', n - (size_t)head);
    double before = rss();
    for (int i = 0; i < 8; i++) {
        int status = talk(port, big, n, answer, sizeof answer, 3000);
        assert_true(status == 0 || status == 431 || status == 413 || status == 414 || status == 400);
    }
    memset(big + 5, 'a', n - 5); /* and an address of 8 MiB */
    talk(port, big, n, answer, sizeof answer, 3000);
    free(big);
    assert_int_equal(get(port, "/", ""), 200);
    assert_true(rss() - before < 8e6);
}

/* 200 connections that say nothing, half a request, or wait for events; the page is served beside them,
 * and all is given back. */
static void test_many(void **state)
{
    enum { MANY = 200 };
    Rig   *r    = *state;
    int    port = http_port(r->open), fd[MANY], n_event = 0;
    double before = rss();
    for (int i = 0; i < MANY; i++) {
        static const char *const part[] = { "", "G", "GET /api/runs HTTP/1.1\r\nHo",
                                            "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n" };
        fd[i]                           = connect_to(port);
        assert_true(fd[i] >= 0);
        const char *text = part[i % 4];
        if (*text) assert_true(send(fd[i], text, strlen(text), MSG_NOSIGNAL) > 0);
    }
    double begin = clock_now_s();
    assert_int_equal(get(port, "/api/runs", ""), 200);
    assert_true(clock_now_s() - begin < 5);
    for (int i = 3; i < MANY;
         i += 4) { /* of those who asked for events, some get them and the rest a refusal */
        struct pollfd p       = { fd[i], POLLIN, 0 };
        char          buf[64] = "";
        if (poll(&p, 1, 3000) > 0 && recv(fd[i], buf, sizeof buf - 1, 0) > 0)
            n_event += strstr(buf, " 200 ") != NULL;
    }
    assert_true(n_event >= HTTP_EVENTS - 2 && n_event <= HTTP_EVENTS);
    double grown = rss() - before;
    printf("200 connections: %.1f MiB more\n", grown / 1048576);
    assert_true(grown < 32e6);
    for (int i = 0; i < MANY; i++) close(fd[i]);
    static const char again[] =
        "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n"; /* the places are free again */
    int status = 0;
    for (int tries = 0; tries < 50 && status != 200; tries++) {
        status = talk(port, again, sizeof again - 1, answer, sizeof answer, 300);
        usleep(100000);
    }
    assert_int_equal(status, 200);
    assert_int_equal(get(port, "/", ""), 200);
}

/* A client that never finishes is let go; one that reads slowly gets all of it. */
static void test_slow(void **state)
{
    Rig              *r    = *state;
    int               port = http_port(r->open), silent = connect_to(port), slow = connect_to(port);
    static const char request[] = "GET /page.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    double            begin     = clock_now_s();
    char              c;
    size_t            got = 0;
    assert_int_equal(send(silent, "GET / HT", 8, 0), 8);
    for (size_t i = 0; i < sizeof request - 1; i++) {
        assert_int_equal(send(slow, request + i, 1, MSG_NOSIGNAL), 1);
        usleep(2000);
    }
    while (recv(slow, &c, 1, 0) == 1) got++;
    assert_true(got > 5000);
    struct pollfd p = { silent, POLLIN, 0 };
    assert_int_equal(poll(&p, 1, (IDLE_S + 8) * 1000), 1); /* closed, or told 408 and closed */
    assert_true(clock_now_s() - begin >= IDLE_S - 1);
    close(silent);
    close(slow);
}

int main(void)
{
    if (!http_is_built()) {
        printf("skip: this build has no web page (libmicrohttpd-dev is missing)\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_served), cmocka_unit_test(test_events),       cmocka_unit_test(test_token),
        cmocka_unit_test(test_bind),   cmocka_unit_test(test_foreign_host), cmocka_unit_test(test_traversal),
        cmocka_unit_test(test_junk),   cmocka_unit_test(test_huge_header),  cmocka_unit_test(test_many),
        cmocka_unit_test(test_slow),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
