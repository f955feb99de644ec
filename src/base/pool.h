/* A fixed set of threads that run one function at a time, each on its own static share. No result
 * may depend on the number of threads: a share is a set of outputs, never a part of a sum. */
#ifndef SL_BASE_POOL_H
#define SL_BASE_POOL_H

#include "base/err.h"

typedef struct sl_pool sl_pool;

enum { SL_POOL_MAX_THREADS = 256 };

/* n_threads including the caller's (1 starts none); 0 = sl_cpus_usable(). A pool of one thread per
 * core keeps each of its own threads on one core; the affinity of the caller's is never changed. */
sl_status sl_pool_create(unsigned n_threads, sl_pool **out, sl_error *err);
void sl_pool_destroy(sl_pool *pool);
unsigned sl_pool_threads(const sl_pool *pool);

/* Calls task(context, i, n) for every i < n = sl_pool_threads, the caller's thread being i = 0, and
 * returns when all are done. Only one thread may run tasks on a pool at a time. Threads run with
 * the canonical floating-point environment. */
typedef void (*sl_pool_task)(void *context, unsigned i, unsigned n);
void sl_pool_run(sl_pool *pool, sl_pool_task task, void *context);

/* What thread i reads first in its next task: while it waits it brings that near itself, in order.
 * Called by the thread, inside of a task; takes the place of what was said before. It is a hint,
 * never read: the memory may be gone by then. */
typedef struct sl_pool_piece {
    const void *p;
    size_t n_bytes;
} sl_pool_piece;
enum { SL_POOL_AHEAD = 8 }; /* pieces at most */
void sl_pool_look_ahead(sl_pool *pool, unsigned i, const sl_pool_piece *pieces, size_t n);

/* The share of thread i of n in [0, count): [*begin, *end), multiples of `grain` apart from the
 * end. Shares differ by at most one grain. */
void sl_pool_share(size_t count, size_t grain, unsigned i, unsigned n, size_t *begin, size_t *end);

#endif
