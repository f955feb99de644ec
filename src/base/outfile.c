/* Owns the temporary file of a result and its rename. */
#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

struct sl_outfile {
    int fd;
    char *path;      /* as given, for messages */
    char *target;    /* what the temporary file becomes; NULL when written directly */
    char *temporary; /* NULL when written directly */
};

static sl_status fail_errno(const char *path, sl_error *err)
{
    return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
}

static void release(sl_outfile *file)
{
    if (file->fd >= 0)
        close(file->fd);
    sl_free(file->path);
    sl_free(file->target);
    sl_free(file->temporary);
    sl_free(file);
}

void sl_outfile_abandon(sl_outfile *file)
{
    if (!file)
        return;
    if (file->temporary && file->fd >= 0)
        unlink(file->temporary);
    release(file);
}

/* Where a rename must go: the file itself, not a symbolic link to it. */
static char *resolve(const char *path)
{
    char real[PATH_MAX];
    const char *target = realpath(path, real) ? real : path;
    return sl_strndup(SL_MEM_GENERAL, target, strlen(target));
}

static sl_status open_temporary(sl_outfile *file, sl_error *err)
{
    file->target = resolve(file->path);
    if (!file->target)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file->path);
    const size_t capacity = strlen(file->target) + 32;
    file->temporary = sl_alloc(SL_MEM_GENERAL, capacity);
    if (!file->temporary)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", file->path);
    /* A leftover of a killed process with the same id is in nobody's way: try the next number. */
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(file->temporary, capacity, "%s.%ld-%d.part", file->target, (long)getpid(),
                 attempt);
        file->fd = open(file->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->fd >= 0 || errno != EEXIST)
            break;
    }
    return file->fd >= 0 ? SL_OK : fail_errno(file->path, err);
}

sl_status sl_outfile_open(const char *path, sl_outfile **out, sl_error *err)
{
    *out = NULL;
    sl_outfile *file = sl_alloc_zero(SL_MEM_GENERAL, sizeof *file);
    if (!file)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    file->fd = -1;
    sl_status status = SL_OK;
    file->path = sl_strndup(SL_MEM_GENERAL, path, strlen(path));
    struct stat info;
    if (!file->path) {
        status = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    } else if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        file->fd = open(path, O_WRONLY | O_CLOEXEC);
        if (file->fd < 0)
            status = fail_errno(path, err);
    } else {
        status = open_temporary(file, err);
    }
    if (status != SL_OK) {
        sl_outfile_abandon(file);
        return status;
    }
    *out = file;
    return SL_OK;
}

sl_status sl_outfile_write(sl_outfile *file, const void *bytes, size_t n, sl_error *err)
{
    const char *from = bytes;
    while (n > 0) {
        const ssize_t written = write(file->fd, from, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail_errno(file->path, err);
        from += written;
        n -= (size_t)written;
    }
    return SL_OK;
}

/* A rename is on the disk only when its folder is. Folders that cannot be opened or synced (some
 * network file systems) leave that to the system. */
static void sync_folder(const char *target)
{
    const char *slash = strrchr(target, '/');
    char *folder = slash ? sl_strndup(SL_MEM_GENERAL, target, (size_t)(slash - target) + 1) : NULL;
    const int fd = open(folder ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    sl_free(folder);
}

sl_status sl_outfile_commit(sl_outfile *file, sl_error *err)
{
    sl_status status = SL_OK;
    if (file->temporary && fsync(file->fd) != 0)
        status = fail_errno(file->path, err);
    if (close(file->fd) != 0 && status == SL_OK)
        status = fail_errno(file->path, err);
    file->fd = -1;
    if (file->temporary && status == SL_OK && rename(file->temporary, file->target) != 0)
        status = fail_errno(file->path, err);
    if (file->temporary && status == SL_OK)
        sync_folder(file->target);
    if (file->temporary && status != SL_OK)
        unlink(file->temporary);
    release(file);
    return status;
}
