#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpus.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/textfile.h"

/* quota / period microseconds as processors, rounded up; 0 when there is no limit. */
static unsigned whole_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return 0;
    long long cpus = quota / period + (quota % period != 0);
    return cpus > UINT16_MAX ? 0 : (unsigned)cpus; /* more than any machine has */
}

/* The quota set on one control group itself. */
static unsigned group_quota(const char *folder, bool unified)
{
    char text[128], period_text[128];
    if (unified) {
        /* "max 100000" or "150000 100000" */
        char *rest;
        if (!sl_textfile_read_line(folder, "cpu.max", text, sizeof text) ||
            strncmp(text, "max", 3) == 0)
            return 0;
        long long quota = strtoll(text, &rest, 10);
        return whole_cpus(quota, strtoll(rest, NULL, 10));
    }
    /* -1 means no limit. */
    if (!sl_textfile_read_line(folder, "cpu.cfs_quota_us", text, sizeof text) ||
        !sl_textfile_read_line(folder, "cpu.cfs_period_us", period_text, sizeof period_text))
        return 0;
    return whole_cpus(strtoll(text, NULL, 10), strtoll(period_text, NULL, 10));
}

static void take_quota(void *context, const char *folder, bool unified)
{
    unsigned *least = context, quota = group_quota(folder, unified);
    if (quota != 0 && (*least == 0 || quota < *least))
        *least = quota;
}

unsigned sl_cpus_quota(const char *membership, const char *root)
{
    unsigned least = 0;
    sl_cgroup_walk(membership, root, "cpu", take_quota, &least);
    return least;
}

unsigned sl_cpus_usable(void)
{
    /* Room for 8,192 processors: the call fails when the kernel's mask is larger than ours. */
    cpu_set_t sets[8];
    unsigned n = 1;
    if (sched_getaffinity(0, sizeof sets, sets) == 0)
        n = (unsigned)CPU_COUNT_S(sizeof sets, sets);
    unsigned quota = sl_cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota != 0 && quota < n)
        n = quota;
    return n > 0 ? n : 1;
}
