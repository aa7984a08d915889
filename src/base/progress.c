#include "base/progress.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

#include <math.h>
#include <string.h>

static const double draw_every_s = 0.1, line_every_s = 5, line_at_least_s = 600;
enum { BAR_MAX = 40, BAR_MIN = 8 };

void progress_begin(Progress *p, const char *what, const char *unit, int64_t first, int64_t total)
{
    double now_s = clock_now_s();
    *p           = (Progress){ .what       = what,
                               .unit       = unit,
                               .first      = first,
                               .total      = total,
                               .step       = first,
                               .loss       = NAN,
                               .per_s      = NAN,
                               .begin_s    = now_s,
                               .shown_s    = now_s,
                               .shown_step = -1,
                               .terminal   = log_is_terminal() };
}

/* "120/500  loss 2.3412  553k tokens/s  0:42 left" */
static void describe(const Progress *p, char *buf, size_t n)
{
    char number[32];
    buf[0] = '\0';
    str_append(buf, n, "%lld/%lld", (long long)p->step, (long long)p->total);
    if (isfinite(p->loss)) str_append(buf, n, "  loss %.4f", p->loss);
    if (isfinite(p->per_s))
        str_append(buf, n, "  %s %s", str_count(number, sizeof number, p->per_s), p->unit);
    double spent_s = clock_now_s() - p->begin_s;
    if (p->step >= p->total) {
        str_append(buf, n, "  in %s", str_duration(number, sizeof number, spent_s));
    } else if (p->step > p->first) {
        double left_s = spent_s / (double)(p->step - p->first) * (double)(p->total - p->step);
        if (p->end_s > 0) left_s = MAX(0.0, MIN(left_s, p->end_s - clock_now_s()));
        str_append(buf, n, "  %s left", str_duration(number, sizeof number, left_s));
    }
}

static void draw_bar(const Progress *p)
{
    char text[200], bar[BAR_MAX + 1], line[400];
    describe(p, text, sizeof text);
    int room  = log_columns() - 1 - (int)(strlen(p->what) + strlen(text) + 5); /* spaces and brackets */
    int width = MIN(room, BAR_MAX);
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
    describe(p, text, sizeof text);
    log_info("%s %s", p->what, text);
    p->shown_step = p->step;
}

static int line_is_due(const Progress *p, double since_s)
{
    if (p->shown_step < 0 || since_s >= line_at_least_s) return 1;
    return since_s >= line_every_s && (p->step - p->shown_step) * 10 >= p->total - p->first;
}

void progress_update(Progress *p, int64_t step, double loss, double per_s)
{
    p->step        = step;
    p->loss        = loss;
    p->per_s       = per_s;
    double now_s   = clock_now_s();
    double since_s = now_s - p->shown_s;
    if (p->terminal) {
        if (since_s < draw_every_s && step < p->total && p->shown_step >= 0) return;
        draw_bar(p);
        p->shown_step = step;
    } else {
        if (!line_is_due(p, since_s)) return;
        print_line(p);
    }
    p->shown_s = now_s;
}

void progress_end(Progress *p)
{
    if (p->terminal) log_status("");
    if (p->terminal || p->shown_step != p->step) print_line(p);
}
