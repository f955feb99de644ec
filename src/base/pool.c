/* The thread pool. The caller opens one gate for the threads, the last of them opens another for
 * the caller. Whoever waits at a gate spins for a moment before it sleeps: the plan of one token is
 * hundreds of short runs, and waking a sleeping thread costs more than most of them. */
#include "base/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpus.h"
#include "base/fpenv.h"
#include "base/mem.h"

/* How long a wait may spin: about as long as it takes to wake a sleeper, so that no wait costs more
 * than twice what it must. On an idle machine nearly every wait inside of a token is shorter. On a
 * contended one waits are long, because those waited for have no processor, which may well be the
 * one that is being spun on: a long wait takes three quarters of what the next ones of its thread
 * may spin, and a short one doubles it. Measured with bench/pool. */
enum { LONG_NS = 100000, LONGEST_SPIN_NS = 50000, SHORTEST_SPIN_NS = 1500 };

enum { CACHE_LINE = 64 };

/* Kernels keep their scratch in arenas; what they put on the stack is small. */
enum { STACK_BYTES = 2 << 20 };

/* Opens for the value its word takes. What the opener writes with every run is one cache line,
 * which the waiters read, and nothing else lies in it. */
typedef struct gate {
    _Alignas(CACHE_LINE) atomic_uint word;
    /* Of the gate to a run; written before it opens, read after. */
    sl_pool_task task; /* NULL = end */
    void *context;
    _Alignas(CACHE_LINE) atomic_uint n_asleep; /* changed under mutex */
    pthread_mutex_t mutex;
    pthread_cond_t opened;
} gate;

/* A thread and what nobody else touches while it runs. */
typedef struct worker {
    _Alignas(CACHE_LINE) sl_pool *pool;
    pthread_t thread;
    unsigned i;
    int cpu; /* to stay on; -1 = wherever the system likes */
    uint32_t spin_ns;
    sl_pool_piece ahead[SL_POOL_AHEAD]; /* to fetch while it waits */
    size_t i_ahead, n_ahead, done;      /* piece, pieces, bytes of the piece that are fetched */
} worker;

struct sl_pool {
    unsigned n_threads;
    unsigned n_started; /* workers[1] .. workers[n_started] are running */
    worker *workers;    /* n_threads; 0 is the caller's, which has no thread here */

    gate start;                              /* word: the number of the run */
    gate finish;                             /* word: the last run that is done */
    _Alignas(CACHE_LINE) atomic_uint n_busy; /* threads that have not finished this run */

    _Alignas(CACHE_LINE) bool running; /* the caller's own */
};

/* ---- gates ---- */

static inline void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* A little of what comes next into the second level of cache, or nothing but a pause. */
static void pass_time(worker *self)
{
    enum { STEP = 4 * CACHE_LINE };
    if (self->i_ahead == self->n_ahead) {
        spin_pause();
        return;
    }
    const sl_pool_piece *piece = &self->ahead[self->i_ahead];
    const char *p = (const char *)piece->p + self->done;
    for (size_t i = 0; i < STEP; i += CACHE_LINE)
        __builtin_prefetch(p + i, 0, 2);
    self->done += STEP;
    if (self->done >= piece->n_bytes) {
        self->done = 0;
        self->i_ahead++;
    }
}

/* True when the gate opened within `steps`. */
static bool spin(const gate *g, unsigned value, worker *self, int steps)
{
    for (int i = 0; i < steps; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) == value)
            return true;
        pass_time(self);
    }
    return false;
}

/* The sleeper counts itself and then looks at the word; the opener writes the word and then looks
 * at the count. All four are sequentially consistent, so that one of them sees the other. */
static void sleep_at(gate *g, unsigned value)
{
    pthread_mutex_lock(&g->mutex);
    atomic_fetch_add(&g->n_asleep, 1);
    while (atomic_load(&g->word) != value)
        pthread_cond_wait(&g->opened, &g->mutex);
    atomic_fetch_sub(&g->n_asleep, 1);
    pthread_mutex_unlock(&g->mutex);
}

static void wait_at(gate *g, unsigned value, worker *self)
{
    if (spin(g, value, self, 16))
        return;
    const uint64_t start = sl_clock_ns();
    uint64_t waited = 0;
    bool open = false;
    while (!open && waited < self->spin_ns) {
        open = spin(g, value, self, 64);
        waited = sl_clock_ns() - start;
    }
    if (!open) {
        sleep_at(g, value);
        waited = sl_clock_ns() - start;
    }
    const uint32_t next = waited > LONG_NS ? self->spin_ns / 4 : self->spin_ns * 2;
    self->spin_ns = next > LONGEST_SPIN_NS    ? LONGEST_SPIN_NS
                    : next < SHORTEST_SPIN_NS ? SHORTEST_SPIN_NS
                                              : next;
}

