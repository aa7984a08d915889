#include "env/play.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"
#include "env/draw.h"
#include "env/gif.h"
#include "env/rows.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { MOST_FRAMES = 5000 /* of a GIF */, SCREEN_ROWS = 22 };

typedef struct {
    const PlayConf *conf;
    Envs           *e;
    Rows            r;
    Gif             gif;
    uint8_t        *rgb;
    int             width, height, n_frame, fps;
    double          due_s;
} Play;

static FILE *said(const Play *p) { return p->conf->text ? p->conf->text : stdout; }

static int wants_pictures(const Play *p) { return p->conf->out || p->conf->in_terminal; }

static int begin_pictures(Play *p)
{
    if (!wants_pictures(p)) return 0;
    TRY(envs_picture(p->e, 0, NULL, &p->width, &p->height));
    p->fps = envs_spec(p->e)->info.fps;
    p->rgb = mem_alloc((size_t)p->width * (size_t)p->height * 3);
    if (!p->rgb) return err_sys("memory for a picture");
    return p->conf->out ? gif_open(&p->gif, p->conf->out, p->width, p->height, p->fps) : 0;
}

static void wait_until(double s)
{
    double left = s - clock_now_s();
    if (left <= 0) return;
    struct timespec t = { (time_t)left, (long)((left - floor(left)) * 1e9) };
    nanosleep(&t, NULL);
}

static int show(Play *p)
{
    if (!p->rgb || (p->conf->out && p->n_frame >= MOST_FRAMES)) return 0;
    int w, h;
    TRY(envs_picture(p->e, 0, p->rgb, &w, &h));
    p->n_frame++;
    if (p->conf->out) return gif_frame(&p->gif, p->rgb);
    wait_until(p->due_s);
    p->due_s = clock_now_s() + 1.0 / p->fps;
    printf("\033[H");
    draw_terminal(&(Draw){ p->rgb, w, h }, log_columns(), SCREEN_ROWS, stdout);
    fflush(stdout);
    return 0;
}

static int show_last(void *self, int env) { return show(self); }

static int act(Play *p, int first)
{
    const PlayConf *c = p->conf;
    if (c->policy) return c->policy(c->self, envs_spec(p->e), &p->r.io, first, p->r.act_i, p->r.act_f);
    rows_random(&p->r, envs_spec(p->e), envs_rows(p->e));
    return 0;
}

static int episodes(Play *p)
{
    double sum = 0, square = 0;
    int    done = 0, first = 1, n_agent = envs_spec(p->e)->info.n_agent;
    TRY(envs_reset(p->e, &p->r.io));
    while (done < p->conf->n_episode) {
        TRY(act(p, first));
        if (first) TRY(show(p));
        TRY(envs_step(p->e, 0, &p->r.io)); /* shows the last picture of an episode */
        first = p->r.io.episode_length[0] > 0;
        if (!first) TRY(show(p));
        if (!first) continue;
        double mean = 0;
        int    cut  = 0;
        for (int a = 0; a < n_agent; a++) {
            mean += p->r.io.episode_return[a] / n_agent;
            cut |= p->r.io.truncated[a];
        }
        sum += mean;
        square += mean * mean;
        done++;
        fprintf(said(p), "episode %d: return %.6g, %d steps, %s\n", done, mean,
                (int)p->r.io.episode_length[0], cut ? "truncated" : "terminated");
    }
    double m = sum / done, var = square / done - m * m;
    fprintf(said(p), "mean return %.6g, standard deviation %.3g, over %d episode%s\n", m,
            sqrt(var > 0 ? var : 0), done, done == 1 ? "" : "s");
    if (n_agent > 1)
        fprintf(said(p), "a return is the mean of %d agents; their sum is %.6g in the mean\n", n_agent,
                m * n_agent);
    int64_t lost = envs_restarts(p->e);
    if (lost > 0) fprintf(said(p), "%lld restart%s\n", (long long)lost, str_plural(lost));
    return 0;
}

int play_run(const PlayConf *conf)
{
    Play     p  = { .conf = conf };
    EnvsConf ec = conf->env;
    ec.n_env = ec.n_group = ec.n_thread = 1;
    ec.on_end                           = show_last;
    ec.self                             = &p;
    TRY(envs_open(&p.e, &ec));
    rows_init(&p.r, envs_spec(p.e), envs_rows(p.e), ec.seed);
    int rc = begin_pictures(&p);
    if (rc == 0) {
        if (conf->in_terminal && !conf->out) printf("\033[2J");
        rc = episodes(&p);
    }
    if (rc == 0 && conf->out) {
        rc = gif_finish(&p.gif);
        if (rc == 0)
            fprintf(said(&p), "%s: %d frames%s\n", conf->out, p.n_frame,
                    p.n_frame >= MOST_FRAMES ? ", cut there" : "");
    }
    gif_discard(&p.gif);
    free(p.rgb);
    rows_deinit(&p.r);
    envs_close(p.e);
    return rc;
}
