#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* In front of every block, one alignment unit: what sl_free needs to keep the totals. */
typedef struct header {
    size_t n_bytes;
    sl_mem_tag tag;
} header;

_Static_assert(sizeof(header) <= SL_MEM_ALIGN, "the header must fit in one alignment unit");

static atomic_size_t live_bytes[SL_MEM_TAG_COUNT];
static atomic_size_t live_blocks;
static atomic_uint_fast64_t requests;
static atomic_uint_fast64_t fail_request; /* absolute request number, 0 = off */
static atomic_bool fail_forever;

static const char *const tag_names[SL_MEM_TAG_COUNT] = {
    [SL_MEM_GENERAL] = "general", [SL_MEM_TEXT] = "text",   [SL_MEM_FORMAT] = "format",
    [SL_MEM_WEIGHTS] = "weights", [SL_MEM_STATE] = "state", [SL_MEM_SCRATCH] = "scratch",
};

static bool request_fails(void)
{
    uint64_t number = atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed) + 1;
    uint64_t target = atomic_load_explicit(&fail_request, memory_order_relaxed);
    if (target == 0)
        return false;
    return number == target ||
           (number > target && atomic_load_explicit(&fail_forever, memory_order_relaxed));
}

static header *header_of(void *p)
{
    return (header *)(void *)((char *)p - SL_MEM_ALIGN);
}

void *sl_alloc(sl_mem_tag tag, size_t n)
{
    size_t total;
    if (request_fails() || !sl_size_add(n, SL_MEM_ALIGN, &total) ||
        !sl_size_align(total, SL_MEM_ALIGN, &total))
        return NULL;
    char *block = aligned_alloc(SL_MEM_ALIGN, total);
    if (!block)
        return NULL;
    header *h = (header *)(void *)block;
    h->n_bytes = n;
    h->tag = tag;
    atomic_fetch_add_explicit(&live_bytes[tag], n, memory_order_relaxed);
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return block + SL_MEM_ALIGN;
}

void *sl_alloc_zero(sl_mem_tag tag, size_t n)
{
    void *p = sl_alloc(tag, n);
    if (p)
        memset(p, 0, n);
    return p;
}

void *sl_alloc_array(sl_mem_tag tag, size_t count, size_t size)
{
    size_t n;
    return sl_size_mul(count, size, &n) ? sl_alloc_zero(tag, n) : NULL;
}

void *sl_realloc(sl_mem_tag tag, void *p, size_t n)
{
    if (!p)
        return sl_alloc(tag, n);
    header *old = header_of(p);
    void *q = sl_alloc(old->tag, n);
    if (!q)
        return NULL;
    memcpy(q, p, sl_min_size(n, old->n_bytes));
    sl_free(p);
    return q;
}

void sl_free(void *p)
{
    if (!p)
        return;
    header *h = header_of(p);
    atomic_fetch_sub_explicit(&live_bytes[h->tag], h->n_bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(h);
}

/* A mapping of its own: its ends that do not fill a huge page get small ones. */
void *sl_pages_alloc(sl_mem_tag tag, size_t n)
{
    if (request_fails() || n == 0)
        return NULL;
    void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    (void)madvise(p, n, MADV_HUGEPAGE); /* speed only */
    atomic_fetch_add_explicit(&live_bytes[tag], n, memory_order_relaxed);
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return p;
}

void sl_pages_free(sl_mem_tag tag, void *p, size_t n)
{
    if (!p)
        return;
    munmap(p, n);
    atomic_fetch_sub_explicit(&live_bytes[tag], n, memory_order_relaxed);
    atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
}

/* Advice for the whole pages inside of p[0..n). */
static void advise(void *p, size_t n, int advice)
{
    const long size = sysconf(_SC_PAGESIZE);
    const uintptr_t page = size > 0 ? (uintptr_t)size : 4096, begin = (uintptr_t)p;
    const uintptr_t first = (begin + page - 1) & ~(page - 1), last = (begin + n) & ~(page - 1);
    if (first < last)
        (void)madvise((void *)first, last - first, advice); /* an economy only */
}

void sl_mem_prefer_huge(void *p, size_t n)
{
    advise(p, n, MADV_HUGEPAGE);
}

void sl_mem_discard(void *p, size_t n)
{
    advise(p, n, MADV_DONTNEED);
}

char *sl_strndup(sl_mem_tag tag, const char *s, size_t n)
{
    if (n == SIZE_MAX)
        return NULL;
    char *copy = sl_alloc(tag, n + 1);
    if (!copy)
        return NULL;
    memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

sl_mem_stats sl_mem_get_stats(void)
{
    sl_mem_stats stats = {
        .blocks = atomic_load(&live_blocks),
        .requests = atomic_load(&requests),
    };
    for (int i = 0; i < SL_MEM_TAG_COUNT; i++)
        stats.bytes[i] = atomic_load(&live_bytes[i]);
    return stats;
}

const char *sl_mem_tag_name(sl_mem_tag tag)
{
    return (unsigned)tag < SL_MEM_TAG_COUNT ? tag_names[tag] : "unknown";
}

void sl_mem_fail_at(uint64_t n, bool forever)
{
    atomic_store(&fail_forever, forever);
    atomic_store(&fail_request, n == 0 ? 0 : atomic_load(&requests) + n);
}