static void open_gate(gate *g, unsigned value)
{
    atomic_store(&g->word, value);
    if (atomic_load(&g->n_asleep) == 0)
        return;
    pthread_mutex_lock(&g->mutex);
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->mutex);
}

static void gate_init(gate *g)
{
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->opened, NULL);
}

static void gate_destroy(gate *g)
{
    pthread_cond_destroy(&g->opened);
    pthread_mutex_destroy(&g->mutex);
}

/* ---- threads ---- */

static void *worker_main(void *argument)
{
    worker *self = argument;
    sl_pool *pool = self->pool;
    if (self->cpu >= 0)
        sl_cpus_stay_on((unsigned)self->cpu);
    sl_fpenv_enter();
    for (unsigned run = 1;; run++) {
        wait_at(&pool->start, run, self);
        if (!pool->start.task)
            return NULL;
        pool->start.task(pool->start.context, self->i, pool->n_threads);
        if (atomic_fetch_sub_explicit(&pool->n_busy, 1, memory_order_acq_rel) != 1)
            continue;
        atomic_store_explicit(&pool->n_busy, pool->n_threads - 1, memory_order_relaxed);
        open_gate(&pool->finish, run);
    }
}

/* Tells every thread the next run, whose number is returned. */
static unsigned announce(sl_pool *pool, sl_pool_task task, void *context)
{
    const unsigned run = atomic_load_explicit(&pool->start.word, memory_order_relaxed) + 1;
    pool->start.task = task;
    pool->start.context = context;
    open_gate(&pool->start, run);
    return run;
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

/* A pool that takes all the cores there are keeps each of its threads on one, so that memory stays
 * near the thread that first wrote it. The caller's thread belongs to the host and is left where it
 * is: the one core that no other thread stays on is free for it. A smaller pool does not choose,
 * since other processes might choose the same. */
static sl_status start_threads(sl_pool *pool, const sl_cpus *cpus, sl_error *err)
{
    const bool pinned = pool->n_threads == cpus->n_cores && cpus->n_usable == cpus->n_cores;
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
        w->cpu = pinned ? (int)cpus->ids[i] : -1;
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
    sl_cpus cpus = {0};
    if (n_threads != 1)
        cpus = sl_cpus_find();
    if (n_threads == 0)
        n_threads = (unsigned)sl_min_size(cpus.n_usable, SL_POOL_MAX_THREADS);

    sl_pool *pool = sl_alloc_zero(SL_MEM_GENERAL, sizeof *pool);
    worker *workers = sl_alloc_array(SL_MEM_GENERAL, n_threads, sizeof *workers);
    if (!pool || !workers) {
        sl_free(pool);
        sl_free(workers);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %u threads", n_threads);
    }
    pool->n_threads = n_threads;
    pool->workers = workers;
    for (unsigned i = 0; i < n_threads; i++)
        workers[i] = (worker){.spin_ns = LONGEST_SPIN_NS};
    atomic_store(&pool->n_busy, n_threads - 1);
    gate_init(&pool->start);
    gate_init(&pool->finish);
    sl_status status = start_threads(pool, &cpus, err);
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
    gate_destroy(&pool->finish);
    gate_destroy(&pool->start);
    sl_free(pool->workers);
    sl_free(pool);
}

unsigned sl_pool_threads(const sl_pool *pool)
{
    return pool->n_threads;
}

void sl_pool_run(sl_pool *pool, sl_pool_task task, void *context)
{
    assert(!pool->running && "a pool runs one task at a time");
    pool->running = true;
    const bool alone = pool->n_threads == 1;
    const unsigned run = alone ? 0 : announce(pool, task, context);
    sl_fpenv env = sl_fpenv_enter();
    task(context, 0, pool->n_threads);
    sl_fpenv_leave(env);
    if (!alone)
        wait_at(&pool->finish, run, &pool->workers[0]);
    pool->running = false;
}

void sl_pool_look_ahead(sl_pool *pool, unsigned i, const sl_pool_piece *pieces, size_t n)
{
    worker *self = &pool->workers[i];
    assert(n <= SL_POOL_AHEAD);
    memcpy(self->ahead, pieces, n * sizeof *pieces);
    self->i_ahead = self->done = 0;
    self->n_ahead = n;
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
