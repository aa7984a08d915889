/* Fuzz target: what the watching half reads from files and from the network: event records, lines of
 * metrics, request headers, watch.json, traces. The first byte says which. Built with libFuzzer; the corpus
 * is beside it.
 *
 * sources: src/file/events.c src/watch/series.c src/watch/waterfall.c src/watch/gate.c
 * src/watch/facts.c src/watch/tracesum.c src/base/[a-z]*.c */
#include "base/err.h"
#include "file/events.h"
#include "watch/facts.h"
#include "watch/gate.h"
#include "watch/series.h"
#include "watch/tracesum.h"
#include "watch/waterfall.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void walk_event(const uint8_t *bytes, size_t n)
{
    EventRecord r;
    EventValue  v;
    size_t      at = 0;
    int         rc;
    int64_t     len = event_parse(bytes, n, &r);
    CHECK(len <= (int64_t)n, "longer than the input");
    if (len <= 0) return;
    while ((rc = event_next_value(&r, &at, &v)) > 0) {
        CHECK(at <= r.n_summary, "outside the summary");
        CHECK(v.n_tag <= r.n_summary && v.n_image <= r.n_summary && v.n_text <= r.n_summary, "lengths");
    }
}

/* As it is, and with its checksums put right, since no fuzzer finds those. */
static void fuzz_event(const uint8_t *bytes, size_t n)
{
    walk_event(bytes, n);
    uint8_t *copy = malloc(n + 16);
    uint64_t len  = n;
    CHECK(copy, "out of memory");
    uint32_t crc;
    memcpy(copy, &len, 8);
    memcpy(copy + 12, bytes, n);
    crc = event_crc32c(copy, 8);
    crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(copy + 8, &crc, 4);
    crc = event_crc32c(copy + 12, n);
    crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(copy + 12 + n, &crc, 4);
    walk_event(copy, n + 16);
    free(copy);
}

static void fuzz_lines(const uint8_t *bytes, size_t n)
{
    Series        s;
    WaterfallPart part[WATERFALL_PARTS];
    double        sum = 0, value[8], at;
    CHECK(series_init(&s, "input", 16, -1) == 0, "%s", err_get());
    for (size_t from = 0; from < n;) {
        const uint8_t *end = memchr(bytes + from, '\n', n - from);
        size_t         len = end ? (size_t)(end - (bytes + from)) : n - from;
        series_line(&s, (const char *)bytes + from, len);
        from += len + 1;
    }
    CHECK(s.n_row <= 16 && s.n_key <= SERIES_KEYS && s.n_text <= SERIES_TEXTS, "bounds");
    CHECK(series_tail(&s, "loss", value, 8) <= 8, "tail");
    series_extreme(&s, "loss", 0, &at);
    RunFacts none;
    facts_init(&none);
    int k = waterfall_of(&s, &none, part);
    for (int i = 0; i < k; i++) {
        CHECK(part[i].share >= -1e-9 && part[i].share <= 1 + 1e-9, "share %g", part[i].share);
        sum += part[i].share;
    }
    CHECK(k == 0 || fabs(sum - 1) < 1e-6, "the parts add up to %g", sum);
    series_deinit(&s);
}

static void fuzz_headers(const uint8_t *bytes, size_t n)
{
    char  buf[32];
    char *text = malloc(n + 1);
    CHECK(text, "out of memory");
    memcpy(text, bytes, n);
    text[n] = '\0';
    gate_host_is_ours(text, "box");
    gate_bearer(text);
    gate_cookie(text, "brim_token", buf, sizeof buf);
    CHECK(gate_same("0123456789abcdef", text) == (strcmp(text, "0123456789abcdef") == 0), "token");
    free(text);
}

static void fuzz_facts(const uint8_t *bytes, size_t n)
{
    RunFacts f;
    char    *text = malloc(n + 1);
    CHECK(text, "out of memory");
    memcpy(text, bytes, n);
    text[n] = '\0';
    facts_read(&f, text);
    CHECK(f.n_metric >= 0 && f.n_metric <= FACTS_METRICS && (f.n_metric == 0 || f.best < f.n_metric),
          "bounds");
    CHECK(strlen(facts_best(&f)) < SERIES_NAME && strlen(f.device) < sizeof f.device, "texts");
    FallWindow    w = { .n_step = 10, .wall_s = 1, .step_s = 0.1 };
    WaterfallPart part[WATERFALL_PARTS];
    double        sum = 0;
    int           k   = waterfall_from(&w, &f, part);
    for (int i = 0; i < k; i++) sum += part[i].share;
    CHECK(k == 0 || fabs(sum - 1) < 2e-3, "the parts add up to %g", sum);
    free(text);
}

static void fuzz_trace(const uint8_t *bytes, size_t n)
{
    TraceSum *t = calloc(1, sizeof *t);
    CHECK(t, "out of memory");
    if (tracesum_read(t, "input", (const char *)bytes, n) == 0) {
        CHECK(t->n_row <= TRACESUM_ROWS && t->busy_us <= t->steps_us * (1 + 1e-9) + 1e-6 && t->idle_us >= 0,
              "busy %g of %g", t->busy_us, t->steps_us);
    }
    err_clear();
    free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    if (n == 0) return 0;
    if (bytes[0] >= 0x80) {
        if (bytes[0] % 2) fuzz_trace(bytes + 1, n - 1);
        if (bytes[0] % 2 == 0) fuzz_facts(bytes + 1, n - 1);
        CHECK(err_kind() == ERR_NONE, "%s", err_get());
        return 0;
    }
    switch (bytes[0] % 3) {
    case 0: fuzz_event(bytes + 1, n - 1); break;
    case 1: fuzz_lines(bytes + 1, n - 1); break;
    default: fuzz_headers(bytes + 1, n - 1); break;
    }
    CHECK(err_kind() == ERR_NONE, "%s", err_get());
    return 0;
}
