/* What compare, report and the page read and show, without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "base/str.h"
#include "conf/bind.h"
#include "run/rundir.h"
#include "runs_rig.h"
#include "watch/api.h"
#include "watch/assets.h"
#include "watch/compare.h"
#include "watch/gate.h"
#include "watch/report.h"
#include "watch/series.h"
#include "watch/waterfall.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>

/* ---- series -------------------------------------------------------------------------------------------- */

static void test_follow(void **state)
{
    Rig   *r = *state;
    Series s;
    double at;
    assert_int_equal(series_init(&s, r->path, 100, -1), 0);
    assert_int_equal(series_follow(&s), 0); /* no file yet */
    put(r->path, "w", "{\"step\":0,\"val_loss\":5}\n{\"step\":1,\"loss\":4,\"mfu\":null}\n{\"step\":2,\"lo");
    assert_int_equal(series_follow(&s), 1);
    assert_int_equal(s.n_row, 2);
    assert_true(series_last(&s, "loss") == 4 && isnan(series_last(&s, "mfu")) &&
                isnan(series_last(&s, "none")));
    assert_int_equal(series_follow(&s), 0); /* half a line waits for its end */
    put(r->path, "a",
        "ss\":3,\"clock_reasons\":\"power cap\"}\nnot json\n[1]\n{\"step\":-1}\n{\"loss\":1}\n");
    assert_int_equal(series_follow(&s), 1);
    assert_int_equal(s.n_row, 3);
    assert_int_equal(s.n_bad, 4);
    assert_string_equal(series_text(&s, "clock_reasons"), "power cap");
    assert_true(series_extreme(&s, "loss", 0, &at) == 3 && at == 2);
    int epoch = s.epoch;
    put(r->path, "w", "{\"step\":1,\"loss\":9}\n"); /* as after a resume */
    assert_int_equal(series_follow(&s), 1);
    assert_int_equal(s.n_row, 1);
    assert_true(s.epoch > epoch && series_last(&s, "loss") == 9);
    series_deinit(&s);
}

/* However long the run: bounded, evaluations kept, the newest value exact. */
static void test_thinning(void **state)
{
    Rig   *r = *state;
    Series s;
    char   line[128];
    FILE  *f = fopen(r->path, "w");
    for (int i = 1; i <= 50000; i++) {
        fprintf(f, "{\"step\": %d, \"loss\": %d, \"per_s\": 1}\n", i, i);
        if (i % 5000 == 0) fprintf(f, "{\"step\": %d, \"val_loss\": %d}\n", i, i);
    }
    fclose(f);
    for (int whole = 0; whole < 2; whole++) { /* by lines, and as a file with its stride guessed */
        double val[64];
        assert_int_equal(series_init(&s, r->path, 1000, -1), 0);
        if (whole) {
            assert_int_equal(series_follow(&s), 1);
        } else {
            for (int i = 1; i <= 50000; i++) {
                int n = snprintf(line, sizeof line, "{\"step\": %d, \"loss\": %d}", i, i);
                assert_int_equal(series_line(&s, line, (size_t)n), 1);
                n = snprintf(line, sizeof line, "{\"step\": %d, \"val_loss\": %d}", i, i);
                if (i % 5000 == 0) series_line(&s, line, (size_t)n);
            }
        }
        assert_true(s.n_row > 300 && s.n_row <= 1000);
        assert_int_equal(series_tail(&s, "val_loss", val, 64), 10);
        assert_true(val[0] == 5000 && val[9] == 50000);
        assert_true(series_last(&s, "loss") == 50000);
        for (int i = 1; i < s.n_row; i++) assert_true(s.column[0][i] >= s.column[0][i - 1]);
        series_deinit(&s);
    }
}

static void test_tail(void **state)
{
    Rig   *r = *state;
    Series s;
    char   line[64];
    FILE  *f = fopen(r->path, "w");
    for (int i = 1; i <= 20000; i++) fprintf(f, "{\"step\": %d, \"loss\": %d}\n", i, i);
    fclose(f);
    assert_int_equal(series_init(&s, r->path, 240, 4096), 0);
    assert_int_equal(series_follow(&s), 1);
    assert_true(s.n_row > 50 && s.n_row <= 240 && s.column[0][0] > 19000 && s.n_bad == 0);
    assert_true(series_last(&s, "loss") == 20000);
    assert_true(series_mean(&s, "loss", 20) == 19990.5); /* each of the last 20 steps, also of new ones */
    for (int i = 20001; i <= 21000; i++) {
        snprintf(line, sizeof line, "{\"step\": %d, \"loss\": %d}\n", i, i);
        put(r->path, "a", line);
        if (i % 100 == 0) assert_int_equal(series_follow(&s), 1);
    }
    assert_true(series_mean(&s, "loss", 20) == 20990.5 && s.n_row >= 100 && s.n_row <= 240);
    series_deinit(&s);
}

