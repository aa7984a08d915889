/* Plots as text: the labels of their axes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "watch/svg.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What stands behind each "x='...' y='...'>" of the labels of one axis, one word each. */
static char *labels_of(SvgPlot *p, const char *anchor)
{
    char  *text, *out, mark[64];
    size_t n, n_out;
    FILE  *f = open_memstream(&text, &n), *o = open_memstream(&out, &n_out);
    assert_int_equal(svg_plot(f, p), 1);
    fclose(f);
    snprintf(mark, sizeof mark, "text-anchor='%s'", anchor);
    for (const char *at = strstr(text, mark); at; at = strstr(at + 1, mark)) {
        const char *label = strchr(at, '>') + 1;
        fprintf(o, "%.*s ", (int)strcspn(label, "<"), label);
    }
    fclose(o);
    free(text);
    return out;
}

/* Two or more labels on an axis, all different; a constant with other last digits is one. */
static void test_axes(void **state)
{
    const double x[] = { 1, 2, 3, 400 };
    const struct {
        double      y[4];
        const char *want;
    } row[] = { { { 1, 1 + DBL_EPSILON, 1, 1 }, "0.9 0.95 1 1.05 1.1 " },
                { { 216110, 216420, 216150, 216380 }, "216.1k 216.2k 216.3k 216.4k " },
                { { 8, 0.4, 0.3, 0.2 }, "0 2 4 6 8 " },
                { { 0.0105, 0.01051, 0.0105, 0.01052 }, "0.0105 0.010505 0.01051 0.010515 0.01052 " },
                { { -2, 1, 0, 1 }, "-2 -1 0 1 " } };
    alarm(5); /* an axis without an end */
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        SvgPlot p    = { .title = "x", .scale = 1, .n_line = 1, .line = { { "", x, row[i].y, 4 } } };
        char   *text = labels_of(&p, "end");
        assert_string_equal(text, row[i].want);
        free(text);
        text = labels_of(&p, "middle");
        assert_string_equal(text, "100 200 300 400 ");
        free(text);
    }
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_axes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
