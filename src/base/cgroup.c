#include "base/cgroup.h"

#include <stdio.h>
#include <string.h>

#include "base/textfile.h"

static void walk_upwards(const char *root, const char *group, bool unified, sl_cgroup_fn fn,
                         void *context)
{
    char folder[1024];
    const int n = snprintf(folder, sizeof folder, "%s%s", root, group);
    if (n < 0 || (size_t)n >= sizeof folder)
        return;
    const size_t root_bytes = strlen(root);
    for (;;) {
        fn(context, folder, unified);
        char *slash = strrchr(folder + root_bytes, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Is the controller among the names of "cpu,cpuacct"? */
static bool names_controller(const char *names, const char *controller)
{
    const size_t wanted = strlen(controller);
    for (const char *name = names; *name != '\0';) {
        const size_t n = strcspn(name, ",");
        if (n == wanted && memcmp(name, controller, n) == 0)
            return true;
        name += n + (name[n] == ',');
    }
    return false;
}

void sl_cgroup_walk(const char *membership, const char *root, const char *controller,
                    sl_cgroup_fn fn, void *context)
{
    char text[8192], v1_root[1024];
    if (!sl_textfile_read(membership, text, sizeof text))
        return;
    /* Lines of "number:controllers:path"; the unified hierarchy is "0::path". */
    for (char *line = text, *next; line && *line != '\0'; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        char *names = strchr(line, ':');
        char *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        names++;
        const bool unified = *names == '\0';
        if (!unified && !names_controller(names, controller))
            continue;
        snprintf(v1_root, sizeof v1_root, "%s/%s", root, controller);
        walk_upwards(unified ? root : v1_root, group, unified, fn, context);
    }
}
