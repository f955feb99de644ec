/* What the machine a measurement runs on is like, and whether it can be trusted right now. */
#ifndef SL_CLI_BENCH_MACHINE_H
#define SL_CLI_BENCH_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What could not be read is empty, 0, false, or for the load negative. */
typedef struct sl_machine {
    char cpu[96];
    unsigned n_online; /* processors of the system */
    double load;       /* average of the last minute, of the whole system */
    char governor[32]; /* of the first processor */
    char driver[32];   /* of its frequency: "intel_pstate" */
    bool on_battery;
    uint64_t ticks, stolen_ticks, busy_ticks; /* of all processors, since the system started */
    uint64_t own_ticks;                       /* of this process */
    uint64_t n_throttled;                     /* periods in which the CPU quota ran out */
} sl_machine;

/* root goes before /proc and /sys: "" outside of tests. */
void sl_machine_look(const char *root, sl_machine *out);

/* Ticks of all processors since the system started: all, those that other guests of the host got,
 * those that something ran in. False when the system does not tell. */
typedef struct sl_ticks {
    uint64_t all, stolen, busy;
} sl_ticks;
bool sl_machine_ticks(const char *root, sl_ticks *out);

bool sl_machine_on_battery(const char *root);

/* Whether it keeps processors at their lowest clock: drivers that steer by themselves call their
 * ordinary way powersave. */
bool sl_governor_saves(const char *governor, const char *driver);

enum { SL_MAX_NOTES = 8, SL_NOTE_BYTES = 160 };

typedef struct sl_machine_notes {
    char texts[SL_MAX_NOTES][SL_NOTE_BYTES];
    size_t n;
} sl_machine_notes;

/* What makes figures taken between the two looks doubtful: sentences for people. */
void sl_machine_doubts(const sl_machine *before, const sl_machine *after, unsigned n_threads,
                       unsigned n_usable, sl_machine_notes *out);

/* Energy counters of the processor packages. */
enum { SL_MAX_PACKAGES = 8 };

typedef struct sl_energy {
    const char *root;
    size_t n; /* packages that can be read: none on many machines */
    unsigned packages[SL_MAX_PACKAGES];
    uint64_t last[SL_MAX_PACKAGES], range[SL_MAX_PACKAGES]; /* microjoules */
    double joules;
} sl_energy;

/* root must outlive *energy. */
void sl_energy_open(const char *root, sl_energy *energy);

/* Joules since opening; to be called before a counter has gone around twice (every minute). */
double sl_energy_joules(sl_energy *energy);

/* The largest resident memory of this process so far, or since it was forgotten. */
double sl_peak_memory_mib(void);
bool sl_peak_memory_forget(void); /* false where that cannot be done */

#endif
