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

#include "base/base.h"

enum { PATH_BYTES = 512, LINE_BYTES = 512 };

static FILE *open_at(const char *root, const char *format, ...) SL_PRINTF(2, 3);
static FILE *open_at(const char *root, const char *format, ...)
{
    char name[PATH_BYTES], path[2 * PATH_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    snprintf(path, sizeof path, "%s%s", root, name);
    return fopen(path, "r");
}

/* The first line without its end; closes the file, which may be NULL. */
static bool take_line(FILE *file, char *line, size_t capacity)
{
    line[0] = '\0';
    if (!file)
        return false;
    const bool found = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    line[strcspn(line, "\n")] = '\0';
    return found;
}

static bool take_number(FILE *file, uint64_t *out)
{
    char line[64], *end;
    if (!take_line(file, line, sizeof line))
        return false;
    *out = strtoull(line, &end, 10);
    return end != line;
}

/* The number after `key` at the beginning of a line. */
static bool find_number(FILE *file, const char *key, uint64_t *out)
{
    char line[LINE_BYTES];
    bool found = false;
    if (!file)
        return false;
    while (!found && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0) {
            *out = strtoull(line + strlen(key), NULL, 10);
            found = true;
        }
    }
    fclose(file);
    return found;
}

static void read_cpu_name(const char *root, char *name, size_t capacity)
{
    char line[LINE_BYTES];
    FILE *file = open_at(root, "/proc/cpuinfo");
    while (file && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value) {
            snprintf(name, capacity, "%.*s", (int)strcspn(value + 1, "\n"), value + 1);
            memmove(name, name + strspn(name, " "), strlen(name + strspn(name, " ")) + 1);
            break;
        }
    }
    if (file)
        fclose(file);
}

/* The line "cpu user nice system idle iowait irq softirq steal ..." */
static void read_ticks(const char *root, sl_machine *out)
{
    char line[LINE_BYTES], *at = line + 4;
    if (!take_line(open_at(root, "/proc/stat"), line, sizeof line) || strncmp(line, "cpu ", 4) != 0)
        return;
    for (int field = 0; field < 8; field++) {
        const uint64_t ticks = strtoull(at, &at, 10);
        out->ticks += ticks;
        if (field == 7)
            out->stolen_ticks = ticks;
    }
}

static bool is_discharging(const char *root, const char *supply)
{
    char type[32], status[32];
    take_line(open_at(root, "/sys/class/power_supply/%s/type", supply), type, sizeof type);
    take_line(open_at(root, "/sys/class/power_supply/%s/status", supply), status, sizeof status);
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

/* The control group of this process: its path below /sys/fs/cgroup, "" for the root. */
static void read_group(const char *root, char *group, size_t capacity)
{
    char line[LINE_BYTES];
    take_line(open_at(root, "/proc/self/cgroup"), line, sizeof line);
    snprintf(group, capacity, "%s", strncmp(line, "0::/", 4) == 0 && line[4] ? line + 3 : "");
}

static void read_group_limits(const char *root, sl_machine *out)
{
    char group[LINE_BYTES];
    uint64_t limit, used;
    read_group(root, group, sizeof group);
    find_number(open_at(root, "/sys/fs/cgroup%s/cpu.stat", group), "nr_throttled ",
                &out->n_throttled);
    /* "max" is no number */
    if (take_number(open_at(root, "/sys/fs/cgroup%s/memory.max", group), &limit) &&
        take_number(open_at(root, "/sys/fs/cgroup%s/memory.current", group), &used)) {
        const uint64_t left = limit > used ? limit - used : 0;
        if (out->memory == 0 || left < out->memory)
            out->memory = left;
    }
}

void sl_machine_look(const char *root, sl_machine *out)
{
    char line[LINE_BYTES];
    uint64_t kib;
    const long n_online = sysconf(_SC_NPROCESSORS_ONLN);
    *out = (sl_machine){.load = -1, .n_online = n_online > 0 ? (unsigned)n_online : 1};
    read_cpu_name(root, out->cpu, sizeof out->cpu);
    if (take_line(open_at(root, "/proc/loadavg"), line, sizeof line))
        out->load = strtod(line, NULL);
    take_line(open_at(root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"), out->governor,
              sizeof out->governor);
    out->on_battery = is_on_battery(root);
    read_ticks(root, out);
    if (find_number(open_at(root, "/proc/meminfo"), "MemAvailable:", &kib))
        out->memory = kib * 1024;
    read_group_limits(root, out);
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
        note(out, "%u threads on %u processors: they wait for each other", n_threads, n_usable);
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
    return take_number(open_at(root, "/sys/class/powercap/intel-rapl:%u/%s", package, name), out);
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
    if (find_number(open_at("", "/proc/self/status"), "VmHWM:", &kib))
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
