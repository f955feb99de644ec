/* The processors that this process may use: its affinity mask, the machine's cores, and the CPU
 * quota that a container or service manager gave it. */
#ifndef SL_BASE_CPUS_H
#define SL_BASE_CPUS_H

#include "base/base.h"

enum { SL_CPUS_MAX = 256 };

/* Cores: one processor of each physical core that the affinity mask allows, without the efficiency
 * cores of a hybrid machine unless there are no others, neighbours in the machine next to each
 * other. When the machine's shape cannot be read, every allowed processor counts as a core. */
typedef struct sl_cpus {
    unsigned n_cores; /* at least 1 */
    unsigned ids[SL_CPUS_MAX];
    unsigned n_usable; /* threads that get a core to themselves: n_cores or the quota, whichever is
                          less; a quota of one and a half counts as two */
} sl_cpus;

/* Takes some milliseconds. */
sl_cpus sl_cpus_find(void);

/* n_usable. */
unsigned sl_cpus_usable(void);

/* Keeps the calling thread on one processor, if the system lets it. */
void sl_cpus_stay_on(unsigned id);

/* The smallest quota on the way from this process's control group to the root, in processors,
 * rounded up; 0 = none. membership is /proc/self/cgroup and root /sys/fs/cgroup outside tests. */
unsigned sl_cpus_quota(const char *membership, const char *root);

#endif
