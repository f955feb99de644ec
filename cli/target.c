#include "target.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "opts.h"

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* The folder that path lies in. */
static bool stat_folder_of(const char *path, struct stat *out)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return stat(".", out) == 0;
    char *folder = sl_strndup(SL_MEM_GENERAL, path, (size_t)(slash - path) + 1);
    const bool found = folder && stat(folder, out) == 0;
    sl_free(folder);
    return found;
}

/* A model is a file or a folder of files. */
static bool belongs_to(const struct stat *file, const char *path, const char *input)
{
    struct stat model, folder;
    if (stat(input, &model) != 0)
        return false;
    if (!S_ISDIR(model.st_mode))
        return is_same(file, &model);
    return stat_folder_of(path, &folder) && is_same(&folder, &model);
}

int sl_target_check(const char *command, const char *option, const char *path, const char *input)
{
    struct stat file;
    if (!path)
        return -1;
    if (*path == '\0')
        return sl_usage_error(command, "%s: the name of the file is empty", option);
    if (strcmp(path, "-") == 0)
        return sl_usage_error(command, "%s: give a file, not standard output", option);
    if (input && stat(path, &file) == 0 && S_ISREG(file.st_mode) && belongs_to(&file, path, input))
        return sl_usage_error(command, "%s: %s is read as the model, and would be lost", option,
                              path);
    return -1;
}
