#include "base/hostmem.h"

#include "base/err.h"
#include "base/fault.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number after `key` at the start of a line ("": of the file); -1 when the file or the line is not
 * there. */
static int64_t number_in(const char *path, const char *key)
{
    char    line[256];
    int64_t value = -1;
    FILE   *f     = fault_hit(FAULT_OPEN) ? NULL : fopen(path, "re");
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

/* What one control group leaves; page cache that can be dropped at once does not count as used. */
static size_t left_in_group(const char *group)
{
    char limit[PATH_MAX], used[PATH_MAX], stat[PATH_MAX];
    if ((size_t)snprintf(limit, sizeof limit, "%s/memory.max", group) >= sizeof limit ||
        (size_t)snprintf(used, sizeof used, "%s/memory.current", group) >= sizeof used ||
        (size_t)snprintf(stat, sizeof stat, "%s/memory.stat", group) >= sizeof stat) {
        return SIZE_MAX;
    }
    int64_t max = number_in(limit, ""), now = number_in(used, "");
    if (max < 0 || now < 0) return SIZE_MAX;
    int64_t left = max - now + MAX(0, number_in(stat, "inactive_file "));
    return (size_t)MAX(0, left);
}

/* A limit may be set on this group or on any above it. */
static size_t left_in_groups(void)
{
    static const char root[]             = "/sys/fs/cgroup";
    char              line[PATH_MAX / 2] = "", path[PATH_MAX];
    size_t            least              = SIZE_MAX;
    FILE             *f                  = fault_hit(FAULT_OPEN) ? NULL : fopen("/proc/self/cgroup", "re");
    if (!f) return SIZE_MAX;
    while (fgets(line, sizeof line, f) && strncmp(line, "0::", 3) != 0) line[0] = '\0'; /* version 2 only */
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    snprintf(path, sizeof path, "%s%s", root, line[0] ? line + 3 : "");
    for (;;) {
        least       = MIN(least, left_in_group(path));
        char *slash = strrchr(path, '/');
        if (!slash || strlen(path) <= strlen(root)) return least;
        *slash = '\0';
    }
}

size_t hostmem_available(void)
{
    int64_t kib = number_in("/proc/meminfo", "MemAvailable:");
    return kib < 0 ? 0 : MIN((size_t)kib * 1024, left_in_groups());
}
