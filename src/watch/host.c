#define _GNU_SOURCE /* sched_getaffinity() */
#include "watch/host.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The first n-1 bytes of a file of /proc or /sys, terminated; negative without one. */
static int slurp(const char *path, char *buf, size_t n)
{
    int     fd  = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, buf, n - 1);
    if (fd >= 0) close(fd);
    buf[got > 0 ? got : 0] = '\0';
    return got > 0 ? 0 : -1;
}

/* The number behind `key` in text; NAN when it is not there. */
static double number_after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at ? strtod(at + strlen(key), NULL) : NAN;
}

static void read_cpu(HostReading *r)
{
    char   text[512], *at = text + 3;
    double tick[8] = { 0 };
    double hz      = (double)sysconf(_SC_CLK_TCK);
    if (slurp("/proc/stat", text, sizeof text) < 0 || strncmp(text, "cpu ", 4) != 0) return;
    for (int i = 0; i < ARRAY_LEN(tick); i++) tick[i] = strtod(at, &at);
    r->total_s = 0;
    for (int i = 0; i < ARRAY_LEN(tick); i++)
        r->total_s += tick[i] / hz; /* user nice system idle iowait ... */
    r->busy_s = r->total_s - (tick[3] + tick[4]) / hz;
}

static void read_memory(HostReading *r)
{
    char text[2048];
    if (slurp("/proc/meminfo", text, sizeof text) == 0) {
        r->memory_total_bytes = 1024 * number_after(text, "MemTotal:");
        r->memory_used_bytes  = r->memory_total_bytes - 1024 * number_after(text, "MemAvailable:");
    }
    if (slurp("/proc/self/statm", text, sizeof text) == 0) {
        char *at = text;
        strtod(at, &at);
        r->rss_bytes = strtod(at, NULL) * (double)sysconf(_SC_PAGESIZE);
    }
    if (slurp("/proc/self/io", text, sizeof text) == 0) {
        r->read_bytes  = number_after(text, "\nread_bytes:");
        r->write_bytes = number_after(text, "\nwrite_bytes:");
    }
}

void host_read_energy(HostReading *r, const char *folder)
{
    char path[512], text[64];
    for (int i = 0; i < 16; i++) {
        snprintf(path, sizeof path, "%s/intel-rapl:%d/name", folder, i);
        if (slurp(path, text, sizeof text) < 0) return;
        if (!str_starts_with(text, "package")) continue; /* "psys" is the whole machine, packages included */
        snprintf(path, sizeof path, "%s/intel-rapl:%d/energy_uj", folder, i);
        if (slurp(path, text, sizeof text) < 0) return;
        r->energy_j = (isnan(r->energy_j) ? 0 : r->energy_j) + 1e-6 * strtod(text, NULL);
        snprintf(path, sizeof path, "%s/intel-rapl:%d/max_energy_range_uj", folder, i);
        if (slurp(path, text, sizeof text) == 0)
            r->energy_wrap_j = 1e-6 * strtod(text, NULL); /* the packages of a machine are alike */
    }
}

void host_read(HostReading *out)
{
    struct rusage u;
    *out        = (HostReading){ NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    out->time_s = clock_now_s();
    read_cpu(out);
    read_memory(out);
    host_read_energy(out, "/sys/class/powercap");
    if (getrusage(RUSAGE_SELF, &u) == 0) {
        out->own_s = (double)u.ru_utime.tv_sec + 1e-6 * (double)u.ru_utime.tv_usec +
                     (double)u.ru_stime.tv_sec + 1e-6 * (double)u.ru_stime.tv_usec;
    }
}

void host_between(const HostReading *a, const HostReading *b, HostRates *out)
{
    double dt    = b->time_s - a->time_s;
    *out         = (HostRates){ dt, NAN, NAN, NAN, NAN, NAN };
    double total = b->total_s - a->total_s;
    if (total > 0) out->cpu = MIN(1, MAX(0, (b->busy_s - a->busy_s) / total));
    out->energy_j = b->energy_j - a->energy_j;
    if (out->energy_j < 0) out->energy_j += b->energy_wrap_j;
    if (!(dt > 0)) return;
    out->own_cpu       = (b->own_s - a->own_s) / dt;
    out->read_bytes_s  = (b->read_bytes - a->read_bytes) / dt;
    out->write_bytes_s = (b->write_bytes - a->write_bytes) / dt;
}

int host_cpus(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (int)n : 1;
}

/* The CPUs that share a core with this one, as /sys lists them: "0,64" or "0-1". */
static int read_siblings(const char *folder, int cpu, char *text, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", folder, cpu);
    return slurp(path, text, n);
}

static int is_listed(const char *list, int cpu)
{
    while (*list >= '0' && *list <= '9') {
        char *at;
        long  first = strtol(list, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : first;
        if (first <= cpu && cpu <= last) return 1;
        list = at + (*at == ',');
    }
    return 0;
}

int host_cores(const char *folder, const int *cpu, int n)
{
    char list[256];
    int  cores = 0;
    for (int i = 0; i < n; i++) {
        int before = 0; /* 1: the core was counted with a sibling */
        if (read_siblings(folder, cpu[i], list, sizeof list) < 0) return 0;
        for (int j = 0; j < i && !before; j++) before = is_listed(list, cpu[j]);
        cores += !before;
    }
    return cores;
}

void host_count_cores(int *all, int *allowed)
{
    static const char folder[] = "/sys/devices/system/cpu";
    int               online[CPU_SETSIZE], ours[CPU_SETSIZE], n_online = 0, n_ours = 0;
    char              list[256];
    cpu_set_t         set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (read_siblings(folder, i, list, sizeof list) == 0) online[n_online++] = i;
        if (CPU_ISSET(i, &set)) ours[n_ours++] = i;
    }
    *all     = n_online == host_cpus() ? host_cores(folder, online, n_online) : 0;
    *allowed = *all > 0 ? host_cores(folder, ours, n_ours) : 0;
}

const char *host_cpu_name(char *buf, size_t n)
{
    char text[4096];
    str_copy(buf, n, "CPU");
    if (slurp("/proc/cpuinfo", text, sizeof text) < 0) return buf;
    char *at = strstr(text, "model name");
    at       = at ? strchr(at, ':') : NULL;
    if (!at) return buf;
    at += strspn(at, ": \t");
    return str_quote(buf, n, at, strcspn(at, "\n"));
}

const char *host_process_name(int pid, char *buf, size_t n)
{
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    str_copy(buf, n, "?");
    if (slurp(path, text, sizeof text) == 0) str_quote(buf, n, text, strcspn(text, "\n"));
    return buf;
}

int host_process_lives(int pid)
{
    char path[64], text[512];
    if (kill(pid, 0) != 0 && errno == ESRCH) return 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    const char *state = slurp(path, text, sizeof text) == 0 ? strrchr(text, ')') : NULL; /* behind the name */
    return !state || strlen(state) < 3 || state[2] != 'Z';
}
