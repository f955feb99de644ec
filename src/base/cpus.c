#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpus.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first bytes of a small file, as text. */
static bool read_text(const char *path, char *text, size_t capacity)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, capacity - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

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
    char path[1200], text[128], period_text[128];
    if (unified) {
        /* "max 100000" or "150000 100000" */
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        char *rest;
        if (!read_text(path, text, sizeof text) || strncmp(text, "max", 3) == 0)
            return 0;
        long long quota = strtoll(text, &rest, 10);
        return whole_cpus(quota, strtoll(rest, NULL, 10));
    }
    /* -1 means no limit. */
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text))
        return 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (!read_text(path, period_text, sizeof period_text))
        return 0;
    return whole_cpus(strtoll(text, NULL, 10), strtoll(period_text, NULL, 10));
}

/* A quota binds everything below the group it is set on. In a container the path may be the one
 * outside, of which only the root is visible: what is not there sets no limit. */
static unsigned quota_upwards(const char *root, const char *group, bool unified)
{
    char folder[1024];
    int n = snprintf(folder, sizeof folder, "%s%s", root, group);
    if (n < 0 || (size_t)n >= sizeof folder)
        return 0;
    size_t root_bytes = strlen(root);
    unsigned least = 0;
    for (;;) {
        unsigned quota = group_quota(folder, unified);
        if (quota != 0 && (least == 0 || quota < least))
            least = quota;
        char *slash = strrchr(folder + root_bytes, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

/* Is "cpu" among the names of "cpu,cpuacct"? */
static bool names_cpu(const char *controllers)
{
    for (const char *name = controllers; *name != '\0';) {
        size_t n = strcspn(name, ",");
        if (n == 3 && memcmp(name, "cpu", 3) == 0)
            return true;
        name += n + (name[n] == ',');
    }
    return false;
}

unsigned sl_cpus_quota(const char *membership, const char *root)
{
    char text[8192], v1_root[1024];
    if (!read_text(membership, text, sizeof text))
        return 0;
    /* Lines of "number:controllers:path"; the unified hierarchy is "0::path". */
    unsigned least = 0;
    for (char *line = text, *next; line && *line != '\0'; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        bool unified = *controllers == '\0';
        if (!unified && !names_cpu(controllers))
            continue;
        snprintf(v1_root, sizeof v1_root, "%s/cpu", root);
        unsigned quota = quota_upwards(unified ? root : v1_root, group, unified);
        if (quota != 0 && (least == 0 || quota < least))
            least = quota;
    }
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
