#include "base/err.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "env/builtin.h"
#include "env/check.h"
#include "env/envlib.h"
#include "env/play.h"
#include "env/template.h"
#include "env/worker.h"

#include <string.h>
#include <unistd.h>

typedef struct {
    const char *isolate, *seconds, *episodes, *out, *seed, *timeout;
} EnvFlags;

static int list(void)
{
    for (int i = 0; i < builtin_count(); i++) {
        const Builtin *b = builtin_at(i);
        EnvLib         l;
        EnvSpec        s;
        Arena          a;
        void          *env = NULL;
        char           line[300];
        arena_init(&a);
        TRY(envlib_open(&l, b->name, NULL, 0));
        TRY(envlib_create(&l, &env));
        TRY(spec_take(&s, &a, l.api.info(env), b->name));
        printf("%-24s %s\n%-24s %s\n", b->name, s.info.about, "", spec_describe(&s, line, sizeof line));
        l.api.destroy(env);
        arena_deinit(&a);
    }
    printf("\n%-24s a shared object of yours (brim env new NAME writes one to begin with)\n", "./NAME.so");
    printf("%-24s a MuJoCo model\n%-24s a Gymnasium environment, or gym:FILE.py:Class\n", "mujoco:FILE.xml",
           "gym:ID");
    return 0;
}

static int read_flags(const EnvFlags *f, const CmdTarget *t, EnvsConf *c)
{
    int64_t seed = 1;
    *c           = (EnvsConf){ .name     = t->target,
                               .option   = (const char *const *)t->override,
                               .n_option = t->n_override };
    if (f->seed) TRY(cmd_int("--seed", f->seed, 0, INT64_MAX, &seed));
    if (f->timeout) TRY(cmd_double("--timeout", f->timeout, 0.001, 1e6, &c->timeout_s));
    if (f->isolate && strcmp(f->isolate, "process") != 0 && strcmp(f->isolate, "none") != 0)
        return err_user("command line: --isolate: '%s' is neither process nor none", f->isolate);
    c->isolate = f->isolate && strcmp(f->isolate, "process") == 0;
    c->seed    = (uint64_t)seed;
    return 0;
}

static int check(const EnvFlags *f, const CmdTarget *t)
{
    EnvsConf c;
    double   seconds = 1;
    TRY(read_flags(f, t, &c));
    if (f->seconds) TRY(cmd_double("--seconds", f->seconds, 0, 3600, &seconds));
    return check_env(&c, seconds, stdout);
}

static int show(const EnvFlags *f, const CmdTarget *t)
{
    PlayConf p        = { .out = f->out };
    int64_t  episodes = 1;
    TRY(read_flags(f, t, &p.env));
    TRY(cmd_gif(f->out));
    if (f->episodes) TRY(cmd_int("--episodes", f->episodes, 1, 1000000, &episodes));
    p.n_episode   = (int)episodes;
    p.in_terminal = !f->out && isatty(STDOUT_FILENO);
    return play_run(&p);
}

/* Started by envs.h, never by a person: worker NAME COUNT [key=value ...]. */
static int worker(const CmdArgs *a)
{
    int64_t n = 0;
    if (a->argc < 3 || str_parse_int(a->argv[2], &n) < 0 || n < 1 || n > 1000000)
        return err_user("command line: env worker NAME COUNT: for Brim's own use");
    return worker_run(a->argv[1], (int)n, (const char *const *)a->argv + 3, a->argc - 3);
}

static int no_verb(const char *verb)
{
    static const char *const verbs[] = { "list", "check", "new", "show" };
    StrNearest               near    = str_nearest_begin(verb);
    for (int i = 0; i < ARRAY_LEN(verbs); i++) str_nearest_offer(&near, verbs[i]);
    char hint[80];
    return err_user("command line: env: %s: no such command%s", verb,
                    str_nearest_hint(&near, "list, check, new, show", hint, sizeof hint));
}

int cmd_env(const CmdArgs *a)
{
    EnvFlags f      = { 0 };
    CmdFlag  flag[] = {
         { "--isolate", &f.isolate, NULL, "process: environments run in processes of their own" },
         { "--timeout", &f.timeout, NULL, "seconds that one call may take (60)" },
         { "--seconds", &f.seconds, NULL, "check: how long the speed is measured (1)" },
         { "--episodes", &f.episodes, NULL, "show: how many (1)" },
         { "--out", &f.out, NULL, "show: write FILE.gif instead of drawing in the terminal" },
         { "--seed", &f.seed, NULL, "show: of the episodes and the random actions (1)" },
    };
    CmdArgs   rest = *a;
    CmdTarget t;
    char     *verb = a->argc > 0 && strcmp(a->argv[0], "--help") != 0 ? a->argv[0] : NULL;
    if (verb && strcmp(verb, "worker") == 0) return worker(a);
    if (verb) {
        rest.argc--;
        rest.argv++;
    }
    TRY(cmd_parse(&rest, flag, ARRAY_LEN(flag), &t));
    if (!verb) return err_user("command line: env: list, check NAME, new NAME or show NAME");
    if (strcmp(verb, "list") == 0 && t.target)
        return err_user("command line: env list takes no name: %.64s", t.target);
    if (strcmp(verb, "list") == 0) return list();
    if (strcmp(verb, "check") != 0 && strcmp(verb, "new") != 0 && strcmp(verb, "show") != 0)
        return no_verb(verb);
    if (!t.target && strcmp(verb, "new") == 0)
        return err_user("command line: env new: a name for the new environment is missing");
    if (!t.target) return err_user("command line: env %s: a name is missing (brim env list)", verb);
    if (strcmp(verb, "new") == 0) return template_write(t.target);
    return strcmp(verb, "check") == 0 ? check(&f, &t) : show(&f, &t);
}
