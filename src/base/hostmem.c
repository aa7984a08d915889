#define _GNU_SOURCE /* sched_getaffinity */
#include "base/hostmem.h"

#include "base/err.h"
#include "base/fault.h"
#include "base/str.h"

#include <limits.h>
#include <malloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Version 1 says "no limit" with a number near 2^63. */
static const int64_t no_limit = INT64_MAX / 2;

static FILE *open_file(const char *path) { return fault_hit(FAULT_OPEN) ? NULL : fopen(path, "re"); }

/* The number after `key` at the start of a line ("": of the file); -1 when the file or the line is not
 * there. */
static int64_t number_in(const char *path, const char *key)
{
    char    line[256];
    int64_t value = -1;
    FILE   *f     = open_file(path);
    if (!f) return -1;
    while (value < 0 && fgets(line, sizeof line, f)) {
        char *end, *text = line + strlen(key);
        if (strncmp(line, key, strlen(key)) != 0) continue;
        long long n = strtoll(text, &end, 10);
        if (end != text) value = n; /* "max" is no number: no limit */
    }
    fclose(f);
    return value;
}

/* ---- Control groups ------------------------------------------------------------------------------------ */

typedef enum { GROUP_V2, GROUP_MEMORY, GROUP_CPU } GroupKind;

/* Where one hierarchy is mounted and where in it this process is. */
typedef struct {
    char mount[PATH_MAX]; /* folder of the topmost group that can be seen */
    char path[PATH_MAX];  /* folder of this process's group, mount or below it */
    int  is_there;
} Group;

static const char *group_root(void)
{
    const char *root = getenv("BRIM_CGROUP");
    return root ? root : "";
}

/* 1 when a list of names separated by commas has this one. */
static int has_name(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) return 1;
    }
    return 0;
}

static int kind_matches(GroupKind kind, int version2, const char *controllers)
{
    if (kind == GROUP_V2) return version2;
    return !version2 && has_name(controllers, kind == GROUP_CPU ? "cpu" : "memory");
}

/* The group of this process as the kernel names it, "/slice/job". A line is "4:memory:/slice/job", version 2
 * "0::/slice/job". */
static int read_group(GroupKind kind, char *out, size_t n)
{
    char  path[PATH_MAX], line[PATH_MAX];
    int   found = 0;
    FILE *f;
    if (snprintf(path, sizeof path, "%s/proc/self/cgroup", group_root()) >= (int)sizeof path) return 0;
    f = open_file(path);
    while (f && !found && fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group) continue;
        *group                                                      = '\0';
        line[strcspn(group + 1, "\n") + (size_t)(group + 1 - line)] = '\0';
        if (!kind_matches(kind, names[1] == '\0', names + 1)) continue;
        found = str_copy(out, n, group + 1) >= 0;
    }
    if (f) fclose(f);
    return found;
}

/* Where the hierarchy is mounted, and the group that stands there. A line of mountinfo is "32 31 0:29 ROOT
 * MOUNT options ... - TYPE source OPTIONS". */
static int read_mount(GroupKind kind, char *root, char *mount, size_t n)
{
    char  path[PATH_MAX], line[4096];
    int   found = 0;
    FILE *f;
    if (snprintf(path, sizeof path, "%s/proc/self/mountinfo", group_root()) >= (int)sizeof path) return 0;
    f = open_file(path);
    while (f && !found && fgets(line, sizeof line, f)) {
        char r[1024], m[1024], type[64], options[1024] = "", *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %1023s %1023s", r, m) != 2) continue;
        if (sscanf(dash + 3, "%63s %*s %1023s", type, options) < 1 || strncmp(type, "cgroup", 6) != 0)
            continue;
        if (!kind_matches(kind, strcmp(type, "cgroup2") == 0, options)) continue;
        found = str_copy(root, n, r) >= 0 && str_copy(mount, n, m) >= 0;
    }
    if (f) fclose(f);
    return found;
}

static void find_group(Group *g, GroupKind kind)
{
    static const char *const usual[] = { [GROUP_V2]     = "/sys/fs/cgroup",
                                         [GROUP_MEMORY] = "/sys/fs/cgroup/memory",
                                         [GROUP_CPU]    = "/sys/fs/cgroup/cpu" };
    char                     own[1024], root[1024] = "/", mount[1024];
    g->is_there = 0;
    if (!read_group(kind, own, sizeof own)) return;
    if (!read_mount(kind, root, mount, sizeof mount)) str_copy(mount, sizeof mount, usual[kind]);
    /* Within a container the group may be named as the host sees it, and the mount begins there. */
    size_t      n    = strcmp(root, "/") == 0 ? 0 : strlen(root);
    const char *rest = strncmp(own, root, n) == 0 && (own[n] == '/' || own[n] == '\0') ? own + n : "";
    if (strcmp(rest, "/") == 0 || strstr(rest, "..")) rest = "";
    g->is_there =
        snprintf(g->mount, sizeof g->mount, "%s%s", group_root(), mount) < (int)sizeof g->mount &&
        snprintf(g->path, sizeof g->path, "%s%s%s", group_root(), mount, rest) < (int)sizeof g->path;
}

