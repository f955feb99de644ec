#include "engine/block.h"

#include <assert.h>

void sl_block_pool_init(sl_block_pool *pool, sl_backend *backend, size_t n_bytes)
{
    *pool = (sl_block_pool){.backend = backend, .n_bytes = n_bytes};
}

void sl_block_pool_free(sl_block_pool *pool)
{
    assert(pool->n_used == 0);
    while (pool->unused) {
        sl_block *block = pool->unused;
        pool->unused = block->next;
        pool->backend->free(pool->backend, block->data);
        sl_free(block);
    }
}

sl_block *sl_block_acquire(sl_block_pool *pool)
{
    sl_block *block = pool->unused;
    if (block) {
        pool->unused = block->next;
    } else {
        block = sl_alloc_zero(SL_MEM_STATE, sizeof *block);
        if (!block)
            return NULL;
        block->pool = pool;
        block->data = pool->backend->alloc(pool->backend, SL_MEM_STATE, pool->n_bytes);
        if (!block->data) {
            sl_free(block);
            return NULL;
        }
    }
    block->refs = 1;
    block->next = NULL;
    pool->n_used++;
    return block;
}

sl_block *sl_block_ref(sl_block *block)
{
    block->refs++;
    return block;
}

void sl_block_release(sl_block *block)
{
    if (!block || --block->refs > 0)
        return;
    block->next = block->pool->unused;
    block->pool->unused = block;
    block->pool->n_used--;
}
