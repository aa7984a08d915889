/* Takes the place of http.c if the program is built without libmicrohttpd. */
#include "watch/http.h"

#include "base/err.h"

#include <stddef.h>

int http_is_built(void) { return 0; }

HttpServer *http_start(const HttpOptions *o)
{
    err_user("this brim was built without its web page: install libmicrohttpd-dev and build again");
    return NULL;
}

void http_stop(HttpServer *s) {}
int  http_port(const HttpServer *s) { return 0; }

const char *http_url(const HttpServer *s, char *buf, size_t n)
{
    buf[0] = '\0';
    return buf;
}
