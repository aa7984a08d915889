#include "run/metrics.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *metrics_skip_name(int skip)
{
    static const char *const name[] = {
        [SKIP_NOT_FINITE] = "not finite", [SKIP_SPIKE] = "loss spike", [SKIP_OVERFLOW] = "overflow"
    };
    return skip > 0 && skip < ARRAY_LEN(name) && name[skip] ? name[skip] : "an update before its last";
}

/* ---- The file ----------------------------------------------------------------------------------------- */

static int open_file(const char *path)
{
    char why[1400];
    int  fd = file_open_own(path, O_WRONLY | O_CREAT | O_APPEND, why, sizeof why);
    return fd < 0 ? err_set("%s", why) : fd;
}

int metrics_open(Metrics *m, const char *path)
{
    *m      = (Metrics){ .path = path };
    m->kept = mem_alloc(METRICS_KEPT);
    if (!m->kept) return err_sys("%s: memory for its lines", path);
    m->fd = open_file(path);
    if (m->fd < 0) {
        free(m->kept);
        return -1;
    }
    m->is_open = 1;
    return 0;
}

void metrics_reopen(Metrics *m)
{
    if (!m->is_open) return;
    int fd = open_file(m->path);
    if (fd < 0) {
        log_error("METRICS: %s (going on with the file that was open)", err_get());
        err_clear();
        return;
    }
    close(m->fd);
    m->fd = fd;
}

/* ---- Lines -------------------------------------------------------------------------------------------- */

/* Writes what is kept, or nothing: a part of a line would garble the next one. */
static int flush_kept(Metrics *m)
{
    struct stat before;
    size_t      done = 0;
    if (fstat(m->fd, &before) != 0) return -1;
    while (done < m->n_kept) {
        ssize_t n = fault_hit(FAULT_WRITE) ? -1 : write(m->fd, m->kept + done, m->n_kept - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            int cause = errno;
            if (done > 0 && ftruncate(m->fd, before.st_size) != 0) cause = errno;
            errno = cause;
            return -1;
        }
        done += (size_t)n;
    }
    m->n_kept = 0;
    return 0;
}

static void write_kept(Metrics *m)
{
    if (flush_kept(m) < 0) {
        if (!m->failing) {
            log_error("METRICS NOT WRITTEN: %s: %s (training goes on, the lines are kept)", m->path,
                      strerror(errno));
        }
        m->failing = 1;
    } else if (m->failing) {
        log_info("%s can be written again; %lld lines are missing in it", m->path, (long long)m->n_lost);
        m->failing = 0;
        m->n_lost  = 0;
    }
}

static void add_line(Metrics *m, JsonOut *o, int64_t step, int is_step)
{
    if (m->watcher.line) m->watcher.line(m->watcher.self, o, step, is_step);
    int rc = json_out_end(o);
    CHECK(rc == 0, "a line of metrics is longer than its buffer");
    if (m->n_kept + o->len + 1 > METRICS_KEPT) {
        m->n_lost++;
    } else {
        memcpy(m->kept + m->n_kept, o->buf, o->len);
        m->n_kept += o->len;
        m->kept[m->n_kept++] = '\n';
    }
    write_kept(m);
}

void metrics_close(Metrics *m)
{
    if (!m->is_open) return;
    if (m->n_kept > 0) write_kept(m);
    close(m->fd);
    free(m->kept);
    m->is_open = 0;
}

void metrics_step(Metrics *m, const Task *t, const MetricsStep *s, const StepOut *out)
{
    JsonOut o;
    char    line[METRICS_LINE];
    if (!m->is_open) return;
    json_out_init_buf(&o, line, sizeof line);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", s->step);
    json_out_num(&o, "loss", out->loss);
    json_out_num(&o, "lr", s->lr);
    json_out_num(&o, "grad_norm", out->grad_norm);
    json_out_num(&o, "per_s", s->per_s);
    json_out_num(&o, "mfu", s->mfu);
    json_out_num(&o, "time_s", s->time_s);
    json_out_num(&o, "data_wait_s", s->data_wait_s);
    for (int k = 0; t->n_loss > 1 && k < t->n_loss; k++)
        json_out_num(&o, t->loss[k].name, out->report[k] / MAX(s->n_report[k], 1));
    for (int k = 0; k < s->n_number; k++) json_out_num(&o, s->number[k].name, s->number[k].value);
    if (out->scale_exp > 0) json_out_num(&o, "loss_scale", ldexp(1, out->scale_exp));
    if (s->is_bad || s->overflowed) json_out_str(&o, "skipped", metrics_skip_name(out->skip));
    add_line(m, &o, s->step, 1);
}

static void put_val(JsonOut *o, const char *name, double x)
{
    char key[64];
    snprintf(key, sizeof key, "val_%s", name);
    json_out_num(o, key, x);
}

void metrics_eval(Metrics *m, const Task *t, const Recipe *r, int64_t step, const TaskEval *e, double time_s)
{
    JsonOut    o;
    TaskNumber also[TASK_NUMBERS];
    char       line[METRICS_LINE];
    if (!m->is_open) return;
    json_out_init_buf(&o, line, sizeof line);
    json_out_object(&o, NULL);
    json_out_int(&o, "step", step);
    for (int k = 0; k < t->n_metric; k++) put_val(&o, t->metric[k].name, e->value[k]);
    int n = t->also ? t->also(e, r, also) : 0;
    for (int k = 0; k < n; k++) put_val(&o, also[k].name, also[k].value);
    json_out_num(&o, "time_s", time_s);
    add_line(m, &o, step, 0);
}
