/* Reference-counted blocks of equal size: what states and checkpoints are made of. A block that
 * nobody refers to goes back to its pool's free list and serves again without a new allocation. */
#ifndef SL_ENGINE_BLOCK_H
#define SL_ENGINE_BLOCK_H

#include "backend/backend.h"

typedef struct sl_block_pool sl_block_pool;

typedef struct sl_block {
    void *data;
    uint32_t refs;
    uint32_t held; /* of these, references by checkpoints: they count against the budget */
    sl_block_pool *pool;
    struct sl_block *next; /* in the free list */
    int32_t ids[];         /* [pool->n_ids], in the host's memory: the tokens of a KV page */
} sl_block;

struct sl_block_pool {
    sl_backend *backend;
    const char *name;
    size_t n_bytes; /* of a block's data */
    size_t n_ids;
    sl_block *unused;
    size_t n_used, n_blocks; /* of all */
};

void sl_block_pool_init(sl_block_pool *pool, const char *name, sl_backend *backend, size_t n_bytes,
                        size_t n_ids);
/* All blocks must have been released. */
void sl_block_pool_free(sl_block_pool *pool);
/* What a block takes in memory. */
size_t sl_block_bytes(const sl_block_pool *pool);
/* Makes unused blocks until there are n_blocks in all, or no memory: a block that is missing then
 * is asked for again when it is needed. */
void sl_block_pool_grow(sl_block_pool *pool, size_t n_blocks);

/* A block with one reference and undefined content. SL_ERR_MEMORY. */
sl_status sl_block_acquire(sl_block_pool *pool, sl_block **out, sl_error *err);
sl_block *sl_block_ref(sl_block *block);
void sl_block_release(sl_block *block); /* NULL is fine */

/* Makes *block one that nobody else refers to, acquiring another when it is NULL or shared; with
 * keep the content comes along. On failure *block stays as it was. */
sl_status sl_block_make_own(sl_block_pool *pool, sl_block **block, bool keep, sl_error *err);

#endif
