/* Spreading the units of an op over the pool's threads. Every thread begins with a share of its
 * own, the same one in every run, so that it is known beforehand what it reads first and memory
 * stays near it. It takes the share in pieces from the front; who has finished takes pieces from
 * the end of others' shares, so that nobody waits for a slow core longer than for one piece. */
#include "backend/cpu/cpu_internal.h"
#include "base/clock.h"

/* ---- regions ---- */

typedef struct region {
    const sl_cpu_step *step;
    sl_pool_task task;
    void *context;
} region;

static void region_task(void *context, unsigned i, unsigned n)
{
    const region *r = context;
    const sl_cpu_step *step = r->step;
    if (step->record) {
        const uint64_t start = sl_clock_ns();
        r->task(r->context, i, n);
        step->cpu->busy[i].ns = sl_clock_ns() - start;
    } else {
        r->task(r->context, i, n);
    }
    sl_cpu_look_ahead(step, i, n);
}

void sl_cpu_region(const sl_cpu_step *step, sl_pool_task task, void *context)
{
    sl_pool *pool = step->cpu->pool;
    region r = {.step = step, .task = task, .context = context};
    sl_pool_run(pool, region_task, &r);
    if (!step->record)
        return;
    const sl_cpu_busy *busy = step->cpu->busy;
    uint64_t longest = 0;
    for (unsigned i = 0; i < sl_pool_threads(pool); i++) {
        step->record->busy_ns += busy[i].ns;
        longest = busy[i].ns > longest ? busy[i].ns : longest;
    }
    step->record->longest_ns += longest;
}

/* ---- shares ---- */

static uint64_t both(uint64_t begin, uint64_t end)
{
    return begin << 32 | end;
}

void sl_cpu_share_out(const sl_cpu_step *step, unsigned i, size_t begin, size_t end)
{
    atomic_store_explicit(&step->cpu->shares[i].left, both(begin, end), memory_order_relaxed);
}

/* A piece from the front of a share, or from its end. */
static bool take_from(sl_cpu_share *share, bool front, size_t piece, size_t *begin, size_t *end)
{
    uint64_t left = atomic_load_explicit(&share->left, memory_order_relaxed), rest;
    do {
        const uint64_t first = left >> 32, last = left & UINT32_MAX;
        if (first >= last)
            return false;
        const uint64_t n = last - first < piece ? last - first : piece;
        *begin = front ? first : last - n;
        *end = *begin + n;
        rest = front ? both(first + n, last) : both(first, last - n);
    } while (!atomic_compare_exchange_weak_explicit(&share->left, &left, rest, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

bool sl_cpu_take(const sl_cpu_step *step, sl_cpu_taker *taker, size_t piece, size_t *begin,
                 size_t *end)
{
    for (; taker->tried < taker->n; taker->tried++) {
        taker->from = (taker->i + taker->tried) % taker->n;
        if (take_from(&step->cpu->shares[taker->from], taker->tried == 0, piece, begin, end))
            return true;
    }
    return false;
}

/* ---- units of any kind ---- */

typedef struct spread {
    const sl_cpu_step *step;
    size_t count, grain, piece; /* units; units of a grain, grains of a piece */
    sl_cpu_unit unit;
    sl_cpu_range range;
} spread;

static void do_units(const spread *work, size_t begin, size_t end)
{
    if (work->range) {
        work->range(work->step, begin, end);
        return;
    }
    for (size_t unit = begin; unit < end; unit++)
        work->unit(work->step, unit);
}

static void spread_task(void *context, unsigned i, unsigned n)
{
    const spread *work = context;
    sl_cpu_taker taker = {.i = i, .n = n};
    size_t begin, end;
    while (sl_cpu_take(work->step, &taker, work->piece, &begin, &end))
        do_units(work, begin * work->grain, sl_min_size(end * work->grain, work->count));
}

/* What one thread does alone is done here and now, without waking the others. */
static void spread_out(const sl_cpu_step *step, spread *work)
{
    enum { PIECES = 8 }; /* of a share */
    const unsigned n_threads = sl_pool_threads(step->cpu->pool);
    const size_t n_grains = work->count / work->grain + (work->count % work->grain != 0);
    if (work->count == 0)
        return;
    if (n_grains > 1 && n_threads > 1) {
        work->piece = sl_max_size(n_grains / n_threads / PIECES, 1);
        for (unsigned i = 0; i < n_threads; i++) {
            size_t begin, end;
            sl_pool_share(n_grains, 1, i, n_threads, &begin, &end);
            sl_cpu_share_out(step, i, begin, end);
        }
        sl_cpu_region(step, spread_task, work);
        return;
    }
    const uint64_t start = step->record ? sl_clock_ns() : 0;
    do_units(work, 0, work->count);
    if (!step->record)
        return;
    const uint64_t ns = sl_clock_ns() - start;
    step->record->busy_ns += ns;
    step->record->longest_ns += ns;
}

void sl_cpu_for_each(const sl_cpu_step *step, size_t count, sl_cpu_unit unit)
{
    spread_out(step, &(spread){.step = step, .count = count, .grain = 1, .unit = unit});
}

void sl_cpu_for_ranges(const sl_cpu_step *step, size_t count, size_t grain, sl_cpu_range range)
{
    spread_out(step, &(spread){.step = step, .count = count, .grain = grain, .range = range});
}
