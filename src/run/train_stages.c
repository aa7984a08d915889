/* Stages: a run is one or several of them, each a Run of its own that goes on from the checkpoint of the one
 * before. A task without stages has one. */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "run/train_impl.h"

/* The step that a start goes on from, as far as names of checkpoints tell rank 0. */
static int find_step(const Recipe *r, const TrainOptions *opt, Comm *comm, int64_t *step)
{
    RunDir d;
    *step = 0;
    if (comm_rank(comm) == 0 && !opt->fresh &&
        (rundir_paths(&d, r->run) < 0 || ckpt_list(d.checkpoints, step, 1) <= 0))
        *step = 0;
    err_clear(); /* what cannot be listed is said when the run is opened */
    return comm_broadcast(comm, step, sizeof *step);
}

/* Every stage to come is planned before the first step. */
static int plan_stages(const Task *task, const Recipe *r, Comm *comm, int64_t step)
{
    Recipe    stage;
    TaskStage range = { 0, 0 };
    char      mem[32];
    for (; step < r->steps; step = range.until) {
        Setup s;
        range = task->stage(r, step, &stage);
        if (range.from == 0 && range.until >= r->steps) return 0; /* one stage: train_open() plans it */
        int rc = setup_plan(&s, task, &stage, JOB_TRAIN, comm);
        if (rc == 0)
            log_info("stage from step %lld to %lld: micro-batch %lld, %s planned", (long long)range.from,
                     (long long)range.until, (long long)s.job->choice.micro_batch,
                     str_bytes(mem, sizeof mem, (double)store_total_bytes(&s.job->store)));
        if (rc < 0) comm_leave(comm); /* closing the device may wait for the others */
        setup_close(&s);
        TRY(rc);
    }
    return 0;
}

int train_stages(const Task *task, const Recipe *r, const TrainOptions *first, Comm *comm)
{
    TrainOptions opt   = *first;
    Recipe       stage = *r;
    CkptState    learned;
    TaskStage    range     = { 0, r->steps };
    Rollbacks    back      = { 0 };
    int64_t      step      = 0;
    int          goes_back = 0, said_data = 0;
    if (task->stage) {
        TRY(find_step(r, first, comm, &step));
        TRY(plan_stages(task, r, comm, step));
    }
    for (;;) {
        if (task->stage) range = task->stage(r, MIN(step, r->steps - 1), &stage);
        Run run = { .task      = task,
                    .r         = &stage,
                    .comm      = comm,
                    .begin_s   = opt.begin_s,
                    .begin     = range.from,
                    .end       = range.until,
                    .is_look   = opt.is_look,
                    .back      = back,
                    .said_data = said_data,
                    .learned   = goes_back ? &learned : NULL };
        TRY(train_rank(&run, &opt));
        if (!train_has_next(&run)) return 0;
        step              = run.at.step;
        back              = run.back;
        said_data         = run.said_data;
        goes_back         = step < run.begin;
        learned           = run.at;
        learned.elapsed_s = train_elapsed(&run);
        opt.fresh         = 0;
        opt.begin_s       = clock_now_s();
    }
}
