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
    char     url[96];
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* before there are other threads */
    HttpServer *s = http_start(o);
    if (!s) return -1;
    printf("%s  (runs in %s; Ctrl-C ends it)\n", http_url(s, url, sizeof url), o->base);
    fflush(stdout);
    sigwait(&set, &got);
    http_stop(s);
    return 0;
}

/* "80x24" */
static int read_size(const char *text, TopOptions *o)
{
    int n = 0;
    if (sscanf(text, "%4dx%4d%n", &o->columns, &o->rows, &n) == 2 && text[n] == '\0' && o->columns >= 40 &&
        o->rows >= 10 && o->columns <= 1000 && o->rows <= 1000)
        return 0;
    return err_user("command line: --size: '%s' is not COLUMNSxROWS from 40x10 to 1000x1000", text);
}

int cmd_top(const CmdArgs *a)
{
    int         web = 0, once = 0;
    const char *port = NULL, *bind = NULL, *token = NULL, *size = NULL;
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
    if (!web && (port || bind || token))
        return err_user("command line: %s: only together with --web", port   ? "--port"
                                                                      : bind ? "--bind"
                                                                             : "--token");
    if (web && once) return err_user("command line: --once: not together with --web");
    if (size && !once) return err_user("command line: --size: only together with --once");
    TRY(cmd_int("--port", port ? port : "8265", 0, 65535, &port_number));
    const char *nvml = getenv("BRIM_NVML");
    if (web) {
        HttpOptions o = { .base      = rundir_base(),
                          .bind      = bind ? bind : "127.0.0.1",
                          .port      = (int)port_number,
                          .token     = token ? token : getenv("BRIM_TOKEN"),
                          .nvml_path = nvml,
                          .keys      = { "command line: --bind", "command line: --port",
                                         "--token (or BRIM_TOKEN)" } };
        return serve(&o);
    }
    TopOptions o = { .base = rundir_base(), .nvml_path = nvml };
    TRY(read_size(size ? size : "80x24", &o));
    return once ? top_once(&o, stdout) : top_run(&o);
}
