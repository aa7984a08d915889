#include "base/progress.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

static const double draw_every_s = 0.1, line_every_s = 5, line_at_least_s = 600, aside_after_s = 2;
enum { BAR_MAX = 40, BAR_MIN = 8 };

void progress_begin(Progress *p, const char *what, const char *unit, int64_t first, int64_t total)
{
    double now_s = clock_now_s();
    *p           = (Progress){ .what       = what,
                               .unit       = unit,
                               .first      = first,
                               .total      = total,
                               .step       = first,
                               .loss_name  = "loss",
                               .loss       = NAN,
                               .per_s      = NAN,
                               .step_s     = NAN,
                               .begin_s    = now_s,
                               .shown_s    = now_s,
                               .shown_step = -1,
                               .terminal   = log_is_terminal() };
}

void progress_begin_aside(Progress *p, const char *what, const char *unit, int64_t total)
{
    progress_begin(p, what, unit, 0, total);
    p->is_aside = 1;
}

/* Of the steps alone: what comes before the first one is no part of the others. Negative: not known. */
static double left_s(const Progress *p)
{
    double left = isfinite(p->step_s) ? p->step_s * (double)(p->total - p->step) : -1;
    if (p->end_s <= 0 || p->step <= p->first) return left;
    double most = MAX(0.0, p->end_s - clock_now_s());
    return left < 0 ? most : MIN(left, most);
}

enum { SHOW_LOSS = 1, SHOW_TIME = 2, SHOW_RATE = 4, SHOW_ALL = 7 };

/* "120/500  loss 2.3412  553k tokens/s  0:42 left" */
static void describe(const Progress *p, int show, char *buf, size_t n)
{
    char number[32];
    buf[0] = '\0';
    if (p->total >= 0) {
        str_append(buf, n, "%lld/%lld", (long long)p->step, (long long)p->total);
    } else {
        str_append(buf, n, "step %lld", (long long)p->step);
    }
    if ((show & SHOW_LOSS) && isfinite(p->loss)) str_append(buf, n, "  %s %.4f", p->loss_name, p->loss);
    if ((show & SHOW_RATE) && isfinite(p->per_s))
        str_append(buf, n, "  %s %s", str_count(number, sizeof number, p->per_s), p->unit);
    if (!(show & SHOW_TIME) || p->total < 0) return;
    double left = left_s(p);
    if (p->step >= p->total) {
        str_append(buf, n, "  in %s", str_duration(number, sizeof number, clock_now_s() - p->begin_s));
    } else if (left >= 0) {
        str_append(buf, n, "  %s left", str_duration(number, sizeof number, left));
    }
}

/* As much as fits into most characters; what matters least goes first: the rate, then the bar of `bar`
 * characters. A line that wraps could not be drawn over. */
static void describe_within(const Progress *p, int most, int bar, char *buf, size_t n)
{
    const struct {
        int show, most;
    } row[] = { { SHOW_ALL, most - bar }, { SHOW_LOSS | SHOW_TIME, most - bar },
                { SHOW_ALL, most },       { SHOW_LOSS | SHOW_TIME, most },
                { SHOW_LOSS, most },      { 0, most } };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        describe(p, row[i].show, buf, n);
        if ((int)strlen(buf) <= row[i].most) return;
    }
    buf[MAX(most, 0)] = '\0';
}

static void draw_bar(const Progress *p)
{
    char text[200], bar[BAR_MAX + 1], line[400];
    int  most  = log_columns() - 1;
    int  frame = (int)strlen(p->what) + 4; /* spaces and brackets */
    describe_within(p, most, frame + BAR_MIN, text, sizeof text);
    int width = p->total >= 0 ? MIN(most - frame - (int)strlen(text), BAR_MAX) : 0;
    if (width < BAR_MIN) {
        log_status(text);
        return;
    }
    double part = p->total > 0 ? (double)p->step / (double)p->total : 1;
    int    full = (int)(MIN(part, 1.0) * width);
    for (int i = 0; i < width; i++) bar[i] = i < full ? '=' : i == full ? '>' : ' ';
    bar[width] = '\0';
    line[0]    = '\0';
    str_append(line, sizeof line, "%s [%s] %s", p->what, bar, text);
    log_status(line);
}

static void print_line(Progress *p)
{
    char text[200];
    describe(p, SHOW_ALL, text, sizeof text);
    log_info("%s %s", p->what, text);
    p->shown_step = p->step;
}

static int line_is_due(const Progress *p, double since_s)
{
    if (p->shown_step < 0 || since_s >= line_at_least_s) return 1;
    return since_s >= line_every_s && (p->step - p->shown_step) * 10 >= p->total - p->first;
}

void progress_update(Progress *p, int64_t step, double loss, double per_s, double step_s)
{
    p->step        = step;
    p->loss        = loss;
    p->per_s       = per_s;
    p->step_s      = step_s;
    double now_s   = clock_now_s();
    double since_s = now_s - p->shown_s;
    if (p->is_aside && (!p->terminal || now_s - p->begin_s < aside_after_s)) return;
    if (p->terminal) {
        int is_last = p->total >= 0 && step >= p->total;
        if (since_s < draw_every_s && !is_last && p->shown_step >= 0) return;
        draw_bar(p);
        p->shown_step = step;
    } else {
        if (!line_is_due(p, since_s)) return;
        print_line(p);
    }
    p->shown_s = now_s;
}

void progress_wait(const Progress *p)
{
    if (p->terminal) draw_bar(p);
}

void progress_count(Progress *p, int64_t step)
{
    double per_s = (double)step / MAX(clock_now_s() - p->begin_s, 1e-3);
    progress_update(p, step, NAN, p->unit ? per_s : NAN, step > 0 ? 1 / per_s : NAN);
}

void progress_end(Progress *p)
{
    if (p->is_aside && p->shown_step < 0) return;
    if (p->terminal) log_status("");
    if (p->is_aside) return;
    if (p->terminal || p->shown_step != p->step) print_line(p);
}
