/* What brim top shows, without a terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "runs_rig.h"
#include "watch/screen.h"
#include "watch/top_draw.h"

/* ---- screen -------------------------------------------------------------------------------------------- */

static void test_screen(void **state)
{
    Screen s;
    char  *text;
    size_t n;
    for (int ascii = 0; ascii < 2; ascii++) {
        double v[100];
        for (int i = 0; i < 100; i++) v[i] = i;
        assert_int_equal(screen_init(&s, 10, 3, ascii), 0);
        screen_put(&s, 0, 8, 0, STYLE_PLAIN, "abcdef"); /* cut off */
        screen_put(&s, 9, 0, 0, STYLE_PLAIN, "nowhere");
        screen_put(&s, 1, 0, 0, STYLE_PLAIN, "a\x01\xff\xc3\xa9");
        screen_spark(&s, 2, 0, 8, STYLE_PLAIN, v, 100);
        FILE *f = open_memstream(&text, &n);
        screen_write(&s, f);
        fclose(f);
        assert_string_equal(
            text, ascii ? "        ab\na???\n_.-~=+*#\n"
                        : "        ab\na??\xc3\xa9\n\xe2\x96\x81\xe2\x96\x82\xe2\x96\x83\xe2\x96\x84\xe2\x96"
                          "\x85\xe2\x96\x86\xe2\x96\x87\xe2\x96\x88\n");
        free(text);
        screen_deinit(&s);
    }
}

/* Every view at every size: nothing is written outside (the sanitizers look), and what must be seen is. */
static void test_views(void **state)
{
    Rig *r = *state;
    Runs runs;
    Gpus gpus;
    for (int i = 0; i < 12; i++) {
        char name[16];
        snprintf(name, sizeof name, "run-%02d", i);
        make_run(r, name, 0.001, ",\"own_cpu\":2,\"rss_bytes\":1e9");
    }
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    runs_refresh(&runs);
    gpus_init(&gpus, "/nowhere.so");
    gpus_refresh(&gpus);
    static const int size[][2] = { { 20, 5 }, { 40, 10 }, { 80, 24 }, { 200, 50 }, { 1000, 7 } };
    for (int k = 0; k < ARRAY_LEN(size); k++) {
        for (int view = 0; view < TOP_VIEWS; view++) {
            Screen   s;
            TopState t = { .view = (TopView)view };
            assert_int_equal(screen_init(&s, size[k][0], size[k][1], k % 2), 0);
            for (int i = 0; i < 20; i++) {
                top_draw(&s, &runs, &gpus, &t, NULL);
                top_move(&runs, &t, i < 15 ? 1 : -7);
            }
            screen_deinit(&s);
        }
    }
    Screen   s;
    TopState t = { 0 };
    char    *text;
    size_t   n;
    assert_int_equal(screen_init(&s, 80, 24, 0), 0);
    top_move(&runs, &t, 11);
    top_draw(&s, &runs, &gpus, &t, NULL);
    FILE *f = open_memstream(&text, &n);
    screen_write(&s, f);
    fclose(f);
    assert_non_null(strstr(text, "no GPU: "));
    assert_non_null(strstr(text, runs.run[11]->name)); /* scrolled to it */
    assert_non_null(strstr(text, " more runs: arrows scroll to them"));
    assert_null(strstr(text, "measure"));
    assert_non_null(strstr(text, "30/30"));
    assert_non_null(strstr(text, "host memory"));
    free(text);
    screen_deinit(&s);
    gpus_deinit(&gpus);
    runs_deinit(&runs);
}

/* On a wide screen each run says which measure its column val has. */
static void test_measures_are_named(void **state)
{
    Rig     *r = *state;
    Runs     runs;
    Gpus     gpus;
    Screen   s;
    TopState t = { 0 };
    char     path[256], *text;
    size_t   n;
    make_run(r, "one", 1, "");
    make_run(r, "two", 1, ",\"val_top1\":0.25");
    snprintf(path, sizeof path, "%s/runs/two/watch.json", r->dir);
    put(path, "w", "{\"unit\":\"image\",\"metrics\":[{\"name\":\"val_top1\",\"larger\":true}],\"best\":0}");
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    runs_refresh(&runs);
    gpus_init(&gpus, "/nowhere.so");
    assert_int_equal(screen_init(&s, 120, 24, 1), 0);
    top_draw(&s, &runs, &gpus, &t, NULL);
    FILE *f = open_memstream(&text, &n);
    screen_write(&s, f);
    fclose(f);
    if (!strstr(text, "time  measure") || !strstr(text, "0:30  loss") || !strstr(text, "0:30  top1"))
        fail_msg("%s", text);
    assert_null(strstr(text, "more run"));
    free(text);
    screen_deinit(&s);
    gpus_deinit(&gpus);
    runs_deinit(&runs);
}