static void test_hostile_lines(void **state)
{
    Series s;
    char   line[4096];
    assert_int_equal(series_init(&s, "x", 50, -1), 0);
    for (int i = 0; i < 500;
         i++) { /* more keys than there is room for, names too long, all kinds of values */
        int n =
            snprintf(line, sizeof line,
                     "{\"step\": %d, \"k%d\": 1e999, \"t%d\": \"\\u0007\", \"%0*d\": 2, \"o\": {\"a\": [1]}}",
                     i, i, i, 60, 1);
        series_line(&s, line, (size_t)n);
        n = snprintf(line, sizeof line, "{\"step\": %d, \"q%d\": 3}", i, i);
        series_line(&s, line, (size_t)n);
    }
    assert_true(s.n_key <= SERIES_KEYS && s.n_row <= 50 && s.n_text <= SERIES_TEXTS);
    series_deinit(&s);
}

/* ---- waterfall ----------------------------------------------------------------------------------------- */

static void fill(Series *s, const char *format)
{
    char line[512];
    assert_int_equal(series_init(s, "x", 100, -1), 0);
    for (int i = 1; i <= 20; i++) {
        int n = snprintf(line, sizeof line, format, i, (double)i, 0.1 * i);
        assert_int_equal(series_line(s, line, (size_t)n), 1);
    }
}

static double total(const WaterfallPart *p, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) {
        assert_true(p[i].share >= 0 && p[i].share <= 1);
        sum += p[i].share;
    }
    return sum;
}

static void test_waterfall(void **state)
{
    WaterfallPart p[WATERFALL_PARTS];
    Series        s;
    RunFacts      none;
    facts_init(&none);
    fill(&s, "{\"step\":%d,\"loss\":1,\"time_s\":%g,\"data_wait_s\":%g,\"sm_active\":0.8,\"tensor_active\":0."
             "6,\"mfu\":0.5}");
    assert_int_equal(waterfall_of(&s, &none, p), 5);
    assert_true(fabs(p[0].share - 0.1) < 1e-9 && fabs(p[1].share - 0.1) < 1e-9 &&
                fabs(p[4].share - 0.5) < 1e-9);
    assert_true(fabs(total(p, 5) - 1) < 1e-9);
    series_deinit(&s);
    fill(&s,
         "{\"step\":%d,\"loss\":1,\"time_s\":%g,\"data_wait_s\":%g,\"gpu_util\":1,\"mfu\":1.3}"); /* fp8 */
    assert_int_equal(waterfall_of(&s, &none, p), 4);
    /* Some kernel always runs: the GPU does not notice that the host waits. */
    assert_true(fabs(total(p, 4) - 1) < 1e-9 && fabs(p[3].share - 1) < 1e-9);
    series_deinit(&s);
    fill(&s, "{\"step\":%d,\"loss\":1,\"time_s\":%g,\"data_wait_s\":%g}");
    assert_int_equal(waterfall_of(&s, &none, p), 2);
    assert_true(fabs(total(p, 2) - 1) < 1e-9);
    series_deinit(&s);
    assert_int_equal(series_init(&s, "x", 10, -1), 0);
    assert_int_equal(waterfall_of(&s, &none, p), 0);
}

/* Twenty steps of 1 s, then a start with twenty of 0.1 s. `earlier` and `later` are added to their lines. */
static void fill_two_starts(Series *s, const char *earlier, const char *later)
{
    char line[256];
    assert_int_equal(series_init(s, "x", 100, -1), 0);
    for (int i = 1; i <= 40; i++) {
        int n = snprintf(line, sizeof line, "{\"step\":%d,\"loss\":1,\"time_s\":%g,\"data_wait_s\":0%s}", i,
                         i <= 20 ? i : 20 + 0.1 * (i - 20), i <= 20 ? earlier : later);
        assert_int_equal(series_line(s, line, (size_t)n), 1);
    }
}

