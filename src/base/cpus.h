/* How many processors this process may use: its affinity mask, and the CPU quota that a container
 * or service manager gave it. */
#ifndef SL_BASE_CPUS_H
#define SL_BASE_CPUS_H

#include "base/base.h"

/* At least 1. A quota of one and a half processors counts as two. */
unsigned sl_cpus_usable(void);

/* The smallest quota on the way from this process's control group to the root, in processors,
 * rounded up; 0 = none. membership is /proc/self/cgroup and root /sys/fs/cgroup outside tests. */
unsigned sl_cpus_quota(const char *membership, const char *root);

#endif
