/* Measuring the ceilings.
 *
 * Bandwidth. Streaming reads of a buffer on huge pages, with and without touching memory 4 KiB
 * ahead; the better of the two medians counts. The buffer is far larger than any share of the last
 * cache that one tenant of a machine gets, and every byte is read again only after all others, so
 * that a cache of half its size holds nothing that helps. It is limited by what memory is left, and
 * on a busy machine by how long the system takes to give its pages.
 *
 * Arithmetic. Loops on registers with enough independent chains to keep all units busy.
 *
 * The figures are those of now: shared machines change their speed by a factor of two between
 * minutes, so shares of a ceiling need ceilings of the same minute. */
#include "backend/cpu/ceilings.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hostmem.h"
#include "base/mem.h"
#include "base/pool.h"

enum {
    MAX_BUFFER = 1 << 30,
    MIN_BUFFER = 16 << 20,
    SLICES = 8, /* of the buffer: one is a sample */
    MIN_SLICES = 2,
    HUGE_PAGE = 2 << 20,
    LINES = 256, /* bytes of one step of a reading loop */
    AHEAD = 4096,
    MAX_SAMPLES = 64,
    MIN_SAMPLES = 3
};

static const uint64_t TOUCH_NS = 400000000;  /* for getting the pages of the buffer */
static const uint64_t READ_NS = 150000000;   /* for one way of reading */
static const uint64_t COMPUTE_NS = 80000000; /* for one loop */
static const uint64_t WINDOW_NS = 4000000;   /* of a sample of a loop, at least */

/* ---- loops in plain C ---- */

/* The products of the portable kernels: int8 widened, added up in 32 bits. */
static uint64_t int8_plain(size_t n_rounds)
{
    int32_t sums[32] = {0};
    int8_t a[32], b[32];
    for (int i = 0; i < 32; i++) {
        a[i] = (int8_t)(i * 3);
        b[i] = (int8_t)(i * 5);
    }
    for (size_t r = 0; r < n_rounds; r++) {
        a[r % 32] = (int8_t)r; /* or the products could be taken out of the loop */
        for (int i = 0; i < 32; i++)
            sums[i] = (int32_t)((uint32_t)sums[i] + (uint32_t)(a[i] * b[i]));
    }
    uint64_t all = 0;
    for (int i = 0; i < 32; i++)
        all ^= (uint64_t)(uint32_t)sums[i];
    return all;
}

static uint64_t f32_plain(size_t n_rounds)
{
    float sums[32] = {0};
    float factor[32];
    for (int i = 0; i < 32; i++)
        factor[i] = 0.5f + (float)i / 128;
    for (size_t r = 0; r < n_rounds; r++) {
        for (int i = 0; i < 32; i++)
            sums[i] = sums[i] * factor[i] + 1.0f;
    }
    uint64_t all = 0;
    for (int i = 0; i < 32; i++)
        all ^= (uint64_t)sums[i];
    return all;
}

static uint64_t read_plain(const uint8_t *p, size_t n, size_t ahead)
{
    uint64_t sums[8] = {0};
    (void)ahead;
    for (size_t i = 0; i < n; i += sizeof sums) {
        for (size_t k = 0; k < 8; k++) {
            uint64_t word;
            memcpy(&word, p + i + k * sizeof word, sizeof word);
            sums[k] ^= word;
        }
    }
    uint64_t all = 0;
    for (size_t k = 0; k < 8; k++)
        all ^= sums[k];
    return all;
}

sl_ceiling_loops sl_ceiling_loops_best(void)
{
    sl_ceiling_loops loops = {
        .int8 = {.name = "plain C", .run = int8_plain, .ops_per_round = 64},
        .f32 = {.name = "plain C", .run = f32_plain, .ops_per_round = 64},
        .read = read_plain,
    };
#if defined(__x86_64__)
    sl_ceiling_loops_x86(&loops);
#endif
    return loops;
}

/* ---- measuring ---- */

typedef struct thread_result {
    uint64_t value; /* keeps the work from being left out */
    uint8_t unused[56];
} thread_result;

typedef struct probe {
    sl_pool *pool;
    thread_result *results; /* [threads] */
    /* Arithmetic. */
    const sl_ceiling_loop *loop;
    size_t n_rounds;
    /* Reading. */
    sl_ceiling_read read;
    size_t ahead;
    uint8_t *slice;
    size_t slice_bytes;
    unsigned n_readers;
} probe;

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, size_t n)
{
    qsort(samples, n, sizeof *samples, compare_doubles);
    return samples[n / 2];
}

static void compute_task(void *context, unsigned i, unsigned n)
{
    const probe *p = context;
    (void)n;
    p->results[i].value ^= p->loop->run(p->n_rounds);
}

static uint64_t time_task(const probe *p, sl_pool_task task)
{
    const uint64_t start = sl_clock_ns();
    sl_pool_run(p->pool, task, (void *)(uintptr_t)p);
    return sl_clock_ns() - start;
}