static void expect_step_s(const Series *s, const char *facts, double want)
{
    RunFacts   f;
    FallWindow w;
    facts_read(&f, facts);
    waterfall_window(s, &f, &w);
    if (fabs(w.step_s - want) > 1e-9) fail_msg("%s: %g s a step", facts ? facts : "no facts", w.step_s);
}

static void test_waterfall_of_one_start(void **state)
{
    static const char *const counter[][2] = { { ",\"eval_s\":3", ",\"eval_s\":1" },
                                              { ",\"save_s\":3", ",\"save_s\":1" },
                                              { ",\"data_fill_s\":3", ",\"data_fill_s\":1" } };
    Series                   s;
    fill_two_starts(&s, "", "");
    expect_step_s(&s, "{\"steps\":40,\"first_step\":20}", 0.1);
    series_deinit(&s);
    for (int i = 0; i < ARRAY_LEN(counter); i++) {
        fill_two_starts(&s, counter[i][0], counter[i][1]);
        expect_step_s(&s, NULL, 0.1);                               /* of an older version */
        expect_step_s(&s, "{\"steps\":40,\"first_step\":40}", 0.1); /* a start that had nothing to do */
        series_deinit(&s);
    }
}

/* ---- gate ---------------------------------------------------------------------------------------------- */

static void test_gate(void **state)
{
    char buf[32], longest[400];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    assert_true(gate_same("secret-secret-00", "secret-secret-00"));
    assert_false(gate_same("secret-secret-00", "secret-secret-01"));
    assert_false(gate_same("secret-secret-00", "secret-secret-0"));
    assert_false(gate_same("secret-secret-00", "secret-secret-000"));
    assert_false(gate_same("secret-secret-00", ""));
    assert_false(gate_same("", ""));
    assert_false(gate_same("aaaaaaaaaaaaaaaa", longest));
    static const char *const ours[] = { "127.0.0.1", "127.0.0.1:8265", "localhost", "LOCALHOST:1", "[::1]",
                                        "[::1]:80",  "10.1.2.3:8265",  "box",       "box:80" };
    static const char *const not_ours[] = { "evil.com",           "evil.com:8265",  "localhost.evil.com",
                                            "127.0.0.1.evil.com", "box.evil.com",   "",
                                            "127.0.0.1:80x",      "[::1",           "[::1]x",
                                            "user@127.0.0.1",     "localhost:80:80" };
    for (int i = 0; i < ARRAY_LEN(ours); i++) assert_true(gate_host_is_ours(ours[i], "box"));
    for (int i = 0; i < ARRAY_LEN(not_ours); i++) assert_false(gate_host_is_ours(not_ours[i], "box"));
    assert_false(gate_host_is_ours(NULL, "box"));
    assert_false(gate_host_is_ours(longest, "box"));
    assert_string_equal(gate_bearer("Bearer abc"), "abc");
    assert_string_equal(gate_bearer("bearer abc"), "abc");
    assert_null(gate_bearer("Basic abc"));
    assert_null(gate_bearer(NULL));
    assert_int_equal(gate_cookie("a=1; brim_token=xyz; b=2", "brim_token", buf, sizeof buf), 0);
    assert_string_equal(buf, "xyz");
    assert_true(gate_cookie("xbrim_token=xyz", "brim_token", buf, sizeof buf) < 0);
    assert_true(gate_cookie("brim_token", "brim_token", buf, sizeof buf) < 0);
    assert_true(gate_cookie("brim_token=0123456789012345678901234567890123", "brim_token", buf, sizeof buf) <
                0);
    assert_int_equal(bind_is_local("127.9.9.9"), 1);
    assert_int_equal(bind_is_local("::1"), 1);
    assert_int_equal(bind_is_local("0.0.0.0"), 0);
    assert_int_equal(bind_is_local("::"), 0);
    assert_true(bind_is_local("example.com") < 0);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

static char *captured(int (*call)(const Rig *r, FILE *f), const Rig *r)
{
    char  *text;
    size_t n;
    FILE  *f  = open_memstream(&text, &n);
    int    rc = call(r, f);
    fclose(f);
    assert_int_equal(rc, 0);
    return text;
}

static int call_compare(const Rig *r, FILE *f)
{
    CompareRun runs[] = { { base_of(r), "one" }, { base_of(r), "two" } };
    return compare_print(runs, 2, 0, f);
}

static int call_compare_one(const Rig *r, FILE *f)
{
    CompareRun run = { base_of(r), "one" };
    return compare_print(&run, 1, 0, f);
}

static int call_json(const Rig *r, FILE *f)
{
    CompareRun runs[] = { { base_of(r), "one" }, { base_of(r), "two" } };
    return compare_print(runs, 2, 1, f);
}

static void test_compare(void **state)
{
    Rig       *r      = *state;
    CompareRun absent = { base_of(r), "oen" };
    char       path[256];
    make_run(r, "one", 0.001, "");
    make_run(r, "two", 0.002, ",\"j_per_unit\":0.5");
    snprintf(path, sizeof path, "%s/runs/two/recipe.yaml", r->dir);
    put(path, "a", "ppo:\n  epochs: 7\n"); /* the other run has no such key */
    char *t = captured(call_compare, r);
    assert_non_null(strstr(t, "optim.lr                   0.001"));
    assert_non_null(strstr(t, "ppo.epochs                 -"));
    assert_non_null(strstr(t, "0.5 J/image"));
    assert_non_null(strstr(t, "1.23k images/s"));
    assert_non_null(strstr(t, "0.2000 at 30"));
    assert_null(strstr(t, "warmup"));
    free(t);
    t            = captured(call_json, r);
    json_t *root = json_loads(t, JSON_DISABLE_EOF_CHECK, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "run")), "one");
    assert_true(json_number_value(json_object_get(root, "best_step")) == 30);
    json_decref(root);
    free(t);
    assert_true(compare_print(&absent, 1, 0, stdout) < 0);
    assert_non_null(strstr(err_get(), "command line: oen: no such run (there is none in "));
    err_clear();
}

