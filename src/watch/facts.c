#include "watch/facts.h"

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

/* Writing and reading walk the same tables. */
typedef struct {
    const char *key;
    size_t      offset; /* of a double in RunFacts */
} NumberRow;

typedef struct {
    const char *key;
    size_t      offset, size;
} TextRow;

#define NUMBER(field, group)                                                                                 \
    {                                                                                                        \
#field, offsetof(RunFacts, group.field)                                                              \
    }
#define TEXT(key, field)                                                                                     \
    {                                                                                                        \
        key, offsetof(RunFacts, field), sizeof(((RunFacts *)0)->field)                                       \
    }

static const NumberRow numbers[]      = { { "units_per_step", offsetof(RunFacts, units_per_step) },
                                          { "ranks", offsetof(RunFacts, ranks) },
                                          { "started_s", offsetof(RunFacts, started_s) },
                                          { "first_step", offsetof(RunFacts, first_step) },
                                          { "target", offsetof(RunFacts, target) },
                                          { "energy_j", offsetof(RunFacts, energy_j) },
                                          { "sampler_cpu_s", offsetof(RunFacts, sampler_cpu_s) },
                                          { "sampler_open_s", offsetof(RunFacts, sampler_open_s) },
                                          { "sampler_s", offsetof(RunFacts, sampler_s) } };
static const NumberRow plan_numbers[] = {
    NUMBER(micro_batch, plan),   NUMBER(micro_per_step, plan), NUMBER(world, plan),
    NUMBER(planned_bytes, plan), NUMBER(room_bytes, plan),     NUMBER(total_bytes, plan),
    NUMBER(model_flops, plan),   NUMBER(repeat_flops, plan),   NUMBER(inner_flops, plan),
    NUMBER(predicted_s, plan),   NUMBER(repeat_s, plan),       NUMBER(n_op, plan),
    NUMBER(peak_flops, plan),    NUMBER(peak_mhz, plan),       NUMBER(capability, plan),
    NUMBER(threads, plan),       NUMBER(data_share, plan)
};
static const NumberRow host_numbers[]  = { NUMBER(cpus, host),  NUMBER(allowed, host),
                                           NUMBER(quota, host), NUMBER(loader_threads, host),
                                           NUMBER(cores, host), NUMBER(allowed_cores, host) };
static const NumberRow card_numbers[]  = { NUMBER(max_sm_mhz, card),          NUMBER(power_limit_w, card),
                                           NUMBER(power_default_w, card),     NUMBER(link_generation, card),
                                           NUMBER(link_generation_max, card), NUMBER(link_lanes, card),
                                           NUMBER(link_lanes_max, card) };
static const NumberRow trace_numbers[] = {
    NUMBER(last_step, trace), NUMBER(steps, trace),     NUMBER(step_s, trace),  NUMBER(busy_s, trace),
    NUMBER(gap_s, trace),     NUMBER(tensor_s, trace),  NUMBER(other_s, trace), NUMBER(repeat_s, trace),
    NUMBER(comm_s, trace),    NUMBER(unnamed_s, trace), NUMBER(spans, trace),   NUMBER(lost, trace)
};

static const TextRow texts[] = { TEXT("run", run),       TEXT("unit", unit),         TEXT("units", units),
                                 TEXT("device", device), TEXT("activity", activity), TEXT("fair", fair) };
static const TextRow plan_texts[] = { TEXT("precision", plan.precision), TEXT("recompute", plan.recompute),
                                      TEXT("machine", plan.machine) };

static const struct {
    const char      *key;
    const NumberRow *row;
    int              n;
} groups[] = { { "plan", plan_numbers, ARRAY_LEN(plan_numbers) },
               { "host", host_numbers, ARRAY_LEN(host_numbers) },
               { "card", card_numbers, ARRAY_LEN(card_numbers) },
               { "trace", trace_numbers, ARRAY_LEN(trace_numbers) } };

static double *number_at(const RunFacts *f, size_t offset) { return (double *)((char *)f + offset); }

static void unknown(RunFacts *f, const NumberRow *row, int n)
{
    for (int i = 0; i < n; i++) *number_at(f, row[i].offset) = NAN;
}

