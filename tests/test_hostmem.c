/* What this process may use, from trees of control-group files: version 1 and 2, nested groups, containers
 * with and without a namespace, quotas. And ulimit for real. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/err.h"
#include "base/file.h"
#include "base/hostmem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[64];

static int tree_begin(void **state)
{
    (void)state;
    strcpy(root, "/tmp/brim_cgroup_XXXXXX");
    return mkdtemp(root) && setenv("BRIM_CGROUP", root, 1) == 0 ? 0 : -1;
}

static int tree_end(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void put(const char *path, const char *text)
{
    char full[PATH_MAX], folder[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", root, path);
    assert_int_equal(file_folder_of(full, folder, sizeof folder), 0);
    assert_int_equal(file_make_folders(folder), 0);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const size_t MB = 1000000;

static void test_no_groups(void **state)
{
    (void)state;
    assert_true(hostmem_available() > 10 * MB && hostmem_total() >= hostmem_available());
    assert_true(hostmem_cpus() >= 1);
}

/* A batch job's slice has the limit; the job's own group and the root have none. */
static void test_nested_version_2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n");
    put("sys/fs/cgroup/slurm/job_7/step_0/memory.current", "1000000\n");
    put("sys/fs/cgroup/slurm/job_7/memory.max", "50000000\n");
    put("sys/fs/cgroup/slurm/job_7/memory.current", "20000000\n");
    put("sys/fs/cgroup/slurm/job_7/memory.stat", "anon 1\ninactive_file 5000000\n");
    put("sys/fs/cgroup/slurm/cpu.max", "150000 100000\n");
    assert_int_equal(hostmem_available(), 35 * MB);
    assert_int_equal(hostmem_total(), 50 * MB);
    put("sys/fs/cgroup/slurm/memory.high", "30000000\n");
    put("sys/fs/cgroup/slurm/memory.current", "21000000\n");
    assert_int_equal(hostmem_available(), 9 * MB);
    assert_true(hostmem_cpus() <= 2);
    put("sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "50000 100000\n");
    assert_int_equal(hostmem_cpus(), 1);
    put("sys/fs/cgroup/slurm/job_7/memory.current", "60000000\n"); /* above its limit already */
    put("sys/fs/cgroup/slurm/job_7/memory.stat", "anon 1\ninactive_file 0\n");
    assert_int_equal(hostmem_available(), 0);
}

static void test_version_1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n");
    put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "80000000\n");
    put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "30000000\n");
    put("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 10000000\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "90000000000\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(hostmem_available(), 60 * MB);
    assert_int_equal(hostmem_total(), 80 * MB);
    assert_int_equal(hostmem_cpus(), 1);
}

/* The group has the host's name, the mount begins at the container. */
static void test_container_of_version_1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "9:cpuacct,cpu:/docker/abc\n4:memory:/docker/abc/inner\n");
    put("proc/self/mountinfo",
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "36 31 0:33 /docker/abc /groups/memory rw,relatime - cgroup cgroup rw,memory\n"
        "37 31 0:34 /docker/abc /groups/both rw,relatime - cgroup cgroup rw,cpuacct,cpu\n");
    put("groups/memory/memory.limit_in_bytes", "70000000\n");
    put("groups/memory/memory.usage_in_bytes", "10000000\n");
    put("groups/memory/inner/memory.limit_in_bytes", "40000000\n");
    put("groups/memory/inner/memory.usage_in_bytes", "10000000\n");
    put("groups/both/cpu.cfs_quota_us", "20000\n");
    put("groups/both/cpu.cfs_period_us", "100000\n");
    assert_int_equal(hostmem_available(), 30 * MB);
    assert_int_equal(hostmem_total(), 40 * MB);
    assert_int_equal(hostmem_cpus(), 1);
}

/* Files that make no sense are no limits, and none of them is read past its end. */
static void test_nonsense(void **state)
{
    (void)state;
    size_t before = hostmem_total();
    put("proc/self/cgroup", "0:\n:::\n\n0::/../../etc\n4:memory\n");
    put("sys/fs/cgroup/memory.max", "a lot\n");
    put("sys/fs/cgroup/memory.current", "");
    put("sys/fs/cgroup/cpu.max", "0 0\n");
    put("proc/self/mountinfo", "x - \n36 31 - cgroup2\n1 2 3 / /sys/fs/cgroup rw - cgroup2 none\n");
    assert_int_equal(hostmem_total(), before);
    assert_true(hostmem_cpus() >= 1 && hostmem_available() > 0);
}

static void test_address_space(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct rlimit r = { 400 * MB, 400 * MB };
        if (setrlimit(RLIMIT_AS, &r) != 0) _exit(9);
        hostmem_begin();
        _exit(hostmem_total() == 400 * MB && hostmem_available() < 400 * MB ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
#ifndef __SANITIZE_ADDRESS__ /* whose shadow takes terabytes of address space */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, tree_begin, tree_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_no_groups), CASE(test_nested_version_2),
        CASE(test_version_1), CASE(test_container_of_version_1),
        CASE(test_nonsense),  CASE(test_address_space),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