/* A run that was evaluated twice. fair: the task says what compares runs whose targets differ. */
static void make_evaluated(const Rig *r, const char *name, const char *first, const char *last, int fair)
{
    char path[256];
    make_run(r, name, 0.001, "");
    snprintf(path, sizeof path, "%s/runs/%s/metrics.jsonl", r->dir, name);
    put(path, "w", "{\"step\":1,\"loss\":3,\"per_s\":1234,\"time_s\":1,\"data_wait_s\":0}\n");
    put(path, "a", first);
    put(path, "a", last);
    snprintf(path, sizeof path, "%s/runs/%s/watch.json", r->dir, name);
    put(path, "w",
        fair ? "{\"metrics\":[{\"name\":\"val_loss\"}],\"best\":0,\"fair\":\"val_bits_per_piece\"}"
             : "{\"metrics\":[{\"name\":\"val_loss\"}],\"best\":0}");
}

/* Targets of 1 and of 3.2 pieces each. */
static void test_compare_targets(void **state)
{
    static const char small[] =
        "{\"step\":2,\"val_loss\":1.5,\"val_odds\":4.5,\"val_bits_per_piece\":2.164}\n";
    static const char later[] =
        "{\"step\":3,\"val_loss\":1.6,\"val_odds\":5,\"val_bits_per_piece\":2.3083}\n";
    static const char large[] = "{\"step\":2,\"val_loss\":3.2,\"val_bits_per_piece\":1.4427}\n";
    Rig              *r       = *state;
    make_evaluated(r, "one", small, later, 1);
    make_evaluated(r, "two", large, large, 1);
    char *t = captured(call_compare, r);
    assert_non_null(strstr(t, "\nvalidation odds            5.0000                    n/a\n"));
    assert_non_null(
        strstr(t, "\nvalidation bits per piece  2.3083, best 2.1640 at 2  1.4427, best 1.4427 at "));
    assert_non_null(strstr(t,
                           "\nthe targets of these runs differ in size (1 : 3.200): compare bits per piece, "
                           "not loss\n"));
    free(t);
    make_evaluated(r, "two", small, small, 1);
    t = captured(call_compare, r);
    assert_null(strstr(t, "targets"));
    free(t);
    make_evaluated(r, "two", large, large, 0); /* a run of an older version, or of another task */
    t = captured(call_compare, r);
    assert_null(strstr(t, "targets"));
    free(t);
}

