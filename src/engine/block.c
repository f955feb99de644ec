#include "engine/block.h"

#include <assert.h>
#include <string.h>

void sl_block_pool_init(sl_block_pool *pool, const char *name, sl_backend *backend, size_t n_bytes,
                        size_t n_ids)
{
    *pool = (sl_block_pool){.backend = backend, .name = name, .n_bytes = n_bytes, .n_ids = n_ids};
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

static size_t header_bytes(const sl_block_pool *pool)
{
    return sizeof(sl_block) + pool->n_ids * sizeof(int32_t);
}

size_t sl_block_bytes(const sl_block_pool *pool)
{
    return header_bytes(pool) + pool->n_bytes;
}

static sl_block *new_block(sl_block_pool *pool)
{
    sl_block *block = sl_alloc_zero(SL_MEM_STATE, header_bytes(pool));
    if (!block)
        return NULL;
    block->pool = pool;
    block->data = pool->backend->alloc(pool->backend, SL_MEM_STATE, pool->n_bytes);
    if (!block->data) {
        sl_free(block);
        return NULL;
    }
    pool->n_blocks++;
    return block;
}

void sl_block_pool_grow(sl_block_pool *pool, size_t n_blocks)
{
    while (pool->n_blocks < n_blocks) {
        sl_block *block = new_block(pool);
        if (!block)
            return;
        block->next = pool->unused;
        pool->unused = block;
    }
}

sl_status sl_block_acquire(sl_block_pool *pool, sl_block **out, sl_error *err)
{
    sl_block *block = pool->unused;
    if (block)
        pool->unused = block->next;
    else
        block = new_block(pool);
    if (!block)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a state: %s block of %zu bytes",
                       pool->name, pool->n_bytes);
    block->refs = 1;
    block->held = 0;
    block->next = NULL;
    pool->n_used++;
    *out = block;
    return SL_OK;
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

sl_status sl_block_make_own(sl_block_pool *pool, sl_block **block, bool keep, sl_error *err)
{
    if (*block && (*block)->refs == 1)
        return SL_OK;
    sl_block *own;
    SL_TRY(sl_block_acquire(pool, &own, err));
    if (*block && keep) {
        pool->backend->copy(pool->backend, own->data, (*block)->data, pool->n_bytes);
        memcpy(own->ids, (*block)->ids, pool->n_ids * sizeof *own->ids);
    }
    sl_block_release(*block);
    *block = own;
    return SL_OK;
}
