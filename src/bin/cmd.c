#include "bin/cmd.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/schema.h"

#include <limits.h>
#include <string.h>

static const CmdFlag *find_flag(const CmdFlag *flag, int n, const char *name, size_t len)
{
    for (int i = 0; i < n; i++) {
        if (strlen(flag[i].name) == len && memcmp(flag[i].name, name, len) == 0) return &flag[i];
    }
    return NULL;
}

/* The only flag that begins so; NULL: none, or several. */
static const char *complete(const CmdFlag *flag, int n, const char *name)
{
    const char *found = NULL;
    if (strlen(name) <= strlen("--")) return NULL;
    for (int i = 0; i < n; i++) {
        if (!str_starts_with(flag[i].name, name)) continue;
        if (found) return NULL;
        found = flag[i].name;
    }
    return found;
}

/* "--steps 20" where "steps=20" is meant. value NULL: none. */
static int refuse_key_as_option(const char *name, const char *value)
{
    char        key[80], buf[200];
    const char *meant = key, *near = NULL;
    str_copy(key, sizeof key, name + strlen("--"));
    for (char *c = key; *c; c++) {
        if (*c == '-') *c = '_';
    }
    if (schema_find(NULL, key) < 0) meant = schema_translate(NULL, key, buf, sizeof buf);
    if (!meant && strlen(key) > 1) near = schema_nearest(NULL, key, 0, buf, sizeof buf);
    if (near) return err_user("command line: %s: no such option (did you mean the key %s?)", name, near);
    if (!meant) return err_user("command line: %s: no such option", name);
    int has_value = value && !strchr(meant, ' '); /* "step_tokens or micro_batch" */
    return err_user("command line: %s: no option but a recipe key: %s%s%.64s", name, meant,
                    has_value ? "=" : "", has_value ? value : "");
}

/* value: what stands behind the option; NULL: nothing that could belong to it. */
static int unknown_flag(const CmdFlag *flag, int n, const char *arg, const char *value, int takes_keys)
{
    char name[80];
    str_copy(name, sizeof name, arg); /* cut short where it is no flag of ours anyway */
    name[strcspn(name, "=")] = '\0';
    StrNearest near          = str_nearest_begin(name);
    for (int i = 0; i < n; i++) str_nearest_offer(&near, flag[i].name);
    const char *meant = complete(flag, n, name);
    if (!meant && (near.distance <= 1 || schema_find(NULL, name + strlen("--")) < 0)) meant = near.best;
    if (meant) return err_user("command line: %s: no such option (did you mean %s?)", name, meant);
    if (takes_keys) return refuse_key_as_option(name, value);
    return err_user("command line: %s: no such option", name);
}

static int list_flags(const CmdFlag *flag, int n)
{
    for (int i = 0; i < n; i++) str_print_wrapped(stdout, flag[i].help, printf("  %-15s ", flag[i].name), 18);
    return err_user("command line: --help: not together with anything else");
}

static int take_flag(const CmdArgs *a, int *i, const CmdFlag *flag, int n_flag, int takes_keys)
{
    const char    *arg = a->argv[*i], *eq = strchr(arg, '=');
    const char    *next = *i + 1 < a->argc ? a->argv[*i + 1] : NULL;
    size_t         len  = eq ? (size_t)(eq - arg) : strlen(arg);
    const CmdFlag *f    = find_flag(flag, n_flag, arg, len);
    if (!f && strcmp(arg, "--help") == 0) return list_flags(flag, n_flag);
    if (!f) {
        const char *value = eq ? eq + 1 : next && !strchr(next, '=') && next[0] != '-' ? next : NULL;
        return unknown_flag(flag, n_flag, arg, value, takes_keys);
    }
    if (f->on) {
        if (eq) return err_user("command line: %s: takes no value", f->name);
        *f->on = 1;
        return 0;
    }
    if (eq) {
        *f->value = eq + 1;
    } else if (next) {
        *f->value = a->argv[++*i];
    } else {
        return err_user("command line: %s: needs a value", f->name);
    }
    return 0;
}

