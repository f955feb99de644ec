#include "base/hostmem.h"

#include <stdio.h>

#include "base/cgroup.h"
#include "base/textfile.h"

/* Pages of files count as used by a group, but go when something else needs the room: a model's own
 * file too, whose pages become active ones when it is read a second time. */
static uint64_t reclaimable(const char *folder, bool unified)
{
    char path[1200], text[8192];
    uint64_t inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (!sl_textfile_read(path, text, sizeof text))
        return 0;
    sl_textfile_find(text, unified ? "inactive_file " : "total_inactive_file ", &inactive);
    sl_textfile_find(text, unified ? "active_file " : "total_active_file ", &active);
    return inactive < UINT64_MAX - active ? inactive + active : UINT64_MAX;
}

static void apply_limit(void *context, const char *folder, bool unified)
{
    sl_hostmem *memory = context;
    uint64_t limit, used = 0;
    /* "max" is no number; the first version writes a number beyond every machine's memory. */
    if (!sl_textfile_number(folder, unified ? "memory.max" : "memory.limit_in_bytes", &limit) ||
        limit >= (uint64_t)1 << 60)
        return;
    sl_textfile_number(folder, unified ? "memory.current" : "memory.usage_in_bytes", &used);
    const uint64_t file = reclaimable(folder, unified);
    used -= file < used ? file : used;
    const uint64_t rest = used < limit ? limit - used : 0;
    if (memory->limit == 0 || limit < memory->limit)
        memory->limit = limit;
    if (rest < memory->left)
        memory->left = rest;
}

/* The limit of the address space, which counts what is mapped, whether or not it is in memory. */
static void apply_own_limit(const char *proc, sl_hostmem *memory)
{
    char path[1200], text[8192];
    uint64_t limit, kib = 0;
    snprintf(path, sizeof path, "%s/self/limits", proc);
    /* "unlimited" is no number */
    if (!sl_textfile_read(path, text, sizeof text) ||
        !sl_textfile_find(text, "Max address space", &limit))
        return;
    snprintf(path, sizeof path, "%s/self/status", proc);
    if (sl_textfile_read(path, text, sizeof text))
        sl_textfile_find(text, "VmSize:", &kib);
    const uint64_t used = kib < UINT64_MAX >> 10 ? kib << 10 : UINT64_MAX;
    const uint64_t rest = used < limit ? limit - used : 0;
    memory->address_space = limit;
    if (rest < memory->left)
        memory->left = rest;
}

sl_hostmem sl_hostmem_read(const char *proc, const char *cgroup)
{
    char path[1200], text[8192];
    uint64_t kib;
    sl_hostmem memory = {.left = UINT64_MAX};
    snprintf(path, sizeof path, "%s/meminfo", proc);
    if (sl_textfile_read(path, text, sizeof text)) {
        if (sl_textfile_find(text, "MemTotal:", &kib) && kib < UINT64_MAX >> 10)
            memory.total = kib << 10;
        if (sl_textfile_find(text, "MemAvailable:", &kib) && kib < UINT64_MAX >> 10)
            memory.left = memory.available = kib << 10;
    }
    snprintf(path, sizeof path, "%s/self/cgroup", proc);
    sl_cgroup_walk(path, cgroup, "memory", apply_limit, &memory);
    apply_own_limit(proc, &memory);
    return memory;
}