/* Calls f for the process's group and every one above it; the least result. */
static int64_t least_above(GroupKind kind, int64_t (*f)(GroupKind kind, const char *group))
{
    Group   g;
    int64_t least = no_limit;
    find_group(&g, kind);
    while (g.is_there) {
        int64_t here = f(kind, g.path); /* not inside MIN, which would read the files twice */
        least        = MIN(least, here);
        char *slash  = strrchr(g.path, '/');
        if (!slash || strlen(g.path) <= strlen(g.mount)) break;
        *slash = '\0';
    }
    return least;
}

static int64_t number_of(const char *group, const char *file, const char *key)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", group, file);
    return number_in(path, key);
}

static int64_t limit_of(GroupKind kind, const char *group)
{
    int64_t max = number_of(group, kind == GROUP_V2 ? "memory.max" : "memory.limit_in_bytes", "");
    /* Above memory.high nothing is killed, but everything waits. */
    int64_t high = kind == GROUP_V2 ? number_of(group, "memory.high", "") : -1;
    if (max < 0 || max > no_limit) max = no_limit;
    return high >= 0 ? MIN(max, high) : max;
}

/* What one group leaves; page cache that can be dropped at once does not count as used. */
static int64_t left_of(GroupKind kind, const char *group)
{
    int     v2  = kind == GROUP_V2;
    int64_t max = limit_of(kind, group);
    int64_t now = number_of(group, v2 ? "memory.current" : "memory.usage_in_bytes", "");
    int64_t old = number_of(group, "memory.stat", v2 ? "inactive_file " : "total_inactive_file ");
    if (max >= no_limit || now < 0) return no_limit;
    return MAX(0, max - now + MIN(MAX(0, old), now));
}

/* Millionths of a CPU. */
static int64_t quota_of(GroupKind kind, const char *group)
{
    char    path[PATH_MAX + 64];
    int64_t quota = -1, period = 100000;
    if (kind == GROUP_V2) {
        snprintf(path, sizeof path, "%s/cpu.max", group);
        FILE     *f = open_file(path);
        long long a, b;
        if (f && fscanf(f, "%lld %lld", &a, &b) == 2) quota = a, period = b;
        if (f) fclose(f);
    } else {
        quota  = number_of(group, "cpu.cfs_quota_us", "");
        period = number_of(group, "cpu.cfs_period_us", "");
    }
    return quota > 0 && period > 0 ? (int64_t)((double)quota / (double)period * 1e6) : no_limit;
}

/* ---- ulimit -------------------------------------------------------------------------------------------- */

static int64_t limit_for(int resource)
{
    struct rlimit r;
    return getrlimit(resource, &r) == 0 && r.rlim_cur < (rlim_t)no_limit ? (int64_t)r.rlim_cur : no_limit;
}

/* Address space also goes to libraries that are yet to be opened, stacks and the loader's slots. */
static int64_t left_of_address_space(void)
{
    enum { OTHER = 24 << 20, THREADS = 8 };
    int64_t limit = MIN(limit_for(RLIMIT_AS), limit_for(RLIMIT_DATA)), stack = limit_for(RLIMIT_STACK);
    int64_t pages = number_in("/proc/self/statm", "");
    if (limit >= no_limit || pages < 0) return no_limit;
    if (stack >= no_limit) stack = 8 << 20;
    int64_t threads = (THREADS + 2 * hostmem_cpus()) * MIN(stack, 8 << 20);
    return MAX(0, limit - pages * sysconf(_SC_PAGESIZE) - OTHER - threads);
}

void hostmem_begin(void)
{
    /* Each thread's heap reserves 64 MiB of address space, whatever it uses. */
    if (limit_for(RLIMIT_AS) < no_limit || limit_for(RLIMIT_DATA) < no_limit) (void)mallopt(M_ARENA_MAX, 1);
}

/* ---- The answers --------------------------------------------------------------------------------------- */

size_t hostmem_available(void)
{
    int64_t kib = number_in("/proc/meminfo", "MemAvailable:");
    if (kib < 0) return 0;
    int64_t machine = kib * 1024, space = left_of_address_space();
    int64_t v2 = least_above(GROUP_V2, left_of), v1 = least_above(GROUP_MEMORY, left_of);
    return (size_t)MIN(MIN(machine, space), MIN(v2, v1));
}

size_t hostmem_total(void)
{
    int64_t kib = number_in("/proc/meminfo", "MemTotal:");
    if (kib < 0) return 0;
    int64_t least = MIN(kib * 1024, MIN(limit_for(RLIMIT_AS), limit_for(RLIMIT_DATA)));
    int64_t v2 = least_above(GROUP_V2, limit_of), v1 = least_above(GROUP_MEMORY, limit_of);
    return (size_t)MIN(least, MIN(v2, v1));
}

int hostmem_quota(void)
{
    int64_t v2 = least_above(GROUP_V2, quota_of), v1 = least_above(GROUP_CPU, quota_of);
    int64_t quota = MIN(v2, v1);
    return (int)MIN(INT_MAX, (quota + 999999) / 1000000); /* a part of a CPU is one */
}

int hostmem_cpus(void)
{
    cpu_set_t set;
    int       n =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = hostmem_quota();
    return MAX(1, MIN(n, quota));
}
