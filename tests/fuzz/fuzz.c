#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"

void sl_fuzz_broken(const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, what);
    abort();
}

bool sl_fuzz_ok(sl_status status, const sl_error *err)
{
    if (status == SL_OK)
        return true;
    sl_fuzz_check(err->status == status);
    sl_fuzz_check(strlen(err->message) >= 8);
    return false;
}

/* ---- memory ---- */

static uint64_t hash(const uint8_t *data, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ data[i]) * 1099511628211u;
    return h ^ h >> 32;
}

int sl_fuzz_run(sl_fuzz_body body, const uint8_t *data, size_t n)
{
    const sl_mem_stats before = sl_mem_get_stats();
    body(data, n);
    const sl_mem_stats after = sl_mem_get_stats();
    sl_fuzz_check(after.blocks == before.blocks);
    const uint64_t n_requests = after.requests - before.requests;
    if (n_requests == 0)
        return 0;
    sl_mem_fail_at(1 + hash(data, n) % n_requests, false);
    body(data, n);
    sl_mem_fail_at(0, false);
    sl_fuzz_check(sl_mem_get_stats().blocks == before.blocks);
    return 0;
}

/* ---- inputs ---- */

uint8_t sl_fuzz_byte(sl_fuzz_input *in)
{
    if (in->n == 0)
        return 0;
    in->n--;
    return *in->data++;
}

sl_str sl_fuzz_section(sl_fuzz_input *in, sl_str *name)
{
    const char *begin = (const char *)in->data;
    *name = (sl_str){"", 0};
    for (size_t i = 0; i + 4 <= in->n; i++) {
        const bool starts_line = i == 0 || begin[i - 1] == '\n';
        if (!starts_line || memcmp(begin + i, "--- ", 4) != 0)
            continue;
        const char *end = memchr(begin + i, '\n', in->n - i);
        if (!end)
            break;
        *name = (sl_str){begin + i + 4, (size_t)(end - (begin + i + 4))};
        in->n -= (size_t)(end + 1 - begin);
        in->data += end + 1 - begin;
        return (sl_str){begin, i};
    }
    const sl_str rest = {begin, in->n};
    *in = (sl_fuzz_input){in->data + in->n, 0};
    return rest;
}

char *sl_fuzz_copy(const void *data, size_t n)
{
    char *copy = sl_alloc(SL_MEM_GENERAL, n);
    if (copy && n > 0)
        memcpy(copy, data, n);
    return copy;
}

/* ---- files ---- */

static char folder[64];

static void remove_folder(void)
{
    rmdir(folder); /* targets unlink what they wrote */
}

const char *sl_fuzz_folder(void)
{
    if (folder[0])
        return folder;
    /* In memory where there is such a place: a target writes files thousands of times a second. */
    const char *const places[] = {"/dev/shm", "/tmp"};
    for (size_t i = 0; i < SL_COUNTOF(places) && !folder[0]; i++) {
        snprintf(folder, sizeof folder, "%s/sluice-fuzz-XXXXXX", places[i]);
        if (!mkdtemp(folder))
            folder[0] = '\0';
    }
    sl_fuzz_check(folder[0]);
    atexit(remove_folder);
    return folder;
}

const char *sl_fuzz_path(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", sl_fuzz_folder(), name);
    return path;
}

void sl_fuzz_write(const char *path, const void *data, size_t n, size_t n_zeros)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    sl_fuzz_check(fd >= 0);
    sl_fuzz_check(n == 0 || write(fd, data, n) == (ssize_t)n);
    sl_fuzz_check(ftruncate(fd, (off_t)(n + n_zeros)) == 0);
    close(fd);
}
