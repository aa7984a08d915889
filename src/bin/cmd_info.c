#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "dev/dev.h"

#include <stdio.h>

static void print_device(const char *spec)
{
    const char *why = "";
    DevOptions  opt = { .capture = 1, .tune = 1 };
    DevInfo     info;
    char        a[32], b[32];
    Dev        *dev = dev_open(spec, &opt, &why);
    if (!dev || dev->vt->info(dev, &info) < 0) {
        printf("%-6s not used: %s\n", spec, err_get());
        err_clear();
    } else {
        printf("%-6s %s\n       %s free of %s\n       %s\n", spec, info.name,
               str_bytes(a, sizeof a, (double)info.free_bytes),
               str_bytes(b, sizeof b, (double)info.total_bytes), info.versions);
    }
    if (dev) dev_close(dev);
}

static void put_device(JsonOut *o, const char *spec)
{
    const char *why = "";
    DevOptions  opt = { .capture = 1, .tune = 1 };
    DevInfo     info;
    Dev        *dev = dev_open(spec, &opt, &why);
    int         ok  = dev && dev->vt->info(dev, &info) == 0;
    json_out_object(o, spec);
    json_out_bool(o, "used", ok);
    if (ok) {
        json_out_str(o, "name", info.name);
        json_out_int(o, "free_bytes", (int64_t)info.free_bytes);
        json_out_int(o, "total_bytes", (int64_t)info.total_bytes);
        json_out_str(o, "versions", info.versions);
    } else {
        json_out_str(o, "why", err_get());
    }
    json_out_close(o);
    err_clear();
    if (dev) dev_close(dev);
}

static int print_json(void)
{
    JsonOut     o;
    const char *why = "";
    json_out_init_file(&o, stdout);
    json_out_object(&o, NULL);
    put_device(&o, "cpu");
    put_device(&o, "cuda");
    Dev *dev = dev_open("auto", &(DevOptions){ .capture = 1 }, &why);
    if (dev) json_out_str(&o, "auto", why);
    int rc = json_out_end(&o);
    if (dev) dev_close(dev);
    return dev ? rc : -1;
}

int cmd_info(const CmdArgs *a)
{
    int     json   = 0;
    CmdFlag flag[] = { { "--json", NULL, &json, "one JSON object instead" } };
    int     n      = cmd_parse_words(a, flag, ARRAY_LEN(flag));
    if (n < 0) return -1;
    if (n > 0) return err_user("command line: %s: info takes no arguments", a->argv[0]);
    if (json) return print_json();
    print_device("cpu");
    print_device("cuda");
    const char *why = "";
    DevOptions  opt = { .capture = 1 };
    Dev        *dev = dev_open("auto", &opt, &why);
    if (!dev) return -1;
    printf("auto   %s\n", why);
    dev_close(dev);
    return 0;
}
