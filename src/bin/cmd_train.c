#include "base/err.h"
#include "base/log.h"
#include "bin/cmd.h"
#include "run/train.h"

int cmd_train(const CmdArgs *a)
{
    TrainOptions opt    = { .begin_s = a->begin_s };
    CmdFlag      flag[] = { { "--fresh", NULL, &opt.fresh, "start anew; an existing run is moved aside" } };
    Recipe       r;
    TRY(cmd_parse_recipe(a, flag, ARRAY_LEN(flag), &r));
    log_open(NULL, NULL);
    return train_run(&r, &opt);
}
