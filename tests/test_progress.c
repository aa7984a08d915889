/* base/progress.h: the time left, and the bar on a terminal. */
#define _GNU_SOURCE /* posix_openpt */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/progress.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

/* What was spent before the first step says nothing about those to come. */
static void time_left_is_that_of_steps(void **state)
{
    char    *text = NULL;
    size_t   n;
    FILE    *out = open_memstream(&text, &n);
    Progress p;
    log_open(out);
    for (int timed = 0; timed < 2; timed++) {
        progress_begin(&p, "train", "tokens/s", 0, 11);
        p.begin_s -= 1000;
        progress_update(&p, 1, NAN, NAN, timed ? 6 : NAN);
    }
    progress_begin(&p, "train", "tokens/s", 0, 11);
    p.end_s = clock_now_s() + 30.5;
    progress_update(&p, 1, NAN, NAN, 6);
    log_close();
    fclose(out);
    assert_non_null(strstr(text, "train 1/11\n"));
    assert_non_null(strstr(text, "train 1/11  1:00 left\n"));
    assert_non_null(strstr(text, "train 1/11  0:30 left\n")); /* the budget ends first */
    free(text);
}

/* Opens a terminal of that width for the log; its other end goes to *master. NULL where there are none. */
static FILE *open_terminal(int *master, int columns)
{
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    if (*master < 0 || grantpt(*master) != 0 || unlockpt(*master) != 0) return NULL;
    FILE          *out  = fopen(ptsname(*master), "w");
    struct winsize size = { .ws_row = 24, .ws_col = (unsigned short)columns };
    assert_non_null(out);
    assert_int_equal(ioctl(fileno(out), TIOCSWINSZ, &size), 0);
    setenv("TERM", "xterm", 1);
    return out;
}

/* One redraw on a terminal of that width: what stands there afterwards. */
static void draw_once(int columns, char *seen, size_t n)
{
    int   master;
    FILE *out = open_terminal(&master, columns);
    if (!out) skip();
    Progress p;
    log_open(out);
    progress_begin(&p, "train", "tokens/s", 0, 500);
    progress_update(&p, 120, 2.3412, 553000, 0.1);
    struct pollfd ready = { .fd = master, .events = POLLIN };
    ssize_t       got   = poll(&ready, 1, 2000) > 0 ? read(master, seen, n - 1) : -1;
    assert_true(got >= 4 && memcmp(seen, "\r\033[K", 4) == 0);
    memmove(seen, seen + 4, (size_t)got - 4);
    seen[got - 4] = '\0';
    log_close();
    fclose(out);
    close(master);
}

/* A line as wide as the terminal would wrap, and the next redraw leave a part of it behind. */
static void bar_fits_its_terminal(void **state)
{
    char seen[600];
    for (int columns = 2; columns < 100; columns++) {
        draw_once(columns, seen, sizeof seen);
        assert_true(strlen(seen) < (size_t)columns);
    }
    draw_once(80, seen, sizeof seen);
    assert_ptr_equal(strstr(seen, "train [==="), seen);
    assert_true(strlen(seen) == 79);
    draw_once(60, seen, sizeof seen); /* the rate makes room for the bar */
    assert_ptr_equal(strstr(seen, "train [==="), seen);
    assert_non_null(strstr(seen, "] 120/500  loss 2.3412  0:38 left"));
    draw_once(47, seen, sizeof seen);
    assert_string_equal(seen, "120/500  loss 2.3412  553k tokens/s  0:38 left");
    draw_once(46, seen, sizeof seen);
    assert_string_equal(seen, "120/500  loss 2.3412  0:38 left");
    draw_once(30, seen, sizeof seen);
    assert_string_equal(seen, "120/500  loss 2.3412");
    draw_once(20, seen, sizeof seen);
    assert_string_equal(seen, "120/500");
    draw_once(5, seen, sizeof seen);
    assert_string_equal(seen, "120/");
}

/* The bar of work inside other work comes after two seconds and goes without a line. */
static void aside_comes_late_and_goes(void **state)
{
    int   master;
    char  seen[600];
    FILE *out = open_terminal(&master, 80);
    if (!out) skip();
    struct pollfd ready = { .fd = master, .events = POLLIN };
    Progress      p;
    log_open(out);
    progress_begin_aside(&p, "evaluation", NULL, 100);
    progress_count(&p, 1);
    progress_end(&p);
    assert_int_equal(poll(&ready, 1, 0), 0);
    progress_begin_aside(&p, "evaluation", NULL, 100);
    p.begin_s -= 10;
    progress_count(&p, 20);
    assert_true(poll(&ready, 1, 2000) > 0);
    ssize_t got = read(master, seen, sizeof seen - 1);
    assert_true(got > 0);
    seen[got] = '\0';
    assert_ptr_equal(strstr(seen, "\r\033[Kevaluation [==="), seen);
    assert_non_null(strstr(seen, "] 20/100  0:40 left"));
    progress_end(&p);
    assert_true(poll(&ready, 1, 2000) > 0);
    got = read(master, seen, sizeof seen - 1);
    assert_true(got > 0);
    seen[got] = '\0';
    assert_string_equal(seen, "\r\033[K");
    log_close();
    fclose(out);
    close(master);
}

/* On a terminal the bar is redrawn in place, and a log line goes above it. */
static void bar_on_a_terminal(void **state)
{
    int   master;
    FILE *out = open_terminal(&master, 80);
    if (!out) skip();
    Progress                 p;
    char                     seen[4096];
    static const char *const none[] = { "", "dumb" };
    for (int i = 0; i < ARRAY_LEN(none); i++) { /* no escape codes for those */
        setenv("TERM", none[i], 1);
        log_open(out);
        assert_false(log_is_terminal());
        log_close();
    }
    setenv("TERM", "xterm", 1);
    log_open(out);
    assert_true(log_is_terminal());
    progress_begin(&p, "train", "tokens/s", 0, 4);
    progress_update(&p, 1, 3.0, 553000, NAN);
    progress_update(&p, 2, 3.0, 553000, NAN); /* too soon to draw again */
    log_info("note");
    progress_update(&p, 4, 2.5, 553000, NAN);
    progress_end(&p);
    log_close();
    /* A terminal hands its bytes over in pieces, when it likes; the last line ends with a line break. */
    size_t        n     = 0;
    struct pollfd ready = { .fd = master, .events = POLLIN };
    while (n < sizeof seen - 1 && poll(&ready, 1, n == 0 || !strstr(seen, "in 0:00\r\n") ? 2000 : 0) > 0) {
        ssize_t got = read(master, seen + n, sizeof seen - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        seen[n] = '\0';
    }
    assert_true(n > 0);
    assert_ptr_equal(strstr(seen, "\r\033[Ktrain ["), seen);
    assert_non_null(strstr(seen, "1/4  loss 3.0000  553k tokens/s"));
    assert_null(strstr(seen, "2/4"));
    assert_non_null(strstr(seen, "\r\033[K[")); /* the note erased the bar first */
    assert_non_null(strstr(seen, "] note\r\ntrain ["));
    assert_non_null(strstr(seen, "4/4  loss 2.5000"));
    fclose(out);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_left_is_that_of_steps),
        cmocka_unit_test(bar_fits_its_terminal),
        cmocka_unit_test(aside_comes_late_and_goes),
        cmocka_unit_test(bar_on_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