void facts_init(RunFacts *f)
{
    memset(f, 0, sizeof *f);
    unknown(f, numbers, ARRAY_LEN(numbers));
    for (int g = 0; g < ARRAY_LEN(groups); g++) unknown(f, groups[g].row, groups[g].n);
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put_numbers(JsonOut *o, const RunFacts *f, const NumberRow *row, int n)
{
    for (int i = 0; i < n; i++) {
        double x = *number_at(f, row[i].offset);
        if (isfinite(x)) json_out_num(o, row[i].key, x);
    }
}

static void put_texts(JsonOut *o, const RunFacts *f, const TextRow *row, int n)
{
    for (int i = 0; i < n; i++) {
        const char *s = (const char *)f + row[i].offset;
        if (s[0]) json_out_str(o, row[i].key, s);
    }
}

static void put_metrics(JsonOut *o, const RunFacts *f)
{
    json_out_array(o, "metrics");
    for (int i = 0; i < f->n_metric; i++) {
        json_out_object(o, NULL);
        json_out_str(o, "name", f->metric[i].name);
        json_out_bool(o, "larger", f->metric[i].larger);
        json_out_close(o);
    }
    json_out_close(o);
    json_out_int(o, "best", f->best);
}

void facts_put(const RunFacts *f, JsonOut *o)
{
    put_texts(o, f, texts, ARRAY_LEN(texts));
    json_out_int(o, "steps", f->steps);
    put_numbers(o, f, numbers, ARRAY_LEN(numbers));
    put_metrics(o, f);
    for (int g = 0; g < ARRAY_LEN(groups); g++) {
        json_out_object(o, groups[g].key);
        if (g == 0) put_texts(o, f, plan_texts, ARRAY_LEN(plan_texts));
        put_numbers(o, f, groups[g].row, groups[g].n);
        json_out_close(o);
    }
}

int facts_write(const RunFacts *f, const char *path)
{
    JsonOut o;
    FILE   *file = file_create_tmp(path);
    if (!file) return -1;
    json_out_init_file(&o, file);
    json_out_object(&o, NULL);
    facts_put(f, &o);
    int rc = json_out_end(&o);
    if (rc == 0) rc = file_publish(&file, path);
    file_discard(&file);
    return rc;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static void take_numbers(RunFacts *f, json_t *from, const NumberRow *row, int n)
{
    for (int i = 0; i < n; i++) {
        json_t *x = json_object_get(from, row[i].key);
        if (json_is_number(x)) *number_at(f, row[i].offset) = json_number_value(x);
    }
}

static void take_texts(RunFacts *f, json_t *from, const TextRow *row, int n)
{
    for (int i = 0; i < n; i++) {
        const char *s = json_string_value(json_object_get(from, row[i].key));
        if (s) str_quote((char *)f + row[i].offset, row[i].size, s, strlen(s));
    }
}

static void take_metrics(RunFacts *f, json_t *root)
{
    size_t  i;
    json_t *m, *all = json_object_get(root, "metrics");
    json_array_foreach(all, i, m)
    {
        const char *name = json_string_value(json_object_get(m, "name"));
        if (!name || f->n_metric == FACTS_METRICS) continue;
        str_quote(f->metric[f->n_metric].name, SERIES_NAME, name, strlen(name));
        f->metric[f->n_metric++].larger = json_is_true(json_object_get(m, "larger"));
    }
    int64_t best = json_integer_value(json_object_get(root, "best"));
    f->best      = best >= 0 && best < f->n_metric ? (int)best : 0;
}

int facts_read(RunFacts *f, const char *text)
{
    facts_init(f);
    json_t *root = text ? json_loads(text, 0, NULL) : NULL;
    if (!root) return 0;
    f->steps = json_integer_value(json_object_get(root, "steps"));
    take_texts(f, root, texts, ARRAY_LEN(texts));
    take_numbers(f, root, numbers, ARRAY_LEN(numbers));
    take_metrics(f, root);
    take_texts(f, json_object_get(root, "plan"), plan_texts, ARRAY_LEN(plan_texts));
    for (int g = 0; g < ARRAY_LEN(groups); g++)
        take_numbers(f, json_object_get(root, groups[g].key), groups[g].row, groups[g].n);
    json_decref(root);
    return 1;
}

const char *facts_best(const RunFacts *f) { return f->n_metric > 0 ? f->metric[f->best].name : "val_loss"; }

int facts_best_larger(const RunFacts *f) { return f->n_metric > 0 && f->metric[f->best].larger; }

const char *facts_measure_name(const char *key, char *buf, size_t n)
{
    str_copy(buf, n, str_starts_with(key, "val_") ? key + strlen("val_") : key);
    for (char *c = buf; *c; c++) *c = *c == '_' ? ' ' : *c;
    return buf;
}