/* The title of a plot names a measure only if all runs go by it. */
static void test_compare_picture(void **state)
{
    static const char *const facts[] = {
        "{\"metrics\":[{\"name\":\"val_loss\"}],\"best\":0}",
        "{\"metrics\":[{\"name\":\"val_return\",\"larger\":true}],\"best\":0}"
    };
    static const char *const want[] = { ">Validation loss, smaller is better<",
                                        ">Validation, own measures<" };
    Rig                     *r      = *state;
    CompareRun               runs[] = { { base_of(r), "one" }, { base_of(r), "two" } };
    char                     path[256], picture[256], *text;
    size_t                   n;
    make_run(r, "one", 0.001, "");
    make_run(r, "two", 0.001, "");
    snprintf(path, sizeof path, "%s/runs/two/metrics.jsonl", r->dir);
    put(path, "a", "{\"step\":30,\"val_return\":200}\n");
    snprintf(path, sizeof path, "%s/runs/two/watch.json", r->dir);
    snprintf(picture, sizeof picture, "%s/both.svg", r->dir);
    for (int i = 0; i < ARRAY_LEN(facts); i++) {
        put(path, "w", facts[i]);
        assert_int_equal(compare_picture(runs, 2, picture), 0);
        assert_int_equal(file_read_all(picture, 1 << 20, &text, &n), 0);
        if (!strstr(text, want[i])) fail_msg("no %s", want[i]);
        free(text);
    }
}

/* A mean is not said to be of more steps than there are. */
static void test_report_of_few(void **state)
{
    Rig   *r = *state;
    char   path[256], *text;
    size_t n;
    make_run(r, "one", 0.001, "");
    snprintf(path, sizeof path, "%s/runs/one/metrics.jsonl", r->dir);
    put(path, "w", "{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":3}\n");
    assert_int_equal(report_write_run(base_of(r), "one", NULL, NULL), 0);
    snprintf(path, sizeof path, "%s/runs/one/report.html", r->dir);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), 0);
    assert_non_null(strstr(text, "from 4.0000 to 3.5000 (mean of the last 2 steps)"));
    free(text);
}

/* Report and compare have one rate, that of the last 100 steps, however many rows a long run's series keeps;
 * and one loss, that of the last 20. */
static void test_one_rate(void **state)
{
    enum { STEPS = 20000 };
    Rig   *r = *state;
    char   path[256], *text;
    size_t n;
    make_run(r, "one", 0.001, "");
    snprintf(path, sizeof path, "%s/runs/one/metrics.jsonl", r->dir);
    FILE *f = fopen(path, "a");
    for (int i = 31; i <= STEPS; i++)
        fprintf(f, "{\"step\":%d,\"loss\":%d,\"per_s\":%d,\"mfu\":0.5,\"time_s\":%d}\n", i, i,
                i > STEPS - 100 ? 5000 : 1000, i);
    fclose(f);
    text = captured(call_compare_one, r);
    assert_non_null(strstr(text, "\nrate                       5.00k images/s\n"));
    assert_non_null(strstr(text, "\nrate and MFU of steps      19901 to 20000\n"));
    assert_non_null(strstr(text, "\nloss (last 20)             19990.5000\n"));
    free(text);
    assert_int_equal(report_write_run(base_of(r), "one", NULL, NULL), 0);
    snprintf(path, sizeof path, "%s/runs/one/report.html", r->dir);
    assert_int_equal(file_read_all(path, 4 << 20, &text, &n), 0);
    assert_non_null(strstr(text, "<b>5.00k</b>images/s, steps 19901 to 20000<"));
    assert_non_null(strstr(text, "<b>50.0 %</b>MFU, steps 19901 to 20000<"));
    assert_non_null(strstr(text, " to 19990.5000 (mean of the last 20 steps)"));
    free(text);
}

static void test_report(void **state)
{
    Rig   *r = *state;
    char   path[256], *text;
    size_t n;
    make_run(r, "one", 0.001, "");
    assert_int_equal(report_write_run(base_of(r), "one", NULL, NULL), 0);
    snprintf(path, sizeof path, "%s/runs/one/report.html", r->dir);
    assert_int_equal(file_read_all(path, 1 << 20, &text, &n), 0);
    assert_non_null(strstr(text, "<svg"));
    assert_non_null(strstr(text, "The run did its 30 steps"));
    assert_non_null(strstr(text, "a &lt;b&gt;device&lt;/b&gt; &quot;x&quot;"));
    assert_null(strstr(text, "<b>device"));
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "http:")); /* asks nobody anything */
    assert_null(strstr(text, "https:"));
    assert_null(strstr(text, "nan"));
    free(text);
    assert_true(report_write_run(base_of(r), "../one", NULL, NULL) < 0);
    err_clear();
}

