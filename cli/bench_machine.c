/* Reads what Linux tells about itself below /proc and /sys. Everything may be missing: a container
 * shows little, another system nothing. */
#include "bench_machine.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/hostmem.h"
#include "base/textfile.h"

enum { PATH_BYTES = 512, LINE_BYTES = 512, TEXT_BYTES = 8192 };

/* The number after `key` at the beginning of a line of root/name. */
static bool find_number(const char *root, const char *name, const char *key, uint64_t *out)
{
    char text[TEXT_BYTES];
    return sl_textfile_read_line(root, name, text, sizeof text) && sl_textfile_find(text, key, out);
}

/* The line "cpu user nice system idle iowait irq softirq steal ..." */
bool sl_machine_ticks(const char *root, uint64_t *all, uint64_t *stolen)
{
    char text[TEXT_BYTES], *at = text + 4;
    if (!sl_textfile_read_line(root, "proc/stat", text, sizeof text) ||
        strncmp(text, "cpu ", 4) != 0)
        return false;
    *all = 0;
    for (int field = 0; field < 8; field++) {
        char *end;
        *stolen = strtoull(at, &end, 10);
        if (end == at)
            return false;
        *all += *stolen;
        at = end;
    }
    return true;
}

static bool is_discharging(const char *root, const char *supply)
{
    char name[PATH_BYTES], type[32], status[32];
    snprintf(name, sizeof name, "sys/class/power_supply/%s/type", supply);
    sl_textfile_read_line(root, name, type, sizeof type);
    snprintf(name, sizeof name, "sys/class/power_supply/%s/status", supply);
    sl_textfile_read_line(root, name, status, sizeof status);
    return strcmp(type, "Battery") == 0 && strcmp(status, "Discharging") == 0;
}

static bool is_on_battery(const char *root)
{
    char path[PATH_BYTES];
    bool found = false;
    snprintf(path, sizeof path, "%s/sys/class/power_supply", root);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && !found && (entry = readdir(folder));)
        found = entry->d_name[0] != '.' && is_discharging(root, entry->d_name);
    if (folder)
        closedir(folder);
    return found;
}

/* A quota stops everything below the group it is set on: all of them count. */
static void add_throttled(void *context, const char *folder, bool unified)
{
    uint64_t *total = context, n;
    (void)unified;
    if (find_number(folder, "cpu.stat", "nr_throttled ", &n))
        *total += n;
}

static void read_groups(const char *root, sl_machine *out)
{
    char proc[PATH_BYTES], membership[PATH_BYTES], groups[PATH_BYTES];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(membership, sizeof membership, "%s/proc/self/cgroup", root);
    snprintf(groups, sizeof groups, "%s/sys/fs/cgroup", root);
    sl_cgroup_walk(membership, groups, "cpu", add_throttled, &out->n_throttled);
    out->memory = sl_hostmem_read(proc, groups).left;
}

void sl_machine_look(const char *root, sl_machine *out)
{
    char text[LINE_BYTES];
    const long n_online = sysconf(_SC_NPROCESSORS_ONLN);
    *out = (sl_machine){.load = -1, .n_online = n_online > 0 ? (unsigned)n_online : 1};
    sl_textfile_field(root, "proc/cpuinfo", "model name", out->cpu, sizeof out->cpu);
    if (sl_textfile_read_line(root, "proc/loadavg", text, sizeof text))
        out->load = strtod(text, NULL);
    sl_textfile_read_line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                          out->governor, sizeof out->governor);
    out->on_battery = is_on_battery(root);
    if (!sl_machine_ticks(root, &out->ticks, &out->stolen_ticks))
        out->ticks = out->stolen_ticks = 0;
    read_groups(root, out);
}

/* ---- doubts ---- */

static void note(sl_machine_notes *notes, const char *format, ...) SL_PRINTF(2, 3);
static void note(sl_machine_notes *notes, const char *format, ...)
{
    if (notes->n == SL_MAX_NOTES)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(notes->texts[notes->n++], SL_NOTE_BYTES, format, args);
    va_end(args);
}

void sl_machine_doubts(const sl_machine *before, const sl_machine *after, unsigned n_threads,
                       unsigned n_usable, sl_machine_notes *out)
{
    out->n = 0;
    if (before->load > before->n_online)
        note(out, "the load average was %.1f on %u processors before the run: other work slows it",
             before->load, before->n_online);
    if (n_threads > n_usable)
        note(out, "%u threads on %u processor%s: they wait for each other", n_threads, n_usable,
             n_usable > 1 ? "s" : "");
    const uint64_t ticks = after->ticks - before->ticks;
    const uint64_t stolen = after->stolen_ticks - before->stolen_ticks;
    if (ticks > 0 && stolen * 100 > ticks)
        note(out, "the host took %.1f %% of the processors' time away during the run",
             100.0 * (double)stolen / (double)ticks);
    if (after->n_throttled > before->n_throttled)
        note(out, "the CPU quota ran out %llu times during the run",
             (unsigned long long)(after->n_throttled - before->n_throttled));
    if (before->on_battery || after->on_battery)
        note(out, "the machine runs on its battery");
    if (strcmp(before->governor, "powersave") == 0)
        note(out, "the frequency governor is powersave");
}

/* ---- energy ---- */

static bool read_counter(const char *root, unsigned package, const char *name, uint64_t *out)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "sys/class/powercap/intel-rapl:%u/%s", package, name);
    return sl_textfile_number(root, path, out);
}

void sl_energy_open(const char *root, sl_energy *energy)
{
    *energy = (sl_energy){.root = root};
    for (unsigned package = 0; package < SL_MAX_PACKAGES; package++) {
        const size_t i = energy->n;
        if (read_counter(root, package, "energy_uj", &energy->last[i]) &&
            read_counter(root, package, "max_energy_range_uj", &energy->range[i]))
            energy->packages[energy->n++] = package;
    }
}

double sl_energy_joules(sl_energy *energy)
{
    for (size_t i = 0; i < energy->n; i++) {
        uint64_t now;
        if (!read_counter(energy->root, energy->packages[i], "energy_uj", &now))
            continue;
        const uint64_t around = now < energy->last[i] ? energy->range[i] : 0;
        energy->joules += (double)(now + around - energy->last[i]) / 1e6;
        energy->last[i] = now;
    }
    return energy->joules;
}

/* ---- memory of this process ---- */

double sl_peak_memory_mib(void)
{
    uint64_t kib;
    struct rusage usage;
    if (find_number("", "proc/self/status", "VmHWM:", &kib))
        return (double)kib / 1024;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss / 1024 : 0;
}

bool sl_peak_memory_forget(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (!file)
        return false;
    const bool written = fputs("5", file) >= 0; /* 5 sets the peak to what is resident now */
    return fclose(file) == 0 && written;
}
