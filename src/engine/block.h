/* Reference-counted blocks of equal size: what states are made of. A block that nobody refers to
 * goes back to its pool's free list and serves again without a new allocation. */
#ifndef SL_ENGINE_BLOCK_H
#define SL_ENGINE_BLOCK_H

#include "backend/backend.h"

typedef struct sl_block_pool sl_block_pool;

typedef struct sl_block {
    void *data;
    uint32_t refs;
    sl_block_pool *pool;
    struct sl_block *next; /* in the free list */
} sl_block;

struct sl_block_pool {
    sl_backend *backend;
    size_t n_bytes; /* of a block */
    sl_block *unused;
    size_t n_used;
};

void sl_block_pool_init(sl_block_pool *pool, sl_backend *backend, size_t n_bytes);
/* All blocks must have been released. */
void sl_block_pool_free(sl_block_pool *pool);

/* A block with one reference and undefined content, or NULL when memory is exhausted. */
sl_block *sl_block_acquire(sl_block_pool *pool);
sl_block *sl_block_ref(sl_block *block);
void sl_block_release(sl_block *block); /* NULL is fine */

#endif