/* Loss and measure stand apart in 80 columns, however long they are. */
static void test_long_figures(void **state)
{
    static const struct {
        double      loss, val;
        const char *want;
    } row[] = { { -0.017, -723.929, " -0.017  -723.9 " },   { 2.3456, 99.9999, "   2.346 100.000 " },
                { -99.9996, 9999.96, " -100.00 10000.0 " }, { -12345.6, -9999.96, "  -12346  -10000 " },
                { -1234567.8, 1e300, "  -1e+06  1e+300 " }, { 0.5, 1234567, "   0.500 1234567 " },
                { 100, 10000, "   100.0   10000 " } };
    Rig *r  = *state;
    Runs runs;
    Gpus gpus;
    char path[256], more[128];
    make_run(r, "one", 1, "");
    snprintf(path, sizeof path, "%s/runs/one/metrics.jsonl", r->dir);
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    gpus_init(&gpus, "/nowhere.so");
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        Screen   s;
        TopState t = { 0 };
        char    *text;
        size_t   n;
        snprintf(more, sizeof more, "{\"step\":%d,\"loss\":%.9g,\"val_loss\":%.9g,\"per_s\":1e6}\n", 31 + i,
                 row[i].loss, row[i].val);
        put(path, "a", more);
        runs_refresh(&runs);
        assert_int_equal(screen_init(&s, 80, 24, 1), 0);
        top_draw(&s, &runs, &gpus, &t, NULL);
        FILE *f = open_memstream(&text, &n);
        screen_write(&s, f);
        fclose(f);
        if (!strstr(text, row[i].want)) fail_msg("\"%s\" is not in:\n%s", row[i].want, text);
        free(text);
        screen_deinit(&s);
    }
    gpus_deinit(&gpus);
    runs_deinit(&runs);
}

/* A machine with eight GPUs, each with a program, on a terminal of 24 rows: all of them are there. */
static void test_eight_gpus(void **state)
{
    Rig     *r = *state;
    Runs     runs;
    Gpus    *g = calloc(1, sizeof *g);
    TopState t = { 0 };
    assert_non_null(g);
    make_run(r, "one", 1, "");
    assert_int_equal(runs_init(&runs, base_of(r)), 0);
    runs_refresh(&runs);
    g->n_gpu = 8;
    for (int i = 0; i < g->n_gpu; i++) {
        g->gpu[i].n_process      = 1;
        g->gpu[i].process[0].pid = 4000 + i;
        strcpy(g->gpu[i].process[0].name, "python");
    }
    for (int view = TOP_OVERVIEW; view <= TOP_GPUS; view += TOP_GPUS) {
        Screen s;
        char  *text, pid[16];
        size_t n;
        t.view = (TopView)view;
        assert_int_equal(screen_init(&s, 80, 24, 1), 0);
        top_draw(&s, &runs, g, &t, NULL);
        FILE *f = open_memstream(&text, &n);
        screen_write(&s, f);
        fclose(f);
        for (int i = 0; i < g->n_gpu; i++) {
            snprintf(pid, sizeof pid, "\ngpu%d ", i);
            if (!strstr(text, pid)) fail_msg("GPU %d is not in:\n%s", i, text);
            snprintf(pid, sizeof pid, "pid %d", 4000 + i);
            if (view == TOP_GPUS && !strstr(text, pid)) fail_msg("%s is not in:\n%s", pid, text);
        }
        assert_non_null(strstr(text, view == TOP_GPUS ? " CPUs\n" : "30/30"));
        free(text);
        screen_deinit(&s);
    }
    runs_deinit(&runs);
    free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_eight_gpus, setup, teardown),
        cmocka_unit_test(test_screen),
        cmocka_unit_test_setup_teardown(test_views, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_figures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_measures_are_named, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
