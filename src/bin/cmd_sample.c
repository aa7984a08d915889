#include "base/err.h"
#include "bin/run_target.h"
#include "bin/tasks.h"

/* What the command line says, as text. */
typedef struct {
    const char *tokens, *temperature, *top_k, *top_p, *repetition, *seed, *batch;
} Texts;

static int read_options(const Texts *t, TaskSample *opt)
{
    int64_t seed;
    TRY(cmd_int("--tokens", t->tokens, 1, 1 << 30, &opt->n_unit));
    TRY(cmd_int("--top-k", t->top_k, 0, 1 << 30, &opt->top_k));
    TRY(cmd_int("--seed", t->seed, 0, INT64_MAX, &seed));
    TRY(cmd_int("--batch", t->batch, 0, 64, &opt->batch));
    TRY(cmd_double("--temperature", t->temperature, 0, 100, &opt->temperature));
    TRY(cmd_double("--top-p", t->top_p, 0, 1, &opt->top_p));
    TRY(cmd_double("--repetition-penalty", t->repetition, 0.01, 100, &opt->repetition));
    opt->seed = (uint64_t)seed;
    if (opt->top_p <= 0) opt->top_k = 1; /* the smallest share is that of the most likely */
    return 0;
}

/* A recipe instead of a run: weights of zero, which write nonsense at full speed. */
static int open_untrained(const CmdTarget *t, const TaskSample *opt, Recipe *r, Setup *s)
{
    TRY(cmd_need_recipe(t));
    TRY(recipe_load_without_data(r, t->target, t->n_override, t->override));
    TRY(task_complete(r, DATA_ELSEWHERE));
    const Task *task = task_of(r);
    if (!task->sample)
        return err_user("command line: %s: task %s has nothing to sample", t->target, task->name);
    if (task->ask) TRY(task->ask(r, opt));
    return setup_open(s, task, r, JOB_SAMPLE | JOB_LOADED); /* no time goes into initial values */
}

int cmd_sample(const CmdArgs *a)
{
    const char *tokens = "256";
    Texts       x      = { tokens, "0.8", "0", "1", "1", "1", "0" };
    TaskSample  opt    = { 0 };
    const char *which  = NULL;
    int         on = 0, untrained = 0;
    CmdFlag     flag[] = {
            { "--prompt", &opt.prompt, NULL,
              "text to continue; ids as in \"12 7 3\" if the run has no tokenizer (default: a line break, "
                  "or the token that begins a text)" },
            { "--prompt-ids", &opt.prompt_ids, NULL, "token ids to continue: 1,2,3" },
            { "--prompt-file", &opt.prompt_file, NULL, "a file with one prompt a line" },
            { "--batch", &x.batch, NULL, "most prompts at a time, up to 64; 0: as many (default 0)" },
            { "--tokens", &x.tokens, NULL, "how many to add at most (default 256)" },
            { "--temperature", &x.temperature, NULL, "0: always the most likely (default 0.8)" },
            { "--top-k", &x.top_k, NULL, "choose among the K most likely; 0: all (default 0)" },
            { "--top-p", &x.top_p, NULL,
              "choose among the most likely that make up this share; 0: the first, 1: all (default 1)" },
            { "--repetition-penalty", &x.repetition, NULL,
              "makes tokens that have occurred less likely; 1: not (default 1)" },
            { "--stop", &opt.stop, NULL, "texts that end a sample, separated by |; \\n is a line break" },
            { "--ignore-eos", NULL, &on, "goes on after an end-of-text token" },
            { "--ids", NULL, &opt.ids, "prints the new ids, too: one line a prompt, last" },
            { "--rate", NULL, &opt.rate, "says how fast, on standard error" },
            { "--untrained", NULL, &untrained, "takes a recipe, with weights of zero: for speed only" },
            { "--step", &which, NULL, "best, last or the step of a checkpoint (default last)" },
            { "--seed", &x.seed, NULL, "of the random choice (default 1)" }
    };
    CmdTarget t;
    Recipe    r;
    Setup     s;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    TRY(read_options(&x, &opt));
    opt.ends         = !on;
    opt.n_unit_given = x.tokens != tokens;
    if (untrained) {
        TRY(open_untrained(&t, &opt, &r, &s));
    } else {
        TRY(run_target_sample(&t, which, &opt, &r, &s));
    }
    int rc = s.job->task->sample(s.job, &opt, stdout);
    setup_close(&s);
    return rc;
}
