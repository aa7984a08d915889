#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "run/rundir.h"
#include "watch/http.h"
#include "watch/top.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Serves until Ctrl-C or SIGTERM. */
static int serve(const HttpOptions *o)
{
    sigset_t set;
    int      got;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before there are other threads */
    HttpServer *s = http_start(o);
    if (!s) return -1;
    printf("http://%s%s%s:%d/  (runs in %s; Ctrl-C ends it)\n", strchr(o->bind, ':') ? "[" : "", o->bind,
           strchr(o->bind, ':') ? "]" : "", http_port(s), o->base);
    fflush(stdout);
    sigwait(&set, &got);
    http_stop(s);
    return 0;
}

int cmd_top(const CmdArgs *a)
{
    int         web = 0, once = 0;
    const char *port = "8265", *bind = "127.0.0.1", *token = getenv("BRIM_TOKEN"), *size = "80x24";
    CmdFlag     flag[] = {
            { "--web", NULL, &web, "serve the web page instead of the terminal view" },
            { "--port", &port, NULL, "of the page; 0: any that is free (default 8265)" },
            { "--bind", &bind, NULL,
              "address of the page (default 127.0.0.1); another than loopback needs a token" },
            { "--token", &token, NULL,
              "who shows this word may see the page (default: the variable BRIM_TOKEN)" },
            { "--once", NULL, &once, "print one screen as plain text and end" },
            { "--size", &size, NULL, "columns x rows of --once (default 80x24)" },
    };
    CmdTarget t;
    int64_t   port_number;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    if (t.target) return err_user("command line: %s: top takes no recipe or run", t.target);
    TRY(cmd_int("--port", port, 0, 65535, &port_number));
    const char *nvml = getenv("BRIM_NVML");
    if (web) {
        HttpOptions o = { rundir_base(), bind, (int)port_number, token, nvml, 0 };
        return serve(&o);
    }
    TopOptions o = { .base = rundir_base(), .nvml_path = nvml };
    if (sscanf(size, "%4dx%4d", &o.columns, &o.rows) != 2 || o.columns < 40 || o.rows < 10 ||
        o.columns > 1000 || o.rows > 1000)
        return err_user("command line: --size: '%s' is not COLUMNSxROWS from 40x10 to 1000x1000", size);
    return once ? top_once(&o, stdout) : top_run(&o);
}
