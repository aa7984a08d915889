/* brim: one program, one command a row. usage() says what its exit codes mean. */
#include "base/clock.h"
#include "base/err.h"
#include "base/hostmem.h"
#include "base/log.h"
#include "base/str.h"
#include "bin/cmd.h"
#include "conf/schema.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct {
    const char *name;
    int (*run)(const CmdArgs *a);
    const char *usage, *help;
} Command;

static const Command commands[] = {
    { "train", cmd_train, "RECIPE | RUN [key=value ...] [--fresh] [--change-data]",
      "train; resumes runs/NAME if it exists" },
    { "plan", cmd_plan, "RECIPE [key=value ...] [--gpu h200] [--list | --json | --grow pixels|frames]",
      "memory, candidates and the choice; needs no GPU" },
    { "bench", cmd_bench,
      "RECIPE [key=value ...] [[--ops] [--no-limit] | "
      "--ladder [--from torch|recipe] [--batch N] [--picture FILE]] [--seconds N] [--json]",
      "measure the recipe's step; --ladder: with every optimisation switched on in turn" },
    { "eval", cmd_eval, "RUN [key=value ...] [--step N|best|last] [--json | --ids FILE [--logits OUT.npy]]",
      "loss of a trained run on its validation data" },
    { "sample", cmd_sample,
      "RUN [key=value ...] [--prompt TEXT | --prompt-ids 1,2 | --prompt-file FILE] [--tokens N] "
      "[--temperature X] [--top-k N] [--top-p X] [--repetition-penalty X] [--stop TEXT] [--seed N] [--ids] "
      "[--step N|best|last]",
      "text from a trained run, or token ids from one that was trained on tokens" },
    { "predict", cmd_predict,
      "RUN FILE|FOLDER ... [--top N] [--show N] [--picture FILE.svg] [--step N|best|last]",
      "what a trained run says about images or clips; of a labelled set also which classes it confuses" },
    { "import", cmd_import, "DIR [run=NAME] [key=value ...] [--fresh]",
      "a Hugging Face folder becomes a run: eval, sample and train take it" },
    { "export", cmd_export, "RUN DIR [--step N|best|last] [--dtype float32|bfloat16|float16] [--shard SIZE]",
      "a run's weights for other programs: a Hugging Face folder; of ppo a policy as C" },
    { "play", cmd_play, "RUN [key=value ...] [--episodes N] [--out FILE.gif] [--step N|best|last] [--seed N]",
      "episodes of a trained policy, in the terminal or as a picture" },
    { "data", cmd_data, "tokens | tokenizer | images | clips | show ...",
      "files into training data, tokenizers; brim data --help lists what there is" },
    { "env", cmd_env,
      "list | check NAME [key=value ...] [--isolate process] | new NAME | show NAME [--episodes N] [--out "
      "FILE.gif]",
      "environments: what there is, tests of yours, a file to begin with, a picture" },
    { "slurm", cmd_slurm,
      "RECIPE [key=value ...] [--nodes N] [--gpus N] [--cpus N] [--time T] [--before S] [--partition P] "
      "[--account A] [--out FILE]",
      "a job script for SLURM, which saves when the time is up and goes on later" },
    { "top", cmd_top, "[--web [--port N] [--bind ADDRESS] [--token WORD] | --once [--size 80x24]]",
      "GPUs and runs, live: on the terminal, or as a web page" },
    { "compare", cmd_compare, "RUN [RUN ...] [--json] [--picture FILE.svg]",
      "runs as one table, and which keys differ" },
    { "report", cmd_report, "RUN [--out FILE]", "one page about a run: plots, plan, machine, verdict" },
    { "doctor", cmd_doctor,
      "RUN | RECIPE [key=value ...] [--apply [--out FILE]] [--seconds N] [--json] | --pid N [--json]",
      "what holds a run back, what to change, what that gains" },
    { "trace", cmd_trace, "summarize RUN | FILE [--json]", "where the steps of a trace spent their time" },
    { "check", cmd_check, "[--json] [--quick]", "this machine in a minute: versions, rates, links, disk" },
    { "info", cmd_info, "[--json]", "devices, versions, and why anything is not used" },
    { "version", cmd_version, "[--json]", "version, commit, compiler, and whether the CUDA half is there" },
    { "help", cmd_help, "[KEY | SECTION | keys | COMMAND]", "what a recipe key means, what a command takes" },
};

static void usage(FILE *out)
{
    fprintf(out, "brim trains transformers with the GPU filled to the brim.\n\n");
    for (int i = 0; i < ARRAY_LEN(commands); i++) {
        str_print_wrapped(out, commands[i].usage, fprintf(out, "  brim %-7s ", commands[i].name), 17);
        str_print_wrapped(out, commands[i].help, fprintf(out, "%15s", ""), 15);
    }
    fprintf(out, "\nexit code: 0 done, or stopped by a signal and saved; 1 failure; 2 wrong input; "
                 "130 second Ctrl-C\n");
}

