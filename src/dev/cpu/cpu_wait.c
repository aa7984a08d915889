#include "dev/cpu/cpu_wait.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "dev/cpu/cpu.h"

#include <dirent.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LOOK_MS = 250, QUIET_LOOKS = 4, MOST_THREADS = 1024 };

static const double SHARED = 0.1; /* of a thread's time; alone, waking up costs some thousandths */

int cpu_wait_begin(int running, int threads, int cpus)
{
    return running <= 0 || running - 1 + threads > cpus;
}

int cpu_wait_look(CpuWait *w, double share)
{
    w->quiet = share > SHARED ? 0 : w->quiet + 1;
    if (w->quiet == 0) w->brief = 1;
    if (w->quiet >= QUIET_LOOKS) w->brief = 0;
    return w->brief;
}

/* ---- What the kernel tells ----------------------------------------------------------------------------- */

typedef struct {
    long   id;
    double s; /* ready to run and not running, so far */
} Delay;

typedef struct {
    Delay thread[MOST_THREADS];
    int   n;
} Delays;

/* The first two numbers of /proc/self/task/ID/schedstat, in nanoseconds: running, and waiting to run. A
 * kernel that does not count says 0 and 0. */
static int read_delay(const char *id, double *s)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", id);
    FILE *f = fopen(path, "r");
    if (!f) return -1; /* it has just ended */
    double ran_ns, waited_ns;
    int    ok = fscanf(f, "%lf %lf", &ran_ns, &waited_ns) == 2;
    fclose(f);
    if (!ok || (ran_ns == 0 && waited_ns == 0)) return -1;
    *s = 1e-9 * waited_ns;
    return 0;
}

static void read_delays(Delays *d)
{
    DIR *dir = opendir("/proc/self/task");
    d->n     = 0;
    for (struct dirent *e; dir && d->n < MOST_THREADS && (e = readdir(dir));) {
        Delay t = { .id = strtol(e->d_name, NULL, 10) };
        if (t.id > 0 && read_delay(e->d_name, &t.s) == 0) d->thread[d->n++] = t;
    }
    if (dir) closedir(dir);
}

/* The longest that a thread was kept waiting between two looks; a new one counts from its start. */
static double worst_delay(const Delays *before, const Delays *now)
{
    double worst = 0;
    for (int i = 0; i < now->n; i++) {
        double s = now->thread[i].s;
        for (int k = 0; k < before->n; k++) {
            if (before->thread[k].id == now->thread[i].id) s -= before->thread[k].s;
        }
        worst = MAX(worst, s);
    }
    return worst;
}

static int read_running(void) { return (int)cpu_read_number("/proc/stat", "procs_running", 0); }

/* A team of Brim's own that has just worked stays awake for some milliseconds and counts: so a no is asked
 * for twice. */
static int begins_brief(int threads)
{
    const struct timespec ms_10 = { 0, 10000000 };
    int                   cpus  = omp_get_num_procs();
    if (!cpu_wait_begin(read_running(), threads, cpus)) return 0;
    (void)nanosleep(&ms_10, NULL);
    return cpu_wait_begin(read_running(), threads, cpus);
}

/* ---- The thread that watches --------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t life; /* held while the thread is started or joined */
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t  stopped;
    int             users, stop, crowd, brief; /* brief: at the start */
    Thread          thread;
} watch = { .life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER };

/* One thread more than CPUs, with the device's team: the team of this thread stays until it is dropped. */
static void crowd_make(void)
{
    int n = 0;
#pragma omp parallel num_threads(watch.crowd) reduction(+ : n)
    n++;
    (void)n;
}

static void crowd_drop(void) { (void)omp_pause_resource_all(omp_pause_soft); }

/* Sleeps until the next look. Whether there is one. */
static int sleep_or_stop(void)
{
    struct timespec t = thread_deadline(LOOK_MS * 1e-3);
    thread_lock(&watch.lock);
    int rc = 0;
    while (!watch.stop && rc == 0) rc = pthread_cond_timedwait(&watch.stopped, &watch.lock, &t);
    int go_on = !watch.stop;
    thread_unlock(&watch.lock);
    return go_on;
}

static void watch_body(void *arg)
{
    static Delays look[2]; /* only one such thread at a time */
    CpuWait       w      = { .brief = watch.brief };
    double        last_s = clock_now_s();
    omp_set_dynamic(0);
    if (w.brief) crowd_make();
    read_delays(&look[0]);
    for (int i = 1; sleep_or_stop(); i ^= 1) {
        double now_s = clock_now_s();
        int    brief = w.brief;
        read_delays(&look[i]);
        double share = look[i].n > 0 ? worst_delay(&look[i ^ 1], &look[i]) / (now_s - last_s) : 1;
        if (cpu_wait_look(&w, share) != brief) {
            if (w.brief)
                crowd_make();
            else
                crowd_drop();
        }
        last_s = now_s;
    }
    if (w.brief) crowd_drop();
}

static int user_decides(void) { return getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT"); }

static void watch_start(int threads)
{
    thread_cond_init(&watch.stopped);
    watch.stop  = 0;
    watch.brief = begins_brief(threads);
    watch.crowd = MAX(2, omp_get_num_procs() - threads + 2);
    if (thread_start(&watch.thread, "waits", watch_body, NULL) < 0) err_clear(); /* then waits are long */
}

static void watch_stop(void)
{
    thread_lock(&watch.lock);
    watch.stop = 1;
    pthread_cond_signal(&watch.stopped);
    thread_unlock(&watch.lock);
    thread_join(&watch.thread);
    pthread_cond_destroy(&watch.stopped);
}

void cpu_wait_open(int threads)
{
    if (threads < 2 || user_decides()) return;
    thread_lock(&watch.life);
    if (watch.users++ == 0) watch_start(threads);
    thread_unlock(&watch.life);
}

void cpu_wait_close(int threads)
{
    if (threads < 2 || user_decides()) return;
    thread_lock(&watch.life);
    if (--watch.users == 0) watch_stop();
    thread_unlock(&watch.life);
}
