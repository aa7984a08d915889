/* Host: what the machine around the GPU does, from /proc and the CPU's own energy counter.
 *
 * 1. Nothing fails, as in nvml.h: a number that cannot be read is NAN.
 * 2. Counters are snapshots. host_between() tells what happened between two snapshots. */
#ifndef WATCH_HOST_H
#define WATCH_HOST_H

#include <stddef.h>

typedef struct {
    double time_s;                  /* clock_now_s() */
    double busy_s, total_s;         /* of all CPUs together, in the kernel's own ticks */
    double own_s;                   /* CPU seconds of this process, all its threads */
    double read_bytes, write_bytes; /* of this process, from and to disks */
    double energy_j;                /* CPU packages; wraps, see energy_wrap_j */
    double energy_wrap_j;
    double memory_used_bytes, memory_total_bytes, rss_bytes; /* rss: this process */
} HostReading;

typedef struct {
    double time_s;
    double cpu;     /* share of all CPUs that was busy, 0 to 1 */
    double own_cpu; /* cores that this process kept busy */
    double read_bytes_s, write_bytes_s;
    double energy_j; /* of the CPU packages, whoever used them */
} HostRates;

void host_read(HostReading *out);
/* The part of that about energy: the package domains of Intel's and AMD's counters. Often only root may
 * read them. folder: /sys/class/powercap, or a test's. */
void host_read_energy(HostReading *r, const char *folder);
void host_between(const HostReading *before, const HostReading *after, HostRates *out);

int host_cpus(void); /* logical CPUs that are online */
/* Cores that these CPUs belong to: siblings share one. 0 where it is not known. folder:
 * /sys/devices/system/cpu, or a test's. */
int host_cores(const char *folder, const int *cpu, int n);
/* Cores of all CPUs that are online, and of those that this process may run on. 0: not known. */
void host_count_cores(int *all, int *allowed);
/* The CPU's model name, or "CPU". Returns buf. */
const char *host_cpu_name(char *buf, size_t n);
/* What process pid is called, "?" when it cannot be seen. Returns buf. */
const char *host_process_name(int pid, char *buf, size_t n);

/* 0: no process has this number any more, or it has ended and waits for its parent. */
int host_process_lives(int pid);

#endif
