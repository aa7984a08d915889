/* Facts: what does not change while a run trains: watch.json of the run's folder. The task's unit and
 * measures, the plan, the host, the card, and the sums of a trace.
 *
 * 1. A number that is not known is NAN, and is missing in the file.
 * 2. Sums of a trace are seconds per step. */
#ifndef WATCH_FACTS_H
#define WATCH_FACTS_H

#include "base/json.h"
#include "watch/series.h"

#include <stdint.h>
#include <stdio.h>

enum { FACTS_METRICS = 8 };

typedef struct {
    double micro_batch, micro_per_step, world;
    double planned_bytes, room_bytes, total_bytes; /* slabs; what a plan may take; the device's memory */
    double model_flops, repeat_flops;              /* of a step of one rank; computed again */
    double inner_flops;           /* more that attention's kernels do: scores again, masked ones */
    double predicted_s, repeat_s; /* a step by the machine's rates; of this, what is computed again */
    double n_op;                  /* ops of a step */
    double peak_flops, peak_mhz;  /* the data sheet's, and the clock it is meant for */
    double data_share;            /* of their longest rows that the data need (Task.share); 0: not known */
    double capability, threads;   /* 90: compute capability 9.0; CPU threads that compute */
    char   precision[16], recompute[16], machine[64]; /* machine: key of plan/machine.h, "cpu", or "" */
} FactsPlan;

typedef struct {
    double cpus, allowed, quota; /* online; affinity and quota together; NAN: no quota */
    double loader_threads;       /* 0: batches are read in line */
    double cores, allowed_cores; /* of all CPUs; of those that affinity leaves. NAN or 0: not known */
} FactsHost;

typedef struct {
    double max_sm_mhz, power_limit_w, power_default_w;
    double link_generation, link_generation_max, link_lanes, link_lanes_max;
} FactsCard;

typedef struct {
    double last_step;     /* the step that ended it */
    double steps, step_s; /* recorded; their mean time */
    double busy_s;        /* something at work */
    double gap_s;         /* nothing at work for less than TRACER_GAP_S: between one kernel and the next */
    double tensor_s;      /* products and attention, without those computed again */
    double other_s;       /* all other ops, without those computed again */
    double repeat_s;      /* what is computed again */
    double comm_s;        /* nothing at work but communication */
    double unnamed_s;     /* kernels that belong to no op */
    double spans, lost;
} FactsTrace;

typedef struct {
    char    run[256], unit[32], units[32], device[160], activity[160];
    int64_t steps;
    double  units_per_step, ranks, started_s;
    double  first_step; /* the newest start does the steps behind it */
    double  target;     /* of the measure that counts: the run ends there. NAN: none */
    double  energy_j;   /* of the run up to the end of its newest start, also of steps that are done again */
    double  sampler_cpu_s, sampler_open_s, sampler_s; /* watch/meter.h: MeterCost */
    int     n_metric, best;
    struct {
        char name[SERIES_NAME]; /* as in metrics.jsonl: "val_loss" */
        int  larger;            /* 1: larger is better */
    } metric[FACTS_METRICS];
    char       fair[SERIES_NAME]; /* Task.fair, as in metrics.jsonl; "": the task has none */
    FactsPlan  plan;
    FactsHost  host;
    FactsCard  card;
    FactsTrace trace;
} RunFacts;

void facts_init(RunFacts *f); /* nothing is known */
/* The members of an object. */
void facts_put(const RunFacts *f, JsonOut *o);
/* Negative after err_set(). */
int facts_write(const RunFacts *f, const char *path);
/* From the text of a file; whatever is missing or of another type stays unknown. 1: it was JSON, else 0. */
int facts_read(RunFacts *f, const char *text);

/* The measure that counts: "val_accuracy"; "val_loss" where nothing is known. */
const char *facts_best(const RunFacts *f);
int         facts_best_larger(const RunFacts *f);
/* "val_bits_per_byte" -> "bits per byte". Returns buf. */
const char *facts_measure_name(const char *key, char *buf, size_t n);

#endif
