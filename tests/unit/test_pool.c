/* The thread pool: shares, many runs, the floating-point environment, failing thread creation, and
 * the number of usable processors. */
#define _GNU_SOURCE /* RTLD_NEXT, sched_setaffinity */
#include "support.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cpus.h"
#include "base/fpenv.h"
#include "base/mem.h"
#include "base/pool.h"

/* The pool's calls come here first, so that the n-th thread can fail to start. */
static int creations_left = -1; /* -1: no limit */

int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes,
                   void *(*start)(void *), void *restrict argument)
{
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    if (creations_left == 0)
        return EAGAIN;
    if (creations_left > 0)
        creations_left--;
    return real(thread, attributes, start, argument);
}

/* Shares are disjoint, in order and complete, cut at multiples of the grain, and even. */
static void check_shares(size_t count, size_t grain, unsigned n)
{
    size_t expected = 0, smallest = SIZE_MAX, largest = 0;
    for (unsigned i = 0; i < n; i++) {
        size_t begin, end;
        sl_pool_share(count, grain, i, n, &begin, &end);
        assert_int_equal(begin, expected);
        assert_true(end >= begin && end <= count);
        assert_true(end % grain == 0 || end == count);
        size_t grains = (end - begin) / grain + ((end - begin) % grain != 0);
        smallest = sl_min_size(smallest, grains);
        largest = sl_max_size(largest, grains);
        expected = end;
    }
    assert_int_equal(expected, count);
    assert_true(largest - smallest <= 1);
}

static void test_shares(void **state)
{
    (void)state;
    static const size_t grains[] = {1, 2, 3, 8, 16, 64, 1000};
    for (size_t count = 0; count < 300; count++)
        for (size_t g = 0; g < SL_COUNTOF(grains); g++)
            for (unsigned n = 1; n <= 9; n++)
                check_shares(count, grains[g], n);
    static const size_t large[] = {248320, 1u << 31, SIZE_MAX / 3, SIZE_MAX - 1, SIZE_MAX};
    for (size_t c = 0; c < SL_COUNTOF(large); c++)
        for (size_t g = 0; g < SL_COUNTOF(grains); g++)
            for (unsigned n = 1; n <= SL_POOL_MAX_THREADS; n = 2 * n + 1)
                check_shares(large[c], grains[g], n);
}

enum { MAX_COUNT = 64 };

typedef struct work {
    size_t count;
    unsigned n_threads;
    unsigned char written[MAX_COUNT]; /* plain memory: the pool must order it */
    atomic_uint wrong;
} work;

static void count_once(void *context, unsigned i, unsigned n)
{
    work *w = context;
    if (n != w->n_threads)
        atomic_fetch_add(&w->wrong, 1);
    size_t begin, end;
    sl_pool_share(w->count, 3, i, n, &begin, &end);
    for (size_t k = begin; k < end; k++)
        w->written[k]++;
}

static void test_many_runs(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 4; n++) {
        sl_error err;
        sl_pool *pool;
        assert_ok(sl_pool_create(n, &pool, &err));
        assert_int_equal(sl_pool_threads(pool), n);
        work w = {.n_threads = n};
        for (unsigned run = 0; run < 10000; run++) {
            w.count = run % (MAX_COUNT + 1);
            memset(w.written, 0, sizeof w.written);
            sl_pool_run(pool, count_once, &w);
            for (size_t k = 0; k < MAX_COUNT; k++)
                assert_int_equal(w.written[k], k < w.count);
            if (run % 1000 == 999)
                usleep(2000); /* long enough for the threads to fall asleep */
        }
        assert_int_equal(w.wrong, 0);
        sl_pool_destroy(pool);
    }
}

/* One share takes so long that the others, or the caller, sleep. */
static void one_is_slow(void *context, unsigned i, unsigned n)
{
    atomic_uint *calls = context;
    if (i == atomic_load(calls) % n)
        usleep(3000);
    atomic_fetch_add(calls + 1, 1);
}