/* "temperature=0.5" where "--temperature 0.5" is meant. */
static int refuse_option(const CmdFlag *flag, int n, const char *arg)
{
    char        key[64], name[80];
    const char *value = strchr(arg, '=') + 1;
    snprintf(key, sizeof key, "%.*s", (int)(value - 1 - arg), arg);
    snprintf(name, sizeof name, "--%s", key);
    for (char *c = name; *c; c++) {
        if (*c == '_') *c = '-';
    }
    const CmdFlag *f = find_flag(flag, n, name, strlen(name));
    if (!f || schema_find(NULL, key) >= 0) return 0;
    return err_user("command line: %s: no key but an option here: %s%s%.64s", key, name, f->on ? "" : " ",
                    f->on ? "" : value);
}

int cmd_parse(const CmdArgs *a, const CmdFlag *flag, int n_flag, CmdTarget *out)
{
    /* Overrides are moved to the front of argv in place: the array is ours. */
    int n = 0;
    *out  = (CmdTarget){ NULL, a->argv, 0 };
    for (int i = 0; i < a->argc; i++) {
        char *arg = a->argv[i];
        if (arg[0] == '-' && arg[1] == '-') {
            TRY(take_flag(a, &i, flag, n_flag, 1));
        } else if (strchr(arg, '=') && out->target) {
            TRY(refuse_option(flag, n_flag, arg));
            a->argv[n++] = arg;
        } else if (!out->target) {
            out->target = arg;
        } else if (strchr(out->target, '=')) { /* a key came before the recipe */
            a->argv[n++] = (char *)out->target;
            out->target  = arg;
        } else {
            int is_text = find_flag(flag, n_flag, "--prompt", strlen("--prompt")) != NULL;
            return err_user("command line: %s: expected key=value%s", arg,
                            is_text ? " (a text goes behind --prompt)" : "");
        }
    }
    out->n_override = n;
    return 0;
}

int cmd_parse_words(const CmdArgs *a, const CmdFlag *flag, int n_flag)
{
    int n = 0;
    for (int i = 0; i < a->argc; i++) {
        char *arg = a->argv[i];
        if (arg[0] == '-' && arg[1] == '-') {
            TRY(take_flag(a, &i, flag, n_flag, 0));
        } else {
            a->argv[n++] = arg;
        }
    }
    return n;
}

int cmd_need_recipe(const CmdTarget *t)
{
    if (t->target) return 0;
    return err_user("command line: a recipe is missing (for example recipes/quickstart.yaml)");
}

int cmd_load_target(const CmdTarget *t, Recipe *r)
{
    TRY(cmd_need_recipe(t));
    return recipe_load(r, t->target, t->n_override, t->override);
}

int cmd_int(const char *flag, const char *text, int64_t lo, int64_t hi, int64_t *out)
{
    if (str_parse_int(text, out) < 0 || *out < lo || *out > hi) {
        return err_user("command line: %s: '%s' is not a whole number from %lld to %lld", flag, text,
                        (long long)lo, (long long)hi);
    }
    return 0;
}

int cmd_out_file(const char *flag, const char *path)
{
    char folder[PATH_MAX];
    if (!path) return 0;
    if (file_kind(path) == FILE_FOLDER)
        return err_user("command line: %s: %s: is a folder: name a file", flag, path);
    if (file_folder_of(path, folder, sizeof folder) < 0)
        return err_user("command line: %s: the path is too long", flag);
    if (file_kind(folder) == FILE_FOLDER) return 0;
    return err_user("command line: %s: %s: no such folder", flag, folder);
}

int cmd_gif(const char *out)
{
    if (!out || str_ends_with(out, ".gif")) return cmd_out_file("--out", out);
    return err_user("command line: --out: %s: a picture that moves is a FILE.gif", out);
}

int cmd_double(const char *flag, const char *text, double lo, double hi, double *out)
{
    if (str_parse_double(text, out) < 0 || *out < lo || *out > hi) {
        return err_user("command line: %s: '%s' is not a number from %g to %g", flag, text, lo, hi);
    }
    return 0;
}