/* Operations a second of all threads together. */
static double compute_rate(probe *p, const sl_ceiling_loop *loop)
{
    double samples[MAX_SAMPLES];
    p->loop = loop;
    p->n_rounds = 1024;
    while (time_task(p, compute_task) < WINDOW_NS && p->n_rounds < (size_t)1 << 40)
        p->n_rounds *= 2;
    const double ops = loop->ops_per_round * (double)p->n_rounds * sl_pool_threads(p->pool);
    const uint64_t end = sl_clock_ns() + COMPUTE_NS;
    size_t n = 0;
    while (n < MIN_SAMPLES || (n < MAX_SAMPLES && sl_clock_ns() < end))
        samples[n++] = ops / (double)time_task(p, compute_task) * 1e9;
    return median(samples, n);
}

/* Reader i's part of a slice: the same whether it writes it first or reads it later. */
static void share_of(const probe *p, unsigned i, size_t *begin, size_t *end)
{
    sl_pool_share(p->slice_bytes, LINES, i, p->n_readers, begin, end);
}

static void read_task(void *context, unsigned i, unsigned n)
{
    const probe *p = context;
    size_t begin, end;
    (void)n;
    if (i >= p->n_readers)
        return;
    share_of(p, i, &begin, &end);
    p->results[i].value ^= p->read(p->slice + begin, end - begin, p->ahead);
}

/* The first to write a page decides on which node it lies. */
static void touch_task(void *context, unsigned i, unsigned n)
{
    const probe *p = context;
    size_t begin, end;
    (void)n;
    share_of(p, i, &begin, &end);
    memset(p->slice + begin, (int)i + 1, end - begin);
}

/* Bytes a second, the better of reading with and without touching ahead. */
static double read_rate(probe *p, uint8_t *buffer, size_t n_slices, unsigned n_readers)
{
    double best = 0;
    p->n_readers = n_readers;
    for (int way = 0; way < 2; way++) {
        double samples[MAX_SAMPLES];
        p->ahead = way == 0 ? AHEAD : 0;
        const uint64_t end = sl_clock_ns() + READ_NS;
        size_t n = 0;
        while (n < MIN_SAMPLES || (n < MAX_SAMPLES && sl_clock_ns() < end)) {
            p->slice = buffer + n % n_slices * p->slice_bytes;
            samples[n++] = (double)p->slice_bytes / (double)time_task(p, read_task) * 1e9;
        }
        const double rate = median(samples, n);
        best = rate > best ? rate : best;
    }
    return best;
}

/* A quarter of what is left, so that measuring never pushes anything out. */
static size_t choose_buffer_bytes(void)
{
    const uint64_t left = sl_hostmem_read("/proc", "/sys/fs/cgroup").left;
    size_t n = MAX_BUFFER;
    while (n > MIN_BUFFER && n > left / 4)
        n /= 2;
    return n;
}

static sl_status measure_reading(probe *p, sl_ceilings *out, sl_error *err)
{
    size_t n = choose_buffer_bytes();
    /* Loops may touch a little beyond the end, but never read it. */
    uint8_t *memory = sl_alloc(SL_MEM_SCRATCH, n + HUGE_PAGE);
    while (!memory && n > MIN_BUFFER) { /* more was promised than can be had */
        n /= 2;
        memory = sl_alloc(SL_MEM_SCRATCH, n + HUGE_PAGE);
    }
    if (!memory)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a buffer of %zu MiB to read",
                       n >> 20);
    uint8_t *buffer = memory + (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;
    (void)madvise(buffer, n, MADV_HUGEPAGE); /* a wish: ordinary pages give a lower figure */
    p->slice_bytes = n / SLICES;
    p->n_readers = sl_pool_threads(p->pool);
    const uint64_t end = sl_clock_ns() + TOUCH_NS;
    size_t n_slices = 0;
    while (n_slices < MIN_SLICES || (n_slices < SLICES && sl_clock_ns() < end)) {
        p->slice = buffer + n_slices++ * p->slice_bytes;
        sl_pool_run(p->pool, touch_task, p);
    }
    const unsigned n_threads = sl_pool_threads(p->pool);
    out->read_bytes = n_slices * p->slice_bytes;
    out->read_gbs = read_rate(p, buffer, n_slices, n_threads) / 1e9;
    out->read_gbs_1 = n_threads == 1 ? out->read_gbs : read_rate(p, buffer, n_slices, 1) / 1e9;
    sl_free(memory);
    return SL_OK;
}

sl_status sl_measure_ceilings(unsigned n_threads, sl_ceilings *out, sl_error *err)
{
    sl_pool *pool;
    *out = (sl_ceilings){0};
    SL_TRY(sl_pool_create(n_threads, &pool, err));
    const unsigned n = sl_pool_threads(pool);
    const sl_ceiling_loops loops = sl_ceiling_loops_best();
    probe p = {.pool = pool, .read = loops.read};
    p.results = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *p.results);
    sl_status status = SL_OK;
    if (!p.results)
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for measuring %u threads", n);
    if (status == SL_OK)
        status = measure_reading(&p, out, err);
    if (status == SL_OK) {
        out->n_threads = n;
        out->int8_tops = compute_rate(&p, &loops.int8) / 1e12;
        out->int8_loop = loops.int8.name;
        out->f32_tflops = compute_rate(&p, &loops.f32) / 1e12;
        out->f32_loop = loops.f32.name;
        out->amx_tops = loops.amx.run ? compute_rate(&p, &loops.amx) / 1e12 : 0;
    }
    sl_free(p.results);
    sl_pool_destroy(pool);
    return status;
}
