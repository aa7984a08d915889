#include "run/watchdog.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"

static void look(Watchdog *w)
{
    char   t[32];
    double silent_s = clock_now_s() - w->noted_s;
    if (!w->what || silent_s < w->next_s) return;
    log_error(
        "NOTHING HAS ENDED FOR %s: %s %lld is at work, or hangs (watchdog_s; kill -9 ends a run that does)",
        str_duration(t, sizeof t, silent_s), w->what, (long long)w->step);
    w->next_s *= 2;
}

static void body(void *arg)
{
    static const double tick_s = 0.2;
    Watchdog           *w      = (Watchdog *)arg;
    thread_lock(&w->lock);
    while (!w->is_over) {
        struct timespec until = thread_deadline(tick_s);
        pthread_cond_timedwait(&w->wake, &w->lock, &until);
        look(w);
    }
    thread_unlock(&w->lock);
}

void watchdog_begin(Watchdog *w, double limit_s)
{
    if (limit_s <= 0) return;
    w->limit_s = w->next_s = limit_s;
    w->noted_s             = clock_now_s();
    pthread_mutex_init(&w->lock, NULL);
    thread_cond_init(&w->wake);
    w->is_open = thread_start(&w->thread, "watchdog", body, w) == 0;
    if (w->is_open) return;
    err_clear(); /* a run is not worth less without its watchdog */
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
}

void watchdog_note(Watchdog *w, const char *what, int64_t step)
{
    if (!w->is_open) return;
    thread_lock(&w->lock);
    w->what    = what;
    w->step    = step;
    w->noted_s = clock_now_s();
    w->next_s  = w->limit_s;
    thread_unlock(&w->lock);
}

void watchdog_end(Watchdog *w)
{
    if (!w->is_open) return;
    thread_lock(&w->lock);
    w->is_over = 1;
    pthread_cond_signal(&w->wake);
    thread_unlock(&w->lock);
    thread_join(&w->thread);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    w->is_open = 0;
}
