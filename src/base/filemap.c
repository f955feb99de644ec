/* Mapped files, and the guard that keeps a lost page from killing the process.
 *
 * Open maps are listed in a table that the SIGBUS handler reads without locks. The handler puts
 * zeros where the file used to be and marks the map; faults that are not ours go on to whoever
 * handled them before. It is installed once, at the first map: a host that installs its own later
 * must chain to it, as this one chains to the host's.
 *
 * What it cannot notice: bytes overwritten in place, and a cut within the last page. */
#include "base/filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"

struct sl_filemap {
    void *data;
    size_t n_bytes;
    unsigned slot; /* in the table of open maps */
    char *path;
};

/* ---- the table of open maps ---- */

enum { MAX_MAPS = 1024 };

/* A slot changes only under table_mutex, but the handler of a fault in another map may read it at
 * that moment: version is odd during a change, and a reader that saw it move looks away. (The slot
 * of the map that faulted does not change: it is in use.) */
typedef struct map_slot {
    atomic_uint version;
    atomic_uintptr_t base; /* 0 = free */
    atomic_size_t n_bytes;
    atomic_bool damaged;
} map_slot;

static map_slot table[MAX_MAPS];
static pthread_mutex_t table_mutex = PTHREAD_MUTEX_INITIALIZER;

static void set_slot(map_slot *slot, uintptr_t base, size_t n_bytes)
{
    unsigned version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&slot->base, base, memory_order_relaxed);
    atomic_store_explicit(&slot->n_bytes, n_bytes, memory_order_relaxed);
    atomic_store_explicit(&slot->damaged, false, memory_order_relaxed);
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}

static bool claim_slot(const void *data, size_t n_bytes, unsigned *out)
{
    bool found = false;
    pthread_mutex_lock(&table_mutex);
    for (unsigned i = 0; i < MAX_MAPS && !found; i++) {
        if (atomic_load_explicit(&table[i].base, memory_order_relaxed) != 0)
            continue;
        set_slot(&table[i], (uintptr_t)data, n_bytes);
        *out = i;
        found = true;
    }
    pthread_mutex_unlock(&table_mutex);
    return found;
}

static void release_slot(unsigned i)
{
    pthread_mutex_lock(&table_mutex);
    set_slot(&table[i], 0, 0);
    pthread_mutex_unlock(&table_mutex);
}