static const Command *find_command(const char *name)
{
    for (int i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    }
    return NULL;
}

/* What a command takes. Its options are known only to itself: asked for --help, it lists them (cmd_parse). */
static void help_command(const Command *c)
{
    char   *ask[] = { "--help" };
    CmdArgs a     = { 0, 1, ask, BRIM_VERSION, BRIM_COMMIT };
    str_print_wrapped(stdout, c->usage, printf("brim %s%s", c->name, c->usage[0] ? " " : ""), 8);
    str_print_wrapped(stdout, c->help, printf("    "), 4);
    c->run(&a);
    err_clear();
}

/* 1: words behind the command's name may name a part of the command. */
static int has_parts(const Command *c)
{
    return c->run == cmd_data || c->run == cmd_env || c->run == cmd_trace;
}

/* Help of a command, or only of the part that the words up to the first option name. */
static int help_part(const Command *c, int n, char *const *word)
{
    int n_word = 0;
    while (n_word < n && word[n_word][0] != '-') n_word++;
    if (c->run == cmd_data && n_word > 0) return cmd_data_help(n_word, word);
    help_command(c);
    return 0;
}

static int asks_help(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    }
    return 0;
}

static StrNearest nearest_command(const char *name)
{
    StrNearest near = str_nearest_begin(name);
    for (int i = 0; i < ARRAY_LEN(commands); i++) str_nearest_offer(&near, commands[i].name);
    return near;
}

/* A word that is no key and one slip away from a command is that rather than the key it is near to as
 * well. */
static int help_key(const CmdArgs *a)
{
    const char *key = a->argc > 0 ? a->argv[0] : NULL;
    if (key && a->argc == 1 && schema_find(NULL, key) < 0 && !schema_is_section(NULL, key) &&
        strcmp(key, "keys") != 0) {
        StrNearest near = nearest_command(key);
        if (near.best && near.distance <= 1) {
            return err_user("command line: %s: neither a command nor a key (did you mean %s?)", key,
                            near.best);
        }
    }
    return cmd_help(a);
}

static int run_command(int argc, char **argv, double begin_s)
{
    const Command *c = find_command(argv[1]);
    if (!c) {
        char       hint[80];
        StrNearest near = nearest_command(argv[1]);
        return err_user("command line: %s: no such command%s", argv[1],
                        str_nearest_hint(&near, "brim help lists them", hint, sizeof hint));
    }
    CmdArgs        a     = { begin_s, argc - 2, argv + 2, BRIM_VERSION, BRIM_COMMIT };
    const Command *about = c->run == cmd_help && argc >= 3 ? find_command(argv[2]) : NULL;
    if (asks_help(argc, argv)) return help_part(c, argc - 2, argv + 2);
    if (about && argc > 3 && has_parts(about)) return help_part(about, argc - 3, argv + 3);
    if (!about || argc > 3) return c->run == cmd_help ? help_key(&a) : c->run(&a);
    help_command(about);
    /* "eval" is a section of the recipe as well. */
    if (recipe_help(about->name, stdout) < 0) err_clear();
    return 0;
}

/* The next file that is opened would get the number of a standard stream that is closed, and the log would be
 * written into it. Writing to such a stream still fails: what takes its place is only for reading. */
static void hold_streams(void)
{
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

/* A set of a thousand tar files has all of them open. */
static void allow_files(void)
{
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) != 0) return;
    most.rlim_cur = most.rlim_max;
    setrlimit(RLIMIT_NOFILE, &most);
}

int main(int argc, char **argv)
{
    double begin_s = clock_now_s();
    hold_streams();
    allow_files();
    hostmem_begin();
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    int only_usage = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    if (only_usage) usage(stdout);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-v") == 0) argv[1] = "version";
    if (strcmp(argv[1], "help") == 0 && argc == 2) {
        usage(stdout);
        printf(
            "\nrecipe keys (brim help model.layers: one of them; help model: a section; help keys: all)\n");
    }
    int rc = only_usage ? 0 : run_command(argc, argv, begin_s);
    log_close();
    if ((fflush(stdout) != 0 || ferror(stdout)) && rc == 0)
        rc = err_set("standard output could not be written");
    if (rc >= 0) return rc; /* more than 0: a process that was started has said why */
    char line[1024];
    str_quote(line, sizeof line, err_get(), strlen(err_get())); /* names of files may hold anything */
    fprintf(stderr, "%s%s\n", err_kind() == ERR_USER ? "" : "brim: ", line);
    return err_kind() == ERR_USER ? 2 : 1;
}