/* A run that ended in its first step, and one that did not get as far: nothing reads "nan". */
static void test_report_of_nothing(void **state)
{
    static const char *const lines[] = { "{\"step\":0,\"val_loss\":5.5,\"time_s\":0}\n", "" };
    Rig                     *r       = *state;
    char                     path[256], *text;
    size_t                   n;
    make_run(r, "one", 1, "");
    for (int i = 0; i < ARRAY_LEN(lines); i++) {
        snprintf(path, sizeof path, "%s/runs/one/metrics.jsonl", r->dir);
        put(path, "w", lines[i]);
        assert_int_equal(report_write_run(base_of(r), "one", NULL, NULL), 0);
        snprintf(path, sizeof path, "%s/runs/one/report.html", r->dir);
        assert_int_equal(file_read_all(path, 1 << 20, &text, &n), 0);
        assert_non_null(strstr(text, "The run is at step 0 of 30 after 0:00."));
        assert_null(strstr(text, "nan"));
        assert_null(strstr(text, "Plots over steps"));
        free(text);
        text = captured(call_compare_one, r);
        assert_non_null(strstr(text, "0 / 30"));
        free(text);
    }
}

/* One run more than are shown: it takes the place of the oldest one, and the others stay open. */
static void test_many_runs(void **state)
{
    Rig                 *r = *state;
    Runs                 runs;
    char                 path[256], name[16];
    const struct utimbuf old = { 1, 1 };
    for (int i = RUNS_MOST; i >= 0; i--) { /* "m000" comes last, and first in the listing */
        snprintf(path, sizeof path, "%s/runs/m%03d", r->dir, i);
        assert_int_equal(file_make_folders(path), 0);
        strcat(path, "/metrics.jsonl");
        if (i > 0) put(path, "w", "{\"step\":1,\"loss\":2}\n");
        if (i == RUNS_MOST) assert_int_equal(utime(path, &old), 0);
    }
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    runs_refresh(&runs);
    assert_int_equal(runs.n_run, RUNS_MOST);
    RunView *v = runs_find(&runs, "m100");
    assert_non_null(v);
    assert_non_null(runs_series(&runs, v));
    put(path, "w", "{\"step\":1,\"loss\":2}\n");
    assert_int_equal(runs_refresh(&runs), 1);
    assert_int_equal(runs.n_run, RUNS_MOST);
    assert_ptr_equal(runs_find(&runs, "m100"), v);
    assert_non_null(v->full);
    snprintf(name, sizeof name, "m%03d", RUNS_MOST);
    assert_null(runs_find(&runs, name));
    assert_non_null(runs_find(&runs, "m000"));
    runs_deinit(&runs);
}

static void test_states(void **state)
{
    Rig *r = *state;
    Runs runs;
    char path[256];
    make_run(r, "done", 1, "");
    make_run(r, "cut", 1, "");
    snprintf(path, sizeof path, "%s/runs/cut/watch.json", r->dir);
    put(path, "w", "{\"unit\":\"token\",\"steps\":99}");
    snprintf(path, sizeof path, "%s/runs/empty", r->dir);
    assert_int_equal(file_make_folders(path), 0);
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    assert_int_equal(runs_refresh(&runs), 1);
    assert_int_equal(runs.n_run, 2);
    assert_int_equal(runs_find(&runs, "done")->state, RUN_DONE);
    assert_int_equal(runs_find(&runs, "cut")->state, RUN_STOPPED);
    assert_null(runs_find(&runs, "../runs/done"));
    assert_int_equal(runs_refresh(&runs), 0);
    snprintf(path, sizeof path, "%s/runs/cut/metrics.jsonl", r->dir);
    put(path, "a", "{\"step\":31,\"loss\":1}\n");
    assert_int_equal(runs_refresh(&runs), 1);
    assert_true(series_last(&runs_find(&runs, "cut")->tail, "step") == 31);
    char cmd[200];
    snprintf(cmd, sizeof cmd, "rm -r %s/runs/cut", r->dir);
    assert_int_equal(system(cmd), 0);
    assert_int_equal(runs_refresh(&runs), 1);
    assert_int_equal(runs.n_run, 1);
    runs_deinit(&runs);
}

