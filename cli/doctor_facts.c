#include "doctor_facts.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/textfile.h"
#include "bench_machine.h"

enum { PATH_BYTES = 1024, MAX_PROCESSORS = 8192 };

/* ---- files ---- */

/* Numbers in a list such as "0-3,8,10-11". */
static unsigned count_list(const char *list)
{
    unsigned n = 0;
    for (const char *p = list; *p >= '0' && *p <= '9';) {
        char *end;
        const unsigned long first = strtoul(p, &end, 10);
        unsigned long last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (last < first || last >= MAX_PROCESSORS)
            return 0;
        n += (unsigned)(last - first) + 1;
        p = end + (*end == ',');
    }
    return n;
}

static unsigned read_list(const char *root, const char *name)
{
    char text[4096];
    return sl_textfile_read_line(root, name, text, sizeof text) ? count_list(text) : 0;
}

static int compare_cores(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Cores are told apart by package and number. */
static unsigned count_cores(const char *root)
{
    uint64_t *cores = sl_alloc_array(SL_MEM_GENERAL, MAX_PROCESSORS, sizeof *cores);
    if (!cores)
        return 0;
    size_t n = 0;
    unsigned distinct = 0;
    for (unsigned i = 0; i < MAX_PROCESSORS; i++) {
        char name[PATH_BYTES];
        uint64_t core, package = 0;
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%u/topology/core_id", i);
        if (!sl_textfile_number(root, name, &core))
            break;
        snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%u/topology/physical_package_id", i);
        sl_textfile_number(root, name, &package);
        cores[n++] = package << 32 | (core & UINT32_MAX);
    }
    qsort(cores, n, sizeof *cores, compare_cores);
    for (size_t i = 0; i < n; i++)
        distinct += i == 0 || cores[i] != cores[i - 1];
    sl_free(cores);
    return distinct;
}

/* "always [madvise] never": the word in brackets. */
static void read_huge_pages(const char *root, char *out, size_t capacity)
{
    char text[128];
    out[0] = '\0';
    if (!sl_textfile_read_line(root, "sys/kernel/mm/transparent_hugepage/enabled", text,
                               sizeof text))
        return;
    const char *open = strchr(text, '[');
    if (open)
        snprintf(out, capacity, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
}

static int read_turbo(const char *root)
{
    uint64_t value;
    if (sl_textfile_number(root, "sys/devices/system/cpu/intel_pstate/no_turbo", &value))
        return value == 0;
    if (sl_textfile_number(root, "sys/devices/system/cpu/cpufreq/boost", &value))
        return value != 0;
    return -1;
}

static double read_steal(const char *root)
{
    sl_ticks ticks;
    return sl_machine_ticks(root, &ticks) && ticks.all > 0
               ? (double)ticks.stolen / (double)ticks.all
               : -1;
}

void sl_doctor_read(const char *root, sl_doctor_facts *facts)
{
    char proc[PATH_BYTES], path[PATH_BYTES], groups[PATH_BYTES], text[128];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(groups, sizeof groups, "%s/sys/fs/cgroup", root);
    sl_textfile_field(root, "proc/cpuinfo", "model name", facts->cpu_name, sizeof facts->cpu_name);
    facts->n_online = read_list(root, "sys/devices/system/cpu/online");
    facts->n_nodes = read_list(root, "sys/devices/system/node/online");
    facts->n_cores = count_cores(root);
    sl_textfile_field(root, "proc/self/status", "Cpus_allowed_list", text, sizeof text);
    facts->n_allowed = count_list(text);
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    facts->quota = sl_cpus_quota(path, groups);
    facts->memory = sl_hostmem_read(proc, groups);
    read_huge_pages(root, facts->huge_pages, sizeof facts->huge_pages);
    sl_textfile_read_line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                          facts->governor, sizeof facts->governor);
    sl_textfile_read_line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", facts->driver,
                          sizeof facts->driver);
    facts->turbo = read_turbo(root);
    facts->load = sl_textfile_read_line(root, "proc/loadavg", text, sizeof text) &&
                          text[0] >= '0' && text[0] <= '9'
                      ? strtod(text, NULL)
                      : -1;
    facts->steal = read_steal(root);
    facts->on_battery = sl_machine_on_battery(root);
    snprintf(path, sizeof path, "%s/dev/nvidia0", root);
    facts->has_nvidia_device = access(path, F_OK) == 0;
}

/* ---- processor and loader ---- */

void sl_doctor_ask(sl_doctor_facts *facts)
{
    sl_error err;
    facts->cpu = sl_cpuid_read();
    if (facts->cpu_name[0] == '\0')
        snprintf(facts->cpu_name, sizeof facts->cpu_name, "%s", facts->cpu.brand);
    facts->amx_refused = facts->cpu.amx_int8 && !sl_cpuid_allow_amx();
    if (sl_cpu_level(NULL, &facts->level, &err) != SL_OK)
        facts->level = "scalar";
    facts->n_usable = sl_cpus_usable();
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    facts->has_cuda_library = library != NULL;
    if (library)
        dlclose(library);
    if (sl_cuda_device_info(0, &facts->gpu, &facts->no_gpu) != SL_OK)
        facts->gpu.name[0] = '\0';
}
