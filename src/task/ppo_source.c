/* Sources without fields: samples are born in the environments. An evaluation is one sample whose targets are
 * episodes. */
#include "task/ppo_impl.h"

#include "base/err.h"
#include "base/mem.h"

#include <stdlib.h>

static int  fill(const Source *s, int64_t g, void *const *field, void *scratch) { return 0; }
static void close_source(Source *s) { free(s); }

static const SourceVt source_vt = { .fill = fill, .close = close_source };

static int open_source(Source **out, const Recipe *r, int64_t n_sample, int64_t n_target)
{
    Source *s = mem_zeroed(1, sizeof *s);
    if (!s) return err_sys("memory for a source");
    s->vt       = &source_vt;
    s->name     = "env";
    s->n_sample = n_sample;
    s->n_all    = n_sample < INT64_MAX ? n_sample : 0;
    s->size     = 1;
    for (int k = 0; k < SOURCE_SLOTS; k++) s->targets_each[k] = n_target;
    *out = s;
    return 0;
}

int ppo_open_train(Source **out, const Recipe *r) { return open_source(out, r, INT64_MAX, 1); }

int ppo_open_val(Source **out, const Recipe *r, int64_t most, const Source *train)
{
    return open_source(out, r, 1, r->eval.samples);
}