static void test_sleeping(void **state)
{
    (void)state;
    sl_error err;
    sl_pool *pool;
    assert_ok(sl_pool_create(3, &pool, &err));
    atomic_uint calls[2] = {0};
    for (unsigned run = 0; run < 30; run++) {
        atomic_store(&calls[0], run);
        sl_pool_run(pool, one_is_slow, calls);
        assert_int_equal(calls[1], 3 * (run + 1));
    }
    sl_pool_destroy(pool);
}

static void test_pools_come_and_go(void **state)
{
    (void)state;
    sl_error err;
    for (unsigned i = 0; i < 200; i++) {
        sl_pool *pool;
        assert_ok(sl_pool_create(1 + i % 8, &pool, &err));
        if (i % 3 == 0) {
            work w = {.count = MAX_COUNT, .n_threads = 1 + i % 8};
            sl_pool_run(pool, count_once, &w);
            for (size_t k = 0; k < MAX_COUNT; k++)
                assert_int_equal(w.written[k], 1);
        }
        sl_pool_destroy(pool);
    }
    sl_pool_destroy(NULL);
}

/* A task may use another pool, and many pools may run at the same time. */
typedef struct nest {
    sl_pool *inner;
    work inside;
} nest;

static void run_inner(void *context, unsigned i, unsigned n)
{
    (void)n;
    nest *nests = context;
    for (unsigned run = 0; run < 50; run++)
        sl_pool_run(nests[i].inner, count_once, &nests[i].inside);
}

static void test_pools_inside_of_pools(void **state)
{
    (void)state;
    enum { OUTER = 4 };
    sl_error err;
    sl_pool *outer;
    static nest nests[OUTER];
    assert_ok(sl_pool_create(OUTER, &outer, &err));
    for (unsigned i = 0; i < OUTER; i++) {
        nests[i] = (nest){.inside = {.count = MAX_COUNT, .n_threads = 1 + i % 3}};
        assert_ok(sl_pool_create(1 + i % 3, &nests[i].inner, &err));
    }
    sl_pool_run(outer, run_inner, nests);
    for (unsigned i = 0; i < OUTER; i++) {
        for (size_t k = 0; k < MAX_COUNT; k++)
            assert_int_equal(nests[i].inside.written[k], 50);
        assert_int_equal(atomic_load(&nests[i].inside.wrong), 0);
        sl_pool_destroy(nests[i].inner);
    }
    sl_pool_destroy(outer);
}

static void run_itself(void *context, unsigned i, unsigned n)
{
    (void)n;
    if (i == 0)
        sl_pool_run(context, run_itself, context);
}

/* A task that runs its own pool is a mistake of ours and says so, instead of waiting for ever. */
static void test_a_task_on_its_own_pool(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 3; n++) {
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            sl_pool *pool;
            signal(SIGABRT, SIG_DFL); /* cmocka catches it */
            (void)!freopen("/dev/null", "w", stderr);
            alarm(20);
            if (sl_pool_create(n, &pool, NULL) == SL_OK)
                sl_pool_run(pool, run_itself, pool);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}

/* Threads asleep for long, and threads that have just been started, end when they are told. */
static void test_end_while_asleep(void **state)
{
    (void)state;
    sl_error err;
    for (useconds_t pause = 0; pause <= 20000; pause = pause * 4 + 5) {
        sl_pool *pool;
        work w = {.count = MAX_COUNT, .n_threads = 4};
        assert_ok(sl_pool_create(4, &pool, &err));
        usleep(pause);
        sl_pool_run(pool, count_once, &w);
        usleep(pause);
        sl_pool_destroy(pool);
        for (size_t k = 0; k < MAX_COUNT; k++)
            assert_int_equal(w.written[k], 1);
    }
}

