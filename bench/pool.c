/* What a run of the pool costs, and what two pools do to each other. Figures, not assertions.
 * usage: bench/pool
 *
 * Prints: nanoseconds of a run of an empty task, one after the other and with a pause of 20
 * microseconds between them, for 1, 2, 4, ... threads up to one per processor; then what a region
 * takes when two pools work one after the other, and when they work at once, for several lengths.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/pool.h"

enum { RUNS = 10000, SAMPLES = 7 };

static void empty(void *context, unsigned i, unsigned n)
{
    (void)context, (void)i, (void)n;
}

static uint64_t work(uint64_t rounds)
{
    uint64_t x = rounds;
    for (uint64_t i = 0; i < rounds; i++)
        x = x * 6364136223846793005u + 1442695040888963407u;
    return x;
}

static uint64_t rounds_per_us = 1;
static volatile uint64_t sink;

static void busy(void *context, unsigned i, unsigned n)
{
    (void)i, (void)n;
    sink = work(*(const uint64_t *)context);
}

static sl_pool *pool_of(unsigned n)
{
    sl_pool *pool;
    sl_error err;
    if (sl_pool_create(n, &pool, &err) != SL_OK) {
        fprintf(stderr, "pool: %s\n", err.message);
        exit(1);
    }
    return pool;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples)
{
    qsort(samples, SAMPLES, sizeof *samples, compare);
    return samples[SAMPLES / 2];
}

/* Nanoseconds of a run, with `apart` microseconds of other work before each. */
static double run_ns(sl_pool *pool, unsigned apart, int runs)
{
    double samples[SAMPLES];
    for (int s = 0; s < SAMPLES; s++) {
        uint64_t inside = 0;
        const uint64_t start = sl_clock_ns();
        for (int i = 0; i < runs; i++) {
            if (apart == 0) {
                sl_pool_run(pool, empty, NULL);
                continue;
            }
            sink = work(apart * rounds_per_us);
            const uint64_t begin = sl_clock_ns();
            sl_pool_run(pool, empty, NULL);
            inside += sl_clock_ns() - begin;
        }
        samples[s] = (double)(apart == 0 ? sl_clock_ns() - start : inside) / runs;
    }
    return median(samples);
}

typedef struct engine {
    sl_pool *pool;
    uint64_t rounds;
    int runs;
} engine;

static void *regions(void *argument)
{
    engine *e = argument;
    for (int i = 0; i < e->runs; i++)
        sl_pool_run(e->pool, busy, &e->rounds);
    return NULL;
}

/* Microseconds per region of two engines one after the other, and of both at once. */
static void together(unsigned n_threads, unsigned us, double *apart, double *at_once)
{
    double one[SAMPLES], both[SAMPLES];
    engine a = {.pool = pool_of(n_threads), .rounds = us * rounds_per_us, .runs = 20000 / (int)us};
    engine b = a;
    b.pool = pool_of(n_threads);
    for (int s = 0; s < SAMPLES; s++) {
        pthread_t other;
        uint64_t start = sl_clock_ns();
        regions(&a);
        regions(&b);
        one[s] = (double)(sl_clock_ns() - start) / 2e3 / a.runs;
        start = sl_clock_ns();
        if (pthread_create(&other, NULL, regions, &b) != 0)
            exit(1);
        regions(&a);
        pthread_join(other, NULL);
        both[s] = (double)(sl_clock_ns() - start) / 2e3 / a.runs;
    }
    sl_pool_destroy(a.pool);
    sl_pool_destroy(b.pool);
    *apart = median(one);
    *at_once = median(both);
}

int main(void)
{
    const unsigned usable = sl_cpus_usable();
    const uint64_t start = sl_clock_ns();
    sink = work(20000000);
    rounds_per_us = UINT64_C(20000000000) / (sl_clock_ns() - start);
    if (rounds_per_us == 0)
        rounds_per_us = 1;
    printf("threads   back to back   20 us apart   200 us apart\n");
    for (unsigned n = 1;; n = 2 * n < usable ? 2 * n : usable) {
        sl_pool *pool = pool_of(n);
        printf("%7u   %9.0f ns  %9.0f ns   %9.0f ns\n", n, run_ns(pool, 0, RUNS),
               run_ns(pool, 20, RUNS / 20), run_ns(pool, 200, RUNS / 200));
        sl_pool_destroy(pool);
        if (n == usable)
            break;
    }
    static const unsigned lengths[] = {5, 20, 100, 1000};
    for (size_t i = 0; i < SL_COUNTOF(lengths); i++) {
        double apart, at_once;
        together(usable, lengths[i], &apart, &at_once);
        printf(
            "two pools of %u threads, regions of %4u us: %7.1f us one after the other, %7.1f us at "
            "once\n",
            usable, lengths[i], apart, at_once);
    }
    return 0;
}
