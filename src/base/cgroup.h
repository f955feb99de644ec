/* The control groups that this process is in: what a container or a service manager allows it. */
#ifndef SL_BASE_CGROUP_H
#define SL_BASE_CGROUP_H

#include "base/base.h"

/* Called with the folder of one group. unified tells the second version of control groups, whose
 * files have other names, from the first. */
typedef void (*sl_cgroup_fn)(void *context, const char *folder, bool unified);

/* Calls fn for this process's group under `controller` ("cpu", "memory") and for every group above
 * it up to the root, in both versions. A limit binds everything below the group it is set on. In a
 * container the path may be the one outside, of which only the root is visible: fn has to take a
 * folder that does not exist for one without limits. membership is /proc/self/cgroup and root
 * /sys/fs/cgroup outside tests. */
void sl_cgroup_walk(const char *membership, const char *root, const char *controller,
                    sl_cgroup_fn fn, void *context);

#endif