#if defined(__x86_64__)
#include <xmmintrin.h>
#define HOST_FLUSHES_DENORMALS() _mm_setcsr(_mm_getcsr() | 0x8040) /* FTZ and DAZ */
#define HOST_RESTORES()          _mm_setcsr(0x1F80)
#define HOST_STILL_FLUSHES()     ((_mm_getcsr() & 0x8040) == 0x8040)
#elif defined(__aarch64__)
static uint64_t get_fpcr(void)
{
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
}
static void set_fpcr(uint64_t value)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(value));
}
#define HOST_FLUSHES_DENORMALS() set_fpcr(get_fpcr() | (1u << 24))
#define HOST_RESTORES()          set_fpcr(0)
#define HOST_STILL_FLUSHES()     (get_fpcr() >> 24 & 1)
#endif

static void halve_smallest_normal(void *context, unsigned i, unsigned n)
{
    (void)n;
    volatile float smallest = 0x1p-126f, half = 0.5f;
    volatile float *products = context;
    products[i] = smallest * half;
}

/* A host that set flush-to-zero before it created the pool, or only before the run. */
static void test_host_flushes_denormals(void **state)
{
    (void)state;
    for (int early = 0; early <= 1; early++) {
        if (early)
            HOST_FLUSHES_DENORMALS();
        sl_error err;
        sl_pool *pool;
        sl_status status = sl_pool_create(4, &pool, &err);
        HOST_FLUSHES_DENORMALS();
        volatile float products[4] = {0};
        if (status == SL_OK)
            sl_pool_run(pool, halve_smallest_normal, (void *)products);
        bool restored = HOST_STILL_FLUSHES();
        HOST_RESTORES();
        assert_ok(status);
        assert_true(restored);
        for (int i = 0; i < 4; i++)
            assert_true(products[i] == 0x1p-127f);
        sl_pool_destroy(pool);
    }
}

static void read_mask(void *context, unsigned i, unsigned n)
{
    (void)n;
    sigset_t *masks = context;
    pthread_sigmask(SIG_BLOCK, NULL, &masks[i]);
}

/* Threads leave signals to the host, but not the faults that a handler must see at once. */
static void test_signals(void **state)
{
    (void)state;
    sl_error err;
    sl_pool *pool;
    sigset_t before, old, masks[3];
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, &old);
    assert_ok(sl_pool_create(3, &pool, &err));
    sl_pool_run(pool, read_mask, masks);
    sl_pool_destroy(pool);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    for (unsigned i = 1; i < 3; i++) {
        assert_true(sigismember(&masks[i], SIGINT) && sigismember(&masks[i], SIGTERM) &&
                    sigismember(&masks[i], SIGUSR1) && sigismember(&masks[i], SIGPIPE));
        assert_false(sigismember(&masks[i], SIGBUS) || sigismember(&masks[i], SIGSEGV));
    }
    static const int signals[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGBUS};
    for (size_t i = 0; i < SL_COUNTOF(signals); i++)
        assert_int_equal(sigismember(&masks[0], signals[i]), sigismember(&before, signals[i]));
}

static void test_refusals(void **state)
{
    (void)state;
    sl_error err;
    sl_pool *pool = NULL;
    assert_refused(sl_pool_create(SL_POOL_MAX_THREADS + 1, &pool, &err), SL_ERR_ARGUMENT,
                   "at most 256");
    assert_refused(sl_pool_create(UINT32_MAX, &pool, &err), SL_ERR_ARGUMENT, "4294967295 threads");
    assert_null(pool);
}

