#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpus.h"

#include <hwloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- cores ---- */

/* Room for 8,192 processors: the call fails when the kernel's mask is larger than ours. */
typedef struct mask {
    cpu_set_t sets[8];
} mask;

static bool allows(const mask *allowed, unsigned id)
{
    return id < 8 * sizeof *allowed && CPU_ISSET_S(id, sizeof *allowed, allowed->sets);
}

static void add_core(sl_cpus *cpus, unsigned id)
{
    if (cpus->n_cores < SL_CPUS_MAX)
        cpus->ids[cpus->n_cores++] = id;
}

/* Whether cores of a kind are the slow ones of a hybrid machine. Intel names them; elsewhere they
 * are the lowest in the order of efficiency, where that is known. */
static bool is_slow_kind(hwloc_topology_t topology, int kind)
{
    int efficiency = -1;
    unsigned n_infos = 0;
    struct hwloc_info_s *infos = NULL;
    if (kind < 0 || hwloc_cpukinds_get_nr(topology, 0) < 2 ||
        hwloc_cpukinds_get_info(topology, (unsigned)kind, NULL, &efficiency, &n_infos, &infos, 0) !=
            0)
        return false;
    for (unsigned i = 0; i < n_infos; i++) {
        if (strcmp(infos[i].name, "CoreType") == 0)
            return strcmp(infos[i].value, "IntelAtom") == 0;
    }
    return efficiency == 0;
}

/* Adds a processor of every core of which one is allowed. */
static void add_cores(sl_cpus *cpus, hwloc_topology_t topology, const mask *allowed, bool slow)
{
    hwloc_obj_t core = NULL;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != NULL) {
        int id = hwloc_bitmap_first(core->cpuset);
        while (id >= 0 && !allows(allowed, (unsigned)id))
            id = hwloc_bitmap_next(core->cpuset, id);
        const int kind = hwloc_cpukinds_get_by_cpuset(topology, core->cpuset, 0);
        if (id >= 0 && is_slow_kind(topology, kind) == slow)
            add_core(cpus, (unsigned)id);
    }
}

/* Whether the system says anything of its processors. Where it does not (a root without /sys), hwloc
 * writes a complaint to standard error, which is the program's and not ours. */
static bool system_tells(void)
{
    return access("/sys/devices/system/cpu/cpu0/topology", F_OK) == 0 ||
           access("/sys/bus/cpu/devices/cpu0/topology", F_OK) == 0;
}

/* Leaves n_cores 0 when the machine does not tell. */
static void find_cores(sl_cpus *cpus, const mask *allowed)
{
    hwloc_topology_t topology;
    if (!system_tells())
        return;
    if (hwloc_topology_init(&topology) != 0)
        return;
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0) {
        add_cores(cpus, topology, allowed, false);
        if (cpus->n_cores == 0)
            add_cores(cpus, topology, allowed, true);
    }
    hwloc_topology_destroy(topology);
}

sl_cpus sl_cpus_find(void)
{
    sl_cpus cpus = {0};
    mask allowed;
    if (sched_getaffinity(0, sizeof allowed, allowed.sets) == 0) {
        find_cores(&cpus, &allowed);
        const bool unknown = cpus.n_cores == 0;
        for (unsigned id = 0; unknown && id < 8 * sizeof allowed; id++) {
            if (allows(&allowed, id))
                add_core(&cpus, id);
        }
    }
    if (cpus.n_cores == 0)
        add_core(&cpus, 0);
    cpus.n_usable = cpus.n_cores;
    const unsigned quota = sl_cpus_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota != 0 && quota < cpus.n_usable)
        cpus.n_usable = quota;
    return cpus;
}

unsigned sl_cpus_usable(void)
{
    return sl_cpus_find().n_usable;
}

void sl_cpus_stay_on(unsigned id)
{
    mask one;
    CPU_ZERO_S(sizeof one, one.sets);
    CPU_SET_S(id, sizeof one, one.sets);
    (void)!sched_setaffinity(0, sizeof one, one.sets);
}
