/* The toy tenant on the GPU: f32 against the reference and the CPU (tests/toy/toy_run.h derives the
 * tolerances), recomputation levels bit for bit, micro-batches, and that bf16 trains. */
#include "check.h"
#include "toy_run.h"

typedef struct {
    ToyCase base;
    ToyRef  ref;
    double  report[TOY_STEPS][2], eval[2];
} All;

static int run_case(const All *a, const char *device, RecomputeLevel level, int64_t micro, ToyResult *out)
{
    ToyCase c = a->base;
    c.device  = device;
    c.level   = level;
    c.micro   = micro;
    c.out     = out;
    return toy_case_rank(0, 1, 0, &c);
}

static void against_reference(Tally *t, const All *a, const ToyResult *got, const char *what)
{
    double worst = toy_case_worst(got, a->report, a->eval, &a->ref);
    tally(t, worst <= 1, "%s: worst error %.3g of its tolerance", what, worst);
    tally(t,
          got->n_update == a->ref.n_update && got->epoch == a->ref.epoch && got->cursor == a->ref.cursor &&
              got->turns == a->ref.turns && got->n_skipped == 0,
          "%s: updates and counters", what);
    tally(t, memcmp(got->teacher, got->teacher_after, sizeof got->teacher) == 0, "%s: the teacher stays",
          what);
}

/* Rounding to 8 bits three times on the way to the output gives 2 * 3 * 2^-8 = 2.4 % of the distance. The
 * weights' own rounding doubles that. No halt: rounding could decide about one. */
static void in_bf16(Tally *t, const All *a)
{
    ToyCase   c = a->base;
    ToyResult f32, bf16;
    ((ToyKeys *)c.recipe.own)->halt = 1e9;
    c.device                        = "cuda";
    c.out                           = &f32;
    int ok                          = toy_case_rank(0, 1, 0, &c) == 0;
    c.compute                       = DT_BF16;
    c.out                           = &bf16;
    ok                              = ok && toy_case_rank(0, 1, 0, &c) == 0;
    double e                        = ok ? fabs(bf16.eval[0] / f32.eval[0] - 1) : NAN;
    tally(t, e <= 0.05 && bf16.n_update == 7 * TOY_STEPS, "bf16: distance off by %.3g, %d updates", e,
          ok ? bf16.n_update : -1);
}

int main(void)
{
    static ToyResult cpu, gpu, other;
    static All       a;
    Tally            t        = { 0, 0 };
    char             folder[] = "/tmp/test_gpu_toy.XXXXXX";
    a.base                    = (ToyCase){ .micro = 4, .threads = 1, .compute = DT_F32 };
    int ok                    = mkdtemp(folder) && toy_case_recipe(&a.base.recipe, folder) == 0 &&
             run_case(&a, "cpu", LEVEL_NONE, 4, &cpu) == 0 &&
             toy_case_ref(&a.base.recipe, &cpu, &a.ref, a.report, a.eval) == 0;
    tally(&t, ok, "the CPU and the reference");
    ok = ok && run_case(&a, "cuda", LEVEL_NONE, 4, &gpu) == 0;
    tally(&t, ok, "the GPU");
    if (!ok) return tally_end(&t);
    against_reference(&t, &a, &cpu, "cpu");
    against_reference(&t, &a, &gpu, "gpu");
    for (int level = LEVEL_CHEAP; level <= LEVEL_BLOCK; level++) {
        ok = run_case(&a, "cuda", (RecomputeLevel)level, 4, &other) == 0;
        tally(&t, ok && memcmp(&other, &gpu, sizeof gpu) == 0, "gpu: recompute %s, bit for bit",
              recompute_level_name((RecomputeLevel)level));
    }
    for (int64_t micro = 1; micro <= 16; micro *= 4) {
        if (run_case(&a, "cuda", LEVEL_NONE, micro, &other) == 0) {
            against_reference(&t, &a, &other,
                              micro == 1   ? "micro-batch 1"
                              : micro == 4 ? "micro-batch 4"
                                           : "micro-batch 16");
        } else {
            tally(&t, 0, "micro-batch %lld", (long long)micro);
        }
    }
    in_bf16(&t, &a);
    toy_ref_deinit(&a.ref);
    return tally_end(&t);
}