static void test_thread_creation_fails(void **state)
{
    (void)state;
    sl_error err;
    size_t blocks = sl_mem_get_stats().blocks;
    for (int started = 0; started < 5; started++) {
        sl_pool *pool = NULL;
        char part[64];
        snprintf(part, sizeof part, "thread %d of 6 cannot be started", started + 2);
        creations_left = started;
        sl_status status = sl_pool_create(6, &pool, &err);
        creations_left = -1;
        assert_refused(status, SL_ERR_MEMORY, part);
        assert_null(pool);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
}

static void test_allocation_failures(void **state)
{
    (void)state;
    sl_error err;
    size_t blocks = sl_mem_get_stats().blocks;
    unsigned failures = 0;
    for (;; failures++) {
        sl_pool *pool = NULL;
        sl_mem_fail_at(failures + 1, false);
        sl_status status = sl_pool_create(3, &pool, &err);
        sl_mem_fail_at(0, false);
        if (status == SL_OK) {
            sl_pool_destroy(pool);
            break;
        }
        assert_int_equal(status, SL_ERR_MEMORY);
        assert_null(pool);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    assert_int_equal(failures, 2);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

/* ---- usable processors ---- */

static void test_affinity(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    unsigned usable = sl_cpus_usable();
    assert_true(usable >= 1 && usable <= (unsigned)CPU_COUNT(&all));
    size_t first = 0;
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    unsigned bound = sl_cpus_usable();
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(bound, 1);

    sl_error err;
    sl_pool *pool;
    assert_ok(sl_pool_create(0, &pool, &err));
    assert_int_equal(sl_pool_threads(pool), sl_min_size(usable, SL_POOL_MAX_THREADS));
    sl_pool_destroy(pool);
}

/* Cores are distinct and allowed. */
static void test_cores(void **state)
{
    (void)state;
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const sl_cpus cpus = sl_cpus_find();
    assert_true(cpus.n_cores >= 1 && cpus.n_cores <= SL_CPUS_MAX);
    assert_true(cpus.n_usable >= 1 && cpus.n_usable <= cpus.n_cores);
    assert_int_equal(cpus.n_usable, sl_cpus_usable());
    for (unsigned i = 0; i < cpus.n_cores; i++) {
        assert_true(CPU_ISSET(cpus.ids[i], &all));
        for (unsigned k = 0; k < i; k++)
            assert_int_not_equal(cpus.ids[i], cpus.ids[k]);
    }
}

static void read_affinity(void *context, unsigned i, unsigned n)
{
    (void)n;
    cpu_set_t *sets = context;
    sched_getaffinity(0, sizeof sets[i], &sets[i]);
}

/* A pool of all cores keeps its own threads on one each and leaves the caller's alone; others stay
 * where the system puts them. */
static void test_pinning(void **state)
{
    (void)state;
    sl_error err;
    cpu_set_t all, after;
    static cpu_set_t sets[SL_POOL_MAX_THREADS];
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const sl_cpus cpus = sl_cpus_find();
    const unsigned counts[] = {cpus.n_cores, cpus.n_cores + 1};
    for (size_t c = 0; c < SL_COUNTOF(counts) && counts[c] <= SL_POOL_MAX_THREADS; c++) {
        const bool pinned = counts[c] == cpus.n_usable;
        sl_pool *pool;
        assert_ok(sl_pool_create(counts[c], &pool, &err));
        sl_pool_run(pool, read_affinity, sets);
        sl_pool_destroy(pool);
        assert_true(CPU_EQUAL(&sets[0], &all));
        for (unsigned i = 1; i < counts[c]; i++) {
            assert_int_equal(CPU_COUNT(&sets[i]), pinned ? 1 : CPU_COUNT(&all));
            assert_true(!pinned || CPU_ISSET(cpus.ids[i], &sets[i]));
        }
    }
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&after, &all));
}

/* More threads than the one processor that is allowed: nobody spins for what cannot come. */
static void test_one_processor_for_all(void **state)
{
    (void)state;
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    CPU_SET(sl_cpus_find().ids[0], &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    sl_error err;
    sl_pool *pool, *automatic;
    sl_status status = sl_pool_create(4, &pool, &err);
    sl_status second = sl_pool_create(0, &automatic, &err);
    work w = {.count = MAX_COUNT, .n_threads = 4};
    for (unsigned run = 0; run < 200 && status == SL_OK; run++)
        sl_pool_run(pool, count_once, &w);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_ok(status);
    assert_ok(second);
    assert_int_equal(sl_pool_threads(automatic), 1);
    for (size_t k = 0; k < MAX_COUNT; k++)
        assert_int_equal(w.written[k], 200);
    sl_pool_destroy(automatic);
    sl_pool_destroy(pool);
}

static char folder[] = "/tmp/sl-pool-XXXXXX";

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + sizeof folder; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static unsigned quota_of(const char *membership)
{
    char path[256];
    put("membership", membership);
    snprintf(path, sizeof path, "%s/membership", folder);
    return sl_cpus_quota(path, folder);
}

static void test_quota(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(folder));
    /* The unified hierarchy: the tightest group on the way up counts. */
    put("a/cpu.max", "300000 100000\n");
    put("a/b/cpu.max", "max 100000\n");
    put("a/b/c/cpu.max", "850000 100000\n");
    put("half/cpu.max", "50000 100000\n");
    put("more/cpu.max", "150000 100000\n");
    put("junk/cpu.max", "garbage\n");
    put("zero/cpu.max", "100000 0\n");
    put("none/cpu.max", "");
    assert_int_equal(quota_of("0::/a\n"), 3);
    assert_int_equal(quota_of("0::/a/b\n"), 3);
    assert_int_equal(quota_of("0::/a/b/c\n"), 3);
    assert_int_equal(quota_of("0::/half\n"), 1);
    assert_int_equal(quota_of("0::/more\n"), 2);
    assert_int_equal(quota_of("0::/junk\n"), 0);
    assert_int_equal(quota_of("0::/zero\n"), 0);
    assert_int_equal(quota_of("0::/none\n"), 0);
    assert_int_equal(quota_of("0::/\n"), 0);
    assert_int_equal(quota_of("0::/gone/away\n"), 0);
    assert_int_equal(quota_of("12\n::\n:\nx:y\n\n0::/a"), 3);
    assert_int_equal(quota_of(""), 0);
    put("cpu.max", "200000 100000\n"); /* a container sees its own limit at the root */
    assert_int_equal(quota_of("0::/\n"), 2);
    assert_int_equal(quota_of("0::/gone/away\n"), 2);
    assert_int_equal(quota_of("0::/half\n"), 1);

    /* The older hierarchies: only the one with "cpu" among its controllers. */
    put("cpu/d/cpu.cfs_quota_us", "400000\n");
    put("cpu/d/cpu.cfs_period_us", "100000\n");
    put("cpu/e/cpu.cfs_quota_us", "-1\n");
    put("cpu/e/cpu.cfs_period_us", "100000\n");
    put("cpu/f/cpu.cfs_quota_us", "100000\n"); /* its period is missing */
    assert_int_equal(quota_of("4:memory:/d\n3:cpu,cpuacct:/d\n"), 4);
    assert_int_equal(quota_of("3:cpuacct,cpu:/d\n"), 4);
    assert_int_equal(quota_of("3:cpu:/e\n"), 0);
    assert_int_equal(quota_of("3:cpu:/f\n"), 0);
    assert_int_equal(quota_of("3:cpuset,cpuacct:/d\n"), 0);
    assert_int_equal(quota_of("3:cpu:/d\n0::/half\n"), 1);

    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(sl_cpus_quota("/nonexistent", folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_many_runs),
        cmocka_unit_test(test_sleeping),
        cmocka_unit_test(test_pools_come_and_go),
        cmocka_unit_test(test_pools_inside_of_pools),
        cmocka_unit_test(test_a_task_on_its_own_pool),
        cmocka_unit_test(test_end_while_asleep),
        cmocka_unit_test(test_host_flushes_denormals),
        cmocka_unit_test(test_signals),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_thread_creation_fails),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_cores),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_one_processor_for_all),
        cmocka_unit_test(test_quota),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
