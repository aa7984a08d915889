#include "base/err.h"
#include "base/log.h"
#include "bin/run_target.h"

#include <string.h>

int cmd_predict(const CmdArgs *a)
{
    const char *top = "5", *shown = "8", *which = NULL;
    TaskPredict opt    = { 0 };
    CmdFlag     flag[] = {
            { "--top", &top, NULL, "so many answers of each sample (default 5)" },
            { "--show", &shown, NULL, "samples of a set that are listed and drawn (default 8)" },
            { "--picture", &opt.picture, NULL, "samples and answers as an SVG picture" },
            { "--logits", &opt.logits, NULL, "writes the logits of every sample, as .npy" },
            { "--step", &which, NULL, "best, last or the step of a checkpoint (default last)" },
    };
    Recipe r;
    Setup  s;
    int    n = cmd_parse_words(a, flag, ARRAY_LEN(flag)), n_key = 0;
    TRY(n);
    if (n == 0) return err_user("command line: a run is missing (for example runs/vit-tiny)");
    /* key=value goes to the recipe, the rest are files. */
    CmdTarget t    = { a->argv[0], a->argv + 1, 0 };
    char    **word = a->argv + 1;
    for (int i = 0; i < n - 1; i++) {
        if (!strchr(word[i], '=')) continue;
        char *key = word[i];
        memmove(word + n_key + 1, word + n_key, sizeof *word * (size_t)(i - n_key));
        word[n_key++] = key;
    }
    t.n_override = n_key;
    opt.path     = word + n_key;
    opt.n_path   = n - 1 - n_key;
    if (opt.n_path == 0) return err_user("command line: predict: an image or a folder of images is missing");
    TRY(cmd_out_file("--picture", opt.picture));
    TRY(cmd_out_file("--logits", opt.logits));
    TRY(cmd_int("--top", top, 1, 1000, &opt.top));
    TRY(cmd_int("--show", shown, 0, 1000, &opt.n_shown));
    log_open(NULL);
    TRY(run_target_open(&t, which, JOB_PREDICT, &r, &s));
    int rc = s.job->task->predict(s.job, &opt, stdout);
    setup_close(&s);
    return rc;
}