/* The slot of the map that holds address, and how many bytes of it precede the address. */
static map_slot *slot_of(uintptr_t address, uintptr_t *base, size_t *n_bytes)
{
    for (unsigned i = 0; i < MAX_MAPS; i++) {
        map_slot *slot = &table[i];
        unsigned version = atomic_load_explicit(&slot->version, memory_order_acquire);
        *base = atomic_load_explicit(&slot->base, memory_order_relaxed);
        *n_bytes = atomic_load_explicit(&slot->n_bytes, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        bool stable = version % 2 == 0 &&
                      version == atomic_load_explicit(&slot->version, memory_order_relaxed);
        if (stable && *base != 0 && address >= *base && address - *base < *n_bytes)
            return slot;
    }
    return NULL;
}

/* ---- the SIGBUS guard ---- */

static struct sigaction previous; /* written before our handler can run */
static uintptr_t page_bytes;

/* Zeros from the page of address to the end of the map. A file that shrank has lost all of that,
 * and the map stays in two pieces however many pages are touched: one mapping for every lost page
 * could exhaust the kernel's limit on mappings. */
static bool repair(uintptr_t address)
{
    uintptr_t base;
    size_t n_bytes;
    map_slot *slot = slot_of(address, &base, &n_bytes);
    if (!slot)
        return false;
    uintptr_t page = address & ~(page_bytes - 1);
    void *zeros = mmap((void *)page, n_bytes - (page - base), PROT_READ,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (zeros == MAP_FAILED)
        return false;
    atomic_store_explicit(&slot->damaged, true, memory_order_release);
    return true;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    bool is_function = (previous.sa_flags & SA_SIGINFO) ||
                       (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN);
    bool is_sent = info->si_code <= 0; /* by kill or raise: it does not come again by itself */
    if (is_sent && !is_function && previous.sa_handler == SIG_IGN)
        return;
    if (!is_function || (previous.sa_flags & (int)SA_RESETHAND)) {
        /* What the kernel would have done. A fault recurs when we return. */
        struct sigaction standard = {.sa_handler = SIG_DFL};
        sigaction(number, &standard, NULL);
        if (!is_function && is_sent)
            raise(number); /* pending until we return */
    }
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(number, info, context);
    else if (is_function)
        previous.sa_handler(number);
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    /* si_addr has a meaning only for faults; a misaligned access would fault again on zeros. */
    bool is_fault = info->si_code > 0 && info->si_code != BUS_ADRALN;
    if (!is_fault || !repair((uintptr_t)info->si_addr))
        pass_on(number, info, context);
    errno = saved_errno;
}

static void install_guard(void)
{
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigaction(SIGBUS, NULL, &previous);
    /* The host's mask and alternate stack stay in force: its handler may rely on them. */
    struct sigaction ours = {.sa_mask = previous.sa_mask};
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & (int)(SA_NODEFER | SA_RESTART));
    ours.sa_sigaction = on_sigbus;
    sigaction(SIGBUS, &ours, NULL);
}

/* ---- files ---- */

static sl_status fail_errno(sl_error *err, sl_status status, const char *path, const char *what)
{
    char reason[128] = "unknown error";
    int number = errno;
    (void)!strerror_r(number, reason, sizeof reason);
    return sl_fail(err, status, "%s: %s: %s", path, what, reason);
}

/* Never blocks on a FIFO, never becomes the owner of a terminal. */
static sl_status open_regular(const char *path, int *out, size_t *n_bytes, sl_error *err)
{
    int fd;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return fail_errno(err, SL_ERR_IO, path, "cannot be opened");
    sl_status status = SL_OK;
    struct stat info;
    if (fstat(fd, &info) != 0)
        status = fail_errno(err, SL_ERR_IO, path, "cannot be examined");
    else if (S_ISDIR(info.st_mode))
        status = sl_fail(err, SL_ERR_IO, "%s: is a folder, not a file", path);
    else if (!S_ISREG(info.st_mode))
        status = sl_fail(err, SL_ERR_IO, "%s: is not a regular file", path);
    else if ((uintmax_t)info.st_size > SIZE_MAX)
        status = sl_fail(err, SL_ERR_LIMIT, "%s: is too large for the address space", path);
    if (status != SL_OK) {
        close(fd);
        return status;
    }
    *out = fd;
    *n_bytes = (size_t)info.st_size;
    return SL_OK;
}

sl_status sl_filemap_open(const char *path, sl_filemap **out, sl_error *err)
{
    static pthread_once_t guard_once = PTHREAD_ONCE_INIT;
    sl_status status = SL_OK;
    int fd = -1;
    sl_filemap *map = sl_alloc_zero(SL_MEM_GENERAL, sizeof *map);
    char *copy = sl_strndup(SL_MEM_GENERAL, path, strlen(path));
    if (!map || !copy) {
        status = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
        goto done;
    }
    map->data = MAP_FAILED;
    SL_CHECK(open_regular(path, &fd, &map->n_bytes, err));
    if (map->n_bytes == 0) {
        status = sl_fail(err, SL_ERR_IO, "%s: is empty", path);
        goto done;
    }
    map->data = mmap(NULL, map->n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map->data == MAP_FAILED) {
        status = errno == ENOMEM ? SL_ERR_MEMORY : SL_ERR_IO;
        status = fail_errno(err, status, path, "cannot be mapped");
        goto done;
    }
    pthread_once(&guard_once, install_guard);
    if (!claim_slot(map->data, map->n_bytes, &map->slot)) {
        status = sl_fail(err, SL_ERR_LIMIT, "%s: more than %d files mapped", path, MAX_MAPS);
        goto done;
    }
    map->path = copy;
    *out = map;

done:
    if (fd >= 0)
        close(fd);
    if (status != SL_OK) {
        if (map && map->data != NULL && map->data != MAP_FAILED)
            munmap(map->data, map->n_bytes);
        sl_free(map);
        sl_free(copy);
    }
    return status;
}

void sl_filemap_close(sl_filemap *map)
{
    if (!map)
        return;
    /* In this order: once unmapped, the range may become somebody else's. */
    release_slot(map->slot);
    munmap(map->data, map->n_bytes);
    sl_free(map->path);
    sl_free(map);
}

const uint8_t *sl_filemap_data(const sl_filemap *map)
{
    return map->data;
}

size_t sl_filemap_size(const sl_filemap *map)
{
    return map->n_bytes;
}

const char *sl_filemap_path(const sl_filemap *map)
{
    return map->path;
}

sl_status sl_filemap_check(const sl_filemap *map, sl_error *err)
{
    if (!atomic_load_explicit(&table[map->slot].damaged, memory_order_acquire))
        return SL_OK;
    return sl_fail(err, SL_ERR_IO,
                   "%s: the file was truncated or became unreadable while it was in use",
                   map->path);
}

void sl_filemap_release(const sl_filemap *map, const uint8_t *data, size_t n)
{
    const uintptr_t base = (uintptr_t)map->data, from = (uintptr_t)data;
    if (from < base || from - base > map->n_bytes || n > map->n_bytes - (from - base))
        return;
    const uintptr_t first = (from + page_bytes - 1) & ~(page_bytes - 1);
    const uintptr_t last = (from + n) & ~(page_bytes - 1);
    if (first < last)
        (void)madvise((void *)first, last - first, MADV_DONTNEED); /* an economy only */
}

static sl_status fail_too_large(sl_error *err, const char *path, size_t limit)
{
    return sl_fail(err, SL_ERR_LIMIT, "%s: is larger than the limit of %zu bytes", path, limit);
}

sl_status sl_read_file(const char *path, size_t limit, char **text, size_t *n_bytes, sl_error *err)
{
    int fd;
    size_t expected;
    SL_TRY(open_regular(path, &fd, &expected, err));
    sl_status status = SL_OK;
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_GENERAL, limit);
    if (expected > limit) {
        status = fail_too_large(err, path, limit);
        goto done;
    }
    /* The size is only a hint: the file may grow, and files of /proc say 0. */
    SL_CHECK(sl_buf_reserve(&buf, expected, err));
    for (;;) {
        char chunk[16384];
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            status = fail_errno(err, SL_ERR_IO, path, "cannot be read");
            goto done;
        }
        if ((size_t)n > limit - buf.n_bytes) {
            status = fail_too_large(err, path, limit);
            goto done;
        }
        SL_CHECK(sl_buf_append(&buf, chunk, (size_t)n, err));
    }
    *text = sl_buf_take(&buf, n_bytes);

done:
    if (status == SL_ERR_MEMORY)
        sl_fail(err, status, "%s: out of memory", path);
    sl_buf_free(&buf);
    close(fd);
    return status;
}
