#include "base/err.h"
#include "bin/run_target.h"

int cmd_sample(const CmdArgs *a)
{
    const char *prompt = NULL, *tokens = "256", *temperature = "0.8", *top_k = "0", *seed = "1",
               *which = NULL;
    CmdFlag flag[]    = {
           { "--prompt", &prompt, NULL,
             "text to continue; for a model trained on tokens ids, as in \"12 7 3\" (default: a line "
                "break; data.document_token, else 0)" },
           { "--tokens", &tokens, NULL, "how many to add (default 256)" },
           { "--temperature", &temperature, NULL, "0: always the most likely (default 0.8)" },
           { "--top-k", &top_k, NULL, "choose among the K most likely; 0: all (default 0)" },
           { "--step", &which, NULL, "best, last or the step of a checkpoint (default last)" },
           { "--seed", &seed, NULL, "of the random choice (default 1)" }
    };
    TaskSample opt = { 0 };
    CmdTarget  t;
    Recipe     r;
    Setup      s;
    int64_t    seed_value;
    TRY(cmd_parse(a, flag, ARRAY_LEN(flag), &t));
    opt.prompt = prompt;
    TRY(cmd_int("--tokens", tokens, 1, 1 << 30, &opt.n_unit));
    TRY(cmd_int("--top-k", top_k, 0, 1 << 30, &opt.top_k));
    TRY(cmd_int("--seed", seed, 0, INT64_MAX, &seed_value));
    TRY(cmd_double("--temperature", temperature, 0, 100, &opt.temperature));
    opt.seed = (uint64_t)seed_value;
    TRY(run_target_open(&t, which, JOB_SAMPLE, &r, &s, NULL));
    int rc = s.job->task->sample(s.job, &opt, stdout);
    setup_close(&s);
    return rc;
}