/* Facts that change are read again at once, also without a new row; who follows the run sees that. */
static void test_new_facts(void **state)
{
    Rig     *r = *state;
    Runs     runs;
    Gpus     gpus;
    RunFacts f;
    char     path[256], *text, mark[3][64] = { "" };
    size_t   n;
    make_run(r, "one", 1, "");
    snprintf(path, sizeof path, "%s/runs/one/watch.json", r->dir);
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    gpus_init(&gpus, "/nowhere.so");
    facts_init(&f);
    for (int i = 0; i < 3; i++) {
        f.steps = 30 + i;
        assert_int_equal(facts_write(&f, path), 0);
        assert_int_equal(runs_refresh(&runs), 1);
        assert_int_equal(runs.run[0]->steps, 30 + i);
        assert_int_equal(runs_refresh(&runs), 0);
        FILE *out = open_memstream(&text, &n);
        assert_int_equal(api_runs(&runs, &gpus, out), 0);
        fclose(out);
        json_t *root = json_loads(text, 0, NULL), *run = json_array_get(json_object_get(root, "runs"), 0);
        assert_true(json_is_string(json_object_get(run, "facts")));
        str_copy(mark[i], sizeof mark[i], json_string_value(json_object_get(run, "facts")));
        assert_true(i == 0 || strcmp(mark[i], mark[i - 1]) != 0);
        json_decref(root);
        free(text);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(runs_refresh(&runs), 1);
    assert_string_equal(runs.run[0]->device, "");
    gpus_deinit(&gpus);
    runs_deinit(&runs);
}

/* A killed run has stopped, though its lock is there and its metrics are new. */
static void test_killed(void **state)
{
    Rig   *r = *state;
    Runs   runs;
    RunDir d;
    char   path[256];
    int    status;
    make_run(r, "killed", 1, "");
    snprintf(path, sizeof path, "%s/runs/killed/watch.json", r->dir);
    put(path, "w", "{\"unit\":\"token\",\"steps\":99}");
    setenv("BRIM_RUNS", base_of(r), 1);
    pid_t child = fork();
    if (child == 0) _exit(rundir_open(&d, "killed") == 0 ? 0 : 1);
    assert_true(waitpid(child, &status, 0) == child && status == 0);
    assert_int_equal(runs_init_one(&runs, base_of(r), "killed"), 0);
    runs_refresh(&runs);
    assert_int_equal(runs_find(&runs, "killed")->state, RUN_STOPPED);
    assert_int_equal(rundir_open(&d, "killed"), 0);
    runs_refresh(&runs);
    assert_int_equal(runs_find(&runs, "killed")->state, RUN_TRAINING);
    rundir_close(&d);
    snprintf(path, sizeof path, "%s/runs/killed/lock", r->dir);
    put(path, "w", "pid 1 (started 2020-01-01 00:00:00)\non elsewhere pid:[1]\n"); /* of another machine */
    runs_refresh(&runs);
    assert_int_equal(runs_find(&runs, "killed")->state, RUN_TRAINING);
    unsetenv("BRIM_RUNS");
    runs_deinit(&runs);
}

static void test_blot(void **state)
{
    char text[] = "brim train a.yaml watch.token=topsecret steps=4\nhttp://x/?token=abc done token: 5";
    runs_blot(text);
    assert_string_equal(text,
                        "brim train a.yaml watch.token=********* steps=4\nhttp://x/?token=*** done token: 5");
}

/* ---- api ----------------------------------------------------------------------------------------------- */

static void test_api(void **state)
{
    Rig   *r = *state;
    Runs   runs;
    Gpus   gpus;
    char  *text;
    size_t n;
    make_run(r, "one \"q\"", 0.001, ",\"odd key\":1");
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    runs_refresh(&runs);
    gpus_init(&gpus, "/nowhere.so");
    for (int from = 0; from <= 25; from += 25) {
        FILE *f = open_memstream(&text, &n);
        assert_int_equal(api_run(&runs, runs.run[0], from, -1, f), 0);
        fclose(f);
        json_t *root = json_loads(text, 0, NULL), *cols = json_object_get(root, "columns");
        assert_int_equal(json_array_size(json_object_get(cols, "step")), from ? 7 : 33);
        assert_int_equal(json_array_size(json_object_get(cols, "loss")), from ? 7 : 33);
        assert_int_equal(json_object_get(root, "texts") != NULL, from == 0);
        json_decref(root);
        free(text);
    }
    FILE *f = open_memstream(&text, &n);
    assert_int_equal(api_runs(&runs, &gpus, f), 0);
    fclose(f);
    json_t *root = json_loads(text, 0, NULL), *run = json_array_get(json_object_get(root, "runs"), 0);
    assert_string_equal(json_string_value(json_object_get(run, "state")), "done");
    assert_null(json_object_get(run, "mfu")); /* not measured: not there */
    json_decref(root);
    free(text);
    f = open_memstream(&text, &n);
    api_prometheus(&runs, &gpus, f);
    fclose(f);
    assert_non_null(strstr(text, "brim_run_step{run=\"one \\\"q\\\"\",unit=\"image\"} 30\n"));
    assert_null(strstr(text, "nan"));
    free(text);
    gpus_deinit(&gpus);
    runs_deinit(&runs);
}

/* {"from", "to", "text"} of a run's log; the caller frees it. */
static json_t *log_from(Runs *runs, int64_t from)
{
    char  *text;
    size_t n;
    FILE  *f = open_memstream(&text, &n);
    assert_int_equal(api_run(runs, runs->run[0], 100, from, f), 0);
    fclose(f);
    json_t *root = json_loads(text, 0, NULL), *log = json_incref(json_object_get(root, "log"));
    assert_null(json_object_get(root, "texts"));
    json_decref(root);
    free(text);
    return log;
}

static void assert_log(Runs *runs, int64_t asked, int64_t from, int64_t to, const char *text)
{
    json_t *log = log_from(runs, asked);
    assert_int_equal(json_integer_value(json_object_get(log, "from")), from);
    assert_int_equal(json_integer_value(json_object_get(log, "to")), to);
    if (text) assert_string_equal(json_string_value(json_object_get(log, "text")), text);
    json_decref(log);
}

/* A page follows the log: whole lines, behind those that it has, and never more than 64 KiB. */
static void test_log_grows(void **state)
{
    Rig *r = *state;
    Runs runs;
    char path[300];
    make_run(r, "one", 0.001, "");
    snprintf(path, sizeof path, "%s/runs/one/log.txt", r->dir);
    put(path, "w", "first\nsec");
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    runs_refresh(&runs);
    assert_int_equal(runs_refresh(&runs), 0);
    assert_log(&runs, 0, 0, 6, "first\n");
    put(path, "a", "ond watch.token=secret1\n");
    assert_int_equal(runs_refresh(&runs), 1); /* an event goes out */
    assert_log(&runs, 6, 6, 33, "second watch.token=*******\n");
    assert_log(&runs, 33, 33, 33, "");
    assert_log(&runs, 1000, 0, 33, NULL); /* another log */
    for (int i = 0; i < 5000; i++) put(path, "a", "0123456789012345678\n");
    json_t *log = log_from(&runs, 33);
    assert_true(json_integer_value(json_object_get(log, "to")) == 33 + 5000 * 20);
    size_t len = json_string_length(json_object_get(log, "text"));
    assert_true(len <= 1 << 16 && len > (1 << 16) - 20 && len % 20 == 0);
    json_decref(log);
    assert_null(log_from(&runs, -1));
    runs_deinit(&runs);
}

static void test_assets(void **state)
{
    static const char *const bad[] = { "",          "/index.html", "/../page.js", "/page.js/",
                                       "//page.js", "/etc/passwd", "page.js" };
    Asset                    a;
    for (int i = 0; i < ARRAY_LEN(bad); i++) assert_false(asset_find(bad[i], &a));
    assert_true(asset_find("/", &a));
    assert_true(a.n > 500 && memcmp(a.bytes, "<!doctype html>", 15) == 0);
    assert_true(asset_find("/page.js", &a) && a.n > 5000);
    assert_true(asset_find("/uplot.js", &a)); /* empty where npm was missing */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_follow, setup, teardown),
        cmocka_unit_test_setup_teardown(test_thinning, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tail, setup, teardown),
        cmocka_unit_test(test_hostile_lines),
        cmocka_unit_test(test_waterfall),
        cmocka_unit_test(test_waterfall_of_one_start),
        cmocka_unit_test(test_gate),
        cmocka_unit_test_setup_teardown(test_compare, setup, teardown),
        cmocka_unit_test_setup_teardown(test_compare_targets, setup, teardown),
        cmocka_unit_test_setup_teardown(test_compare_picture, setup, teardown),
        cmocka_unit_test_setup_teardown(test_report_of_few, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_rate, setup, teardown),
        cmocka_unit_test_setup_teardown(test_report, setup, teardown),
        cmocka_unit_test_setup_teardown(test_report_of_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_states, setup, teardown),
        cmocka_unit_test_setup_teardown(test_new_facts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed, setup, teardown),
        cmocka_unit_test(test_blot),
        cmocka_unit_test_setup_teardown(test_api, setup, teardown),
        cmocka_unit_test_setup_teardown(test_log_grows, setup, teardown),
        cmocka_unit_test(test_assets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
