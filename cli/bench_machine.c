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
#include "base/textfile.h"

enum { PATH_BYTES = 512, LINE_BYTES = 512, TEXT_BYTES = 8192 };
enum { MIN_TICKS = 50 }; /* fewer are too coarse to tell programs apart */

/* The number after `key` at the beginning of a line of root/name. */
static bool find_number(const char *root, const char *name, const char *key, uint64_t *out)
{
    char text[TEXT_BYTES];
    return sl_textfile_read_line(root, name, text, sizeof text) && sl_textfile_find(text, key, out);
}

/* The line "cpu user nice system idle iowait irq softirq steal ..." */
bool sl_machine_ticks(const char *root, sl_ticks *out)
{
    enum { IDLE = 3, IOWAIT = 4, STEAL = 7, N_FIELDS };
    char text[TEXT_BYTES], *at = text + 4;
    *out = (sl_ticks){0};
    if (!sl_textfile_read_line(root, "proc/stat", text, sizeof text) ||
        strncmp(text, "cpu ", 4) != 0)
        return false;
    for (int field = 0; field < N_FIELDS; field++) {
        char *end;
        const uint64_t n = strtoull(at, &end, 10);
        if (end == at)
            return false;
        out->all += n;
        if (field == STEAL)
            out->stolen = n;
        else if (field != IDLE && field != IOWAIT)
            out->busy += n;
        at = end;
    }
    return true;
}

/* What this process and its threads have used. */
static uint64_t own_ticks(void)
{
    struct rusage usage;
    const long per_second = sysconf(_SC_CLK_TCK);
    if (getrusage(RUSAGE_SELF, &usage) != 0 || per_second <= 0)
        return 0;
    const double seconds = (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
                           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
    return (uint64_t)(seconds * (double)per_second);
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

bool sl_machine_on_battery(const char *root)
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

static void read_throttled(const char *root, sl_machine *out)
{
    char membership[PATH_BYTES], groups[PATH_BYTES];
    snprintf(membership, sizeof membership, "%s/proc/self/cgroup", root);
    snprintf(groups, sizeof groups, "%s/sys/fs/cgroup", root);
    sl_cgroup_walk(membership, groups, "cpu", add_throttled, &out->n_throttled);
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
    sl_textfile_read_line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", out->driver,
                          sizeof out->driver);
    out->on_battery = sl_machine_on_battery(root);
    sl_ticks ticks;
    if (sl_machine_ticks(root, &ticks)) {
        out->ticks = ticks.all;
        out->stolen_ticks = ticks.stolen;
        out->busy_ticks = ticks.busy;
    }
    out->own_ticks = own_ticks();
    read_throttled(root, out);
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

/* Ticks of other programs between the two looks. */
static uint64_t ticks_of_others(const sl_machine *before, const sl_machine *after)
{
    const uint64_t busy = after->busy_ticks - before->busy_ticks;
    const uint64_t own = after->own_ticks - before->own_ticks;
    return busy > own ? busy - own : 0;
}

bool sl_governor_saves(const char *governor, const char *driver)
{
    const bool steers_itself =
        strcmp(driver, "intel_pstate") == 0 || strcmp(driver, "amd-pstate-epp") == 0;
    return strcmp(governor, "powersave") == 0 && !steers_itself;
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
    const uint64_t others = ticks_of_others(before, after);
    if (ticks >= MIN_TICKS && others * 20 > ticks)
        note(out, "other programs took %.0f %% of the processors' time during the run",
             100.0 * (double)others / (double)ticks);
    if (after->n_throttled > before->n_throttled)
        note(out, "the CPU quota ran out %llu times during the run",
             (unsigned long long)(after->n_throttled - before->n_throttled));
    if (before->on_battery || after->on_battery)
        note(out, "the machine runs on its battery");
    if (sl_governor_saves(before->governor, before->driver))
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
