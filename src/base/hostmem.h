/* How much memory this process can get: the machine's, the limit that a container or service
 * manager set, and that of its own address space. */
#ifndef SL_BASE_HOSTMEM_H
#define SL_BASE_HOSTMEM_H

#include "base/base.h"

typedef struct sl_hostmem {
    uint64_t total, available; /* of the machine; 0 when it does not tell */
    uint64_t limit;            /* of the control groups, the tightest; 0 = none */
    uint64_t address_space;    /* limit of the process (ulimit -v); 0 = none */
    uint64_t left; /* what can be had: the smallest of available and the limits' rests; UINT64_MAX
                    * when nothing tells */
} sl_hostmem;

/* proc is /proc and cgroup /sys/fs/cgroup outside tests. */
sl_hostmem sl_hostmem_read(const char *proc, const char *cgroup);

#endif
