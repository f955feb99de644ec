/* The thread pool. A run is announced by raising `generation`; every thread works on its own share
 * and counts `n_busy` down. Both sides spin for a moment before they sleep: the plan of one token
 * is hundreds of short runs, and waking a sleeping thread costs more than most of them. */
#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/cpus.h"
#include "base/fpenv.h"
#include "base/mem.h"

/* About 20 to 100 microseconds, by the length of the processor's pause. */
enum { SPINS = 2000 };

/* Kernels keep their scratch in arenas; what they put on the stack is small. */
enum { STACK_BYTES = 2 << 20 };

typedef struct worker {
    sl_pool *pool;
    pthread_t thread;
    unsigned i;
} worker;

struct sl_pool {
    unsigned n_threads;
    unsigned n_started; /* workers[1] .. workers[n_started] are running */
    worker *workers;    /* n_threads; 0 is the caller's and unused */

    /* Written before generation rises, read after. */
    sl_pool_task task; /* NULL = finish */
    void *context;

    /* Threads wait for the first, the caller for the second to become 0. Both change freely, but a
     * waiter that goes to sleep looks again under the mutex and the one who wakes it takes the
     * mutex in between, so that no wake-up is lost. */
    atomic_uint generation;
    atomic_uint n_busy;

    pthread_mutex_t mutex;
    pthread_cond_t started, finished;
    unsigned n_sleeping;  /* under mutex */
    bool caller_sleeping; /* under mutex */
};

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static unsigned wait_for_start(sl_pool *pool, unsigned seen)
{
    unsigned now;
    for (int i = 0; i < SPINS; i++) {
        now = atomic_load_explicit(&pool->generation, memory_order_acquire);
        if (now != seen)
            return now;
        spin_pause();
    }
    pthread_mutex_lock(&pool->mutex);
    pool->n_sleeping++;
    while ((now = atomic_load_explicit(&pool->generation, memory_order_acquire)) == seen)
        pthread_cond_wait(&pool->started, &pool->mutex);
    pool->n_sleeping--;
    pthread_mutex_unlock(&pool->mutex);
    return now;
}

static void wait_for_finish(sl_pool *pool)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->n_busy, memory_order_acquire) == 0)
            return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->mutex);
    pool->caller_sleeping = true;
    while (atomic_load_explicit(&pool->n_busy, memory_order_acquire) != 0)
        pthread_cond_wait(&pool->finished, &pool->mutex);
    pool->caller_sleeping = false;
    pthread_mutex_unlock(&pool->mutex);
}

static void announce(sl_pool *pool, sl_pool_task task, void *context)
{
    pool->task = task;
    pool->context = context;
    atomic_store_explicit(&pool->n_busy, pool->n_started, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->generation, 1, memory_order_release);
    pthread_mutex_lock(&pool->mutex);
    if (pool->n_sleeping > 0)
        pthread_cond_broadcast(&pool->started);
    pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument)
{
    const worker *self = argument;
    sl_pool *pool = self->pool;
    sl_fpenv_enter();
    for (unsigned seen = 0;;) {
        seen = wait_for_start(pool, seen);
        if (!pool->task)
            return NULL;
        pool->task(pool->context, self->i, pool->n_threads);
        if (atomic_fetch_sub_explicit(&pool->n_busy, 1, memory_order_acq_rel) == 1) {
            pthread_mutex_lock(&pool->mutex);
            if (pool->caller_sleeping)
                pthread_cond_signal(&pool->finished);
            pthread_mutex_unlock(&pool->mutex);
        }
    }
}

/* Signals go to the host's threads. Faults cannot be put off: a blocked one ends the process, and
 * SIGBUS is how a mapped file says that it shrank. */
static void block_signals(sigset_t *old)
{
    static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < SL_COUNTOF(faults); i++)
        sigdelset(&set, faults[i]);
    pthread_sigmask(SIG_SETMASK, &set, old);
}

static sl_status start_threads(sl_pool *pool, sl_error *err)
{
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the attributes of a thread");
    int number = pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigset_t host;
    block_signals(&host);
    for (unsigned i = 1; i < pool->n_threads && number == 0; i++) {
        worker *w = &pool->workers[i];
        w->pool = pool;
        w->i = i;
        number = pthread_create(&w->thread, &attributes, worker_main, w);
        if (number == 0)
            pool->n_started = i;
    }
    pthread_sigmask(SIG_SETMASK, &host, NULL);
    pthread_attr_destroy(&attributes);
    if (number == 0)
        return SL_OK;
    char reason[128] = "unknown error";
    (void)!strerror_r(number, reason, sizeof reason);
    return sl_fail(err, number == EAGAIN || number == ENOMEM ? SL_ERR_MEMORY : SL_ERR_IO,
                   "thread %u of %u cannot be started: %s", pool->n_started + 2, pool->n_threads,
                   reason);
}

sl_status sl_pool_create(unsigned n_threads, sl_pool **out, sl_error *err)
{
    if (n_threads > SL_POOL_MAX_THREADS)
        return sl_fail(err, SL_ERR_ARGUMENT, "%u threads: at most %d are possible", n_threads,
                       SL_POOL_MAX_THREADS);
    if (n_threads == 0)
        n_threads = (unsigned)sl_min_size(sl_cpus_usable(), SL_POOL_MAX_THREADS);

    sl_pool *pool = sl_alloc_zero(SL_MEM_GENERAL, sizeof *pool);
    worker *workers = sl_alloc_array(SL_MEM_GENERAL, n_threads, sizeof *workers);
    if (!pool || !workers) {
        sl_free(pool);
        sl_free(workers);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %u threads", n_threads);
    }
    pool->n_threads = n_threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->started, NULL);
    pthread_cond_init(&pool->finished, NULL);
    sl_status status = start_threads(pool, err);
    if (status != SL_OK) {
        sl_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return SL_OK;
}

void sl_pool_destroy(sl_pool *pool)
{
    if (!pool)
        return;
    announce(pool, NULL, NULL);
    for (unsigned i = 1; i <= pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->started);
    pthread_mutex_destroy(&pool->mutex);
    sl_free(pool->workers);
    sl_free(pool);
}

unsigned sl_pool_threads(const sl_pool *pool)
{
    return pool->n_threads;
}

void sl_pool_run(sl_pool *pool, sl_pool_task task, void *context)
{
    assert(atomic_load(&pool->n_busy) == 0 && "a pool runs one task at a time");
    if (pool->n_threads > 1)
        announce(pool, task, context);
    sl_fpenv env = sl_fpenv_enter();
    task(context, 0, pool->n_threads);
    sl_fpenv_leave(env);
    if (pool->n_threads > 1)
        wait_for_finish(pool);
}

void sl_pool_share(size_t count, size_t grain, unsigned i, unsigned n, size_t *begin, size_t *end)
{
    /* The first `more` shares have one grain more than the others. */
    size_t n_grains = count / grain + (count % grain != 0);
    size_t each = n_grains / n, more = n_grains % n;
    size_t first = i * each + sl_min_size(i, more);
    size_t last = first + each + (i < more);
    /* Only the end of the last grain may lie beyond count, or overflow. */
    *begin = first < n_grains ? first * grain : count;
    *end = last < n_grains ? last * grain : count;
}
